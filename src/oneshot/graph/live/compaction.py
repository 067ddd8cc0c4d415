"""Compaction: merging a graph and its changes into a plain graph, and finding facts in a graph."""

import numpy as np
import torch
from numpy.typing import NDArray

from oneshot.graph.adjacency import Edges
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary

Facts = NDArray[np.int64]


def find_facts(graph: KnowledgeGraph, facts: Facts) -> NDArray[np.int64]:
    """Index in `graph.edges` of each fact [n, 3] in its own direction, -1 if not present. → [n]

    The graph is on the CPU; ids may exceed its entities.
    """
    edges = graph.edges
    indptr, source, relation = (
        column.numpy() for column in (edges.indptr, edges.source, edges.relation)
    )
    head, label, tail = facts.T
    inside = (head < graph.num_entities) & (tail < graph.num_entities)
    row = np.where(inside, tail, 0)
    low = indptr[row] if len(indptr) > 1 else np.zeros(len(facts), np.int64)
    end = indptr[row + 1] if len(indptr) > 1 else low
    high = end.copy()
    # The edges of a row are sorted by (source, relation): all rows are searched at once.
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        x, r = source[middle], relation[middle]
        before = (x < head[open_]) | ((x == head[open_]) & (r < label[open_]))
        low[open_[before]] = middle[before] + 1
        high[open_[~before]] = middle[~before]
    found = inside & (low < end)
    place = np.where(found, low, 0)
    if len(source):
        found &= (source[place] == head) & (relation[place] == label)
    return np.where(found, place, -1)


def compacted(
    graph: KnowledgeGraph, added: Facts, removed: Facts, entities: Vocabulary
) -> KnowledgeGraph:
    """The graph with facts added [a, 3] and removed [m, 3]; `entities`: old and new ones.

    Added facts must not be in the graph, removed ones must be. The sorted adjacency is filtered and
    merged in a few passes instead of being sorted again. The result has no origin.
    """
    recall, precision = graph.push_recall, graph.push_precision
    base = graph
    if len(removed):
        keep = torch.ones(graph.num_facts, dtype=torch.bool)
        keep[graph.edges.fact[torch.from_numpy(find_facts(graph, removed))].long()] = False
        graph = graph.subset(keep)
    facts = np.concatenate([graph.facts.numpy(), added.astype(graph.facts.numpy().dtype)])
    changed = KnowledgeGraph.from_distinct(facts, entities, graph.relations)
    count, labels = len(entities), 2 * graph.num_relations
    if count * count * labels < 2**63 and changed.facts.dtype == graph.facts.dtype:
        changed.edges = _compacted_edges(graph, added, count, labels)
    changed.push_recall, changed.push_precision = recall, precision
    if base.hub_index is not None:
        hubs = base.hub_index.hubs
        degree = changed.neighbours.degree_of(hubs)
        ends = np.concatenate([added[:, [0, 2]], removed[:, [0, 2]]])
        changes = int(np.isin(ends, hubs.numpy()).sum())
        changed.hub_index = base.hub_index.on_changed_graph(
            degree, changes, base.components, changed.components
        )
        changed.hub_recall = None if changed.hub_index is None else base.hub_recall
    return changed


def _compacted_edges(graph: KnowledgeGraph, added: Facts, count: int, labels: int) -> Edges:
    """The edges of a graph and of further facts, sorted as `Edges` are."""
    edges = graph.edges
    head, label, tail = added.T
    target = np.concatenate([tail, head])
    source = np.concatenate([head, tail])
    relation = np.concatenate([label, label + graph.num_relations])
    row = np.tile(np.arange(graph.num_facts, graph.num_facts + len(added)), 2)
    key = (target * count + source) * labels + relation
    order = np.argsort(key)
    old_key = np.repeat(np.arange(graph.num_entities), np.diff(edges.indptr.numpy()))
    old_key *= count
    old_key += edges.source.numpy()
    old_key *= labels
    old_key += edges.relation.numpy()
    place = np.searchsorted(old_key, key[order])
    more = np.cumsum(np.bincount(target, minlength=count))
    indptr = edges.indptr.numpy()
    indptr = np.concatenate([indptr, np.full(count - graph.num_entities, indptr[-1])])
    indptr[1:] += more
    columns = ((edges.source, source), (edges.relation, relation), (edges.fact, row))
    return Edges(
        torch.from_numpy(indptr),
        *(
            torch.from_numpy(np.insert(old.numpy(), place, new[order].astype(old.numpy().dtype)))
            for old, new in columns
        ),
    )
