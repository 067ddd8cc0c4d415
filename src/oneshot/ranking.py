"""Ranking: the filtered rank of the true answer among all entities.

Other true answers of a query are excluded (filtered). Among equal scores, the optimistic rank puts
the answer first, the pessimistic rank last, and the realistic rank in the middle. Entities outside
the subgraph have no score of the predictor: they rank after all sampled ones, by the likelihood of
the sampler if it has one and otherwise as ties (`uncovered="below"`), or have score 0 as in the
official code (`uncovered="zero"`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from oneshot.errors import DivergedError
from oneshot.graph.known_facts import KnownFacts
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import one_thread

Uncovered = Literal["below", "zero"]

__all__ = [
    "FilteredRanking",
    "KnownFacts",
    "Metrics",
    "Ranks",
    "Uncovered",
    "bootstrap_interval",
    "candidate_ranks",
    "check_finite",
    "dense_ranks",
    "filtered_ranks",
    "metrics",
    "order_outside",
]


@dataclass(frozen=True)
class Ranks:
    """Ranks of the answers of n queries, starting from 1; all [n].

    `optimistic`, `pessimistic` int64; `realistic` float64, the mean of the two;
    `covered` bool: whether the answer was sampled.
    """

    optimistic: Tensor
    pessimistic: Tensor
    covered: Tensor

    @property
    def realistic(self) -> Tensor:
        return (self.optimistic + self.pessimistic).double() / 2


def check_finite(scores: Tensor) -> None:
    """Raise if a score is NaN or infinite."""
    if not bool(torch.isfinite(scores).all()):
        raise DivergedError("the predictor gave scores that are not finite; training has diverged")


def filtered_ranks(
    batch: SubgraphBatch,
    scores: Tensor,
    answers: Tensor,
    known: KnownFacts | None,
    num_entities: int,
    uncovered: Uncovered = "below",
) -> Ranks:
    """Ranks of `answers` [n] among all entities, given `scores` [N] of the sampled ones."""
    return FilteredRanking(batch, answers, known, num_entities).ranks(scores, uncovered)


class FilteredRanking:
    """Which entities compete with each of `answers` [n], looked up once for several scores."""

    def __init__(
        self, batch: SubgraphBatch, answers: Tensor, known: KnownFacts | None, num_entities: int
    ) -> None:
        count = batch.num_queries
        others = torch.ones(batch.num_entities, dtype=torch.bool, device=batch.device)
        outside = num_entities - torch.bincount(batch.entity_query, minlength=count)
        place = batch.find(answers)
        covered = place >= 0
        if known is not None:
            row, entity = known.answers(batch.queries)
            rest = entity != answers[row]
            row, entity = row[rest], entity[rest]
            at = batch.find_pairs(row, entity)
            others[at[at >= 0]] = False
            outside = outside - torch.bincount(row[at < 0], minlength=count)
        others[place[covered]] = False
        # The answer does not compete with itself.
        self._batch, self._others, self._outside = batch, others, outside - (~covered).long()
        self._place, self._covered = place, covered

    def ranks(self, scores: Tensor, uncovered: Uncovered = "below") -> Ranks:
        """The ranks by `scores` [N] of the sampled entities."""
        check_finite(scores)
        batch, others, covered = self._batch, self._others, self._covered
        mine = torch.where(covered, scores[self._place.clamp(min=0)], 0.0)
        against = mine[batch.entity_query]
        if uncovered == "below":
            against = torch.where(covered[batch.entity_query], against, -torch.inf)
        higher = _count(others & (scores > against), batch)
        equal = _count(others & (scores == against), batch)
        if uncovered == "below":
            equal = equal + torch.where(covered, 0, self._outside)
        else:
            higher = higher + torch.where(mine < 0, self._outside, 0)
            equal = equal + torch.where(mine == 0, self._outside, 0)
        return Ranks(1 + higher, 1 + higher + equal, covered)


def order_outside(
    ranks: Ranks,
    batch: SubgraphBatch,
    answers: Tensor,
    known: KnownFacts | None,
    likelihoods: Callable[[Tensor], Iterable[tuple[Tensor, Tensor]]],
) -> Ranks:
    """Ranks with the entities outside each subgraph in the order of their likelihood.

    `ranks`: the result of `filtered_ranks` with `uncovered="below"`. `likelihoods`: see
    `Sampler.likelihoods`; called with the queries whose answers were not sampled.
    """
    outside = (~ranks.covered).nonzero().squeeze(1)
    best, worst = ranks.optimistic.clone(), ranks.pessimistic.clone()
    for rows, likely in likelihoods(batch.queries[outside]):
        mine = outside[rows]
        # The row of each query in this block.
        place = torch.full((batch.num_queries,), -1, device=batch.device)
        place[mine] = torch.arange(len(mine), device=batch.device)
        own = place[batch.entity_query]
        rivals = torch.ones_like(likely, dtype=torch.bool)
        rivals[own[own >= 0], batch.entities[own >= 0]] = False
        if known is not None:
            rivals[known.answers(batch.queries[mine])] = False
        value = likely.gather(1, answers[mine][:, None])
        rivals.scatter_(1, answers[mine][:, None], False)
        best[mine] += ((likely > value) & rivals).sum(1)
        worst[mine] = best[mine] + ((likely == value) & rivals).sum(1)
    return Ranks(best, worst, ranks.covered)


def dense_ranks(
    scores: Tensor, queries: Tensor, answers: Tensor, known: KnownFacts | None
) -> Ranks:
    """Ranks of `answers` [n] of `queries` [n, 2] by `scores` [n, V] of all entities."""
    check_finite(scores)
    rows = torch.arange(len(answers), device=scores.device)
    rivals = torch.ones_like(scores, dtype=torch.bool)
    rivals[rows, answers] = False
    if known is not None:
        rivals[known.answers(queries)] = False
    mine = scores[rows, answers][:, None]
    higher = ((scores > mine) & rivals).sum(1)
    equal = ((scores == mine) & rivals).sum(1)
    return Ranks(1 + higher, 1 + higher + equal, torch.ones_like(answers, dtype=torch.bool))


def candidate_ranks(scores: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Optimistic and pessimistic ranks, [n] each, of `scores` [n] among `candidates` [n, c]."""
    higher = (candidates > scores[:, None]).sum(1)
    equal = (candidates == scores[:, None]).sum(1)
    return 1 + higher, 1 + higher + equal


@dataclass(frozen=True)
class Metric:
    """A mean over queries of a function of the rank.

    `title`: its name in tables; `values`: maps ranks [n], a float64 tensor or array, to the values
    that are averaged, [n]; `is_score`: between 0 and 1, higher is better; `format`: format of a
    value in a text.
    """

    title: str
    values: Callable[[Any], Any]
    is_score: bool = True
    format: str = ".4f"


def _hits(k: int) -> Metric:
    return Metric(f"Hits@{k}", lambda ranks: ranks <= k)


METRICS = {
    "mrr": Metric("MRR", lambda ranks: 1 / ranks),
    "hits@1": _hits(1),
    "hits@3": _hits(3),
    "hits@10": _hits(10),
    "mean_rank": Metric("mean rank", lambda ranks: ranks, is_score=False, format=".1f"),
}
"""All metrics, by their names in JSON; a new metric needs a line here and a field in `Metrics`."""

SCORES = tuple(name for name, metric in METRICS.items() if metric.is_score)
"""The metrics that a search may maximize, and that tables compare."""


@dataclass(frozen=True)
class Metrics:
    """The values of all metrics; `@` in a name is `_at_` here."""

    mrr: float
    hits_at_1: float
    hits_at_3: float
    hits_at_10: float
    mean_rank: float

    def as_dict(self) -> dict[str, float]:
        """The values by the names of `METRICS`."""
        return {name: getattr(self, _field(name)) for name in METRICS}

    def scores(self) -> dict[str, float]:
        """The values of `SCORES`."""
        return {name: getattr(self, _field(name)) for name in SCORES}

    def __str__(self) -> str:
        values = self.as_dict()
        return "  ".join(f"{m.title} {values[name]:{m.format}}" for name, m in METRICS.items())


def metrics(ranks: Tensor) -> Metrics:
    """All metrics of `ranks` [n] (realistic ranks may be half-integers)."""
    ranks = ranks.double()
    return Metrics(
        **{_field(name): float(m.values(ranks).double().mean()) for name, m in METRICS.items()}
    )


def _field(name: str) -> str:
    """The field of `Metrics` that holds a metric."""
    return name.replace("@", "_at_")


def bootstrap_interval(
    ranks: Tensor, seed: int = 0, samples: int = 1000, share: float = 0.95
) -> Sequence[float]:
    """A bootstrap interval for the MRR of `ranks` [n]: (low, high)."""
    generator = torch.Generator().manual_seed(seed)
    inverse = 1 / ranks.cpu().double()
    with one_thread():
        means = torch.stack(
            [
                inverse[torch.randint(len(inverse), (len(inverse),), generator=generator)].mean()
                for _ in range(samples)
            ]
        )
    tail = (1 - share) / 2
    return torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()


def _count(mask: Tensor, batch: SubgraphBatch) -> Tensor:
    """Number of marked entities of each query: bool [N] → int64 [n]."""
    return torch.bincount(batch.entity_query[mask], minlength=batch.num_queries)
