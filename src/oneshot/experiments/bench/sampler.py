"""Benchmark of PPR and top-K selection: our sampler against networkx, scipy and PyG.

Every implementation gets the graph in its own format (not timed) and computes the same result: the
`K` entities with the highest PPR for each query entity. Recall is measured against the exact set,
from power iteration in float64. Slow implementations answer fewer queries; rates are per query.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.errors import MissingPackageError, UnknownNameError, require
from oneshot.experiments.bench.measure import Measured, hardware, measure
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers import PPRSampler
from oneshot.samplers._pagerank import ppr
from oneshot.samplers._select import choose_highest

# The selected entities of each query.
Chosen = list[NDArray[np.int64]]
Contender = Callable[[KnowledgeGraph, Tensor, int, float], Callable[[], Chosen]]

_RECALL_QUERIES = 32
_SLOW = ("networkx",)


@dataclass(frozen=True)
class Row:
    """The result of one implementation."""

    queries: int
    seconds: float
    queries_per_second: float
    recall: float
    peak_megabytes: float | None


def bench_sampler(
    graph: KnowledgeGraph,
    sampler: PPRSampler,
    queries: Tensor,
    baselines: Sequence[str],
    baseline_queries: int = 3,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Compare our sampler with others on `queries` [n, 2], each about a different entity.

    A baseline whose package is missing is skipped with a note. networkx answers only
    `baseline_queries`, the others up to 100.
    """
    for name in baselines:
        if name not in BASELINES:
            raise UnknownNameError.among("baseline", name, BASELINES)
    entities = queries[:, 0]
    count = int(sampler.budget.entity_counts(graph, queries[:, 1]).max())
    exact = _exact(graph, entities[:_RECALL_QUERIES], count, sampler.restart)
    # The first run includes one-time work and measures memory; the second measures time.
    first = measure(lambda: _select_all(sampler, graph, queries[:256]), graph.device)
    chosen = measure(lambda: _select_all(sampler, graph, queries), graph.device)
    ours = _row(chosen, first, len(queries), exact)
    whole = measure(lambda: _sample_all(sampler, graph, queries), graph.device)
    rows: dict[str, Row] = {}
    for name in baselines:
        asked = entities[: baseline_queries if name in _SLOW else 100]
        try:
            work = BASELINES[name](graph.to("cpu"), asked.cpu(), count, sampler.restart)
        except MissingPackageError as error:
            note(f"skipped {name}: {error}")
            continue
        first = measure(work)
        rows[name] = _row(measure(work), first, len(asked), exact)
    return {
        "bench": "sampler",
        "entities": graph.num_entities,
        "facts": graph.num_facts,
        "chosen_entities": count,
        "method": sampler.chosen_method(graph, count),
        "ours": asdict(ours)
        | {"subgraphs_per_second": round(len(queries) / whole.seconds, 1)}
        | {"edges_per_subgraph": round(whole.result / len(queries), 1)},
        "baseline": {name: asdict(row) for name, row in rows.items()},
        "ratio": {
            name: round(ours.queries_per_second / row.queries_per_second, 1)
            for name, row in rows.items()
        },
        "hardware": hardware(graph.device),
    }


def _select_all(sampler: PPRSampler, graph: KnowledgeGraph, queries: Tensor) -> Chosen:
    """Select entities for all queries in blocks; only the first results are kept."""
    first: Chosen = []
    for part in queries.split(4096 if graph.device.type == "cuda" else 256):
        selection = sampler.select(graph, part)
        for row in range(len(first), min(len(part), _RECALL_QUERIES)):
            first.append(selection.entities[selection.query == row].cpu().numpy())
    return first


def _sample_all(sampler: PPRSampler, graph: KnowledgeGraph, queries: Tensor) -> int:
    """Build all subgraph batches, 64 queries each. Returns the total number of edges."""
    return sum(sampler.sample(graph, part).num_edges for part in queries.split(64))


def _row(measured: Measured[Chosen], first: Measured[Chosen], queries: int, exact: Chosen) -> Row:
    hits = [
        len(np.intersect1d(a, b)) / len(b) for a, b in zip(measured.result, exact, strict=False)
    ]
    peak = first.peak_bytes
    return Row(
        queries=queries,
        seconds=round(measured.seconds, 4),
        queries_per_second=round(queries / measured.seconds, 3),
        recall=round(float(np.mean(hits)), 5),
        peak_megabytes=None if peak is None else round(peak / 2**20, 1),
    )


def _exact(graph: KnowledgeGraph, entities: Tensor, count: int, restart: float) -> Chosen:
    """The exact sets: the highest scores above 0 of converged power iteration in float64."""
    chosen: Chosen = []
    for part in entities.split(8):
        scores = ppr(graph, part, restart, 1e-12, 200, dtype=torch.float64)
        counts = torch.full((len(part),), count, device=graph.device)
        found, row, _ = choose_highest(scores, counts, part[:, None], keep_unreachable=False)
        chosen += [found[row == i].cpu().numpy() for i in range(len(part))]
    return chosen


def _networkx(
    graph: KnowledgeGraph, entities: Tensor, count: int, restart: float
) -> Callable[[], Chosen]:
    """As in the official code: one call of `networkx.pagerank` per query."""
    networkx = require("networkx", "peers", "comparing with networkx")
    whole = networkx.Graph()
    whole.add_nodes_from(range(graph.num_entities))
    facts = graph.facts
    whole.add_edges_from(facts[facts[:, 0] != facts[:, 2]][:, [0, 2]].tolist())

    def work() -> Chosen:
        chosen = []
        for entity in entities.tolist():
            scores = networkx.pagerank(whole, alpha=1 - restart, personalization={entity: 1.0})
            best = sorted(scores, key=scores.__getitem__, reverse=True)[:count]
            chosen.append(np.array(best))
        return chosen

    return work


def _scipy(
    graph: KnowledgeGraph, entities: Tensor, count: int, restart: float
) -> Callable[[], Chosen]:
    """Power iteration, 30 steps, with a scipy matrix and blocks of 8."""
    from scipy.sparse import csr_array

    neighbours = graph.neighbours
    degree = neighbours.degree.numpy()
    index = neighbours.index.numpy()
    weights = (1 / np.maximum(degree, 1)).astype(np.float32)[index]
    size = (graph.num_entities, graph.num_entities)
    matrix = csr_array((weights * (1 - restart), index, neighbours.indptr.numpy()), size)

    def work() -> Chosen:
        chosen = []
        for part in entities.split(8):
            start = np.zeros((graph.num_entities, len(part)), np.float32)
            start[part.numpy(), np.arange(len(part))] = 1
            scores = start
            for _ in range(30):
                scores = restart * start + matrix @ scores
            best = np.argpartition(-scores, count - 1, axis=0)[:count]
            chosen += list(best.T)
        return chosen

    return work


def _pyg(
    graph: KnowledgeGraph, entities: Tensor, count: int, restart: float
) -> Callable[[], Chosen]:
    """PyTorch Geometric's `get_ppr`, a push in numba, with its default precision."""
    require("numba", "peers", "comparing with PyTorch Geometric")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = require("torch_geometric.utils", "peers", "comparing with PyTorch Geometric")
    neighbours = graph.neighbours
    ids = torch.arange(graph.num_entities)
    edge_index = torch.stack([ids.repeat_interleave(neighbours.degree), neighbours.index.long()])

    def work() -> Chosen:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (source, found), weight = module.get_ppr(
                edge_index, alpha=restart, target=entities, num_nodes=graph.num_entities
            )
        chosen = []
        for entity in entities.tolist():
            mine = source == entity
            best = weight[mine].argsort(descending=True)[:count]
            chosen.append(found[mine][best].numpy())
        return chosen

    return work


BASELINES: dict[str, Contender] = {"networkx": _networkx, "scipy": _scipy, "pyg": _pyg}
