"""Shapes: the elements of drawings, written as SVG or drawn by matplotlib.

Both backends draw the same list of shapes, in order. Lengths are in pixels; y points down.
"""

import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from oneshot.errors import require
from oneshot.system.files import replacing

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

_FONT = "'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_DPI = 100  # pixels per inch in matplotlib, before the drawing is enlarged
_ENLARGE = 2
# Looks that many shapes share: as attributes in a page with its own styles, otherwise as classes.
_LINE = (' fill="none"', 'fill="none" stroke="#000" stroke-opacity="0" stroke-width="9"')
_HALO = ' stroke="#ffffff" stroke-width="6" stroke-linejoin="round" paint-order="stroke"'
_STYLE = (
    ".line, .thick { fill: none } .thick { stroke: #000; stroke-opacity: 0; stroke-width: 9 } "
    ".halo { stroke: #fff; stroke-width: 6; stroke-linejoin: round; paint-order: stroke } "
    "g:hover > .line { stroke-opacity: 0.55 }"
)
# Characters that XML 1.0 does not allow even when escaped; a name may contain them.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Curve:
    """A cubic Bézier curve: start, two control points, end."""

    points: tuple[Point, Point, Point, Point]
    colour: str
    width: float
    dashed: bool = False
    title: str = ""


@dataclass(frozen=True)
class Polygon:
    points: tuple[Point, ...]
    fill: str
    title: str = ""


@dataclass(frozen=True)
class Circle:
    """`entity`: the name of its entity, which a page can make a link."""

    centre: Point
    radius: float
    fill: str
    stroke: str
    title: str = ""
    entity: str = ""


@dataclass(frozen=True)
class Box:
    """A rectangle, given by its upper left corner, with rounded corners if `radius` is not 0."""

    corner: Point
    width: float
    height: float
    fill: str
    radius: float = 0
    title: str = ""
    entity: str = ""


@dataclass(frozen=True)
class Text:
    """One line of text; `place` is on its baseline. `halo` separates it from shapes below it."""

    place: Point
    text: str
    size: float
    colour: str = "#222222"
    anchor: Anchor = "start"
    bold: bool = False
    halo: bool = False
    title: str = ""
    entity: str = ""


Shape = Curve | Polygon | Circle | Box | Text


@dataclass(frozen=True)
class Drawing:
    """Shapes on a white background, and a description for screen readers."""

    width: float
    height: float
    description: str
    shapes: Sequence[Shape]


def line(start: Point, end: Point, colour: str, width: float, title: str = "") -> Curve:
    """A straight line."""
    return Curve((start, start, end, end), colour, width, title=title)


def text_width(text: str, size: float, bold: bool = False) -> float:
    """The approximate width of a line of text, rather too large than too small."""
    widths = (
        0.0
        if unicodedata.category(letter) in ("Mn", "Me", "Cf")
        else 1.05
        if unicodedata.east_asian_width(letter) in "WF"
        else 0.33
        if letter in "iljtfrI.,:;|' !()[]"
        else 0.88
        if letter in "mwMW@%—→…"
        else 0.68
        if letter.isupper()
        else 0.58
        for letter in text
    )
    return sum(widths) * size * (1.07 if bold else 1.0)


def shortened(text: str, size: float, width: float, bold: bool = False) -> str:
    """The text on one line, truncated with … if it is wider than `width`."""
    text = " ".join(text.split())
    if text_width(text, size, bold) <= width:
        return text
    left = width - text_width("…", size, bold)
    end = 0
    while end < len(text) and text_width(text[: end + 1], size, bold) <= left:
        end += 1
    return text[:end].rstrip() + "…"


def as_svg(drawing: Drawing, embedded: bool = False) -> str:
    """The drawing as an SVG document; `embedded`: for a page with its own styles."""
    size = f"{drawing.width:g} {drawing.height:g}"
    if embedded:
        body = "\n".join(_svg(shape, leads_on=True) for shape in drawing.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
            f'width="{drawing.width:g}" height="{drawing.height:g}" role="group" '
            f'aria-label="{clean(drawing.description)}" font-family="{_FONT}">\n{body}\n</svg>\n'
        )
    body = "\n".join(_svg(shape) for shape in drawing.shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        f'width="{drawing.width:g}" height="{drawing.height:g}" role="img" '
        f'font-family="{_FONT}">\n<title>{clean(drawing.description)}</title>\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def clean(text: str) -> str:
    """The text, escaped for XML."""
    return escape(_NOT_XML.sub("\ufffd", text), quote=True)


def _svg(shape: Shape, leads_on: bool = False) -> str:
    title = f"<title>{clean(shape.title)}</title>" if shape.title else ""
    match shape:
        case Curve():
            way = _way(shape.points)
            dash = ' stroke-dasharray="7 4"' if shape.dashed else ""
            thin, thick = _LINE if leads_on else ("", 'class="thick"')
            drawn = (
                f'<path class="line" d="{way}"{thin} stroke="{shape.colour}" '
                f'stroke-width="{shape.width:g}"{dash}/>'
            )
            if title:  # an invisible thick line makes it easier to hover over
                drawn += f'<path d="{way}" {thick}/>'
        case Polygon():
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in shape.points)
            drawn = f'<polygon points="{points}" fill="{shape.fill}"/>'
        case Circle():
            x, y = shape.centre
            drawn = (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{shape.radius:g}" fill="{shape.fill}" '
                f'stroke="{shape.stroke}" stroke-width="2"/>'
            )
        case Box():
            x, y = shape.corner
            drawn = (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{shape.width:.1f}" '
                f'height="{shape.height:.1f}" rx="{shape.radius:g}" fill="{shape.fill}"/>'
            )
        case Text():
            x, y = shape.place
            look = ' font-weight="bold"' if shape.bold else ""
            if shape.halo:
                look += _HALO if leads_on else ' class="halo"'
            drawn = (
                f'<text x="{x:.1f}" y="{y:.1f}" font-size="{shape.size:g}" '
                f'fill="{shape.colour}" text-anchor="{shape.anchor}"{look}>'
                f"{clean(shape.text)}</text>"
            )
    entity = shape.entity if leads_on and not isinstance(shape, Curve | Polygon) else ""
    if entity:
        # An unescaped line break in an attribute would be read as a space.
        name = re.sub(r"[\t\n\r]", lambda found: f"&#{ord(found[0])};", clean(entity))
        # The name beside a circle is a link, too, but hidden from screen readers.
        role = (
            ' aria-hidden="true"'
            if isinstance(shape, Text)
            else f' role="button" tabindex="0" aria-label="{name}"'
        )
        return f'<g class="entity" data-entity="{name}"{role}>{title}{drawn}</g>'
    return f"<g>{title}{drawn}</g>" if title else drawn


def _way(points: Sequence[Point]) -> str:
    """A cubic curve as the data of an SVG path; a straight one as a line."""
    first, *others, last = ((round(x, 1), round(y, 1)) for x, y in points)
    (x, y), (a, b) = first, last
    length = math.hypot(a - x, b - y) or 1.0
    bend = max(abs((a - x) * (d - y) - (b - y) * (c - x)) / length for c, d in others)
    if bend < 0.2:  # of a pixel
        return f"M{x:g},{y:g}L{a:g},{b:g}"
    return f"M{x:g},{y:g}C" + " ".join(f"{c:g},{d:g}" for c, d in (*others, last))


def save_png(drawing: Drawing, path: Path) -> None:
    """Write the drawing with matplotlib."""
    require("matplotlib", "plot", "drawing a plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(drawing.width / _DPI, drawing.height / _DPI), dpi=_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    for order, shape in enumerate(drawing.shapes):
        _draw(axes, shape, order)
    with replacing(path) as temporary, warnings.catch_warnings():
        # A missing glyph is drawn as a box, without a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure.savefig(temporary, dpi=_DPI * _ENLARGE, format="png")


def _draw(axes: Any, shape: Shape, order: int) -> None:
    from matplotlib import patches, patheffects
    from matplotlib.path import Path as Way

    patch: patches.Patch
    points = 72 / _DPI  # points of a font or line per pixel
    match shape:
        case Curve():
            way = Way(shape.points, [Way.MOVETO, Way.CURVE4, Way.CURVE4, Way.CURVE4])
            look = {"linestyle": (0, (3, 1.7))} if shape.dashed else {}
            patch = patches.PathPatch(
                way, fill=False, edgecolor=shape.colour, linewidth=shape.width * points, **look
            )
        case Polygon():
            patch = patches.Polygon(shape.points, facecolor=shape.fill, linewidth=0)
        case Circle():
            patch = patches.Circle(
                shape.centre,
                shape.radius,
                facecolor=shape.fill,
                edgecolor=shape.stroke,
                linewidth=2 * points,
            )
        case Box():
            # The box style adds its padding to the box, and rounds within it.
            inset = shape.radius
            patch = patches.FancyBboxPatch(
                (shape.corner[0] + inset, shape.corner[1] + inset),
                max(shape.width - 2 * inset, 0),
                max(shape.height - 2 * inset, 0),
                boxstyle=f"round,pad={inset}" if inset else "square,pad=0",
                facecolor=shape.fill,
                linewidth=0,
            )
        case Text():
            axes.text(
                *shape.place,
                _NOT_XML.sub("\ufffd", shape.text),
                fontsize=shape.size * points * 0.94,  # the default font is wider than usual ones
                color=shape.colour,
                ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                va="baseline",
                weight="bold" if shape.bold else "normal",
                parse_math=False,
                zorder=order,
                path_effects=[patheffects.withStroke(linewidth=3, foreground="white")]
                if shape.halo
                else [],
            )
            return
    patch.set_zorder(order)
    axes.add_patch(patch)


def arrow_head(curve: Sequence[Point], size: float, fill: str) -> Polygon:
    """A triangle at the end of a curve."""
    tip, before = curve[-1], curve[-2]
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = max((dx * dx + dy * dy) ** 0.5, 1e-9)
    dx, dy = dx / length * size, dy / length * size
    base = (tip[0] - dx, tip[1] - dy)
    return Polygon(
        (tip, (base[0] - dy / 2, base[1] + dx / 2), (base[0] + dy / 2, base[1] - dx / 2)), fill
    )


def overlap(boxes: Iterable[tuple[Point, Point]], box: tuple[Point, Point]) -> float:
    """The area that a box, given by two corners, shares with others."""
    (left, top), (right, bottom) = box
    return sum(
        max(0.0, min(right, r) - max(left, l)) * max(0.0, min(bottom, b) - max(top, t))
        for (l, t), (r, b) in boxes  # noqa: E741
    )
