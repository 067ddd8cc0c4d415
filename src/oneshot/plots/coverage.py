"""Plot of coverage against budget, one line per sampler (as in the paper's figure)."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from oneshot.errors import InputError, require
from oneshot.evaluation.coverage import Coverage, budget_label
from oneshot.plots.palette import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE
from oneshot.system.files import replacing

PICTURE_FORMATS = (".png", ".svg", ".pdf")

# Colours and markers differ, so that the plot is also readable in greyscale.
_STYLES = {
    "ppr": (GREEN, "o", "-"),
    "bfs": (BLUE, "s", "--"),
    "random_walk": (PURPLE, "^", "-."),
    "pagerank": (ORANGE, "D", ":"),
    "random": (NEUTRAL, "x", (0, (1, 1))),
}


def check_plot(path: Path) -> None:
    """Raise if no plot can be written to this path; called before the long work starts."""
    if path.suffix.lower() not in PICTURE_FORMATS:
        raise InputError(f"{path}: unsupported suffix for a plot; use {', '.join(PICTURE_FORMATS)}")
    if path.is_dir():
        raise InputError(f"{path} is a directory")
    if any(parent.is_file() for parent in path.parents):
        raise InputError(f"{path}: its parent is not a directory")
    require("matplotlib", "plot", "drawing a plot")


def plot_coverage(rows: Sequence[Coverage], title: str, path: Path) -> None:
    """Plot coverage against budget for several samplers."""
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for row in rows:
        budgets = sorted(row.coverage)
        colour, marker, line = _STYLES.get(row.sampler, ("black", ".", "-"))
        axes.plot(
            budgets,
            [row.coverage[budget] for budget in budgets],
            color=colour,
            marker=marker,
            linestyle=line,
            label=row.sampler.replace("_", " "),
        )
    budgets = sorted({budget for row in rows for budget in row.coverage})
    counts = bool(budgets) and budgets[-1] > 1
    if len(budgets) > 1 and budgets[-1] / budgets[0] >= 8:
        axes.set_xscale("log")
        axes.set_xticks(budgets, [budget_label(budget) for budget in budgets])
        axes.minorticks_off()
    axes.set_xlabel("entities in the subgraph" if counts else "share of entities in the subgraph")
    axes.set_ylabel("coverage")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    axes.set_title(title)
    figure.legend(loc="outside right upper", frameon=False)  # beside the curves, not on them
    with replacing(path) as temporary, warnings.catch_warnings():
        # A missing glyph is drawn as a box, without a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())
