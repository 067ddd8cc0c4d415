"""Triple tables as text: tab- or comma-separated files, fast where they are regular.

Well-formed files go through pyarrow's parallel reader. Whatever it refuses is read again line
by line, which either succeeds (odd but valid input) or names the line that is wrong.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

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


def read_text(data: bytes, path: Path, separator: str) -> list[Any]:
    """Three pyarrow string columns (head, relation, tail) from the content of a text file.

    Empty lines, comments (`# …`, or lines that start with # and hold no separator), a header
    row, a byte order mark and CRLF are understood.
    """
    columns = _read_fast(data, separator)
    if columns is None:
        columns = _read_by_line(data, path, separator)
    if not len(columns[0]):
        raise InputError(f"{path}: there are no facts in this file")
    return columns


def line_of_row(data: bytes, path: Path, separator: str, row: int) -> int:
    """The line, counted from 1, on which fact number `row` (from 0) of a text file stands."""
    for position, (line, _) in enumerate(_rows(data, path, separator)):
        if position == row:
            return line
    raise IndexError(row)


def header_order(first_row: list[str]) -> list[int] | None:
    """Where head, relation and tail stand, if this row is a header; else None."""
    folded = [name.strip().lstrip("#").strip().casefold() for name in first_row]
    order = []
    for names in COLUMN_NAMES:
        places = [place for place, name in enumerate(folded) if name in names]
        if len(places) != 1:
            return None
        order.append(places[0])
    return order


def _read_fast(data: bytes, separator: str) -> list[Any] | None:
    """The columns of a regular file, or None where a closer look is needed."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    data = data.removeprefix(_BYTE_ORDER_MARK)
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
    if table.num_rows:
        order = header_order([column[0].as_py() for column in columns])
        if order is not None:
            columns = [columns[place].slice(1) for place in order]
    blank = any(pc.any(pc.equal(pc.utf8_trim(c, _BLANK), "")).as_py() for c in columns)
    return None if blank else columns


def _read_by_line(data: bytes, path: Path, separator: str) -> list[Any]:
    """The columns, with an error that names the line for anything that cannot be read."""
    import pyarrow as pa

    columns: list[list[str]] = [[], [], []]
    for _, row in _rows(data, path, separator):
        for column, name in zip(columns, row, strict=True):
            column.append(name)
    return [pa.chunked_array([pa.array(column, pa.string())]) for column in columns]


def _rows(data: bytes, path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The facts of a text file with their line numbers."""
    order = [0, 1, 2]
    first = True
    lines = data.removeprefix(_BYTE_ORDER_MARK).splitlines(keepends=True)
    for number, fields in split_lines(lines, path, separator):
        if len(fields) != 3:
            raise InputError(f"{path}, line {number}: {_column_fault(fields, separator)}")
        if first:
            first = False
            found = header_order(fields)
            if found is not None:
                order = found
                continue
        for place, name in enumerate(fields):
            if not name.strip(_BLANK):
                raise InputError(f"{path}, line {number}: column {place + 1} is empty")
        yield number, [fields[place] for place in order]


def split_lines(
    lines: Iterable[bytes], path: Path, separator: str
) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields of the lines that are neither empty nor comments."""
    decoded = _decoded_lines(lines, path)
    if separator == ",":
        yield from _split_csv(decoded, path)
        return
    for number, line in enumerate(decoded, 1):
        if line.strip(_BLANK) and not _is_comment(line, separator):
            yield number, line.rstrip("\r\n").split(separator)


def _split_csv(lines: Iterator[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """`split_lines` where quoted values may hold separators and line ends."""
    inside = False  # a row that began on an earlier line

    def without_comments() -> Iterator[str]:
        nonlocal inside
        for line in lines:
            skip = not inside and (not line.strip(_BLANK) or _is_comment(line, ","))
            inside = True
            yield "\n" if skip else line

    reader = csv.reader(without_comments(), strict=True)
    start = 1
    try:
        for fields in reader:
            if any(field.strip(_BLANK) for field in fields):
                yield start, fields
            start, inside = reader.line_num + 1, False
    except csv.Error as error:
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


def _decoded_lines(lines: Iterable[bytes], path: Path) -> Iterator[str]:
    """Lines with their ends, which may be LF, CRLF or CR, as text."""
    for number, line in enumerate(lines, 1):
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
