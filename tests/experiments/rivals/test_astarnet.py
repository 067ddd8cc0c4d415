"""AStarNetCoupling: equal to a dense computation if all take part, and what is selected if not."""

import dataclasses

import pytest
import torch
from tests.support.graphs import random_graph, random_queries
from torch import Tensor

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.experiments.rivals.astarnet import AStarNetCoupling
from oneshot.experiments.rivals.coupling import Chosen, CoupledReasoner
from oneshot.experiments.rivals.propagation import OutEdges
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor.segments import EdgePlan
from oneshot.samplers import PPRSampler

CONFIG = PredictorConfig(
    num_layers=3, dim=8, message="nbfnet", gate=False, shortcut=True, reinject=True, norm=True
)


def _coupling(graph: KnowledgeGraph, ratio: float, edge_ratio: float = 100.0) -> AStarNetCoupling:
    torch.manual_seed(0)
    return AStarNetCoupling(CONFIG, graph.num_relations, entity_ratio=ratio, edge_ratio=edge_ratio)


def _dense(coupling: AStarNetCoupling, graph: KnowledgeGraph, queries: Tensor) -> Tensor:
    """The scores [n · V] of all entities if all of them take part in each layer."""
    network = coupling.network
    batch = PPRSampler(entity_ratio=1.0).sample(graph, queries)
    plan = EdgePlan(batch, graph.num_relations)
    query = network.query(queries[:, 1])
    start = network.start(query)
    state = start.new_zeros(batch.num_entities, CONFIG.dim).index_copy(0, batch.source, start)
    for layer in network.layers:
        weight = coupling._logits(state, batch.entity_query, query).sigmoid()
        state = layer(state, plan, query, weight[batch.edges[0]])
        state = state.index_add(0, batch.source, start)
    return coupling._logits(state, batch.entity_query, query)


def test_with_all_entities_and_edges_it_is_a_dense_computation() -> None:
    graph = random_graph(0)
    queries = random_queries(graph, 4, 0)
    coupling = _coupling(graph, 1.0)
    batch, scores = coupling(graph, queries)
    expected = _dense(coupling, graph, queries)
    rows = batch.entity_query * graph.num_entities + batch.entities
    torch.testing.assert_close(scores, expected[rows], rtol=1e-4, atol=1e-5)
    assert batch.num_entities < len(expected)  # only those that a message can reach
    scores.square().sum().backward()
    # The priority learns through the weights of messages, too: the heuristic has gradients.
    for parameter in coupling.heuristic.parameters():
        assert parameter.grad is not None
        assert float(parameter.grad.abs().max()) > 0


def test_few_entities_send_and_all_that_were_reached_have_scores() -> None:
    graph = random_graph(1, facts=200)
    queries = random_queries(graph, 3, 1)
    reasoner = CoupledReasoner(graph, _coupling(graph, 0.1))
    layers: list[Chosen] = []
    sizes: list[int] = []
    for layer in reasoner.coupling.network.layers:  # type: ignore[union-attr]
        layer.register_forward_hook(lambda _, call, __: sizes.append(call[1].batch.num_edges))
    batch, scores = reasoner.reason(queries, watch=layers.append)
    assert [chosen.layer for chosen in layers] == [1, 2, 3]
    assert len(layers[0].entities) < len(layers[2].entities) == batch.num_entities == len(scores)
    whole: list[int] = []
    every = CoupledReasoner(graph, _coupling(graph, 1.0))
    for layer in every.coupling.network.layers:  # type: ignore[union-attr]
        layer.register_forward_hook(lambda _, call, __: whole.append(call[1].batch.num_edges))
    every.reason(queries)
    assert sizes[0] == whole[0]  # one sender
    assert sizes[2] < whole[2]


def test_edges_lead_to_the_targets_of_highest_priority() -> None:
    graph = random_graph(2)
    coupling, size = _coupling(graph, 1.0), graph.num_entities
    keys = torch.tensor([1, 4, 6, size + 2])
    logit = torch.tensor([0.5, 3.0, -2.0, 1.0])
    unreached = torch.tensor([0.0, 2.0])
    target = torch.tensor([6, 9, 4, 1, size + 2, size + 3, size + 4])
    edges = OutEdges(torch.zeros_like(target), torch.zeros_like(target), target)
    best = coupling._best_edges(edges, keys, logit, unreached, 2, size)
    assert best.target.tolist() == [4, 1, size + 3, size + 4]


def test_the_number_of_edges_is_limited() -> None:
    graph = random_graph(3, facts=200)
    queries = torch.tensor([[0, 1], [1, 0]])
    coupling = _coupling(graph, 1.0, edge_ratio=0.05)
    sizes: list[tuple[int, int]] = []
    for layer in coupling.network.layers:
        layer.register_forward_hook(
            lambda _, call, __: sizes.append((call[1].batch.num_edges, call[1].batch.num_entities))
        )
    coupling(graph, queries)
    most = int(0.05 * 2 * graph.num_facts)
    assert all(edges - identity <= 2 * most for edges, identity in sizes)
    assert max(edges - identity for edges, identity in sizes) > most


def test_answers_do_not_depend_on_the_rest_of_the_batch() -> None:
    graph = random_graph(4, facts=150)
    queries = random_queries(graph, 5, 4)
    reasoner = CoupledReasoner(graph, _coupling(graph, 0.1, 1.0))
    batch, scores = reasoner.reason(queries)
    for number, query in enumerate(queries):
        alone, own = reasoner.reason(query[None])
        mine = batch.entity_query == number
        assert alone.entities.equal(batch.entities[mine])
        torch.testing.assert_close(own, scores[mine], rtol=1e-4, atol=1e-5)


def test_entities_can_be_forced_in() -> None:
    graph = random_graph(5)
    queries = random_queries(graph, 2, 5)
    reasoner = CoupledReasoner(graph, _coupling(graph, 0.1))
    batch, scores = reasoner.reason(queries)
    wider, more = reasoner.reason(queries, torch.arange(graph.num_entities).expand(2, -1))
    assert wider.num_entities == len(more) == 2 * graph.num_entities
    rows = wider.find_pairs(batch.entity_query, batch.entities)
    torch.testing.assert_close(more[rows], scores)


def test_wrong_options() -> None:
    with pytest.raises(InputError, match="entity_ratio must be in"):
        AStarNetCoupling(CONFIG, 2, entity_ratio=0)
    with pytest.raises(InputError, match="no gate"):
        AStarNetCoupling(dataclasses.replace(CONFIG, gate=True), 2)
