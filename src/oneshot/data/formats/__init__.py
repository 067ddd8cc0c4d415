"""File formats: a registry of readers and writers of facts, queries and answers.

A new format is one file in this folder and its line in `FORMATS`. The functions here select the
format by the suffix of a file, which may be followed by `.gz` for reading.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from oneshot.data.formats.base import (
    FACT_COLUMNS,
    Columns,
    Format,
    Piece,
    Position,
    RawFacts,
    Rows,
    fact_columns,
    fact_number,
    named_errors,
    read_bytes,
)
from oneshot.data.formats.names import read_names
from oneshot.data.formats.npz import NPZ
from oneshot.data.formats.parquet import PARQUET
from oneshot.data.formats.rdf import N_TRIPLES, TURTLE
from oneshot.data.formats.text import CSV, TSV, TXT
from oneshot.errors import InputError
from oneshot.graph.vocabulary import Vocabulary
from oneshot.system.files import check_readable, replacing

__all__ = [
    "FACT_COLUMNS",
    "FORMATS",
    "Columns",
    "Format",
    "Piece",
    "Position",
    "RawFacts",
    "can_stream",
    "check_facts_place",
    "check_names_fit",
    "format_of",
    "place_of",
    "read_facts",
    "read_names",
    "read_rows",
    "stream_facts",
    "write_facts",
    "write_scored_facts",
]

FORMATS: dict[str, Format] = {
    ".tsv": TSV,
    ".txt": TXT,
    ".csv": CSV,
    ".parquet": PARQUET,
    ".npz": NPZ,
    ".nt": N_TRIPLES,
    ".ttl": TURTLE,
}
"""The formats by suffix."""


def format_of(path: Path) -> Format | None:
    """The format of a file by its suffix, ignoring `.gz`; None if it is unknown."""
    return FORMATS.get(Path(path.name.removesuffix(".gz")).suffix.lower())


def read_facts(path: Path, weights: str | None = None) -> RawFacts:
    """The facts in one file of any known format.

    `weights`: the name of the column of their weights, if they are to be read.
    """
    found = format_of(path)
    if found is None:
        raise InputError(
            f"{path}: unknown format; supported suffixes: {', '.join(FORMATS)}, each also with .gz"
        )
    data = read_bytes(path)
    if not data:
        raise InputError(f"{path}: the file is empty")
    if weights is None:
        return found.read(data, path)
    if found.read_weighted is None:
        known = ", ".join(suffix for suffix, one in FORMATS.items() if one.read_weighted)
        raise InputError(f"{path}: facts in this format have no weights; use {known}")
    return found.read_weighted(data, path, fact_columns(weights))


def can_stream(path: Path) -> bool:
    """Whether a file can be read in chunks."""
    found = format_of(path)
    return found is not None and found.stream is not None


def stream_facts(path: Path, position: Position | None, scratch: Path) -> Iterator[Piece]:
    """The facts of a file in chunks, from a position or from the start.

    `scratch`: a directory for decompressed files.
    """
    found = format_of(path)
    assert found is not None
    assert found.stream is not None
    with named_errors(path):
        if not path.stat().st_size:
            raise InputError(f"{path}: the file is empty")
        yield from found.stream(path, position, scratch)


def place_of(path: Path, row: int) -> str:
    """The location of fact number `row` (from 0) of a file or an object, for messages."""
    found = format_of(path)
    return fact_number(path, row) if found is None else found.place(path, row)


def write_facts(path: Path, rows: Rows, more: Sequence[str] = ()) -> int:
    """Write facts in the format of the suffix. Returns the number of facts.

    Each row: head, relation, tail, and a value for each column in `more`. A name that the format
    cannot hold is an error, and an existing file is not changed.
    """
    check_facts_place(path)
    write = FORMATS[path.suffix.lower()].write
    assert write is not None
    count = 0

    def counted() -> Iterator[Sequence[str]]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    with replacing(path) as temporary:
        write(temporary, counted(), (*FACT_COLUMNS, *more))
    return count


def write_scored_facts(path: Path, rows: Rows, more: Mapping[str, type]) -> None:
    """Write facts with further columns `more` of these types; RDF has only the facts.

    Each row: head, relation, tail, and a value (None: empty) for each further column.
    """
    check_facts_place(path)
    found = FORMATS[path.suffix.lower()]
    columns = {**dict.fromkeys(FACT_COLUMNS, str), **more}
    with replacing(path) as temporary:
        if found.write_rows is not None:
            found.write_rows(temporary, rows, columns)
        else:
            assert found.write is not None
            found.write(temporary, rows, list(columns))


def check_facts_place(path: Path) -> None:
    """Raise if facts cannot be written to this path."""
    written = [suffix for suffix, found in FORMATS.items() if found.write]
    if path.suffix.lower() not in written:
        raise InputError(f"{path}: cannot write facts with this suffix; use {', '.join(written)}")


def check_names_fit(path: Path, *names: Vocabulary) -> None:
    """Raise if a table at this path cannot hold one of the names; before long work starts."""
    found = FORMATS.get(path.suffix.lower())
    if found is not None and found.check_names is not None:
        for vocabulary in names:
            found.check_names(vocabulary)


def read_rows(path: Path, columns: Columns, what: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a table of names, each with its location; `what` names them in messages.

    Headers, comments and empty lines are supported.
    """
    found = format_of(path)
    check_readable(path)
    if found is None or found.read_rows is None:
        *first, last = (suffix for suffix, known in FORMATS.items() if known.read_rows)
        raise InputError(f"{path}: unsupported suffix for {what}; use {', '.join(first)} or {last}")
    yield from found.read_rows(path, columns)
