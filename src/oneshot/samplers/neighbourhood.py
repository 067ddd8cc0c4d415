"""Neighbourhood: the entities of highest PPR around one or several seeds, as a graph."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.hub_index import HubIndex
from oneshot.samplers._extract import extract
from oneshot.samplers._pagerank import check_entities, ppr_chebyshev
from oneshot.samplers._push import Pushed, PushLimits, hub_index_for, ppr_push
from oneshot.samplers._select import choose_highest
from oneshot.samplers.base import block_size

Method = Literal["exact", "push", "hub index"]
"""How scores were computed: over the whole graph, by a push, or by a push with the hub index."""

# From here on, the scores are approximate: exact ones take passes over the whole graph.
_LARGE_GRAPH = 50_000
# Exact scores: the remainder of the Chebyshev series is below the precision of float32.
_EXACT_STEPS, _EXACT_ERROR = 40, 1e-6


class TopScores(NamedTuple):
    """The entities of highest PPR from each of n entities, best first.

    `entities` int64 [n, K], -1 where fewer can be reached; `scores` float [n, K]; `error` float
    [n, K]: the PPR of an entity differs from its score by at most this; NaN if that is not known,
    as with a hub index.
    """

    entities: Tensor
    scores: Tensor
    error: Tensor


@dataclass(frozen=True)
class Neighbourhood:
    """The entities around some seeds with scores, best first, and the facts between them.

    `entities` int64 [k]; `scores` float [k]: the mean PPR from the seeds; `facts` int64 [f, 3];
    `error` float [k]: as in `TopScores`; `method`: how the scores were computed.
    """

    entities: Tensor
    scores: Tensor
    facts: Tensor
    error: Tensor
    method: Method


def top_ppr(
    graph: AdjacencyGraph,
    entities: Tensor,
    top: int,
    restart: float = 0.15,
    *,
    exact: bool | None = None,
    limits: PushLimits | None = None,
) -> TopScores:
    """The `top` entities of highest PPR from each of `entities` int64 [n], best first.

    `exact`: by default on graphs of less than 50,000 entities, with weights of facts, and on a GPU.
    Otherwise by forward push with a degree tail, at a cost that hardly grows with the graph, with
    the hub index of a saved graph if there is one for this `restart`. `limits`: by default those
    for the graph.
    """
    graph = graph.host or graph
    entities = check_entities(graph, entities)
    if top < 1:
        raise InputError(f"top must be at least 1, not {top}")
    if not 0 < restart < 1:
        raise InputError(f"restart must be between 0 and 1, not {restart}")
    most = min(top, graph.num_entities)
    if _method(graph, restart, exact) == "exact":
        return _exact_top(graph, entities, most, restart)
    counts = torch.full((len(entities),), most, device=graph.device)
    index = hub_index_for(graph, restart)
    return _sorted(graph, ppr_push(graph, entities, counts, restart, None, limits, index), index)


def neighbourhood(
    graph: KnowledgeGraph,
    seeds: Tensor,
    top: int = 100,
    restart: float = 0.15,
    *,
    exact: bool | None = None,
) -> Neighbourhood:
    """The `top` entities around `seeds` int64 [s], which are always among them, as a graph.

    The score of an entity is the mean of its PPR from the seeds: that of a walk which restarts at
    a random one of them.
    """
    graph = graph.host or graph
    seeds = check_entities(graph, seeds).unique()
    if not len(seeds):
        raise InputError("a neighbourhood needs at least one seed")
    if top < len(seeds):
        raise InputError(f"top must be at least the number of seeds, {len(seeds)}, not {top}")
    method = _method(graph, restart, exact)
    near = top_ppr(graph, seeds, top, restart, exact=method == "exact")
    found = torch.cat([near.entities[near.entities >= 0], seeds]).unique()
    if len(seeds) == 1:
        scores, error = torch.zeros(2, len(found), device=graph.device)
        valid = near.entities[0] >= 0
        places = torch.searchsorted(found, near.entities[0, valid])
        scores[places], error[places] = near.scores[0, valid].float(), near.error[0, valid].float()
    elif method == "exact":
        parts = [
            ppr_chebyshev(graph, some, restart, _EXACT_STEPS)[:, found].sum(0)
            for some in seeds.split(block_size(graph))
        ]
        scores = torch.stack(parts).sum(0) / len(seeds)
        error = torch.full_like(scores, _EXACT_ERROR)
    else:
        counts = torch.full((len(seeds),), min(top, graph.num_entities), device=graph.device)
        probes = found.repeat(len(seeds), 1)
        index = hub_index_for(graph, restart)
        pushed = ppr_push(graph, seeds, counts, restart, probes, hub_index=index)
        scores = pushed.probed.mean(0)
        error = _error(graph, pushed.threshold.mean(), found, index)
    rank = torch.where(torch.isin(found, seeds), torch.inf, scores)
    best = rank.argsort(descending=True, stable=True)[:top]
    best = best[(rank[best] > 0)].sort().values
    found, scores, error = found[best], scores[best], error[best]
    facts = _facts_between(graph, found, scores)
    order = scores.argsort(descending=True, stable=True)
    return Neighbourhood(found[order], scores[order], facts, error[order], method)


def _method(graph: AdjacencyGraph, restart: float, exact: bool | None) -> Method:
    """How scores are computed; with weights of facts, only exact ones are possible."""
    if exact is None:
        is_small = graph.num_entities < _LARGE_GRAPH or graph.weights is not None
        exact = is_small or graph.device.type != "cpu"
    if exact:
        return "exact"
    return "push" if hub_index_for(graph, restart) is None else "hub index"


def _error(
    graph: AdjacencyGraph, threshold: Tensor, entities: Tensor, index: HubIndex | None
) -> Tensor:
    """The maximum error of a push for some entities; with a hub index, none is known."""
    if index is not None:
        return torch.full(entities.shape, torch.nan, device=graph.device)
    degree = graph.neighbours.degree_of(entities.flatten()).reshape(entities.shape)
    return (threshold * degree).float()


def _facts_between(graph: KnowledgeGraph, entities: Tensor, scores: Tensor) -> Tensor:
    """The facts whose ends are both among `entities` [k], sorted: int64 [f, 3]."""
    query = torch.stack([entities[0], torch.zeros_like(entities[0])])[None]
    every = torch.tensor([2 * graph.num_facts], device=graph.device)
    batch = extract(graph, query, entities, torch.zeros_like(entities), scores, every)
    head, relation, tail = batch.edges[:, batch.edges[1] < graph.num_relations]
    return torch.stack([entities[head], relation, entities[tail]], dim=1)


def _exact_top(graph: AdjacencyGraph, entities: Tensor, most: int, restart: float) -> TopScores:
    """Exact scores of a block of entities at once."""
    parts = []
    for some in entities.split(block_size(graph)):
        scores = ppr_chebyshev(graph, some, restart, _EXACT_STEPS)
        counts = torch.full_like(some, most)
        none = torch.full_like(some, -1)[:, None]
        found, row, score = choose_highest(scores, counts, none, keep_unreachable=False)
        number = row.bincount(minlength=len(some))
        column = torch.arange(len(found), device=graph.device)
        column -= (number.cumsum(0) - number)[row]
        by_id = torch.full((len(some), most), -1, device=graph.device)
        best = torch.zeros(by_id.shape, dtype=score.dtype, device=graph.device)
        by_id[row, column], best[row, column] = found, score
        # Those that are missing have score 0 and come last; ties by lower id.
        best, order = best.sort(dim=1, descending=True, stable=True)
        error = torch.full_like(best, _EXACT_ERROR)
        parts.append((by_id.gather(1, order), best, error))
    if not parts:
        empty = torch.empty(0, most, device=graph.device)
        return TopScores(empty.long(), empty, empty)
    return TopScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _sorted(graph: AdjacencyGraph, pushed: Pushed, index: HubIndex | None) -> TopScores:
    columns = torch.arange(pushed.entities.shape[1], device=graph.device)
    valid = columns < pushed.counts[:, None]
    by_id = torch.where(valid, pushed.entities, graph.num_entities).argsort(dim=1)
    entities, scores = pushed.entities.gather(1, by_id), pushed.score.gather(1, by_id)
    order = torch.where(valid, scores, -1).argsort(dim=1, descending=True, stable=True)
    entities, scores = entities.gather(1, order), scores.gather(1, order)
    error = _error(graph, pushed.threshold[:, None], entities, index)
    return TopScores(torch.where(valid, entities, -1), scores, torch.where(valid, error, 0))
