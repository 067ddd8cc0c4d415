"""Judgement: how likely given facts hold, by the scores of their queries in both directions."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oneshot.graph.known_facts import KnownFacts
from oneshot.ranking import check_finite, filtered_ranks
from oneshot.reasoner.batch_size import BatchSize

if TYPE_CHECKING:
    from oneshot.reasoner.reasoner import Reasoner

# A relation is functional if it has one answer for this share of at least so many queries.
_FUNCTIONAL_SHARE, _LEAST_QUERIES = 0.95, 10


@dataclass(frozen=True)
class ScoredFact:
    """A fact with the reasoner's judgement.

    `score`: logit of the probability, or the evidence if the reasoner is not calibrated.
    `probability`: that the fact holds; None if the reasoner is not calibrated. `rank`: mean
    filtered rank of its two queries; None if it was not determined. `conflicts`: number of facts
    of the graph that cannot hold as well, because the relation has almost always only one answer.
    """

    head: str
    relation: str
    tail: str
    score: float
    probability: float | None
    rank: float | None = None
    conflicts: int = 0

    def as_dict(self) -> dict[str, Any]:
        """All values, with the keys of the command line's JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Judged:
    """The judgement of the answers of n queries: `logit` float [n], `rank` float64 [n]."""

    logit: Tensor
    rank: Tensor


def judge(
    reasoner: "Reasoner",
    queries: Tensor,
    answers: Tensor,
    known: KnownFacts,
    size: BatchSize,
) -> Iterator[Judged]:
    """The judgement of `answers` [n] to `queries` [n, 2], batch by batch.

    Other answers of a query that are `known` do not compete. Answers that are not sampled are added
    to the subgraph.
    """
    done = 0
    while done < len(queries):
        step = slice(done, done + size.now)
        asked, wanted = queries[step], answers[step]
        try:
            batch, scores = reasoner.reason(asked, wanted[:, None])
        except torch.OutOfMemoryError as error:
            size.shrink(error)
            continue
        check_finite(scores)
        place = batch.find(wanted)
        row, entity = known.answers(asked)
        at = batch.find_pairs(row, entity)
        rivals = scores.clone()
        if reasoner.calibration is None or reasoner.calibration.rivals == "unknown":
            rivals[at[at >= 0]] = -torch.inf
            rivals[place] = scores[place]
        evidence = scores[place] - _query_logsumexp(rivals, batch.entity_query, len(asked))
        ranks = filtered_ranks(batch, scores, wanted, known, reasoner.graph.num_entities)
        yield Judged(logits_of(reasoner, evidence, asked[:, 1]).cpu(), ranks.realistic.cpu())
        size.learn(batch)
        done += len(asked)


def probability_of(reasoner: "Reasoner", logit: float) -> float | None:
    """The probability of a logit; None if the reasoner is not calibrated."""
    if reasoner.calibration is None:
        return None
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def functional_conflicts(facts: Tensor, num_relations: int) -> Tensor:
    """For each of `facts` [n, 3], how many others contradict it: int64 [n].

    In a relation that almost always has one answer, in one direction or the other, several answers
    contradict each other.
    """
    conflicts = torch.zeros(len(facts), dtype=torch.long, device=facts.device)
    relation = facts[:, 1]
    for column in (0, 2):
        key = facts[:, column] * num_relations + relation
        distinct, place, count = key.unique(return_inverse=True, return_counts=True)
        queries = torch.bincount(distinct % num_relations, minlength=num_relations)
        single = torch.bincount(distinct[count == 1] % num_relations, minlength=num_relations)
        is_functional = (queries >= _LEAST_QUERIES) & (single >= _FUNCTIONAL_SHARE * queries)
        conflicts += torch.where(is_functional[relation], count[place] - 1, 0)
    return conflicts


def logits_of(reasoner: "Reasoner", evidence: Tensor, relations: Tensor) -> Tensor:
    """The logits of evidence [n] for answers of `relations` [n]; the evidence if not calibrated."""
    calibration = reasoner.calibration
    if calibration is None:
        return evidence
    names = [reasoner.graph.relation_name(relation) for relation in relations.tolist()]
    own = [calibration.offset + calibration.offsets.get(name, 0.0) for name in names]
    return calibration.slope * evidence + torch.tensor(own, device=evidence.device)


def _query_logsumexp(scores: Tensor, query: Tensor, count: int) -> Tensor:
    """`log Σ exp` of the scores [N] of each query [N], [count]."""
    highest = scores.new_full((count,), -torch.inf).scatter_reduce(0, query, scores, "amax")
    total = torch.zeros_like(highest).scatter_add(0, query, (scores - highest[query]).exp())
    return total.log() + highest
