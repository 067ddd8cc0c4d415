"""Filtered ranking for any scorer that gives every entity a score for a query."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.data.dataset import Dataset
from oneshot.evaluation.evaluate import drawn_queries
from oneshot.ranking import KnownFacts, Metrics, dense_ranks, metrics

Scorer = Callable[[Tensor], Tensor]
"""Scores [n, V] of all entities as answers to `queries` [n, 2]; an inverse is relation + R."""

QUERIES_PER_STEP = 256


@dataclass(frozen=True)
class Ranked:
    """The result of ranking a split; realistic ranks, queries in both directions.

    `queries`: number of evaluated queries, out of `of`.
    """

    metrics: Metrics
    queries: int
    of: int
    seconds: float

    @property
    def seconds_per_1000_queries(self) -> float:
        return 1000 * self.seconds / self.queries


def rank_split(
    scorer: Scorer,
    data: Dataset,
    split: str,
    *,
    known: KnownFacts | None = None,
    device: torch.device | str = "cpu",
    step: int = QUERIES_PER_STEP,
    limit: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Ranked:
    """Filtered ranking of the facts of a split, each in both directions.

    `known`: the facts to filter by; default all facts of the data set. `step`: queries per batch.
    Queries of one direction are processed together, as a scorer may treat the two differently.
    `limit`: maximum number of queries, sampled with `seed`. `progress` is called with the number of
    queries done.
    """
    if known is None:
        known = data.known_facts
    known = known.to(device)
    facts, relations = data.facts(split), data.graph.num_relations
    queries, answers = (q.to(device) for q in drawn_queries(facts, relations, limit, seed))
    started = time.perf_counter()
    ranks = []
    for is_inverse in (False, True):
        direction = ((queries[:, 1] >= relations) == is_inverse).nonzero()[:, 0]
        for rows in direction.split(step):
            asked = queries[rows]
            ranks.append(dense_ranks(scorer(asked), asked, answers[rows], known).realistic)
            if progress is not None:
                progress(len(rows))
    found = metrics(torch.cat(ranks))
    return Ranked(found, len(queries), 2 * len(facts), time.perf_counter() - started)
