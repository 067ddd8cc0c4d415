"""The interface of data sources: the fields of an entry of the registry, and batches of facts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from oneshot.data.formats.base import Order
from oneshot.data.formats.parquet import as_names
from oneshot.data.sources.address import Address

BATCH_ROWS = 1 << 16
"""Number of facts that are read at a time."""

Batch = list[Any]
"""Facts as three pyarrow columns of strings [n]: head, relation, tail; no name is null or empty."""

Progress = Callable[[int], None]
"""Called with the number of facts so far."""


class Link(NamedTuple):
    """A predicted fact; `probability`: None if the reasoner is not calibrated."""

    head: str
    relation: str
    tail: str
    probability: float | None


Links = Callable[[], Iterable[Link]]
"""Predicted facts that can be read several times: each call starts with the first."""


@dataclass(frozen=True)
class Source:
    """A kind of data source.

    `form`: the form of its addresses, for messages. `options`: the names of its own options.
    `read(address, notes)`: all facts in batches; appends remarks for the user to `notes`.
    `is_file`: whether the location is a file of this machine.
    `has_parameters`: whether an address may have further options, which are for the server.
    `check(address)`: raises if nothing can be written there; None if the source is only read.
    `write(address, links, progress)`: writes predicted facts that are not there, and returns their
    number.
    """

    form: str
    options: tuple[str, ...]
    read: Callable[[Address, list[str]], Iterator[Batch]]
    is_file: bool = False
    has_parameters: bool = False
    check: Callable[[Address], None] | None = None
    write: Callable[[Address, Links, Progress], int] | None = None


def batch_of(
    rows: Sequence[Sequence[Any]],
    columns: Sequence[str],
    order: Order,
    address: Address,
    first: int,
) -> Batch:
    """A batch of rows of Python values; numbers become names.

    `columns`: the names of all columns; `order`: those of head, relation and tail. `first`: the
    number of rows before these.
    """
    import pyarrow as pa

    arrays = []
    for place in order:
        values = [row[place] for row in rows]
        if not all(isinstance(value, str) for value in values):
            values = [_name_of(v, columns[place], address, first + n) for n, v in enumerate(values)]
        try:
            arrays.append(pa.chunked_array([pa.array(values, pa.string())]))
        except UnicodeEncodeError as error:
            raise address.error(f"column {columns[place]!r} is not valid Unicode") from error
    return as_names(arrays, str(address), list(columns), order, first)


def _name_of(value: Any, column: str, address: Address, row: int) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    found = f"{column!r} is no name, but {type(value).__name__}"
    raise address.error(found, where=f"fact {row + 1}")
