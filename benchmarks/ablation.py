"""What each option of sampler, predictor and training gains: short trainings, judged on validation.

    python -m benchmarks.ablation [DATA ...] [--variants mlp,average,...] [--seeds 0,1,2]
        [--queries 400000] [--parallel 3] [--device cuda] [--until SECONDS] [--set a.b=v ...]
        [--results DIR] [--merge FILE ...] [--show]

Every variant differs from `base` by the settings below, and those that begin with "without" from
`whole`, the configuration in `configs/DATA-ensemble.toml`; all have the same number of training
queries. A part that a configuration does not have is not left out of it. Rows are added to
`ablation.json` in DIR (`benchmarks/results`) as they are finished, each with the machine and the
revision, and a row that is there is not measured again. `--merge` first adds the rows of other such
files, for example of another machine. Each variant is also evaluated with twice as many entities as
it was trained with. `--parallel` trains several at a time, on one GPU or on the cores. `--until`
begins nothing after so many seconds. `--show` prints the table: the mean of valid MRR over the
seeds, and the difference from `base` or `whole` over the seeds that both have. With factors, their
weight is chosen on one half of the validation facts and measured on the other, in turns. The test
split is not used.
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
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from oneshot.system.process import prepare_process

prepare_process()  # before torch is loaded, as the command line does

import torch  # noqa: E402
from benchmarks.common import RESULTS  # noqa: E402

from oneshot.config import Config, from_table  # noqa: E402
from oneshot.data.load import load  # noqa: E402
from oneshot.evaluation.evaluate import evaluate  # noqa: E402
from oneshot.evaluation.factor_weight import choose_weight  # noqa: E402
from oneshot.experiments.bench.measure import hardware  # noqa: E402
from oneshot.factors import fit_factors  # noqa: E402
from oneshot.reasoner.build import build_reasoner  # noqa: E402
from oneshot.reasoner.reasoner import Reasoner  # noqa: E402
from oneshot.system.devices import find_device  # noqa: E402
from oneshot.system.files import write_json  # noqa: E402
from oneshot.training.epoch import queries_per_epoch  # noqa: E402
from oneshot.training.trainer import Trainer  # noqa: E402

NAME = "ablation"
CONFIGS = Path(__file__).parents[1] / "configs"
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
    "factors.batch_size=1000",
    "factors.negatives=2000",
)
# What the plan chooses by measuring: budget, depth, and whether direct facts are hidden.
DATA: dict[str, tuple[str, ...]] = {
    "FB15k-237": (
        "sampler.entity_ratio=0.1",
        "training.hide_direct=true",
        "factors.negatives=0",
    ),
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
    "context 0.5": ("sampler.context=0.5",),
    "context 0.75": ("sampler.context=0.75",),
    "entities 3 %": ("sampler.entity_ratio=0.03",),
    "entities 4 %": ("sampler.entity_ratio=0.04",),
    "entities 10 %": ("sampler.entity_ratio=0.1",),
    "half entities": ("sampler.entity_ratio*=0.5",),
    "twice entities": ("sampler.entity_ratio*=2",),
    "mlp": ("predictor.readout='mlp'",),
    "reinject": ("predictor.reinject=true",),
    "over graph": ("predictor.aggregate_over='graph'",),
    "average": ("training.average=0.99",),
    "average 0.999": ("training.average=0.999",),
    "skip uncovered": ("training.uncovered='skip'",),
    "known not masked": ("training.mask_known=false",),
    "softmax over sampled": ("training.softmax_over='sampled'",),
    "fact dropout": ("training.fact_dropout=0.2",),
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
    "factors": ("factors.dim=512",),
    "three and factors": ("predictor.members=3", "factors.dim=512"),
    "nbfnet split 0.8": ("predictor.message='nbfnet'", "training.fact_ratio=0.8"),
}
# The most accurate configuration of a data set, and what is left out of it.
WHOLE = "whole"
WITHOUT: dict[str, tuple[str, ...]] = {
    WHOLE: (),
    "without members": ("predictor.members=1",),
    "without factors": ("factors.dim=0",),
    "without priors": ("predictor.priors=false", "predictor.prior_start=0.0"),
    "without fitted sampler": ("sampler.name='ppr'", "predictor.prior_start=0.0"),
    "without hide_direct": ("training.hide_direct=false",),
    "without relation_rank": ("predictor.relation_rank=0",),
    "without norm": ("predictor.norm=false",),
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
    parser.add_argument(
        "--variants", default=",".join((*VARIANTS, *WITHOUT)), help="separated by commas"
    )
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--queries", type=int, default=400_000, help="training queries per row")
    parser.add_argument("--set", action="append", default=[], help="settings for all rows")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--until", type=float, help="seconds after which nothing is begun")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="files with more rows")
    parser.add_argument("--show", action="store_true", help="only print the table")
    parser.add_argument("--job", help=argparse.SUPPRESS)  # one row, in a process of its own
    options = parser.parse_args()
    if options.job:
        data, variant, seed, queries, settings = json.loads(options.job)
        job = Job(data, variant, seed, queries, tuple(settings))
        print(json.dumps(measure(job, options.device)))
        return
    path = options.results / f"{NAME}.json"
    variants = options.variants.split(",")
    unknown = [name for name in variants if name not in {**VARIANTS, **WITHOUT}]
    if unknown:
        parser.error(f"unknown variants: {', '.join(unknown)}")
    rows = merged([path, *options.merge])
    if options.merge:
        write_json(path, {"rows": rows})
    if not options.show:
        jobs = [
            Job(data, variant, int(seed), options.queries, tuple(options.set))
            for seed in options.seeds.split(",")
            for variant in variants
            for data in options.data
        ]
        missing = [
            job for job in jobs if is_possible(job) and not any(job.is_of(row) for row in rows)
        ]
        run_all(missing, rows, path, options)
    for line in table(rows):
        print(line)


def merged(paths: list[Path]) -> list[dict[str, Any]]:
    """The rows of several files; of the same job, that of the first file."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        for row in json.loads(path.read_text())["rows"] if path.is_file() else []:
            fields = {name: row[name] for name in Job._fields}
            if not any(all(old[name] == fields[name] for name in fields) for old in rows):
                rows.append(row)
    return rows


def is_possible(job: Job) -> bool:
    """Whether a data set has a configuration for a job that has the part to leave out."""
    if job.variant not in WITHOUT:
        return True
    if not whole_config(job.data).is_file():
        return False
    plain = job._replace(variant=WHOLE)
    return job.variant == WHOLE or _settings(job) != _settings(plain)


def whole_config(data: str) -> Path:
    return CONFIGS / f"{data}-ensemble.toml"


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
    best = state.best_mrr
    if config.factors.dim:
        best = with_factors(trainer, config)
    return {
        **job._asdict(),
        "valid_mrr": best,
        "predictor_mrr": state.best_mrr,
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


def with_factors(trainer: Trainer, config: Config) -> float:
    """Valid MRR of a trained reasoner with factors, none of whose weights has seen its queries."""
    reasoner, known, seed = trainer.reasoner, trainer.known, config.training.seed
    valid = trainer.data.valid.to(reasoner.device)
    reasoner.factors = fit_factors(reasoner.graph, config.factors, valid, known, seed=seed)
    order = torch.randperm(len(valid), generator=torch.Generator().manual_seed(seed))
    halves = [valid[order[start::2].to(valid.device)] for start in (0, 1)]
    total = 0.0
    for chosen, asked in (halves, halves[::-1]):
        choose_weight(reasoner, chosen, known, seed=seed)
        total += evaluate(reasoner, asked, known).mrr * len(asked)
    return total / len(valid)


def _settings(job: Job) -> Config:
    """The configuration of a job, before its epochs are set."""
    table: dict[str, Any] = {}
    if job.variant in WITHOUT:
        table = tomllib.loads(whole_config(job.data).read_text())
        table.pop("format")
        parts = [WITHOUT[job.variant], job.settings, ("training.valid_limit=0",)]
    else:
        parts = [BASE, DATA.get(job.data, ()), VARIANTS[job.variant], job.settings]
    settings: list[str] = []
    for setting in (setting for part in parts for setting in part):
        name, _, value = setting.partition("*=")
        if value:  # a factor on what was set before
            before = from_table(table, settings)
            section, key = name.split(".")
            setting = f"{name}={getattr(getattr(before, section), key) * float(value)}"
        settings.append(setting)
    return from_table(table, settings)


def configured(job: Job, num_facts: int) -> Config:
    """The configuration of a job, with as many epochs of the same length as its queries need."""
    config = _settings(job)
    whole = queries_per_epoch(config.training, num_facts)
    share = min(max(job.queries / _EPOCHS / whole, 1e-6), 1.0)
    epochs = max(round(job.queries / (share * whole)), 1)
    training = replace(
        config.training,
        seed=job.seed,
        query_share=share,
        epochs=epochs,
        valid_every=max(round(epochs / 2), 1),
    )
    return replace(config, training=training)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines for people: for each data set, queries and settings, the variants with their gain."""
    groups: dict[tuple[Any, ...], dict[str, dict[int, dict[str, Any]]]] = {}
    for row in rows:
        key = (row["data"], row["queries"], *row["settings"])
        groups.setdefault(key, {}).setdefault(row["variant"], {})[row["seed"]] = row
    lines = []
    for key, variants in groups.items():
        lines.append(f"{key[0]}, {key[1]:,} queries {' '.join(key[2:])}")
        for name, found in variants.items():
            reference = WHOLE if name in WITHOUT else "base"
            base = variants.get(reference, {})
            mean = statistics.mean(row["valid_mrr"] for row in found.values())
            gains = [
                row["valid_mrr"] - base[seed]["valid_mrr"]
                for seed, row in found.items()
                if seed in base and name != reference
            ]
            gain = f"{statistics.mean(gains):+.4f}" if gains else ""
            some = next(iter(found.values()))
            twice = statistics.mean(row.get("valid_mrr_twice", math.nan) for row in found.values())
            lines.append(
                f"  {name:22s} {mean:.4f} {gain:>8s}  {len(found)} seeds  coverage "
                f"{some['coverage']:.3f}  {some['queries_per_second']:,.0f} queries/s  with twice "
                f"the entities {twice:.4f}"
            )
    return lines


if __name__ == "__main__":
    main()
