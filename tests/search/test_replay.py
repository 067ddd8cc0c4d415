"""Tests of replayed searches: the pool, what each arm may choose, and what a surrogate is worth."""

import numpy as np
import pytest
from tests.support.searches import needs_smac, response

from oneshot.search.space import phase_1_space

needs_smac()

from oneshot.search.replay import (  # noqa: E402
    Arm,
    Pool,
    best_so_far,
    make_pool,
    pool_member,
    rank_correlation,
    replay,
)

ARMS = (Arm("forest"), Arm("gaussian"), Arm("mlp"), Arm(None), Arm(None, varies=False))


def made(size: int, roots: int, seed: int = 0) -> tuple[list[dict[str, object]], Pool]:
    space = phase_1_space({}, {})
    members: list[dict[str, object]] = []
    for _ in range(size):
        members.append(pool_member(space, members, roots, seed).values)
    return members, make_pool(space, members, [response(member) for member in members])


@pytest.fixture(scope="module")
def pool() -> Pool:
    return made(100, 25)[1]


def test_a_pool_has_random_members_and_variations_of_them() -> None:
    members, pool = made(40, 10)
    assert all(member not in members[:number] for number, member in enumerate(members))
    others = pool.related & ~np.eye(40, dtype=bool)
    assert not others[:10, :10].any()
    # Each of the others has the one that it is a variation of before it.
    assert all(others[number, :number].any() for number in range(10, 40))
    assert made(20, 10)[0] == members[:20]
    # A failed trial is worth nothing, and costs most.
    failed = make_pool(phase_1_space({}, {}), members[:2], [None, 0.5])
    assert (failed.values.tolist(), failed.costs[0]) == ([0.0, 0.5], 1.0)


def test_arms_begin_alike_and_try_no_member_twice(pool: Pool) -> None:
    found = [replay(pool, arm, seed=4, trials=18, initial=6).tolist() for arm in ARMS]
    assert {tuple(tried[:6]) for tried in found} == {tuple(found[0][:6])}
    assert all(len(set(tried)) == 18 for tried in found)
    assert len({tuple(tried) for tried in found}) == len(ARMS)
    assert replay(pool, ARMS[0], 4, 18, 6).tolist() == found[0]
    assert replay(pool, ARMS[0], 5, 6, 6).tolist() != found[0][:6]
    assert sorted(replay(pool, ARMS[4], 4, 1000, 6)) == list(range(100))


@pytest.mark.parametrize("arm", ARMS[:4], ids=str)
def test_every_second_trial_is_a_variation_of_one_of_the_best(pool: Pool, arm: Arm) -> None:
    turns = 0
    for seed in range(3):
        tried = replay(pool, arm, seed, 16, 6).tolist()
        for number in range(6, 16, 2):
            best = sorted(tried[:number], key=lambda member: pool.costs[member])[:3]
            near = np.flatnonzero(pool.related[best].any(0))
            if set(near) - set(tried[:number]):
                turns += 1
                assert tried[number] in near
    assert turns > 5


@pytest.mark.parametrize("arm", ARMS[:3], ids=str)
def test_a_surrogate_chooses_better_members_than_chance(pool: Pool, arm: Arm) -> None:
    def mean(arm: Arm) -> float:
        """Of all trials after the first ones."""
        return float(np.mean([pool.values[replay(pool, arm, s, 18, 8)[8:]] for s in range(3)]))

    assert mean(arm) > mean(Arm(None)) > mean(Arm(None, varies=False))


def test_of_several_variations_the_one_with_the_lowest_prediction_is_tried() -> None:
    _, families = made(60, 5)
    won = []
    for seed in range(4):
        tried = replay(families, Arm("forest"), seed, 22, 10).tolist()
        for number in range(10, 22, 2):
            best = sorted(tried[:number], key=lambda member: families.costs[member])[:3]
            near = set(np.flatnonzero(families.related[best].any(0))) - set(tried[:number])
            if len(near) > 1:
                won.append(families.values[tried[number]] - families.values[list(near)].mean())
    assert len(won) > 10
    assert np.mean(won) > 0.01


def test_the_best_so_far_never_falls(pool: Pool) -> None:
    low, middle, high = np.argsort(pool.values)[[0, 50, -1]]
    found = best_so_far(pool, np.array([middle, low, high])).tolist()
    assert found == pool.values[[middle, middle, high]].tolist()


def test_the_rank_correlation_tells_whether_predictions_are_in_order(pool: Pool) -> None:
    right = np.mean([rank_correlation(pool, "gaussian", seed, 60) for seed in range(3)])
    assert right > 0.6
    generator = np.random.default_rng(0)
    mixed = Pool(
        pool.configspace, pool.rows, pool.values, generator.permutation(pool.costs), pool.related
    )
    wrong = np.mean([rank_correlation(mixed, "gaussian", seed, 60) for seed in range(3)])
    assert abs(wrong) < 0.3
    flat = Pool(pool.configspace, pool.rows, pool.values, np.ones(100), pool.related)
    assert rank_correlation(flat, "forest", 0, 60) == 0.0
