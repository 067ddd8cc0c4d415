"""HsGeneKG, 2.3 million entities: load, save, open, coverage and recall on this machine."""

import tempfile
from pathlib import Path

from benchmarks.common import find, in_own_process, write_result

LOAD = """
import sys, time
import oneshot
from oneshot.data.load import load
started = time.perf_counter()
data = load(sys.argv[1])
data.graph.edges, data.graph.neighbours
result = {"seconds": round(time.perf_counter() - started, 3), "facts": data.graph.num_facts,
          "entities": data.graph.num_entities}
"""

SAVE = (
    LOAD
    + """
started = time.perf_counter()
data.save(sys.argv[2])
result = {"seconds": round(time.perf_counter() - started, 3)}
"""
)

OPEN = """
import sys, time
import torch
from oneshot.data.load import load
started = time.perf_counter()
data = load(sys.argv[1])
opened = time.perf_counter() - started
name = data.entities[1234567]
started = time.perf_counter()
assert data.entities.index(name) == 1234567
looked = time.perf_counter() - started
result = {"seconds": round(opened, 4), "look_up_ms": round(looked * 1e3, 3)}
"""

COVERAGE = """
import sys, time
import torch
from oneshot.evaluation.coverage import coverage
from oneshot.data.load import load
from oneshot.samplers._pagerank import ppr
from oneshot.samplers import PPRSampler
data = load(sys.argv[1])
queries, answers = data.queries("test")
order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:1000]
sampler = PPRSampler(max_entities=5000)
row = coverage(sampler, data.graph, queries[order], answers[order], [5000])
hits = []
for query in queries[order][:16].split(4):
    exact = ppr(data.graph, query[:, 0], tolerance=1e-10, max_steps=150, dtype=torch.float64)
    chosen = sampler.select(data.graph, query)
    for i in range(len(query)):
        best = exact[i].topk(5000).indices
        hits.append(float(torch.isin(chosen.entities[chosen.query == i], best).float().mean()))
result = {"seconds": round(row.seconds, 1), "queries": row.queries,
          "max_entities": 5000, "coverage": row.coverage[5000],
          "method": sampler.chosen_method(data.graph, 5000),
          "recall": round(sum(hits) / len(hits), 5), "least_recall": round(min(hits), 5)}
"""


def main() -> None:
    source = str(find("HsGeneKG"))
    with tempfile.TemporaryDirectory() as directory:
        saved = str(Path(directory) / "saved")
        results = {
            "load": in_own_process(LOAD, source),
            "save": in_own_process(SAVE, source, saved),
        }
        results["open"] = in_own_process(OPEN, saved)
        results["coverage"] = in_own_process(COVERAGE, saved)
    for step, row in results.items():
        print(step, row)
    write_result("large-graph", {"data": "HsGeneKG", **results})


if __name__ == "__main__":
    main()
