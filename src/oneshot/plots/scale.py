"""Plot of cost against graph size, from the result of `oneshot bench scale`."""

from pathlib import Path
from typing import Any

from oneshot.plots.coverage import check_plot
from oneshot.plots.palette import GREEN, ORANGE
from oneshot.system.files import replacing

_PANELS = (
    ("time per query (ms)", ("predict_ms", "sample_ms", "whole_graph_ms")),
    ("build time (s)", ("build_seconds",)),
    ("memory (GB)", ("build_peak_gb", "resident_gb")),
)
_LABELS = {
    "predict_ms": "answer",
    "sample_ms": "subgraph",
    "whole_graph_ms": "subgraph, PPR on the whole graph",
    "build_seconds": "build",
    "build_peak_gb": "build (peak)",
    "resident_gb": "prediction (resident)",
}
# Colours, markers and line styles differ, so that the plot is also readable in greyscale.
_COLOURS = {"family": GREEN, "power-law": ORANGE}
_STYLES = (("o", "-"), ("s", "--"), ("^", ":"))


def plot_scale(result: dict[str, Any], path: Path) -> None:
    """Plot times and memory against the number of facts."""
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        for graph in dict.fromkeys(row["graph"] for row in result["rows"]):
            for key, (marker, line) in zip(keys, _STYLES, strict=False):
                points = [
                    (row["facts"], row[key])
                    for row in result["rows"]
                    if row["graph"] == graph and row[key]
                ]
                exponent = result["growth"][graph].get(key)
                grows = "" if exponent is None else f" (∝ facts^{exponent:.2f})"
                axes.plot(
                    *zip(*points, strict=True) if points else ((), ()),
                    color=_COLOURS.get(graph, "black"),
                    marker=marker,
                    linestyle=line,
                    label=f"{graph}: {_LABELS[key]}{grows}",
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel("facts")
        axes.grid(alpha=0.3)
        # Below the curves, not on them.
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
        axes.legend(fontsize="x-small", frameon=False, **below)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())
