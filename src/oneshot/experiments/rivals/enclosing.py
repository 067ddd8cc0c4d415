"""Enclosing subgraphs: what lies between the two entities of a pair, with distances to both."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.experiments.rivals.propagation import edges_out, rows_of
from oneshot.graph.adjacency import AdjacencyGraph


@dataclass(frozen=True)
class EnclosingBatch:
    """The enclosing subgraphs of `m` pairs of entities, one after the other.

    With `N` entities and `E` edges over all pairs: `entities` int64 [N] global ids, `pair` int64
    [N] ascending; `to_head`, `to_tail` int64 [N]: number of steps to the two entities of the pair;
    `head`, `tail` int64 [m]: rows of these; `edges` int64 [3, E]: (source row, relation, target
    row), sorted by target.
    """

    entities: Tensor
    pair: Tensor
    to_head: Tensor
    to_tail: Tensor
    head: Tensor
    tail: Tensor
    edges: Tensor


def enclosing_subgraphs(
    graph: AdjacencyGraph, heads: Tensor, relations: Tensor, tails: Tensor, hops: int
) -> EnclosingBatch:
    """The enclosing subgraphs of the facts `(head, relation, tail)`, each int64 [m].

    The entities within `hops` steps of both head and tail, where steps to the head do not lead
    through the tail and the other way round, and all edges between them except the fact itself.
    Head and tail are always there; if they are the same entity, the tail is the head.
    """
    size, device = graph.num_entities, heads.device
    number = torch.arange(len(heads), device=device) * size
    head_keys, tail_keys = number + heads, number + tails
    near, to_head = _within(graph, head_keys, tail_keys, hops)
    far, to_tail = _within(graph, tail_keys, head_keys, hops)
    row = rows_of(near, far)
    both = (row >= 0).nonzero().squeeze(1)
    # Head and tail themselves: the one cannot be reached through the other.
    keys = torch.cat([near[both], head_keys, tail_keys]).unique()
    first, last = torch.searchsorted(keys, head_keys), torch.searchsorted(keys, tail_keys)
    place = torch.searchsorted(keys, near[both])
    steps = torch.zeros(2, len(keys), dtype=torch.long, device=device)
    steps[0, place], steps[1, place] = to_head[both], to_tail[row[both]]
    steps[:, first] = torch.tensor([[0], [1]], device=device)
    steps[:, last] = torch.tensor([[1], [0]], device=device)
    edges = edges_out(graph, keys)
    target = rows_of(edges.target, keys)
    pair = keys // size
    owner = pair[edges.source]
    relation, inverse = relations[owner], _inverse(relations, graph.num_relations)[owner]
    is_fact = (edges.source == first[owner]) & (target == last[owner])
    is_fact &= edges.relation == relation
    is_turned = (edges.source == last[owner]) & (target == first[owner])
    is_turned &= edges.relation == inverse
    kept = ((target >= 0) & ~is_fact & ~is_turned).nonzero().squeeze(1)
    kept = kept[target[kept].argsort(stable=True)]
    return EnclosingBatch(
        entities=keys % size,
        pair=pair,
        to_head=steps[0],
        to_tail=steps[1],
        head=first,
        tail=last,
        edges=torch.stack([edges.source[kept], edges.relation[kept], target[kept]]),
    )


def _inverse(relation: Tensor, num_relations: int) -> Tensor:
    is_forward = relation < num_relations
    return torch.where(is_forward, relation + num_relations, relation - num_relations)


def _within(
    graph: AdjacencyGraph, start: Tensor, closed: Tensor, hops: int
) -> tuple[Tensor, Tensor]:
    """The pairs within some steps of `start` [m], on paths that do not lead through `closed` [m].

    → (keys, sorted; number of steps of each)
    """
    keys, steps = start, torch.zeros_like(start)
    frontier = start
    for step in range(1, hops + 1):
        # Paths may end in a closed entity, but not lead through it.
        frontier = frontier[rows_of(frontier, closed) < 0] if step > 1 else frontier
        reached = edges_out(graph, frontier).target.unique()
        frontier = reached[rows_of(reached, keys) < 0]
        every = torch.cat([keys, frontier])
        order = every.argsort()
        keys = every[order]
        steps = torch.cat([steps, torch.full_like(frontier, step)])[order]
    return keys, steps
