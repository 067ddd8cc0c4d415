"""Fact files: facts by names, written such that reading them gives the same facts."""

import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from oneshot.errors import InputError
from oneshot.system.files import replacing

Rows = Iterable[Sequence[str]]

COLUMNS = ("head", "relation", "tail")
_ROWS = 100_000
# What a line of a tab-separated table cannot hold, or would hold and lose when it is read.
_NOT_IN_TSV = re.compile(r'[\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029"]|^\s|\s$|^$')


def write_facts(path: Path, rows: Rows, more: Sequence[str] = ()) -> int:
    """Write facts, as the ending says: TSV, CSV or Parquet. → how many

    Each row: head, relation, tail, and a value for each column in `more`. A name that a TSV cannot
    hold is an error, and the file stays as it was.
    """
    check_facts_place(path)
    count = 0

    def counted() -> Iterator[Sequence[str]]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    with replacing(path) as temporary:
        _WRITERS[path.suffix.lower()](temporary, counted(), (*COLUMNS, *more))
    return count


def check_facts_place(path: Path) -> None:
    """Raise if facts cannot be written there."""
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"{path}: facts are written as {', '.join(_WRITERS)}, by the ending")


def as_line(row: Sequence[str]) -> str:
    """A row of a tab-separated table, with its line end."""
    for name in row:
        if _NOT_IN_TSV.search(name):
            raise InputError(
                f"{name!r} cannot stand in a table separated by tabs; write .csv or .parquet"
            )
    if row[0].startswith("#"):
        raise InputError(f"{row[0]!r} would be read as a comment; write .csv or .parquet")
    return "\t".join(row) + "\n"


def _write_tsv(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(as_line(row) for row in rows)


def _write_csv(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _write_parquet(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    schema = pa.schema([(column, pa.string()) for column in columns])
    left = iter(rows)
    with pyarrow.parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        while some := list(itertools.islice(left, _ROWS)):
            arrays = [pa.array(column, pa.string()) for column in zip(*some, strict=True)]
            writer.write_table(pa.table(arrays, schema=schema))


_WRITERS: dict[str, Callable[[Path, Rows, Sequence[str]], None]] = {
    ".tsv": _write_tsv,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
