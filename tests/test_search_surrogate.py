"""Tests of the surrogate: what it proposes, and that it finds a known optimum."""

import pytest
from searching import LEVEL, needs_smac, response, trials_to_reach

from oneshot.search.proposing import Known, initial_design, propose
from oneshot.search.space import phase_1_space


def test_a_proposal_follows_from_the_store_alone() -> None:
    needs_smac()
    space = phase_1_space({}, {})
    known = [Known(p.values, 1 - response(p.values)) for p in initial_design(space, 6, 3)]
    first, again = (propose(space, known, 3, 6) for _ in range(2))
    assert first == again
    assert first.values not in [k.values for k in known]
    waiting = [*known, Known(first.values, None)]
    assert propose(space, waiting, 3, 6).values != first.values


@pytest.mark.slow
def test_the_surrogate_finds_a_known_optimum_in_fewer_trials_than_random_search() -> None:
    needs_smac()
    rows = []
    for seed in range(5):
        guided = trials_to_reach(LEVEL, seed, 100, guided=True)
        random = trials_to_reach(LEVEL, seed, 1000, guided=False)
        rows.append((guided, random))
    assert sum(guided < random for guided, random in rows) >= 4, rows
