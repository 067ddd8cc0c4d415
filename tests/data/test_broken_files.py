"""Broken files of every format are read or refused: no exception but InputError ever comes out."""

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fact_files import whole_file

from oneshot.data.formats import FORMATS
from oneshot.data.formats.text import read_text
from oneshot.data.load import load
from oneshot.errors import InputError

# Where a change hurts (a share of the file), how many bytes go, and what comes instead.
edits = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 12),
        st.one_of(st.binary(max_size=6), st.sampled_from([b"\n", b"\t", b",", b'"', b"\r", b"#"])),
    ),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for place, gone, new in changes:
        start = int(place * len(data))
        data = data[:start] + new + data[start + gone :]
    return data


def load_or_refuse(path: Path) -> str:
    fault, data = None, None
    try:
        data = load(path)
    except InputError as error:
        fault = str(error)
    if data is None:
        assert fault is not None
        assert str(path) in fault
        assert "\n" not in fault
        return "refused"
    # What was loaded can be used.
    assert len(list(data.entities)) == len(data.entities)
    assert int(data.known[:, [0, 2]].max()) < len(data.entities)
    assert data.graph.degree.sum() == 2 * len(data.train)
    return "loaded"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, suffix: str, compressed: bool) -> None:
    if suffix in (".nt", ".ttl"):
        pytest.importorskip("pyoxigraph", reason="needs the extra rdf")
    path = tmp_path / f"facts{suffix}{'.gz' if compressed else ''}"
    whole = whole_file(suffix)
    path.write_bytes(gzip.compress(whole, mtime=0) if compressed else whole)
    outcomes = {load_or_refuse(path)}
    assert outcomes == {"loaded"}

    @settings(max_examples=60, deadline=None)
    @given(edits, st.booleans())
    def check(changes: list[tuple[float, int, bytes]], outside: bool) -> None:
        if compressed:
            data = edited(gzip.compress(whole, mtime=0), changes) if outside else b""
            path.write_bytes(data or gzip.compress(edited(whole, changes)))
        else:
            path.write_bytes(edited(whole, changes))
        outcomes.add(load_or_refuse(path))

    check()
    assert outcomes == {"loaded", "refused"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_garbage_is_read_or_refused(tmp_path: Path, suffix: str) -> None:
    if suffix in (".nt", ".ttl"):
        pytest.importorskip("pyoxigraph", reason="needs the extra rdf")
    path = tmp_path / f"facts{suffix}"
    prefix = {".npz": b"PK\x03\x04", ".parquet": b"PAR1"}.get(suffix, b"")

    @settings(max_examples=40, deadline=None)
    @given(st.binary(max_size=200), st.booleans())
    def check(data: bytes, begun: bool) -> None:
        path.write_bytes(prefix + data if begun else data)
        load_or_refuse(path)

    check()


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
@pytest.mark.parametrize("cut", ["line", "column"])
def test_every_cut_of_a_table_is_read_or_refused(tmp_path: Path, suffix: str, cut: str) -> None:
    """A file that ends anywhere, or a line that lost one of its columns."""
    whole = whole_file(suffix)
    path = tmp_path / f"facts{suffix}"
    separator = b"\t" if suffix == ".tsv" else b","
    if cut == "line":
        contents = [whole[:end] for end in range(1, len(whole))]
    else:
        places = [i for i in range(len(whole)) if whole[i : i + 1] == separator]
        contents = [whole[:place] + whole[place + 1 :] for place in places]
    outcomes = set()
    for content in contents:
        path.write_bytes(content)
        outcomes.add(load_or_refuse(path))
    assert "refused" in outcomes
    if cut == "line":
        assert "loaded" in outcomes


ENDS = """
import sys
from pathlib import Path
from oneshot.data.formats import read_facts
from oneshot.errors import InputError
try:
    read_facts(Path(sys.argv[1]))
except InputError:
    sys.exit(2)
"""


@pytest.mark.parametrize(
    "columns",
    [{"a": ["x"], "b": ["r"]}, {"head": [None, "x"], "relation": ["r", "r"], "tail": ["y", "y"]}],
)
def test_the_process_ends_after_a_bad_parquet_file(
    tmp_path: Path, columns: dict[str, list[str | None]]
) -> None:
    """A thread of pyarrow that still had the content aborted about half of the processes."""
    pq.write_table(pa.table(columns), tmp_path / "facts.parquet")
    command = [sys.executable, "-c", ENDS, str(tmp_path / "facts.parquet")]
    assert [subprocess.run(command).returncode for _ in range(2)] == [2, 2]


def test_pyarrow_reads_text_from_memory_that_is_not_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its threads have it for a while after an error."""
    reader, given = pa.BufferReader, []

    def recorded(source: Any) -> Any:
        given.append(type(source))
        return reader(source)

    monkeypatch.setattr(pa, "BufferReader", recorded)
    with pytest.raises(InputError, match="line 1"):
        read_text(b"x,y\n" + b"a,r,b\n" * 9, Path("facts.csv"), ",")
    assert given == [pa.Buffer]
