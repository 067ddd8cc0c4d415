"""Bars: values from 0 to 1 by name, such as the MRR of each relation."""

from collections.abc import Iterable

from oneshot.plots.palette import FAINT, GREEN, INK, SOFT
from oneshot.plots.shapes import Box, Drawing, Shape, Text, shortened, text_width

_NAMES, _BAR, _VALUE = 260.0, 320.0, 60.0  # widths of the columns
_ROW, _THICK, _SIZE, _MARGIN = 22.0, 12.0, 13.0, 12.0


def bars(title: str, values: Iterable[tuple[str, float, str]]) -> Drawing:
    """A bar for each (name, value from 0 to 1, remark); the remark is shown on hovering."""
    rows = list(values)
    names = max((min(text_width(name, _SIZE), _NAMES) for name, _, _ in rows), default=0.0)
    left = _MARGIN + names + _MARGIN
    shapes: list[Shape] = [Text((_MARGIN, _MARGIN + _SIZE), title, _SIZE, INK, bold=True)]
    top = _MARGIN + _ROW + _SIZE / 2
    for number, (name, value, remark) in enumerate(rows):
        middle = top + (number + 0.5) * _ROW
        base, corner = middle + _SIZE / 3, (left, middle - _THICK / 2)
        label = shortened(name, _SIZE, _NAMES)
        about = f"{name}: {value:.4f}, {remark}"
        shapes += [
            Text((left - _MARGIN, base), label, _SIZE, INK, "end", title=about),
            Box(corner, _BAR, _THICK, FAINT, title=about),
            Box(corner, _BAR * min(max(value, 0.0), 1.0), _THICK, GREEN, title=about),
            Text((left + _BAR + 8, base), f"{value:.3f}", _SIZE, SOFT, title=about),
        ]
    width, height = left + _BAR + _VALUE, top + len(rows) * _ROW + _MARGIN
    return Drawing(width, height, title, shapes)
