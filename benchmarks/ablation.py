"""What each option of sampler, predictor and training gains: short trainings, judged on validation.

    python -m benchmarks.ablation [DATA ...] [--variants mlp,average,...] [--seeds 0,1,2]
        [--queries 400000] [--parallel 3] [--device cuda] [--until SECONDS] [--set a.b=v ...]

Every variant differs from `base` by the settings below and has the same number of training queries.
Rows are added to `benchmarks/results/ablation.json` as they are finished, and a row that is there
is not measured again. Each is also evaluated with twice as many entities as it was trained with.
`--parallel` trains several at a time, on one GPU or on the cores. `--until`
begins nothing after so many seconds. `--show` prints the table: the mean of valid MRR over the
seeds, and the difference from `base` over the seeds that both have. The test split is not used.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from oneshot.system.process import prepare_process

prepare_process()  # before torch is loaded, as the command line does

from benchmarks.common import RESULTS  # noqa: E402

from oneshot.config import Config, from_table  # noqa: E402
from oneshot.data.load import load  # noqa: E402
from oneshot.evaluation.evaluate import evaluate  # noqa: E402
from oneshot.experiments.bench.measure import hardware  # noqa: E402
from oneshot.reasoner.build import build_reasoner  # noqa: E402
from oneshot.reasoner.reasoner import Reasoner  # noqa: E402
from oneshot.system.devices import find_device  # noqa: E402
from oneshot.system.files import write_json  # noqa: E402
from oneshot.training.epoch import queries_per_epoch  # noqa: E402
from oneshot.training.trainer import Trainer  # noqa: E402

NAME = "ablation"
BASE: tuple[str, ...] = (
    "sampler.name='fitted'",
    "predictor.aggregate='pna'",
    "predictor.norm=true",
    "predictor.shortcut=true",
    "predictor.gate=false",
    "predictor.priors=true",
    "predictor.prior_start=1.0",
    "predictor.num_layers=6",
    "predictor.dim=64",
    "training.batch_size=64",
    "training.learning_rate=0.003",
    "training.fact_ratio=0.95",
    "training.mask_known=true",
    "training.clip=1.0",
    "training.precision='auto'",
)
# What the plan chooses by measuring: budget, depth, and whether direct facts are hidden.
DATA: dict[str, tuple[str, ...]] = {
    "FB15k-237": ("sampler.entity_ratio=0.1", "training.hide_direct=true"),
    "NELL-995": ("sampler.entity_ratio=0.04",),
    "WN18RR": ("sampler.entity_ratio=0.05", "predictor.num_layers=8"),
    "inductive/fb237_v2": ("sampler.entity_ratio=0.5", "training.fact_ratio=0.8"),
    "inductive/nell_v2": ("sampler.entity_ratio=0.5", "training.fact_ratio=0.8"),
    "Family": ("sampler.entity_ratio=0.1", "training.fact_ratio=0.9"),
}
VARIANTS: dict[str, tuple[str, ...]] = {
    "base": (),
    "ppr": ("sampler.name='ppr'", "predictor.prior_start=0.0"),
    "no priors": ("predictor.priors=false", "predictor.prior_start=0.0"),
    "context 0.25": ("sampler.context=0.25",),
    "context 0.75": ("sampler.context=0.75",),
    "half entities": ("sampler.entity_ratio*=0.5",),
    "twice entities": ("sampler.entity_ratio*=2",),
    "mlp": ("predictor.readout='mlp'",),
    "reinject": ("predictor.reinject=true",),
    "over graph": ("predictor.aggregate_over='graph'",),
    "average": ("training.average=0.99",),
    "leave out": ("training.split='leave_out'",),
    "concat": ("predictor.concat=true",),
    "nbfnet": ("predictor.message='nbfnet'",),
    "sum": ("predictor.aggregate='sum'",),
    "dim 32": ("predictor.dim=32",),
    "dim 128": ("predictor.dim=128", "training.learning_rate=0.002"),
    "dropout 0.1": ("predictor.dropout=0.1",),
    "attention 32": ("predictor.attention_dim=32",),
    "rate 0.0015": ("training.learning_rate=0.0015",),
    "rate 0.006": ("training.learning_rate=0.006",),
    "batch 32": ("training.batch_size=32",),
    "weight decay": ("training.weight_decay=1e-5",),
    # NBFNet's message has the most parameters, and needs the most regularization.
    "nbfnet 32": ("predictor.message='nbfnet'", "predictor.dim=32"),
    "nbfnet rank 8": ("predictor.message='nbfnet'", "predictor.relation_rank=8"),
    "nbfnet rank 16": ("predictor.message='nbfnet'", "predictor.relation_rank=16"),
    "nbfnet dropout": ("predictor.message='nbfnet'", "predictor.dropout=0.1"),
    "nbfnet more dropout": ("predictor.message='nbfnet'", "predictor.dropout=0.3"),
    "nbfnet decay": ("predictor.message='nbfnet'", "training.weight_decay=1e-5"),
    "nbfnet over graph": ("predictor.message='nbfnet'", "predictor.aggregate_over='graph'"),
    "nbfnet fact dropout": ("predictor.message='nbfnet'", "training.fact_dropout=0.2"),
    "nbfnet more fact dropout": ("predictor.message='nbfnet'", "training.fact_dropout=0.5"),
    "nbfnet three": ("predictor.message='nbfnet'", "predictor.members=3"),
    "three": ("predictor.members=3",),
    "nbfnet split 0.8": ("predictor.message='nbfnet'", "training.fact_ratio=0.8"),
}
# Epochs of a training.
_EPOCHS = 8


class Job(NamedTuple):
    """One row: a variant trained on a data set with a seed and a number of queries."""

    data: str
    variant: str
    seed: int
    queries: int
    settings: tuple[str, ...] = ()

    def is_of(self, row: dict[str, Any]) -> bool:
        return all(
            row[name] == (list(value) if isinstance(value, tuple) else value)
            for name, value in self._asdict().items()
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=["FB15k-237", "NELL-995", "WN18RR"])
    parser.add_argument("--variants", default=",".join(VARIANTS), help="separated by commas")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--queries", type=int, default=400_000, help="training queries per row")
    parser.add_argument("--set", action="append", default=[], help="settings for all rows")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--until", type=float, help="seconds after which nothing is begun")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    parser.add_argument("--show", action="store_true", help="only print the table")
    parser.add_argument("--job", help=argparse.SUPPRESS)  # one row, in a process of its own
    options = parser.parse_args()
    if options.job:
        data, variant, seed, queries, settings = json.loads(options.job)
        job = Job(data, variant, seed, queries, tuple(settings))
        print(json.dumps(measure(job, options.device)))
        return
    path = options.results / f"{NAME}.json"
    rows = json.loads(path.read_text())["rows"] if path.is_file() else []
    if not options.show:
        jobs = [
            Job(data, variant, int(seed), options.queries, tuple(options.set))
            for seed in options.seeds.split(",")
            for variant in options.variants.split(",")
            for data in options.data
        ]
        missing = [job for job in jobs if not any(job.is_of(row) for row in rows)]
        run_all(missing, rows, path, options)
    for line in table(rows):
        print(line)


def run_all(
    jobs: list[Job], rows: list[dict[str, Any]], path: Path, options: argparse.Namespace
) -> None:
    """Measure the jobs, several at a time, each in a process of its own."""
    started, lock = time.monotonic(), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                is_late = options.until is not None and time.monotonic() - started > options.until
                if is_late or not jobs:
                    return
                job = jobs.pop(0)
            command = [sys.executable, "-m", "benchmarks.ablation", "--device", options.device]
            done = subprocess.run(
                [*command, "--job", json.dumps(job)],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ,
            )
            if done.returncode:
                print(f"{job} failed: {done.stderr[-1500:]}", file=sys.stderr, flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            with lock:
                rows.append(row)
                write_json(path, {"rows": rows})
                print(
                    f"{job.data}, {job.variant}, seed {job.seed}: valid MRR {row['valid_mrr']:.4f} "
                    f"in {row['seconds']:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )

    threads = [threading.Thread(target=work) for _ in range(options.parallel)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(job: Job, device_name: str) -> dict[str, Any]:
    """The row of a job: valid MRR of the best and of the last epoch, over all valid facts."""
    device, data = find_device(device_name), load(job.data)
    config = configured(job, data.graph.num_facts)
    trainer = Trainer(build_reasoner(data.graph, config, device), data, config.training)
    started = time.perf_counter()
    state = trainer.run()
    seconds = time.perf_counter() - started
    last = state.history[-1]
    reasoner = trainer.reasoner
    ratio = config.sampler.entity_ratio
    assert isinstance(ratio, float)
    sampler = reasoner.sampler.with_entity_ratio(min(2 * ratio, 1.0))
    with_more = evaluate(
        Reasoner(reasoner.graph, sampler, reasoner.predictor), data.valid, trainer.known
    )
    return {
        **job._asdict(),
        "valid_mrr": state.best_mrr,
        "valid_mrr_twice": with_more.mrr,
        "last_mrr": last["valid"]["mrr"],
        "coverage": last["valid"]["coverage"],
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "asked": sum(record["queries"] for record in state.history),
        "queries_per_second": statistics.median(r["queries_per_second"] for r in state.history),
        "seconds": seconds,
        "parameters": trainer.predictor.num_parameters,
        "hardware": hardware(device),
    }


def configured(job: Job, num_facts: int) -> Config:
    """The configuration of a job, with as many epochs of the same length as its queries need."""
    settings: list[str] = []
    for setting in (*BASE, *DATA.get(job.data, ()), *VARIANTS[job.variant], *job.settings):
        name, _, value = setting.partition("*=")
        if value:  # a factor on what was set before
            before = from_table({}, settings)
            section, key = name.split(".")
            setting = f"{name}={getattr(getattr(before, section), key) * float(value)}"
        settings.append(setting)
    settings.append(f"training.seed={job.seed}")
    training = from_table({}, settings).training
    whole = queries_per_epoch(training, num_facts)
    share = min(max(job.queries / _EPOCHS / whole, 1e-6), 1.0)
    epochs = max(round(job.queries / (share * whole)), 1)
    settings += [f"training.query_share={share}", f"training.epochs={epochs}"]
    settings += [f"training.valid_every={max(round(epochs / 2), 1)}"]
    return from_table({}, settings)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines for people: for each data set, queries and settings, the variants with their gain."""
    groups: dict[tuple[Any, ...], dict[str, dict[int, dict[str, Any]]]] = {}
    for row in rows:
        key = (row["data"], row["queries"], *row["settings"])
        groups.setdefault(key, {}).setdefault(row["variant"], {})[row["seed"]] = row
    lines = []
    for key, variants in groups.items():
        lines.append(f"{key[0]}, {key[1]:,} queries {' '.join(key[2:])}")
        base = variants.get("base", {})
        for name, found in variants.items():
            mean = statistics.mean(row["valid_mrr"] for row in found.values())
            gains = [
                row["valid_mrr"] - base[seed]["valid_mrr"]
                for seed, row in found.items()
                if seed in base and name != "base"
            ]
            gain = f"{statistics.mean(gains):+.4f}" if gains else ""
            some = next(iter(found.values()))
            twice = statistics.mean(row.get("valid_mrr_twice", math.nan) for row in found.values())
            lines.append(
                f"  {name:16s} {mean:.4f} {gain:>8s}  {len(found)} seeds  coverage "
                f"{some['coverage']:.3f}  {some['queries_per_second']:,.0f} queries/s  with twice "
                f"the entities {twice:.4f}"
            )
    return lines


if __name__ == "__main__":
    main()
