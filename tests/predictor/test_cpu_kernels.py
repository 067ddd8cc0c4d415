"""The predictor's compiled kernels for the CPU, against the plain formulas in double precision."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from tests.support.graphs import random_graph, random_queries
from torch import Tensor

from oneshot.compiled import library
from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.predictor import Predictor
from oneshot.predictor.cpu.messages import collect
from oneshot.predictor.cpu.plan import make_plan
from oneshot.predictor.messages import Attention
from oneshot.samplers import PPRSampler, _extract
from oneshot.subgraph import SubgraphBatch

needs_kernels = pytest.mark.skipif(
    library() is None, reason="the package was installed without a C compiler"
)

SHAPES: list[dict[str, Any]] = [
    {"gate": True, "activation": "relu"},
    {"gate": False, "norm": True, "shortcut": True, "activation": "relu", "priors": True},
    {"gate": True, "gate_mask": "reached", "shortcut": True, "activation": "tanh", "concat": True},
    {"gate": False, "initial": "binary", "readout": "dot", "activation": "identity"},
    {"gate": False, "norm": True, "shortcut": True, "aggregate_over": "graph", "readout": "mlp"},
    {
        "gate": True,
        "reinject": True,
        "readout": "mlp",
        "concat": True,
        "initial": "binary",
        "relation_rank": 2,
    },
]


def batch_of(seed: int = 7, queries: int = 5, ratio: float = 0.6) -> SubgraphBatch:
    graph = random_graph(seed, 60, 150, 3)
    # Entities that no path leads to have no state, and edges of their own.
    sampler = PPRSampler(ratio, keep_unreachable=True)
    return sampler.sample(graph, random_queries(graph, queries, seed))


def predictor_of(**settings: Any) -> Predictor:
    torch.manual_seed(3)
    shape = {"num_layers": 3, "dim": 16, "attention_dim": 5, **settings}
    return Predictor(PredictorConfig(**shape), 3)


def scores_and_gradients(predictor: Predictor, batch: SubgraphBatch) -> tuple[Tensor, Tensor]:
    predictor.zero_grad()
    scores = predictor(batch)
    weight = torch.randn(len(scores), generator=torch.Generator().manual_seed(5))
    (scores * weight.to(scores.dtype)).sum().backward()
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in predictor.parameters()
    ]
    return scores.detach().clone(), torch.cat([gradient.reshape(-1) for gradient in gradients])


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@needs_kernels
@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "pna"])
@pytest.mark.parametrize("message", ["redgnn", "nbfnet"])
@pytest.mark.parametrize("compose", ["multiply", "add"])
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_scores_and_gradients_are_those_of_the_plain_formulas(
    aggregate: str, message: str, compose: str, shape: int
) -> None:
    settings = {"aggregate": aggregate, "message": message, "compose": compose, **SHAPES[shape]}
    if compose == "add" and settings.get("gate_mask") == "reached":
        pytest.skip("has no kernels")
    batch, predictor = batch_of(), predictor_of(**settings)
    predictor.engine = "fused"
    scores, gradients = scores_and_gradients(predictor, batch)
    predictor.engine = "plain"
    expected_scores, expected = scores_and_gradients(predictor.double(), batch)
    assert distance(scores, expected_scores) < 1e-5
    assert distance(gradients, expected) < 1e-4
    assert float(expected.norm()) > 1e-3


@needs_kernels
@pytest.mark.parametrize("dim", [1, 12, 40, 64])
def test_any_dimension_will_do(dim: int) -> None:
    batch = batch_of()
    predictor = predictor_of(dim=dim, attention_dim=17, aggregate="pna", gate=False)
    predictor.engine = "fused"
    scores, gradients = scores_and_gradients(predictor, batch)
    predictor.engine = "plain"
    expected_scores, expected = scores_and_gradients(predictor.double(), batch)
    assert distance(scores, expected_scores) < 1e-5
    assert distance(gradients, expected) < 1e-4


@needs_kernels
@pytest.mark.parametrize("aggregate", ["sum", "pna"])
def test_the_number_of_threads_does_not_change_a_bit(
    monkeypatch: pytest.MonkeyPatch, aggregate: str
) -> None:
    monkeypatch.setattr("oneshot.compiled._WORK_A_THREAD", 1)
    batch = batch_of(queries=40)
    generator = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    rows = make_plan(batch, 3, 3, True).reach[1]
    state, table = numbers(rows, 16), numbers(7, 16)
    attention = Attention(numbers(rows, 8), numbers(7, 8), numbers(40, 8), numbers(8), numbers(1))
    inputs = [state, table, *vars(attention).values()]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            plan = make_plan(batch, 3, 3, True)
            out = collect(state, table, attention, plan, 1, aggregate, False)
            found.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    finally:
        torch.set_num_threads(before)
    for one, other in itertools.pairwise(found):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@needs_kernels
def test_rows_are_numbered_by_distance() -> None:
    batch = batch_of(queries=6)
    plan = make_plan(batch, 3, 3, True)
    source, _, target = batch.edges
    hops = torch.full((batch.num_entities,), 99)
    hops[batch.source] = 0
    for hop in range(1, 4):
        arrives = target[hops[source] == hop - 1]
        hops[arrives] = hops[arrives].clamp(max=hop)
    assert plan.reach == [int((hops <= hop).sum()) for hop in range(4)]
    assert torch.equal(hops[plan.order], hops[plan.order].sort().values)
    for query in range(6):
        mine = [
            row
            for level in plan.level_row.tolist()
            for row in range(level[query], level[query + 1])
        ]
        assert set(plan.row_query[mine].tolist()) == {query}
    assert sorted(plan.order.tolist()) == (hops <= 3).nonzero().squeeze(1).tolist()


@needs_kernels
def test_inference_gives_the_scores_of_training() -> None:
    batch, predictor = batch_of(), predictor_of(aggregate="pna", gate=False)
    predictor.eval()
    with torch.inference_mode():
        quiet = predictor(batch)
    assert torch.equal(quiet, predictor(batch).detach())


@needs_kernels
def test_an_empty_batch() -> None:
    graph = random_graph(1, 10, 20, 3)
    batch = PPRSampler(0.5).sample(graph, torch.zeros(0, 2, dtype=torch.long))
    assert predictor_of()(batch).shape == (0,)


def test_without_a_compiler_the_plain_formulas_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oneshot.predictor.fused.library", lambda: None)
    batch, predictor = batch_of(), predictor_of()
    assert not predictor._takes_kernels(batch)
    assert predictor(batch).shape == (batch.num_entities,)
    predictor.engine = "fused"
    with pytest.raises(InputError, match="without a C compiler"):
        predictor(batch)


@needs_kernels
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_subgraphs_are_those_of_the_plain_code(share: float, wide: bool) -> None:
    for seed in range(3):
        graph = random_graph(seed, 40, 120, 3)
        if wide:
            edges = graph.edges
            graph.edges = dataclasses.replace(
                edges, source=edges.source.long(), relation=edges.relation.long()
            )
        queries = random_queries(graph, 6, seed)
        queries[2] = queries[0]
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.rand(6, 40, generator=generator) < share
        chosen[torch.arange(6), queries[:, 0]] = True
        query, entities = chosen.nonzero().unbind(1)
        budget = torch.full((6,), 50)
        found, expected = (
            cut(graph, queries, entities, query, budget)
            for cut in (_extract.compiled_cut, _extract.plain_cut)
        )
        assert found.over_budget == expected.over_budget
        for one, other in zip(found[:4], expected[:4], strict=True):
            assert torch.equal(one, other)
