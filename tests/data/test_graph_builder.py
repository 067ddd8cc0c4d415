"""Tests of graphs built on the disk: the same as in memory, whatever interrupts the build."""

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.commands import Command, listing
from tests.support.samples import assert_equal_data

from oneshot.data import load as load_module
from oneshot.data.formats import parquet as parquet_files
from oneshot.data.formats import text as text_tables
from oneshot.data.large import arrays as array_files
from oneshot.data.large import build as graph_builder
from oneshot.data.large import names as name_runs
from oneshot.data.large.build import build_graph
from oneshot.data.large.state import Options, building_place
from oneshot.data.load import load
from oneshot.data.locate import locate
from oneshot.errors import InputError
from oneshot.graph import adjacency as edges
from oneshot.samplers import PPRSampler
from oneshot.system import files

SPLITS = ("train", "valid", "test")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few facts take the way of a hundred million: many runs, ranges and buckets."""
    monkeypatch.setattr(text_tables, "STREAMED_BYTES", 100)
    monkeypatch.setattr(parquet_files, "STREAMED_ROWS", 6)
    monkeypatch.setattr(graph_builder, "RUN_BYTES", 300)
    monkeypatch.setattr(graph_builder, "BUCKET_ROWS", 16)
    monkeypatch.setattr(graph_builder, "_SAMPLED", 2)
    monkeypatch.setattr(name_runs, "RANGE_BYTES", 150)
    monkeypatch.setattr(array_files, "PIECE", 10)
    # Waiting for the disk hundreds of times proves nothing here.
    monkeypatch.setattr(array_files, "sync", lambda _: None)
    monkeypatch.setattr(files, "sync", lambda _: None)


def rows(count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Facts with repeats, self-loops, a hub, and names of different length and script."""
    generator = np.random.default_rng(seed)
    names = [f"{'näme日' * (i % 3)}{i}" for i in range(40)]
    head, tail = generator.integers(40, size=(2, count))
    tail[::4] = 3
    return [
        (names[h], f"r{r}", names[t])
        for h, r, t in zip(head, generator.integers(4, size=count), tail, strict=True)
    ]


def text(facts: list[tuple[str, str, str]], separator: str = "\t") -> str:
    return "".join(separator.join(fact) + "\n" for fact in facts)


def single_tsv(place: Path) -> Path:
    path = place / "facts.tsv"
    path.write_text("# a comment\n" + text(rows(300)))
    return path


def single_csv(place: Path) -> Path:
    path = place / "facts.csv.gz"
    odd = '"two\nlines","a ""word""",x\r\n'
    table = "tail,rel,head\n" + odd + text(rows(60), ",") + odd + "tail,rel,head\n" + odd
    path.write_bytes(gzip.compress(table.encode()))
    return path


def single_parquet(place: Path) -> Path:
    path = place / "facts.parquet"
    columns = list(zip(*rows(100), strict=True))
    table = pa.table([columns[2], columns[0], columns[1], range(100)], names=["o", "s", "p", "n"])
    pq.write_table(table, path, row_group_size=17)
    return path


def packed_parquet(place: Path) -> Path:
    plain = single_parquet(place)
    path = place / "facts.parquet.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    return path


def folder(place: Path) -> Path:
    path = place / "folder"
    path.mkdir()
    for number, split in enumerate(SPLITS):
        (path / f"{split}.tsv").write_text(text(rows(120 - 50 * number, number)))
    return path


def folder_with_names(place: Path) -> Path:
    path = folder(place)
    names = sorted({name for s in range(3) for h, _, t in rows(120, s) for name in (h, t)})
    (path / "entities.txt").write_text("\n".join(["unused", *reversed(names)]))
    (path / "relations.txt").write_text("r3\nr1\nr0\nr2\nmore\n")
    return path


def one_fact(place: Path) -> Path:
    path = place / "one.txt"
    path.write_text("a\tr\ta")
    return path


SOURCES = [
    single_tsv,
    single_csv,
    single_parquet,
    packed_parquet,
    folder,
    folder_with_names,
    one_fact,
]


@pytest.mark.parametrize("source", SOURCES)
def test_a_graph_built_on_the_disk_is_that_of_memory(
    tmp_path: Path, source: Callable[[Path], Path]
) -> None:
    path = source(tmp_path)
    before = listing(tmp_path)
    load(path).save(tmp_path / "memory")
    build_graph(locate(path), tmp_path / "disk")
    assert_equal_data(load(path), load(tmp_path / "disk"))
    for file in (tmp_path / "memory").iterdir():
        assert file.read_bytes() == (tmp_path / "disk" / file.name).read_bytes(), file.name
    kept = [name for name in listing(tmp_path) if not name.startswith(("memory", "disk"))]
    assert kept == before


@pytest.mark.parametrize("limit", [30, 50, 200])
def test_numbers_take_64_bits_where_they_need_them(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = single_tsv(tmp_path)
    narrow = load(path)
    assert narrow.graph.edges.fact.dtype == torch.int32
    monkeypatch.setattr(edges, "SMALL", limit)  # 40 entities, more than 200 edges
    wide = load(path)
    wide.save(tmp_path / "memory")
    build_graph(locate(path), tmp_path / "disk")
    ids = torch.int64 if limit <= 40 else torch.int32
    for graph in (wide.graph, load(tmp_path / "disk").graph):
        for array in (graph.facts, graph.edges.source, graph.neighbours.index):
            assert array.dtype == ids
        for array in (graph.edges.fact, graph.neighbours.pair, graph.neighbours.indptr):
            assert array.dtype == torch.int64
        assert graph.fingerprint == narrow.graph.fingerprint
        half = torch.arange(graph.num_facts) % 2 == 0
        assert graph.subset(half).fingerprint == narrow.graph.subset(half).fingerprint
        queries = torch.tensor([[3, 0], [7, 5]])
        for method in ("push", "chebyshev"):
            sampler = PPRSampler(max_entities=12, method=method)  # type: ignore[arg-type]
            expected = sampler.sample(narrow.graph, queries)
            for name, tensor in vars(sampler.sample(graph, queries)).items():
                assert torch.equal(tensor, getattr(expected, name)), name
    for file in (tmp_path / "memory").iterdir():
        assert file.read_bytes() == (tmp_path / "disk" / file.name).read_bytes(), file.name


names = st.text(st.characters(codec="utf-8", exclude_characters="\t\r\n#"), min_size=1, max_size=6)
name = names.filter(lambda text: text.strip() and not text.startswith("\ufeff"))
facts = st.lists(st.tuples(name, name, name), min_size=2, max_size=40)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(facts, st.integers(0, 100), st.floats(0, 0.5), st.floats(0, 0.4))
def test_any_facts_and_options(
    tmp_path_factory: pytest.TempPathFactory,
    facts: list[tuple[str, str, str]],
    seed: int,
    valid_share: float,
    test_share: float,
) -> None:
    place = tmp_path_factory.mktemp("any")
    path = place / "facts.tsv"
    path.write_bytes(text(facts + facts[::3]).encode())
    options = {"seed": seed, "valid_share": valid_share, "test_share": test_share}
    build_graph(locate(path), place / "disk", Options(seed, valid_share, test_share))
    assert_equal_data(load(path, **options), load(place / "disk"))  # type: ignore[arg-type]


class Stop(BaseException):
    """Stands for a signal."""


@pytest.mark.parametrize("source", [single_tsv, single_parquet, folder_with_names])
def test_an_interrupted_build_goes_on(
    tmp_path: Path, source: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source(tmp_path)
    written: list[int] = []
    write = graph_builder._Build._write_run
    monkeypatch.setattr(
        graph_builder._Build,
        "_write_run",
        lambda build, pieces, split, is_last: (
            written.append(sum(len(piece.columns[0]) for piece in pieces)),
            write(build, pieces, split, is_last),
        ),
    )
    stops: dict[str, int] = {}

    def stop_twice_in_every_stage(what: str, *_: int) -> None:
        stops[what] = stops.get(what, 0) + 1
        if stops[what] in (1, 4, 9):
            raise Stop

    starts = 1
    while True:
        try:
            build_graph(locate(path), tmp_path / "disk", progress=stop_twice_in_every_stage)
            break
        except Stop:
            starts += 1
    assert starts > 12
    assert len(stops) >= 8
    # What was read before an interruption is not read again.
    total = sum(len(load(path).facts(split)) for split in SPLITS) + load(path).duplicates
    assert sum(written) == total
    assert_equal_data(load(path), load(tmp_path / "disk"))
    assert not building_place(tmp_path / "disk").exists()


def test_a_killed_build_goes_on_and_the_old_graph_stays(tmp_path: Path) -> None:
    path = single_tsv(tmp_path)
    build_graph(locate(folder(tmp_path)), tmp_path / "disk")
    code = """
import os, signal, sys
from pathlib import Path
from oneshot.data.large import build as graph_builder
from oneshot.data.locate import locate
def progress(what, done, total):
    if what == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
graph_builder.build_graph(locate(Path(sys.argv[1])), Path(sys.argv[2]), progress=progress)
"""
    for stage in ("reading", "sorting edges"):
        command = [sys.executable, "-c", code, str(path), str(tmp_path / "disk"), stage]
        assert subprocess.run(command).returncode == -9
        assert load(tmp_path / "disk").name == "folder"
    assert building_place(tmp_path / "disk").exists()
    build_graph(locate(path), tmp_path / "disk")
    assert_equal_data(load(path), load(tmp_path / "disk"))


def test_a_build_of_another_source_starts_anew(tmp_path: Path) -> None:
    path = single_tsv(tmp_path)

    def stop_late(what: str, *_: int) -> None:
        if what == "sorting edges":
            raise Stop

    for change in (
        lambda: path.write_text(text(rows(70, 5))),
        lambda: (building_place(tmp_path / "disk") / "build.json").write_text("{"),
    ):
        with pytest.raises(Stop):
            build_graph(locate(path), tmp_path / "disk", progress=stop_late)
        change()
        build_graph(locate(path), tmp_path / "disk")
        assert_equal_data(load(path), load(tmp_path / "disk"))


def test_a_build_killed_while_its_files_are_moved_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = single_tsv(tmp_path)
    moved = []
    replace = Path.replace

    def fail_later(self: Path, target: Path) -> Path:
        if self.suffix == ".npy":
            moved.append(self)
            if len(moved) == 5:
                raise Stop
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail_later)
        with pytest.raises(Stop):
            build_graph(locate(path), tmp_path / "disk")
    build_graph(locate(path), tmp_path / "disk")
    assert_equal_data(load(path), load(tmp_path / "disk"))


def test_two_processes_do_not_build_one_graph(tmp_path: Path) -> None:
    path = single_tsv(tmp_path)

    def build_again(*_: object) -> None:
        build_graph(locate(path), tmp_path / "disk")

    with pytest.raises(InputError, match="another process is building this graph"):
        build_graph(locate(path), tmp_path / "disk", progress=build_again)


def test_a_directory_of_others_is_left_alone(tmp_path: Path) -> None:
    path = single_tsv(tmp_path)
    building_place(tmp_path / "disk").mkdir()
    (building_place(tmp_path / "disk") / "mine").write_text("precious")
    with pytest.raises(InputError, match="was not written by oneshot; move it away"):
        build_graph(locate(path), tmp_path / "disk")
    assert (building_place(tmp_path / "disk") / "mine").read_text() == "precious"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train.tsv", text(rows(80)) + "a\tb\n", r"train\.tsv, line 81: expected 3 tab-separated"),
        ("valid.tsv", text(rows(80)) + "a\tr0\t\n", r"valid\.tsv, line 81: column 3 is empty"),
        ("test.tsv", "", r"test\.tsv: the file is empty"),
        ("test.tsv", "head\trel\ttail\n\n\n", r"test\.tsv: the file has no facts"),
        ("entities.txt", text(rows(1)), r"train\.tsv, line 1: unknown entity"),
        ("relations.txt", "r0\nr1\nR2\nr3", r"line \d+: unknown relation 'r2'; did you mean 'R2'"),
        ("test.tsv.gz", b"\x1f\x8b\x08\x00garbage", r"test\.tsv\.gz: incomplete or inv"),
        ("test.parquet", b"PAR1", r"test\.parquet: not a readable Parquet file"),
        ("train.tsv", "a\tr\tb\na\tr⁻¹\tb\n", r"folder: the relation 'r⁻¹' has the name"),
    ],
)
def test_bad_input_is_named_as_in_memory_and_leaves_nothing(
    tmp_path: Path, file: str, content: str | bytes, message: str
) -> None:
    path = folder(tmp_path)
    if file.startswith("test."):
        (path / "test.tsv").unlink()
    (path / file).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as memory:
        load(path)
    with pytest.raises(InputError, match=message) as disk:
        build_graph(locate(path), tmp_path / "disk")
    # In brackets stands what the library that reads the format says.
    assert str(disk.value).split(" (")[0] == str(memory.value).split(" (")[0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_an_unknown_name_far_into_a_packed_file(tmp_path: Path) -> None:
    path = folder_with_names(tmp_path)
    (path / "valid.tsv").unlink()
    table = "\n\n# x\n" + text(rows(60, 1)) + "näme日nobody\tr0\t3\n"
    (path / "valid.txt.gz").write_bytes(gzip.compress(table.encode()))
    with pytest.raises(InputError, match=r"valid\.txt\.gz, line 64: unknown entity 'näme日nobody'"):
        build_graph(locate(path), tmp_path / "disk")


def test_the_command_builds_large_sources_on_the_disk(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = single_tsv(tmp_path)
    memory = run("data", path, "--save", tmp_path / "memory", "--seed", 3, "--json").json
    monkeypatch.setattr(load_module, "LARGE_SOURCE", 0)
    monkeypatch.setattr(load_module, "read_facts", lambda _: pytest.fail("read into memory"))
    disk = run("data", path, "--save", tmp_path / "disk", "--seed", 3, "--json").json
    assert disk.pop("saved") == str(tmp_path / "disk")
    assert memory.pop("saved") == str(tmp_path / "memory")
    assert disk == memory
    bad = run("data", path, "--save", tmp_path)
    assert bad.code == 2
    assert "was not written by oneshot" in bad.err
