"""Tests of the predictor: its formulas, its gradients, and what must not matter to it."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.support.graphs import random_graph, random_queries
from tests.support.naive_predictor import naive_scores
from tests.support.samples import COMBINATIONS, VARIANTS, tiny_batch, tiny_predictor
from torch import Tensor

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.experiments.bench.predictor import EdgeByEdge
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.predictor import segments as rows_module
from oneshot.predictor.aggregation import AGGREGATES, Aggregate
from oneshot.predictor.messages import MESSAGES, Message, Query
from oneshot.predictor.segments import EdgePlan, Rows
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch


def name_of(settings: dict[str, object]) -> str:
    return "-".join(str(value) for value in settings.values())


every_kind = pytest.mark.parametrize("settings", COMBINATIONS + VARIANTS, ids=name_of)


@every_kind
def test_one_step_gives_every_parameter_a_finite_gradient(settings: dict[str, object]) -> None:
    _, batch = tiny_batch(queries=4, entities=20, facts=40)
    predictor = tiny_predictor(dim=4, num_layers=3, attention_dim=8, **settings).float()
    before = {name: value.clone() for name, value in predictor.state_dict().items()}
    optimizer = torch.optim.Adam(predictor.parameters(), lr=1e-3)
    weights = torch.linspace(-1, 1, batch.num_entities)
    loss = (predictor(batch) * weights).sum()
    loss.backward()
    for name, parameter in predictor.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool((parameter.grad != 0).any()), name
    optimizer.step()
    with torch.no_grad():
        assert float((predictor(batch) * weights).sum()) < float(loss)
    assert all((value != before[name]).any() for name, value in predictor.state_dict().items())


@every_kind
def test_gradients_are_those_of_differences(settings: dict[str, object]) -> None:
    _, batch = tiny_batch(seed=1, queries=2, entities=6, facts=7)
    predictor = tiny_predictor(seed=3, **settings)
    names, values = zip(*predictor.named_parameters(), strict=True)

    def scores(*parameters: Tensor) -> Tensor:
        return torch.func.functional_call(
            predictor, dict(zip(names, parameters, strict=True)), (batch,)
        )

    # Along random directions: as sharp as entry by entry, at a fraction of the time.
    assert torch.autograd.gradcheck(scores, values, fast_mode=True, eps=1e-6, atol=1e-5)


def test_the_network_does_not_stop_the_gradient_of_the_edge_weights() -> None:
    _, batch = tiny_batch(seed=1, queries=2, entities=6, facts=7)
    predictor = tiny_predictor(seed=3)
    weights = [torch.full((batch.num_edges,), 0.7, dtype=torch.float64) for _ in range(2)]
    for weight in weights:
        weight.requires_grad_()
    assert torch.autograd.gradcheck(lambda *w: predictor(batch, w), weights, fast_mode=True)
    ones = [torch.ones(batch.num_edges, dtype=torch.float64)] * 2
    torch.testing.assert_close(predictor(batch, ones), predictor(batch))


@every_kind
def test_scores_are_those_of_the_plain_formulas(settings: dict[str, object]) -> None:
    _, batch = tiny_batch(seed=2, queries=3, entities=15, facts=30)
    predictor = tiny_predictor(seed=1, dim=4, num_layers=3, attention_dim=3, **settings)
    found = predictor(batch).detach().numpy()
    np.testing.assert_allclose(found, naive_scores(predictor, batch), rtol=1e-9, atol=1e-12)
    assert np.ptp(found) > 1e-6


@every_kind
def test_a_batch_gives_the_scores_of_its_queries(settings: dict[str, object]) -> None:
    graph = random_graph(4, 30, 90, 3)
    queries = random_queries(graph, 5, 4)
    sampler = PPRSampler(entity_ratio=0.5)
    predictor = tiny_predictor(dim=4, num_layers=3, **settings).eval()
    together = predictor(sampler.sample(graph, queries))
    alone = torch.cat([predictor(sampler.sample(graph, query[None])) for query in queries])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@every_kind
def test_other_names_of_the_entities_change_nothing(settings: dict[str, object]) -> None:
    """With all entities in the subgraph, relabelling permutes the scores."""
    graph = random_graph(5, 20, 50, 3)
    order = torch.from_numpy(np.random.default_rng(0).permutation(20))
    facts = graph.facts.long()
    other = KnowledgeGraph.from_facts(
        torch.stack([order[facts[:, 0]], facts[:, 1], order[facts[:, 2]]], 1), 20, 3
    )
    queries = random_queries(graph, 3, 5)
    renamed = torch.stack([order[queries[:, 0]], queries[:, 1]], 1)
    predictor = tiny_predictor(dim=4, num_layers=3, **settings)
    sampler = PPRSampler(entity_ratio=1.0)
    scores = predictor(sampler.sample(graph, queries)).reshape(3, 20)
    permuted = predictor(sampler.sample(other, renamed)).reshape(3, 20)
    # The sampler computes its scores, which are priors, in float32.
    tolerance = 1e-6 if settings.get("priors") else 1e-10
    torch.testing.assert_close(permuted[:, order], scores, rtol=tolerance, atol=tolerance / 100)


def test_a_predictor_works_on_a_graph_it_has_never_seen() -> None:
    predictor = tiny_predictor()
    for size in (5, 200):
        graph = random_graph(size, size, 3 * size, 3)
        batch = PPRSampler(entity_ratio=0.5).sample(graph, random_queries(graph, 4, 0))
        assert predictor(batch).shape == (batch.num_entities,)
    with pytest.raises(InputError, match="has 3 relations, the graph has 4"):
        predictor.check_graph(4)


def test_parameters_do_not_depend_on_the_graph() -> None:
    config = PredictorConfig(num_layers=2, dim=8, attention_dim=3, gate=False)
    per_layer = 7 * 8 + 3 * (3 * 8) + 3 + 3 + 1 + 8 * 8
    assert Predictor(config, 3).num_parameters == 2 * per_layer + 7 * 8 + 8


@pytest.mark.parametrize("gate_mask", ["nonzero", "reached"])
@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "pna"])
def test_entities_that_no_path_leads_to_have_score_zero(aggregate: str, gate_mask: str) -> None:
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [2, 0, 3]], 5, 3)
    batch = PPRSampler(entity_ratio=1.0).sample(graph, torch.tensor([[0, 0]]))
    scores = tiny_predictor(aggregate=aggregate, gate_mask=gate_mask)(batch)
    assert bool((scores[:2] != 0).all())
    assert scores[2:].tolist() == [0, 0, 0]


def test_after_so_many_layers_a_path_so_long_is_seen() -> None:
    chain = KnowledgeGraph.from_facts([[i, 0, i + 1] for i in range(6)], 7, 1)
    batch = PPRSampler(entity_ratio=1.0).sample(chain, torch.tensor([[0, 0]]))
    for layers in (1, 3, 5):
        scores = tiny_predictor(num_relations=1, num_layers=layers)(batch)
        assert scores.nonzero().squeeze(1).tolist() == list(range(layers + 1))


def test_dropout_acts_in_training_only() -> None:
    _, batch = tiny_batch()
    for gate in (True, False):
        predictor = tiny_predictor(dropout=0.5, gate=gate, dim=8)
        plain = tiny_predictor(dropout=0.0, gate=gate, dim=8)
        assert not torch.equal(predictor(batch), predictor(batch))
        assert torch.equal(predictor.eval()(batch), plain(batch))


def test_a_batch_without_queries_has_no_scores_but_gradients() -> None:
    """A process that has nothing left to do in the last step still takes part in it."""
    graph, _ = tiny_batch()
    empty = PPRSampler(entity_ratio=0.5).sample(graph, torch.zeros(0, 2, dtype=torch.long))
    for settings in (*COMBINATIONS, *VARIANTS):
        predictor = tiny_predictor(**settings)
        scores = predictor(empty)
        assert scores.shape == (0,)
        scores.sum().backward()
        assert all(not p.grad.any() for p in predictor.parameters() if p.grad is not None)
        assert all(p.grad is not None for p in predictor.parameters()), settings


ROWS: list[tuple[str, Callable[[], Rows], bool]] = [
    ("short", lambda: Rows(torch.tensor([2, 0, 2, 5, 2]), 6), False),
    ("sorted", lambda: Rows(torch.tensor([0, 2, 2, 5]), 6, is_sorted=True), False),
    ("long", lambda: Rows(torch.arange(700) % 3, 5), True),
    ("one long row", lambda: Rows(torch.full((600,), 1), 2, is_sorted=True), True),
    ("whole pieces", lambda: Rows(torch.arange(512) // 256, 2, is_sorted=True), True),
    ("empty", lambda: Rows(torch.zeros(0, dtype=torch.long), 3), False),
]


@pytest.mark.parametrize(("make", "in_pieces"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_rows_are_picked_and_added_with_the_right_gradients(
    make: Callable[[], Rows], in_pieces: bool
) -> None:
    rows = make()
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(rows.size, 2, generator=generator, dtype=torch.float64)
    values = torch.randn(len(rows.index), 2, generator=generator, dtype=torch.float64)
    assert torch.equal(rows.pick(table), table[rows.index])
    naive = torch.zeros_like(table).index_add(0, rows.index, values)
    torch.testing.assert_close(rows.add(values), naive, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rows.add(values.float()), naive.float(), rtol=1e-5, atol=1e-5)
    table.requires_grad_()
    (rows.pick(table) * values).sum().backward()
    torch.testing.assert_close(table.grad, naive, rtol=1e-12, atol=1e-12)
    values.requires_grad_()
    (rows.add(values) * table.detach()).sum().backward()
    assert torch.equal(values.grad, table.detach()[rows.index])
    assert len(rows.matrices) == (2 if in_pieces else 1)
    assert rows.count.tolist() == np.bincount(rows.index, minlength=rows.size).tolist()


def test_rows_of_more_dimensions_and_half_precision() -> None:
    rows = Rows(torch.tensor([1, 1, 0]), 2)
    values = torch.arange(12.0).reshape(3, 2, 2)
    assert rows.sum_without_gradient(values).tolist() == [[[8, 9], [10, 11]], [[4, 6], [8, 10]]]
    half = torch.full((3, 1), 1.0, dtype=torch.bfloat16)
    assert rows.sum_without_gradient(half).dtype == torch.bfloat16


def test_the_largest_is_taken_by_channel_and_zero_where_there_is_none() -> None:
    rows = Rows(torch.tensor([0, 0, 2]), 3)
    values = torch.tensor([[-3.0, 1], [-2, 0], [5, 6]])
    assert rows.largest(values).tolist() == [[-2, 1], [0, 0], [5, 6]]


def test_long_rows_add_up_to_the_same_in_the_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    _, batch = tiny_batch(queries=3, entities=20, facts=60)
    gradients = []
    for long_rows, piece in ((64, 256), (0, 2)):
        monkeypatch.setattr(rows_module, "_LONG_ROWS", long_rows)
        monkeypatch.setattr(rows_module, "_PIECE", piece)
        predictor = tiny_predictor()
        predictor(batch).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in predictor.parameters()]))  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


def test_edges_in_another_order_within_a_target_change_nothing() -> None:
    _, batch = tiny_batch(queries=3, entities=20, facts=60)
    key = batch.edges[2] * 1000 - torch.arange(batch.num_edges)
    order = key.argsort()
    turned: SubgraphBatch = dataclasses.replace(
        batch, edges=batch.edges[:, order], edge_query=batch.edge_query[order]
    )
    predictor = tiny_predictor()
    torch.testing.assert_close(predictor(turned), predictor(batch), rtol=1e-10, atol=1e-12)


def test_written_edge_by_edge_it_is_the_same_network() -> None:
    _, batch = tiny_batch(seed=4, queries=3, entities=15, facts=30)
    for settings in ({}, {"concat": True, "shortcut": True}, {"readout": "dot"}):
        predictor = tiny_predictor(dim=4, num_layers=3, **settings).float()
        usual = EdgeByEdge(predictor)
        torch.testing.assert_close(usual(batch), predictor(batch), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="redgnn"):
        EdgeByEdge(tiny_predictor(aggregate="max"))


class CopyMessage(Message):
    """The state as it is: a message of which nothing but its class is known."""

    def forward(self, state: Tensor, plan: EdgePlan, query: Query) -> Tensor:
        return plan.source.pick(state)


def test_a_message_or_an_aggregate_without_kernels_needs_its_entry_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lowest(messages: Tensor, plan: EdgePlan) -> Tensor:
        return -plan.target.largest(-messages)

    monkeypatch.setitem(MESSAGES, "copy", CopyMessage)
    monkeypatch.setitem(AGGREGATES, "min", Aggregate(lowest, answering_rows=100))
    for settings in ({"message": "copy"}, {"aggregate": "min"}):
        config = PredictorConfig(**{"dim": 16, "num_layers": 2, **settings})  # type: ignore[arg-type]
        predictor = Predictor(config, 3)
        _, batch = tiny_batch()
        scores = predictor(batch)
        assert scores.shape == (batch.num_entities,)
        assert bool(scores.isfinite().all())
        (name,) = settings.values()
        predictor.engine = "fused"
        with pytest.raises(InputError, match=f'no kernels for (message|aggregate) "{name}"'):
            predictor(batch)


def test_aggregates_with_kernels_are_those_that_the_kernels_know() -> None:
    from oneshot.predictor.cpu.messages import _NUMBERS

    assert {name for name, one in AGGREGATES.items() if one.has_compiled_kernels} == set(_NUMBERS)
    messages = pytest.importorskip("oneshot.predictor.kernels.messages", reason="needs Triton")
    assert {name for name, one in AGGREGATES.items() if one.has_triton_kernels} == set(
        messages._MODES
    )


@pytest.mark.parametrize("aggregate", ["mean", "max", "pna"])
def test_neighbours_outside_the_subgraph_send_zeros(aggregate: str) -> None:
    """After one layer only the query entity has sent anything, whatever was sampled beside it."""
    graph = random_graph(5, 40, 160, 3)
    queries = random_queries(graph, 4, 1)
    small, whole = (PPRSampler(ratio).sample(graph, queries) for ratio in (0.2, 1.0))
    place = whole.find_pairs(small.entity_query, small.entities)
    scores = {}
    for over in ("graph", "subgraph"):
        shape = {"num_layers": 1, "dim": 8, "gate": False, "activation": "identity"}
        predictor = tiny_predictor(aggregate=aggregate, aggregate_over=over, **shape)
        scores[over] = predictor(small), predictor(whole)[place]
    torch.testing.assert_close(*scores["graph"])
    if aggregate != "max":  # the highest message may be the same
        assert not torch.allclose(*scores["subgraph"])


def test_relation_weights_of_low_rank_have_fewer_parameters() -> None:
    shape = {"message": "nbfnet", "dim": 16, "num_layers": 2, "gate": False}
    full, low = (
        Predictor(PredictorConfig(**shape, relation_rank=rank), 5)  # type: ignore[arg-type]
        for rank in (0, 3)
    )
    kinds, dim, layers = 11, 16, 2
    saved = layers * (dim * kinds * dim - (3 * kinds * dim + dim * 3))
    assert full.num_parameters - low.num_parameters == saved
    # The weights of all queries span a space of that rank.
    table, _ = low.layers[0].message.terms(torch.zeros(1, dim), low.query(torch.arange(11)))
    weights = table.reshape(11, -1) - low.layers[0].message.weights[1].bias
    assert int(torch.linalg.matrix_rank(weights.detach(), atol=1e-5)) == 3
