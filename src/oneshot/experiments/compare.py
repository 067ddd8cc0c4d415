"""Comparison of our predictor with its peers on one data set, in rows that can be resumed."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from oneshot.config import Config, read_config, to_toml
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.experiments.baselines.peers import (
    FACTORS,
    FREQUENCY,
    OURS,
    TITLES,
    WHOLE_GRAPH,
    check_packages,
    find_peer,
    measure_factors,
    measure_frequency,
    megabytes,
    whole_graph_config,
)
from oneshot.experiments.baselines.pykeen_models import DIM, RECIPES
from oneshot.experiments.bench.measure import measure
from oneshot.experiments.tables.report import make_report, read_report
from oneshot.experiments.tables.table import Column, Figures, Row, Table
from oneshot.experiments.tables.workbench import Workbench, facts_digest
from oneshot.ranking import METRICS, SCORES
from oneshot.system.files import write_text
from oneshot.training.plan import make_plan

NAME = "compare"


@dataclass
class Comparison(Workbench):
    """The settings of a comparison.

    `peers`: names, in the order of the rows; ours comes first. `ours`: our configuration; None to
    plan it for `minutes_each` with `changes`. `max_epochs`: maximum number of epochs of each.
    `dim`: real numbers per entity of the embedding models. `minutes_each`: time limit of each,
    including its final evaluation.
    """

    data: Dataset = field(kw_only=True)
    peers: Sequence[str] = field(kw_only=True)
    ours: Config | None = field(kw_only=True)
    max_epochs: int | None = field(default=None, kw_only=True)
    dim: int = field(default=DIM, kw_only=True)
    minutes_each: float | None = field(default=None, kw_only=True)

    @property
    def settings(self) -> Figures:
        config: Figures = {"planned_with": list(self.changes)}  # differs each time it is planned
        if self.ours is not None:
            config = dataclasses.asdict(self.ours)
            del config["training"]["seed"]  # a separate key
        found = {
            "data": self.data.name,
            "facts": facts_digest(self.data),
            "seed": self.seed,
            "device": self.device.type,
            "epochs": self.max_epochs,
            "dim": self.dim,
            "config": config,
        }
        # Reports of earlier versions do not have this limit.
        return found if self.minutes_each is None else {**found, "minutes_each": self.minutes_each}

    def configuration(self) -> Config:
        """Our configuration; a planned one is saved, so that its training can be resumed."""
        if self.ours is not None:
            return self.ours
        asked = f"plan {self.minutes_each} {self.seed} {self.device.type} {list(self.changes)}"
        place = self.kept(self.data, asked)
        place = place.with_name(f"{place.name}.toml")
        if place.is_file():
            return read_config(place)
        planned = make_plan(self.data, self.minutes_each, self.device, self.changes, self.seed)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, to_toml(planned.config))
        return planned.config


def compare(bench: Comparison, tell: Callable[[str], None] = lambda _: None) -> Figures:
    """Measure every missing row. Returns the result that the command prints, with `rows`.

    Finished rows are kept in the directory of the workbench and are not measured again, even in a
    comparison with other peers.
    """
    for split in ("valid", "test"):
        if not len(bench.data.facts(split)):
            raise InputError(f"{bench.data.name} has no {split} facts; a comparison needs them")
    names = [OURS, *(name for name in map(find_peer, bench.peers) if name != OURS)]
    bench = dataclasses.replace(bench, peers=list(dict.fromkeys(names)))
    check_packages(list(bench.peers))
    report = make_report(TABLE, bench, tell)
    rows = [
        {key: value for key, value in row.items() if key not in ("hardware", "paper")}
        for row in report["rows"]
    ]
    return {
        "data": bench.data.name,
        "settings": report["settings"],
        "complete": report["complete"],
        "finding": report["finding"],
        "rows": rows,
        "hardware": report["rows"][-1]["hardware"],
    }


def _plan(bench: Workbench) -> Iterator[Row]:
    assert isinstance(bench, Comparison)
    before = read_report(bench.out / f"{NAME}.json") or {"rows": []}
    # Results of an earlier comparison stay in the report, even if their peers are not named now.
    models = [row.get("model") for row in before["rows"] if isinstance(row, dict)]
    older = [name for name in TITLES if name in models]
    for name in dict.fromkeys([*bench.peers, *older]):
        measure = partial(_measure, bench, name)
        if name in RECIPES:
            peer = (name, bench.data, bench.dim, bench.max_epochs, bench.minutes_each)
            yield Row({"model": name}, measure, written=partial(bench.forget_peer, *peer))
        else:
            yield Row({"model": name}, measure)


def _measure(bench: Comparison, name: str) -> Figures:
    inductive = name == OURS or name in WHOLE_GRAPH
    if name == FREQUENCY:
        found = measure_frequency(bench.data)
    elif name == FACTORS:
        found = measure_factors(
            bench.data, bench.device, dim=bench.dim, seed=bench.seed, minutes=bench.minutes_each
        )
    elif name in RECIPES:
        limits = (bench.max_epochs, bench.minutes_each)
        found = bench.measure_peer(name, bench.data, bench.dim, *limits)
    else:
        found = _predictor(bench, name)
    return {"title": TITLES[name], "inductive": inductive, **found}


def _predictor(bench: Comparison, name: str) -> Figures:
    """Our predictor, or another system as its configuration; resumes an interrupted training."""
    started = time.perf_counter()  # planning is part of the time
    config = bench.configuration()
    if name != OURS:
        config = whole_graph_config(name, config)
    planned = config.training.epochs
    epochs = min(planned, bench.max_epochs or planned)
    training = dataclasses.replace(config.training, seed=bench.seed, epochs=epochs)
    if bench.minutes_each is not None:
        training = dataclasses.replace(training, minutes=bench.minutes_each)
    config = dataclasses.replace(config, training=training)
    is_resumed = bench.has_run(bench.data, config)
    measured = measure(lambda: bench.train(bench.data, config, started), bench.device)
    found = measured.result
    if "failure" in found:
        return found
    stopped = "time" if training.minutes else "patience"
    if found["epochs"] >= training.epochs:
        stopped = "cut" if training.epochs < planned else "epochs"
    elif training.patience:
        since = (found["epochs"] - found["best_epoch"]) // training.valid_every
        stopped = "patience" if since >= training.patience else stopped
    peak = found["peak_megabytes"]
    if peak is None and not is_resumed:  # otherwise it would be that of the remaining epochs
        peak = megabytes(measured.peak_bytes)
    del found["seconds_per_epoch"]
    if bench.ours is None:
        found["config"] = dataclasses.asdict(config)
    return {**found, "stopped": stopped, "dim": config.predictor.dim, "peak_megabytes": peak}


def _finding(rows: Sequence[Figures]) -> str:
    found = [row for row in rows if "valid_mrr" in row]
    if not found:
        return ""
    best = max(found, key=lambda row: row["valid_mrr"])
    parts = [
        f"Best on validation: {best['title']}, valid MRR {best['valid_mrr']:.3f}, "
        f"test MRR {best['mrr']:.3f}."
    ]
    # Ours follow the schedule of the configured epochs, unless it is cut.
    cut = [
        row["title"]
        for row in found
        if row.get("stopped") == "cut" or (row["model"] in RECIPES and row["stopped"] == "epochs")
    ]
    if cut:
        parts.append(
            f"Ended by the limit of epochs, more may improve the result: {', '.join(cut)}."
        )
    late = [row["title"] for row in found if row.get("stopped") == "time"]
    if late:
        parts.append(f"Ended by the time limit, more may improve the result: {', '.join(late)}.")
    return " ".join(parts)


_ACCURACY = (
    Column("valid MRR", "valid_mrr", ".3f"),
    Column("test MRR", "mrr", ".3f"),
    *(Column(METRICS[name].title, name, ".3f") for name in SCORES if name != "mrr"),
    Column("inductive", "inductive"),
)
_COST = (
    Column("training s", "seconds", ",.1f"),
    Column("epochs", "epochs", ","),
    Column("s / 1,000 queries", "seconds_per_1000_queries", ".2f"),
    Column("peak MB", "peak_megabytes", ",.0f"),
    Column("parameters", "parameters", ","),
    Column("failure", "failure"),
)
_NAME = Column("", "title")
VIEWS = {"accuracy": (_NAME, *_ACCURACY), "cost": (_NAME, *_COST)}
"""The result as two tables, because one would be too wide for a terminal."""

TABLE = Table(
    NAME,
    "Our predictor and its peers under the same ranking",
    (_NAME, *_ACCURACY, *_COST),
    _plan,
    _finding,
)
