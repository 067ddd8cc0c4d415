"""PPR and top K on a GPU.

`python -m benchmarks.sampler_gpu`: for every entity of WN18RR and NELL-995, and the top 2,000 of
10,000 queries on HsGeneKG. `python -m benchmarks.sampler_gpu top [GRAPH] [--queries N]
[--device cpu]`: only the latter, also on a CPU, on any data set. Half of its queries are about
entities of random facts, half about the 1 % of the entities with the most neighbours. Recall is
that of the exact top 2,000 by power iteration in float64, over some of the queries.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.common import RESULTS, find, write_result
from torch import Tensor

from oneshot.data.load import load
from oneshot.experiments.bench.measure import measure
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers import PPRSampler
from oneshot.samplers._pagerank import ppr
from oneshot.samplers.push_recall import sampled_entities

TOP = 2000
QUERIES = 10_000
GRAPH = "HsGeneKG"
RECALL_QUERIES = 100
SEED = 0
RESTART = 0.15
PART = 1000  # queries of a call, so that few results are in memory
EXACT_BLOCK = 10
TIES = 1e-5  # relative difference of scores that float32 does not distinguish


def main() -> None:
    if len(sys.argv) > 1:
        highest(*options(sys.argv[1:]))
        return
    if not torch.cuda.is_available():
        sys.exit("skipped: there is no CUDA device")
    for name in ("WN18RR", "NELL-995"):
        out = RESULTS / f"sampler-{short_name()}-{name}.json"
        command = ["bench", "sampler", str(find(name)), "--queries", "all", "--device", "cuda"]
        command += ["--with", "none", "--out", str(out)]
        subprocess.run([sys.executable, "-m", "oneshot", *command], check=True)
    highest(GRAPH, QUERIES, torch.device("cuda"))


def options(arguments: list[str]) -> tuple[str, int, torch.device]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampler_gpu")
    parser.add_argument("what", choices=["top"])
    parser.add_argument("graph", nargs="?", default=GRAPH)
    parser.add_argument("--queries", type=int, default=QUERIES)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default)
    found = parser.parse_args(arguments)
    if found.queries < 2:
        parser.error(f"--queries must be at least 2, not {found.queries}")
    return found.graph, found.queries, torch.device(found.device)


def short_name() -> str:
    return torch.cuda.get_device_name().split()[-1].lower()


def highest(name: str, number: int, device: torch.device) -> None:
    """Queries per second and recall of the highest scores, by the sampler and by `ppr(top=)`."""
    graph = load(find(name)).graph
    entities = sampled_entities(graph, number, SEED)
    entities = entities[
        torch.randperm(len(entities), generator=torch.Generator().manual_seed(SEED))
    ]
    graph, entities = graph.to(device), entities.to(device)
    wanted = exact_selection(graph, entities[:RECALL_QUERIES])
    sampler = PPRSampler(max_entities=TOP, method="chebyshev", keep_unreachable=False)

    def by_sampler(some: Tensor) -> list[Tensor]:
        selection = sampler.select(graph, torch.stack([some, torch.zeros_like(some)], dim=1))
        sizes = selection.query.bincount(minlength=len(some)).tolist()
        return list(selection.entities.split(sizes))

    def by_top(some: Tensor) -> list[Tensor]:
        return list(ppr(graph, some, RESTART, top=TOP, exact=True).entities)

    value: dict[str, Any] = {
        "graph": name,
        "facts": graph.num_facts,
        "entities": graph.num_entities,
        "largest_degree": graph.neighbours.largest_degree,
        "queries": len(entities),
        "top": TOP,
        "seed": SEED,
        "sampler": measured(by_sampler, entities, wanted, device),
        "exact": measured(by_top, entities, wanted, device),
    }
    short = short_name() if device.type == "cuda" else "cpu"
    write_result(f"top-{short}-{name}", value, device)


def measured(
    way: Callable[[Tensor], list[Tensor]],
    entities: Tensor,
    wanted: list[Tensor],
    device: torch.device,
) -> dict[str, Any]:
    way(entities[: min(PART, len(entities))])  # includes work that is done once

    def work() -> list[Tensor]:
        first: list[Tensor] = []
        for part in entities.split(PART):
            found = way(part)
            first += found[: max(len(wanted) - len(first), 0)]
        return first

    done = measure(work, device)
    recalls = [
        min(float(torch.isin(found, best).sum()) / min(TOP, len(best)), 1.0)
        for found, best in zip(done.result, wanted, strict=True)
    ]
    peak = done.peak_bytes
    return {
        "seconds": round(done.seconds, 3),
        "queries_per_second": round(len(entities) / done.seconds, 1),
        "recall": round(sum(recalls) / len(recalls), 5),
        "least_recall": round(min(recalls), 5),
        "recall_queries": len(recalls),
        "peak_gb": None if peak is None else round(peak / 2**30, 2),
    }


def exact_selection(graph: KnowledgeGraph, entities: Tensor) -> list[Tensor]:
    """The entities whose exact score is at least the K-th; of equal scores, any may be taken."""
    best = []
    for some in entities.split(EXACT_BLOCK):
        for scores in ppr(graph, some, RESTART, 1e-10, 200, dtype=torch.float64):
            count = min(TOP, int((scores > 0).sum()))
            least = float(scores.topk(count).values[-1])
            best.append((scores >= least * (1 - TIES)).nonzero().squeeze(1))
    return best


if __name__ == "__main__":
    main()
