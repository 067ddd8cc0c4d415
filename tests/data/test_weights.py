"""Tests of weighted facts in files and objects: what is read, what is refused, and the commands."""

from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.support.commands import Command, listing

import oneshot
from oneshot.data.load import Dataset, load
from oneshot.errors import InputError
from oneshot.runs.run import Run

FACTS = [("a", "r", "b"), ("b", "r", "c"), ("c", "s", "a"), ("a", "s", "c"), ("b", "s", "b")]
WEIGHTS = [0.5, 1.0, 0.25, 0.125, 0.75]
ROWS = [(*fact, weight) for fact, weight in zip(FACTS, WEIGHTS, strict=True)]
WHOLE: dict[str, Any] = {"valid_share": 0.0, "test_share": 0.0}


def found(data: Dataset) -> dict[tuple[str, str, str], float]:
    """The weight of each training fact by name."""
    graph = data.graph
    assert graph.weights is not None
    names = (
        (graph.entities[head], graph.relations[relation], graph.entities[tail])
        for head, relation, tail in graph.facts.tolist()
    )
    return dict(zip(names, graph.weights.tolist(), strict=True))


EXPECTED = dict(zip(FACTS, WEIGHTS, strict=True))
FRAME = pd.DataFrame(ROWS, columns=["head", "relation", "tail", "confidence"])


def text(separator: str, header: str = "", rows: list[Any] = ROWS) -> str:
    lines = [separator.join(map(str, row)) for row in rows]
    return "\n".join([*([header] if header else []), *lines, ""])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("f.tsv", text("\t")),
        ("f.txt", text("\t", "# a comment\n")),
        ("f.csv", text(",", "head,relation,tail,Confidence")),
        ("f.csv", "confidence,tail,relation,head\n" + text(",", "", [r[::-1] for r in ROWS])),
        ("f.csv", '"head","relation","tail","confidence"\r\n' + text(",").replace("\n", "\r\n")),
    ],
)
def test_the_fourth_column_of_a_text_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode())
    data = load(tmp_path / name, weights="confidence", **WHOLE)
    assert found(data) == EXPECTED
    with pytest.raises(InputError, match=r"expected 3 .* found 4; .*--weights COLUMN"):
        load(tmp_path / name)


@pytest.mark.parametrize("separator", ["\t", ","])
def test_a_column_that_is_not_there_is_named(tmp_path: Path, run: Command, separator: str) -> None:
    file = tmp_path / ("f.tsv" if separator == "\t" else "f.csv")
    file.write_text(text(separator, separator.join(["head", "relation", "tail", "confidence"])))
    result = run("train", file, "--weights", "score", "--out", tmp_path / "run")
    assert (result.code, result.err.count("\n")) == (2, 1)
    expected = "there is no column 'score' of weights, only head, relation, tail, confidence"
    assert expected in result.err
    file.write_text(text(separator, "", list(FACTS)))
    result = run("train", file, "--weights", "score", "--out", tmp_path / "run")
    assert (result.code, "there is no column of weights" in result.err) == (2, True)
    assert listing(tmp_path) == [file.name]


def test_columns_of_tables_and_arrays(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.Table.from_pandas(FRAME), tmp_path / "f.parquet")
    assert found(load(tmp_path / "f.parquet", weights="confidence", **WHOLE)) == EXPECTED
    assert load(tmp_path / "f.parquet").graph.weights is None  # as before, it is ignored
    ids = {name: number for number, name in enumerate("abcrs")}
    columns = [np.array([ids[fact[place]] % 3 for fact in FACTS]) for place in range(3)]
    np.savez(tmp_path / "f.npz", h=columns[0], r=columns[1], t=columns[2], count=np.arange(1, 6))
    graph = load(tmp_path / "f.npz", weights="count", **WHOLE).graph
    assert graph.weights is not None
    assert graph.weights.tolist() == [1, 2, 3, 4, 5]
    assert load(tmp_path / "f.npz", **WHOLE).graph.weights is None
    with pytest.raises(InputError, match="expected the columns head, relation, tail, score, found"):
        load(tmp_path / "f.parquet", weights="score")
    with pytest.raises(InputError, match="expected the arrays h, r, t, score, found"):
        load(tmp_path / "f.npz", weights="score")


def multigraph() -> Any:
    graph = networkx.MultiDiGraph()
    for head, relation, tail, weight in ROWS:
        graph.add_edge(head, tail, key=relation, confidence=weight)
    return graph


@pytest.mark.parametrize(
    "source",
    [
        FRAME,
        FRAME[["confidence", "tail", "head", "relation"]],
        FRAME.rename(columns={"confidence": "Confidence"}),
        FRAME.assign(confidence=FRAME["confidence"].astype(str)),
        pl.DataFrame(FRAME.to_dict("list")),
        pa.Table.from_pandas(FRAME),
        FRAME.to_dict("list"),
        FRAME.to_dict("records"),
        ROWS,
        iter(ROWS),
        multigraph(),
    ],
    ids=lambda source: type(source).__name__,
)
def test_objects_with_weights(source: Any) -> None:
    assert found(load(source, weights="confidence", **WHOLE)) == EXPECTED


def test_splits_keep_the_weights_of_their_training_facts(tmp_path: Path) -> None:
    frame = FRAME.assign(split=["train", "train", "valid", "test", "train"])
    kept = {fact: EXPECTED[fact] for fact in (FACTS[0], FACTS[1], FACTS[4])}
    assert found(load(frame, weights="confidence")) == kept
    for split in ("train", "valid", "test"):
        rows = frame[frame["split"] == split].values.tolist()
        (tmp_path / f"{split}.tsv").write_text(text("\t", "", [row[:4] for row in rows]))
    data = load(tmp_path, weights="confidence")
    assert found(data) == kept
    assert data.graph.origin is not None
    assert data.graph.origin["options"]["weights"] == "confidence"
    parts = {split: frame[frame["split"] == split] for split in ("train", "valid", "test")}
    assert found(load(parts, weights="confidence")) == kept
    # A random split: the same facts are held out as without weights.
    many = [(f"e{n % 17}", f"r{n % 3}", f"e{n % 13}", 0.1 + n / 1000) for n in range(300)]
    plain, data = load([row[:3] for row in many], seed=4), load(many, seed=4, weights="w")
    assert data.train.tolist() == plain.train.tolist()
    assert data.test.tolist() == plain.test.tolist()
    weight_of: dict[Any, float] = {}
    for *fact, weight in many:
        weight_of[tuple(fact)] = max(weight, weight_of.get(tuple(fact), 0))
    assert found(data) == pytest.approx({fact: weight_of[fact] for fact in found(data)})


@pytest.mark.parametrize("value", ["nan", "-0.5", "0", "often", "", "inf", "1e-99", "1_0"])
@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_a_wrong_weight_is_one_line_with_file_and_line(
    tmp_path: Path, run: Command, value: str, suffix: str
) -> None:
    separator = "\t" if suffix == "tsv" else ","
    rows = [ROWS[0], ROWS[1], (*FACTS[2], value)]
    file = tmp_path / f"f.{suffix}"
    file.write_text("# comment\n\n" + text(separator, "", rows))
    before = listing(tmp_path)
    result = run("train", file, "--weights", "confidence", "--out", tmp_path / "run")
    lines = result.err.strip().splitlines()
    assert (result.code, result.out, len(lines)) == (2, "", 1), result.err
    assert f"f.{suffix}, line 5: " in lines[0]
    assert "the weight is" in lines[0] or "column 4 is empty" in lines[0]
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (FRAME.assign(confidence=[0.5, np.nan, 1, 1, 1]), "DataFrame, fact 2: the weight is miss"),
        (FRAME.assign(confidence=[0.5, 1, -1, 1, 1]), r"DataFrame, fact 3: the weight is -1\.0"),
        (FRAME.assign(confidence=[True] * 5), "the weights have the type bool, expected numbers"),
        (FRAME.drop(columns="confidence"), "expected one column 'confidence' of weights, found"),
        (FACTS, r"fact 1: expected \(head, relation, tail, weight\), found"),
        (np.zeros((3, 3), int), "ndarray: has no weights"),
        ([(*FACTS[0], "high")], "fact 1: the weight is 'high'"),
        ("world", "world: has no weights"),
        ("family:100", "family:100: has no weights"),
        ("sqlite:facts.db?table=t", "weights are read from files and objects, not from databases"),
    ],
)
def test_sources_without_valid_weights(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(source, weights="confidence")


def test_names_of_columns_that_cannot_be_weights() -> None:
    for name in ("head", "t", " ", "Relation"):
        with pytest.raises(InputError, match="is not the name of a column of weights"):
            load(FRAME, weights=name)


def test_rdf_has_no_weights(tmp_path: Path) -> None:
    (tmp_path / "f.nt").write_text("<http://a> <http://r> <http://b> .\n")
    with pytest.raises(InputError, match=r"have no weights; use \.tsv, .*\.parquet, \.npz"):
        load(tmp_path / "f.nt", weights="confidence")


def test_an_unknown_name_is_reported_with_its_line(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text(text("\t"))
    (tmp_path / "entities.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match=r"train\.tsv, line 3: unknown entity 'c'"):
        load(tmp_path, weights="confidence")


def weighted_file(path: Path) -> Path:
    generator = np.random.default_rng(0)
    rows = {
        (f"e{h}", f"r{r}", f"e{t}")
        for h, r, t in generator.integers([30, 3, 30], size=(200, 3)).tolist()
    }
    path.write_text(
        text(
            ",",
            "head,relation,tail,weight",
            [(*row, 0.1 + n % 9) for n, row in enumerate(sorted(rows))],
        )
    )
    return path


def test_commands_with_weights(tmp_path: Path, run: Command) -> None:
    file = weighted_file(tmp_path / "facts.csv")
    shown = run("data", file, "--weights", "weight", "--save", tmp_path / "saved", "--json").json
    assert shown["weights"]["min"] == pytest.approx(0.1)
    assert shown["weights"]["max"] == pytest.approx(8.1)
    again = run("data", tmp_path / "saved", "--json").json
    assert again["fingerprint"] == shown["fingerprint"]
    assert again["weights"] == shown["weights"]
    twice = run("data", tmp_path / "saved", "--weights", "weight")
    assert (twice.code, "has the weights it was saved with" in twice.err) == (2, True)
    options = ["--set", "training.epochs=1", "--set", "predictor.dim=8", "--no-plan"]
    trained = run(
        "train", file, "--weights", "weight", "--out", tmp_path / "run", *options, "--json"
    )
    assert trained.code == 0, trained.err
    graph = Run.open(tmp_path / "run").graph
    assert graph.fingerprint == shown["fingerprint"]
    assert graph.weights is not None
    assert run("evaluate", tmp_path / "run", "--limit", 4, "--json").code == 0
    assert run("coverage", file, "--weights", "weight", "--json").code == 0
    of_database = run("data", "sqlite:facts.db?table=t", "--weights", "weight")
    assert (of_database.code, "not from databases; export" in of_database.err) == (2, True)
    changed = run("facts", tmp_path / "run", "add", "e0", "r0", "e1")
    assert (changed.code, "graph with weights" in changed.err) == (2, True)


def test_a_run_of_a_frame_keeps_its_weights(tmp_path: Path) -> None:
    data = load(FRAME, weights="confidence", **WHOLE)
    predictor = oneshot.Predictor(oneshot.PredictorConfig(dim=8), num_relations=2)
    reasoner = oneshot.Reasoner(data.graph, oneshot.PPRSampler(1.0), predictor)
    reasoner.save(tmp_path / "run")
    loaded = oneshot.Reasoner.load(tmp_path / "run")
    assert loaded.graph.weights is not None
    assert loaded.graph.weights.tolist() == pytest.approx(WEIGHTS)
    before, after = (one.predict("a", "r", top=3) for one in (reasoner, loaded))
    assert [answer.score for answer in before] == [answer.score for answer in after]
