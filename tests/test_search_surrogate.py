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


def test_proposals_are_variations_of_the_best_in_turn_and_never_the_same() -> None:
    needs_smac()
    space = phase_1_space({}, {})
    known = [Known(p.values, 1 - response(p.values)) for p in initial_design(space, 8, 5)]
    origins = []
    for number in range(8, 14):
        found = propose(space, known, 5, number)
        assert found.values not in [k.values for k in known]
        origins.append(found.origin)
        if found.origin == "variation":
            best = sorted(known, key=lambda k: k.cost or 0.0)[:3]
            shared = [sum(found.values.get(n) == v for n, v in k.values.items()) for k in best]
            # At most three values are others, and what depends on them.
            assert max(shared) >= len(found.values) - 3 - 2
        known.append(Known(found.values, 1 - response(found.values)))
    assert origins[::2] == ["variation"] * 3
    assert "variation" not in origins[1::2]


@pytest.mark.slow
def test_the_surrogate_finds_a_known_optimum_in_fewer_trials_than_random_search() -> None:
    needs_smac()
    rows = []
    for seed in range(5):
        guided = trials_to_reach(LEVEL, seed, 100, guided=True)
        random = trials_to_reach(LEVEL, seed, 1000, guided=False)
        rows.append((guided, random))
    assert sum(guided < random for guided, random in rows) >= 4, rows
