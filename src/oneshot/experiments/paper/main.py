"""The main table: accuracy on the large benchmarks, three seeds, with the full trainings.

If the result files of the repository are available, their rows of the same trainings come first.
"""

import dataclasses
import hashlib
import statistics
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from oneshot.config import Config, read_config, to_toml
from oneshot.errors import InputError
from oneshot.experiments.paper import literature
from oneshot.experiments.paper.ablations import ACCURACY
from oneshot.experiments.tables.report import read_report
from oneshot.experiments.tables.table import Column, Figures, Row, Table
from oneshot.experiments.tables.workbench import LARGE, Workbench
from oneshot.ranking import SCORES

CONFIGS = Path("configs")
"""The directory of the configurations of the full trainings."""

RESULTS = Path("benchmarks") / "results"
"""The directory of the results of earlier trainings with them."""

SEEDS = 3
_NOW = "this command"


def _plan(bench: Workbench) -> Iterator[Row]:
    names = bench.data_names(*LARGE)
    configs = {name: full_config(bench, name) for name in names}
    if not bench.quick:
        for name in names:
            for recorded in _recorded(bench, name):
                key = {"data": name, "seed": recorded["seed"], "source": recorded["source"]}
                yield Row(key, partial(dict, recorded), _published(name), derived=True)
    # The first seed of each data set first, so that a partial run covers all of them.
    for number in range(1 if bench.quick else SEEDS):
        seed = bench.seed + number
        for name in names:
            key = {"data": name, "seed": seed, "source": _NOW}
            measure = partial(_trained, bench, name, configs[name], seed)
            yield Row(key, measure, _published(name), config=config_digest(configs[name]))


def _published(name: str) -> literature.Printed:
    return literature.MAIN.get(name, {}).get(literature.PAPER_SYSTEM, {})


def _recorded(bench: Workbench, name: str) -> Iterator[Figures]:
    """The full trainings on a data set in a result file of `benchmarks/recipe.py`.

    Empty if they are not those requested now.
    """
    path = RESULTS / f"recipe-{name}.json"
    report = read_report(path)
    today = {"config": tomllib.loads(_file(name).read_text("utf-8")), "set": list(bench.changes)}
    if report is None or any(report.get(key) != value for key, value in today.items()):
        return
    for row in report["rows"]:
        test = row["test"]
        yield {
            "seed": row["seed"],
            "source": path.name,
            **{name: test[name] for name in SCORES if name in test},
            "coverage": test["coverage"],
            "valid_mrr": row["valid"]["mrr"],
            "epochs": row["epochs"],
            "best_epoch": row["best_epoch"],
            "seconds": row["training_seconds"],
            "parameters": row["parameters"],
            "peak_megabytes": row["peak_gpu_megabytes"],
            "hardware": row["hardware"],
        }


def _file(name: str) -> Path:
    return CONFIGS / f"{name}.toml"


def has_full_config(name: str) -> bool:
    """Whether the configuration of the full training on a data set is available."""
    return _file(name).is_file()


def full_config(bench: Workbench, name: str) -> Config:
    """The configuration of the full training on a data set; in a quick run, the short one."""
    if bench.quick:
        return bench.config(name)
    if not has_full_config(name):
        raise InputError(
            f"{_file(name)}: is missing; run this in the repository, which has the "
            "configurations, or write one, or name other data with --data"
        )
    return read_config(_file(name), [*bench.changes, f"training.seed={bench.seed}"])


def config_digest(config: Config) -> str:
    """A digest of a configuration: if it changes, rows are measured again."""
    return hashlib.sha256(to_toml(config).encode()).hexdigest()[:16]


def _trained(bench: Workbench, name: str, config: Config, seed: int) -> Figures:
    training = dataclasses.replace(config.training, seed=seed)
    return bench.train(bench.dataset(name), dataclasses.replace(config, training=training))


def _finding(rows: Sequence[Figures]) -> str:
    parts = []
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data and "mrr" in row]
        if mine:
            mean = statistics.mean(row["mrr"] for row in mine)
            spread = max(row["mrr"] for row in mine) - min(row["mrr"] for row in mine)
            paper = mine[0].get("paper", {}).get("mrr")
            beside = "" if paper is None else f" against {paper:.3f}"
            several = f"{len(mine)} trainings, spread {spread:.3f}"
            runs = several if len(mine) > 1 else "1 training"
            parts.append(f"{data} {mean:.3f}{beside} ({runs})")
    return "Mean test MRR, compared with the paper: " + "; ".join(parts) + "." if parts else ""


MAIN = Table(
    "main",
    "Accuracy on the large benchmarks",
    (
        Column("data", "data"),
        Column("seed", "seed"),
        Column("measured by", "source"),
        *ACCURACY,
        Column("valid MRR", "valid_mrr", ".3f"),
        Column("training s", "seconds", ",.0f"),
        Column("parameters", "parameters", ","),
        Column("peak MB", "peak_megabytes", ",.0f"),
        Column("failure", "failure"),
    ),
    _plan,
    _finding,
)
