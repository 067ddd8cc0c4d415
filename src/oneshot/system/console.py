"""Output of the command line: JSON or tables on stdout, progress and messages on stderr."""

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.table import Table
from rich.text import Text

from oneshot.errors import InputError

# Names of files and entities are printed verbatim: [x] is not markup, :x: is not an emoji.
_plain = partial(Console, highlight=False, markup=False, emoji=False)
stdout = _plain()
stderr = _plain(stderr=True)

_BEGINS_NUMBER = frozenset("0123456789+-−–<≤≥>~.∞")
_WIDE = 10_000  # for lines of any length


def accept_all_letters() -> None:
    """Escape characters that the terminal or pipe cannot encode; by default they raise an error.

    A locale may have any encoding, and names of entities may be in any script.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_line(text: str) -> None:
    """Print a line of data on stdout verbatim; raises if it cannot be encoded."""
    try:
        text.encode(stdout.encoding)
    except UnicodeEncodeError:
        raise InputError(
            f"a name cannot be encoded for this output ({stdout.encoding}): {text!a}; "
            "write to a file, or set PYTHONUTF8=1"
        ) from None
    stdout.file.write(text)


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(stdout.encoding)
    except UnicodeEncodeError:
        text = json.dumps(value, allow_nan=False)
    stdout.file.write(text + "\n")
    stdout.file.flush()


def are_numbers(cells: Sequence[str]) -> bool:
    """Whether the cells of a column are numbers, optionally with a unit or a second number."""
    return all(len(cell) <= 20 and cell[:1] in _BEGINS_NUMBER for cell in cells if cell)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout; columns of numbers are right-aligned.

    Columns that do not fit the width of a terminal follow below, with the first column repeated. In
    a file or a pipe, lines have any length.
    """
    cells = [[row[place] for row in rows] for place in range(len(columns))]
    numbers = [place > 0 and are_numbers(column) for place, column in enumerate(cells)]
    needed = [
        max(map(len, [*(column if is_number else []), *head.split()]), default=0)
        for head, column, is_number in zip(columns, cells, numbers, strict=True)
    ]
    for page, places in enumerate(_pages(needed, stdout.width if stdout.is_terminal else _WIDE)):
        table = Table(title=f"{title}, continued" if page else title, title_justify="left")
        for place in places:
            # Names may be truncated to the width of the terminal, numbers may not.
            justify: Literal["right", "left"] = "right" if numbers[place] else "left"
            width = needed[place] if numbers[place] else None
            table.add_column(columns[place], justify=justify, width=width)
        for row in rows:
            table.add_row(*(row[place] for place in places))
        (stdout if stdout.is_terminal else _plain(file=stdout.file, width=_WIDE)).print(table)


def print_text(text: str) -> None:
    """Print a paragraph on stdout, wrapped at the width of a terminal; elsewhere as one line."""
    stdout.print(text, soft_wrap=not stdout.is_terminal)


def _pages(widths: Sequence[int], width: int) -> list[list[int]]:
    """The indices of the columns of each page; the first column is on every page."""
    frame, text = 3, 16  # padding of a column, and minimum width of a name
    first = max(widths[0], text) + frame + 1 if widths else 0
    pages, left = [[0]], width - first
    for place, wide in enumerate(widths[1:], 1):
        if wide + frame > left and len(pages[-1]) > 1:
            pages.append([0])
            left = width - first
        pages[-1].append(place)
        left -= wide + frame
    return pages


def note(message: str) -> None:
    """Print a message for the user on stderr."""
    stderr.print(message, style="dim", soft_wrap=True)


def status(message: str) -> Status:
    """Show a spinner on stderr while the block runs."""
    return stderr.status(Text(message))


@contextmanager
def progress_bar(with_counts: bool = True) -> Iterator[Progress]:
    """Progress bars on stderr, removed when the work is done; with counts or percentages."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if with_counts else TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    hidden = not stderr.is_terminal
    with Progress(*columns, console=stderr, transient=True, disable=hidden) as progress:
        yield progress
