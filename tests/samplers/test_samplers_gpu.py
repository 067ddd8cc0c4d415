"""The same subgraphs on a GPU as on a processor; needs a CUDA device."""

import dataclasses

import pytest
import torch

from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.load import family
from oneshot.evaluation.evaluate import evaluate
from oneshot.graph import host as host_graph
from oneshot.reasoner.build import build_reasoner
from oneshot.samplers import SAMPLERS, PPRSampler
from oneshot.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def data():
    return family(3000)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("edge_ratio", [1.0, 0.05])
def test_subgraphs_equal_those_of_the_processor(data, name, edge_ratio):
    queries = data.queries("test")[0][:200]
    sampler = SAMPLERS[name](0.1, edge_ratio)
    ours = sampler.sample(data.graph.to("cuda"), queries.cuda()).to("cpu")
    expected = sampler.sample(data.graph, queries)
    assert torch.equal(ours.entities[ours.source], queries[:, 0])
    assert ours.entity_query.bincount().tolist() == expected.entity_query.bincount().tolist()
    # Rounding may decide between entities of (nearly) equal score, and so change few of them.
    span = data.graph.num_entities
    left = ours.entity_query * span + ours.entities
    right = expected.entity_query * span + expected.entities
    common = torch.isin(left, right)
    assert common.float().mean() > 0.995
    both = torch.isin(right, left)
    assert torch.allclose(ours.score[common], expected.score[both], rtol=1e-4, atol=1e-9)
    if name in ("bfs", "random", "random_walk"):  # no rounding here
        assert torch.equal(left, right)
        if edge_ratio == 1.0:
            assert torch.equal(ours.edges, expected.edges)


def test_push_works_on_the_gpu(data):
    queries = data.queries("test")[0][:20]
    sampler = PPRSampler(max_entities=100, method="push")
    ours = sampler.select(data.graph.to("cuda"), queries.cuda())
    expected = sampler.select(data.graph, queries)
    common = torch.isin(
        ours.query.cpu() * 3000 + ours.entities.cpu(), expected.query * 3000 + expected.entities
    )
    assert common.float().mean() > 0.99


def test_a_subset_on_the_gpu_equals_that_of_the_processor(data):
    mask = torch.rand(data.graph.num_facts, generator=torch.Generator().manual_seed(0)) < 0.9
    ours = data.graph.to("cuda").subset(mask.cuda()).to("cpu")
    expected = data.graph.subset(mask)
    assert ours.fingerprint == expected.fingerprint
    assert torch.equal(ours.neighbours.index, expected.neighbours.index)


def test_a_graph_too_large_for_the_gpu_answers_from_the_host(data, monkeypatch):
    torch.manual_seed(0)
    expected = build_reasoner(data.graph, SMALL, torch.device("cuda"))
    monkeypatch.setattr(host_graph, "available_memory", lambda _: 0)
    torch.manual_seed(0)
    ours = build_reasoner(data.graph, SMALL, torch.device("cuda"))
    assert isinstance(ours.graph, host_graph.HostGraph)
    assert ours.device.type == "cuda"
    left, right = (r.predict(7, 2) for r in (ours, expected))
    assert [a.entity for a in left.answers] == [a.entity for a in right.answers]
    left, right = (evaluate(r, data.valid[:50], data.known).mrr for r in (ours, expected))
    assert left == pytest.approx(right, abs=0.01)
    assert ours.explain(7, 2, 9).target >= 0
    trainer = Trainer(ours, data, dataclasses.replace(SMALL.training, epochs=1))
    assert isinstance(trainer.graph, host_graph.HostGraph)
    trainer.run_epoch()
    assert all(torch.isfinite(parameter).all() for parameter in ours.predictor.parameters())


SMALL = Config(
    SamplerConfig(entity_ratio=0.2),
    PredictorConfig(num_layers=3, dim=16),
    TrainingConfig(epochs=2, batch_size=16, fact_ratio=0.9, query_share=0.2, mask_known=True),
)


def trained(data, config, recorded):
    torch.manual_seed(0)
    reasoner = build_reasoner(data.graph, config, torch.device("cuda"))
    trainer = Trainer(reasoner, data, config.training)
    assert trainer.stepper.recorder is not None
    if not recorded:
        trainer.stepper.recorder = None
    trainer.run()
    return reasoner, [record["loss"] for record in trainer.state.history]


def test_recorded_steps_are_those_that_are_launched_one_by_one(data):
    recorded, ours = trained(data, SMALL, True)
    launched, expected = trained(data, SMALL, False)
    assert ours == pytest.approx(expected, rel=1e-3)
    again, same = trained(data, SMALL, True)
    assert same == ours
    for one, other in zip(
        recorded.predictor.parameters(), again.predictor.parameters(), strict=True
    ):
        assert torch.equal(one, other)
    facts = data.valid[:50]
    known = data.known
    left, right = (evaluate(r, facts, known).mrr for r in (recorded, launched))
    assert left == pytest.approx(right, abs=0.02)


def test_recorded_steps_grow_with_the_batches(data):
    config = dataclasses.replace(
        SMALL, training=dataclasses.replace(SMALL.training, precision="bfloat16", epochs=1)
    )
    reasoner = build_reasoner(data.graph, config, torch.device("cuda"))
    trainer = Trainer(reasoner, data, config.training)
    trainer.run_epoch()
    before = trainer.stepper.recorder.capacity
    reasoner.sampler.budget = type(reasoner.sampler.budget)(entity_ratio=0.5)
    trainer.state.finished = False
    trainer.run_epoch()
    assert trainer.stepper.recorder.capacity.entities > before.entities
    assert all(torch.isfinite(parameter).all() for parameter in reasoner.predictor.parameters())


def test_a_recording_without_memory_is_given_up_and_the_training_goes_on(data, monkeypatch):
    _, expected = trained(data, SMALL, True)
    torch.manual_seed(0)
    reasoner = build_reasoner(data.graph, SMALL, torch.device("cuda"))
    said, asked = [], []
    trainer = Trainer(reasoner, data, SMALL.training, messages=said.append)
    reserve = trainer.stepper.recorder.reserve

    def short(block):
        asked.append(block)
        if len(asked) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        reserve(block)

    monkeypatch.setattr(trainer.stepper.recorder, "reserve", short)
    losses = [record["loss"] for record in trainer.run().history]
    assert said == ["out of GPU memory; training continues without CUDA graphs"]
    assert trainer.stepper.recorder is None
    assert losses == pytest.approx(expected, rel=1e-3)


def test_the_loss_of_a_gpu_is_that_of_a_processor(data):
    reasoner, on_gpu = trained(data, SMALL, True)
    del reasoner
    torch.manual_seed(0)
    reasoner = build_reasoner(data.graph, SMALL, torch.device("cpu"))
    trainer = Trainer(reasoner, data, SMALL.training)
    trainer.run()
    assert [r["loss"] for r in trainer.state.history] == pytest.approx(on_gpu, rel=0.02)


def test_a_stream_of_questions_is_answered_in_growing_batches(data, monkeypatch):
    sampler, predictor = SamplerConfig(max_entities=100), PredictorConfig(dim=8, num_layers=2)
    reasoner = build_reasoner(data.graph, Config(sampler, predictor))
    queries = [tuple(query) for query in data.queries("test")[0][:1000].tolist()]
    expected = list(reasoner.predict_stream(queries, top=1))
    reasoner.to("cuda")
    original, sizes = reasoner.reason, []

    def reason(asked):
        sizes.append(len(asked))
        return original(asked)

    monkeypatch.setattr(reasoner, "reason", reason)
    found = list(reasoner.predict_stream(queries, top=1))
    assert sizes[0] == 16
    assert max(sizes) > 500
    assert [one.entity for one in found] == [one.entity for one in expected]
    assert [one.relation for one in found] == [one.relation for one in expected]
    close = [
        [answer.score for answer in one] == pytest.approx([o.score for o in other], abs=1e-2)
        for one, other in zip(found, expected, strict=True)
    ]
    assert sum(close) > 990  # rounding may put another entity into a subgraph
