"""Plots of the tables: lines and heat maps."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oneshot.experiments.tables.table import Figures
from oneshot.plots.coverage import check_plot
from oneshot.plots.palette import SERIES
from oneshot.system.files import replacing

_COLOURS = (*SERIES[:5], SERIES[-1])  # as many as markers
_MARKERS = "osD^vx"


def draw_lines(
    rows: Sequence[Figures],
    path: Path,
    *,
    x: str,
    lines: str,
    label: str,
    y: str = "mrr",
    y_label: str = "test MRR",
    panels: str | None = None,
    band: tuple[str, str] | None = None,
) -> None:
    """Plot the value `y` of the rows against `x`, one line for each value of `lines`.

    `panels`: the column with one panel for each of its values. `band`: the lower and upper values
    of the shaded area of a line.
    """
    figure = _figure(path)
    # Without rows, an empty panel.
    parts = list(dict.fromkeys(row[panels] if panels else "" for row in rows)) or [""]
    figure.set_size_inches(max(7.0, 3.5 * len(parts)), 4.5)
    names = list(dict.fromkeys(row[lines] for row in rows))
    grid = figure.subplots(1, len(parts), squeeze=False, sharey=True)[0]
    for axes, part in zip(grid, parts, strict=True):
        for number, name in enumerate(names):
            mine = [
                row
                for row in rows
                if row[lines] == name
                and row.get(y) is not None
                and (panels is None or row[panels] == part)
            ]
            mine.sort(key=lambda row: (row[x], row[y]))
            if not mine:
                continue
            places, colour = [row[x] for row in mine], _COLOURS[number % len(_COLOURS)]
            axes.plot(
                places,
                [row[y] for row in mine],
                color=colour,
                marker=_MARKERS[number % len(_MARKERS)],
                label=_short(name),
            )
            if band is not None:
                low, high = ([row[edge] for row in mine] for edge in band)
                axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        only = names[0] if len(names) == 1 else ""
        axes.set_title(_short(part if panels else only), parse_math=False)
    grid[0].set_ylabel(y_label)
    # From zero: a truncated axis would exaggerate small differences.
    highest = max((row[y] for row in rows if row.get(y) is not None), default=0)
    grid[0].set_ylim(0, 1.08 * highest or 1)
    if len(names) > 1:
        legend = figure.legend(
            *grid[0].get_legend_handles_labels(), loc="outside right upper", frameon=False
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    _save(figure, path)


def draw_heat_map(
    rows: Sequence[Figures],
    path: Path,
    *,
    x: str,
    y: str,
    label: str,
    labels: tuple[str, str],
    value: str = "mrr",
) -> None:
    """Heat map of the value `value` of the rows by `x` and `y`, one panel per data set."""
    figure = _figure(path)
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure.set_size_inches(max(7.0, 6.0 * len(names)), 4.5)
    grid = figure.subplots(1, max(len(names), 1), squeeze=False)[0]
    for axes, name in zip(grid, names, strict=True):
        mine = {(row[x], row[y]): row.get(value) for row in rows if row["data"] == name}
        columns, lines = (sorted({key[axis] for key in mine}) for axis in (0, 1))
        table = [[mine.get((c, line)) for c in columns] for line in lines]
        numbers = [[float("nan") if cell is None else cell for cell in row] for row in table]
        image = axes.imshow(numbers, origin="lower", aspect="auto", cmap="viridis")
        shades = image.norm
        for down, row in enumerate(table):
            for across, cell in enumerate(row):
                if cell is not None:
                    ink = "white" if shades(cell) < 0.6 else "black"
                    axes.text(across, down, f"{cell:.3f}", ha="center", va="center", color=ink)
        axes.set_xticks(range(len(columns)), [f"{column:g}" for column in columns])
        axes.set_yticks(range(len(lines)), [f"{line:g}" for line in lines])
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.set_title(_short(name), parse_math=False)
        figure.colorbar(image, ax=axes, label=label)
    _save(figure, path)


def _short(name: Any) -> str:
    """A name that is short enough for the plot; of a path, the end."""
    text = str(name)
    return text if len(text) <= 30 else f"…{text[-29:]}"


def _figure(path: Path) -> Any:
    check_plot(path)
    from matplotlib.figure import Figure

    return Figure(figsize=(7, 4.5), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())
