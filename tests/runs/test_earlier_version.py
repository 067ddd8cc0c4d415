"""What an earlier version wrote still opens, and gives the same answers.

`files/version-0.1.tar.xz` was written before the modules moved into rooms: a run on the bundled
graph `world` with two facts added later, a saved graph, a finished search, and the JSON that the
commands of that version printed about them.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Command

import oneshot

FILES = Path(__file__).with_name("files") / "version-0.1.tar.xz"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def expected(directory: Path, name: str) -> Any:
    return json.loads((directory / f"expected-{name}.json").read_text())


def test_a_run_gives_the_same_answers_and_explanations(written: Path, run: Command) -> None:
    before = expected(written, "answers")
    now = run("predict", written / "run", "Bolivia", "borders", "--explain", "--json").json
    # Earlier versions answered with the entity itself, too.
    others = [answer for answer in before["answers"] if answer["entity"] != "Bolivia"]
    assert [a["entity"] for a in now["answers"]][: len(others)] == [a["entity"] for a in others]
    for ours, theirs in zip(now["answers"], others, strict=False):
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-5)
        # Earlier versions did not take facts of the graph as given.
        chance = 1.0 if ours["known"] else theirs["probability"]
        assert ours["probability"] == pytest.approx(chance, abs=1e-5)
        assert ours["known"] == theirs["known"]
        assert [p["steps"] for p in ours["paths"]] == [p["steps"] for p in theirs["paths"]]
    assert now["subgraph"] == before["subgraph"]


def test_a_run_keeps_its_changed_facts_and_takes_more(written: Path, run: Command) -> None:
    fact = ("Peru", "borders", "Atlantis")
    assert run("facts", written / "run", "add", *fact, "--json").json["facts"] == 20801
    exported = run("facts", written / "run", "export", "--out", written / "facts.tsv", "--json")
    assert exported.json["facts"] == 20801
    assert "Bolivia\tborders\tAtlantis" in (written / "facts.tsv").read_text()


def test_a_finished_run_is_reported_as_such_and_can_go_on(written: Path, run: Command) -> None:
    before = expected(written, "run")
    again = run("train", "world", "--out", written / "run", "--resume", "--json").json
    assert again["epochs"] == before["epochs"]
    assert again["test"]["mrr"] == pytest.approx(before["test"]["mrr"], abs=1e-6)


def test_a_saved_graph_opens(written: Path) -> None:
    before = expected(written, "graph")
    data = oneshot.load(written / "graph")
    assert len(data.entities) == before["entities"]
    assert (len(data.train), len(data.valid), len(data.test)) == tuple(
        before[split] for split in ("train", "valid", "test")
    )
    fresh = oneshot.load("family:100")
    assert data.graph.fingerprint == fresh.graph.fingerprint


def test_a_search_is_shown_and_its_best_run_can_be_asked(written: Path, run: Command) -> None:
    before = expected(written, "search")
    shown = run("search", "--show", written / "search", "--json").json
    for key in ("valid", "trials"):
        assert shown[key] == before[key], key
    for section, options in before["best"].items():  # this version may have more options
        assert shown["best"][section] | options == shown["best"][section], section
    found = run("evaluate", written / "search" / "best", "--limit", "20", "--json").json
    assert found["queries"] == 20
