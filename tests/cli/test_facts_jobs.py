"""The commands about facts: relations between entities, missing facts, doubtful facts."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Command, listing
from tests.support.samples import chain_world, tiny_predictor, trained_run, write_world
from tests.support.services import saved_run

from oneshot.config import Config, PredictorConfig, SamplerConfig
from oneshot.data.formats import read_facts
from oneshot.data.load import load
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler

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
    facts = run("facts", path, "export", "--json").json["facts"]
    assert len(lines) == 1 + (len(facts) if command == "audit" else 4)  # audit writes all


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
        assert [float(row[3]) for row in rows[:3]] == [fact["score"] for fact in value["facts"]]
        assert [row[:3] for row in rows[:3]] == expected
        return
    if suffix in ("nt", "ttl"):
        pytest.importorskip("pyoxigraph", reason="the extra `rdf` is not installed")
    columns = read_facts(file).columns
    rows = [list(row) for row in zip(*(c.to_pylist() for c in columns), strict=True)]
    assert rows[:3] == expected
    assert (command == "audit") == (len(rows) > 3)


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


@pytest.fixture(scope="module")
def split_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on a directory of splits, `data` beside it."""
    place = tmp_path_factory.mktemp("split")
    data = write_world(place / "data", chain_world(30))
    return trained_run(data, place / "run", "predictor.num_layers=2")


def held_out_facts(path: Path) -> set[tuple[str, ...]]:
    lines = [
        line
        for split in ("valid", "test")
        for line in (path.with_name("data") / f"{split}.tsv").read_text().splitlines()
    ]
    assert lines
    return {tuple(line.split("\t")) for line in lines}


def listed(value: Any) -> list[tuple[str, ...]]:
    return [tuple(fact[name] for name in ("head", "relation", "tail")) for fact in value["facts"]]


@pytest.mark.parametrize("with_data", [False, True])
def test_facts_of_other_splits_are_no_discoveries(
    run: Command, split_run: Path, with_data: bool
) -> None:
    held_out = held_out_facts(split_run)
    data = ("--data", split_run.with_name("data")) if with_data else ()
    command = ("discover", split_run, *data, "--relation", "after", "--top", 1000, "--json")
    every = run(*command, "--held-out")
    assert held_out & set(listed(every.json))
    new = run(*command)
    assert listed(new.json)
    assert not held_out & set(listed(new.json))
    assert "not known" not in new.err


def test_changed_facts_and_held_out_facts(run: Command, split_run: Path, tmp_path: Path) -> None:
    held_out = held_out_facts(split_run)
    shutil.copytree(split_run, tmp_path / "run")
    path = tmp_path / "run"
    added = sorted(held_out)[0]
    assert run("facts", path, "add", "link 3", "next", "harbour").code == 0
    assert run("facts", path, "add", *added).code == 0
    found = run("discover", path, "--relation", "after", "--top", 1000, "--json").json
    assert not held_out & set(listed(found))
    judged = listed(run("audit", path, "--held-out", "--top", 10**6, "--json").json)
    assert judged.count(added) == 1
    assert set(judged) > held_out | {("link 3", "next", "harbour")}


def test_the_facts_of_all_splits_are_audited(run: Command, split_run: Path, tmp_path: Path) -> None:
    held_out = held_out_facts(split_run)
    plain = listed(run("audit", split_run, "--top", 10**6, "--json").json)
    assert not held_out & set(plain)
    every = listed(run("audit", split_run, "--held-out", "--top", 10**6, "--json").json)
    assert sorted(every) == sorted({*plain, *held_out})
    out = tmp_path / "facts.csv"
    shown = run("audit", split_run, "--held-out", "--top", 1, "--out", out, "--json").json
    assert listed(shown) == every[:1]
    assert len(out.read_text().splitlines()) == 1 + len(every)


def test_a_run_of_a_graph_in_memory_has_no_splits(run: Command, path: Path) -> None:
    found = run("discover", path, "--top", 2, "--json")
    assert found.json["facts"]
    assert "the splits of its data are not known" in found.err
    wrong = run("audit", path, "--held-out")
    assert (wrong.code, wrong.err.count("\n"), "give the data set" in wrong.err) == (2, 1, True)


def test_all_facts_of_an_entity_and_a_relation_are_listed(run: Command, split_run: Path) -> None:
    options = ("--entity", "link 7", "--relation", "next", "--top", 25, "--held-out", "--json")
    found = listed(run("discover", split_run, *options).json)
    heads = [head for head, _, tail in found if tail == "link 7"]
    tails = [tail for head, _, tail in found if head == "link 7"]
    assert heads
    assert tails
    assert len(heads) + len(tails) == len(found) == 25


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
    # Too few queries to measure the error: what there is stays.
    before = (path / "calibration.json").read_bytes()
    few = run("calibrate", path, "--limit", 2)
    assert (few.code, "2 validation queries are too few" in few.err) == (2, True)
    assert (path / "calibration.json").read_bytes() == before
    # A run without a data set has nothing to calibrate with.
    other = run("calibrate", saved_run(tmp_path / "other"))
    assert (other.code, other.err.count("\n"), "data set" in other.err) == (2, 1, True)


def _query(path: Path, run: Command) -> tuple[str, str]:
    head, relation, _ = run("facts", path, "export", "--json").json["facts"][0]
    return head, relation


def test_an_unknown_name_in_a_file_is_reported_with_its_line(
    run: Command, path: Path, tmp_path: Path
) -> None:
    head, relation, tail = run("facts", path, "export", "--json").json["facts"][0]
    file = tmp_path / "more.tsv"
    file.write_text(f"# more\n{head}\t{relation}\t{tail}\nq\tnope\tw\n")
    for action in ("add", "remove"):
        result = run("facts", path, action, "--file", file)
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert f"{file}, line 3: unknown relation 'nope'" in result.err
    table = tmp_path / "more.csv"
    table.write_text('"two\nlines",nope,w\n')
    assert f"{table}, line 1: unknown" in run("facts", path, "add", "--file", table).err
    names = tmp_path / "candidates.txt"
    names.write_text(f"{head}\nzork\n")
    result = run("predict", path, head, relation, "--candidates", names)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f"{names}, line 2: unknown entity 'zork'" in result.err
    names.write_text(f"{head}\n{tail}\n")
    assert run("predict", path, head, relation, "--candidates", names).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["discover", "--out", "x.csv"],
        ["audit", "--out", "folder/x.csv"],
        ["facts", "export", "--out", "x.tsv"],
        ["predict", "--queries", "q.tsv", "--out", "x.jsonl"],
        ["predict", "--queries", "q.tsv", "--out", "parts"],
        ["predict", "--queries", "q.tsv", "--out", "."],
        ["predict", "HEAD", "RELATION", "--plot", "x.html"],
    ],
)
def test_nothing_is_written_into_the_run(
    run: Command, path: Path, tmp_path: Path, command: list[str]
) -> None:
    head, relation, _ = run("facts", path, "export", "--json").json["facts"][0]
    (tmp_path / "q.tsv").write_text(f"{head}\t{relation}\n")
    (tmp_path / "link").symlink_to(path)
    before = listing(path)
    *rest, name = command[1:]
    named = {"HEAD": head, "RELATION": relation, "q.tsv": tmp_path / "q.tsv"}
    for folder in (path, tmp_path / "link"):
        given = [named.get(word, word) for word in rest]
        result = run(command[0], path, *given, folder / name)
        assert (result.code, result.err.count("\n")) == (2, 1)
        where = "the run" if folder / name == path else "inside the run"
        assert f"{folder / name} is {where}" in result.err
    assert listing(path) == before


def test_a_neighbourhood_counts_in_words_and_has_each_entity_once(
    run: Command, tmp_path: Path
) -> None:
    graph = KnowledgeGraph.from_facts([[0, 0, 1]], ["a", "b"], ["r"])
    Reasoner(graph, PPRSampler(1.0), tiny_predictor(num_relations=1).float()).save(tmp_path / "run")
    shown = run("neighbourhood", tmp_path / "run", "a")
    assert "2 entities and 1 fact between them" in shown.err
    assert "1 entity and 0 facts" in run("neighbourhood", tmp_path / "run", "a", "--top", 1).err
    twice = run("neighbourhood", tmp_path / "run", "a", "b", "a")
    assert (twice.code, "an entity is given twice" in twice.err) == (2, True)


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("discover", "oneshot.reasoner.discovery.discover"),
        ("audit", "oneshot.reasoner.audit.audit"),
        ("evaluate", "oneshot.evaluation.evaluate.evaluate"),
    ],
)
def test_an_interruption_is_one_line(
    run: Command,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    function: str,
) -> None:
    def stopped(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(function, stopped)
    data = write_world(tmp_path / "data", chain_world(30))
    result = run(command, path, "--data", data)
    assert (result.code, result.out) == (130, "")
    (line,) = [line for line in result.err.splitlines() if "interrupted" in line]
    assert ("--out FILE" in line) == (command != "evaluate")
    if command != "evaluate":
        early = run(command, path, "--data", data, "--out", tmp_path / "facts.csv")
        assert "interrupted; nothing is kept yet" in early.err
