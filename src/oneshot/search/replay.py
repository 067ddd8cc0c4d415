"""Replay: searches on configurations whose outcome is known, to compare what proposes them.

What a surrogate is worth can only be seen over many searches, and a search trains for minutes. So a
pool of configurations is trained once, and searches look their trials up in it: fifty take as long
as the surrogates need. A replayed search proposes as `oneshot.search.propose` does, but among the
members of the pool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.search.predictor_phase import cost_of
from oneshot.search.propose import (
    MUTATIONS,
    PARENTS,
    RANDOM_SHARE,
    Proposal,
    quiet,
    random_proposal,
    small_seed,
    variation_of,
    varies,
)
from oneshot.search.settings import Surrogate
from oneshot.search.space import Space
from oneshot.search.surrogates import Model, expected_improvement, make_surrogate
from oneshot.training.epoch import mixed_seed

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Arm:
    """What proposes the trials of a replayed search.

    `surrogate`: None to draw at random where a surrogate would choose. `varies`: whether every
    second proposal is a variation of one of the best trials.
    """

    surrogate: Surrogate | None
    varies: bool = True


@dataclass(frozen=True)
class Pool:
    """Configurations and what came of them.

    `configspace`: of ConfigSpace. `rows` [n, d]: the configurations as it encodes them. `values`
    [n]: the target that each reached, 0 for a failed trial. `costs` [n]: the values as a surrogate
    is told of them. `related` [n, n]: whether one is a variation of the other.
    """

    configspace: Any
    rows: Floats
    values: Floats
    costs: Floats
    related: NDArray[np.bool_]


def pool_member(
    space: Space, members: Sequence[Mapping[str, Any]], roots: int, seed: int
) -> Proposal:
    """The next member of a pool that has these.

    Among random configurations of twenty dimensions no two are alike, and a search by variations
    would have nowhere to go. So only the first `roots` are random. The others are variations of a
    member before them, whichever it is, so that the pool favours no place.
    """
    number = len(members)
    if number < roots:
        return random_proposal(space, seed, number)
    parent = int(np.random.default_rng(mixed_seed(seed, number, 17)).integers(number))
    return Proposal(variation_of(space, members[parent], seed, number), "variation")


def make_pool(
    space: Space, members: Sequence[Mapping[str, Any]], values: Sequence[float | None]
) -> Pool:
    """A pool of members of a space and what they reached, None for failed ones."""
    with quiet():
        import ConfigSpace

        configspace = space.configspace(0)
        rows = np.array(
            [
                ConfigSpace.Configuration(configspace, values=dict(member)).get_array()
                for member in members
            ]
        )
    one, other = rows[:, None], rows[None]
    # What only one of them has follows from the values that both have.
    both = ~np.isnan(one) & ~np.isnan(other)
    related = ((one != other) & both).sum(2) <= MUTATIONS
    reached = [value or 0.0 for value in values]
    costs = np.array([cost_of(value) for value in reached])
    return Pool(configspace, rows, np.array(reached), costs, related)


def replay(pool: Pool, arm: Arm, seed: int, trials: int, initial: int) -> Places:
    """The members that a search tries, in their order [trials].

    The first `initial` are drawn at random, the same ones for all arms with the same seed.
    """
    generator = np.random.default_rng(mixed_seed(seed, 19))
    tried: list[int] = generator.permutation(len(pool.rows))[:initial].tolist()
    with quiet():
        for number in range(len(tried), min(trials, len(pool.rows))):
            tried.append(_next(pool, arm, tried, seed, number))
    return np.array(tried)


def best_so_far(pool: Pool, tried: Places) -> Floats:
    """The best value after each trial."""
    found: Floats = np.maximum.accumulate(pool.values[tried])
    return found


def rank_correlation(pool: Pool, surrogate: Surrogate, seed: int, count: int) -> float:
    """How well a surrogate that knows `count` members orders the others (Spearman)."""
    from scipy.stats import spearmanr

    order = np.random.default_rng(mixed_seed(seed, 23)).permutation(len(pool.rows))
    known, others = order[:count], order[count:]
    with quiet():
        model = _trained(pool, surrogate, known, small_seed(mixed_seed(seed, 23)))
        predicted = model.predict_marginalized(pool.rows[others])[0][:, 0]
    if predicted.min() == predicted.max():
        return 0.0  # it tells none from another
    return float(spearmanr(predicted, pool.costs[others]).statistic)


def _next(pool: Pool, arm: Arm, tried: list[int], seed: int, number: int) -> int:
    """The member that is tried as the `number`-th."""
    generator = np.random.default_rng(mixed_seed(seed, number, 29))
    places = np.array(tried)
    fresh = np.setdiff1d(np.arange(len(pool.rows)), places)
    best = places[np.argsort(pool.costs[places], kind="stable")[:PARENTS]]
    near = fresh[pool.related[best][:, fresh].any(0)]
    is_variation = arm.varies and varies(number) and len(near) > 0
    candidates = near if is_variation else fresh
    is_random = not is_variation and generator.random() < RANDOM_SHARE
    if arm.surrogate is None or is_random:
        return int(generator.choice(candidates))
    model = _trained(pool, arm.surrogate, places, small_seed(mixed_seed(seed, number)))
    mean, variance = (part[:, 0] for part in model.predict_marginalized(pool.rows[candidates]))
    if is_variation:
        worth = -mean
    else:
        lowest = model.predict_marginalized(pool.rows[places])[0].min()
        worth = expected_improvement(mean, variance, float(lowest))
    return int(generator.choice(candidates[worth == worth.max()]))


def _trained(pool: Pool, surrogate: Surrogate, known: Places, seed: int) -> Model:
    model = make_surrogate(surrogate, pool.configspace, seed)
    model.train(pool.rows[known], pool.costs[known][:, None])
    return model
