"""Audit: the facts of a graph that look most doubtful, each judged with itself hidden."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from oneshot.data.dataset import both_directions
from oneshot.errors import InputError
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.answers import check_list
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.judgement import (
    Judged,
    ScoredFact,
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

    def facts(self, facts: Tensor) -> Tensor:
        """The places [k] of the facts among all `facts` [n, 3], in the order of the audit."""
        chosen = torch.arange(len(facts), device=facts.device)
        if self.relations is not None:
            mine = torch.tensor(self.relations, dtype=torch.long, device=facts.device)
            chosen = chosen[torch.isin(facts[:, 1], mine)]
        # In random order: facts that are hidden together have little to do with each other.
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(chosen), generator=generator).to(facts.device)
        return chosen[order][: self.limit]


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
) -> list[ScoredFact]:
    """See `Reasoner.audit`.

    `begun`: the progress of an interrupted audit with the same reasoner and options, which is
    resumed. `keep` is called with the progress after each group of hidden facts.
    """
    graph = reasoner.graph.host or reasoner.graph
    facts = graph.facts.long()
    chosen = options.facts(facts)
    known = KnownFacts(facts, graph.num_entities, graph.num_relations)
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    several = several_answers(facts, graph.num_relations)
    hidden = max(min(_HIDDEN, int(_HIDDEN_SHARE * len(facts))), 1)
    state = Audit() if begun is None else begun
    if progress is not None and state.queries:
        progress(state.queries)
    # The groups are those of the whole audit: which facts are hidden together must not change.
    for part in chosen.split(hidden)[len(state.logits) // hidden :]:
        blind, judged = _judged_without(reasoner, part, facts[part], known, size, progress)
        forward, backward = judged.halves()
        logits = present_logits(blind, forward, backward, facts[part, 1].cpu(), several)
        state.logits += logits.tolist()
        state.ranks += ((forward.rank + backward.rank) / 2).tolist()
        keep(state)
    logit, rank = (torch.tensor(v, dtype=torch.float64) for v in (state.logits, state.ranks))
    conflicts = functional_conflicts(facts, graph.num_relations)[chosen].cpu()
    order = logit.argsort(stable=True)
    return [
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
    ]


def _judged_without(
    reasoner: Reasoner,
    part: Tensor,
    facts: Tensor,
    known: KnownFacts,
    size: BatchSize,
    progress: Callable[[int], None] | None,
) -> tuple[Reasoner, Judged]:
    """Judge facts [n, 3] that are hidden from the graph: first all forward, then all backward.

    `part` [n]: their places among all facts. → the reasoner that does not know them, its judgement
    """
    graph = reasoner.graph.host or reasoner.graph
    mask = torch.ones(graph.num_facts, dtype=torch.bool, device=graph.device)
    mask[part] = False
    # A reasoner of its own: what it knows about relations must not come from these facts either.
    # Without factors, which know them.
    parts = (reasoner.sampler, reasoner.predictor, reasoner.calibration_alone)
    blind = Reasoner(graph.subset(mask), *parts)
    queries, answers = both_directions(facts, graph.num_relations)
    queries, answers = queries.to(reasoner.device), answers.to(reasoner.device)
    found = []
    for judged in judge(blind, queries, answers, known.to(reasoner.device), size):
        found.append(judged)
        if progress is not None:
            progress(len(judged.logit))
    return blind, Judged.joined(found)
