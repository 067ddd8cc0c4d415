"""Local PPR against exact scores: recall, edges, time and other packages, graph by graph.

`python -m benchmarks.push [GRAPH ...]`: names of data sets, or power-law:1e6, family:1e6. Half of
the queries are about entities of random facts, half about the 1 % of the entities with the most
neighbours. Rows of other graphs in the result are kept, so that graphs can be measured one by one.
`_cpu_ms` is the time of the CPU: other jobs of the machine lengthen it less than the elapsed time.
Graphs on which the push finds too little are measured with a hub index as well. Each row has the
machine, the revision and the date that it was measured with.

Other packages are compared at equal recall: with the lowest precision of the push with which it
finds as much as they do on the same queries, or else with scores over the whole graph. The package
fast-pagerank is compared if it is installed.
"""

import dataclasses
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import networkx
import numpy as np
import scipy.sparse
import torch
from benchmarks.common import RESULTS, find, write_result
from torch import Tensor

from oneshot.data.load import Dataset, load
from oneshot.data.synthetic.generators import family, power_law
from oneshot.experiments.bench.measure import hardware
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers import PPRSampler
from oneshot.samplers._hubs import build_hub_index
from oneshot.samplers._pagerank import ppr_chebyshev
from oneshot.samplers._push import PushLimits, at_precision, ppr_push
from oneshot.samplers.ppr import PUSH_LEAST_RECALL
from oneshot.samplers.push_recall import push_recall, sampled_entities

GRAPHS = (
    "WN18RR",
    "NELL-995",
    "FB15k-237",
    "YAGO3-10-partial",
    "family:1e6",
    "power-law:1e6",
    "power-law:1e7",
    "HsGeneKG",
)
COUNT = 2000
QUERIES = 100
SEED = 0
RESTART = 0.15
EXACT_STEPS = 40  # terms of the Chebyshev series: the remainder is below 1e-9
TIES = 1e-5  # relative difference of scores that float32 does not distinguish
PEER_QUERIES = 10
# From the lowest to the highest recall; with a limit of edges that does not end the last ones.
PRECISIONS = (3.2, 1.6, 0.8, 0.4, 0.2, 0.1, 0.05, 0.025, 0.01, 0.003, 0.001)
SWEEP_EDGES = 40_000_000
SAME_RECALL = 0.0005  # that much less counts as equal
OUR_PUSH, WHOLE_GRAPH = "this package, push", "this package, whole graph"
NETWORKX_FACTS = 400_000  # it takes minutes per query on larger graphs
FAMILY_FACTS, POWER_LAW_FACTS = 7.88, 10  # per entity
PATIENCE = 30.0  # seconds for one setting of another package
COVERAGE_QUERIES = 400
BALL_QUERIES = 4


def main() -> None:
    order = {graph: place for place, graph in enumerate(GRAPHS)}
    for name in sys.argv[1:] or GRAPHS:
        row = measured(name, graph_of(name))
        print(json.dumps(row), flush=True)
        rows = [other for other in kept_rows() if other["graph"] != name] + [row]
        rows.sort(key=lambda one: order.get(one["graph"], len(order)))
        write_result(
            "push", {"max_entities": COUNT, "queries": QUERIES, "seed": SEED, "rows": rows}
        )


def kept_rows() -> list[dict[str, Any]]:
    """The rows of the result as it is now; another process may measure other graphs."""
    path = RESULTS / "push.json"
    if not path.exists():
        return []
    before = json.loads(path.read_text(encoding="utf-8"))
    return list(before["rows"]) if before.get("seed") == SEED else []


def graph_of(name: str) -> Dataset:
    kind, _, size = name.partition(":")
    if kind == "power-law":
        facts = int(float(size))
        return power_law(facts // POWER_LAW_FACTS, facts, seed=SEED)
    if kind == "family":
        return family(int(float(size) / FAMILY_FACTS), seed=SEED)
    return load(find(name))


def measured(name: str, data: Dataset) -> dict[str, Any]:
    graph = data.graph
    entities = sampled_entities(graph, QUERIES, SEED)
    best = exact_selection(graph, entities)
    row: dict[str, Any] = {
        "graph": name,
        "facts": graph.num_facts,
        "entities": graph.num_entities,
        "largest_degree": graph.neighbours.largest_degree,
    }
    started = time.perf_counter()
    graph.components.heads(entities[:1], 1)
    row["components_seconds"] = round(time.perf_counter() - started, 2)
    for method in ("push", "ball"):
        row[method] = local(graph, entities, best, method)
    row["push"] |= effort(graph, entities)
    started = time.perf_counter()
    row["push_recall"] = graph.push_recall = round(push_recall(graph), 4)
    row["push_recall_seconds"] = round(time.perf_counter() - started, 2)
    if graph.push_recall < PUSH_LEAST_RECALL:
        row["hub_index"] = with_hub_index(graph, entities, best)
    row["method_of_auto"] = PPRSampler(max_entities=COUNT).chosen_method(graph, COUNT)
    row["coverage"] = covered(data)
    row["others"] = others(graph, entities, best)
    row["load"] = round(os.getloadavg()[0], 1)  # other jobs of the machine
    row["hardware"] = hardware()
    return row


def effort(graph: KnowledgeGraph, entities: Tensor) -> dict[str, Any]:
    """The edges and entities that the push reads, with the hub index of the graph if it has one."""
    counts = torch.full((QUERIES,), min(COUNT, graph.num_entities))
    started = time.process_time()
    pushed = ppr_push(graph, entities, counts, RESTART, hub_index=graph.hub_index)
    seconds = time.process_time() - started
    edges = pushed.edges.double()
    return {
        "push_cpu_ms_mean": round(1e3 * seconds / QUERIES, 2),
        "edges_median": int(edges.median()),
        "edges_mean": round(float(edges.mean())),
        "edges_most": int(edges.max()),
        "touched_mean": round(float(pushed.touched.double().mean())),
    }


def with_hub_index(graph: KnowledgeGraph, entities: Tensor, best: list[Tensor]) -> dict[str, Any]:
    """Build the hub index, and measure the push with it."""
    started = time.process_time()
    graph.hub_index = build_hub_index(graph)
    if graph.hub_index is None:
        return {"hubs": 0}
    row = {
        "hubs": len(graph.hub_index.hubs),
        "least_degree": graph.hub_index.least_degree,
        "megabytes": round(graph.hub_index.num_bytes / 1e6, 1),
        "build_cpu_seconds": round(time.process_time() - started, 1),
    }
    graph.hub_recall = round(push_recall(graph, hub_index=graph.hub_index), 4)
    row |= local(graph, entities, best, "push") | effort(graph, entities)
    return row | {"push_recall": graph.hub_recall}


def exact_selection(graph: KnowledgeGraph, entities: Tensor) -> list[Tensor]:
    """The entities whose exact score is at least the K-th, sorted."""
    best = []
    for some in entities.split(20):
        scores = ppr_chebyshev(graph, some, RESTART, EXACT_STEPS)
        for one in scores:
            count = min(COUNT, int((one > 0).sum()))
            least = float(one.topk(count).values[-1])
            best.append((one >= least * (1 - TIES)).nonzero().squeeze(1))
    return best


def hits(graph: KnowledgeGraph, found: Tensor, best: Tensor) -> float:
    """Share of the exact selection that was found; of equal scores, any may be taken."""
    wanted = min(COUNT, len(best), graph.num_entities)
    return min(float(torch.isin(found, best).sum()) / wanted, 1.0)


def local(
    graph: KnowledgeGraph, entities: Tensor, best: list[Tensor], method: Any
) -> dict[str, Any]:
    sampler = PPRSampler(max_entities=COUNT, method=method, keep_unreachable=False, edge_limit=0)
    places = list(range(0, QUERIES, 1 if method == "push" else QUERIES // BALL_QUERIES))
    queries = torch.stack([entities, torch.zeros_like(entities)], 1)
    sampler.sample(graph, queries[:1])
    elapsed, busy, recalls, edges = [], [], [], []
    for place in places:
        clocks = time.perf_counter(), time.process_time()
        batch = sampler.sample(graph, queries[place : place + 1])
        elapsed.append(1e3 * (time.perf_counter() - clocks[0]))
        busy.append(1e3 * (time.process_time() - clocks[1]))
        edges.append(batch.num_edges)
        recalls.append(hits(graph, batch.entities, best[place]))
    return {
        "queries": len(places),
        "recall": round(float(np.mean(recalls)), 4),
        "least_recall": round(min(recalls), 4),
        "recall_of_facts": round(float(np.mean(recalls[: -(len(places) // 2)])), 4),
        "recall_of_hubs": round(float(np.mean(recalls[-(len(places) // 2) :])), 4),
        "sample_ms": round(statistics.median(elapsed), 2),
        "sample_p99_ms": round(float(np.quantile(elapsed, 0.99)), 2),
        "sample_cpu_ms": round(statistics.median(busy), 2),
        "sample_p99_cpu_ms": round(float(np.quantile(busy, 0.99)), 2),
        "subgraph_edges": round(float(np.mean(edges))),
    }


def covered(data: Dataset) -> dict[str, Any] | None:
    """Share of test answers among the entities of the push and of exact scores."""
    if not len(data.test) or data.name.partition(":")[0] in ("power-law", "family"):
        return None
    queries, answers = data.queries("test")
    count = COVERAGE_QUERIES if data.graph.num_entities < 500_000 else COVERAGE_QUERIES // 4
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(SEED))[:count]
    queries, answers = queries[order], answers[order]
    shares = {"queries": len(queries)}
    for method in ("push", "chebyshev"):
        sampler = PPRSampler(max_entities=COUNT, method=method)
        selection = sampler.select(data.graph, queries)
        found = (selection.entities == answers[selection.query]).long()
        caught = torch.zeros(len(queries), dtype=torch.long).index_add_(0, selection.query, found)
        shares[method] = round(float((caught > 0).double().mean()), 4)  # type: ignore[assignment]
    return shares


def others(graph: KnowledgeGraph, entities: Tensor, best: list[Tensor]) -> dict[str, Any]:
    """Other ways to the highest scores, one query at a time: median time of the CPU and recall.

    `ratio`: their time divided by ours at equal recall, `our_way`.
    """
    # As many of the entities of facts as of hubs.
    some = [n * QUERIES // PEER_QUERIES for n in range(PEER_QUERIES)]
    neighbours = graph.neighbours
    size = graph.num_entities
    ones = np.ones(len(neighbours.index), np.float32)
    adjacency = scipy.sparse.csr_array(
        (ones, neighbours.index.numpy(), neighbours.indptr.numpy()), (size, size)
    )
    degree = np.maximum(np.diff(neighbours.indptr.numpy()), 1).astype(np.float32)

    def chebyshev(entity: int) -> Tensor:
        return ppr_chebyshev(graph, torch.tensor([entity]), RESTART)[0].topk(COUNT).indices

    def power(entity: int) -> Tensor:
        start = np.zeros(size, np.float32)
        start[entity] = 1
        p = start
        for _ in range(100):
            new = RESTART * start + (1 - RESTART) * (adjacency @ (p / degree))
            change, p = np.abs(new - p).sum(), new
            if change < 1e-4:
                break
        return torch.from_numpy(np.argpartition(-p, COUNT)[:COUNT].copy())

    ways: dict[str, Callable[[int], Tensor]] = {
        WHOLE_GRAPH: chebyshev,
        "scipy, power iteration": power,
    }
    if graph.num_facts <= NETWORKX_FACTS:
        whole = networkx.from_scipy_sparse_array(adjacency)

        def by_networkx(entity: int) -> Tensor:
            scores = networkx.pagerank(whole, 1 - RESTART, personalization={entity: 1})
            return torch.tensor(sorted(scores, key=scores.get, reverse=True)[:COUNT])

        ways["networkx"] = by_networkx
    ways |= by_fast_pagerank(adjacency)
    result: dict[str, Any] = {}
    for name, way in ways.items():
        result[name] = timed(graph, way, entities, best, some)
    result |= by_pyg(graph, entities, best, some)
    ours = [*sweep(graph, entities, best, some), {"way": WHOLE_GRAPH, **result[WHOLE_GRAPH]}]
    for name, row in result.items():
        if name != WHOLE_GRAPH and row["cpu_ms"] is not None:
            row |= at_equal_recall(row, ours)
    return {"queries": len(some), "ours": ours, **result}


def sweep(
    graph: KnowledgeGraph, entities: Tensor, best: list[Tensor], some: list[int]
) -> list[dict[str, Any]]:
    """Time and recall of the push with each precision."""
    count = torch.tensor([min(COUNT, graph.num_entities)])
    rows = []
    for precision in PRECISIONS:
        limits = dataclasses.replace(
            at_precision(precision), hub_precision=precision / 4, max_edges=SWEEP_EDGES
        )

        def one(entity: int, limits: PushLimits = limits) -> Tensor:
            own = torch.tensor([entity])
            index = graph.hub_index
            pushed = ppr_push(graph, own, count, RESTART, limits=limits, hub_index=index)
            return pushed.entities[0, : int(pushed.counts)]

        row = timed(graph, one, entities, best, some)
        rows.append({"way": OUR_PUSH, "precision": precision, **row})
    return rows


def at_equal_recall(row: dict[str, Any], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of our ways with at least the recall of another package, and the ratio."""
    enough = [one for one in ours if one["recall"] >= row["recall"] - SAME_RECALL]
    if not enough:
        return {"our_way": None, "ratio": None}
    fastest = min(enough, key=lambda one: float(one["cpu_ms"]))
    return {
        "our_way": fastest["way"],
        "our_precision": fastest.get("precision"),
        "our_recall": fastest["recall"],
        "our_cpu_ms": fastest["cpu_ms"],
        "ratio": round(row["cpu_ms"] / max(fastest["cpu_ms"], 1e-3), 2),
    }


def by_fast_pagerank(adjacency: Any) -> dict[str, Callable[[int], Tensor]]:
    """The power iteration of the package fast-pagerank, with two tolerances."""
    try:
        pagerank_power = importlib.import_module("fast_pagerank").pagerank_power
    except ImportError:
        print("skipped fast-pagerank: it is not installed", file=sys.stderr)
        return {}
    size = adjacency.shape[0]
    matrix = scipy.sparse.csr_matrix(adjacency)
    ways: dict[str, Callable[[int], Tensor]] = {}
    for tolerance in (1e-4, 1e-6):  # the latter by default

        def one(entity: int, tol: float = tolerance) -> Tensor:
            start = np.zeros(size)
            start[entity] = 1
            scores = pagerank_power(matrix, 1 - RESTART, tol=tol, personalize=start)
            return torch.from_numpy(np.argpartition(-scores, COUNT)[:COUNT].copy())

        ways[f"fast-pagerank, tolerance {tolerance:g}"] = one
    return ways


def by_pyg(
    graph: KnowledgeGraph, entities: Tensor, best: list[Tensor], some: list[int]
) -> dict[str, Any]:
    """`get_ppr` of PyTorch Geometric, with thresholds of decreasing size."""
    from torch_geometric.utils import get_ppr

    neighbours = graph.neighbours
    source = torch.arange(graph.num_entities).repeat_interleave(neighbours.degree)
    pairs = torch.stack([source, neighbours.index.long()])
    result: dict[str, Any] = {}
    for threshold in (1e-5, 1e-6):

        def one(entity: int, eps: float = threshold) -> Tensor:
            edges, weight = get_ppr(pairs, RESTART, eps, torch.tensor([entity]), graph.num_entities)
            nearest: Tensor = edges[1][weight.topk(min(COUNT, len(weight))).indices]
            return nearest

        started = time.perf_counter()
        one(int(entities[some[0]]))  # compiles
        label = f"PyTorch Geometric, get_ppr, eps {threshold:g}"
        if time.perf_counter() - started > PATIENCE:
            result[label] = {"cpu_ms": None, "more_than_seconds": PATIENCE}
            break
        result[label] = timed(graph, one, entities, best, some)
        if result[label]["cpu_ms"] > 1e3 * PATIENCE / 6:
            break
    return result


def timed(
    graph: KnowledgeGraph,
    way: Callable[[int], Tensor],
    entities: Tensor,
    best: list[Tensor],
    some: list[int],
) -> dict[str, Any]:
    way(int(entities[some[0]]))
    times, recalls = [], []
    for place in some:
        started = time.process_time()
        found = way(int(entities[place]))
        times.append(1e3 * (time.process_time() - started))
        recalls.append(hits(graph, found, best[place]))
    return {
        "cpu_ms": round(statistics.median(times), 2),
        "recall": round(float(np.mean(recalls)), 4),
        "least_recall": round(min(recalls), 4),
    }


if __name__ == "__main__":
    main()
