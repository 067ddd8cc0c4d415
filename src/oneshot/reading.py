"""Reading: facts out of files in many formats, with errors that name the file and the line.

A reader turns one file into `RawFacts`: three columns of names, or of ids for NPZ. `numbered`
then turns the raw facts of all splits into ids under one vocabulary.
"""

import gzip
import io
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import InputError, UnknownNameError, require
from oneshot.graph import check_ids
from oneshot.text_tables import header_order, line_of_row, read_text
from oneshot.vocabulary import Vocabulary

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
    if data and not data.endswith(b"\n"):
        data += b"\n"
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


def numbered(
    splits: list[RawFacts], entities: Vocabulary | None, relations: Vocabulary | None
) -> tuple[list[NDArray[np.int64]], Vocabulary, Vocabulary]:
    """Facts as ids, one int64 [n, 3] a split, under common vocabularies.

    Without a given vocabulary the names are numbered in sorted order (ids in NPZ files keep
    their numbers); with one, a name outside it is an error.
    """
    if any(split.are_ids != splits[0].are_ids for split in splits):
        raise InputError(
            f"{splits[0].path.parent}: NPZ files of ids cannot stand beside files of names"
        )
    if splits[0].are_ids:
        return _check_numbers(splits, entities, relations)
    heads_and_tails, entities = _number_names(splits, (0, 2), entities, "entity")
    labels, relations = _number_names(splits, (1,), relations, "relation")
    facts = [
        np.stack([heads_and_tails[0][i], labels[0][i], heads_and_tails[1][i]], axis=1)
        for i in range(len(splits))
    ]
    return facts, entities, relations


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in `.gz`."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.name.endswith(".gz") else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _read_parquet(data: bytes, path: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error
    order = header_order(table.column_names)
    if order is None:
        if table.num_columns != 3:
            raise InputError(
                f"{path}: expected the columns head, relation, tail, found "
                f"{', '.join(table.column_names) or 'none'}"
            )
        order = [0, 1, 2]
    columns = []
    for place in order:
        try:
            column = pc.cast(table.column(place), pa.string())
        except pa.ArrowException as error:
            raise InputError(
                f"{path}: column {table.column_names[place]!r} does not hold names ({error})"
            ) from error
        for fault, rows in (("null", pc.is_null(column)), ("empty", pc.equal(column, ""))):
            row = pc.index(rows, True).as_py()
            if row >= 0:
                raise InputError(
                    f"{path}, fact {row + 1}: {table.column_names[place]!r} is {fault}"
                )
        columns.append(column)
    if not table.num_rows:
        raise InputError(f"{path}: there are no facts in this file")
    return columns


def _read_npz(data: bytes, path: Path) -> list[Any]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise InputError(f"{path}: not a readable NPZ file ({error})") from error
    order = header_order(list(arrays))
    if order is None:
        raise InputError(
            f"{path}: expected the arrays h, r, t, found {', '.join(arrays) or 'none'}"
        )
    columns = [list(arrays.values())[place] for place in order]
    if any(column.ndim != 1 or column.dtype.kind not in "iu" for column in columns):
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
    try:
        for quad in oxigraph.parse(data, format=getattr(oxigraph.RdfFormat, kind)):
            if isinstance(quad.object, oxigraph.Literal):
                literals += 1
                continue
            for column, term in zip(
                columns, (quad.subject, quad.predicate, quad.object), strict=True
            ):
                named = isinstance(term, oxigraph.NamedNode)
                column.append(term.value if named else str(term))
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


def _number_names(
    splits: list[RawFacts], places: tuple[int, ...], given: Vocabulary | None, kind: str
) -> tuple[list[list[NDArray[np.int64]]], Vocabulary]:
    """Ids of some columns of all splits: (ids[place][split] int64 [n], vocabulary)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [[split.columns[place] for split in splits] for place in places]
    chunks = [chunk for column in columns for part in column for chunk in part.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode().combine_chunks()
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
    names = encoded.dictionary
    if given is None:
        order = pc.sort_indices(names)
        new_id = np.empty(len(names), np.int64)
        new_id[order.to_numpy()] = np.arange(len(names))
        vocabulary = _from_arrow(names.take(order), kind)
    else:
        vocabulary = given
        new_id = _look_up(names, given)
    ids = new_id[encoded.indices.to_numpy()]
    unknown = np.flatnonzero(ids < 0)
    sizes = [len(part) for column in columns for part in column]
    parts = np.split(ids, np.cumsum(sizes)[:-1])
    if len(unknown):
        for position, part in enumerate(parts):
            bad = np.flatnonzero(part < 0)
            if len(bad):
                split = splits[position % len(splits)]
                column = columns[position // len(splits)][position % len(splits)]
                name = column[int(bad[0])].as_py()
                raise UnknownNameError(
                    kind, name, vocabulary.nearest(name), where=split.place(int(bad[0]))
                )
    rows = len(splits)
    return [parts[i : i + rows] for i in range(0, len(parts), rows)], vocabulary


def _look_up(names: Any, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """The id of each name of a pyarrow string array in a vocabulary, -1 if absent. → [n]"""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.LargeStringArray.from_buffers(
        len(vocabulary),
        pa.py_buffer(np.ascontiguousarray(vocabulary.offsets)),
        pa.py_buffer(np.ascontiguousarray(vocabulary.blob)),
    )
    found = pc.index_in(names.cast(pa.large_string()), value_set=known)
    return np.asarray(found.fill_null(-1), dtype=np.int64)


def _from_arrow(names: Any, kind: str) -> Vocabulary:
    """The vocabulary of a pyarrow string array of distinct names."""
    import pyarrow as pa

    names = names.cast(pa.large_string())
    _, offsets, blob = names.buffers()
    ends = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
    letters = np.frombuffer(blob, np.uint8) if blob is not None else np.zeros(0, np.uint8)
    return Vocabulary(letters[ends[0] : ends[-1]], ends - ends[0], kind)


def _check_numbers(
    splits: list[RawFacts], entities: Vocabulary | None, relations: Vocabulary | None
) -> tuple[list[NDArray[np.int64]], Vocabulary, Vocabulary]:
    """`numbered` for facts that are ids already."""
    if entities is None:
        count = 1 + max(int(split.columns[i].max()) for split in splits for i in (0, 2))
        entities = Vocabulary.numbered(count, "entity")
    if relations is None:
        count = 1 + max(int(split.columns[1].max()) for split in splits)
        relations = Vocabulary.numbered(count, "relation")
    for split in splits:
        for column, names in zip(split.columns, (entities, relations, entities), strict=True):
            check_ids(column, names, where=str(split.path))
    facts = [np.stack([c.astype(np.int64) for c in split.columns], axis=1) for split in splits]
    return facts, entities, relations
