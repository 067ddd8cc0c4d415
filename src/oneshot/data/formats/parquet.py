"""Parquet: tables of names and values, read and written with pyarrow."""

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oneshot.data.formats.base import (
    FACT_COLUMNS,
    WEIGHT,
    Columns,
    Format,
    Order,
    Piece,
    Position,
    RawFacts,
    Rows,
    as_weights,
    fact_number,
    header_order,
    is_packed,
    unpacked,
)
from oneshot.errors import InputError

STREAMED_ROWS = 1 << 19  # facts in memory at a time
_READ_ROWS = 4096  # queries in memory at a time
_WRITTEN_ROWS = 1 << 16  # of a row group


def read_parquet(data: bytes, path: Path, wanted: Columns = FACT_COLUMNS) -> RawFacts:
    """The facts of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet

    with _readable(path), pyarrow.parquet.ParquetFile(pa.BufferReader(data)) as file:
        # Another thread that still holds `data` when the interpreter ends would abort the process.
        table = file.read(use_threads=False)
        names = table.column_names
    order = fact_order(names, path, wanted)
    facts = order[:3]
    columns = as_names([table.column(place) for place in facts], path, names, facts)
    if not table.num_rows:
        raise InputError(f"{path}: the file has no facts")
    if WEIGHT not in wanted:
        return RawFacts(path, columns)
    weights = as_weights(table.column(order[3]), lambda row: fact_number(path, row))
    return RawFacts(path, columns, weights=weights)


def stream_parquet(path: Path, position: Position | None, scratch: Path) -> Iterator[Piece]:
    """The facts of a Parquet file in chunks; a position is {"rows": number of rows read}."""
    import pyarrow as pa
    import pyarrow.parquet

    before = position["rows"] if position else 0
    stored = path
    if is_packed(path):
        # A Parquet file is read from its end, so it must be decompressed as a whole.
        stored = scratch / "unpacked.parquet"
        with path.open("rb") as packed, unpacked(path, packed) as source, stored.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    try:
        with _readable(path), pyarrow.parquet.ParquetFile(stored) as file:
            names = file.schema_arrow.names
            order = fact_order(names, path)
            total, seen = file.metadata.num_rows, 0
            if not total:
                raise InputError(f"{path}: the file has no facts")
            size = path.stat().st_size
            # Columns are selected by name; if names are not unique, all columns are read.
            chosen = [names[place] for place in order] if len(set(names)) == len(names) else None
            for batch in file.iter_batches(STREAMED_ROWS, columns=chosen):
                first, seen = seen, seen + batch.num_rows
                if seen <= before:
                    continue
                given = [
                    pa.chunked_array([batch.column(names[place] if chosen else place)])
                    for place in order
                ]
                columns = as_names(given, path, names, order, first)
                yield Piece(columns, {"rows": seen}, size * seen // total)
    finally:
        if stored != path:
            stored.unlink(missing_ok=True)


def read_rows(path: Path, columns: Columns) -> Iterator[tuple[str, list[str]]]:
    """The rows of a Parquet file of names, each with its location."""
    import pyarrow as pa
    import pyarrow.parquet

    if is_packed(path):
        raise InputError(f"{path}: decompress this file first; Parquet has its own compression")
    with _readable(path), pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if len(names) != len(columns):
            raise InputError(
                f"{path}: expected the columns {' and '.join(columns)}, found "
                f"{', '.join(names) or 'none'}"
            )
        order = header_order(names, columns) or range(len(columns))
        row = 0
        for batch in file.iter_batches(_READ_ROWS):
            values = [batch.column(place).cast(pa.string()).to_pylist() for place in order]
            for found in zip(*values, strict=True):
                row += 1
                location = f"{path}, row {row}"
                if None in found:
                    raise InputError(f"{location}: a name is missing")
                yield location, list(found)


def write_names(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    """Write rows of names."""
    write_rows(path, rows, dict.fromkeys(columns, str))


def write_rows(path: Path, rows: Rows, columns: Mapping[str, type]) -> None:
    """Write rows of values under columns of these types."""
    write_table(path, rows, schema_of(columns))


def schema_of(columns: Mapping[str, type]) -> Any:
    """The pyarrow schema of a table with columns of these types."""
    import pyarrow as pa

    kinds = {str: pa.string(), int: pa.int32(), float: pa.float32(), bool: pa.bool_()}
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])


def write_table(path: Path, rows: Rows, schema: Any) -> None:
    """Write rows with a pyarrow schema, with a few thousand in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet

    # Checksums reveal damaged pages when the table is read.
    with pyarrow.parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        left = iter(rows)
        while some := list(itertools.islice(left, _WRITTEN_ROWS)):
            values = zip(*some, strict=True)
            arrays = [pa.array(v, kind) for v, kind in zip(values, schema.types, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise errors of pyarrow as `InputError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error


def fact_order(names: list[str], path: Path | str, wanted: Columns = FACT_COLUMNS) -> Order:
    """The indices of head, relation, tail and weight among the columns of a table at `path`."""
    order = header_order(names, wanted)
    if order is None and (len(names) != 3 or WEIGHT in wanted):
        expected = ", ".join(["head, relation, tail", *wanted.get(WEIGHT, ())])
        raise InputError(
            f"{path}: expected the columns {expected}, found {', '.join(names) or 'none'}"
        )
    return order or [0, 1, 2]


def as_names(
    columns: list[Any], path: Path | str, names: list[str], order: Order, first: int = 0
) -> list[Any]:
    """Three columns of a table as strings; raises if a name is null or empty.

    `columns`: pyarrow arrays [n]; `path`: the table, for messages; `names`, `order`: the names of
    all columns, and which are given; `first`: the number of facts before these.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = []
    for place, given in zip(order, columns, strict=True):
        try:
            column = pc.cast(given, pa.string())
            column.validate(full=True)  # the names must be UTF-8
        except pa.ArrowException as error:
            raise InputError(
                f"{path}: column {names[place]!r} does not contain names ({error})"
            ) from error
        for fault, rows in (("null", pc.is_null(column)), ("empty", pc.equal(column, ""))):
            row = pc.index(rows, True).as_py()
            if row >= 0:
                raise InputError(f"{path}, fact {first + row + 1}: {names[place]!r} is {fault}")
        texts.append(column)
    return texts


PARQUET = Format(
    read=read_parquet,
    read_weighted=read_parquet,
    stream=stream_parquet,
    write=write_names,
    read_rows=read_rows,
    write_rows=write_rows,
)
