"""Session: one sitting of a search, which may be one of many, and the time it has."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oneshot.dataset import Dataset
from oneshot.search.settings import Effort, SearchSettings
from oneshot.search.store import Store
from oneshot.search.workers import Workers
from oneshot.training import Trainer

_SESSIONS = "sessions"


class OutOfTime(Exception):  # noqa: N818
    """Ends a session whose time is over; the search goes on in the next one."""


class Timer:
    """Watches the time of a session; also a training, which it ends between two epochs.

    `minutes`: what the session may take, None for any time. How long each session took is kept
    in the store, also of one that is killed, up to its last trial or epoch.
    """

    def __init__(self, store: Store, minutes: float | None) -> None:
        self._store = store
        self._seconds = None if minutes is None else 60 * minutes
        self._before: list[float] = store.about(_SESSIONS) or []
        self._begun = time.perf_counter()

    @property
    def is_over(self) -> bool:
        return self._seconds is not None and self.spent >= self._seconds

    @property
    def spent(self) -> float:
        """Seconds of this session so far."""
        return time.perf_counter() - self._begun

    def keep(self) -> None:
        """Write down how long this session has taken."""
        self._store.set_about(_SESSIONS, [*self._before, round(self.spent, 3)])

    def started(self, trainer: Trainer) -> None:
        self.keep()

    def stepped(self, queries: int, loss: float) -> None:
        pass

    def validating(self, queries: int) -> None:
        pass

    def epoch_done(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        self.keep()
        if self.is_over and not trainer.state.finished:
            raise OutOfTime


def session_seconds(store: Store) -> list[float]:
    """How long each session of a search has taken."""
    return [float(seconds) for seconds in store.about(_SESSIONS) or []]


@dataclass(frozen=True)
class Session:
    """What a session works on, how much of it, where and how long."""

    data: Dataset
    out: Path
    settings: SearchSettings
    effort: Effort
    device: torch.device
    store: Store
    workers: Workers
    timer: Timer

    def task(self, kind: str) -> dict[str, Any]:
        """What the tasks of all trials have in common."""
        graph = self.data.graph
        return {
            "kind": kind,
            "fingerprint": graph.fingerprint,
            "origin": graph.origin,
            "device": str(self.device),
            "target": self.settings.target,
            "seed": self.settings.seed,
        }
