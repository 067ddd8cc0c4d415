"""Phase 1: search of the predictor's configuration by short trainings with a frozen sampler."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from oneshot.config import Config
from oneshot.errors import OneshotError
from oneshot.search.early_stopping import expected_value, limits
from oneshot.search.propose import (
    FAILURE_COST,
    Known,
    Proposal,
    initial_design,
    nearest,
    propose,
    random_proposal,
)
from oneshot.search.scheduler import best_trial, run_phase
from oneshot.search.session import OutOfTime, PhaseTimer, Session
from oneshot.search.space import Space
from oneshot.search.store import Trial

_WORST = 0.01  # lower targets are treated as equal

PREDICTOR, RANDOM = "predictor", "random"
"""Names in the store; those of random searches have a suffix (`random:3`)."""


_ENDED = "predictor_ended"
"""Key in the store: the time of phase 1 is used up."""


def find_predictor(session: Session) -> Trial:
    """Search the predictor's configuration. Returns the best trial."""
    settings, space, store = session.settings, session.settings.space, session.store
    first = int(settings.tries_base)
    design: list[Proposal] = []

    def next_one(number: int, trials: list[Trial]) -> Proposal:
        if number < first:
            origin = "plan" if settings.is_planned else "given"
            return Proposal(values_of(settings.base, space), origin)
        if number < first + settings.initial:
            design[:] = design or initial_design(space, settings.initial, settings.seed)
            if number - first < len(design):
                return design[number - first]
        known = known_trials(trials)
        return propose(space, known, settings.seed, number, settings.surrogate)

    if store.about(_ENDED) and not session.has_more_time:
        trials = store.trials(PREDICTOR)
    else:
        trials = run_trials(session, PREDICTOR, "trial", next_one)
        if settings.minutes:
            store.set_about(_ENDED, True)
    best = best_trial(trials)
    if best is None:
        more = "; increase --minutes" if settings.minutes else ""
        raise OneshotError(
            f"no trial was completed; see `oneshot search --show` for the errors{more}"
        )
    return best


def search_randomly(session: Session, seed: int) -> None:
    """Run random searches with the same number of trials, for comparison."""
    space = session.settings.space

    def next_one(number: int, trials: list[Trial]) -> Proposal:
        return random_proposal(space, seed, number)

    run_trials(session, f"{RANDOM}:{seed}", f"random search {seed}", next_one)


def run_trials(
    session: Session, phase: str, title: str, next_one: Callable[[int, list[Trial]], Proposal]
) -> list[Trial]:
    """Train the proposals of `next_one` until the phase has the requested trials.

    In a search with a time limit, until the time of the phase is over.
    """
    settings, total, allotment = session.settings, session.effort.trials, session.allotment

    def make_task(values: dict[str, Any], trials: list[Trial]) -> dict[str, Any]:
        return {
            **session.task("predictor"),
            "config": dataclasses.asdict(settings.base),
            "values": settings.space.whole(values),
            "queries": settings.queries,
            "validations": settings.validations,
            "valid_queries": settings.valid_queries,
            "seconds": settings.seconds,
            "limits": limits(trials, settings.validations, settings.keep),
            "timed": allotment is not None,
            # The configuration of the plan or the user is always tried.
            "must_run": settings.tries_base and values == trials[0].values,
        }

    with session.phase(title, total) as observer:
        if allotment is None:
            return run_phase(session, phase, total, next_one, make_task, observer)
        # A trial that would probably end after the time limit is not started.
        end = allotment.predictor_end - settings.seconds / 2
        timer = PhaseTimer(
            session.timer, end, lambda: best_trial(session.store.trials(phase)) is None
        )
        with contextlib.suppress(OutOfTime):
            run_phase(session, phase, total or math.inf, next_one, make_task, observer, timer)
        return session.store.trials(phase)


def known_trials(trials: Sequence[Trial]) -> list[Known]:
    """Trials with their costs for the surrogate, between 0 and 1.

    The cost is based on the logarithm of the target, because the effects of choices multiply rather
    than add up: doubling a low target is as informative as doubling a high one. The target of an
    infeasible configuration is unknown. Like a running one, it counts with the mean cost and is not
    proposed again.
    """
    found = []
    for trial in trials:
        cost = None
        if trial.is_finished and trial.status != "infeasible":
            value = expected_value(trial, trials)
            cost = FAILURE_COST if value is None else cost_of(value)
        found.append(Known(trial.values, cost))
    return found


def cost_of(value: float) -> float:
    """The cost of a value between 0 and 1: 0 for 1, and 1 for a hundredth or less."""
    return min(math.log(max(value, _WORST)) / math.log(_WORST), FAILURE_COST)


def values_of(base: Config, space: Space) -> dict[str, Any]:
    """The values of a configuration for the dimensions of a space, clipped to its ranges."""
    values = {}
    for name in space.dimensions:
        section, _, option = name.partition(".")
        values[name] = getattr(getattr(base, section), option)
    return nearest(space, values)
