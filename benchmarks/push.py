"""The local push on family worlds of growing size: time per query and recall of the exact set."""

import statistics
import time
from typing import Any

import numpy as np
import torch
from benchmarks.common import write_result

from oneshot.data.load import family
from oneshot.samplers import PPRSampler
from oneshot.samplers._pagerank import ppr

FACTS_PER_PERSON = 7.88  # in train, with the default six generations
COUNT = 2000
QUERIES = 60
EXACT = 16


def main() -> None:
    rows: list[dict[str, Any]] = []
    for facts in (1e5, 1e6, 1e7):
        data = family(int(facts / FACTS_PER_PERSON))
        graph = data.graph
        people = np.random.default_rng(0).choice(graph.num_entities, QUERIES, replace=False)
        queries = torch.stack([torch.from_numpy(people), torch.zeros(QUERIES, dtype=torch.long)], 1)
        sampler = PPRSampler(max_entities=COUNT, method="push")
        for query in queries[:5]:
            sampler.sample(graph, query[None])
        choose, whole, hits = [], [], []
        for row, query in enumerate(queries):
            started = time.perf_counter()
            selection = sampler.select(graph, query[None])
            choose.append(time.perf_counter() - started)
            started = time.perf_counter()
            sampler.sample(graph, query[None])
            whole.append(time.perf_counter() - started)
            if row < EXACT:
                scores = ppr(graph, query[:1], tolerance=1e-12, max_steps=150, dtype=torch.float64)
                exact = scores[0].topk(COUNT).indices
                hits.append(float(torch.isin(selection.entities, exact).float().mean()))
        rows.append(
            {
                "facts": graph.num_facts,
                "entities": graph.num_entities,
                "median_ms": round(statistics.median(choose) * 1e3, 3),
                "median_ms_with_subgraph": round(statistics.median(whole) * 1e3, 3),
                "recall": round(float(np.mean(hits)), 5),
                "least_recall": round(min(hits), 5),
                "method_of_auto": PPRSampler(max_entities=COUNT).chosen_method(graph, COUNT),
            }
        )
        print(rows[-1])
    growth = rows[-1]["median_ms"] / rows[0]["median_ms"]
    whole_growth = rows[-1]["median_ms_with_subgraph"] / rows[0]["median_ms_with_subgraph"]
    print(f"growth {growth:.2f}, with subgraph {whole_growth:.2f}")
    write_result(
        "push",
        {
            "max_entities": COUNT,
            "queries": QUERIES,
            "rows": rows,
            "growth": round(growth, 3),
            "growth_with_subgraph": round(whole_growth, 3),
        },
    )


if __name__ == "__main__":
    main()
