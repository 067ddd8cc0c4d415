"""The progress of a discovery on disk, beside the file that it will be written to.

It is written between two batches, every few seconds, and removed when the facts are written. A
discovery resumes only with the same reasoner, graph and options; otherwise it starts from scratch.
"""

import hashlib
import heapq
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oneshot._version import __version__
from oneshot.batch.source import Identity
from oneshot.errors import InputError
from oneshot.reasoner.discovery import Discovery, Search
from oneshot.system.checksums import read_sealed_json, write_sealed_json

SAVED_EVERY = 10.0
"""Least seconds between two writes."""
_PAUSE = 20  # pause between two writes, as a multiple of the time that one takes


@dataclass
class DiscoveryFile:
    """The file of the progress of a discovery.

    `tag`: identifies reasoner, graph and options. `clock`: in seconds.
    """

    path: Path
    tag: str
    clock: Callable[[], float] = time.monotonic
    _due: float = -math.inf

    @classmethod
    def beside(cls, out: Path, reasoner: Identity, search: Search) -> "DiscoveryFile":
        """The file for a discovery whose facts will be written to `out`."""
        options = {"version": __version__, "reasoner": reasoner, "search": asdict(search)}
        tag = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:32]
        return cls(out.with_name(f".{out.name}.discovery"), tag)

    def read(self) -> tuple[Discovery | None, str | None]:
        """The progress of an interrupted discovery, or None; and a message if it is not used."""
        if not self.path.exists():
            return None, None
        try:
            values = read_sealed_json(self.path)
            if values.get("tag") != self.tag:
                return None, f"{self.path}: is of another discovery; starting from scratch"
            return _parsed(values), None
        except (InputError, KeyError, TypeError, ValueError):
            return None, f"{self.path}: is damaged; starting from scratch"

    def keep(self, state: Discovery) -> None:
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


def _parsed(values: dict[str, Any]) -> Discovery:
    """The progress in a file; raises if it is not valid."""
    best = [(float(score), tuple(map(_count, fact))) for score, fact in values["best"]]
    first, second = ([float(logit) for logit in logits] for logits in values["judged"])
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
