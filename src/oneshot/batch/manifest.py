"""Manifest of a directory of answers, which prevents that answers of different jobs are mixed."""

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
from oneshot.data.sources import is_address
from oneshot.errors import InputError
from oneshot.reasoner.answers import AnswerOptions
from oneshot.system.checksums import read_sealed_json
from oneshot.system.files import leftovers, locked, write_json

# Readers of a directory of Parquet files ignore names with this prefix.
MANIFEST, LOCK = "_oneshot-answers.json", "_lock"
FORMAT = 1

# Default partition: about a minute on a CPU, with enough partitions for all workers, and not too
# many files in the directory.
_QUESTIONS, _LEAST, _FEW, _MANY = 1_000, 16, 32, 10_000

_PART = re.compile(r"part-[0-9]{6,}\.parquet")


@dataclass(frozen=True)
class Manifest:
    """The queries, the reasoner and the options of a job.

    `version`: version of oneshot. `reasoner`: its identity. `digest`: digest of the file of
    queries. `options`: options of the answers. `data`, `seed`, `settings`: how the reasoner is read
    (see `Source`). `questions`: number of queries. `partition`: queries per part.
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
        """The tag in every part of these answers, and in no other part."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:32]

    def as_dict(self) -> dict[str, Any]:
        """The content of the file, with the options among the other values.

        Options beyond the first two are included only if they were given, so that answers of
        earlier versions without such an option keep their tag.
        """
        values, usual = asdict(self), asdict(AnswerOptions())
        options = values.pop("options")
        first = {name: options[name] for name in ("top", "exclude_known")}
        given = {name: value for name, value in options.items() if value != usual[name]}
        return {**values, **first, **given}

    def rows(self, number: int) -> range:
        """The indices of the queries of a partition in the file, from 0."""
        first = number * self.partition
        return range(first, min(first + self.partition, self.questions))

    def write(self, out: Path) -> None:
        write_json(out / MANIFEST, {"format": FORMAT, **self.as_dict()})

    def difference(self, other: "Manifest") -> str | None:
        """How these answers were started, if not like the `other` ones; otherwise None."""
        facts = self.reasoner.get("facts")
        said: dict[str, str] = {
            "version": f"by oneshot {self.version}, this is {other.version}",
            "predictor": "with a different predictor than the run has now",
            "configuration": "with different settings (--set), relations or calibration of the run",
            "graph": "on a different graph",
            "facts": f"at version {facts} of the run's facts, which have changed since",
            "digest": "with different queries than the file contains now",
            **{name: self._told(name, other) for name in asdict(self.options)},
            "partition": f"with --partition {self.partition}, not {other.partition}",
        }
        own, others = ({**m.as_dict(), **m.reasoner} for m in (self, other))
        different = (text for name, text in said.items() if own.get(name) != others.get(name))
        return next(different, None)

    def _told(self, name: str, other: "Manifest") -> str:
        """The description of an option that differs from that of the `other` answers."""
        option = f"--{name.replace('_', '-')}"
        value, another = getattr(self.options, name), getattr(other.options, name)
        if value is None or value is False:
            return f"without {option}"
        if another is None or another is False:
            return f"with {option}"
        return f"with {option} {value}, not {another}"


def default_partition(questions: int) -> int:
    """The default number of queries per partition."""
    few = max(-(-questions // _FEW), _LEAST)
    return max(min(_QUESTIONS, few), -(-questions // _MANY))


def part_name(number: int) -> str:
    return f"part-{number:06d}.parquet"


def read_manifest(out: Path) -> Manifest | None:
    """The manifest of the answers in a directory; None if it has no answers yet."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} exists and is not a directory of parts; choose another path")
    if not (out / MANIFEST).exists():
        if out.is_dir():
            begun = {LOCK, *(entry.name for entry in leftovers(out, (MANIFEST,)))}
            if any(entry.name not in begun for entry in out.iterdir()):
                raise InputError(
                    f"{out} exists and contains no answers of oneshot; choose another path"
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
    """Whether the values of a manifest are valid."""
    numbers: tuple[Any, ...] = (manifest.questions, manifest.partition)
    return (
        isinstance(manifest.reasoner, dict)
        and all(type(number) is int and number > 0 for number in numbers)
        and type(manifest.seed) is int
        and manifest.seed >= 0
        # An address is never stored: a copied directory must not cause connections.
        and (manifest.data is None or not is_address(str(manifest.data)))
        and isinstance(manifest.data, str | None)
        and all(isinstance(setting, str) for setting in manifest.settings)
    )


def is_part(name: str) -> bool:
    """Whether a file has the name of a part."""
    return _PART.fullmatch(name) is not None


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """The directory of the answers, created if necessary and locked against other processes."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with locked(out / LOCK, wait=False):
            yield
    except BlockingIOError as error:
        raise InputError(f"{out}: another process is writing answers to this directory") from error
