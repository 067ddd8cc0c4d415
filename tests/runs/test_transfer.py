"""Tests of trainings that start from the parameters of another run."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.commands import Command
from tests.support.samples import SMALL, chain_world, tiny_predictor, trained_run, write_world

from oneshot.data.load import load
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.pretrain import PretrainingJob
from oneshot.runs.run import Run
from oneshot.runs.train import train_run
from oneshot.runs.transfer import start_from, transfer_settings
from oneshot.samplers import PPRSampler
from oneshot.training.plan import make_plan
from oneshot.training.pretraining import Mixture, pretraining_config

SHAPES: list[dict[str, Any]] = [
    {"message": "redgnn", "priors": True},
    {"message": "nbfnet", "aggregate": "pna"},
    {"message": "drum", "initial": "binary", "readout": "dot"},
    {"message": "nbfnet", "relations": "relative", "priors": True},
]


def reordered(graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph with its three relations in another order, and a new one between them."""
    relations = Vocabulary.from_names(["before", "new", "after", "next"], "relation")
    return graph.with_relations(relations)


@pytest.mark.parametrize("shape", SHAPES)
def test_relations_are_matched_by_name(tmp_path: Path, shape: dict[str, Any]) -> None:
    graph = chain_world(12).graph
    sampler = PPRSampler(1.0)
    earlier = Reasoner(graph, sampler, tiny_predictor(**shape).float())
    earlier.save(tmp_path / "run")
    other = reordered(graph)
    torch.manual_seed(1)
    fresh = Reasoner(other, sampler, Predictor(earlier.predictor.config, 4))
    new = start_from(Run.open(tmp_path / "run"), fresh)
    assert new == (0 if earlier.predictor.is_relative else 1)
    for relation in ("next", "after", "before"):
        for answer in ("link 3", "link 5"):
            expected = earlier.score("link 2", relation, answer)
            assert fresh.score("link 2", relation, answer) == pytest.approx(expected, abs=1e-5)
    assert math.isfinite(fresh.score("link 2", "new", "link 3"))


def test_new_relations_start_from_the_mean(tmp_path: Path) -> None:
    graph = chain_world(12).graph
    earlier = Reasoner(graph, PPRSampler(1.0), tiny_predictor().float())
    earlier.save(tmp_path / "run")
    fresh = Reasoner(reordered(graph), PPRSampler(1.0), Predictor(earlier.predictor.config, 4))
    start_from(Run.open(tmp_path / "run"), fresh)
    name = "query_embedding.weight"
    before, now = (reasoner.predictor.state_dict()[name] for reasoner in (earlier, fresh))
    for row in (1, 5):
        torch.testing.assert_close(now[row], before[:6].mean(0))
    torch.testing.assert_close(now[[3, 2, 0, 7, 6, 4, 8]], before)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    graph = chain_world(12).graph
    Reasoner(graph, PPRSampler(1.0), tiny_predictor().float()).save(tmp_path / "run")
    fresh = Reasoner(graph, PPRSampler(1.0), tiny_predictor(dim=3).float())
    with pytest.raises(InputError, match="another configuration"):
        start_from(Run.open(tmp_path / "run"), fresh)


def test_train_from_a_run(tmp_path: Path, run: Command) -> None:
    """The first steps of a fine-tuning with a tiny learning rate leave the answers as they are."""
    data = write_world(tmp_path / "chain", chain_world(30))
    first = trained_run(data, tmp_path / "first", "training.epochs=1")
    settings = [part for setting in SMALL for part in ("--set", setting)]
    settings += ["--set", "training.epochs=1", "--set", "training.learning_rate=1e-9"]
    settings += ["--set", "factors.dim=0"]  # the scores of the predictor alone
    second = tmp_path / "second"
    result = run("train", data, "--from", first, "--out", second, *settings, "--json").json
    assert result["epochs"] == 1
    one, other = (Reasoner.load(path) for path in (first, second))
    assert one.predictor.config == other.predictor.config
    expected = one.score("link 1", "next", "link 2")
    assert other.score("link 1", "next", "link 2") == pytest.approx(expected, abs=1e-3)
    before = {file: file.read_bytes() for file in first.rglob("*") if file.is_file()}
    failed = run("train", data, "--from", first, "--out", first, *settings)
    assert failed.code == 2
    assert "is the run that the training starts from" in failed.err
    start = Run.open(first)
    with pytest.raises(InputError, match="is the run that the training starts from"):
        train_run(load(data), first, start.config, torch.device("cpu"), initial=start)
    assert {file: file.read_bytes() for file in first.rglob("*") if file.is_file()} == before
    failed = run("train", data, "--from", tmp_path / "nothing", "--out", tmp_path / "third")
    assert failed.code == 2
    assert "is not a run" in failed.err


def test_train_from_a_run_on_more_facts_with_a_new_relation(tmp_path: Path, run: Command) -> None:
    data = write_world(tmp_path / "chain", chain_world(30))
    first = trained_run(data, tmp_path / "first")
    # Twice as many links, another order of the relations, and one that comes before all others.
    larger = write_world(tmp_path / "larger", chain_world(60))
    facts = [f"link {place}\tahead\tlink {(place + 1) % 60}\n" for place in range(60)]
    train = larger / "train.tsv"
    train.write_text("".join([*facts[:50], *reversed(train.read_text().splitlines(True))]))
    (larger / "test.tsv").write_text("".join(facts[50:]))
    settings = [part for setting in SMALL for part in ("--set", setting)]
    settings += ["--set", "factors.dim=0", "--set", "training.epochs=1"]
    line = ("train", larger, "--from", first, *settings, "--json")
    kept = tmp_path / "kept"
    value = run(*line, "--set", "training.learning_rate=1e-9", "--out", kept).json
    assert (value["epochs"], math.isfinite(value["test"]["mrr"])) == (1, True)
    before, now = (Run.open(path) for path in (first, kept))
    assert set(now.relations) == {*before.relations, "ahead"}
    assert list(now.relations) != [*before.relations, "ahead"]
    # What was learnt about each relation is now that of its name.
    tables = [
        one.reasoner.predictor.state_dict()["query_embedding.weight"] for one in (before, now)
    ]
    for relation in before.relations:
        for inverse in (False, True):
            one, other = (
                table[part.relations.index(relation) + inverse * len(part.relations)]
                for table, part in zip(tables, (before, now), strict=True)
            )
            assert torch.allclose(one, other, atol=1e-5), relation
    # With a usual learning rate, the new relation is learnt; by chance its MRR is about 0.08.
    learnt = run(*line, "--set", "training.epochs=8", "--out", tmp_path / "learnt").json
    assert learnt["test"]["mrr"] > 0.3
    answers = run("predict", tmp_path / "learnt", "link 50", "ahead", "--json").json["answers"]
    assert answers
    # The run itself is unchanged.
    assert set(Run.open(first).relations) == {"next", "after", "before"}


def test_a_good_start_is_kept(tmp_path: Path, run: Command) -> None:
    """A fine-tuning that destroys what was learnt ends with the parameters of the start."""
    data = write_world(tmp_path / "chain", chain_world(30))
    first = trained_run(data, tmp_path / "first", "training.epochs=6")
    settings = [part for setting in SMALL for part in ("--set", setting)]
    settings += ["--set", "training.epochs=1", "--set", "training.learning_rate=3.0"]
    settings += ["--set", "factors.dim=0"]
    second = tmp_path / "second"
    result = run("train", data, "--from", first, "--out", second, *settings, "--json").json
    assert result["best_epoch"] == 0
    one, other = (Reasoner.load(path) for path in (first, second))
    expected = one.score("link 1", "next", "link 2")
    assert other.score("link 1", "next", "link 2") == pytest.approx(expected, abs=1e-5)


def test_train_from_a_pretrained_run(tmp_path: Path, run: Command) -> None:
    config = pretraining_config(["predictor.dim=16", "predictor.num_layers=2"])
    job = PretrainingJob(
        [chain_world(20)],
        [],
        tmp_path / "base",
        config,
        torch.device("cpu"),
        steps=2,
        mixture=Mixture(steps=1),
        validations=1,
    )
    job.run()
    data = write_world(tmp_path / "chain", chain_world(30))
    out = tmp_path / "tuned"
    options = ("--no-plan", "--set", "training.epochs=1", "--set", "sampler.entity_ratio=0.5")
    result = run("train", data, "--from", tmp_path / "base", "--out", out, *options, "--json").json
    assert result["parameters"] == Reasoner.load(out).predictor.num_parameters
    tuned = Run.open(out)
    assert tuned.has_graph
    assert tuned.config.predictor.relations == "relative"
    assert tuned.config.sampler.max_entities is None
    # Its own relations, and a graph whose relations it does not know.
    assert tuned.reasoner.predict("link 1", "next", top=1)
    other = chain_world(20).graph
    names = Vocabulary.from_names(["a", "b", "c"], "relation")
    other = KnowledgeGraph.from_facts(other.facts, other.entities, names)
    assert Reasoner.load(out, other).predict("link 1", "b", top=1)


def test_a_transfer_has_factors_of_the_graph_it_is_trained_on(tmp_path: Path) -> None:
    """The plan chooses them, as for a training from scratch."""
    world = chain_world(20)
    Reasoner(world.graph, PPRSampler(1.0), tiny_predictor().float()).save(tmp_path / "first")
    first = Run.open(tmp_path / "first")
    planned = make_plan(world, 0.5, settings=transfer_settings(first))
    assert planned.config.factors.dim > 0
    training = replace(planned.config.training, epochs=1, minutes=0.0)
    factors = replace(planned.config.factors, epochs=2)
    config = replace(planned.config, training=training, factors=factors)
    out = tmp_path / "tuned"
    result = train_run(world, out, config, torch.device("cpu"), initial=first)
    tuned = Reasoner.load(out)
    assert tuned.factors is not None
    assert tuned.factors.entities.shape == (20, 2 * factors.dim)
    assert tuned.factors.weight == result["factor_weight"]
