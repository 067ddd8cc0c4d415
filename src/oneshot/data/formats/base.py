"""The interface of file formats: the fields of an entry of the registry.

A format is one file in this folder with one or more `Format` objects, and one line per suffix in
`FORMATS`.
"""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import InputError
from oneshot.graph.vocabulary import Vocabulary
from oneshot.graph.weights import Place, checked_weights, wrong_weight
from oneshot.system.files import check_readable

Columns = Mapping[str, frozenset[str]]
"""The columns of a table of names, each with its accepted names in a header."""

FACT_COLUMNS: Columns = {
    "head": frozenset({"head", "h", "subject", "subj", "s", "source", "from", "head_entity"}),
    "relation": frozenset(
        {"relation", "rel", "r", "predicate", "pred", "p", "property", "edge", "type"}
    ),
    "tail": frozenset({"tail", "t", "object", "obj", "o", "target", "to", "tail_entity"}),
}

WEIGHT = "weight"
"""The column of weights among `Columns`."""

Order = list[int]
"""The index of each expected column in a row."""

Position = dict[str, Any]
"""A position at which reading a file resumes, as JSON; each format has its own fields."""

Rows = Iterable[Sequence[Any]]


@dataclass(frozen=True)
class RawFacts:
    """The facts of one file, before ids are assigned.

    `columns`: head, relation, tail; each a pyarrow chunked array of strings [n], or, if
    `are_ids`, an integer array [n]. `weights`: float32 [n], if they were asked for. `place(row)`:
    the location of a fact, for messages; None if that is `place_of` the path.
    """

    path: Path
    columns: list[Any]
    are_ids: bool = False
    notes: list[str] = field(default_factory=list)
    weights: NDArray[np.float32] | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Piece:
    """A chunk of the facts of a file.

    `columns`: head, relation, tail as pyarrow strings [n]; `position`: the position after them;
    `done`: bytes of the (compressed) file that have been read.
    """

    columns: list[Any]
    position: Position
    done: int


def fact_columns(weights: str | None = None) -> Columns:
    """The columns of facts, with that of the weights, named `weights`, if it is given."""
    if weights is None:
        return FACT_COLUMNS
    folded = weights.strip().casefold()
    if not folded or any(folded in names for names in FACT_COLUMNS.values()):
        raise InputError(f"weights: {weights!r} is not the name of a column of weights")
    return {**FACT_COLUMNS, WEIGHT: frozenset({folded})}


def as_weights(column: Any, place: Place) -> NDArray[np.float32]:
    """A column of weights, as numbers or text: a pyarrow array or a numpy array [n].

    `place(row)`: the location of a fact, for messages.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, np.ndarray):
        return checked_weights(column, place)
    missing = pc.index(pc.is_null(column), True).as_py()
    if missing >= 0:
        raise wrong_weight(None, place(missing))
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if is_text:
        numbers = []
        for row, text in enumerate(column.to_pylist()):
            try:
                number = float(text)
            except ValueError:
                raise wrong_weight(text, place(row)) from None
            if "_" in text:  # a number for Python alone
                raise wrong_weight(text, place(row))
            numbers.append(number)
        return checked_weights(np.array(numbers, np.float64), place)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        if not pa.types.is_decimal(column.type):
            raise InputError(
                f"{place(0)}: the weights have the type {column.type}, expected numbers"
            )
        column = column.cast(pa.float64())
    return checked_weights(column.to_numpy(), place)


def fact_number(path: Path, row: int) -> str:
    """The location of fact number `row` (from 0), in a format without lines."""
    return f"{path}, fact {row + 1}"


@dataclass(frozen=True)
class Format:
    """The operations on files of one format; None if an operation is not supported.

    `read(data, path)`: all facts, from the decompressed content of a file.
    `read_weighted(data, path, columns)`: the same with their weights; `columns` as `fact_columns`.
    `stream(path, position, scratch)`: the facts in chunks, from a position or (None) from the
    start, for files larger than memory; `scratch` is a directory for decompressed files.
    `place(path, row)`: the location of fact number `row` (from 0), for messages.
    `write(path, rows, columns)`: write rows of names under these columns, such that `read` returns
    the same facts.
    `read_rows(path, columns)`: the rows of a table of names, one by one, each with its location;
    for queries.
    `write_rows(path, rows, columns)`: write rows of values under columns of these types (str, int,
    float, bool; None is an empty value); for answers. `check_names(names)`: raise if it cannot
    write one of these names.
    """

    read: Callable[[bytes, Path], RawFacts]
    read_weighted: Callable[[bytes, Path, Columns], RawFacts] | None = None
    stream: Callable[[Path, Position | None, Path], Iterator[Piece]] | None = None
    place: Callable[[Path, int], str] = fact_number
    write: Callable[[Path, Rows, Sequence[str]], None] | None = None
    read_rows: Callable[[Path, Columns], Iterator[tuple[str, list[str]]]] | None = None
    write_rows: Callable[[Path, Rows, Mapping[str, type]], None] | None = None
    check_names: Callable[[Vocabulary], None] | None = None


def header_order(first_row: Sequence[str], columns: Columns = FACT_COLUMNS) -> Order | None:
    """The indices of the columns if this row is a header, otherwise None."""
    folded = [name.strip().lstrip("#").strip().casefold() for name in first_row]
    order = []
    for names in columns.values():
        places = [place for place, name in enumerate(folded) if name in names]
        if len(places) != 1:
            return None
        order.append(places[0])
    return order


def is_packed(path: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return path.name.endswith(".gz")


def unpacked(path: Path, stored: BinaryIO) -> BinaryIO:
    """The content of an open file, decompressed if its name ends in `.gz`."""
    return cast(BinaryIO, gzip.open(stored)) if is_packed(path) else stored


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in `.gz`."""
    check_readable(path)
    with named_errors(path):
        data = path.read_bytes()
        return gzip.decompress(data) if is_packed(path) else data


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Raise errors of the disk and of gzip as `InputError` with the name of the file."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: incomplete or invalid gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
