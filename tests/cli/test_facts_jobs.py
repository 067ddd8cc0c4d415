"""The commands about facts: relations between entities, missing facts, doubtful facts."""

from pathlib import Path

import pytest
from tests.support.commands import Command, listing
from tests.support.services import saved_run

from oneshot.config import Config, PredictorConfig, SamplerConfig
from oneshot.data.formats import read_facts
from oneshot.data.load import load
from oneshot.reasoner.build import build_reasoner

KEYS = {"head", "relation", "tail", "score", "probability", "rank", "conflicts"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("facts-jobs") / "run")


def names_of(run: Command, path: Path) -> tuple[list[str], list[str]]:
    facts = run("facts", path, "export", "--json").json["facts"]
    return sorted({name for h, _, t in facts for name in (h, t)}), sorted({r for _, r, _ in facts})


def test_relations_of_two_entities(run: Command, path: Path) -> None:
    entities, relations = names_of(run, path)
    value = run("relations", path, *entities[:2], "--top", 3, "--explain", "--json").json
    assert (value["head"], value["tail"]) == tuple(entities[:2])
    assert len(value["relations"]) == 3
    first = value["relations"][0]
    assert set(first) == {"relation", "inverse", "score", "probability", "known", "paths"}
    assert first["relation"] in relations
    shown = run("relations", path, *entities[:2], "--explain")
    assert (shown.code, first["relation"] in shown.out) == (0, True)
    wrong = run("relations", path, entities[0], entities[1] + "x")
    assert (wrong.code, "did you mean" in wrong.err) == (2, True)


@pytest.mark.parametrize("command", ["discover", "audit"])
def test_facts_as_json_as_a_table_and_as_a_file(
    run: Command, path: Path, tmp_path: Path, command: str
) -> None:
    _, relations = names_of(run, path)
    value = run(command, path, "--top", 4, "--json").json
    assert len(value["facts"]) == 4
    assert all(set(fact) == KEYS for fact in value["facts"])
    assert value["seconds"] > 0
    one = run(command, path, "--relation", relations[0], "--top", 3, "--json").json
    assert {fact["relation"] for fact in one["facts"]} == {relations[0]}
    shown = run(command, path, "--top", 4, "--out", tmp_path / "facts.csv")
    assert shown.code == 0
    assert value["facts"][0]["head"] in shown.out
    lines = (tmp_path / "facts.csv").read_text().splitlines()
    columns = ["head", "relation", "tail", "score", "probability"]
    columns += ["rank", "conflicts"] if command == "audit" else []
    assert lines[0] == ",".join(columns)
    assert len(lines) == 5


@pytest.mark.parametrize("command", ["discover", "audit"])
@pytest.mark.parametrize("suffix", ["tsv", "parquet", "nt", "ttl"])
def test_files_of_facts_can_be_read(
    run: Command, path: Path, tmp_path: Path, command: str, suffix: str
) -> None:
    file = tmp_path / f"facts.{suffix}"
    value = run(command, path, "--top", 3, "--out", file, "--json").json
    expected = [[fact[name] for name in ("head", "relation", "tail")] for fact in value["facts"]]
    if suffix == "tsv":
        rows = [line.split("\t") for line in file.read_text().splitlines()[1:]]
        assert [float(row[3]) for row in rows] == [fact["score"] for fact in value["facts"]]
        assert [row[:3] for row in rows] == expected
        return
    if suffix in ("nt", "ttl"):
        pytest.importorskip("pyoxigraph", reason="the extra `rdf` is not installed")
    columns = read_facts(file).columns
    assert [list(row) for row in zip(*(c.to_pylist() for c in columns), strict=True)] == expected


@pytest.mark.parametrize("command", ["discover", "audit"])
def test_wrong_use_is_told_and_nothing_is_written(
    run: Command, path: Path, tmp_path: Path, command: str
) -> None:
    for options, word in (
        (("--relation", "no such one"), "unknown relation"),
        (("--out", tmp_path / "facts.docx"), "cannot write facts"),
        (("--top", 0), "--top"),
    ):
        result = run(command, path, *options)
        assert (result.code, word in result.err) == (2, True), result.err
    assert listing(tmp_path) == []
    if command == "discover":
        result = run(command, path, "--min-probability", 2)
        assert (result.code, "--min-probability" in result.err) == (2, True)
        result = run(command, path, "--entity", "nobody at all")
        assert (result.code, "unknown entity" in result.err) == (2, True)
    missing = run(command, tmp_path / "no-run")
    assert missing.code == 2


def test_missing_facts_of_a_type(run: Command, path: Path) -> None:
    facts = run("facts", path, "export", "--json").json["facts"]
    _, relation, tail = facts[0]
    having = {h for h, r, t in facts if (r, t) == (relation, tail)}
    options = ("--type", f"{relation}={tail}", "--top", 20, "--json")
    value = run("discover", path, *options).json
    found = [fact["head"] for fact in value["facts"]]
    assert found
    # A fact of a symmetric relation may be turned.
    assert all({fact["head"], fact["tail"]} & having for fact in value["facts"])
    for wrong, word in (("no=such", "unknown relation"), ("nothing", "RELATION=ENTITY")):
        result = run("discover", path, "--type", wrong)
        assert (result.code, result.err.count("\n"), word in result.err) == (2, 1, True)


def test_a_run_is_calibrated_anew(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shape = PredictorConfig(dim=8, num_layers=2, attention_dim=2)
    graph = load("family:100").graph
    build_reasoner(graph, Config(SamplerConfig(entity_ratio=0.2), shape)).save(path)
    assert (
        run("predict", path, "--json", *_query(path, run)).json["answers"][0]["probability"] is None
    )
    value = run("calibrate", path, "--limit", 50, "--json").json
    assert value["queries"] == 50
    assert value["error"] is not None
    assert sum(count for _, _, count in value["curve"]) > 0
    shown = run("calibrate", path, "--limit", 50)
    assert (shown.code, "expected calibration error" in shown.err) == (0, True)
    again = run("predict", path, "--json", *_query(path, run)).json["answers"][0]
    assert 0 <= again["probability"] <= 1
    # A run without a data set has nothing to calibrate with.
    other = run("calibrate", saved_run(tmp_path / "other"))
    assert (other.code, other.err.count("\n"), "data set" in other.err) == (2, 1, True)


def _query(path: Path, run: Command) -> tuple[str, str]:
    head, relation, _ = run("facts", path, "export", "--json").json["facts"][0]
    return head, relation
