"""Notebooks: values as small pieces of HTML, which the methods `_repr_html_` return.

Colours are those of the page, so that the text is readable in light and dark notebooks.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_MUTED = "opacity:0.7"
_CELL = "padding:0.2em 0.8em"
# Jupyter would show text between dollar signs as a formula.
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"
_LONGEST = 120  # characters of a value


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers are aligned to the right and None is an empty cell."""
    head = "".join(f'<th style="{_CELL};text-align:left">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        '<table style="border-collapse:collapse"><thead>'
        f"<tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def titled(title: str, *parts: str, notes: Sequence[str] = ()) -> str:
    """Pieces of HTML under a title, followed by notes; title and notes are plain text."""
    remarks = "".join(f'<div style="{_MUTED}">{escape(note)}</div>' for note in notes)
    return framed(f"<div><b>{escape(_short(title))}</b></div>{''.join(parts)}{remarks}")


def framed(content: str) -> str:
    """A piece of HTML in which dollar signs stay dollar signs."""
    return f'<div class="{_NO_FORMULAS}">{content}</div>'


def folded(title: str, content: str) -> str:
    """A piece of HTML that is shown on a click on its title, which is plain text."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        value = "yes" if value else "no"
    is_number = isinstance(value, int | float)
    text = f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if is_number else str(value)
    side = "right" if is_number else "left"
    return f'<td style="{_CELL};text-align:{side}">{escape(_short(text))}</td>'


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
