"""Tests of answering very many questions: partitions, parts, several workers, and their deaths."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from tests.support.commands import Command, listing
from tests.support.samples import chain_world, trained_run, write_world

from oneshot.batch.manifest import LOCK, MANIFEST, default_partition, part_name, read_manifest
from oneshot.batch.parts import answer_partition
from oneshot.batch.source import opened
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.tensors import load_tensors, save_tensors
from oneshot.system.files import locked

RELATIONS = ("next", "after", "before", "next⁻¹", "after⁻¹", "before⁻¹")
PAIRS = [(f"link {link}", relation) for link in range(20) for relation in RELATIONS]
ASKED = [*PAIRS, ("alone", "next"), *PAIRS[:7]]  # 128, one without facts, some twice


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a data set (entity `alone` only in test) and a run trained on it."""
    path = tmp_path_factory.mktemp("bulk")
    write_world(path / "data", chain_world(20))
    with (path / "data" / "test.tsv").open("a") as file:
        file.write("alone\tnext\tlink 0\n")
    trained_run(path / "data", path / "run", "training.epochs=1")
    return path


@pytest.fixture
def place(world: Path, tmp_path: Path) -> Path:
    """A directory with questions and a run of its own, on the data set of all."""
    write_questions(tmp_path / "q.parquet", ASKED)
    (tmp_path / "run").mkdir()
    for file in (world / "run").iterdir():
        if file.is_file():
            (tmp_path / "run" / file.name).write_bytes(file.read_bytes())
    return tmp_path


def write_questions(path: Path, pairs: list[tuple[str, str]]) -> None:
    entities, relations = zip(*pairs, strict=True)
    table = pa.table({"entity": entities, "relation": relations})
    pq.write_table(table, path, row_group_size=50)


def command(place: Path, *more: object) -> list[object]:
    out = place / "answers"
    return ["predict", place / "run", "--queries", place / "q.parquet", "--out", out, *more]


def check_answers(place: Path, asked: list[tuple[str, str]], top: int = 10) -> None:
    """Every question is answered once, in order, as a single process answers it."""
    table = pq.read_table(place / "answers")
    rows = sorted(table.to_pylist(), key=lambda row: (row["question"], row["rank"]))
    by_question: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_question.setdefault(row["question"], []).append(row)
    reasoner = Reasoner.load(place / "run")
    for number, found in enumerate(reasoner.predict_stream(asked, top=top)):
        got = by_question.pop(number, [])
        assert [row["rank"] for row in got] == list(range(1, len(found) + 1))
        assert {(row["entity"], row["relation"]) for row in got} <= {asked[number]}
        scores = [answer.score for answer in found]
        assert [row["score"] for row in got] == pytest.approx(scores, rel=1e-4, abs=1e-6)
        known = {answer.entity: answer.known for answer in found}
        assert {row["answer"]: row["known"] for row in got} == known
    assert not by_question


def stamps(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.glob("part-*.parquet")}


def test_a_directory_of_parts_by_this_process(run: Command, place: Path) -> None:
    value = run(*command(place, "--partition", 30, "--batch-size", 7, "--json")).json
    assert (value["queries"], value["unanswered"]) == (128, 1)
    assert (value["parts"], value["parts_before"], value["already_finished"]) == (5, 0, False)
    out = place / "answers"
    assert listing(out) == [LOCK, MANIFEST, *(part_name(number) for number in range(5))]
    check_answers(place, ASKED)
    # As engines read it: the manifest and the lock are passed over.
    assert pyarrow.dataset.dataset(out).count_rows() == 127 * 9  # all but the entity itself
    # Numbers follow the file, so that the parts in their order are in its order.
    numbers = [n for path in sorted(out.glob("part-*")) for n in pq.read_table(path)["question"]]
    assert [n.as_py() for n in numbers] == sorted(n.as_py() for n in numbers)


def test_what_is_finished_is_not_repeated(run: Command, place: Path) -> None:
    out = place / "answers"
    run(*command(place, "--partition", 16, "--top", 3))
    before = stamps(out)
    assert len(before) == 8
    again = run(*command(place, "--top", 3))
    assert (again.code, stamps(out)) == (0, before)
    assert "all 128 queries are already answered" in again.err
    # With --resume the options are those that it was begun with.
    value = run(*command(place, "--resume", "--json")).json
    assert (value["already_finished"], value["parts_before"], value["unanswered"]) == (True, 8, 1)

    (out / part_name(2)).unlink()
    whole = (out / part_name(5)).read_bytes()
    (out / part_name(5)).write_bytes(whole[:-20])  # cut off
    (out / part_name(6)).write_bytes((out / part_name(1)).read_bytes())  # of another partition
    (out / f".{part_name(2)}.abcdefgh.parquet").write_bytes(b"left by a killed worker")
    told = run(*command(place, "--resume", "--batch-size", 5, "--device", "cpu"))
    assert told.code == 0, told.err
    assert "5 of 8 parts are already finished" in told.err
    after = stamps(out)
    assert {name for name in after if after[name] != before[name]} == {
        part_name(number) for number in (2, 5, 6)
    }
    assert listing(out) == [LOCK, MANIFEST, *(part_name(number) for number in range(8))]
    check_answers(place, ASKED, top=3)


def test_a_damaged_page_is_noticed_and_made_anew(run: Command, place: Path) -> None:
    run(*command(place, "--partition", 64))
    path = place / "answers" / part_name(1)
    with pq.ParquetFile(path) as file:
        ranks = file.metadata.row_group(0).column(3)
        start = ranks.dictionary_page_offset or ranks.data_page_offset
        position = start + ranks.total_compressed_size - 3
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)
    value = run(*command(place, "--json")).json
    assert (value["parts_before"], value["already_finished"]) == (1, False)
    check_answers(place, ASKED)


def retrain(place: Path) -> None:
    path = place / "run" / "predictor.safetensors"
    tensors, about = load_tensors(path)
    save_tensors(path, {name: tensor + 1e-3 for name, tensor in tensors.items()}, about)


def ask_something_else(place: Path) -> None:
    write_questions(place / "q.parquet", [*ASKED[:-1], ASKED[3]])


def other_version(place: Path) -> None:
    path = place / "answers" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0.0.1"}))


def other_format(place: Path) -> None:
    path = place / "answers" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))


def broken(place: Path) -> None:
    (place / "answers" / MANIFEST).write_text('{"format": 1, "settings": []}')


def nothing(place: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (nothing, ["--top", 4], "started with --top 3, not 4"),
        (nothing, ["--top", 3, "--exclude-known"], "started without --exclude-known"),
        (nothing, ["--top", 3, "--partition", 7], "started with --partition 16, not 7"),
        (
            nothing,
            ["--top", 3, "--set", "sampler.entity_ratio=0.4"],
            "started with different settings",
        ),
        (nothing, ["--resume", "--top", 4], "started with --top 3, not 4"),
        (nothing, ["--top", 3, "--data", "umls"], "unknown relation"),
        (retrain, ["--top", 3], "started with a different predictor"),
        (ask_something_else, ["--resume"], "started with different queries"),
        (other_version, ["--resume"], "started by oneshot 0.0.1"),
        (other_format, ["--resume"], "not written by this version"),
        (broken, ["--resume"], "not written by oneshot"),
    ],
)
def test_answers_to_something_else_are_told_and_stay(
    run: Command, place: Path, change: Callable[[Path], None], options: list[object], message: str
) -> None:
    assert run(*command(place, "--partition", 16, "--top", 3)).code == 0
    before = stamps(place / "answers")
    change(place)
    result = run(*command(place, *options))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert message in result.err
    assert stamps(place / "answers") == before


def test_facts_that_change_end_the_same_answers(run: Command, place: Path) -> None:
    run(*command(place, "--partition", 16))
    (place / "answers" / part_name(0)).unlink()
    assert run("facts", place / "run", "add", "link 0", "after", "link 9").code == 0
    result = run(*command(place, "--resume"))
    assert result.code == 2
    assert "at version 0 of the run's facts" in result.err
    assert not (place / "answers" / part_name(0)).exists()


def test_a_worker_that_sees_something_else_writes_nothing(run: Command, place: Path) -> None:
    """The same paths, but another run or another directory, as on a machine that shares no disk."""
    run(*command(place, "--partition", 16))
    out = place / "answers"
    manifest = read_manifest(out)
    assert manifest is not None
    (out / part_name(0)).unlink()
    before = stamps(out)
    task = {"out": str(out), "run": str(place / "run"), "tag": manifest.tag, "number": 0}
    task |= {"questions": ASKED[:16], "device": "cpu", "batch_size": None}
    retrain(place)
    for changed, message in (
        (task | {"run": str(place / "run2")}, "is not a run"),
        (task, "the predictor of the run has changed"),
        (task | {"tag": "0" * 32}, "is not the same directory"),
        (task | {"out": str(place / "nowhere")}, "is not the same directory"),
    ):
        opened.cache_clear()
        outcome = answer_partition(changed)
        assert outcome["status"] == "failed"
        assert message in outcome["error"]
    assert stamps(out) == before
    assert not (place / "nowhere").exists()


def test_two_calls_do_not_write_to_one_place(run: Command, place: Path) -> None:
    run(*command(place, "--partition", 16))
    (place / "answers" / part_name(3)).unlink()
    with locked(place / "answers" / LOCK):
        result = run(*command(place))
    assert result.code == 2
    assert "another process is writing answers to this directory" in result.err
    assert run(*command(place)).code == 0


def test_a_part_that_cannot_be_written_is_told_and_the_others_are_kept(
    run: Command, place: Path
) -> None:
    run(*command(place, "--partition", 16))
    out = place / "answers"
    for number in range(1, 8):
        (out / part_name(number)).unlink()
    (out / part_name(2)).mkdir()
    result = run(*command(place))
    assert (result.code, result.out) == (2, "")
    assert "queries 33 to 48 of" in result.err
    assert "is not a file" in result.err
    assert "continue with --resume" in result.err
    assert {part_name(0), part_name(1)} == {
        path.name for path in out.glob("part-*") if path.is_file()
    }
    (out / part_name(2)).rmdir()
    assert run(*command(place, "--resume", "--json")).json["parts_before"] == 2
    check_answers(place, ASKED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "a.tsv", "--workers", 2], "with --workers the output is a directory"),
        (["--out", "a.jsonl", "--resume"], "with --resume the output is a directory"),
        (["--out", "a.txt"], "unsupported suffix for answers"),
        (["--out", "a", "--workers", 2, "--dask", "x"], "--dask uses those of a cluster"),
        (["--out", "q.parquet", "--workers", 2], "is an input of this command"),
        (["--out", "run"], "run is the run; write to another path"),
        (["--out", "old.parquet", "--resume"], "is not a directory of parts"),
        (["--out", "a", "--dask", "no scheme at all://"], "no Dask scheduler answers at"),
    ],
)
def test_wrong_use_is_told_and_leaves_everything(
    run: Command, place: Path, monkeypatch: pytest.MonkeyPatch, options: list[object], message: str
) -> None:
    pytest.importorskip("distributed", reason="the extra `search` is not installed")
    monkeypatch.chdir(place)
    (place / "old.parquet").write_text("old")
    before = listing(place / "run")
    result = run("predict", "run", "--queries", "q.parquet", *options)
    assert result.code == 2, result.err
    assert message in result.err
    assert (place / "old.parquet").read_text() == "old"
    assert listing(place / "run") == before


def test_options_for_many_questions_want_many(run: Command, place: Path) -> None:
    result = run("predict", place / "run", "link 1", "next", "--workers", 2)
    assert result.code == 2
    assert "--workers needs a file of queries" in result.err


def test_unknown_names_are_told_before_anything_is_written(run: Command, place: Path) -> None:
    write_questions(place / "q.parquet", [*ASKED, ("lnk 3", "next")])
    result = run(*command(place, "--workers", 2))
    assert result.code == 2
    assert "q.parquet, row 129: unknown entity 'lnk 3'; did you mean" in result.err
    assert not (place / "answers").exists()


def test_the_size_of_partitions() -> None:
    assert default_partition(1) == 16
    assert default_partition(3_200) == 100
    assert default_partition(100_000) == 1_000
    assert default_partition(10**9) == 10**5


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="the extra `search` is not installed")
    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as found:
        yield found


def test_a_killed_workers_partition_is_given_to_another(run: Command, place: Path) -> None:
    """One of two workers is stopped with partitions in hand, and killed."""
    asked = ASKED * 3
    write_questions(place / "q.parquet", asked)
    out = place / "answers"
    seen: dict[str, Any] = {}

    def kill(pid: int) -> None:
        deadline = time.monotonic() + 300
        while len(list(out.glob("part-*"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.2)
        seen["before"] = stamps(out)
        os.kill(pid, signal.SIGKILL)

    with cluster(2) as found:
        victim = next(iter(found.workers.values())).pid
        killer = threading.Thread(target=kill, args=(victim,))
        killer.start()
        value = run(
            *command(place, "--partition", 8, "--dask", found.scheduler_address, "--json")
        ).json
        killer.join()
    assert (value["queries"], value["parts"], value["unanswered"]) == (384, 48, 3)
    assert 4 <= len(seen["before"]) < 48
    after = stamps(out)
    assert all(after[name] == stamp for name, stamp in seen["before"].items())  # nothing again
    assert listing(out) == [LOCK, MANIFEST, *(part_name(number) for number in range(48))]
    check_answers(place, asked)


def test_a_killed_call_goes_on_where_it_was(run: Command, place: Path) -> None:
    asked = ASKED * 5
    write_questions(place / "q.parquet", asked)
    out = place / "answers"
    words = command(place, "--partition", 8, "--top", 4)
    process = subprocess.Popen([sys.executable, "-m", "oneshot", *map(str, words)])
    deadline = time.monotonic() + 300
    while len(list(out.glob("part-*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = stamps(out)
    assert 4 <= len(before) < 80
    value = run(*command(place, "--resume", "--json")).json
    assert (value["queries"], value["parts"], value["parts_before"]) == (640, 80, len(before))
    after = stamps(out)
    assert all(after[name] == stamp for name, stamp in before.items())
    check_answers(place, asked, top=4)


@pytest.mark.slow
def test_the_workers_of_a_killed_call_die_with_it(run: Command, place: Path) -> None:
    psutil = pytest.importorskip("psutil", reason="the extra `search` is not installed")
    asked = ASKED * 20
    write_questions(place / "q.parquet", asked)
    out = place / "answers"
    words = command(place, "--partition", 8, "--workers", 2)
    process = subprocess.Popen([sys.executable, "-m", "oneshot", *map(str, words)])
    deadline = time.monotonic() + 300
    while len(list(out.glob("part-*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    children = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    before = stamps(out)
    assert 4 <= len(before) < 320
    value = run(*command(place, "--resume", "--workers", 2, "--json")).json
    assert (value["parts"], value["parts_before"]) == (320, len(before))
    assert {name: stamp for name, stamp in stamps(out).items() if name in before} == before
    check_answers(place, asked)
