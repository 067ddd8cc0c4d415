"""The commands about facts: relations between entities, missing facts, doubtful facts."""

from pathlib import Path

import pytest
from tests.support.commands import Command, listing
from tests.support.services import saved_run

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
    columns = ("head", "relation", "tail", "score", "probability", "rank", "conflicts")
    assert lines[0] == ",".join(f'"{name}"' for name in columns)
    assert len(lines) == 5


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
