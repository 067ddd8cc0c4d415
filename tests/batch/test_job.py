"""Tests of answering a file of queries."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.commands import Command, listing
from tests.support.samples import chain_world, tiny_predictor, trained_run, write_world

from oneshot.batch import answers as answering
from oneshot.batch import queries
from oneshot.errors import InputError
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler

ASKED = [("link 3", "after"), ("link 3", "after⁻¹"), ("alone", "next"), ("link 7", "next")] * 5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a data set (entity `alone` only in test) and a run trained on it."""
    path = tmp_path_factory.mktemp("reason")
    write_world(path / "data", chain_world(20))
    with (path / "data" / "test.tsv").open("a") as file:
        file.write("alone\tnext\tlink 0\n")
    trained_run(path / "data", path / "run")
    return path


def write_questions(path: Path, rows: list[tuple[str, str]]) -> Path:
    if path.suffix == ".parquet":
        entities, relations = zip(*rows, strict=True)
        pq.write_table(pa.table({"relation": relations, "entity": entities}), path)
        return path
    separator = "," if ".csv" in path.name else "\t"
    text = "# my questions\n\n" + "".join(f"{e}{separator}{r}\n" for e, r in rows)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["q.tsv", "q.csv", "q.tsv.gz", "q.parquet"])
@pytest.mark.parametrize("ending", ["jsonl", "tsv", "csv", "parquet"])
def test_asking_a_file_of_questions(
    run: Command, place: Path, tmp_path: Path, name: str, ending: str
) -> None:
    asked = write_questions(tmp_path / name, ASKED)
    out = tmp_path / "new" / f"answers.{ending}"
    command = ["predict", place / "run", "--queries", asked, "--out", out, "--top", 3]
    value = run(*command, "--batch-size", 6, "--json").json
    assert (value["queries"], value["unanswered"], value["out"]) == (20, 5, str(out))
    rows = read_answers(out)
    single = run("predict", place / "run", "link 3", "after", "--top", 3, "--json").json
    assert [row[:4] for row in rows[:3]] == [
        ("link 3", "after", rank, answer["entity"])
        for rank, answer in enumerate(single["answers"], 1)
    ]
    assert [row[4] for row in rows[:3]] == pytest.approx(
        [answer["score"] for answer in single["answers"]], rel=1e-4
    )
    assert [row[:2] for row in rows] == [q for q in ASKED if q[0] != "alone" for _ in range(3)]
    assert listing(out.parent) == [out.name]
    told = run(*command)  # in the place of the old one
    assert (told.code, told.out) == (0, "")
    assert "answers to 20 queries" in told.err
    assert "5 without answers" in told.err


def read_answers(path: Path) -> list[tuple[Any, ...]]:
    if path.suffix == ".parquet":
        return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]
    lines = path.read_text().splitlines()
    if path.suffix in (".tsv", ".csv"):
        header, *rows = csv.reader(lines, delimiter="\t" if path.suffix == ".tsv" else ",")
        assert header == list(answering.COLUMNS)
        return [(r[0], r[1], int(r[2]), r[3], *map(float, r[4:6]), r[6] == "true") for r in rows]
    values = [json.loads(line) for line in lines]
    assert len(values) == len(ASKED)
    return [
        (*value["query"].values(), rank, *answer.values())
        for value in values
        for rank, answer in enumerate(value["answers"], 1)
    ]


def test_queries_are_read_and_answered_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept: of a long file never more than a batch is under way."""
    reasoner = Reasoner(chain_world(12).graph, PPRSampler(0.5), tiny_predictor().float())
    asked = write_questions(tmp_path / "q.tsv", [("link 1", "next")] * 100)
    read = written = most = 0
    original = queries.read_queries

    def counted(path: Path) -> Any:
        nonlocal read
        for query in original(path):
            read += 1
            yield query

    def progress(done: int) -> None:
        nonlocal written, most
        written += done
        most = max(most, read - written)

    monkeypatch.setattr(answering, "read_queries", counted)
    out = tmp_path / "a.jsonl"
    answering.answer_queries(reasoner, asked, out, batch_size=8, progress=progress)
    assert (read, written, most) == (100, 100, 7)
    assert len(out.read_text().splitlines()) == 100


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.tsv", b"link 1\tnext\nlnk 2\tnext\n", "q.tsv, line 2: unknown entity 'lnk 2'"),
        ("q.tsv", b"entity\trelation\nlink 1\tnxt\n", "line 2: unknown relation 'nxt'; did you"),
        ("q.csv", b'"link 1",next\n# x\n"link 1"\n', "line 3: expected 2 comma-separated columns"),
        ("q.tsv", b"link 1\tnext\tlink 2\n", "line 1: expected 2 tab-separated columns"),
        ("q.tsv", b"link 1\tnext\n\xff\tnext\n", "line 2: not valid UTF-8"),
        ("q.tsv", b"# nothing\n", "the file has no queries"),
        ("q.tsv.gz", b"no gzip", "incomplete or invalid gzip file"),
        ("q.parquet", b"PAR1", "not a readable Parquet file"),
        ("q.json", b"[]", "unsupported suffix for queries; use .tsv, .txt, .csv or .parquet"),
        ("missing", None, "unsupported suffix for queries"),
        ("missing.tsv", None, "missing.tsv: No such file or directory"),
    ],
)
def test_wrong_questions_are_told_before_anything_is_written(
    run: Command, place: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "a.tsv").write_text("old")
    result = run(
        "predict", place / "run", "--queries", tmp_path / name, "--out", tmp_path / "a.tsv"
    )
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert message in result.err
    assert (tmp_path / "a.tsv").read_text() == "old"


def test_a_header_may_turn_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("\ufeffRelation,Entity\nnext,a\n")
    assert [(q.entity, q.relation) for q in queries.read_queries(path)] == [("a", "next")]
    pq.write_table(pa.table({"x": ["a", None], "y": ["r", "r"]}), tmp_path / "q.parquet")
    with pytest.raises(InputError, match=r"row 2: a name is missing"):
        list(queries.read_queries(tmp_path / "q.parquet"))
