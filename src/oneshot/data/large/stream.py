"""Streams of facts: files longer than the memory, read in pieces and from any piece on.

Text and Parquet only: what else `reading` knows has to be read whole.
"""

import gzip
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from oneshot.data.formats import SEPARATORS, format_of, parquet_names, parquet_order
from oneshot.data.text import TextPosition, line_of_row, read_text_blocks
from oneshot.errors import InputError

TEXT_BLOCK = 1 << 25
PARQUET_ROWS = 1 << 19

Position = dict[str, Any]
"""Where reading goes on, as JSON: a `TextPosition`, or {"rows": …} of a Parquet file."""


@dataclass(frozen=True)
class Piece:
    """Some facts of a file.

    `columns`: head, relation, tail as pyarrow strings [n]; `position`: the place after them;
    `done`: bytes of the file, as it lies on the disk, that have been read.
    """

    columns: list[Any]
    position: Position
    done: int


def can_stream(path: Path) -> bool:
    """Whether a file can be read in pieces."""
    return format_of(path) in (*SEPARATORS, ".parquet")


def stream_facts(path: Path, position: Position | None, scratch: Path) -> Iterator[Piece]:
    """The facts of a file from a position on, or from its beginning.

    `scratch`: a directory for what has to be unpacked before it can be read.
    """
    with _named_errors(path):
        if not path.stat().st_size:
            raise InputError(f"{path}: the file is empty")
        kind = format_of(path)
        if kind == ".parquet":
            yield from _stream_parquet(path, position or {"rows": 0}, scratch)
            return
        with path.open("rb") as stored, _unpacked(path, stored) as file:
            start = TextPosition(**(position or {}))
            for columns, place in read_text_blocks(
                file, path, SEPARATORS[cast(str, kind)], start, TEXT_BLOCK
            ):
                yield Piece(columns, asdict(place), min(stored.tell(), path.stat().st_size))


def place_of(path: Path, row: int) -> str:
    """Where fact number `row` of a file stands, for messages."""
    kind = format_of(path)
    if kind not in SEPARATORS:
        return f"{path}, fact {row + 1}"
    separator, before, seen = SEPARATORS[kind], TextPosition(), 0
    with path.open("rb") as stored, _unpacked(path, stored) as file:
        for columns, after in read_text_blocks(file, path, separator, before, TEXT_BLOCK):
            if seen + len(columns[0]) > row:
                break
            before, seen = after, seen + len(columns[0])
    with path.open("rb") as stored, _unpacked(path, stored) as file:
        file.seek(before.offset)
        data = file.read(after.offset - before.offset)
    start = before if before.offset else None
    return f"{path}, line {line_of_row(data, path, separator, row - seen, start)}"


def _stream_parquet(path: Path, position: Position, scratch: Path) -> Iterator[Piece]:
    import pyarrow as pa
    import pyarrow.parquet

    stored = path
    if path.name.endswith(".gz"):
        # A Parquet file is read from its end: it has to be unpacked as a whole.
        stored = scratch / "unpacked.parquet"
        with path.open("rb") as packed, _unpacked(path, packed) as source, stored.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    try:
        with pyarrow.parquet.ParquetFile(stored) as file:
            names = file.schema_arrow.names
            order = parquet_order(names, path)
            total, seen = file.metadata.num_rows, 0
            if not total:
                raise InputError(f"{path}: there are no facts in this file")
            size = path.stat().st_size
            # Columns are chosen by name; of two with one name, all have to be read.
            chosen = [names[place] for place in order] if len(set(names)) == len(names) else None
            for batch in file.iter_batches(PARQUET_ROWS, columns=chosen):
                first, seen = seen, seen + batch.num_rows
                if seen <= position["rows"]:
                    continue
                given = [
                    pa.chunked_array([batch.column(names[place] if chosen else place)])
                    for place in order
                ]
                columns = parquet_names(given, path, names, order, first)
                yield Piece(columns, {"rows": seen}, size * seen // total)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error
    finally:
        if stored != path:
            stored.unlink(missing_ok=True)


def _unpacked(path: Path, stored: BinaryIO) -> BinaryIO:
    """The content of an open file, decompressed if its name ends in `.gz`."""
    return cast(BinaryIO, gzip.open(stored)) if path.name.endswith(".gz") else stored


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
