"""Text tables: tab- or comma-separated files.

Well-formed files of facts are read by pyarrow's parallel reader. Other files are read line by line,
which either succeeds (unusual but valid input) or reports the invalid line.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

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
    header_order,
    named_errors,
    unpacked,
)
from oneshot.errors import InputError
from oneshot.graph.vocabulary import Vocabulary

STREAMED_BYTES = 1 << 25  # of a file in memory at a time

# A comment starts with '# ', or starts with '#' and contains no separator.
_COMMENTS = {
    "\t": re.compile(rb"^#(?: [^\n]*|[^\t\n]*)(?:\n|\Z)", re.MULTILINE),
    ",": re.compile(rb"^#(?: [^\n]*|[^,\n]*)(?:\n|\Z)", re.MULTILINE),
}
# A quoted CSV value between separators, and the start of an unclosed one.
_QUOTED = re.compile(rb'"(?<![^,\r\n]")[^"]*(?:""[^"]*)*"(?![^,\r\n])')
_QUOTE_LEFT = re.compile(rb'"(?<![^,\r\n]")')
_BLANK = " \t\r\n\v\f"  # a field or line with only these characters is empty
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CHECKED = 1 << 24  # bytes of names at a time
_LONGEST_ROW = 1 << 27  # bytes; longer lines are not a table
# Characters that end a value of a tab-separated table, in which nothing is quoted.
_NOT_IN_VALUE = {"\t": "a tab", "\n": "a newline", "\r": "a carriage return"}
_OTHER_FILE = "choose --out FILE.csv or FILE.parquet"
# A value that is quoted in a CSV table; one that starts with # might be read as a comment.
_SPECIAL = re.compile('[,\n\r"]|^#')


class UnclosedQuoteError(InputError):
    """A quoted value in the row that starts on `line` is not closed at the end of the text."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class TextPosition:
    """A position between two rows of a text file, at which reading can resume.

    `offset`: bytes before it; `line`: lines before it; `order`: the columns of head, relation and
    tail, None before the first row.
    """

    offset: int = 0
    line: int = 0
    order: Order | None = None


def read_text(data: bytes, path: Path, separator: str, wanted: Columns = FACT_COLUMNS) -> list[Any]:
    """Pyarrow string columns (head, relation, tail) from the content of a text file.

    Empty lines, comments (`# …`, or lines that start with # and contain no separator), a header
    row, a byte order mark and CRLF are supported. `wanted`: the columns, if there are others.
    """
    columns, _ = _read_rows(
        data.removeprefix(_BYTE_ORDER_MARK), path, separator, TextPosition(), wanted
    )
    if not len(columns[0]):
        raise InputError(f"{path}: the file has no facts")
    return columns


def _read(data: bytes, path: Path, separator: str) -> RawFacts:
    return RawFacts(path, read_text(data, path, separator))


def _read_weighted(data: bytes, path: Path, wanted: Columns, separator: str) -> RawFacts:
    """The facts of a text file of four columns, one of them with the weights."""

    def place(row: int) -> str:
        return f"{path}, line {line_of_row(data, path, separator, row, wanted=wanted)}"

    *columns, weights = read_text(data, path, separator, wanted)
    first = [column[0].as_py() for column in (*columns, weights)]
    if header_order(first) is not None:  # a header, but not one with the column of weights
        (missing,) = wanted[WEIGHT]
        found = ", ".join(first)
        raise InputError(f"{path}: there is no column {missing!r} of weights, only {found}")
    return RawFacts(path, columns, weights=as_weights(weights, place), place=place)


def read_text_blocks(
    file: BinaryIO, path: Path, separator: str, start: TextPosition, size: int
) -> Iterator[tuple[list[Any], TextPosition]]:
    """The columns of `read_text` in blocks of about `size` bytes, with the position after each.

    `file` is read from `start` to its end; it may be larger than memory. A block may have no
    facts.
    """
    file.seek(start.offset)
    position, rest = start, b""
    while True:
        piece = file.read(size)
        data = rest + piece
        if not data:
            return
        is_last = len(piece) < size
        if not position.offset and (is_last or len(data) >= len(_BYTE_ORDER_MARK)):
            marked = data.startswith(_BYTE_ORDER_MARK)
            data = data.removeprefix(_BYTE_ORDER_MARK)
            position = TextPosition(len(_BYTE_ORDER_MARK) if marked else 0)
        block = data if is_last else data[: _last_line_end(data)]
        try:
            columns, order = _read_rows(block, path, separator, position)
        except UnclosedQuoteError as error:
            if is_last:
                raise
            # The row continues in the next block.
            whole = block.splitlines(keepends=True)[: error.line - position.line - 1]
            block = b"".join(whole)
            columns, order = _read_rows(block, path, separator, position)
        rest = data[len(block) :]
        if len(rest) > _LONGEST_ROW:
            raise InputError(
                f"{path}, line {position.line + 1}: no line break in {len(rest):,} bytes"
            )
        position = TextPosition(
            position.offset + len(block), position.line + _count_lines(block), order
        )
        yield columns, position
        if is_last:
            return


def stream_text(
    path: Path, position: Position | None, scratch: Path, separator: str
) -> Iterator[Piece]:
    """The facts of a text file in chunks; a position has the fields of `TextPosition`."""
    with path.open("rb") as stored, unpacked(path, stored) as file:
        start = TextPosition(**(position or {}))
        for columns, after in read_text_blocks(file, path, separator, start, STREAMED_BYTES):
            yield Piece(columns, asdict(after), min(stored.tell(), path.stat().st_size))


def place_in_text(path: Path, row: int, separator: str) -> str:
    """The location of fact number `row` (from 0) of a file of any size, for messages."""
    before, seen = TextPosition(), 0
    with path.open("rb") as stored, unpacked(path, stored) as file:
        for columns, after in read_text_blocks(file, path, separator, before, STREAMED_BYTES):
            if seen + len(columns[0]) > row:
                break
            before, seen = after, seen + len(columns[0])
    with path.open("rb") as stored, unpacked(path, stored) as file:
        file.seek(before.offset)
        data = file.read(after.offset - before.offset)
    start = before if before.offset else None
    return f"{path}, line {line_of_row(data, path, separator, row - seen, start)}"


def line_of_row(
    data: bytes,
    path: Path,
    separator: str,
    row: int,
    start: TextPosition | None = None,
    wanted: Columns = FACT_COLUMNS,
) -> int:
    """The line, counted from 1, of fact number `row` (from 0) of a text file.

    `start`: the position of `data` in the file, if that is not its start. `wanted`: its columns.
    """
    start = TextPosition() if start is None else start
    if not start.offset:
        data = data.removeprefix(_BYTE_ORDER_MARK)
    rows = _rows(data, path, separator, start, wanted)
    lines = (line for line, names, _ in rows if names is not None)
    for position, line in enumerate(lines):
        if position == row:
            return line
    raise IndexError(row)


def _read_rows(
    data: bytes,
    path: Path,
    separator: str,
    start: TextPosition,
    wanted: Columns = FACT_COLUMNS,
) -> tuple[list[Any], Order | None]:
    """The columns of complete rows that start at a position, and the order of the columns."""
    found = _read_fast(data, separator, start.order, wanted)
    return _read_by_line(data, path, separator, start, wanted) if found is None else found


def _read_fast(
    data: bytes,
    separator: str,
    order: Order | None = None,
    wanted: Columns = FACT_COLUMNS,
) -> tuple[list[Any], Order | None] | None:
    """`_read_rows` for regular text, or None if it must be read line by line."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    has_comments = data.startswith(b"#") or b"\n#" in data or b"\r#" in data
    if separator == "," and b'"' in data:
        # A # at the start of a line may be part of a value, and an unclosed quote must be an
        # error, not a name with the rest of the file.
        if has_comments or _QUOTE_LEFT.search(_QUOTED.sub(b"", data)):
            return None
    elif has_comments:
        if not _is_utf8(data):
            return None
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        data = _COMMENTS[separator].sub(b"", data)
    if not data.strip() or data.startswith(_BYTE_ORDER_MARK):
        return None
    # A copy without Python objects: after an error, threads of pyarrow still hold the text, and
    # would abort the process if the interpreter ends meanwhile.
    text = pa.allocate_buffer(len(data))
    np.frombuffer(text, np.uint8)[:] = np.frombuffer(data, np.uint8)
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            read_options=pyarrow.csv.ReadOptions(column_names=list(wanted), block_size=1 << 24),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=separator,
                quote_char='"' if separator == "," else False,
                # Otherwise a block of the file may end inside a name.
                newlines_in_values=separator == "," and b'"' in data,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()),
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    columns, as_written = table.columns, list(range(len(wanted)))
    if table.num_rows and order is None:
        order = header_order([column[0].as_py() for column in columns], wanted)
        if order is not None:
            columns = [column.slice(1) for column in columns]
        order = order or as_written
    columns = [columns[index] for index in order or as_written]
    blank = any(pc.any(pc.equal(pc.utf8_trim(c, _BLANK), "")).as_py() for c in columns)
    return None if blank else (columns, order)


def _read_by_line(
    data: bytes,
    path: Path,
    separator: str,
    start: TextPosition,
    wanted: Columns = FACT_COLUMNS,
) -> tuple[list[Any], Order | None]:
    """`_read_rows` line by line; an error reports the line that cannot be read."""
    import pyarrow as pa

    columns: list[list[str]] = [[] for _ in wanted]
    order = start.order
    for _, names, found in _rows(data, path, separator, start, wanted):
        order = found
        for column, name in zip(columns, names or (), strict=names is not None):
            column.append(name)
    return [pa.chunked_array([pa.array(column, pa.string())]) for column in columns], order


def _rows(
    data: bytes, path: Path, separator: str, start: TextPosition, wanted: Columns
) -> Iterator[tuple[int, list[str] | None, Order]]:
    """`_table_rows` of facts, without empty names."""
    lines = data.splitlines(keepends=True)
    for number, names, order in _table_rows(
        lines, path, separator, wanted, start.line + 1, start.order
    ):
        for name, column in zip(names or (), order, strict=names is not None):
            if not name.strip(_BLANK):
                raise InputError(f"{path}, line {number}: column {column + 1} is empty")
        yield number, names, order


def _table_rows(
    lines: Iterable[bytes],
    path: Path,
    separator: str,
    columns: Columns,
    first: int = 1,
    order: Order | None = None,
) -> Iterator[tuple[int, list[str] | None, Order]]:
    """Line number, names and column order of each row; the names of a header are None.

    `first`: the number of the first line; `order`: None if the first row may be a header.
    """
    for number, fields in split_lines(lines, path, separator, first):
        if len(fields) != len(columns):
            raise InputError(f"{path}, line {number}: {_column_fault(fields, separator, columns)}")
        if order is None:
            found = header_order(fields, columns)
            order = found or list(range(len(columns)))
            if found is not None:
                yield number, None, order
                continue
        yield number, [fields[column] for column in order], order


def read_rows(path: Path, columns: Columns, separator: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a text file of names, each with its location."""
    for number, names, _ in _table_rows(_lines(path), path, separator, columns):
        if names is not None:
            yield f"{path}, line {number}", names


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a (possibly compressed) file, without byte order mark."""
    with named_errors(path), path.open("rb") as stored, unpacked(path, stored) as file:
        for number, line in enumerate(file):
            yield line if number else line.removeprefix(_BYTE_ORDER_MARK)


def split_lines(
    lines: Iterable[bytes], path: Path, separator: str, first: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields of the lines that are neither empty nor comments.

    `first`: the number of the first line.
    """
    decoded = _decoded_lines(lines, path, first)
    if separator == ",":
        yield from _split_csv(decoded, path, first)
        return
    for number, line in enumerate(decoded, first):
        if line.strip(_BLANK) and not _is_comment(line, separator):
            yield number, line.rstrip("\r\n").split(separator)


def _split_csv(lines: Iterator[str], path: Path, first: int) -> Iterator[tuple[int, list[str]]]:
    """`split_lines` for quoted values that may contain separators and line breaks."""
    inside = False  # a row that began on an earlier line

    def without_comments() -> Iterator[str]:
        nonlocal inside
        for line in lines:
            skip = not inside and (not line.strip(_BLANK) or _is_comment(line, ","))
            inside = True
            yield "\n" if skip else line

    reader = csv.reader(without_comments(), strict=True)
    start = first
    try:
        for fields in reader:
            if any(field.strip(_BLANK) for field in fields):
                yield start, fields
            start, inside = first + reader.line_num, False
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            raise UnclosedQuoteError(
                f"{path}, line {start}: a quoted value is not closed", start
            ) from error
        raise InputError(f"{path}, line {start}: {error}") from error


def _is_comment(line: str, separator: str) -> bool:
    return line.startswith("#") and (line[1:2] == " " or separator not in line)


def _column_fault(fields: list[str], separator: str, columns: Columns) -> str:
    name, count = "tab" if separator == "\t" else "comma", len(columns)
    fault = f"expected {count} {name}-separated columns ({', '.join(columns)}), found {len(fields)}"
    for other, plural in ((",", "commas"), ("\t", "tabs"), (";", "semicolons"), (" ", "spaces")):
        if other != separator and len(fields) == 1 and len(fields[0].split(other)) == count:
            return f"{fault}; the line seems to be separated by {plural}"
    if columns is FACT_COLUMNS and len(fields) == count + 1:
        return f"{fault}; if one of them is a weight, name it with --weights COLUMN"
    if WEIGHT in columns and len(fields) == count - 1:
        return f"{fault}; there is no column of weights"
    return fault


def _last_line_end(data: bytes) -> int:
    """The end of the last complete line, 0 if there is none."""
    end = data.rfind(b"\n") + 1
    # Line breaks of old systems; a CR at the very end may be the first half of CRLF.
    return end or data.rfind(b"\r", 0, -1) + 1


def _count_lines(data: bytes) -> int:
    """Number of line breaks: LF, CRLF or CR."""
    old = data.count(b"\r")
    return data.count(b"\n") + (old - data.count(b"\r\n") if old else 0)


def _decoded_lines(lines: Iterable[bytes], path: Path, first: int) -> Iterator[str]:
    """Lines as text, each with its line break (LF, CRLF or CR)."""
    for number, line in enumerate(lines, first):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {number}: not valid UTF-8 (byte 0x{line[error.start]:02x} at "
                f"column {error.start + 1}); save the file as UTF-8"
            ) from error


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def tsv_lines(rows: Rows, columns: Sequence[str]) -> Iterator[str]:
    """A tab-separated table of facts, line by line; with a header only if it is needed."""
    for number, row in enumerate(rows):
        # Otherwise the first row would be read as a header, or its first name as a mark.
        if not number and (header_order(row[:3]) is not None or row[0].startswith("\ufeff")):
            yield "\t".join(columns) + "\n"
        yield _tsv_line(row)


def _write_tsv(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(tsv_lines(rows, columns))


def _write_csv(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def write_rows(path: Path, rows: Rows, columns: Mapping[str, type], separator: str) -> None:
    """Write rows of values under a header; CSV values are quoted if necessary."""
    line = _tsv_line if separator == "\t" else _csv_line
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(separator.join(columns) + "\n")
        file.writelines(line(row) for row in rows)


def check_tsv_names(names: Vocabulary) -> None:
    """Raise if a tab-separated table cannot hold one of these names."""
    for start in range(0, len(names.blob), _CHECKED):
        block = np.asarray(names.blob[start : start + _CHECKED])
        found = np.flatnonzero((block == 9) | (block == 10) | (block == 13))  # of _NOT_IN_VALUE
        if len(found):
            number = np.searchsorted(names.offsets, start + found[0], side="right") - 1
            _check_tsv_value(names[int(number)])


def _check_tsv_value(name: str) -> None:
    """Raise if a tab-separated table cannot hold a name."""
    for character, what in _NOT_IN_VALUE.items():
        if character in name:
            raise InputError(
                f"the name {name!r} contains {what}, which a .tsv file cannot hold; {_OTHER_FILE}"
            )
    if not name.strip(_BLANK):
        raise InputError(f"the name {name!r} would be an empty value in a .tsv file; {_OTHER_FILE}")


def _tsv_line(row: Sequence[Any]) -> str:
    """A row of a tab-separated table, with its line break; quotes are characters of a name."""
    for value in row:
        if isinstance(value, str):
            _check_tsv_value(value)
    line = "\t".join(map(_as_text, row))
    if _is_comment(line, "\t"):
        raise InputError(f"the name {row[0]!r} would start a comment in a .tsv file; {_OTHER_FILE}")
    return line + "\n"


def _csv_line(row: Sequence[Any]) -> str:
    """A row of a comma-separated table, with its line break; values in quotes if necessary."""
    # The module csv does not quote a carriage return before Python 3.13.
    return ",".join(_quoted(text) for text in map(_as_text, row)) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _format(separator: str, write: Callable[[Path, Rows, Sequence[str]], None]) -> Format:
    return Format(
        read=partial(_read, separator=separator),
        read_weighted=partial(_read_weighted, separator=separator),
        stream=partial(stream_text, separator=separator),
        place=partial(place_in_text, separator=separator),
        write=write,
        read_rows=partial(read_rows, separator=separator),
        write_rows=partial(write_rows, separator=separator),
        check_names=check_tsv_names if separator == "\t" else None,
    )


TSV, CSV = _format("\t", _write_tsv), _format(",", _write_csv)
TXT = replace(TSV, write=None, write_rows=None, check_names=None)
"""As TSV, but for reading only: the suffix does not imply a table."""
