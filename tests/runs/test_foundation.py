"""Tests of the pre-trained run in the package."""

from pathlib import Path

import pytest
from tests.support.commands import Command

from oneshot.data.load import load
from oneshot.errors import InputError
from oneshot.evaluation.evaluate import drawn_queries, evaluate
from oneshot.evaluation.frequency import Frequency
from oneshot.ranking import KnownFacts
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs import run as runs
from oneshot.runs.run import Run


def test_the_run_answers_on_a_graph_it_has_never_seen() -> None:
    data = load("rules:500:20")
    run = Run.open("foundation")
    assert not run.has_graph
    reasoner = Reasoner.load("foundation", graph=data.graph)
    report = evaluate(reasoner, data.valid, data.known, limit=200)
    sizes = data.graph.num_entities, data.graph.num_relations
    asked = drawn_queries(data.valid, data.graph.num_relations, 200)
    baseline = Frequency(data.train, *sizes).metrics(*asked, KnownFacts(data.known, *sizes))
    assert report.mrr > baseline.mrr + 0.1


def test_a_directory_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = load("rules:500:20")
    Reasoner.load("foundation", graph=data.graph).save("foundation")
    run = Run.open("foundation")
    assert run.path == Path("foundation")
    assert run.has_graph
    expected = Reasoner.load(Path(runs.__file__).with_name("foundation"), graph=data.graph)
    assert run.reasoner.score("0", "relation 0", "1") == pytest.approx(
        expected.score("0", "relation 0", "1"), abs=1e-4
    )


def test_an_installation_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BUNDLED", tmp_path)
    with pytest.raises(InputError, match="oneshot pretrain"):
        Run.open("foundation")


def test_the_sampler_is_fitted_only_to_graphs_of_moderate_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = load("rules:500:20").graph
    assert Reasoner.load("foundation", graph=graph).sampler.parameters()
    monkeypatch.setattr(runs, "_FITTED_FACTS", graph.num_facts - 1)
    assert not Reasoner.load("foundation", graph=graph).sampler.parameters()


def test_commands_take_it_as_a_run(run: Command, tmp_path: Path) -> None:
    """With the facts of a user, whose relations it has never seen."""
    file = tmp_path / "facts.tsv"
    family = [f"{kind} {number}" for number in range(30) for kind in ("mother", "child")]
    pairs = list(zip(family[::2], family[1::2], strict=True))
    facts = [f"{mother}\tis parent of\t{child}" for mother, child in pairs]
    facts += [f"{child}\tis raised by\t{mother}" for mother, child in pairs[1:]]
    file.write_text("\n".join(facts))
    data = ("--data", file, "--json")
    found = run("predict", "foundation", "child 0", "is raised by", *data).json
    assert found["answers"][0]["entity"] == "mother 0"
    assert 0 <= found["answers"][0]["probability"] <= 1
    assert run("evaluate", "foundation", "--split", "valid", *data).json["mrr"] > 0.3
    without = run("predict", "foundation", "child 0", "is raised by")
    assert (without.code, "--data" in without.err) == (2, True)
    unknown = run("predict", "foundation", "child 0", "is raised", *data)
    assert (unknown.code, "is raised by" in unknown.err) == (2, True)
