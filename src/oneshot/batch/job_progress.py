"""The progress of a discovery or an audit on disk, beside the file that it will be written to.

It is written between two batches, every few seconds, and removed when the facts are written. A
job resumes only with the same reasoner, graph and options; otherwise it starts from scratch.
"""

import hashlib
import heapq
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from oneshot._version import __version__
from oneshot.batch.source import Identity
from oneshot.errors import InputError
from oneshot.reasoner.audit import Audit
from oneshot.reasoner.discovery import Discovery
from oneshot.reasoner.judgement import Judged
from oneshot.system.checksums import read_sealed_json, write_sealed_json

SAVED_EVERY = 10.0
"""Least seconds between two writes."""
_PAUSE = 20  # pause between two writes, as a multiple of the time that one takes


State = TypeVar("State", Discovery, Audit)


@dataclass
class JobFile(ABC, Generic[State]):
    """The file of the progress of a job.

    `tag`: identifies reasoner, graph and options. `clock`: in seconds. `job`: its name.
    """

    path: Path
    tag: str
    clock: Callable[[], float] = time.monotonic
    _due: float = -math.inf
    job: ClassVar[str]

    @classmethod
    def beside(cls, out: Path, reasoner: Identity, options: Any) -> Self:
        """The file for a job whose facts will be written to `out`; `options`: a dataclass."""
        about = {"version": __version__, "reasoner": reasoner, "search": asdict(options)}
        tag = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
        return cls(out.with_name(f".{out.name}.{cls.job}"), tag)

    @staticmethod
    @abstractmethod
    def parsed(values: dict[str, Any]) -> State:
        """The progress in a file; raises if it is not valid."""

    def read(self) -> tuple[State | None, str | None]:
        """The progress of an interrupted job, or None; and a message if it is not used."""
        if not self.path.exists():
            return None, None
        try:
            values = read_sealed_json(self.path)
            if values.get("tag") != self.tag:
                return None, f"{self.path} is of another {self.job}; starting from scratch"
            return self.parsed(values), None
        except (InputError, KeyError, TypeError, ValueError):
            return None, f"{self.path} is damaged; starting from scratch"

    def keep(self, state: State) -> None:
        """Write the progress after a batch, if the last time is long enough ago."""
        started = self.clock()
        if started < self._due:
            return
        write_sealed_json(self.path, {"tag": self.tag, **vars(state)})
        ended = self.clock()
        self._due = ended + max(SAVED_EVERY, _PAUSE * (ended - started))

    def remove(self) -> None:
        """Remove the file, after the facts are written."""
        self.path.unlink(missing_ok=True)


class DiscoveryFile(JobFile[Discovery]):
    """The file of the progress of a discovery; its options are a `Search`."""

    job = "discovery"

    @staticmethod
    def parsed(values: dict[str, Any]) -> Discovery:
        return _discovery(values)


class AuditFile(JobFile[Audit]):
    """The file of the progress of an audit; its options are `AuditOptions`."""

    job = "audit"

    @staticmethod
    def parsed(values: dict[str, Any]) -> Audit:
        logits, ranks = (list(map(float, values[name])) for name in ("logits", "ranks"))
        if len(logits) != len(ranks) or not all(map(math.isfinite, logits + ranks)):
            raise ValueError("logits")
        return Audit(logits, ranks)


def _discovery(values: dict[str, Any]) -> Discovery:
    best = [(float(score), tuple(map(_count, fact))) for score, fact in values["best"]]
    first, second = ([list(map(float, row)) for row in rows] for rows in values["judged"])
    if any(len(row) != len(Judged._fields) for row in first + second):
        raise ValueError("judged")
    if any(len(fact) != 3 or not math.isfinite(score) for score, fact in best):
        raise ValueError("best")
    state = Discovery(_count(values["asked"]), best, (first, second))  # type: ignore[arg-type]
    heapq.heapify(state.best)
    if max(len(first), len(second)) > len(state.facts()) or len(second) > len(first):
        raise ValueError("judged")
    return state


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
