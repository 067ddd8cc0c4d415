"""The figure of the search: the best trial so far, by forest, Gaussian process and chance."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from oneshot.errors import OneshotError, require
from oneshot.paper.pictures import draw_lines
from oneshot.paper.table import Column, Figures, Row, Table, by_data, figures_by
from oneshot.paper.workbench import Workbench, facts_digest, file_name
from oneshot.search.predictor_phase import PREDICTOR, RANDOM, find_predictor, search_randomly
from oneshot.search.session import OutOfTime, Session, Timer
from oneshot.search.settings import Effort, SearchSettings
from oneshot.search.space import Choice, Dimension, Range, phase_1_space
from oneshot.search.store import Store, Trial
from oneshot.search.trial import provide
from oneshot.search.workers import open_workers

_METHODS: dict[str, tuple[str, Callable[[Session], Any]]] = {
    "random forest": (PREDICTOR, find_predictor),
    "Gaussian process": ("gaussian", partial(find_predictor, surrogate="gaussian")),
    "random search": (f"{RANDOM}:0", partial(search_randomly, seed=0)),
}
_TRIALS, _QUICK_TRIALS = 16, 3


def _plan(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names("WN18RR"):
        for method in _METHODS:
            yield Row({"data": name, "method": method}, partial(_searched, bench, name, method))


def _searched(bench: Workbench, name: str, method: str) -> Figures:
    require("smac", "search", "the search")
    data = bench.dataset(name)
    settings = _settings(bench, name)
    effort = Effort(_QUICK_TRIALS if bench.quick else _TRIALS, final=False)
    phase, work = _METHODS[method]
    # The trials of other facts or other settings are of no use here.
    told = f"{facts_digest(data)}\n{json.dumps(settings.as_table(), sort_keys=True)}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    store = Store(bench.out / "search" / f"{file_name(data.name)}-{digest}", create=True)
    try:
        provide(data)
        with open_workers(1, None) as crew:
            place = bench.out / "search"
            work(
                Session(
                    data, place, settings, effort, bench.device, store, crew, Timer(store, None)
                )
            )
        trials = store.trials(phase)
    except OutOfTime as error:  # there is no limit here
        raise OneshotError("the search was stopped") from error
    finally:
        store.close()
    curve = best_so_far(trials)
    return {
        "best": curve[-1],
        "trials": len(trials),
        "failed": sum(trial.status == "failed" for trial in trials),
        "seconds": sum(trial.seconds or 0.0 for trial in trials),
        "curve": curve,
    }


def _settings(bench: Workbench, name: str) -> SearchSettings:
    """Short trials, of which none is stopped early: each gives a point of the curve."""
    base = bench.config(name)
    small: dict[str, Dimension] = {
        "predictor.num_layers": Range(1, 3),
        "predictor.dim": Choice((4, 8, 16)),
    }
    return SearchSettings(
        queries=64 if bench.quick else 4096,
        validations=1,
        valid_queries=40 if bench.quick else 1000,
        seconds=0.0 if bench.quick else 30.0,
        keep=1.0,
        initial=2 if bench.quick else 5,
        seed=bench.seed,
        base=base,
        space=phase_1_space(small if bench.quick else {}, {}),
    )


def best_so_far(trials: Sequence[Trial]) -> list[float]:
    """The best value after each trial; a failed one is worth nothing."""
    best, curve = 0.0, []
    for trial in trials:
        best = max(best, trial.value or 0.0)
        curve.append(best)
    return curve


def _finding(rows: Sequence[Figures]) -> str:
    found = figures_by(rows, "method", "best")
    if len(found) < 2:
        return ""
    shown = ", ".join(f"{method} {value:.3f}" for method, value in found.items())
    return f"Best validation MRR after {rows[0]['trials']} trials: {shown}."


def _draw(rows: Sequence[Figures], path: Path) -> None:
    points = [
        {"data": row["data"], "method": row["method"], "trial": number, "mrr": value}
        for row in rows
        for number, value in enumerate(row["curve"], 1)
    ]
    draw_lines(
        points,
        path,
        x="trial",
        lines="method",
        panels="data",
        label="trials",
        y_label="best validation MRR so far",
    )


SEARCH = Table(
    "search",
    "The best configuration so far, by what proposes the next one",
    (
        Column("data", "data"),
        Column("proposed by", "method"),
        Column("best valid MRR", "best", ".3f"),
        Column("trials", "trials"),
        Column("failed", "failed"),
        Column("s", "seconds", ",.0f"),
    ),
    _plan,
    by_data(_finding),
    _draw,
)
