"""A session: one of possibly many processes of a search, and its time limit."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from oneshot.data.dataset import Dataset
from oneshot.search.allotment import Allotment
from oneshot.search.observer import SearchObserver
from oneshot.search.settings import Effort, SearchSettings
from oneshot.search.store import Store
from oneshot.search.workers import Workers
from oneshot.training.observer import Observer
from oneshot.training.time_budget import Clock, TimeBudget
from oneshot.training.trainer import Trainer

_SESSIONS = "sessions"

warn = logging.getLogger(__name__).warning
"""The default destination of the messages of a search."""


class OutOfTime(Exception):  # noqa: N818
    """Ends a session whose time is over; the search continues in the next one."""


class Timer(Observer):
    """Enforces the time limit of a session; as an observer, it ends a training between two epochs.

    `minutes`: the time limit of the session, None for none. `clock`: the clock. `started`: the
    start of the session, by default now. The store records the time of each session; for a killed
    session, up to its last trial or epoch.
    """

    def __init__(
        self,
        store: Store,
        minutes: float | None,
        clock: Clock = time.perf_counter,
        started: float | None = None,
    ) -> None:
        self._store = store
        self.minutes = minutes
        self._before: list[float] = store.about(_SESSIONS) or []
        self._budget = TimeBudget(minutes or 0.0, clock, clock() if started is None else started)

    @property
    def clock(self) -> Clock:
        return self._budget.clock

    @property
    def is_over(self) -> bool:
        return self.minutes is not None and self.spent >= 60 * self.minutes

    @property
    def spent(self) -> float:
        """Seconds of this session so far."""
        return self._budget.used

    def keep(self) -> None:
        """Record the time of this session."""
        self._store.set_about(_SESSIONS, [*self._before, round(self.spent, 3)])

    def on_start(self, trainer: Trainer) -> None:
        self.keep()

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        self.keep()
        if self.is_over and not trainer.state.finished:
            raise OutOfTime


class PhaseTimer:
    """The timer of a phase, which ends at `end`, in seconds of the session.

    While `must_go_on` returns true, the phase continues beyond that, until the session is over.
    """

    def __init__(
        self, timer: Timer, end: float, must_go_on: Callable[[], bool] = lambda: False
    ) -> None:
        self._timer, self._end, self._must_go_on = timer, end, must_go_on

    @property
    def is_over(self) -> bool:
        if self._timer.is_over:
            return True
        return self._timer.spent >= self._end and not self._must_go_on()

    def keep(self) -> None:
        self._timer.keep()


def session_seconds(store: Store) -> list[float]:
    """The time of each session of a search in seconds."""
    return [float(seconds) for seconds in store.about(_SESSIONS) or []]


@dataclass(frozen=True)
class Session:
    """The data, work, workers and time limit of a session.

    `has_more_time`: the time limit of the search was increased, so that parts that ended at the
    limit continue. `observer` observes the trials, `training_observers` the full training.
    `messages`: called with each message for the user (one line).
    """

    data: Dataset
    out: Path
    settings: SearchSettings
    effort: Effort
    device: torch.device
    store: Store
    workers: Workers
    timer: Timer
    has_more_time: bool = False
    observer: SearchObserver = field(default_factory=SearchObserver)
    training_observers: Sequence[Observer] = ()
    messages: Callable[[str], None] = warn

    @contextmanager
    def phase(self, title: str, total: int) -> Iterator[SearchObserver]:
        """Notify the observer of a phase; see `SearchObserver.on_phase`."""
        self.observer.on_phase(title, total, self.settings.target)
        try:
            yield self.observer
        finally:
            self.observer.on_phase_end()

    @property
    def allotment(self) -> Allotment | None:
        """The allotment of the time, if the search has a time limit."""
        if not self.settings.minutes:
            return None
        return Allotment(60 * (self.timer.minutes or 0.0), self.effort.final)

    def task(self, kind: str) -> dict[str, Any]:
        """The common fields of the tasks of all trials."""
        graph = self.data.graph
        return {
            "kind": kind,
            "fingerprint": graph.fingerprint,
            "origin": graph.origin,
            "device": str(self.device),
            "target": self.settings.target,
            "seed": self.settings.seed,
        }
