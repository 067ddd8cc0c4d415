"""Neighbourhood: the entities of highest PPR around one or several seeds, as a graph."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers._extract import extract
from oneshot.samplers._pagerank import check_entities, ppr_chebyshev
from oneshot.samplers._push import LIMITS, Pushed, PushLimits, ppr_push

# From here on, the scores are approximate: exact ones take passes over the whole graph.
_LARGE_GRAPH = 50_000
# Exact scores: the remainder of the Chebyshev series is below the precision of float32.
_EXACT_STEPS, _EXACT_ERROR = 40, 1e-6


class TopScores(NamedTuple):
    """The entities of highest PPR from each of n entities, best first.

    `entities` int64 [n, K], -1 where fewer can be reached; `scores` float [n, K]; `error` float
    [n, K]: the PPR of an entity differs from its score by at most this.
    """

    entities: Tensor
    scores: Tensor
    error: Tensor


@dataclass(frozen=True)
class Neighbourhood:
    """The entities around some seeds with scores, best first, and the facts between them.

    `entities` int64 [k]; `scores` float [k]: the mean PPR from the seeds; `facts` int64 [f, 3].
    """

    entities: Tensor
    scores: Tensor
    facts: Tensor


def top_ppr(
    graph: AdjacencyGraph,
    entities: Tensor,
    top: int,
    restart: float = 0.15,
    *,
    exact: bool | None = None,
    limits: PushLimits = LIMITS,
) -> TopScores:
    """The `top` entities of highest PPR from each of `entities` int64 [n], best first.

    `exact`: by default on graphs of less than 50,000 entities, and on a GPU. Otherwise by forward
    push with a degree tail, at a cost that hardly grows with the graph.
    """
    graph = graph.host or graph
    entities = check_entities(graph, entities)
    if top < 1:
        raise InputError(f"top must be at least 1, not {top}")
    if not 0 < restart < 1:
        raise InputError(f"restart must be between 0 and 1, not {restart}")
    if exact is None:
        exact = _is_small(graph) or graph.device.type != "cpu"
    most = min(top, graph.num_entities)
    if exact:
        return _exact_top(graph, entities, most, restart)
    counts = torch.full((len(entities),), most, device=graph.device)
    return _sorted(graph, ppr_push(graph, entities, counts, restart, limits=limits))


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
    near = top_ppr(graph, seeds, top, restart, exact=exact)
    found = torch.cat([near.entities[near.entities >= 0], seeds]).unique()
    if len(seeds) == 1:
        scores = torch.zeros(len(found), device=graph.device)
        valid = near.entities[0] >= 0
        scores[torch.searchsorted(found, near.entities[0, valid])] = near.scores[0, valid].float()
    elif exact or (exact is None and _is_small(graph)):
        scores = ppr_chebyshev(graph, seeds, restart, _EXACT_STEPS)[:, found].mean(0)
    else:
        counts = torch.full((len(seeds),), min(top, graph.num_entities), device=graph.device)
        probes = found.repeat(len(seeds), 1)
        scores = ppr_push(graph, seeds, counts, restart, probes).probed.mean(0)
    rank = torch.where(torch.isin(found, seeds), torch.inf, scores)
    best = rank.argsort(descending=True, stable=True)[:top]
    best = best[(rank[best] > 0)].sort().values
    found, scores = found[best], scores[best]
    facts = _facts_between(graph, found, scores)
    order = scores.argsort(descending=True, stable=True)
    return Neighbourhood(found[order], scores[order], facts)


def _is_small(graph: AdjacencyGraph) -> bool:
    """Whether exact scores are the default; with weights of facts there are no others."""
    return graph.num_entities < _LARGE_GRAPH or graph.weights is not None


def _facts_between(graph: KnowledgeGraph, entities: Tensor, scores: Tensor) -> Tensor:
    """The facts whose ends are both among `entities` [k], sorted: int64 [f, 3]."""
    query = torch.stack([entities[0], torch.zeros_like(entities[0])])[None]
    every = torch.tensor([2 * graph.num_facts], device=graph.device)
    batch = extract(graph, query, entities, torch.zeros_like(entities), scores, every)
    head, relation, tail = batch.edges[:, batch.edges[1] < graph.num_relations]
    return torch.stack([entities[head], relation, entities[tail]], dim=1)


def _exact_top(graph: AdjacencyGraph, entities: Tensor, most: int, restart: float) -> TopScores:
    parts = []
    for some in entities.split(32):
        scores = ppr_chebyshev(graph, some, restart, _EXACT_STEPS)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :most]
        best = scores.gather(1, order)
        error = torch.full_like(best, _EXACT_ERROR)
        parts.append((torch.where(best > 0, order, -1), best, error))
    if not parts:
        empty = torch.empty(0, most, device=graph.device)
        return TopScores(empty.long(), empty, empty)
    return TopScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _sorted(graph: AdjacencyGraph, pushed: Pushed) -> TopScores:
    columns = torch.arange(pushed.entities.shape[1], device=graph.device)
    valid = columns < pushed.counts[:, None]
    by_id = torch.where(valid, pushed.entities, graph.num_entities).argsort(dim=1)
    entities, scores = pushed.entities.gather(1, by_id), pushed.score.gather(1, by_id)
    order = torch.where(valid, scores, -1).argsort(dim=1, descending=True, stable=True)
    entities, scores = entities.gather(1, order), scores.gather(1, order)
    degree = graph.neighbours.degree_of(entities.flatten()).reshape(entities.shape)
    error = (pushed.threshold[:, None] * degree).float()
    return TopScores(torch.where(valid, entities, -1), scores, torch.where(valid, error, 0))
