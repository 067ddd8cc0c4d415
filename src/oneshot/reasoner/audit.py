"""Audit: the facts of a graph that look most doubtful, each judged with itself hidden."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oneshot.data.dataset import both_directions
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.judgement import ScoredFact, functional_conflicts, judge, probability_of
from oneshot.reasoner.reasoner import Reasoner

# Facts that are hidden together, at most this number and share of all facts.
_HIDDEN, _HIDDEN_SHARE = 512, 0.01


def audit(
    reasoner: Reasoner,
    *,
    relations: Sequence[str | int] | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[ScoredFact]:
    """See `Reasoner.audit`."""
    graph = reasoner.graph.host or reasoner.graph
    facts = graph.facts.long()
    chosen = torch.arange(len(facts), device=facts.device)
    if relations is not None:
        wanted = {reasoner.relation_id(relation) % graph.num_relations for relation in relations}
        mine = torch.tensor(sorted(wanted), device=facts.device)
        chosen = chosen[torch.isin(facts[:, 1], mine)]
    # In random order, so that the facts that are hidden together have little to do with each other.
    generator = torch.Generator().manual_seed(seed)
    chosen = chosen[torch.randperm(len(chosen), generator=generator).to(facts.device)][:limit]
    known = KnownFacts(facts, graph.num_entities, graph.num_relations)
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    hidden = max(min(_HIDDEN, int(_HIDDEN_SHARE * len(facts))), 1)
    logits, ranks = [], []
    for part in chosen.split(hidden):
        logit, rank = _judged_without(reasoner, part, facts[part], known, size, progress)
        logits.append(logit)
        ranks.append(rank)
    if not logits:
        return []
    logit, rank = torch.cat(logits), torch.cat(ranks)
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
) -> tuple[Tensor, Tensor]:
    """Mean logit and mean rank, [n] each, of facts [n, 3] that are hidden from the graph.

    `part` [n]: their places among all facts.
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
    logit = torch.cat([judged.logit for judged in found]).reshape(2, -1).double()
    rank = torch.cat([judged.rank for judged in found]).reshape(2, -1)
    return logit.mean(0), rank.mean(0)
