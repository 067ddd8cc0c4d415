"""Manifest: what the answers in a directory are the answers to, so that nothing else joins them."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oneshot._version import __version__
from oneshot.batch.source import Identity
from oneshot.errors import InputError
from oneshot.reasoner.answers import AnswerOptions
from oneshot.system.checksums import read_sealed_json
from oneshot.system.files import leftovers, locked, write_json

# Readers of a directory of Parquet files pass over names that begin so.
MANIFEST, LOCK = "_oneshot-answers.json", "_lock"
FORMAT = 1

# What a partition is by default: a minute's work on a processor, but never so few that workers
# run out of them, nor so many that a directory of their parts is unwieldy.
_QUESTIONS, _LEAST, _FEW, _MANY = 1_000, 16, 32, 10_000

_PART = re.compile(r"part-[0-9]{6,}\.parquet")


@dataclass(frozen=True)
class Manifest:
    """What is asked of whom.

    `version`: of oneshot. `reasoner`: its identity. `digest`: of the file of questions. `options`:
    what is wanted of the answers. `data`, `seed`, `settings`: how the reasoner is read (see
    `Source`). `questions`: how many there are; `partition`: how many of them one part answers.
    """

    reasoner: Identity
    digest: str
    options: AnswerOptions
    data: str | None
    seed: int
    settings: tuple[str, ...]
    questions: int
    partition: int
    version: str = __version__

    @property
    def parts(self) -> int:
        return -(-self.questions // self.partition)

    @property
    def tag(self) -> str:
        """What every part of these answers carries, and no other."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:32]

    def as_dict(self) -> dict[str, Any]:
        """As it is written: with the options among the other values.

        Of options beyond the first two only those that were given, so that answers begun before
        there was such an option keep their tag.
        """
        values, usual = asdict(self), asdict(AnswerOptions())
        options = values.pop("options")
        first = {name: options[name] for name in ("top", "exclude_known")}
        given = {name: value for name, value in options.items() if value != usual[name]}
        return {**values, **first, **given}

    def rows(self, number: int) -> range:
        """The questions of a partition, numbered as in the file, from 0."""
        first = number * self.partition
        return range(first, min(first + self.partition, self.questions))

    def write(self, out: Path) -> None:
        write_json(out / MANIFEST, {"format": FORMAT, **self.as_dict()})

    def difference(self, other: "Manifest") -> str | None:
        """How these answers were begun, if otherwise than the `other` ones; else None."""
        facts = self.reasoner.get("facts")
        said: dict[str, str] = {
            "version": f"by oneshot {self.version}, this is {other.version}",
            "predictor": "with another predictor than the run has now",
            "configuration": "with other settings (--set), relations or calibration of the run",
            "graph": "on another graph",
            "facts": f"at version {facts} of the run's facts, which have been changed since",
            "digest": "with other questions than the file holds now",
            **{name: self._told(name, other) for name in asdict(self.options)},
            "partition": f"with --partition {self.partition}, not {other.partition}",
        }
        mine, others = ({**m.as_dict(), **m.reasoner} for m in (self, other))
        different = (text for name, text in said.items() if mine.get(name) != others.get(name))
        return next(different, None)

    def _told(self, name: str, other: "Manifest") -> str:
        """How an option is told that these answers were begun with, and the `other` ones not."""
        option = f"--{name.replace('_', '-')}"
        value, another = getattr(self.options, name), getattr(other.options, name)
        if value is None or value is False:
            return f"without {option}"
        if another is None or another is False:
            return f"with {option}"
        return f"with {option} {value}, not {another}"


def default_partition(questions: int) -> int:
    """How many questions make a partition, if nothing else is wished."""
    few = max(-(-questions // _FEW), _LEAST)
    return max(min(_QUESTIONS, few), -(-questions // _MANY))


def part_name(number: int) -> str:
    return f"part-{number:06d}.parquet"


def read_manifest(out: Path) -> Manifest | None:
    """The manifest of the answers in a directory; None where answers may be begun."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: exists and is not a directory of parts; choose another place")
    if not (out / MANIFEST).exists():
        if out.is_dir():
            begun = {LOCK, *(entry.name for entry in leftovers(out, (MANIFEST,)))}
            if any(entry.name not in begun for entry in out.iterdir()):
                raise InputError(
                    f"{out}: exists and holds no answers of oneshot; choose another place"
                )
        return None
    values = read_sealed_json(out / MANIFEST)
    if values.pop("format", None) != FORMAT:
        raise InputError(f"{out / MANIFEST}: not written by this version of oneshot")
    try:
        options = AnswerOptions.among(values)
        rest = {name: values[name] for name in values.keys() - asdict(options).keys()}
        manifest = Manifest(options=options, **{**rest, "settings": tuple(rest["settings"])})
        whole = _is_whole(manifest)
    except (KeyError, TypeError, InputError) as error:
        raise InputError(f"{out / MANIFEST}: not written by oneshot ({error})") from error
    if not whole:
        raise InputError(f"{out / MANIFEST}: not written by oneshot")
    return manifest


def _is_whole(manifest: Manifest) -> bool:
    """Whether the values of a manifest that was read can be worked with."""
    numbers: tuple[Any, ...] = (manifest.questions, manifest.partition)
    return (
        isinstance(manifest.reasoner, dict)
        and all(type(number) is int and number > 0 for number in numbers)
        and type(manifest.seed) is int
        and manifest.seed >= 0
        and isinstance(manifest.data, str | None)
        and all(isinstance(setting, str) for setting in manifest.settings)
    )


def is_part(name: str) -> bool:
    """Whether a file is called as a part is."""
    return _PART.fullmatch(name) is not None


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """The directory of the answers, made if need be, and held against other processes."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with locked(out / LOCK, wait=False):
            yield
    except BlockingIOError as error:
        raise InputError(f"{out}: another process is writing answers there") from error
