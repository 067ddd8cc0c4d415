"""The edge limit: accuracy with fewer edges, and time per answer on a graph with hubs.

`python -m benchmarks.edge_limit [accuracy] [time]`. Accuracy: validation MRR of the shipped run of
FB15k-237, whose subgraphs are dense, with smaller limits than the default; the same numbers of
edges by `max_edges`, which removes edges instead of entities. Time: answers of an untrained
predictor of default shape on HsGeneKG, with and without a limit. Parts
that are not measured are kept.
"""

import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common import RESULTS, find, write_result

from oneshot import Reasoner, evaluate, load
from oneshot.config import PredictorConfig
from oneshot.predictor import Predictor
from oneshot.samplers import PPRSampler
from oneshot.samplers._hubs import build_hub_index
from oneshot.samplers.push_recall import sampled_entities

RUN = "FB15k-237"
OTHERS = ("WN18RR", "NELL-995", "YAGO3-10-partial")
FACTS = 100
LIMITS = (100_000, 50_000)
GRAPH = "HsGeneKG"
QUERIES = 40
COUNT = 2000
SEED = 0
PRETRAINED = Path(__file__).parents[1] / "pretrained"


def main() -> None:
    path = RESULTS / "edge-limit.json"
    value: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    value.pop("hardware", None)
    for part in sys.argv[1:] or ("accuracy", "time"):
        value[part] = {"accuracy": accuracy, "time": answer_times}[part]()
        write_result("edge-limit", value)


def accuracy() -> dict[str, Any]:
    data = load(find(RUN))
    reasoner = Reasoner.load(PRETRAINED / RUN, graph=data.graph)
    drawn = torch.randperm(len(data.valid), generator=torch.Generator().manual_seed(SEED))
    facts = data.valid[drawn[:FACTS]]
    sampler = reasoner.sampler
    whole = sampler.budget
    rows = []
    for kept, limit in (("all", 0), *((k, n) for n in LIMITS for k in ("entities", "edges"))):
        sampler.edge_limit = limit if kept == "entities" else 0
        sampler.budget = dataclasses.replace(whole, max_edges=limit) if kept == "edges" else whole
        batch = sampler.sample(data.graph, facts[:20, :2])
        rows.append(
            {
                "limit": limit,
                "drops": {"all": None, "entities": "entities", "edges": "edges"}[kept],
                "mrr": round(evaluate(reasoner, facts, known=data.known).mrr, 4),
                "subgraph_edges": batch.num_edges // 20,
                "subgraph_entities": batch.num_entities // 20,
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return {"run": RUN, "split": "valid", "facts": FACTS, "rows": rows, "largest": largest()}


def largest() -> dict[str, int]:
    """The edges of the largest of some subgraphs of each shipped run."""
    found = {}
    for name in (RUN, *OTHERS):
        data = load(find(name))
        reasoner = Reasoner.load(PRETRAINED / name, graph=data.graph)
        queries, _ = data.queries("valid")
        drawn = torch.randperm(len(queries), generator=torch.Generator().manual_seed(SEED))
        batch = reasoner.sampler.sample(data.graph, queries[drawn[:200]])
        found[name] = int(torch.bincount(batch.edge_query).max())
    return found


def answer_times() -> dict[str, Any]:
    graph = load(find(GRAPH)).graph
    graph.hub_index = build_hub_index(graph)
    torch.manual_seed(SEED)
    predictor = Predictor(PredictorConfig(), graph.num_relations)
    entities = sampled_entities(graph, QUERIES, SEED).tolist()
    rows = []
    for limit in (0, 250_000):
        sampler = PPRSampler(max_entities=COUNT, method="push", edge_limit=limit)
        reasoner = Reasoner(graph, sampler, predictor)
        reasoner.predict(entities[0], 0)
        times, busy, edges = [], [], []
        for entity in entities:
            clocks = time.perf_counter(), time.process_time()
            reasoner.predict(entity, 0)
            times.append(1e3 * (time.perf_counter() - clocks[0]))
            busy.append(1e3 * (time.process_time() - clocks[1]))
            edges.append(sampler.sample(graph, torch.tensor([[entity, 0]])).num_edges)
        rows.append(
            {
                "limit": limit or None,
                "answer_ms": round(statistics.median(times), 1),
                "answer_cpu_ms": round(statistics.median(busy), 1),
                "answer_p99_cpu_ms": round(float(np.quantile(busy, 0.99)), 1),
                "subgraph_edges": round(statistics.mean(edges)),
                "most_edges": max(edges),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return {"graph": GRAPH, "max_entities": COUNT, "queries": QUERIES, "rows": rows}


if __name__ == "__main__":
    main()
