"""Questions: many queries out of a file, read one by one, so that the file may be of any size."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from oneshot.data.formats import SEPARATORS, format_of
from oneshot.data.text import COLUMN_NAMES, split_lines
from oneshot.errors import InputError
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.files import check_readable

# Names of the two columns, by which a first row is recognised as a header.
_COLUMNS = (COLUMN_NAMES[0] | {"entity"}, COLUMN_NAMES[1])
_ROWS = 4096  # of a Parquet file, in memory at a time
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Question:
    """A query by its names; `place`: the file and line it stands on, for messages."""

    entity: str
    relation: str
    place: str


def read_questions(path: Path) -> Iterator[Question]:
    """The questions in a file of two columns, entity and relation, in its order.

    Tab- or comma-separated text, or Parquet, by the ending; text may be compressed (.gz). A
    header, comments and empty lines are understood.
    """
    kind = format_of(path)
    check_readable(path)
    if kind in SEPARATORS:
        yield from _read_text(path, SEPARATORS[kind])
    elif kind == ".parquet" and not path.name.endswith(".gz"):
        yield from _read_parquet(path)
    else:
        raise InputError(f"{path}: questions are read from .tsv, .txt, .csv and .parquet files")


def check_questions(reasoner: Reasoner, path: Path) -> int:
    """Raise on the first question with an unknown name. → how many questions there are"""
    count = 0
    for question in read_questions(path):
        try:
            reasoner.query(question.entity, question.relation)
        except InputError as error:
            raise InputError(f"{question.place}: {error}") from error
        count += 1
    if not count:
        raise InputError(f"{path}: there are no questions in this file")
    return count


def _read_text(path: Path, separator: str) -> Iterator[Question]:
    order = (0, 1)
    is_first = True
    for number, fields in split_lines(_lines(path), path, separator):
        place = f"{path}, line {number}"
        if len(fields) != 2:
            kind = "tab" if separator == "\t" else "comma"
            raise InputError(
                f"{place}: expected 2 {kind}-separated columns (entity, relation), found "
                f"{len(fields)}"
            )
        if is_first:
            is_first = False
            found = _header_order(fields)
            if found is not None:
                order = found
                continue
        yield Question(fields[order[0]], fields[order[1]], place)


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed if its name ends in `.gz`, without byte order mark."""
    try:
        with _opened(path) as file:
            for number, line in enumerate(file):
                yield line if number else line.removeprefix(_BYTE_ORDER_MARK)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.name.endswith(".gz") else path.open("rb")


def _header_order(names: list[str]) -> tuple[int, int] | None:
    """Where entity and relation stand, if these are names of columns; else None."""
    folded = [name.strip().lstrip("#").strip().casefold() for name in names]
    for entity, relation in ((0, 1), (1, 0)):
        if folded[entity] in _COLUMNS[0] and folded[relation] in _COLUMNS[1]:
            return entity, relation
    return None


def _read_parquet(path: Path) -> Iterator[Question]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if len(names) != 2:
                raise InputError(
                    f"{path}: expected the columns entity and relation, found "
                    f"{', '.join(names) or 'none'}"
                )
            order = _header_order(names) or (0, 1)
            row = 0
            for batch in file.iter_batches(_ROWS):
                columns = [batch.column(place).cast(pa.string()).to_pylist() for place in order]
                for entity, relation in zip(*columns, strict=True):
                    row += 1
                    place = f"{path}, row {row}"
                    if entity is None or relation is None:
                        raise InputError(f"{place}: a name is missing")
                    yield Question(entity, relation, place)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error
