"""The comparison of surrogates: searches replayed on configurations that were trained once.

Training for every search of every method and seed would take days. Therefore a pool of
configurations is trained (one part per row), and all searches look up their trials in the pool
(`oneshot.search.replay`).
"""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from oneshot.errors import OneshotError, require
from oneshot.experiments.tables.plot import draw_lines
from oneshot.experiments.tables.table import Column, Figures, Row, Table, by_data
from oneshot.experiments.tables.workbench import Workbench, facts_digest, file_name
from oneshot.search.predictor_phase import run_trials
from oneshot.search.predictor_trial import provide
from oneshot.search.propose import Proposal
from oneshot.search.session import OutOfTime, Session, Timer
from oneshot.search.settings import Effort, SearchSettings, Surrogate
from oneshot.search.space import Choice, Dimension, Range, phase_1_space
from oneshot.search.store import Store, Trial
from oneshot.search.workers import open_workers

FOREST = "random forest"
"""The surrogate of the paper, with which the others are compared."""

_METHODS: dict[str, tuple[Surrogate | None, bool]] = {
    FOREST: ("forest", True),
    "Gaussian process": ("gaussian", True),
    "MLP ensemble": ("mlp", True),
    "random + variations": (None, True),
    "random search": (None, False),
}
"""The surrogate of each method, and whether every second trial is a variation of the best."""

# Members of the pool (the first part is random), and the searches that are replayed on them.
_POOL, _PART, _SEEDS, _TRIALS, _INITIAL = 256, 64, 50, 30, 10
_QUICK_POOL, _QUICK_PART, _QUICK_SEEDS, _QUICK_TRIALS, _QUICK_INITIAL = 8, 4, 1, 5, 3

# 135 entities are reached in few layers, and wide predictors take minutes on a CPU.
_SMALL: dict[str, Dimension] = {
    "predictor.num_layers": Range(2, 4),
    "predictor.dim": Choice((16, 32)),
}
_TINY: dict[str, Dimension] = {
    "predictor.num_layers": Range(1, 3),
    "predictor.dim": Choice((4, 8, 16)),
}
_PHASE = "pool"


def _plan(bench: Workbench) -> Iterator[Row]:
    size, part = _sizes(bench)
    for name in bench.data_names("umls"):
        digest = _digest(bench, name)
        for first in range(0, size, part):
            key: Figures = {"data": name, "method": f"pool, {first + 1} to {first + part}"}
            work = partial(_trained, bench, name, first, first + part)
            yield Row(key, work, config=digest)
        for method in _METHODS:
            key = {"data": name, "method": method, "members": size}
            yield Row(key, partial(_replayed, bench, name, method), config=digest)


def _sizes(bench: Workbench) -> tuple[int, int]:
    """Members of the pool, and of a part of it."""
    return (_QUICK_POOL, _QUICK_PART) if bench.quick else (_POOL, _PART)


def _trained(bench: Workbench, name: str, first: int, last: int) -> Figures:
    """Train a part of the pool. Returns every configuration with its validation MRR."""
    trials = _pool(bench, name, last)[first:]
    values = [trial.value or 0.0 for trial in trials]
    return {
        "trials": len(trials),
        "mean": fmean(values),
        "lowest": min(values),
        "highest": max(values),
        "failed": sum(trial.status == "failed" for trial in trials),
        "seconds": sum(trial.seconds or 0.0 for trial in trials),
        "configurations": [{**trial.values, "mrr": trial.value} for trial in trials],
    }


def _pool(bench: Workbench, name: str, size: int) -> list[Trial]:
    """The first trials of the pool; finished ones are not trained again."""
    require("smac", "search", "the search")
    from oneshot.search.replay import pool_member

    data, settings = bench.dataset(name), _settings(bench, name)
    place = bench.out / "search"
    store = Store(place / f"{file_name(data.name)}-{_digest(bench, name)}", create=True)

    _, roots = _sizes(bench)

    def next_one(_: int, trials: list[Trial]) -> Proposal:
        members = [trial.values for trial in trials]
        return pool_member(settings.space, members, roots, settings.seed)

    try:
        provide(data)
        with open_workers(1, None) as crew:
            timer = Timer(store, None)
            session = Session(
                data,
                place,
                settings,
                Effort(size),
                bench.device,
                store,
                crew,
                timer,
                observer=bench.search_observer,
                messages=bench.messages,
            )
            return run_trials(session, _PHASE, f"pool of {name}", next_one)[:size]
    except OutOfTime as error:  # there is no limit here
        raise OneshotError("the search was stopped") from error
    finally:
        store.close()


def _digest(bench: Workbench, name: str) -> str:
    """The identity of a pool: trials of other facts or settings must not be mixed in."""
    settings = json.dumps(_settings(bench, name).as_table(), sort_keys=True)
    told = f"{facts_digest(bench.dataset(name))}\n{settings}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _settings(bench: Workbench, name: str) -> SearchSettings:
    """Short trials without early stopping, so that each result is independent of the others."""
    small = name == "umls"
    # With the default of a tenth, four of five answers of umls would not be sampled.
    base = bench.config(name, {"sampler.entity_ratio": 0.2} if small else None)
    dimensions = _TINY if bench.quick else _SMALL if small else {}
    return SearchSettings(
        queries=64 if bench.quick else 2048 if small else 4096,
        validations=1,
        valid_queries=40 if bench.quick else 200 if small else 1000,
        seconds=0.0 if bench.quick or small else 30.0,
        keep=1.0,
        seed=bench.seed,
        base=base,
        space=phase_1_space(dimensions, {}),
    )


def _replayed(bench: Workbench, name: str, method: str) -> Figures:
    """Searches on the pool, one per seed."""
    size, _ = _sizes(bench)
    trials = _pool(bench, name, size)
    from oneshot.search.replay import Arm, best_so_far, make_pool, rank_correlation, replay

    space = _settings(bench, name).space
    pool = make_pool(space, [t.values for t in trials], [t.value for t in trials])
    surrogate, varies = _METHODS[method]
    seeds = range(_QUICK_SEEDS if bench.quick else _SEEDS)
    count, initial = (_QUICK_TRIALS, _QUICK_INITIAL) if bench.quick else (_TRIALS, _INITIAL)
    started = time.perf_counter()
    curves = np.array(
        [best_so_far(pool, replay(pool, Arm(surrogate, varies), s, count, initial)) for s in seeds]
    )
    fits = [] if surrogate is None else [rank_correlation(pool, surrogate, s, count) for s in seeds]
    bests = curves[:, -1]
    low, high = np.quantile(curves, (0.25, 0.75), axis=0)
    ranks = [int((pool.values > best).sum()) + 1 for best in bests]
    return {
        "seeds": len(seeds),
        "trials": count,
        "initial": initial,
        "mean": float(bests.mean()),
        "lowest": float(bests.min()),
        "highest": float(bests.max()),
        "rank": fmean(ranks),
        "correlation": fmean(fits) if fits else None,
        "seconds": time.perf_counter() - started,
        "bests": bests.tolist(),
        "correlations": fits,
        "curve": curves.mean(0).tolist(),
        "curve_low": low.tolist(),
        "curve_high": high.tolist(),
    }


def _finding(rows: Sequence[Figures]) -> str:
    found = {row["method"]: row for row in rows if row.get("bests")}
    forest = found.get(FOREST)
    if forest is None or len(found) < 2:
        return ""
    shown = ", ".join(f"{method} {row['mean']:.3f}" for method, row in found.items())
    seeds = "one seed" if forest["seeds"] == 1 else f"{forest['seeds']} seeds"
    text = [
        f"Best validation MRR after {forest['trials']} trials on {forest['members']} known "
        f"configurations, mean over {seeds}: {shown}."
    ]
    if forest["seeds"] == 1:
        return f"{text[0]} One seed decides nothing."
    for figure, what in (("bests", "best MRR"), ("correlations", "rank correlation")):
        compared = [
            _compared(method, forest[figure], row[figure])
            for method, row in found.items()
            if method != FOREST and row[figure]
        ]
        text.append(f"Difference of the {FOREST} in {what} to {', '.join(compared)}.")
    return " ".join(text)


def _compared(method: str, forest: Sequence[float], others: Sequence[float]) -> str:
    """Better or worse only if the mean difference is significant over the seeds.

    Searches with the same seed start equally, so paired differences are used, with the 95%
    interval of their mean.
    """
    differences = [mine - other for mine, other in zip(forest, others, strict=True)]
    mean = fmean(differences)
    margin = 1.96 * stdev(differences) / sqrt(len(differences))
    verdict = "within the spread of seeds"
    if abs(mean) > margin:
        verdict = "better" if mean > 0 else "worse"
    return f"{method} {mean:+.4f} ± {margin:.4f} ({verdict})"


def _draw(rows: Sequence[Figures], path: Path) -> None:
    points = [
        {
            "data": row["data"],
            "method": row["method"],
            "trial": number,
            "mrr": mean,
            "low": low,
            "high": high,
        }
        for row in rows
        if row.get("bests")
        for number, (mean, low, high) in enumerate(
            zip(row["curve"], row["curve_low"], row["curve_high"], strict=True), 1
        )
    ]
    draw_lines(
        points,
        path,
        x="trial",
        lines="method",
        panels="data",
        label="trials",
        y_label="best validation MRR so far",
        band=("low", "high"),
    )


SEARCH = Table(
    "search",
    "The best configuration so far, by what proposes the next one",
    (
        Column("data", "data"),
        Column("proposed by", "method"),
        Column("seeds", "seeds"),
        Column("trials", "trials"),
        Column("valid MRR, mean", "mean", ".3f"),
        Column("lowest", "lowest", ".3f"),
        Column("highest", "highest", ".3f"),
        Column("rank of the best", "rank", ".1f"),
        Column("rank correlation", "correlation", ".3f"),
        Column("failed", "failed"),
        Column("s", "seconds", ",.0f"),
    ),
    _plan,
    by_data(_finding),
    _draw,
    note=(
        "The rows of the pool are its configurations, each trained once; those of the first are "
        "random, the others variations of earlier ones. The other rows are searches on the pool, "
        "which look their trials up in it: the mean, lowest and highest best MRR over the seeds. "
        "With the same seed all begin with the same random trials. Then every second trial is a "
        "variation of one of the three best, the others are where the surrogate expects most "
        "improvement; without a surrogate both are drawn at random. The rank is that of the best "
        "trial in the whole pool. The rank correlation is that of predictions for the rest of the "
        "pool, by a surrogate that knows as many members as a search has trials. The plot shows "
        "the mean and the interquartile range of the seeds."
    ),
)
