"""Tests of observers: what they are called with, and that nothing else is said."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.samples import SMALL, chain_world

from oneshot.config import from_table
from oneshot.data.dataset import Dataset
from oneshot.reasoner.build import build_reasoner
from oneshot.runs.train import train_run
from oneshot.training import trainer as training
from oneshot.training.observer import Observer
from oneshot.training.trainer import Trainer, fit

CPU = torch.device("cpu")
CONFIG = from_table({}, [*SMALL, "training.epochs=2", "training.batch_size=16"])


class Notes(Observer):
    """Writes down what happens."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_start(self, trainer: Trainer) -> None:
        self.events.append(("start", trainer.state.epoch))

    def on_step(self, queries: int, loss: float) -> None:
        assert loss > 0
        self.events.append(("step", queries))

    def on_checkpoint(self, trainer: Trainer) -> None:
        self.events.append(("checkpoint", trainer.state.asked))

    def on_validation(self, queries: int) -> None:
        self.events.append(("validation", queries))

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        assert record is trainer.state.history[-1]
        self.events.append(("epoch", record["epoch"]))

    def on_evaluation(self, split: str, queries: int) -> None:
        self.events.append(("evaluation", split, queries))

    def on_answers(self, queries: int) -> None:
        self.events.append(("answers", queries))

    def on_end(self) -> None:
        self.events.append(("end",))


def world() -> Dataset:
    data = chain_world(30)
    data.graph.origin = {"source": "nowhere", "options": {}}
    return data


def an_epoch(number: int) -> list[tuple[Any, ...]]:
    return [*[("step", 16)] * 3, ("validation", 10), ("epoch", number)]


def test_the_order_of_the_calls(tmp_path: Path) -> None:
    notes = Notes()
    train_run(world(), tmp_path, CONFIG, CPU, observers=[notes])
    answers = [event[1] for event in notes.events if event[0] == "answers"]
    assert sum(answers) == 10 + 10
    others = [event for event in notes.events if event[0] != "answers"]
    evaluations = [("evaluation", "valid", 10), ("evaluation", "test", 10)]
    training = [("start", 0), *an_epoch(1), *an_epoch(2)]
    assert others == [*training, *evaluations, ("end",)]
    # Nothing is left to do for who resumes it.
    train_run(world(), tmp_path, CONFIG, CPU, resume=True, observers=[notes])
    assert notes.events[-1] == ("end",)
    assert notes.events.count(("end",)) == 1


def test_fit_evaluates_nothing_afterwards() -> None:
    notes, data = Notes(), world()
    fit(build_reasoner(data.graph, CONFIG), data, CONFIG.training, [notes])
    assert notes.events == [("start", 0), *an_epoch(1), *an_epoch(2), ("end",)]


def test_checkpoints_are_asked_for_within_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    notes, data = Notes(), world()
    fit(build_reasoner(data.graph, CONFIG), data, CONFIG.training, [notes])
    assert [asked for name, *asked in notes.events if name == "checkpoint"] == 2 * [
        [16],
        [32],
        [48],
    ]


@pytest.mark.parametrize("in_a_run", [False, True])
def test_the_end_comes_however_a_training_ends(tmp_path: Path, in_a_run: bool) -> None:
    class Stop(Notes):
        def on_validation(self, queries: int) -> None:
            raise KeyboardInterrupt

    notes, data = Stop(), world()

    def train() -> None:
        if in_a_run:
            train_run(data, tmp_path, CONFIG, CPU, observers=[notes])
        else:
            fit(build_reasoner(data.graph, CONFIG), data, CONFIG.training, [notes])

    with pytest.raises(KeyboardInterrupt):
        train()
    assert notes.events == [("start", 0), *[("step", 16)] * 3, ("end",)]


def test_a_training_can_be_stopped_and_heard_from_outside() -> None:
    data, said = world(), []
    config = from_table({}, [*SMALL, "training.epochs=2", "sampler.entity_ratio=0.05"])
    reasoner = build_reasoner(data.graph, config)
    fit(reasoner, data, config.training, messages=said.append)
    assert "among the sampled entities" in said[0]
    notes, asked = Notes(), iter([False, False, True])
    with pytest.raises(training.StopTraining):
        fit(reasoner, data, CONFIG.training, [notes], should_stop=lambda: next(asked))
    assert notes.events == [("start", 0), ("step", 16), ("step", 16), ("end",)]


def test_the_library_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        train_run(world(), tmp_path, CONFIG, CPU)
    assert capfd.readouterr() == ("", "")
    assert "contains an older run, which is replaced" in caplog.text
