"""Tests of what a training tells when it goes wrong: once, in one line, with what to do."""

import importlib
import logging
from pathlib import Path

import pytest
import torch
from tests.support.clocks import FakeClock, Steps, answer_slowly
from tests.support.commands import Command
from tests.support.samples import SMALL, chain_world, settings, write_world

from oneshot.config import Config, from_table
from oneshot.data.dataset import Dataset
from oneshot.graph.graph import KnowledgeGraph
from oneshot.ranking import KnownFacts
from oneshot.reasoner.build import build_reasoner
from oneshot.training import diagnosis
from oneshot.training.diagnosis import Diagnosis
from oneshot.training.final_evaluation import final_queries
from oneshot.training.time_budget import TimeBudget
from oneshot.training.trainer import Trainer, fit

plans = importlib.import_module("oneshot.training.plan")  # `oneshot.plan` is a function


def train(
    data: Dataset, *changes: str, seconds: float = 1.0, said: list[str] | None = None
) -> tuple[Trainer, list[str]]:
    """Train with steps of some seconds by a clock of our own. → what was said"""
    config = from_table({}, [*SMALL, *changes])
    clock = FakeClock()
    said = [] if said is None else said
    budget = TimeBudget(config.training.minutes, clock)
    reasoner = build_reasoner(data.graph, config)
    trainer = Trainer(reasoner, data, config.training, budget, messages=said.append)
    trainer.run([Steps(clock, seconds), Diagnosis()])
    return trainer, said


def about(said: list[str], *words: str) -> list[str]:
    return [line for line in said if all(word in line for word in words)]


def test_a_sound_training_says_nothing() -> None:
    trainer, said = train(chain_world(30), "training.epochs=5")
    assert said == []
    assert trainer.state.best_mrr > (trainer.baseline_mrr or 1)


def test_low_coverage_is_told_with_the_option_to_raise() -> None:
    data = chain_world(60)
    for changes, option in (
        (("sampler.entity_ratio=0.05",), "sampler.entity_ratio"),
        (("sampler.entity_ratio=1.0", "sampler.max_entities=3"), "sampler.max_entities"),
        (("training.entity_ratio=0.05",), "training.entity_ratio"),
    ):
        trainer, said = train(data, *changes, "training.epochs=4")
        covered = trainer.state.history[0]["covered"]
        assert 0 < covered < 0.5
        lines = about(said, "among the sampled entities")
        assert len(lines) == 1
        assert f"only {covered:.0%} of the answers in training" in lines[0]
        assert f"raise {option} (`oneshot coverage` shows the coverage of budgets)" in lines[0]


def test_low_coverage_of_the_validation_is_told() -> None:
    # In training the sampler sees more than in testing.
    changes = "training.entity_ratio=1.0", "sampler.entity_ratio=0.04"
    trainer, said = train(chain_world(60), *changes)
    assert trainer.state.history[0]["covered"] > 0.5
    lines = about(said, "of the answers in validation", "raise sampler.entity_ratio")
    assert len(lines) == 1


def test_low_coverage_is_told_within_a_long_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_ENOUGH_QUERIES", 32)
    said: list[str] = []

    class Stop(Exception):  # noqa: N818
        pass

    def stop(message: str) -> None:
        said.append(message)
        raise Stop

    data = chain_world(60)
    config = from_table({}, [*SMALL, "sampler.entity_ratio=0.05"])
    trainer = Trainer(build_reasoner(data.graph, config), data, config.training, messages=stop)
    with pytest.raises(Stop):
        trainer.run([Diagnosis()])
    assert trainer.state.asked == 32
    assert about(said, "among the sampled entities")


def test_subgraphs_that_hold_everything_cannot_be_raised() -> None:
    """Answers in another part of the graph are not sampled, however large the budget is."""
    facts = [[2 * i, 0, 2 * i + 1] for i in range(20)] + [[2 * i + 1, 0, 2 * i] for i in range(20)]
    graph = KnowledgeGraph.from_facts(facts, 40, 1)
    apart = torch.tensor([[0, 0, 3], [2, 0, 5]])
    for ratio, expected in ((1.0, 0), (0.5, 1)):
        data = Dataset("apart", graph, apart, apart)
        trainer, said = train(data, f"sampler.entity_ratio={ratio}", "training.epochs=1")
        assert trainer.state.history[0]["valid"]["coverage"] < 0.5
        assert len(about(said, "among the sampled entities")) == expected


def test_a_loss_that_does_not_move_is_told() -> None:
    changes = ("training.learning_rate=1e-9", "training.schedule=constant", "training.epochs=6")
    trainer, said = train(chain_world(60), *changes)
    losses = [record["loss"] for record in trainer.state.history]
    assert losses[2] > 0.99 * losses[0]
    lines = about(said, "the loss does not decrease", "training.learning_rate (1e-09)")
    assert len(lines) == 1
    assert f"({losses[0]:.4f} at first, {losses[2]:.4f} now)" in lines[0]


@pytest.mark.parametrize(("rate", "expected"), [("1e-9", 1), ("0.01", 0)])
def test_a_loss_that_does_not_move_within_a_quarter_of_the_time(
    monkeypatch: pytest.MonkeyPatch, rate: str, expected: int
) -> None:
    """One epoch that is longer than the budget."""
    monkeypatch.setattr(diagnosis, "_LEAST_STEPS", 20)
    changes = ("training.minutes=4", "training.batch_size=4", f"training.learning_rate={rate}")
    trainer, said = train(chain_world(300), *changes, seconds=3.0)
    assert trainer.state.epoch == 1
    assert trainer.state.out_of_time
    assert len(about(said, "the loss does not decrease")) == expected


def popular() -> Dataset:
    """Facts whose answers are nearly always the same two entities."""
    facts = [[i, i % 2, 40 + i % 2] for i in range(40)] + [[i, 2, (i + 1) % 40] for i in range(40)]
    graph = KnowledgeGraph.from_facts(facts, 48, 3)
    held = torch.tensor([[42 + i, i % 2, 40 + i % 2] for i in range(6)])
    return Dataset("popular", graph, held, held)


def test_being_worse_than_the_baseline_is_told_when_it_counts() -> None:
    data = popular()
    changes = ("training.learning_rate=1e-9", "training.epochs=4", "sampler.entity_ratio=0.6")
    trainer, said = train(data, *changes)
    known = KnownFacts(data.known, 48, 3)
    expected = trainer.frequency.metrics(*data.queries("valid"), known).mrr
    assert trainer.baseline_mrr == expected > 0.5
    assert trainer.state.best_mrr < expected
    lines = about(said, f"valid MRR {trainer.state.best_mrr:.4f} is below {expected:.4f}")
    assert len(lines) == 1
    # A training of two epochs is judged at its end.
    trainer, said = train(data, *changes, "training.epochs=2")
    assert len(about(said, "frequency baseline")) == 1
    assert said[-1] == about(said, "frequency baseline")[0]


def test_the_baseline_is_asked_what_the_validation_asks() -> None:
    data = popular()
    trainer, _ = train(data, "training.valid_limit=5", "training.epochs=1", "training.seed=2")
    queries, answers = trainer.drawn_for_validation()
    assert len(queries) == 5
    known = KnownFacts(data.known, 48, 3)
    assert trainer.baseline_mrr == trainer.frequency.metrics(queries, answers, known).mrr
    assert trainer.baseline_mrr != trainer.frequency.metrics(*data.queries("valid"), known).mrr


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (("sampler.entity_ratio=1.0",), 1),
        (("sampler.entity_ratio=0.9",), 0),
        (("sampler.entity_ratio=1.0", "sampler.mass=0.9"), 0),
        (("sampler.entity_ratio=1.0", "training.entity_ratio=0.5"), 0),
    ],
)
def test_subgraphs_as_large_as_a_large_graph_are_told(
    monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...], expected: int
) -> None:
    data = chain_world(30)
    assert not about(train(data, *changes, "training.epochs=1")[1], "unnecessarily slow")
    monkeypatch.setattr(diagnosis, "_LARGE_GRAPH", 29)
    _, said = train(data, *changes, "training.epochs=1")
    lines = about(said, "contain all 30 entities", "unnecessarily slow", "set sampler.entity_ratio")
    assert len(lines) == expected


def test_more_epochs_than_there_is_time_for_are_told() -> None:
    changes = "training.batch_size=8", "training.minutes=1"  # 6 steps an epoch
    _, said = train(chain_world(30), *changes, "training.epochs=20")
    lines = about(said, "20 epochs would take about 2.0 minutes, more than the budget of 1")
    assert len(lines) == 1
    assert "ends after about 9 (" in lines[0]
    _, said = train(chain_world(30), *changes, "training.epochs=9")
    assert not about(said, "would take")


@pytest.mark.parametrize(("slower", "expected"), [(1.0, 0), (3.0, 1)])
def test_planned_epochs_are_an_upper_limit(
    monkeypatch: pytest.MonkeyPatch, slower: float, expected: int
) -> None:
    """A training that is as fast as planned reports nothing, and one a third as fast reports it."""
    config, said = planned(monkeypatch, slower)
    assert config.training.epochs >= 5
    assert len(about(said, f"of {config.training.expected_queries:,} that the plan")) == expected
    assert not about(said, "would take")


def test_a_single_epoch_that_is_far_too_slow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ends within the first epoch, far before the planned number of queries."""
    config, said = planned(monkeypatch, 60.0)
    lines = about(said, f"of {config.training.expected_queries:,} that the plan")
    assert len(lines) == 1
    assert "raise training.minutes" in lines[0]


def planned(monkeypatch: pytest.MonkeyPatch, slower: float) -> tuple[Config, list[str]]:
    """Plan a training for a machine of known speed, and train on one that is slower."""
    pace = plans._Pace(training=0.05, evaluation=0.001, edges=10.0, entities=10.0)
    data, clock, said = chain_world(30), FakeClock(), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(plans._Planner, "_probe", lambda *_: pace)
        # Planning takes no time, as on the clock of the training.
        patch.setattr(plans.time, "perf_counter", lambda: 0.0)
        options = ["predictor.dim=8", "predictor.num_layers=2", "factors.dim=0"]
        config = plans.make_plan(data, 0.5, settings=options).config
    answer_slowly(monkeypatch, clock, pace.evaluation * slower)
    budget = TimeBudget(config.training.minutes, clock, final_queries=final_queries(data))
    trainer = Trainer(
        build_reasoner(data.graph, config), data, config.training, budget, messages=said.append
    )
    step = slower * pace.training * config.training.batch_size
    trainer.run([Steps(clock, step), Diagnosis()])
    return config, said


def test_python_users_find_it_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    data = chain_world(60)
    config = from_table({}, [*SMALL, "sampler.entity_ratio=0.05"])
    with caplog.at_level(logging.WARNING):
        fit(build_reasoner(data.graph, config), data, config.training)
    assert caplog.text.count("are among the sampled entities") == 1


def test_the_baseline_stands_beside_the_result(run: Command, tmp_path: Path) -> None:
    data = write_world(tmp_path / "data", chain_world(30))
    told = run("train", data, "--out", tmp_path / "run", *settings("training.epochs=2"))
    lines = [line for line in told.err.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2
    baselines = {line.partition("(frequency ")[2].partition(")")[0] for line in lines}
    assert len(baselines) == 1
    assert 0 < float(baselines.pop()) < 1
    assert "valid MRR 0." in lines[0]
    assert "mrr of the frequency baseline" in told.out
