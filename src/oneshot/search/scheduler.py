"""Scheduler: runs the trials of a phase on the workers and records them in the store."""

import time
from collections.abc import Callable
from typing import Any, Protocol

from oneshot.errors import OneshotError
from oneshot.search.observer import SearchObserver
from oneshot.search.propose import Proposal
from oneshot.search.session import OutOfTime
from oneshot.search.store import Store, Trial
from oneshot.search.workers import Workers

# A trial during which the search was killed so often is assumed to be the cause.
_MOST_ATTEMPTS = 5
# If so many trials fail before any succeeds, their configurations are not the cause.
_HOPELESS_FAILURES = 5


class Time(Protocol):
    """The time limit of a session."""

    @property
    def is_over(self) -> bool: ...
    def keep(self) -> None: ...


class Sitting(Protocol):
    """The store, the workers and the time limit of trials; a `Session` implements it."""

    @property
    def store(self) -> Store: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def timer(self) -> Time: ...


def run_phase(
    session: Sitting,
    phase: str,
    total: float,
    propose: Callable[[int, list[Trial]], Proposal],
    make_task: Callable[[dict[str, Any], list[Trial]], dict[str, Any]],
    observer: SearchObserver,
    timer: Time | None = None,
) -> list[Trial]:
    """Run trials until there are `total` of a phase; those in the store are not run again.

    A trial that was running when its search was killed runs again with the same configuration. When
    the time is over, running trials are completed and `OutOfTime` is raised. `timer`: the timer of
    the phase, by default that of the session. Returns all trials of the phase.
    """
    store, workers, timer = session.store, session.workers, timer or session.timer
    begun, before = time.perf_counter(), store.clock(phase)
    trials = store.trials(phase)
    unfinished = [trial for trial in trials if not trial.is_finished]
    following = len(trials)
    running = 0

    def clock() -> float:
        return before + time.perf_counter() - begun

    while True:
        while running < workers.slots and not timer.is_over:
            if unfinished:
                trial = unfinished.pop(0)
                if trial.attempts >= _MOST_ATTEMPTS:
                    error = f"the search was killed {trial.attempts} times during this trial"
                    store.finish(phase, trial.number, {"status": "failed", "error": error}, clock())
                    continue
                number, values, origin = trial.number, trial.values, trial.origin
            elif following < total:
                number, following = following, following + 1
                proposal = propose(number, store.trials(phase))
                values, origin = proposal.values, proposal.origin
            else:
                break
            store.start(phase, number, values, origin)
            trials = store.trials(phase)
            workers.submit(number, make_task(values, trials))
            observer.on_trial_start(trials[number], trials)
            running += 1
        if not running:
            if unfinished or following < total:
                raise OutOfTime
            return store.trials(phase)
        number, outcome = workers.wait()
        running -= 1
        store.finish(phase, number, outcome, clock())
        timer.keep()
        trials = store.trials(phase)
        observer.on_trial_end(trials[number], trials)
        if outcome.get("is_fatal"):
            raise OneshotError(
                f"trial {number + 1} left the device unusable ({outcome['error']}); it is recorded "
                "as failed; continue with --resume"
            )
        _check_hope(trials)


def best_trial(trials: list[Trial]) -> Trial | None:
    """The trial with the highest value; the first one of equal trials."""
    valued = [trial for trial in trials if trial.is_finished and trial.value is not None]
    return max(valued, key=lambda trial: trial.value or 0.0, default=None)


def _check_hope(trials: list[Trial]) -> None:
    finished = [trial for trial in trials if trial.is_finished]
    if len(finished) >= _HOPELESS_FAILURES and all(t.status == "failed" for t in finished):
        raise OneshotError(
            f"all of the first {len(finished)} trials failed, the last with: {finished[-1].error}"
        )
