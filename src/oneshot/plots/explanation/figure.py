"""Plot of an explanation: its paths, their neighbourhood, and statistics of the subgraph.

As in the paper's case study, two small charts show the distributions of the degrees of the sampled
entities and of their distances from the query entity.
"""

import math
from collections.abc import Callable
from pathlib import Path

from oneshot.plots.explanation.graph import draw_neighbourhood, relation_styles
from oneshot.plots.explanation.layout import lay_out
from oneshot.plots.palette import FAINT, GREY, INK, SOFT
from oneshot.plots.shapes import (
    Box,
    Curve,
    Drawing,
    Shape,
    Text,
    as_svg,
    clean,
    line,
    save_png,
    shortened,
    text_width,
)
from oneshot.reasoner.explanation import Explanation
from oneshot.reasoner.explanation import Path as ExplainedPath
from oneshot.reasoner.paths import hops
from oneshot.system.files import write_text

_MARGIN, _GAP, _LEAST_WIDTH = 36.0, 190.0, 980.0
_TOP = 104.0  # top of the graph, below the title
_CHART = 120.0
_CHART_HEIGHT = _CHART + 50  # with its title and the labels below it
_PAGE_TOP, _PAGE_CHART = 28.0, 400.0


def svg(explanation: Explanation, path: Path | None = None) -> str:
    """The plot as SVG; written to a file if a path is given."""
    text = as_svg(draw(explanation))
    if path is not None:
        write_text(path, text)
    return text


def html(explanation: Explanation, path: Path | None = None) -> str:
    """The plot in a self-contained HTML page; written to a file if a path is given."""
    drawing = draw(explanation)
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{clean(drawing.description)}</title>\n<style>\n"
        "body { margin: 0; background: #eef1f4 }\n"
        "svg { display: block; margin: 24px auto; max-width: 96vw; height: auto; "
        "box-shadow: 0 1px 6px #0003 }\n</style>\n</head>\n<body>\n"
        f"{as_svg(drawing)}</body>\n</html>\n"
    )
    if path is not None:
        write_text(path, text)
    return text


def png(explanation: Explanation, path: Path) -> None:
    """Write the plot as PNG with matplotlib."""
    save_png(draw(explanation), path)


def page_svg(
    explanation: Explanation, label: Callable[[str], str] = lambda name: name
) -> tuple[str, list[str]]:
    """The paths with their neighbourhood, and each chart, as SVGs for a page.

    `label`: the text that is drawn for an entity or a relation.
    """
    graph, bottom, width = _graph(explanation, _PAGE_TOP, label)
    legend, bottom = _legend(explanation, bottom, width, label)
    charts = [
        Drawing(
            _PAGE_CHART,
            24 + _CHART_HEIGHT,
            f"{what} of the entities in the subgraph of {label(explanation.entity)}",
            bars,
        )
        for what, bars in (
            ("Degrees", _degree_bars(explanation, 10, 24, _PAGE_CHART - 20)),
            ("Distances", _distance_bars(explanation, 10, 24, _PAGE_CHART - 20, label)),
        )
    ]
    drawing = Drawing(width, bottom, _description(explanation, label), graph + legend)
    return as_svg(drawing, embedded=True), [as_svg(chart, embedded=True) for chart in charts]


def draw(explanation: Explanation) -> Drawing:
    """The complete plot, from the title to the charts."""
    shapes, top, width = _graph(explanation, _TOP)
    shapes = _title(explanation, width) + shapes
    for part in (_legend, _list_of_paths, _charts):
        drawn, top = part(explanation, top, width)
        shapes += drawn
    return Drawing(width, top, _description(explanation), shapes)


def _description(explanation: Explanation, label: Callable[[str], str] = lambda name: name) -> str:
    names = (explanation.answer, explanation.entity, explanation.relation)
    answer, entity, relation = map(label, names)
    return f"Why {answer} answers ({entity}, {relation}, ?)"


def _graph(
    explanation: Explanation, top: float, label: Callable[[str], str] = lambda name: name
) -> tuple[list[Shape], float, float]:
    """Entities and edges from `top` down; the y below them, and the width of the drawing."""
    layout = lay_out(explanation)
    gap = max(_GAP, (_LEAST_WIDTH - 2 * _MARGIN) / (layout.columns + 0.2))
    places = {
        place: (_MARGIN + gap * (column + 0.5), top + layout.height[place])
        for place, column in layout.column.items()
    }
    shapes = draw_neighbourhood(explanation, layout, places, gap, label)
    return shapes, top + layout.total_height + 56, 2 * _MARGIN + gap * layout.columns


def _title(explanation: Explanation, width: float) -> list[Shape]:
    room = width - 2 * _MARGIN
    half = room / 2
    title = (
        f"({shortened(explanation.entity, 20, half / 2, True)}, "
        f"{shortened(explanation.relation, 20, half / 2, True)}, ?)"
        f"  →  {shortened(explanation.answer, 20, half / 1.3, True)}"
    )
    batch = explanation.batch
    known = ", a known fact" if explanation.known else ""
    below = (
        f"score {explanation.score:z.2f}{known} · subgraph of {batch.num_entities:,} entities and "
        f"{batch.num_edges - batch.num_entities:,} edges"
    )
    return [
        Text((_MARGIN, 40), title, 20, INK, bold=True),
        Text((_MARGIN, 62), below, 13, SOFT),
    ]


Part = tuple[list[Shape], float]  # shapes, and the y below them


def _legend(
    explanation: Explanation,
    top: float,
    width: float,
    label: Callable[[str], str] = lambda name: name,
) -> Part:
    """The legend: colours of the relations on paths, in rows."""
    entries = [
        (label(explanation.graph.relations[relation]), style.colour, 4.0, style.dashed)
        for relation, style in relation_styles(explanation).items()
    ]
    shapes: list[Shape] = []
    x, y = _MARGIN, top
    for name, colour, thick, dashed in [*entries, ("other facts", GREY, 1.0, False)]:
        text = shortened(name, 12, 220)
        needed = 40 + text_width(text, 12) + 22
        if x + needed > width - _MARGIN and x > _MARGIN:
            x, y = _MARGIN, y + 20
        start, end = (x, y), (x + 30, y)
        shapes.append(Curve((start, start, end, end), colour, thick, dashed, name))
        shapes.append(Text((x + 38, y + 4), text, 12, SOFT, title=name))
        x += needed
    return shapes, y + 40


def _list_of_paths(explanation: Explanation, top: float, width: float) -> Part:
    """The paths as text, with weights and scores."""
    right = width - _MARGIN
    if not explanation.reachable:
        text = shortened(explanation.message, 13, right - _MARGIN)
        return [Text((_MARGIN, top), text, 13, INK, title=explanation.message)], top + 36
    shapes: list[Shape] = [
        Text((_MARGIN, top), "paths", 12, SOFT, bold=True),
        Text((right - 112, top), "weight", 12, SOFT, "end", True),
        Text((right, top), "score without", 12, SOFT, "end", True),
        line((_MARGIN, top + 7), (right, top + 7), FAINT, 1),
    ]
    y = top + 7
    for number, path in enumerate(explanation.paths, 1):
        y += 20
        bold = number == 1
        text = _path_line(f"{number}.  ", path, right - 164 - _MARGIN, bold)  # beside the weight
        shapes += [
            Text((_MARGIN, y), text, 12, INK, bold=bold, title=str(path)),
            Text((right - 112, y), f"{path.weight:z.2f}", 12, INK, "end", bold),
            Text((right, y), f"{path.score_without:z.2f}", 12, INK, "end", bold),
        ]
    return shapes, y + 44


def _path_line(number: str, path: ExplainedPath, width: float, bold: bool) -> str:
    """A path on one line of at most `width`: long names are truncated first, then relations."""
    names = [path.steps[0].source, *(step.target for step in path.steps)]
    widths = [text_width(name, 12, bold) for name in names]
    text = ""
    for longest in (130, 90, 60, 40):
        relations = [f" —{shortened(step.relation, 12, longest, bold)}→ " for step in path.steps]
        room = width - text_width(number + "".join(relations) + path.mark, 12, bold)
        # The largest limit with which all names fit.
        fits = (n for n in range(500, 30, -10) if sum(min(w, n) for w in widths) <= room)
        most = next(fits, 30)
        short = [shortened(name, 12, most, bold) for name in names]
        way = short[0] + "".join(r + n for r, n in zip(relations, short[1:], strict=True))
        text = f"{number}{way}{path.mark}"
        if most > 60 or sum(widths) <= room:
            break
    return shortened(text, 12, width, bold)


def _charts(explanation: Explanation, top: float, width: float) -> Part:
    """Charts of the degrees of the sampled entities and their distances from the query entity."""
    room = (width - 2 * _MARGIN - 60) / 2
    return [
        *_degree_bars(explanation, _MARGIN, top, room),
        *_distance_bars(explanation, _MARGIN + room + 60, top, room),
    ], top + _CHART_HEIGHT + 16


def _degree_bars(explanation: Explanation, left: float, top: float, room: float) -> list[Shape]:
    degrees: dict[str, int] = {}
    for degree in sorted(explanation.batch.degree.tolist()):
        low = 1 << (degree.bit_length() - 1) if degree else 0  # powers of two: a log scale
        label = str(low) if low < 2 else f"{low}–{2 * low - 1}"
        degrees[label] = degrees.get(label, 0) + 1
    if any(text_width(label, 11) > room / len(degrees) - 6 for label in degrees):
        degrees = {_from(label): count for label, count in degrees.items()}
    title = "degree of the sampled entities (log scales)"
    return _bars(title, degrees, left, top, room, log=True)


def _distance_bars(
    explanation: Explanation,
    left: float,
    top: float,
    room: float,
    label: Callable[[str], str] = lambda name: name,
) -> list[Shape]:
    batch = explanation.batch
    distances: dict[str, int] = {}
    for distance in sorted(hops(batch, explanation.source).tolist()):
        text = "no path" if distance == batch.num_entities else str(min(distance, 9))
        text = "9+" if text == "9" else text
        distances[text] = distances.get(text, 0) + 1
    title = f"distance from {shortened(label(explanation.entity), 12, room / 2, True)}"
    return _bars(title, distances, left, top, room, log=False)


def _from(label: str) -> str:
    """A range of degrees by its lower end: `64–127` as `64+`, `2048–4095` as `2k+`."""
    low, _, high = label.partition("–")
    if not high:
        return label
    return f"{low}+" if int(low) < 1024 else f"{int(low) // 1024}k+"


def _short(count: int, size: float, width: float) -> str:
    """A count, rounded to thousands if it is too wide."""
    text = f"{count:,}"
    return text if text_width(text, size) <= width else f"{count / 1000:.0f}k"


def _bars(
    title: str, counts: dict[str, int], left: float, top: float, width: float, log: bool
) -> list[Shape]:
    """A bar chart with one bar per label and the count above it."""
    floor = top + 22 + _CHART
    pitch = min(width / len(counts), 92.0)
    bar = pitch * 0.72
    size = 11 if pitch >= 36 else 8
    largest = max(counts.values())
    shapes: list[Shape] = [Text((left, top), title, 12, SOFT, bold=True)]
    for number, (label, count) in enumerate(counts.items()):
        share = math.log1p(count) / math.log1p(largest) if log else count / largest
        height = max(share * (_CHART - 24), 1.5)
        x = left + pitch * number + (pitch - bar) / 2
        middle = x + bar / 2
        what = f"{count:,} entities"
        shapes += [
            Box((x, floor - height), bar, height, "#7fa6c9", title=what),
            Text((middle, floor - height - 5), _short(count, size, pitch), size, INK, "middle"),
            Text((middle, floor + 15), label, size, SOFT, "middle"),
        ]
    return [*shapes, line((left, floor), (left + pitch * len(counts), floor), GREY, 1)]
