"""Schema of a graph: its relations with the number of their facts, entities and some examples."""

from dataclasses import dataclass

import torch

from oneshot.graph.graph import KnowledgeGraph


@dataclass(frozen=True)
class RelationStatistics:
    """Statistics of a relation: numbers of facts, and of different heads and tails.

    `top_heads` and `top_tails`: the most frequent ones with the number of their facts.
    """

    relation: str
    facts: int
    heads: int
    tails: int
    top_heads: tuple[tuple[str, int], ...]
    top_tails: tuple[tuple[str, int], ...]


def relation_statistics(graph: KnowledgeGraph, relation: int, top: int = 5) -> RelationStatistics:
    """The statistics of a relation id, with at most `top` heads and tails. Reads all facts."""
    graph = graph.host or graph
    facts = graph.facts[graph.facts[:, 1] == relation].cpu()
    ends = []
    for column in (0, 2):
        entities, counts = facts[:, column].unique(return_counts=True)
        best = counts.argsort(descending=True, stable=True)[:top]
        rows = zip(entities[best].tolist(), counts[best].tolist(), strict=True)
        ends.append((len(entities), tuple((graph.entities[one], count) for one, count in rows)))
    (heads, top_heads), (tails, top_tails) = ends
    name = graph.relations[relation]
    return RelationStatistics(name, len(facts), heads, tails, top_heads, top_tails)


@dataclass(frozen=True)
class RelationSummary:
    """A relation, the number of its facts, and some of them, those of well-connected entities."""

    relation: str
    facts: int
    examples: tuple[tuple[str, str, str], ...]


def relation_summaries(graph: KnowledgeGraph, examples: int = 2) -> list[RelationSummary]:
    """All relations of a graph with at most `examples` facts each, most facts first.

    Reads all facts of the graph.
    """
    graph = graph.host or graph
    facts = graph.facts.cpu().long()
    counts = torch.bincount(facts[:, 1], minlength=graph.num_relations)
    degree = graph.degree.cpu().double()
    # By relation; within a relation, the facts whose entities have the most facts come first.
    order = (degree[facts[:, 0]] * degree[facts[:, 2]]).argsort(descending=True, stable=True)
    order = order[facts[order, 1].argsort(stable=True)]
    starts = counts.cumsum(0) - counts
    found = []
    for relation, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        name = graph.relations[relation]
        shown = tuple(
            (graph.entities[head], name, graph.entities[tail])
            for head, _, tail in facts[order[start : start + min(count, examples)]].tolist()
        )
        found.append(RelationSummary(name, count, shown))
    return sorted(found, key=lambda one: -one.facts)  # stable
