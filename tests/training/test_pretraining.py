"""Tests of pre-training: what an episode may see, resuming, use on other graphs, and wrong use."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.commands import Command
from tests.support.samples import chain_world, write_world

from oneshot.config import Config
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.evaluation.evaluate import evaluate
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.pretrain import PretrainingJob
from oneshot.runs.run import Run
from oneshot.runs.tensors import load_tensors
from oneshot.training.pretraining import (
    Mixture,
    Pretraining,
    PretrainingObserver,
    pretraining_config,
)

CPU = torch.device("cpu")
SMALL = (
    "predictor.dim=16",
    "predictor.num_layers=3",
    "predictor.relation_layers=2",
    "training.batch_size=16",
    "training.valid_limit=20",
    "training.learning_rate=0.01",
)


def small_config(*settings: str) -> Config:
    return pretraining_config([*SMALL, *settings])


def renamed(data: Dataset) -> Dataset:
    """The data set with other names and numbers of its relations."""
    label = np.array([2, 0, 1])
    names = Vocabulary.from_names(["r7", "r8", "r9"], "relation")

    def changed(facts: torch.Tensor) -> torch.Tensor:
        facts = facts.long().clone()
        facts[:, 1] = torch.from_numpy(label)[facts[:, 1]]
        return facts

    graph = KnowledgeGraph.from_facts(changed(data.graph.facts), data.graph.entities, names)
    return replace(data, graph=graph, valid=changed(data.valid), test=changed(data.test))


class Watcher(PretrainingObserver):
    """Counts callbacks, and remembers what each episode saw."""

    def __init__(self) -> None:
        self.episodes: list[tuple[str, int]] = []
        self.ended = 0

    def on_steps(self, pretraining: Pretraining, name: str, steps: int, loss: float) -> None:
        assert np.isfinite(loss)
        self.episodes.append((name, steps))

    def on_end(self) -> None:
        self.ended += 1


def test_queries_are_hidden_from_the_observed_graph() -> None:
    data = chain_world(80)
    mixture = Mixture(steps=2, hidden=0.5, dropped=0.6)
    pretraining = Pretraining([data], [], small_config(), CPU, mixture=mixture, steps=1)
    whole = {tuple(fact) for fact in data.graph.facts.tolist()}
    sizes, relations = set(), set()
    for number in range(12):
        generator = torch.Generator().manual_seed(number)
        epoch = pretraining._draw(pretraining.sources[0], number, generator)
        seen = {tuple(fact) for fact in epoch.observed.facts.tolist()}
        assert seen < whole
        for (entity, relation), answer in zip(
            epoch.queries.tolist(), epoch.answers.tolist(), strict=True
        ):
            fact = (entity, relation, answer)
            if relation >= 3:
                fact = (answer, relation - 3, entity)
            assert fact in whole - seen
        assert len(epoch.queries) in (16, 32)
        sizes.add(len(seen))
        relations.add(frozenset(fact[1] for fact in seen))
    assert len(sizes) > 6
    assert len(relations) > 1


def test_a_pretrained_predictor_answers_on_other_relations(tmp_path: Path) -> None:
    job = PretrainingJob(
        [chain_world(40), chain_world(60)],
        [],
        tmp_path / "run",
        small_config(),
        CPU,
        steps=120,
        mixture=Mixture(steps=4, dropped=0.1),
        validations=3,
    )
    result = job.run()
    assert result["steps"] >= 120
    assert result["mrr"] > 0.6
    other = renamed(chain_world(50, seed=3))
    reasoner = Reasoner.load(tmp_path / "run", graph=other.graph)
    assert evaluate(reasoner, other.test, other.known).mrr > 0.6
    right, wrong = [], []
    for head, relation, tail in other.test.tolist():
        for answer in reasoner.predict(head, relation, top=5, exclude_known=True):
            assert answer.probability is not None
            is_right = answer.entity == other.entities[tail]
            (right if is_right else wrong).append(answer.probability)
    assert sum(right) / len(right) > 0.2 + sum(wrong) / len(wrong)
    explanation = reasoner.explain("link 1", "r7", "link 3")
    assert explanation.reachable
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [set(record["valid"]) for record in records] == [{"chain"}] * 3


def test_a_killed_pretraining_ends_with_the_same_parameters(tmp_path: Path) -> None:
    def run(name: str, resume: bool, should_stop: Callable[[], bool] = lambda: False) -> Any:
        job = PretrainingJob(
            [chain_world(30), chain_world(20, seed=1)],
            [chain_world(25)],
            tmp_path / name,
            small_config("predictor.dropout=0.2"),
            CPU,
            steps=12,
            mixture=Mixture(steps=2),
            validations=2,
        )
        return job.run(resume, should_stop=should_stop)

    whole = run("whole", False)
    calls = iter(range(1000))
    stopped = run("parts", False, lambda: next(calls) > 3)
    assert stopped["stopped"]
    assert 0 < stopped["steps"] < 12
    assert run("parts", True)["best_step"] == whole["best_step"]
    one, other = (
        load_tensors(tmp_path / name / "checkpoint/state.safetensors")[0]
        for name in ("whole", "parts")
    )
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=1e-6, rtol=1e-5)
    assert run("parts", True)["already_finished"]
    with pytest.raises(InputError, match="--resume"):
        run("parts", False)


def test_observers_are_notified() -> None:
    watcher = Watcher()
    pretraining = Pretraining(
        [chain_world(30)],
        [],
        small_config(),
        CPU,
        mixture=Mixture(steps=2),
        steps=4,
        observers=[watcher],
    )
    state = pretraining.run()
    assert sum(steps for _, steps in watcher.episodes) == state.step >= 4
    assert watcher.ended == 1
    assert state.finished


def test_wrong_use(tmp_path: Path) -> None:
    data = chain_world(20)
    with pytest.raises(InputError, match="relative"):
        pretraining_config(["predictor.relations=embedded"])
    with pytest.raises(InputError, match="time budget"):
        Pretraining([data], [], small_config(), CPU)
    with pytest.raises(InputError, match="at least one graph"):
        Pretraining([], [], small_config(), CPU, steps=1)
    with pytest.raises(InputError, match="cannot name relations"):
        pretraining_config(["sampler.max_entities={default=3}"])
    job = PretrainingJob(
        [data], [], tmp_path / "run", small_config(), CPU, steps=1, mixture=Mixture(steps=1)
    )
    job.run()
    with pytest.raises(InputError, match="other graphs"):
        replace(job, sources=[chain_world(21)], steps=2).run(resume=True)
    with pytest.raises(InputError, match="another configuration"):
        replace(job, config=small_config("training.clip=2.0"), steps=2).run(resume=True)
    with pytest.raises(InputError, match="no graph of its own"):
        Run.open(tmp_path / "run").reasoner  # noqa: B018


def test_the_commands(tmp_path: Path, run: Command) -> None:
    """Pre-train, then predict and evaluate on a graph with other relations."""
    write_world(tmp_path / "chain", chain_world(40))
    write_world(tmp_path / "other", renamed(chain_world(30)))
    settings = [part for setting in SMALL for part in ("--set", setting)]
    out, other = str(tmp_path / "run"), str(tmp_path / "other")
    limits = ("--steps", "8", "--validations", "1")
    found = run("pretrain", str(tmp_path / "chain"), "--out", out, *limits, "--json", *settings)
    assert found.json["data"] == ["chain"]
    assert found.json["valid"].keys() == {"chain"}
    more = ("--steps", "12", "--resume", "--episode", "1", "--json")
    found = run("pretrain", str(tmp_path / "chain"), "--out", out, *more)
    assert found.json["steps"] >= 12
    assert Run.open(out).config.training.batch_size == 16
    answer = run("predict", out, "link 1", "r7", "--data", other, "--top", "3", "--json").json
    assert len(answer["answers"]) == 3
    report = run("evaluate", out, "--data", other, "--limit", "10", "--json").json
    assert report["queries"] == 10
    for command in (("predict", out, "link 1", "r7"), ("evaluate", out)):
        failed = run(*command)
        assert failed.code == 2
        assert "--data" in failed.err
    failed = run("pretrain", "umls", "--out", str(tmp_path / "new"))
    assert failed.code == 2
    assert "--minutes" in failed.err
