"""The main table: accuracy on the large benchmarks, beside the paper's predictor and its peers.

Ours has three seeds and the full trainings. If the result files of the repository are available,
their rows of the same trainings come first.
"""

import dataclasses
import hashlib
import json
import statistics
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from oneshot.config import Config, read_config, to_toml
from oneshot.errors import InputError
from oneshot.experiments.baselines.peers import (
    OURS,
    TITLES,
    WHOLE_GRAPH,
    has_pykeen,
    whole_graph_config,
)
from oneshot.experiments.paper import literature
from oneshot.experiments.paper.ablations import ACCURACY
from oneshot.experiments.tables.report import read_report
from oneshot.experiments.tables.table import Column, Figures, Row, Table
from oneshot.experiments.tables.workbench import LARGE, Workbench
from oneshot.ranking import SCORES

_QUICK_DIM, _QUICK_EPOCHS = 16, 2

CONFIGS = Path("configs")
"""The directory of the configurations of the full trainings."""

RESULTS = Path("benchmarks") / "results"
"""The directory of the results of earlier trainings with them."""

SEEDS = 3
_NOW = "this command"

BORROWED_FROM = ("messages.json", "nodepiece.json")
"""Reports of other tables that have measured peers."""

PAPERS_SPACE = "oneshot, the paper's design space"
"""Our reading of the paper's predictor, with the options that its design space has."""

# Of a whole row, in seconds: trainings of these lengths on one H200, with a margin.
_FULL = {"WN18RR": 300, "NELL-995": 450, "YAGO3-10-partial": 400, "FB15k-237": 800}
_WHOLE_GRAPH_SECONDS = {
    "WN18RR": {"nbfnet": 300, "redgnn": 150, "drum": 150},
    "NELL-995": {"nbfnet": 500, "redgnn": 300, "drum": 300},
}
_EMBEDDING_SECONDS = 400

_EMBEDDINGS = {"conve": 200, "quate": 400, "rotate": 1000, "compgcn": 200}
"""Real numbers per entity of the peers that PyKEEN trains, as published for these benchmarks."""

_WITH_PEERS = ("WN18RR", "NELL-995")
"""The data sets of the paper's main table that are complete."""


def _plan(bench: Workbench) -> Iterator[Row]:
    names = bench.data_names(*LARGE)
    configs = {name: full_config(bench, name) for name in names}
    if not bench.quick:
        for name in names:
            for recorded in _recorded(bench, name):
                source = {"seed": recorded["seed"], "source": recorded["source"]}
                key = {"data": name, "system": OURS, **source}
                yield Row(key, partial(dict, recorded), _published(name), derived=True)
    # The first seed and the peers of each data set first, so that a partial run covers all of them.
    for number in range(1 if bench.quick else SEEDS):
        for name in names:
            yield _ours(bench, name, configs[name], bench.seed + number)
            if number == 0 and (bench.quick or name in _WITH_PEERS):
                yield from _peers(bench, name)


def _ours(bench: Workbench, name: str, config: Config, seed: int) -> Row:
    return Row(
        {"data": name, "system": OURS, "seed": seed, "source": _NOW},
        partial(_trained, bench, name, config, seed),
        _published(name),
        config=config_digest(config),
        seconds=_FULL.get(name),
    )


def _peers(bench: Workbench, name: str) -> Iterator[Row]:
    """The paper's predictor and its peers on a data set; those of other tables come first."""
    key = {"data": name, "seed": bench.seed}
    path = _file(f"{name}-paper")
    if path.is_file() and not bench.quick:
        config = read_config(path, [*bench.changes, f"training.seed={bench.seed}"])
        yield Row(
            {**key, "system": PAPERS_SPACE, "source": _NOW},
            partial(_trained, bench, name, config, bench.seed),
            _published(name),
            config=config_digest(config),
            seconds=_FULL.get(name),
        )
    for system, found in _borrowed(bench, name):
        papers = _published(name, TITLES[system])
        whole = {**key, "system": TITLES[system], "source": found["source"]}
        yield Row(whole, partial(dict, found), papers, derived=True)
    for system in WHOLE_GRAPH:
        title = TITLES[system]
        yield Row(
            {**key, "system": title, "source": _NOW},
            partial(_on_whole_graph, bench, name, system),
            _published(name, title),
            seconds=_WHOLE_GRAPH_SECONDS.get(name, {}).get(system),
        )
    if has_pykeen():
        for system, dim in _EMBEDDINGS.items():
            title = TITLES[system]
            trained = (
                system,
                bench.dataset(name),
                _QUICK_DIM if bench.quick else dim,
                _QUICK_EPOCHS if bench.quick else None,
            )
            yield Row(
                {**key, "system": title, "source": _NOW},
                partial(bench.measure_peer, *trained),
                _published(name, title),
                written=partial(bench.forget_peer, *trained),
                seconds=_EMBEDDING_SECONDS,
            )
    for title in literature.PUBLISHED_ONLY:
        if papers := _published(name, title):
            whole = {"data": name, "system": title, "seed": None, "source": "published only"}
            # Nothing was measured, on no machine.
            yield Row(whole, partial(dict, hardware={}), papers, derived=True)


def _on_whole_graph(bench: Workbench, name: str, system: str) -> Figures:
    return bench.train(bench.dataset(name), whole_graph_config(system, bench.config(name)))


def _borrowed(bench: Workbench, name: str) -> Iterator[tuple[str, Figures]]:
    """Peers as measured for other tables: `messages` and `nodepiece`, if these are available."""
    columns = ("message", {"nbfnet", "redgnn"}), ("model", {"rotate"})
    for name_of_file, (column, systems) in zip(BORROWED_FROM, columns, strict=True):
        report = read_report(bench.out / name_of_file)
        # A report of other settings is of other trainings.
        if report is None or report.get("settings") != bench.settings:
            continue
        for row in report["rows"]:
            system = row[column]
            is_plain = not row.get("converged") and row.get("seed", bench.seed) == bench.seed
            on_all = row.get("entities", 1.0) == 1.0
            if system in systems and row["data"] == name and on_all and is_plain and "mrr" in row:
                figures = {key: row[key] for key in _BORROWED if key in row}
                yield system, {**figures, "source": name_of_file, "hardware": row["hardware"]}


_BORROWED = (*SCORES, "valid_mrr", "epochs", "seconds", "parameters", "peak_megabytes")


def _published(name: str, system: str = literature.PAPER_SYSTEM) -> literature.Printed:
    return literature.MAIN.get(name, {}).get(system, {})


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
            f"{_file(name)} is missing; run this in the repository, which has the "
            "configurations, or write one, or name other data with --data"
        )
    return read_config(_file(name), [*bench.changes, f"training.seed={bench.seed}"])


def config_digest(config: Config) -> str:
    """A digest of a configuration: if it changes, rows are measured again.

    Only of the options that differ from the defaults: an option that a later version adds, with a
    default that changes nothing, changes no digest.
    """
    default = tomllib.loads(to_toml(Config()))
    chosen = {
        f"{section}.{option}": value
        for section, options in tomllib.loads(to_toml(config)).items()
        if isinstance(options, dict)
        for option, value in options.items()
        if default.get(section, {}).get(option) != value
    }
    text = json.dumps(chosen, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _trained(bench: Workbench, name: str, config: Config, seed: int) -> Figures:
    training = dataclasses.replace(config.training, seed=seed)
    return bench.train(bench.dataset(name), dataclasses.replace(config, training=training))


def _finding(rows: Sequence[Figures]) -> str:
    parts = []
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [
            row
            for row in rows
            if row["data"] == data and "mrr" in row and row.get("system", OURS) == OURS
        ]
        if mine:
            mean = statistics.mean(row["mrr"] for row in mine)
            spread = max(row["mrr"] for row in mine) - min(row["mrr"] for row in mine)
            paper = mine[0].get("paper", {}).get("mrr")
            beside = "" if paper is None else f" against {paper:.3f}"
            several = f"{len(mine)} trainings, spread {spread:.3f}"
            runs = several if len(mine) > 1 else "1 training"
            parts.append(f"{data} {mean:.3f}{beside} ({runs})")
    return "Mean test MRR, compared with the paper: " + "; ".join(parts) + "." if parts else ""


def _named(row: Figures) -> Figures:
    """The system of a row of an earlier version, which measured no other than ours."""
    return {"system": row.get("system", OURS)}


MAIN = Table(
    "main",
    "Accuracy on the large benchmarks",
    (
        Column("data", "data"),
        Column("system", "system"),
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
    note=(
        f"*{PAPERS_SPACE}*: our reading of the paper's predictor, with `configs/NAME-paper.toml`. "
        "NBFNet, RED-GNN and DRUM are our predictor in their shapes on the whole graph, with the "
        "short training of the other tables; those of `messages.json` have 6 epochs of it, and its "
        "RED-GNN only the message of RED-GNN. ConvE, QuatE, RotatE and CompGCN are trained by "
        "PyKEEN until they stop improving. MINERVA, RNNLogic and DPMPN are published values only."
    ),
    derive=_named,
)
