"""Tests of the readers of whole files: every format in, errors that name the file."""

import csv
import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oneshot.data.formats import FORMATS, format_of, read_facts, read_names, write_facts
from oneshot.data.formats.base import header_order
from oneshot.data.large.build import can_build
from oneshot.data.load import load
from oneshot.data.locate import locate
from oneshot.errors import InputError

Row = tuple[str, str, str]

FACTS = [("New York", "is in", "Ünïted States"), ("a,b", "r", 'c"d'), ("x", "r", "x")]


def rows_in(path: Path) -> list[Row]:
    columns = [column.to_pylist() for column in read_facts(path).columns]
    return list(zip(*columns, strict=True))


def tsv(facts: list[Row]) -> bytes:
    return "".join("\t".join(fact) + "\n" for fact in facts).encode()


def quoted_csv(facts: list[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(facts)
    return text.getvalue().encode()


def parquet(facts: list[Row], names: tuple[str, ...] = ("head", "relation", "tail")) -> bytes:
    target = io.BytesIO()
    columns = [pa.array(column, pa.string()) for column in zip(*facts, strict=True)]
    pq.write_table(pa.table(columns, names=list(names)), target)
    return target.getvalue()


def npz(**arrays: Any) -> bytes:
    target = io.BytesIO()
    np.savez(target, **arrays)
    return target.getvalue()


text_name = st.text(st.characters(codec="utf-8", exclude_characters="\t\r\n"), min_size=1)
any_name = st.text(min_size=1)


def tables(name: st.SearchStrategy[str]) -> st.SearchStrategy[list[Row]]:
    solid = name.filter(lambda text: text.strip(" \v\f\t\r\n"))
    rows = st.lists(st.tuples(solid, solid, solid), min_size=1, max_size=8)
    return rows.filter(lambda facts: header_order(list(facts[0])) is None)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("suffix", "names", "write"),
    [(".tsv", text_name, tsv), (".csv", any_name, quoted_csv), (".parquet", any_name, parquet)],
)
def test_any_table_comes_back_as_it_was_written(
    tmp_path: Path,
    suffix: str,
    names: st.SearchStrategy[str],
    write: Callable[[list[Row]], bytes],
    compressed: bool,
) -> None:
    path = tmp_path / f"facts{suffix}{'.gz' if compressed else ''}"

    @settings(max_examples=60, deadline=None)
    @given(tables(names))
    def check(facts: list[Row]) -> None:
        comment_like = any(head[0] == "#" and head[1:2] in " #!" for head, _, _ in facts)
        assume(not (suffix == ".tsv" and (comment_like or facts[0][0][0] == "\ufeff")))
        data = write(facts)
        path.write_bytes(gzip.compress(data, mtime=0) if compressed else data)
        assert rows_in(path) == facts

    check()


def test_text_files_are_tab_separated(tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_bytes(tsv(FACTS))
    assert rows_in(tmp_path / "facts.txt") == FACTS
    (tmp_path / "FACTS.TSV").write_bytes(tsv(FACTS))
    assert rows_in(tmp_path / "FACTS.TSV") == FACTS


def test_parquet_columns_are_found_by_name_or_else_by_place(tmp_path: Path) -> None:
    path = tmp_path / "facts.parquet"
    path.write_bytes(parquet([("weight", "tail", "relation", "head")], ("w", "o", "p", "s")))
    assert rows_in(path) == [("head", "relation", "tail")]
    path.write_bytes(parquet(FACTS, ("left", "middle", "right")))
    assert rows_in(path) == FACTS
    pq.write_table(pa.table({"h": [1, 2], "r": [0, 0], "t": [2, 3]}), path)
    assert rows_in(path) == [("1", "0", "2"), ("2", "0", "3")]
    encoded = pa.array(["a", "b"]).dictionary_encode()
    pq.write_table(pa.table({"h": encoded, "r": encoded, "t": encoded}), path)
    assert rows_in(path) == [("a", "a", "a"), ("b", "b", "b")]


def test_npz_holds_ids(tmp_path: Path) -> None:
    path = tmp_path / "facts.npz"
    path.write_bytes(npz(t=np.array([1, 2], "u8"), h=np.array([0, 1], "i4"), r=np.zeros(2, int)))
    facts = read_facts(path)
    assert facts.are_ids
    assert [column.tolist() for column in facts.columns] == [[0, 1], [0, 0], [1, 2]]
    # Other arrays in the file are not touched.
    path.write_bytes(npz(h=[0], r=[0], t=[1], notes=np.array([None])))
    assert [column.tolist() for column in read_facts(path).columns] == [[0], [0], [1]]


def zipped(**members: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


BARE_ARRAY = io.BytesIO()
np.save(BARE_ARRAY, np.arange(3))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.tsv", b"", "the file is empty"),
        ("f.parquet.gz", b"", "the file is empty"),
        ("f.json", b"[]", r"unknown format; supported suffixes: \.tsv"),
        ("f.gz", b"", "unknown format"),
        ("f.tsv.gz", b"a\tr\tb\n", "incomplete or invalid gzip file"),
        ("f.tsv.gz", gzip.compress(tsv(FACTS), mtime=0)[:-9], "incomplete or invalid gzip file"),
        (
            "f.tsv.gz",
            gzip.compress(tsv(FACTS), mtime=0)[:20] + b"\xff" * 30,
            "incomplete or invalid gzip file",
        ),
        ("f.parquet", parquet(FACTS)[:-5], "not a readable Parquet file"),
        ("f.parquet", parquet(FACTS)[:40], "not a readable Parquet file"),
        ("f.parquet", b"\0\xffgarbage" * 20, "not a readable Parquet file"),
        ("f.parquet", parquet([("a", "b")], ("x", "y")), "expected the columns .* found x, y"),
        ("f.parquet", parquet([("a", "r", "")]), "fact 1: 'tail' is empty"),
        ("f.npz", b"\0\xffgarbage" * 20, "not an NPZ file"),
        ("f.npz", b"PK garbage", "not a readable NPZ file"),
        ("f.npz", npz(h=[1], r=[0], t=[2])[:-30], "not a readable NPZ file"),
        ("f.npz", BARE_ARRAY.getvalue(), "not an NPZ file"),
        ("f.npz", npz(a=[1], b=[2]), "expected the arrays h, r, t, found a, b"),
        ("f.npz", npz(h=[1.5], r=[0], t=[2]), "must be integers of one dimension"),
        ("f.npz", npz(h=[[1]], r=[[0]], t=[[2]]), "must be integers of one dimension"),
        ("f.npz", npz(h=[1, 2], r=[0], t=[2]), "differ in length"),
        ("f.npz", npz(h=np.array([], int), r=np.array([], int), t=np.array([], int)), "no facts"),
        ("f.npz", zipped(h=b"x", r=b"y", t=b"z"), "must be integers of one dimension"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}.*{message}"):
        read_facts(tmp_path / name)


def test_parquet_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"h": ["a", None], "r": ["r", "r"], "t": ["b", "c"]}), path)
    with pytest.raises(InputError, match=r"f\.parquet, fact 2: 'h' is null"):
        read_facts(path)
    pq.write_table(pa.table({"h": [["a"]], "r": ["r"], "t": ["b"]}), path)
    with pytest.raises(InputError, match="column 'h' does not contain names"):
        read_facts(path)
    pq.write_table(pa.table({"h": [b"\xff"], "r": ["r"], "t": ["b"]}), path)
    with pytest.raises(InputError, match="column 'h' does not contain names"):
        read_facts(path)
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    invalid = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff"))
    pq.write_table(pa.table({"h": invalid, "r": ["r"], "t": ["b"]}), path)
    with pytest.raises(InputError, match=r"column 'h' does not contain names .*UTF8"):
        read_facts(path)
    pq.write_table(pa.table({"h": pa.array([], "string"), "r": [], "t": []}), path)
    with pytest.raises(InputError, match="no facts"):
        read_facts(path)


class Trap:
    """Leaves a mark if it is ever unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "opened")])
    path = tmp_path / "f.npz"
    for content in (npz(h=trap, r=trap, t=trap), pickle.dumps(trap)):
        path.write_bytes(content)
        with pytest.raises(InputError, match="NPZ file"):
            read_facts(path)
    assert not (tmp_path / "opened").exists()
    pickle.loads(path.read_bytes())  # the trap works
    assert (tmp_path / "opened").exists()


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.tsv").mkdir()
    with pytest.raises(InputError, match=r"d\.tsv: Is a directory"):
        read_facts(tmp_path / "d.tsv")
    with pytest.raises(InputError, match=r"none\.tsv: No such file"):
        read_facts(tmp_path / "none.tsv")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"f\.tsv: Permission denied"):
        read_facts(tmp_path / "f.tsv")


def test_formats_are_told_by_the_ending() -> None:
    for suffix in FORMATS:
        found = [format_of(Path(name)) for name in (f"a.b{suffix}", f"a{suffix}.gz")]
        assert found == [FORMATS[suffix]] * 2
    assert [format_of(Path(name)) for name in ("tsv", "a.tsv~", "a.gz", "a.tsv.bak")] == [None] * 4


@pytest.mark.parametrize(
    "content",
    [b"a b\n\xc3\xa9\n#c\n", b"a b\r\n\xc3\xa9\r\n#c", b"\xef\xbb\xbfa b\n\xc3\xa9\n#c\n\n\n"],
)
def test_names_stand_one_a_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "entities.txt").write_bytes(content)
    (tmp_path / "entities.txt.gz").write_bytes(gzip.compress(content, mtime=0))
    for file in ("entities.txt", "entities.txt.gz"):
        assert list(read_names(tmp_path / file, "entity")) == ["a b", "é", "#c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"a\n\nb\n", "line 2: the line is empty"),
        (b"a\nb\na\n", "'a' occurs twice, as number 0 and 2"),
        (b"a\nb\xff\n", "line 2: not valid UTF-8"),
    ],
)
def test_bad_names_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "entities.txt").write_bytes(content)
    with pytest.raises(InputError, match=rf"entities\.txt.*{message}"):
        read_names(tmp_path / "entities.txt", "entity")


def test_a_format_is_known_everywhere_by_its_line_in_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = replace(
        FORMATS[".tsv"],
        read=lambda data, path: FORMATS[".tsv"].read(data.replace(b"|", b"\t"), path),
        stream=None,
        write=lambda path, rows, columns: path.write_text(
            "".join("|".join(row) + "\n" for row in rows)
        ),
    )
    monkeypatch.setitem(FORMATS, ".bar", bars)
    for split in ("train", "valid", "test"):
        assert write_facts(tmp_path / f"{split}.bar", [("a", "r", "b"), ("b", "r", "c")]) == 2
    data = load(tmp_path)
    assert data.graph.num_facts == 2
    assert list(data.entities) == ["a", "b", "c"]
    assert not can_build(locate(tmp_path))
    with pytest.raises(InputError, match=r"\.bar"):
        read_facts(tmp_path / "facts.unknown")
