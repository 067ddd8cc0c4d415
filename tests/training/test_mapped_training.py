"""Tests of training on saved graphs: what it hides, what it learns, and the memory it takes."""

import dataclasses
import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.samples import chain_world, tiny_predictor

from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.data.load import family, load
from oneshot.data.synthetic.generators import power_law
from oneshot.errors import InputError, OneshotError
from oneshot.graph.hidden import HiddenFacts
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.training import epoch as epochs
from oneshot.training import sampler_workers
from oneshot.training.epoch import (
    Epoch,
    QueryBatch,
    draw_epoch,
    hides_facts,
    queries_per_epoch,
)
from oneshot.training.observer import Observer
from oneshot.training.steps import Stepper
from oneshot.training.trainer import fit

SMALL = TrainingConfig(epochs=6, batch_size=16, learning_rate=0.01, fact_ratio=0.8)
PUSH = SamplerConfig(max_entities=40, method="push")


def saved(data: Dataset, path: Path) -> Dataset:
    data.save(path)
    return load(path)


def reasoner_on(data: Dataset) -> Reasoner:
    torch.manual_seed(0)
    return build_reasoner(data.graph, Config(PUSH, PredictorConfig(num_layers=3, dim=8)))


@pytest.mark.parametrize("split", ["epoch", "leave_out"])
def test_an_epoch_hides_the_facts_that_it_asks_about(split: str, tmp_path: Path) -> None:
    data = saved(chain_world(60), tmp_path / "saved")
    graph = data.graph
    assert hides_facts(graph, PPRSampler(max_entities=10, method="push"))
    assert not hides_facts(graph, PPRSampler(max_entities=10, method="chebyshev"))
    assert not hides_facts(chain_world(60).graph, PPRSampler(max_entities=10, method="push"))
    config = dataclasses.replace(SMALL, split=split, query_share=0.5, batch_size=4)
    asked_before = []
    for number in (1, 2):
        epoch = draw_epoch(graph, config, number, hides=True)
        assert len(epoch.queries) == queries_per_epoch(config, graph.num_facts)
        facts = set()
        for part in epoch.parts():
            assert isinstance(part.observed, HiddenFacts)
            forward = part.queries[:, 1] < graph.num_relations
            asked = torch.cat([part.queries[forward], part.answers[forward, None]], dim=1)
            hidden = graph.facts[part.observed.rows].long()
            assert torch.equal(asked.unique(dim=0), hidden.unique(dim=0))
            facts |= set(map(tuple, hidden.tolist()))
        assert len(facts) == len(epoch.queries) // 2  # none is asked twice
        again = draw_epoch(graph, config, number, hides=True)
        assert torch.equal(again.queries, epoch.queries)
        asked_before.append(facts)
    assert asked_before[0] != asked_before[1]


def test_a_large_graph_in_memory_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "_LEAST_HIDING", 100)
    sampler = PPRSampler(max_entities=10, method="push")
    assert hides_facts(family(120).graph, sampler)


def test_a_saved_graph_is_learnt_like_one_in_memory(tmp_path: Path) -> None:
    data = family(300)
    config = dataclasses.replace(SMALL, epochs=4, learning_rate=0.02)
    both = data, saved(data, tmp_path / "saved")
    reached = [fit(reasoner_on(one), one, config).best_mrr for one in both]
    assert min(reached) > 0.6
    assert abs(reached[0] - reached[1]) < 0.15


def test_nothing_is_copied_for_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(family(120), tmp_path / "saved")
    reasoner = Reasoner(data.graph, PPRSampler(max_entities=40, method="push"),
                        tiny_predictor(num_relations=data.graph.num_relations).float())  # fmt: skip

    def copied(*_: object) -> None:
        raise AssertionError("the graph was copied")

    monkeypatch.setattr(type(data.graph), "subset", copied)
    monkeypatch.setattr(type(data.graph), "normalized_adjacency", copied)
    state = fit(reasoner, data, dataclasses.replace(SMALL, epochs=1))
    assert state.epoch == 1


class Losses(Observer):
    """Records the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, queries: int, loss: float) -> None:
        self.losses.append(loss)


def losses_with(data: Dataset, workers: int, **settings: Any) -> tuple[list[float], list[str]]:
    seen, messages = Losses(), []
    config = dataclasses.replace(
        SMALL, **({"epochs": 2, "query_share": 0.5, "workers": workers} | settings)
    )
    fit(reasoner_on(data), data, config, [seen], messages=messages.append)
    return seen.losses, messages


@pytest.mark.parametrize("settings", [
    {"fact_dropout": 0.2, "accumulate": 2},
    {"split": "leave_out", "hide_direct": True, "batch_size": 30},
])  # fmt: skip
def test_workers_change_nothing(settings: dict[str, Any], tmp_path: Path) -> None:
    data = saved(family(100), tmp_path / "saved")
    alone, _ = losses_with(data, 0, **settings)
    shared, messages = losses_with(data, 2, **settings)
    assert len(alone) > 4
    assert shared == pytest.approx(alone, rel=1e-6)
    assert not messages


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    data = saved(family(100), tmp_path / "saved")
    stepper, messages = stepper_on(data)
    workers = stepper.workers
    assert workers is not None
    epoch = stepper.draw_epoch(1)
    expected = [stepper._sample(epoch, part.observed, part.queries, part.answers, numbers_of(part))
                for part in batches_of(stepper, epoch)]  # fmt: skip
    for step, batch in enumerate(expected):
        if step == 1:
            for one in workers._workers:
                one.process.kill()
        begin = step * stepper.step_size
        found = workers.take(epoch, begin, begin + batch.num_queries)
        assert found is not None
        assert torch.equal(found.edges, batch.edges)
        assert torch.equal(found.score, batch.score)
    assert messages == ["a sampler worker has died; it is replaced"] * 2
    processes = [one.process for one in workers._workers]
    place = workers._place
    stepper.close()
    assert all(process.poll() is not None for process in processes)
    assert place is not None
    assert not place.exists()


def test_training_goes_on_without_workers_that_always_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = saved(family(100), tmp_path / "saved")
    alone, _ = losses_with(data, 0, epochs=1)
    monkeypatch.setattr(sampler_workers, "_PROGRAM", "pass")
    shared, messages = losses_with(data, 2, epochs=1)
    assert shared == pytest.approx(alone, rel=1e-6)
    assert "training continues without them" in messages[-1]


def test_training_goes_on_if_the_workers_die_before_it_turns_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper, messages = stepper_on(saved(family(100), tmp_path / "saved"))
    workers, epoch, size = stepper.workers, stepper.draw_epoch(1), stepper.step_size
    assert workers is not None
    monkeypatch.setattr(sampler_workers, "_PROGRAM", "pass")
    workers._start()
    workers._follow(epoch, 0)
    assert workers.take(epoch, 5 * size, 6 * size) is None
    assert "training continues without them" in messages[-1]


@pytest.mark.skipif(os.name == "nt", reason="a mapped file cannot be removed there")
def test_a_worker_in_a_task_removes_its_files_if_the_training_was_killed(tmp_path: Path) -> None:
    stepper, _ = stepper_on(saved(family(100), tmp_path / "saved"))
    workers = stepper.workers
    assert workers is not None
    workers.take(stepper.draw_epoch(1), 0, stepper.step_size)
    place = workers._place
    assert place is not None
    for one in workers._workers:  # as the system does when it kills a process
        assert one.process.stdin is not None
        assert one.process.stdout is not None
        one.process.stdout.close()
        one.send([1, 0, stepper.step_size, str(place / "last")])
        one.process.stdin.close()
        assert one.process.wait() == 0
    assert not place.exists()
    stepper.close()


def test_files_beside_full_shared_memory_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = family(100)
    batch = PPRSampler(max_entities=5).sample(data.graph, torch.tensor([[0, 0]]))
    shared, usual = tmp_path / "oneshot-shared", tmp_path / "usual"
    shared.mkdir()
    usual.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    write = sampler_workers._write_tensors

    def full(path: Path, tensors: list[torch.Tensor]) -> None:
        if path.parent == shared:
            raise OSError(errno.ENOSPC, "no space")
        write(path, tensors)

    monkeypatch.setattr(sampler_workers, "_write_tensors", full)
    file = Path(sampler_workers._write(shared / "1-0", batch)["file"])
    assert file.parent == usual
    sampler_workers._end_all([], shared)
    assert not file.exists()
    # Not written if another worker has removed the directory because the training was killed.
    with pytest.raises(OSError, match="no space"):
        sampler_workers._write(shared / "1-16", batch)
    assert not list(usual.iterdir())


def test_an_error_of_a_worker_ends_the_training(tmp_path: Path) -> None:
    data = saved(family(100), tmp_path / "saved")
    stepper, _ = stepper_on(data)
    (tmp_path / "saved" / "facts.npy").unlink()
    with pytest.raises(OneshotError, match=r"a sampler worker failed: .*facts\.npy"):
        next(stepper.steps(stepper.draw_epoch(1)))
    stepper.close()


def test_workers_need_a_saved_graph() -> None:
    with pytest.raises(InputError, match="workers needs a saved graph"):
        losses_with(family(100), 1)
    with pytest.raises(InputError, match="workers must be at least 0"):
        TrainingConfig(workers=-1)


def stepper_on(data: Dataset) -> tuple[Stepper, list[str]]:
    messages: list[str] = []
    config = dataclasses.replace(SMALL, workers=2, query_share=0.3)
    return Stepper(reasoner_on(data), data, config, messages=messages.append), messages


def batches_of(stepper: Stepper, epoch: Epoch) -> list[QueryBatch]:
    return list(epoch.batches(stepper.step_size))


def numbers_of(batch: QueryBatch) -> torch.Tensor:
    begin = batch.step * SMALL.batch_size
    return torch.arange(begin, begin + len(batch.queries))


def anonymous_megabytes(path: Path) -> float:
    """The largest memory of its own, without mapped files, of a process that trains a few steps."""
    done = subprocess.run(
        [sys.executable, "-c", _TRAINING, str(path)],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return float(done.stdout)


_TRAINING = """
import sys, threading, time
from pathlib import Path
from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.load import load
from oneshot.reasoner.build import build_reasoner
from oneshot.training.trainer import Trainer

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))

most, is_over = [own()], threading.Event()

def watch():
    while not is_over.wait(0.005):
        most[0] = max(most[0], own())

thread = threading.Thread(target=watch)
thread.start()
data = load(sys.argv[1])
training = TrainingConfig(epochs=1, batch_size=4, fact_ratio=0.99, query_share=0.001, valid_limit=8)
shape = PredictorConfig(num_layers=2, dim=4)
config = Config(SamplerConfig(max_entities=20, method="push"), shape, training)
trainer = Trainer(build_reasoner(data.graph, config), data, training)
trainer.run()
trainer.frequency.metrics(*trainer.drawn_for_validation(), trainer.known)
is_over.set()
thread.join()
print(most[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_memory_does_not_grow_with_the_facts(tmp_path: Path) -> None:
    sizes = 1_000_000, 2_500_000  # of the facts; as many entities
    used = []
    for facts in sizes:
        power_law(50_000, facts).save(tmp_path / str(facts))
        used.append(anonymous_megabytes(tmp_path / str(facts)))
    # A copy of the adjacency would take 52 bytes per fact, known answers 16.
    assert (used[1] - used[0]) * 2**20 / (sizes[1] - sizes[0]) < 8
