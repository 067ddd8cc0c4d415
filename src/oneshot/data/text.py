"""Triple tables as text: tab- or comma-separated files, fast where they are regular.

Well-formed files go through pyarrow's parallel reader. Whatever it refuses is read again line
by line, which either succeeds (odd but valid input) or names the line that is wrong.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from oneshot.errors import InputError

# Names of the three columns, by which a first row is recognised as a header.
COLUMN_NAMES = (
    frozenset({"head", "h", "subject", "subj", "s", "source", "from", "head_entity"}),
    frozenset({"relation", "rel", "r", "predicate", "pred", "p", "property", "edge", "type"}),
    frozenset({"tail", "t", "object", "obj", "o", "target", "to", "tail_entity"}),
)

# A comment starts with '#' and holds no separator, or goes on with a space.
_COMMENTS = {
    "\t": re.compile(rb"^#(?: [^\n]*|[^\t\n]*)(?:\n|\Z)", re.MULTILINE),
    ",": re.compile(rb"^#(?: [^\n]*|[^,\n]*)(?:\n|\Z)", re.MULTILINE),
}
# A quoted CSV value between separators, and the start of one that is not closed as it should.
_QUOTED = re.compile(rb'"(?<![^,\r\n]")[^"]*(?:""[^"]*)*"(?![^,\r\n])')
_QUOTE_LEFT = re.compile(rb'"(?<![^,\r\n]")')
_BLANK = " \t\r\n\v\f"  # a field or line of nothing else is empty
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_AS_WRITTEN = [0, 1, 2]
_LONGEST_ROW = 1 << 27  # bytes; more without a line end is no table

Order = list[int]


class UnclosedQuoteError(InputError):
    """A quoted value that starts in the row on `line` is not closed where the text ends."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class TextPosition:
    """A place between two rows of a text file, from which reading can go on.

    `offset`: bytes before it; `line`: lines before it; `order`: where head, relation and tail
    stand in a row, None before the first row.
    """

    offset: int = 0
    line: int = 0
    order: Order | None = None


def read_text(data: bytes, path: Path, separator: str) -> list[Any]:
    """Three pyarrow string columns (head, relation, tail) from the content of a text file.

    Empty lines, comments (`# …`, or lines that start with # and hold no separator), a header
    row, a byte order mark and CRLF are understood.
    """
    columns, _ = _read_rows(data.removeprefix(_BYTE_ORDER_MARK), path, separator, TextPosition())
    if not len(columns[0]):
        raise InputError(f"{path}: there are no facts in this file")
    return columns


def read_text_blocks(
    file: BinaryIO, path: Path, separator: str, start: TextPosition, size: int
) -> Iterator[tuple[list[Any], TextPosition]]:
    """The columns of `read_text` in blocks of about `size` bytes, with the place after each.

    `file` is read from `start` to its end; it may be longer than the memory. A block may be
    without facts.
    """
    file.seek(start.offset)
    place, rest = start, b""
    while True:
        piece = file.read(size)
        data = rest + piece
        if not data:
            return
        is_last = len(piece) < size
        if not place.offset and (is_last or len(data) >= len(_BYTE_ORDER_MARK)):
            marked = data.startswith(_BYTE_ORDER_MARK)
            data = data.removeprefix(_BYTE_ORDER_MARK)
            place = TextPosition(len(_BYTE_ORDER_MARK) if marked else 0)
        block = data if is_last else data[: _last_line_end(data)]
        try:
            columns, order = _read_rows(block, path, separator, place)
        except UnclosedQuoteError as error:
            if is_last:
                raise
            # The row goes on in the next block.
            whole = block.splitlines(keepends=True)[: error.line - place.line - 1]
            block = b"".join(whole)
            columns, order = _read_rows(block, path, separator, place)
        rest = data[len(block) :]
        if len(rest) > _LONGEST_ROW:
            raise InputError(
                f"{path}, line {place.line + 1}: no line end in {len(rest):,} bytes; is it a table?"
            )
        place = TextPosition(place.offset + len(block), place.line + _count_lines(block), order)
        yield columns, place
        if is_last:
            return


def line_of_row(
    data: bytes, path: Path, separator: str, row: int, place: TextPosition | None = None
) -> int:
    """The line, counted from 1, on which fact number `row` (from 0) of a text file stands.

    `place`: where `data` starts in the file, if that is not its beginning.
    """
    place = TextPosition() if place is None else place
    if not place.offset:
        data = data.removeprefix(_BYTE_ORDER_MARK)
    rows = (line for line, names, _ in _rows(data, path, separator, place) if names is not None)
    for position, line in enumerate(rows):
        if position == row:
            return line
    raise IndexError(row)


def header_order(first_row: list[str]) -> Order | None:
    """Where head, relation and tail stand, if this row is a header; else None."""
    folded = [name.strip().lstrip("#").strip().casefold() for name in first_row]
    order = []
    for names in COLUMN_NAMES:
        places = [place for place, name in enumerate(folded) if name in names]
        if len(places) != 1:
            return None
        order.append(places[0])
    return order


def _read_rows(
    data: bytes, path: Path, separator: str, place: TextPosition
) -> tuple[list[Any], Order | None]:
    """The columns of whole rows that start at a place, and the order of the columns."""
    found = _read_fast(data, separator, place.order)
    return _read_by_line(data, path, separator, place) if found is None else found


def _read_fast(
    data: bytes, separator: str, order: Order | None = None
) -> tuple[list[Any], Order | None] | None:
    """`_read_rows` for regular text, or None where a closer look is needed."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    has_comments = data.startswith(b"#") or b"\n#" in data or b"\r#" in data
    if separator == "," and b'"' in data:
        # A # at the start of a line may be part of a value; and a quote that is never closed
        # must be an error, not a name that holds the rest of the file.
        if has_comments or _QUOTE_LEFT.search(_QUOTED.sub(b"", data)):
            return None
    elif has_comments:
        if not _is_utf8(data):
            return None
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        data = _COMMENTS[separator].sub(b"", data)
    if not data.strip() or data.startswith(_BYTE_ORDER_MARK):
        return None
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(
                column_names=["head", "relation", "tail"], block_size=1 << 24
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=separator,
                quote_char='"' if separator == "," else False,
                # Else a block of the file may end in the middle of a name.
                newlines_in_values=separator == "," and b'"' in data,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(("head", "relation", "tail"), pa.string()),
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    columns = table.columns
    if table.num_rows and order is None:
        order = header_order([column[0].as_py() for column in columns])
        if order is not None:
            columns = [column.slice(1) for column in columns]
        order = order or _AS_WRITTEN
    columns = [columns[place] for place in order or _AS_WRITTEN]
    blank = any(pc.any(pc.equal(pc.utf8_trim(c, _BLANK), "")).as_py() for c in columns)
    return None if blank else (columns, order)


def _read_by_line(
    data: bytes, path: Path, separator: str, place: TextPosition
) -> tuple[list[Any], Order | None]:
    """`_read_rows`, with an error that names the line for anything that cannot be read."""
    import pyarrow as pa

    columns: list[list[str]] = [[], [], []]
    order = place.order
    for _, names, found in _rows(data, path, separator, place):
        order = found
        for column, name in zip(columns, names or (), strict=names is not None):
            column.append(name)
    return [pa.chunked_array([pa.array(column, pa.string())]) for column in columns], order


def _rows(
    data: bytes, path: Path, separator: str, place: TextPosition
) -> Iterator[tuple[int, list[str] | None, Order]]:
    """Line number, names and order of the columns of each row; the names of a header are None."""
    order = place.order
    lines = data.splitlines(keepends=True)
    for number, fields in split_lines(lines, path, separator, place.line + 1):
        if len(fields) != 3:
            raise InputError(f"{path}, line {number}: {_column_fault(fields, separator)}")
        if order is None:
            found = header_order(fields)
            order = found or _AS_WRITTEN
            if found is not None:
                yield number, None, order
                continue
        for column, name in enumerate(fields, 1):
            if not name.strip(_BLANK):
                raise InputError(f"{path}, line {number}: column {column} is empty")
        yield number, [fields[column] for column in order], order


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
    """`split_lines` where quoted values may hold separators and line ends."""
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
            raise UnclosedQuoteError(f"{path}, line {start}: {error}", start) from error
        raise InputError(f"{path}, line {start}: {error}") from error


def _is_comment(line: str, separator: str) -> bool:
    return line.startswith("#") and (line[1:2] == " " or separator not in line)


def _column_fault(fields: list[str], separator: str) -> str:
    kind = "tab" if separator == "\t" else "comma"
    fault = f"expected 3 {kind}-separated columns (head, relation, tail), found {len(fields)}"
    for other, name in ((",", "commas"), ("\t", "tabs"), (";", "semicolons"), (" ", "spaces")):
        if other != separator and len(fields) == 1 and len(fields[0].split(other)) == 3:
            return f"{fault}; the line seems to be separated by {name}"
    return fault


def _last_line_end(data: bytes) -> int:
    """Where the last line that is surely whole ends, 0 if there is none."""
    end = data.rfind(b"\n") + 1
    # Old line ends; a CR at the very end may be the first half of CRLF.
    return end or data.rfind(b"\r", 0, -1) + 1


def _count_lines(data: bytes) -> int:
    """Number of line ends: LF, CRLF or CR."""
    old = data.count(b"\r")
    return data.count(b"\n") + (old - data.count(b"\r\n") if old else 0)


def _decoded_lines(lines: Iterable[bytes], path: Path, first: int) -> Iterator[str]:
    """Lines with their ends, which may be LF, CRLF or CR, as text."""
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
