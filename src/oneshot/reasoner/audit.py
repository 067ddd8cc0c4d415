"""Audit: the facts of a graph that look most doubtful, each judged with itself hidden.

Held-out facts, which the graph lacks, can be judged as well, as they are.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from oneshot.data.dataset import both_directions
from oneshot.errors import InputError
from oneshot.graph.fact_keys import combined_key, place_of
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.answers import check_list
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.judgement import (
    Judged,
    ScoredFact,
    ScoredFacts,
    functional_conflicts,
    judge,
    present_logits,
    probability_of,
    several_answers,
)
from oneshot.reasoner.reasoner import Reasoner

# Facts that are hidden together, at most this number and share of all facts.
_HIDDEN, _HIDDEN_SHARE = 512, 0.01


@dataclass(frozen=True)
class AuditOptions:
    """What to audit. `relations`: ids; None for all. `limit`: number of facts, drawn by `seed`."""

    relations: Sequence[int] | None = None
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit must be at least 1, not {self.limit}")

    @classmethod
    def named(
        cls, reasoner: Reasoner, relations: Sequence[str | int] | None, limit: int | None, seed: int
    ) -> Self:
        """An audit of facts of relations that are given by name or id."""
        check_list("relations", relations)
        if relations is None:
            return cls(None, limit, seed)
        count = reasoner.graph.num_relations
        wanted = {reasoner.relation_id(relation) % count for relation in relations}
        return cls(sorted(wanted), limit, seed)

    def facts(self, facts: Tensor, own: int) -> tuple[Tensor, Tensor]:
        """The places of the facts among all `facts` [n, 3], in the order of the audit.

        The first `own` facts are those of the graph. → (places of these [k], of the others [m])
        """
        chosen = torch.arange(len(facts), device=facts.device)
        if self.relations is not None:
            mine = torch.tensor(self.relations, dtype=torch.long, device=facts.device)
            chosen = chosen[torch.isin(facts[:, 1], mine)]
        # In random order: facts that are hidden together have little to do with each other.
        generator = torch.Generator().manual_seed(self.seed)
        inside, outside = (
            part[torch.randperm(len(part), generator=generator).to(facts.device)]
            for part in (chosen[chosen < own], chosen[chosen >= own])
        )
        if self.limit is not None and self.limit < len(chosen):
            drawn = torch.randperm(len(chosen), generator=generator)[: self.limit]
            count = int((drawn < len(inside)).sum())
            inside, outside = inside[:count], outside[: self.limit - count]
        return inside, outside


@dataclass
class Audit:
    """The progress of an audit: logits and mean ranks of the facts judged so far, in its order."""

    logits: list[float] = field(default_factory=list)
    ranks: list[float] = field(default_factory=list)

    @property
    def queries(self) -> int:
        """Number of queries done."""
        return 2 * len(self.logits)


def audit(
    reasoner: Reasoner,
    options: AuditOptions,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
    begun: Audit | None = None,
    keep: Callable[[Audit], None] = lambda _: None,
    held_out: Tensor | None = None,
) -> ScoredFacts:
    """See `Reasoner.audit`.

    `begun`: the progress of an interrupted audit with the same reasoner, options and held-out
    facts, which is resumed. `keep` is called with the progress after each group of facts.
    """
    graph = reasoner.graph.host or reasoner.graph
    own = graph.facts.long()
    facts = own
    if held_out is not None:
        new = reasoner.checked_facts(held_out).to(own)
        facts = torch.cat([own, new[places_in(graph, new) < 0].unique(dim=0)])
    inside, outside = options.facts(facts, len(own))
    chosen = torch.cat([inside, outside])
    known = KnownFacts(own, graph.num_entities, graph.num_relations)
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    several = several_answers(own, graph.num_relations)
    state = Audit() if begun is None else begun
    if progress is not None and state.queries:
        progress(state.queries)
    # First the facts of the graph, in groups that are hidden together. The groups are those of the
    # whole audit: they must not change when it is resumed.
    groups = (*inside.split(hidden_together(graph)), *outside.split(_HIDDEN))
    done = len(state.logits)
    for part in groups:
        if done or not len(part):
            done -= len(part)
            continue
        blind = without_facts(reasoner, part[part < len(own)])
        judged = judge_both_ways(blind, facts[part], known, size, progress)
        forward, backward = judged.halves()
        logits = present_logits(blind, forward, backward, facts[part, 1].cpu(), several)
        state.logits += logits.tolist()
        state.ranks += ((forward.rank + backward.rank) / 2).tolist()
        keep(state)
    logit, rank = (torch.tensor(v, dtype=torch.float64) for v in (state.logits, state.ranks))
    conflicts = functional_conflicts(facts, graph.num_relations)[chosen].cpu()
    order = logit.argsort(stable=True)
    found = (
        ScoredFact(
            graph.entities[head],
            graph.relations[relation],
            graph.entities[tail],
            float(logit[place]),
            probability_of(reasoner, float(logit[place])),
            float(rank[place]),
            int(conflicts[place]),
        )
        for place in order.tolist()
        for head, relation, tail in [facts[chosen[place]].tolist()]
    )
    return ScoredFacts(tuple(found), "most doubtful facts")


def hidden_together(graph: KnowledgeGraph) -> int:
    """The number of facts of a graph that are hidden and judged together."""
    return max(min(_HIDDEN, int(_HIDDEN_SHARE * graph.num_facts)), 1)


def without_facts(reasoner: Reasoner, places: Tensor) -> Reasoner:
    """The reasoner on its graph without the facts at some places [k], and without its factors.

    The copy does not change the predictor of the original, which other threads may use.
    """
    graph = reasoner.graph.host or reasoner.graph
    if len(places):
        mask = torch.ones(graph.num_facts, dtype=torch.bool, device=graph.device)
        mask[places] = False
        graph = graph.subset(mask)
    # A reasoner of its own: what it knows about relations must not come from these facts either.
    # Without factors, which know them.
    predictor = copy.copy(reasoner.predictor)
    return Reasoner(graph, reasoner.sampler, predictor, reasoner.calibration_alone)


def places_in(graph: KnowledgeGraph, facts: Tensor) -> Tensor:
    """The place of each of `facts` [n, 3] among those of a graph, or -1: int64 [n]."""
    own = graph.facts.cpu().long()
    sizes = (graph.num_entities, graph.num_relations, graph.num_entities)
    keys = torch.from_numpy(combined_key(torch.cat([own, facts.cpu().long()]).numpy(), sizes))
    ordered, order = keys[: len(own)].sort()
    at = place_of(ordered, keys[len(own) :])
    return order[at].where(at >= 0, -1).to(facts.device) if len(own) else at.to(facts.device)


def judge_both_ways(
    reasoner: Reasoner,
    facts: Tensor,
    known: KnownFacts,
    size: BatchSize,
    progress: Callable[[int], None] | None = None,
) -> Judged:
    """The judgement of facts [n, 3]: first all forward, then all backward.

    `progress` is called with the number of queries done.
    """
    queries, answers = both_directions(facts, reasoner.graph.num_relations)
    queries, answers = queries.to(reasoner.device), answers.to(reasoner.device)
    found = []
    for judged in judge(reasoner, queries, answers, known.to(reasoner.device), size):
        found.append(judged)
        if progress is not None:
            progress(len(judged.logit))
    return Judged.joined(found)
