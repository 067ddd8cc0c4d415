"""Tests of weighted messages: all variants of the predictor, explanations, and training."""

import dataclasses

import pytest
import torch
from tests.support.graphs import random_graph, random_queries
from tests.support.samples import COMBINATIONS, VARIANTS, tiny_batch, tiny_predictor

import oneshot
from oneshot.compiled import knows_weights
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import fused
from oneshot.predictor.fused import why_not_fused
from oneshot.reasoner.cone import cone_of, edge_gradients
from oneshot.reasoner.explanation import without
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.training.epoch import without_direct


def name_of(settings: dict[str, object]) -> str:
    return "-".join(str(value) for value in settings.values())


every_kind = pytest.mark.parametrize("settings", COMBINATIONS + VARIANTS, ids=name_of)


def with_weights(batch: SubgraphBatch, value: float | None = None) -> SubgraphBatch:
    """The batch with one weight for all edges of facts, or with random ones."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(batch.num_edges, generator=generator) * 0.9 + 0.1
    if value is not None:
        weight = torch.full_like(weight, value)
    weight[batch.edges[1] == batch.edges[1].max()] = 1.0
    return dataclasses.replace(batch, weight=weight)


@every_kind
def test_weights_of_one_change_nothing_and_others_do(settings: dict[str, object]) -> None:
    _, batch = tiny_batch(queries=3, entities=15, facts=30)
    predictor = tiny_predictor(seed=1, **settings)
    with torch.no_grad():
        plain = predictor(batch)
        assert torch.allclose(predictor(with_weights(batch, 1.0)), plain)
        assert not torch.allclose(predictor(with_weights(batch)), plain)


def test_a_message_is_multiplied_by_the_weight_of_its_fact() -> None:
    """With one layer, sum and no activation, a score is linear in the weight of the only edge."""
    facts = torch.tensor([[0, 0, 1]])
    predictor = tiny_predictor(
        num_layers=1, aggregate="sum", activation="identity", gate=False, readout="linear"
    ).float()
    scores = []
    for weight in (1.0, 0.5, 0.25):
        graph = KnowledgeGraph.from_facts(facts, 2, predictor.num_relations, [weight])
        batch = PPRSampler(1.0).sample(graph, torch.tensor([[0, 0]]))
        scores.append(float(predictor(batch)[1].detach()))
    assert scores[0] != 0
    assert scores == pytest.approx([scores[0], scores[0] / 2, scores[0] / 4], rel=1e-5)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "pna"])
def test_explanations_use_the_same_weights_as_the_predictor(aggregate: str) -> None:
    _, batch = tiny_batch(queries=1, entities=12, facts=30)
    batch = with_weights(batch)
    predictor = tiny_predictor(seed=2, aggregate=aggregate).eval()
    with torch.no_grad():
        scores = predictor(batch)
    for target in range(batch.num_entities):
        cone = cone_of(predictor, batch, target)
        nothing = torch.zeros(batch.num_edges, dtype=torch.bool)
        (score,) = cone.scores_without([nothing], [batch.degree])
        assert score == pytest.approx(float(scores[target]), abs=1e-5)
        shares = cone.shares(1)
        exact = edge_gradients(predictor, batch, target, 0.5)
        assert torch.allclose(shares, exact, atol=1e-5)
    less = without(batch, [0], predictor.num_relations)
    assert len(less.weight) == less.num_edges < batch.num_edges


def test_edges_that_training_hides_take_their_weights_with_them() -> None:
    plain = random_graph(1, 20, 60)
    graph = KnowledgeGraph.from_facts(plain.facts, 20, 3, torch.linspace(0.1, 1, plain.num_facts))
    facts = graph.facts[:6].long()
    batch = PPRSampler(1.0).sample(graph, facts[:, :2])
    hidden = without_direct(batch, facts[:, 2], 3)
    assert hidden.num_edges < batch.num_edges
    assert len(hidden.weight) == hidden.num_edges


@pytest.mark.skipif(not knows_weights(), reason="needs kernels that were compiled for weights")
@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "pna"])
@pytest.mark.parametrize("message", ["redgnn", "nbfnet"])
@pytest.mark.parametrize("compose", ["multiply", "add"])
@pytest.mark.parametrize("over", ["subgraph", "graph"])
def test_the_kernels_of_the_cpu_agree_with_the_plain_formulas(
    aggregate: str, message: str, compose: str, over: str
) -> None:
    graph = random_graph(5, 60, 300)
    batch = PPRSampler(0.5).sample(graph, random_queries(graph, 7, 5))
    batch = with_weights(batch)
    # The gate keeps states at zero whose sum is zero, which a saturated tanh reaches in float32.
    settings = {"aggregate": aggregate, "message": message, "compose": compose, "gate": False}
    predictor = tiny_predictor(seed=4, dim=16, num_layers=3, aggregate_over=over, **settings)
    upstream = torch.randn(batch.num_entities, generator=torch.Generator().manual_seed(2)).double()
    results = []
    for engine, kind in (("fused", torch.float32), ("plain", torch.float64)):
        predictor = predictor.to(kind)
        predictor.engine = engine  # type: ignore[assignment]
        predictor.zero_grad()
        scores = predictor(batch)
        (scores.double() * upstream).sum().backward()
        gradients = [
            p.grad.double().flatten() for p in predictor.parameters() if p.grad is not None
        ]
        results.append((scores.detach().double(), torch.cat(gradients)))
    (scores, gradients), (expected_scores, expected) = results
    assert float((scores - expected_scores).norm() / expected_scores.norm()) < 1e-5
    assert float((gradients - expected).norm() / expected.norm()) < 1e-4
    assert float(expected.norm()) > 1e-3


def test_kernels_that_know_no_weights_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = tiny_predictor(dim=16).float()
    device = torch.device("cpu")
    monkeypatch.setattr(fused, "library", object)  # without the symbol
    monkeypatch.setattr(fused, "knows_weights", lambda: False)
    assert why_not_fused(predictor.config, device, torch.float32) is None
    reason = why_not_fused(predictor.config, device, torch.float32, is_weighted=True)
    assert reason is not None
    assert "built before weights of facts" in reason
    _, batch = tiny_batch()
    weighted = with_weights(batch)
    found = predictor(weighted)  # with the plain operations
    predictor.engine = "plain"
    assert torch.equal(predictor(weighted), found)
    predictor.engine = "fused"
    with pytest.raises(InputError, match="built before weights of facts"):
        predictor(weighted)


def test_triton_kernels_are_not_used_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = tiny_predictor(dim=16).float()
    monkeypatch.setattr(fused, "kernels_work", lambda _: True)
    device = torch.device("cpu")
    assert why_not_fused(predictor.config, device, torch.float32) is None
    reason = why_not_fused(predictor.config, device, torch.float32, is_weighted=True)
    assert reason == "there are no Triton kernels for weights of facts"


def test_training_and_answers_on_a_weighted_graph() -> None:
    plain = random_graph(3, 40, 200)
    weights = torch.linspace(0.05, 1, plain.num_facts)
    graph = KnowledgeGraph.from_facts(plain.facts, 40, 3, weights)
    held = graph.facts[:10].long()
    data = oneshot.Dataset("weighted", graph, held, held)
    config = oneshot.PredictorConfig(dim=8, num_layers=2, attention_dim=4)
    predictor = oneshot.Predictor(config, num_relations=3)
    reasoner = oneshot.Reasoner(graph, oneshot.PPRSampler(0.5), predictor)
    oneshot.fit(reasoner, data, oneshot.TrainingConfig(epochs=1, batch_size=8))
    queries = random_queries(graph, 5, 0)
    batch, scores = reasoner.reason(queries)
    assert batch.is_weighted
    assert bool(scores.isfinite().all())
    assert reasoner.explain("0", "1", reasoner.predict("0", "1", top=1)[0].entity) is not None
