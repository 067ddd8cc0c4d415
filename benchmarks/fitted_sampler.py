"""The fitted sampler beside PPR: coverage, time to fit, and subgraphs per second.

    python -m benchmarks.fitted_sampler [DATA ...] [--device cuda] [--limit 2000] [--split test]
    python -m benchmarks.fitted_sampler WN18RR --queries 30 --device cpu

Coverage on a split for several budgets, with all, half and none of the entities chosen by PPR
(`context` 1, 0.5 and 0), and with the share that is fitted per relation. The fit is timed on the
training facts; subgraphs are sampled in turns by both samplers, with the same budget, and their
rates are compared as a ratio. With `--queries`, only the time of `Reasoner.predict` is measured,
for so many queries one after the other, by both samplers in turns: with the budget and an untrained
predictor of the shipped configuration `configs/DATA.toml`.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import find, write_result

from oneshot.config import read_config
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.evaluation.coverage import coverage
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.build import build_reasoner, build_sampler
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import FittedSampler, PPRSampler, Sampler, fitted
from oneshot.system.devices import find_device

DATA = ("FB15k-237", "NELL-995", "WN18RR")
RATIOS = (0.01, 0.05, 0.1, 0.2)
CONTEXTS = (1.0, 0.5, None, 0.0)  # None: fitted per relation
CONFIGS = Path(__file__).parents[1] / "configs"
_RATIO, _TURNS = 0.1, 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=list(DATA))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, help="queries for the coverage, drawn at random")
    parser.add_argument("--split", default="test", choices=("valid", "test"))
    parser.add_argument("--queries", type=int, help="measure the time of so many queries")
    options = parser.parse_args()
    device = find_device(options.device)
    suffix = "-h200" if device.type == "cuda" else ""
    if options.queries:
        times = {name: time_of(name, device, options.queries) for name in options.data}
        for name, found in times.items():
            print(
                f"{name}: {1000 * found['ppr']:.1f} ms per query with PPR, "
                f"{1000 * found['fitted']:.1f} ms with the fitted sampler, ratio "
                f"{found['ratio']:.2f}"
            )
        write_result(f"fitted-sampler-query{suffix}", {"rows": times}, device)
        return
    rows = {
        name: measure(load(find(name)), device, options.limit, options.split)
        for name in options.data
    }
    for name, row in rows.items():
        print(
            f"{name}: fitted in {row['fit_seconds']:.1f} s, {row['rate_ratio']:.2f} of PPR's rate"
        )
        for part in row["coverage"]:
            shares = "  ".join(f"{r:.0%} {c:.3f}" for r, c in part["coverage"].items())
            context = "fitted" if part["context"] is None else part["context"]
            print(f"  context {context}: {shares}")
    write_result(f"fitted-sampler{suffix}", {"split": options.split, "rows": rows}, device)


def time_of(name: str, device: torch.device, count: int) -> dict[str, Any]:
    """Median seconds per query of both samplers, and the ratio of the medians."""
    data, config = load(find(name)), read_config(CONFIGS / f"{name}.toml")
    ppr = build_reasoner(data.graph, replace(config, sampler=replace(config.sampler, name="ppr")))
    ppr = ppr.to(device)
    sampler = build_sampler(replace(config.sampler, name="fitted"), config.training.seed)
    sampler.fit(ppr.graph)
    both = {"ppr": ppr, "fitted": Reasoner(ppr.graph, sampler, ppr.predictor)}
    queries, _ = data.queries("test")
    chosen = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))
    seconds: dict[str, list[float]] = {which: [] for which in both}
    for turn, (entity, relation) in enumerate(queries[chosen[: count + _TURNS]].tolist()):
        is_inverse, relation = divmod(relation, data.graph.num_relations)
        asked = data.graph.entities[entity], data.graph.relations[relation]
        for which, reasoner in both.items():
            begun = time.perf_counter()
            reasoner.predict(*asked, inverse=bool(is_inverse))
            wait(device)
            if turn >= _TURNS:  # the first ones warm up
                seconds[which].append(time.perf_counter() - begun)
    found: dict[str, Any] = {which: statistics.median(each) for which, each in seconds.items()}
    found["ratio"] = found["fitted"] / found["ppr"]
    return found | {"queries": count, "entity_ratio": config.sampler.entity_ratio}


def measure(data: Dataset, device: torch.device, limit: int | None, split: str) -> dict[str, Any]:
    """The figures of one data set."""
    graph = data.graph.to(device)
    fitted._fits.clear()  # no fit of an earlier call
    fitted._shares.clear()
    begun = time.perf_counter()
    sampler = FittedSampler(_RATIO, keep_unreachable=False)
    sampler.fit(graph)
    wait(device)
    seconds = time.perf_counter() - begun
    queries, answers = data.queries(split)
    chosen = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:limit]
    queries, answers = queries[chosen].to(device), answers[chosen].to(device)
    found = []
    for context in CONTEXTS:
        one = FittedSampler(max(RATIOS), context=context)
        one.take(sampler.parameters(), graph.relations)
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
