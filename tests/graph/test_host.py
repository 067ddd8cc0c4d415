"""Tests of graphs that stay in the memory of the host because they do not fit on the device.

Here the device is the processor, too: what is tested is that the way over the host changes nothing,
and that nobody looks for the adjacency on the device. `test_samplers_gpu` does it with a real one.
"""

from pathlib import Path
from typing import NoReturn

import pytest
import torch

from oneshot.config import PredictorConfig, TrainingConfig
from oneshot.data.load import family
from oneshot.evaluation.coverage import coverage
from oneshot.evaluation.evaluate import evaluate
from oneshot.graph import host as host_graph
from oneshot.graph.host import HostGraph, fits_on
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import SAMPLERS, PPRSampler
from oneshot.training.trainer import Trainer

CPU = torch.device("cpu")
DATA = family(300)
QUERIES = torch.tensor([[5, 0], [250, 13], [250, 3]])


class Watched(HostGraph):
    """A graph on the host whose adjacency nobody may take for one on the device."""

    @property
    def edges(self) -> NoReturn:
        raise AssertionError("was asked for on the device")

    @property
    def neighbours(self) -> NoReturn:
        raise AssertionError("was asked for on the device")

    def normalized_adjacency(self, dtype: torch.dtype = torch.float32) -> NoReturn:
        raise AssertionError("was asked for on the device")

    def subset(self, mask: torch.Tensor) -> "Watched":
        return Watched(self.host.subset(mask.cpu()), self.device)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_samples_from_the_host(name: str) -> None:
    sampler = SAMPLERS[name](max_entities=40)
    expected = sampler.sample(DATA.graph, QUERIES, torch.tensor([[1], [2], [-1]]))
    found = sampler.sample(Watched(DATA.graph, CPU), QUERIES, torch.tensor([[1], [2], [-1]]))
    for field, tensor in vars(expected).items():
        assert torch.equal(getattr(found, field), tensor), field
    targets = torch.tensor([5, 7, 299])
    places = [
        sampler.ranks(graph, QUERIES, targets) for graph in (DATA.graph, Watched(DATA.graph, CPU))
    ]
    assert torch.equal(*places)


def reasoner(graph: object) -> Reasoner:
    torch.manual_seed(0)
    predictor = Predictor(PredictorConfig(num_layers=3, dim=8), DATA.graph.num_relations)
    made = Reasoner(DATA.graph, PPRSampler(max_entities=60), predictor)
    made.graph = graph  # type: ignore[assignment]
    return made


def test_answers_figures_and_reasons_are_the_same(tmp_path: Path) -> None:
    here, there = reasoner(DATA.graph), reasoner(Watched(DATA.graph, CPU))
    for exclude_known in (False, True):
        answers = [r.predict(7, 2, exclude_known=exclude_known) for r in (here, there)]
        assert answers[0] == answers[1]
    figures = [evaluate(r, DATA.test[:20], DATA.known) for r in (here, there)]
    assert figures[0].mrr == figures[1].mrr
    reasons = [r.explain(7, 2, answers[0].answers[0].entity) for r in (here, there)]
    assert [p.weight for p in reasons[0].paths] == [p.weight for p in reasons[1].paths]
    there.save(tmp_path / "run")
    assert Reasoner.load(tmp_path / "run").predict(7, 2) == here.predict(7, 2)
    shares = [
        coverage(r.sampler, r.graph, QUERIES, QUERIES[:, 0], [10]).coverage for r in (here, there)
    ]
    assert shares[0] == shares[1]


def test_training_is_the_same() -> None:
    config = TrainingConfig(epochs=1, batch_size=16, query_share=0.1)
    losses = []
    for graph in (DATA.graph, Watched(DATA.graph, CPU)):
        trainer = Trainer(reasoner(graph), DATA, config)
        trainer.stepper.graph = graph
        trainer.run_epoch()
        losses.append(trainer.state.history[0]["loss"])
    assert losses[0] == losses[1]


def test_what_does_not_fit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits_on(DATA.graph, CPU)
    arrays = (DATA.graph.facts, *vars(DATA.graph.edges).values())
    least = sum(array.nbytes for array in arrays)
    for free, fits in ((least, False), (10 * least, True)):
        monkeypatch.setattr(host_graph, "available_memory", lambda _, free=free: free)
        assert fits_on(DATA.graph, CPU) == fits
    monkeypatch.setattr(host_graph, "available_memory", lambda _: 0)
    kept = DATA.graph.to("meta")
    assert isinstance(kept, HostGraph)
    assert (kept.device.type, kept.host) == ("meta", DATA.graph)
    assert (kept.num_facts, kept.num_entities) == (DATA.graph.num_facts, 300)
    assert kept.to("cpu") is DATA.graph
    assert kept.fingerprint == DATA.graph.fingerprint
    assert kept.edges is DATA.graph.edges
    assert kept.neighbours is DATA.graph.neighbours
    assert kept.normalized_adjacency() is DATA.graph.normalized_adjacency()


def test_subsets_stay_too() -> None:
    graph = HostGraph(DATA.graph, CPU)
    mask = torch.arange(graph.num_facts) % 3 > 0
    part = graph.subset(mask)
    assert isinstance(part, HostGraph)
    assert part.fingerprint == DATA.graph.subset(mask).fingerprint
    some = torch.tensor([4, 2])
    assert torch.equal(graph.degree_of(some), DATA.graph.degree[some])
    assert torch.equal(graph.degree, DATA.graph.degree)
    assert torch.equal(graph.facts, DATA.graph.facts)
    assert isinstance(graph.with_relations(DATA.relations), HostGraph)
