"""Plot of a search: the best value over time against random search, and importances."""

from pathlib import Path
from statistics import fmean, median
from typing import Any

from oneshot.plots.coverage import check_plot
from oneshot.plots.palette import GREEN, NEUTRAL, ORANGE
from oneshot.ranking import METRICS
from oneshot.search.store import Trial
from oneshot.search.summary import Summary
from oneshot.system.files import replacing

_OURS, _RANDOM, _STOPPED = GREEN, NEUTRAL, ORANGE
_MOST_BARS = 12


def plot_search(summary: Summary, path: Path) -> None:
    """Plot the progress of a search and the importance of its dimensions."""
    check_plot(path)
    from matplotlib.figure import Figure

    panels = 3 if len(summary.sampler_trials) > 1 else 2
    figure = Figure(figsize=(5.5 * panels, 4.5), layout="constrained")
    axes = figure.subplots(1, panels)
    _course(axes[0], summary)
    _bars(axes[1], summary)
    if panels == 3:
        _sizes(axes[2], summary)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())


def _course(axes: Any, summary: Summary) -> None:
    """Plot the best value so far over the time of the search."""
    finished = _in_order(summary.trials)
    times, best = _best_so_far(finished)
    for status, marker, colour in (("done", "o", _OURS), ("stopped", "x", _STOPPED)):
        chosen = [t for t in finished if t.status == status and t.value is not None]
        label = "trial" if status == "done" else "stopped trial"
        axes.scatter(
            [t.at for t in chosen], [t.value for t in chosen], s=14, marker=marker, color=colour,
            alpha=0.6, label=label,
        )  # fmt: skip
    axes.step(times, best, where="post", color=_OURS, label="search, best so far")
    curves = [_best_so_far(_in_order(trials)) for trials in summary.random.values()]
    curves = [curve for curve in curves if curve[0]]
    if curves:
        count = min(len(curve[0]) for curve in curves)
        middle = [median(curve[1][i] for curve in curves) for i in range(count)]
        low = [min(curve[1][i] for curve in curves) for i in range(count)]
        high = [max(curve[1][i] for curve in curves) for i in range(count)]
        at = [fmean(curve[0][i] for curve in curves) for i in range(count)]
        axes.step(
            at, middle, where="post", color=_RANDOM, linestyle="--",
            label=f"random search, median of {len(curves)}" if len(curves) > 1 else "random search",
        )  # fmt: skip
        axes.fill_between(at, low, high, step="post", color=_RANDOM, alpha=0.2)
    elif summary.predicted_random and times:
        step = times[-1] / len(summary.predicted_random)
        at = [step * (number + 1) for number in range(len(summary.predicted_random))]
        axes.plot(
            at, summary.predicted_random, color=_RANDOM, linestyle=":",
            label="random search (predicted by the forest)",
        )  # fmt: skip
    axes.set_xlabel("search time (s)")
    axes.set_ylabel(f"{_named(summary)} on the validation split")
    axes.set_title(f"Phase 1 on {summary.data}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="best", framealpha=0.85)


def _bars(axes: Any, summary: Summary) -> None:
    rows = list(summary.importance.items())[:_MOST_BARS][::-1]
    axes.barh([name.partition(".")[2] for name, _ in rows], [v for _, v in rows], color=_OURS)
    axes.set_xlabel("share of variance (random forest)")
    axes.set_title("Importance of dimensions")


def _sizes(axes: Any, summary: Summary) -> None:
    """Plot target against subgraph size of the trials of phase 2, and the choice."""
    done = [t for t in summary.sampler_trials if t.value is not None]
    axes.scatter(
        [t.about["entities"] for t in done], [t.value for t in done], s=16, color=_RANDOM,
        label="same setting for all relations",
    )  # fmt: skip
    if summary.final is not None:
        for name, marker, colour in (("before", "s", _STOPPED), ("after", "*", _OURS)):
            point = summary.final[name]
            label = "training sampler" if name == "before" else "chosen per relation"
            axes.scatter(
                [point["entities"]], [point["value"]], s=90, marker=marker, color=colour,
                label=label,
            )  # fmt: skip
    axes.set_xlabel("entities per query")
    axes.set_ylabel(f"{_named(summary)} on validation")
    axes.set_title("Phase 2: smaller subgraphs")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="best", framealpha=0.85)


def _named(summary: Summary) -> str:
    return METRICS[summary.settings.target].title


def _in_order(trials: list[Trial]) -> list[Trial]:
    return sorted((t for t in trials if t.is_finished), key=lambda trial: trial.at)


def _best_so_far(trials: list[Trial]) -> tuple[list[float], list[float]]:
    """The end times of trials, and the best value until then."""
    times, best = [], []
    top = None
    for trial in trials:
        if trial.value is not None:
            top = trial.value if top is None else max(top, trial.value)
        if top is not None:
            times.append(trial.at)
            best.append(top)
    return times, best
