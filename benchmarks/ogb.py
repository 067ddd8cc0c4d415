"""Training for OGB's knowledge graphs on one GPU, on data of their shape and size.

    python -m benchmarks.ogb ogbl-biokg|ogbl-wikikg2 [--data NAME] [--minutes 6] [--facts 1000]

A data set at hand is written in OGB's format and read back like a download: HsGeneKG-core for
ogbl-biokg, with types of entities and negatives of the type of the answer; HsGeneKG for
ogbl-wikikg2, without types. Then `configs/NAME.toml` is trained and ranked among the negatives by
OGB's evaluator (ours, if `ogb` is not installed; they agree), all within `--minutes`.

Before, short trainings with a quarter and half of the edge budget predict the memory and the time
per query of the full budget: both are linear in the edges, apart from the start of an epoch. From
the measured time follow those of the data sets of OGB themselves, whose subgraphs have at most the
same budget.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import RESULTS, find, write_result

from oneshot.config import Config, read_config
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.data.public.archives import unpack_ogb
from oneshot.data.public.ogb_negatives import read_candidates
from oneshot.evaluation.evaluate import evaluate_candidates
from oneshot.experiments.paper.literature import DATASETS
from oneshot.experiments.paper.main import CONFIGS
from oneshot.experiments.paper.ogb import judged, write_ogb
from oneshot.reasoner.build import build_reasoner
from oneshot.runs.run import Run
from oneshot.runs.train import train_run
from oneshot.system.devices import find_device
from oneshot.training.epoch import queries_per_epoch
from oneshot.training.observer import Observer
from oneshot.training.trainer import Trainer, fit

STAND_INS = {"ogbl-biokg": "HsGeneKG-core", "ogbl-wikikg2": "HsGeneKG"}
NEGATIVES = 500
"""Per query, as in both data sets."""


def kind_of(name: str) -> str:
    """The type of an entity, by the prefix of its name: `gene:7157`, `ENSG00000141510`."""
    prefix, colon, _ = name.partition(":")
    if not colon:
        prefix = name.rstrip("0123456789.")
    return prefix if prefix and prefix != name else "other"


def in_format_of(name: str, data: Dataset, place: Path, facts: int, negatives: int) -> Dataset:
    """The data set, written in OGB's format and read back; `facts`: of validation and test."""
    generator = torch.Generator().manual_seed(0)
    parts = {
        split: getattr(data, split)[
            torch.randperm(len(getattr(data, split)), generator=generator)[:facts]
        ]
        for split in ("valid", "test")
    }
    fewer = dataclasses.replace(data, **parts, true_facts=data.known)
    has_types = name == "ogbl-biokg"
    kinds = [kind_of(entity) for entity in data.entities] if has_types else None
    archive = place / "kg.zip"
    write_ogb(fewer, archive, 0, negatives, kinds)
    target = place / name
    target.mkdir()
    unpack_ogb([archive], target)
    archive.unlink()
    return load(target)


class StepTimes(Observer):
    """When each step of each epoch ended, and its queries."""

    def __init__(self) -> None:
        self.epochs: list[list[tuple[float, int]]] = [[]]

    def on_step(self, queries: int, loss: float) -> None:
        self.epochs[-1].append((time.perf_counter(), queries))

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        self.epochs.append([])

    def seconds_per_query(self) -> float | None:
        """The median over the epochs after the first, which compiles kernels.

        The first step of an epoch waits for its new observation graph, so it is not counted. None
        if all steps of an epoch were launched together.
        """
        rates = [
            (steps[-1][0] - steps[0][0]) / sum(queries for _, queries in steps[1:])
            for steps in self.epochs[1:]
            if len(steps) > 1
        ]
        return statistics.median(rates) if rates else None


def short_training(
    data: Dataset, config: Config, share: float, device: torch.device, queries: int
) -> dict[str, Any]:
    """Edges per subgraph, seconds per query and peak memory with a share of the budget."""
    most_entities, most_edges = config.sampler.max_entities, config.sampler.max_edges
    assert isinstance(most_entities, int)  # the configurations bound the subgraph
    assert isinstance(most_edges, int)
    sampler = dataclasses.replace(
        config.sampler,
        max_entities=int(share * most_entities),
        max_edges=int(share * most_edges),
    )
    config = dataclasses.replace(config, sampler=sampler)
    reasoner = build_reasoner(data.graph, config, device)
    asked, _ = data.queries("valid")
    batch = reasoner.sampler.sample(reasoner.graph, asked[:32].to(device))
    whole = queries_per_epoch(
        dataclasses.replace(config.training, query_share=1.0), len(data.train)
    )
    training = dataclasses.replace(
        config.training,
        epochs=3,  # the first compiles kernels
        query_share=min(queries / whole, 1.0),
        valid_limit=8,
        valid_every=3,
        minutes=0.0,
    )
    few = dataclasses.replace(data, valid=data.valid[:4], true_facts=data.known)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    steps = StepTimes()
    history = fit(reasoner, few, training, observers=[steps]).history
    whole_rate = statistics.median(record["queries_per_second"] for record in history[1:])
    per_query = steps.seconds_per_query() or 1 / whole_rate
    starts = [
        record["queries"] * (1 / record["queries_per_second"] - per_query) for record in history[1:]
    ]
    return {
        "share": share,
        "edges": batch.num_edges / batch.num_queries,
        "entities": batch.num_entities / batch.num_queries,
        "step_seconds_per_query": per_query,
        "seconds_per_epoch_start": max(statistics.median(starts), 0.0),
        "megabytes": _peak(device),
    }


def _peak(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None


def extrapolated(points: Sequence[dict[str, Any]], figure: str, edges: float) -> float | None:
    """The value at a number of edges on the line through two points; never below the last."""
    first, last = points[0], points[-1]
    if last[figure] is None or last["edges"] == first["edges"]:
        return None if last[figure] is None else float(last[figure])
    slope = (last[figure] - first[figure]) / (last["edges"] - first["edges"])
    return float(last[figure] + max(slope, 0.0) * (edges - last["edges"]))


def predicted_for(name: str, config: Config, measured: dict[str, Any]) -> dict[str, float]:
    """Hours for the data set of OGB itself, with the time per query that was measured."""
    sizes = DATASETS[name]
    asked = queries_per_epoch(config.training, int(sizes["train"]))
    return {
        "queries_per_epoch": asked,
        "training_hours": asked * config.training.epochs * measured["seconds_per_query"] / 3600,
        "test_hours": 2 * sizes["test"] * measured["evaluation_seconds_per_query"] / 3600,
        "valid_hours": 2 * sizes["valid"] * measured["evaluation_seconds_per_query"] / 3600,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=STAND_INS)
    parser.add_argument("--data", help="data to write in OGB's format")
    parser.add_argument("--minutes", type=float, default=6, help="for the training itself")
    parser.add_argument("--facts", type=int, default=1000, help="of validation and of test")
    parser.add_argument("--negatives", type=int, default=NEGATIVES)
    parser.add_argument("--queries", type=int, default=4096, help="per epoch, for the prediction")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = find_device(options.device)
    config = read_config(
        CONFIGS / f"{options.name}.toml", [f"training.minutes={options.minutes}", *options.set]
    )
    source = options.data or STAND_INS[options.name]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        original = load(source if options.data else find(source))
        data = in_format_of(options.name, original, Path(place), options.facts, options.negatives)
        value = measured(options.name, data, config, device, options.queries, Path(place))
    value |= {
        "name": options.name,
        "data": source,
        "negatives": options.negatives,
        "minutes": options.minutes,
        "set": options.set,
        "all_seconds": time.perf_counter() - began,
    }
    write_result(f"{options.name}-shape", value, device, options.out)
    print(json.dumps({key: value[key] for key in ("predicted", "measured", "ogb", "scores")}))


def measured(
    name: str, data: Dataset, config: Config, device: torch.device, queries: int, place: Path
) -> dict[str, Any]:
    """Prediction, training and evaluation."""
    points = [short_training(data, config, share, device, queries) for share in (0.25, 0.5)]
    whole = build_reasoner(data.graph, config, device)
    asked, _ = data.queries("valid")
    batch = whole.sampler.sample(whole.graph, asked[:32].to(device))
    edges = batch.num_edges / batch.num_queries
    step = extrapolated(points, "step_seconds_per_query", edges) or 0.0
    start = points[-1]["seconds_per_epoch_start"]
    predicted = {
        "seconds_per_query": step + start / queries_per_epoch(config.training, len(data.train)),
        "megabytes": extrapolated(points, "megabytes", edges),
    }
    del whole, batch
    result = train_run(data, place / "run", config, device, messages=print)
    records = [json.loads(line) for line in (place / "run/metrics.jsonl").read_text().splitlines()]
    rates = [one["queries_per_second"] for one in records if "queries_per_second" in one]
    found: dict[str, Any] = {
        "edges": edges,
        "seconds_per_query": 1 / statistics.median(rates),
        "megabytes": result["peak_gpu_megabytes"],
        "training_seconds": result["seconds"],
        "epochs": result["epochs"],
        "trained_queries": sum(int(one["queries"]) for one in records if "queries" in one),
        "coverage": result["test"]["coverage"],
        "filtered_test_mrr": result["test"]["mrr"],
        "parameters": result["parameters"],
    }
    reasoner = Run.open(place / "run").reasoner_on(data.graph).to(device)
    scores: dict[str, Any] = {}
    spent = 0.0
    for split in ("valid", "test"):
        candidates = read_candidates(data, split)
        started = time.perf_counter()
        ranked = evaluate_candidates(
            reasoner, candidates.queries, candidates.answers, candidates.negatives
        )
        scores[split] = judged(*ranked, name)  # waits for the device
        spent += time.perf_counter() - started
        scores[split]["queries"] = len(candidates.queries)
        scores[split]["random_mrr"] = _random_mrr(candidates.negatives.shape[1])
    found["evaluation_seconds_per_query"] = spent / sum(one["queries"] for one in scores.values())
    return {
        "graph": {
            "entities": data.graph.num_entities,
            "relations": data.graph.num_relations,
            "train": data.graph.num_facts,
            "mean_degree": float(data.graph.degree.double().mean()),
        },
        "points": points,
        "predicted": predicted,
        "measured": found,
        "ogb": predicted_for(name, config, found),
        "scores": scores,
    }


def _random_mrr(negatives: int) -> float:
    """The expected MRR of a random order of an answer and so many negatives."""
    return sum(1 / rank for rank in range(1, negatives + 2)) / (negatives + 1)


if __name__ == "__main__":
    main()
