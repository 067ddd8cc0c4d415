"""Replay of searches on configurations with known outcomes, to compare surrogates.

Comparing surrogates requires many searches, and each search trains for minutes. Therefore a pool of
configurations is trained once, and replayed searches look up their trials in the pool, so that only
the surrogates take time. A replayed search proposes as `oneshot.search.propose` does, but among the
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
    """A strategy that proposes the trials of a replayed search.

    `surrogate`: None for random draws instead of a surrogate. `varies`: whether every second
    proposal is a variation of one of the best trials.
    """

    surrogate: Surrogate | None
    varies: bool = True


@dataclass(frozen=True)
class Pool:
    """Configurations and their outcomes.

    `configspace`: the space of ConfigSpace. `rows` [n, d]: the encoded configurations. `values`
    [n]: the target of each, 0 for a failed trial. `costs` [n]: the costs for a surrogate. `related`
    [n, n]: whether one is a variation of the other.
    """

    configspace: Any
    rows: Floats
    values: Floats
    costs: Floats
    related: NDArray[np.bool_]


def pool_member(
    space: Space, members: Sequence[Mapping[str, Any]], roots: int, seed: int
) -> Proposal:
    """The next member of a pool with these members.

    Random configurations in twenty dimensions are never similar, so a search by variations would
    find none in the pool. Therefore only the first `roots` are random. The others are variations of
    a random earlier member, so that the pool favours no region.
    """
    number = len(members)
    if number < roots:
        return random_proposal(space, seed, number)
    parent = int(np.random.default_rng(mixed_seed(seed, number, 17)).integers(number))
    return Proposal(variation_of(space, members[parent], seed, number), "variation")


def make_pool(
    space: Space, members: Sequence[Mapping[str, Any]], values: Sequence[float | None]
) -> Pool:
    """A pool of members of a space and their targets, None for failed ones."""
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
    # Dimensions that only one of them has follow from the values of the common ones.
    both = ~np.isnan(one) & ~np.isnan(other)
    related = ((one != other) & both).sum(2) <= MUTATIONS
    reached = [value or 0.0 for value in values]
    costs = np.array([cost_of(value) for value in reached])
    return Pool(configspace, rows, np.array(reached), costs, related)


def replay(pool: Pool, arm: Arm, seed: int, trials: int, initial: int) -> Places:
    """The members that a search tries, in order, [trials].

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
    """The rank correlation (Spearman) of a surrogate that knows `count` members on the others."""
    from scipy.stats import spearmanr

    order = np.random.default_rng(mixed_seed(seed, 23)).permutation(len(pool.rows))
    known, others = order[:count], order[count:]
    with quiet():
        model = _trained(pool, surrogate, known, small_seed(mixed_seed(seed, 23)))
        predicted = model.predict_marginalized(pool.rows[others])[0][:, 0]
    if predicted.min() == predicted.max():
        return 0.0  # constant predictions
    return float(spearmanr(predicted, pool.costs[others]).statistic)


def _next(pool: Pool, arm: Arm, tried: list[int], seed: int, number: int) -> int:
    """The `number`-th member that a search tries."""
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
