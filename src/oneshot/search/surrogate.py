"""Fitting: values from elsewhere, drawn into the ranges of a space."""

from typing import Any

from oneshot.search.space import CONDITIONS, Choice, Range, Space


def nearest(space: Space, values: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a space nearest to some values.

    A number outside its range becomes the end of it; what is not among the choices, or is not
    given, becomes the last choice (for budgets the one that takes most) or the middle.
    """
    found: dict[str, Any] = {}
    for name, dimension in space.dimensions.items():
        value = values.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(dimension, Range):
            middle = (dimension.low + dimension.high) / 2
            wanted: Any = value if is_number else middle
            wanted = int(wanted) if dimension.is_whole else wanted
            found[name] = min(max(wanted, dimension.low), dimension.high)
        elif value in dimension.values:
            found[name] = value
        elif dimension.is_ordered and is_number:
            found[name] = min(dimension.values, key=lambda v: abs(v - value))  # type: ignore[operator]
        else:
            found[name] = dimension.values[-1 if dimension.is_ordered else 0]
    return _active(space, found)


def _active(space: Space, values: dict[str, Any]) -> dict[str, Any]:
    """Without the dimensions that play no part."""
    kept = dict(values)
    for child, (parent, allowed) in CONDITIONS.items():
        is_open = child in kept and isinstance(space.dimensions.get(parent), Choice)
        if is_open and values[parent] not in allowed:
            del kept[child]
    return kept
