"""The fitted sampler beside PPR: coverage, time to fit, and subgraphs per second.

    python -m benchmarks.fitted_sampler [DATA ...] [--device cuda] [--limit 2000]

Coverage on the test split for several budgets, with all, half and none of the entities chosen by
PPR (`context` 1, 0.5 and 0). The fit is timed on the training facts; subgraphs are sampled in
turns by both samplers, with the same budget, and their rates are compared as a ratio.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from benchmarks.common import find, write_result

from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.evaluation.coverage import coverage
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers import FittedSampler, PPRSampler, Sampler, fitted
from oneshot.system.devices import find_device

DATA = ("FB15k-237", "NELL-995", "WN18RR")
RATIOS = (0.01, 0.05, 0.1, 0.2)
CONTEXTS = (1.0, 0.5, 0.0)
_RATIO, _TURNS = 0.1, 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=list(DATA))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, help="queries for the coverage, drawn at random")
    options = parser.parse_args()
    device = find_device(options.device)
    rows = {name: measure(load(find(name)), device, options.limit) for name in options.data}
    for name, row in rows.items():
        print(
            f"{name}: fitted in {row['fit_seconds']:.1f} s, {row['rate_ratio']:.2f} of PPR's rate"
        )
        for part in row["coverage"]:
            shares = "  ".join(f"{r:.0%} {c:.3f}" for r, c in part["coverage"].items())
            print(f"  context {part['context']}: {shares}")
    suffix = "-h200" if device.type == "cuda" else ""
    write_result(f"fitted-sampler{suffix}", {"split": "test", "rows": rows}, device)


def measure(data: Dataset, device: torch.device, limit: int | None) -> dict[str, Any]:
    """The figures of one data set."""
    graph = data.graph.to(device)
    fitted._fits.clear()  # no fit of an earlier call
    begun = time.perf_counter()
    sampler = FittedSampler(_RATIO, keep_unreachable=False)
    sampler.fit(graph)
    wait(device)
    seconds = time.perf_counter() - begun
    queries, answers = data.queries("test")
    chosen = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:limit]
    queries, answers = queries[chosen].to(device), answers[chosen].to(device)
    found = []
    for context in CONTEXTS:
        one = FittedSampler(max(RATIOS), context=context)
        one.take(sampler.parameters())
        row = coverage(one, graph, queries, answers, RATIOS)
        found.append({"context": context, "coverage": row.coverage, "reachable": row.reachable})
    rates = rates_of((PPRSampler(_RATIO, keep_unreachable=False), sampler), graph, queries)
    return {
        "facts": graph.num_facts,
        "fit_seconds": seconds,
        "fit_seconds_per_100000_facts": seconds / graph.num_facts * 1e5,
        "queries": len(queries),
        "coverage": found,
        "subgraphs_per_second": {"ppr": rates[0], "fitted": rates[1], "entity_ratio": _RATIO},
        "rate_ratio": rates[1] / rates[0],
    }


def rates_of(
    samplers: tuple[Sampler, ...], graph: KnowledgeGraph, queries: torch.Tensor
) -> list[float]:
    """Subgraphs per second of each sampler: medians over turns."""
    size = 1024 if graph.device.type == "cuda" else 64
    rates: list[list[float]] = [[] for _ in samplers]
    for turn in range(_TURNS + 1):
        some = queries[turn * size : (turn + 1) * size]
        for sampler, found in zip(samplers, rates, strict=True):
            begun = time.perf_counter()
            sampler.sample(graph, some)
            wait(graph.device)
            if turn:  # the first one warms up
                found.append(len(some) / (time.perf_counter() - begun))
    return [statistics.median(found) for found in rates]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
