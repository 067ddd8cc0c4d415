"""Comparing: our predictor and its peers on one data set, each a row that can be resumed."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from oneshot.config import Config, read_config, to_toml
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.experiments.baselines.recipes import DIM, RECIPES
from oneshot.experiments.baselines.registry import (
    FREQUENCY,
    OURS,
    TITLES,
    WHOLE_GRAPH,
    check_packages,
    find_peer,
    measure_frequency,
    megabytes,
    whole_graph_config,
)
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
    """Where the peers are measured beside our predictor.

    `peers`: names, in the order of the rows; ours comes first. `ours`: our configuration; None if
    it is to be planned for `minutes_each` with `changes`. `max_epochs`: at most so many for each.
    `dim`: real numbers that the embedding models have for an entity. `minutes_each`: the time of
    each for everything, its final evaluation included.
    """

    data: Dataset = field(kw_only=True)
    peers: Sequence[str] = field(kw_only=True)
    ours: Config | None = field(kw_only=True)
    max_epochs: int | None = field(default=None, kw_only=True)
    dim: int = field(default=DIM, kw_only=True)
    minutes_each: float | None = field(default=None, kw_only=True)

    @property
    def settings(self) -> Figures:
        config: Figures = {
            "planned_with": list(self.changes)
        }  # another one each time it is planned
        if self.ours is not None:
            config = dataclasses.asdict(self.ours)
            del config["training"]["seed"]  # told by itself
        found = {
            "data": self.data.name,
            "facts": facts_digest(self.data),
            "seed": self.seed,
            "device": self.device.type,
            "epochs": self.max_epochs,
            "dim": self.dim,
            "config": config,
        }
        # Not among those of reports that were begun before there was such a limit.
        return found if self.minutes_each is None else {**found, "minutes_each": self.minutes_each}

    def configuration(self) -> Config:
        """Our configuration; one that is planned is kept, so that its training can go on."""
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
    """Measure every row that is missing; → what the command prints, with `rows`.

    Finished rows are kept in the workbench's directory: asked for again, also among other peers,
    they are not measured again.
    """
    for split in ("valid", "test"):
        if not len(bench.data.facts(split)):
            raise InputError(f"{bench.data.name}: has no {split} facts, which a comparison needs")
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
    # What an earlier comparison found stays in the report, whoever is asked for now.
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
    elif name in RECIPES:
        limits = (bench.max_epochs, bench.minutes_each)
        found = bench.measure_peer(name, bench.data, bench.dim, *limits)
    else:
        found = _predictor(bench, name)
    return {"title": TITLES[name], "inductive": inductive, **found}


def _predictor(bench: Comparison, name: str) -> Figures:
    """Our predictor, or another system in its shape; a training which was killed goes on."""
    started = time.perf_counter()  # planning takes some of the time, too
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
    if peak is None and not is_resumed:  # or it would be that of the rest
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
    # Ours follow a schedule of as many epochs as the configuration says, unless it is cut.
    cut = [
        row["title"]
        for row in found
        if row.get("stopped") == "cut" or (row["model"] in RECIPES and row["stopped"] == "epochs")
    ]
    if cut:
        parts.append(
            f"Ended by the number of epochs, and maybe better with more: {', '.join(cut)}."
        )
    late = [row["title"] for row in found if row.get("stopped") == "time"]
    if late:
        parts.append(f"Ended by the time, and maybe better with more: {', '.join(late)}.")
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
"""The two tables for a terminal, which is too narrow for one."""

TABLE = Table(
    NAME,
    "Our predictor and its peers under the same ranking",
    (_NAME, *_ACCURACY, *_COST),
    _plan,
    _finding,
)
