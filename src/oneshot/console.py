"""What the command line prints: JSON or tables on stdout, progress and messages on stderr."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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

# Names of files and entities are printed as they are: [x] is no markup, :x: no emoji.
stdout = Console(highlight=False, markup=False, emoji=False)
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)

_BEGINS_NUMBER = frozenset("0123456789+-−–<≤≥>~.∞")


def print_json(value: Any) -> None:
    """One JSON value on stdout and nothing else."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(stdout.encoding)
    except UnicodeEncodeError:
        text = json.dumps(value, allow_nan=False)
    stdout.file.write(text + "\n")
    stdout.file.flush()


def are_numbers(cells: Sequence[str]) -> bool:
    """Whether the cells of a column are figures, with a unit or a second figure behind at most."""
    return all(len(cell) <= 20 and cell[:1] in _BEGINS_NUMBER for cell in cells if cell)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; columns of numbers are set to the right."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        numbers = place > 0 and are_numbers([row[place] for row in rows])
        table.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*row)
    stdout.print(table)


def note(message: str) -> None:
    """A remark for people, on stderr."""
    stderr.print(message, style="dim", soft_wrap=True)


def status(message: str) -> Status:
    """A sign on stderr that something takes a while, gone when the block ends."""
    return stderr.status(Text(message))


@contextmanager
def progress_bar(with_counts: bool = True) -> Iterator[Progress]:
    """Progress bars on stderr, gone when the work is done; as counts, or in percent."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if with_counts else TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    hidden = not stderr.is_terminal
    with Progress(*columns, console=stderr, transient=True, disable=hidden) as progress:
        yield progress
