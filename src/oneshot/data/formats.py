"""Reading: facts out of files in many formats, with errors that name the file and the line.

A reader turns one file into `RawFacts`: three columns of names, or of ids for NPZ.
"""

import gzip
import io
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oneshot.data.text import header_order, line_of_row, read_text
from oneshot.errors import InputError, require
from oneshot.graph.vocabulary import Vocabulary
from oneshot.system.files import check_readable

SEPARATORS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
RDF_FORMATS = {".nt": "N_TRIPLES", ".ttl": "TURTLE"}
FORMATS = (*SEPARATORS, ".parquet", ".npz", *RDF_FORMATS)


@dataclass(frozen=True)
class RawFacts:
    """The facts of one file, before they have ids.

    `columns`: head, relation, tail; each a pyarrow chunked array of strings [n], or, if
    `are_ids`, an integer array [n].
    """

    path: Path
    columns: list[Any]
    are_ids: bool = False
    notes: list[str] = field(default_factory=list)

    def place(self, row: int) -> str:
        """Where fact number `row` stands, for messages."""
        kind = format_of(self.path)
        if kind in SEPARATORS:
            line = line_of_row(read_bytes(self.path), self.path, SEPARATORS[kind], row)
            return f"{self.path}, line {line}"
        return f"{self.path}, fact {row + 1}"


def format_of(path: Path) -> str | None:
    """The format's suffix (`.tsv`, …) with `.gz` set aside, or None for an unknown one."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in FORMATS else None


def read_facts(path: Path) -> RawFacts:
    """The facts in one file of any known format."""
    kind = format_of(path)
    if kind is None:
        raise InputError(f"{path}: unknown format; known are {', '.join(FORMATS)}, each also .gz")
    data = read_bytes(path)
    if not data:
        raise InputError(f"{path}: the file is empty")
    if kind in SEPARATORS:
        return RawFacts(path, read_text(data, path, SEPARATORS[kind]))
    if kind == ".parquet":
        return RawFacts(path, _read_parquet(data, path))
    if kind == ".npz":
        return RawFacts(path, _read_npz(data, path), are_ids=True)
    return _read_rdf(data, path, RDF_FORMATS[kind])


def read_names(path: Path, kind: str) -> Vocabulary:
    """The vocabulary in a file of one name per line."""
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    data = data.rstrip(b"\n") + b"\n"
    if data == b"\n":
        raise InputError(f"{path}: the file is empty")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not valid UTF-8") from error
    letters = np.frombuffer(data, np.uint8)
    line_ends = np.flatnonzero(letters == ord("\n"))
    offsets = np.concatenate([np.zeros(1, np.int64), line_ends - np.arange(len(line_ends))])
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        raise InputError(f"{path}, line {empty[0] + 1}: the line is empty, a name was expected")
    vocabulary = Vocabulary(letters[letters != ord("\n")], offsets, kind)
    try:
        vocabulary.check_distinct()
    except InputError as error:
        raise InputError(f"{path}: {error} (the first line is number 0)") from error
    return vocabulary


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in `.gz`."""
    check_readable(path)
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.name.endswith(".gz") else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _read_parquet(data: bytes, path: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pa.BufferReader(data))
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error
    order = parquet_order(names, path)
    columns = parquet_names([table.column(place) for place in order], path, names, order)
    if not table.num_rows:
        raise InputError(f"{path}: there are no facts in this file")
    return columns


def parquet_order(names: list[str], path: Path) -> list[int]:
    """Where head, relation and tail stand among the columns of a Parquet file."""
    order = header_order(names)
    if order is None and len(names) != 3:
        raise InputError(
            f"{path}: expected the columns head, relation, tail, found {', '.join(names) or 'none'}"
        )
    return order or [0, 1, 2]


def parquet_names(
    columns: list[Any], path: Path, names: list[str], order: list[int], first: int = 0
) -> list[Any]:
    """Three columns of a Parquet file as strings; `first`: the number of their first fact."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = []
    for place, given in zip(order, columns, strict=True):
        try:
            column = pc.cast(given, pa.string())
            column.validate(full=True)  # the names must be UTF-8
        except pa.ArrowException as error:
            raise InputError(
                f"{path}: column {names[place]!r} does not hold names ({error})"
            ) from error
        for fault, rows in (("null", pc.is_null(column)), ("empty", pc.equal(column, ""))):
            row = pc.index(rows, True).as_py()
            if row >= 0:
                raise InputError(f"{path}, fact {first + row + 1}: {names[place]!r} is {fault}")
        texts.append(column)
    return texts


def _read_npz(data: bytes, path: Path) -> list[Any]:
    if not data.startswith(b"PK"):  # numpy would also take a bare array or a pickle
        raise InputError(f"{path}: not an NPZ file")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            names = list(archive.files)
            order = header_order(names)
            columns = [archive[names[place]] for place in order or ()]
    # A damaged archive can fail in zipfile, zlib, struct, tokenize or numpy.
    except Exception as error:
        raise InputError(f"{path}: not a readable NPZ file ({error})") from error
    if not columns:
        raise InputError(f"{path}: expected the arrays h, r, t, found {', '.join(names) or 'none'}")
    if any(np.ndim(column) != 1 or column.dtype.kind not in "iu" for column in columns):
        raise InputError(f"{path}: the arrays h, r, t must be integers of one dimension")
    if len({len(column) for column in columns}) != 1:
        raise InputError(f"{path}: the arrays h, r, t differ in length")
    if not len(columns[0]):
        raise InputError(f"{path}: there are no facts in this file")
    return columns


def _read_rdf(data: bytes, path: Path, kind: str) -> RawFacts:
    import pyarrow as pa

    oxigraph = require("pyoxigraph", "rdf", f"reading {path.name}")
    columns: list[list[str]] = [[], [], []]
    literals = 0
    labels = set(re.findall(rb"_:([0-9a-f]{20,32})(?![0-9a-f])", data))
    anonymous: dict[str, str] = {}

    def name_of(term: Any) -> str:
        if isinstance(term, oxigraph.NamedNode):
            return str(term.value)
        label = str(term).removeprefix("_:")
        if not re.fullmatch("[0-9a-f]{20,32}", label) or label.encode() in labels:
            return str(term)
        # A node without a label gets a random 128-bit number from the parser, another each time.
        return anonymous.setdefault(label, f"_:{path.name}:{len(anonymous) + 1}")

    try:
        for quad in oxigraph.parse(data, format=getattr(oxigraph.RdfFormat, kind)):
            if isinstance(quad.object, oxigraph.Literal):
                literals += 1
                continue
            terms = (quad.subject, quad.predicate, quad.object)
            for column, term in zip(columns, terms, strict=True):
                column.append(name_of(term))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"{path}, line {line}" if line else str(path)
        raise InputError(f"{place}: {getattr(error, 'msg', None) or error}") from error
    if not columns[0]:
        raise InputError(f"{path}: there are no facts between resources in this file")
    notes = [f"{path.name}: left out {literals:,} facts with a literal value"] if literals else []
    return RawFacts(
        path, [pa.chunked_array([pa.array(c, pa.string())]) for c in columns], notes=notes
    )
