"""Recall of the local push: measured on queries of a graph, to decide whether to use it.

Where walks mix fast, the degree tail is accurate early, and a push that ends earlier finds almost
as much. The precision of the push is therefore chosen for the graph as well.

On graphs whose walks mix slowly between hubs, the degree tail is a poor estimate. They get a hub
index. If that does not help, exact scores over the whole graph are worth their cost (see
`PPRSampler`).
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.hub_index import HubIndex
from oneshot.graph.storage import note_push_recall, open_graph, save_hub_index
from oneshot.samplers._hubs import build_hub_index
from oneshot.samplers._push import LIMITS, Pushed, PushLimits, at_precision, ppr_push
from oneshot.samplers.ppr import BALL_LARGEST_HUB, LOCAL_LEAST_GRAPH, PUSH_LEAST_RECALL

# The reference: pushed 30 times as far. Exact scores would take passes over the whole graph.
_DEEP = PushLimits(
    precision=LIMITS.precision / 30, stable=0.995, tie=0, backstop=math.inf, max_edges=20_000_000
)
_ENTITIES = 2000
_QUERIES = 8
_HUB_SHARE = 0.01
# A lower precision is used if it finds this share of the selection, on average and at least, and
# saves this share of the edges.
_PRECISIONS = (0.4, 0.2)
_EARLY_RECALL, _EARLY_LEAST, _EARLY_SAVING = 0.97, 0.94, 0.4


def push_recall(
    graph: KnowledgeGraph,
    max_entities: int = _ENTITIES,
    queries: int = _QUERIES,
    restart: float = 0.15,
    seed: int = 0,
    hub_index: HubIndex | None = None,
) -> float:
    """Mean share of the selection of a much deeper push that the default push finds.

    Half of the queries are about entities of random facts, half about the entities with the most
    neighbours.
    """
    entities = sampled_entities(graph, queries, seed)
    if not len(entities):
        return 1.0
    counts = torch.full((len(entities),), min(max_entities, graph.num_entities))
    deep = ppr_push(graph, entities, counts, restart, limits=_DEEP)
    ours = ppr_push(graph, entities, counts, restart, hub_index=hub_index)
    return float(_shares(deep, ours).mean())


def _shares(deep: Pushed, ours: Pushed) -> Tensor:
    """Share of each selection of one push that another one finds, float64 [n]."""
    shares = []
    for row, size in enumerate(deep.counts.tolist()):
        wanted, found = deep.entities[row, :size], ours.entities[row, : int(ours.counts[row])]
        shares.append(torch.isin(wanted, found).double().mean())
    return torch.stack(shares)


class Chosen(NamedTuple):
    """The recall of the push, and the precision that was chosen; None for the default."""

    recall: float
    precision: float | None


def choose_precision(
    graph: KnowledgeGraph,
    max_entities: int = _ENTITIES,
    queries: int = _QUERIES,
    restart: float = 0.15,
    seed: int = 0,
) -> Chosen:
    """The lowest precision with which the push finds almost as much with far fewer edges.

    For the same queries as `push_recall`.
    """
    entities = sampled_entities(graph, queries, seed)
    if not len(entities):
        return Chosen(1.0, None)
    counts = torch.full((len(entities),), min(max_entities, graph.num_entities))
    deep = ppr_push(graph, entities, counts, restart, limits=_DEEP)
    usual = ppr_push(graph, entities, counts, restart, limits=LIMITS)
    for precision in _PRECISIONS:
        early = ppr_push(graph, entities, counts, restart, limits=at_precision(precision))
        shares = _shares(deep, early)
        saved = 1 - float(early.edges.sum()) / max(float(usual.edges.sum()), 1)
        if (
            float(shares.mean()) >= _EARLY_RECALL
            and float(shares.min()) >= _EARLY_LEAST
            and saved >= _EARLY_SAVING
        ):
            return Chosen(float(shares.mean()), precision)
    return Chosen(float(_shares(deep, usual).mean()), None)


def sampled_entities(graph: AdjacencyGraph, count: int, seed: int) -> torch.Tensor:
    """Entities of queries, int64 [count]: half of random edges, half among the 1 % largest hubs."""
    generator = torch.Generator().manual_seed(seed)
    if not graph.num_facts:
        return torch.empty(0, dtype=torch.long)
    half = count // 2
    places = torch.randint(len(graph.edges.source), (count - half,), generator=generator)
    from_facts = graph.edges.source[places].long()
    degree = graph.neighbours.indptr.diff()
    hubs = degree.topk(max(int(_HUB_SHARE * graph.num_entities), min(half, len(degree)))).indices
    drawn = torch.randperm(len(hubs), generator=generator)[:half]
    return torch.cat([from_facts, hubs[drawn]])


class Measured(NamedTuple):
    """The local push on a saved graph: its recall, and that with a hub index of `hubs` entities.

    None where it was not measured: on small graphs, on graphs without hubs, and with weights.
    """

    push_recall: float | None = None
    hub_recall: float | None = None
    hubs: int = 0


def measure_saved_graph(path: Path, hub_index: bool | None = None) -> Measured:
    """Measure the push on a saved graph and record the recall there, if it is needed.

    It is not needed on small graphs and on graphs without hubs. `hub_index`: whether to build the
    hub index and save it with the graph; by default if the push finds too little without it.
    """
    graph, _, _ = open_graph(path, hub_index=False)
    is_small = graph.num_entities < LOCAL_LEAST_GRAPH
    recall = None
    if graph.weights is not None:
        if hub_index:
            raise InputError(f"{path}: facts with weights cannot have a hub index")
        return Measured()
    if not is_small and graph.neighbours.largest_degree > BALL_LARGEST_HUB:
        chosen = choose_precision(graph)
        recall = round(chosen.recall, 4)
        note_push_recall(path, recall, chosen.precision)
    if hub_index is None:
        hub_index = recall is not None and recall < PUSH_LEAST_RECALL
    index = build_hub_index(graph) if hub_index else None
    if index is None:
        return Measured(recall)
    hub_recall = round(push_recall(graph, hub_index=index), 4)
    save_hub_index(path, index, hub_recall)
    return Measured(recall, hub_recall, len(index.hubs))
