"""AdaPropCoupling: equal to our predictor if everything is chosen, and what is chosen otherwise."""

import dataclasses
from typing import Any

import pytest
import torch
from tests.support.graphs import random_graph, random_queries

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.experiments.rivals.adaprop import AdaPropCoupling
from oneshot.experiments.rivals.coupling import Chosen, CoupledReasoner
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers import PPRSampler

CONFIG = PredictorConfig(num_layers=3, dim=8, attention_dim=3)


def _coupling(graph: KnowledgeGraph, per_layer: int, **changes: Any) -> AdaPropCoupling:
    torch.manual_seed(0)
    config = dataclasses.replace(CONFIG, **changes)
    return AdaPropCoupling(config, graph.num_relations, per_layer=per_layer)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shortcut": True, "activation": "identity", "readout": "dot"},
        {"gate": False, "message": "nbfnet", "reinject": True},
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_with_all_neighbours_it_is_our_predictor_on_the_whole_graph(
    changes: dict[str, Any], training: bool
) -> None:
    graph = random_graph(0)
    queries = random_queries(graph, 5, 0)
    coupling = _coupling(graph, 1000, **changes).train(training)
    batch, scores = coupling(graph, queries)
    whole = PPRSampler(entity_ratio=1.0).sample(graph, queries)
    coupling.network.engine = "plain"
    expected = coupling.network(whole)
    rows = whole.find_pairs(batch.entity_query, batch.entities)
    torch.testing.assert_close(scores, expected[rows], rtol=1e-4, atol=1e-5)
    # Beyond its reach, our predictor has seen nothing.
    outside = torch.ones(whole.num_entities, dtype=torch.bool)
    outside[rows] = False
    assert float(expected[outside].detach().abs().max()) < 1e-6


def test_chosen_entities_grow_by_at_most_the_budget() -> None:
    graph = random_graph(1, facts=200)
    queries = random_queries(graph, 4, 1)
    reasoner = CoupledReasoner(graph, _coupling(graph, 2))
    layers: list[Chosen] = []
    batch, scores = reasoner.reason(queries, watch=layers.append)
    assert [chosen.layer for chosen in layers] == [1, 2, 3]
    before = set(enumerate(queries[:, 0].tolist()))
    for chosen in layers:
        now = set(zip(chosen.query.tolist(), chosen.entities.tolist(), strict=True))
        assert before <= now
        for query in range(4):
            assert sum(pair[0] == query for pair in now - before) <= 2
        before = now
    assert before == set(zip(batch.entity_query.tolist(), batch.entities.tolist(), strict=True))
    assert len(scores) == batch.num_entities > 4


def test_the_highest_scores_are_chosen() -> None:
    graph = random_graph(2, facts=200)
    queries = torch.tensor([[0, 1]])
    coupling = _coupling(graph, 1).eval()
    seen: list[Chosen] = []
    with torch.inference_mode():
        every = AdaPropCoupling(CONFIG, graph.num_relations)
        every.load_state_dict(coupling.state_dict())
        every.eval()
        # After one layer with all neighbours, the scores of the choice are known.
        every.network.layers = every.network.layers[:1]
        states: list[torch.Tensor] = []
        every.choice.register_forward_hook(lambda *call: states.append(call[2].squeeze(1)))
        all_of: list[Chosen] = []
        every(graph, queries, watch=all_of.append)
        coupling(graph, queries, watch=seen.append)
    new = [entity for entity in all_of[0].entities.tolist() if entity != int(queries[0, 0])]
    best = new[int(states[0].argmax())]
    assert set(seen[0].entities.tolist()) == {int(queries[0, 0]), best}


def test_the_choice_learns_through_the_states_of_the_chosen() -> None:
    graph = random_graph(3, facts=200)
    queries = random_queries(graph, 4, 3)
    coupling = _coupling(graph, 3).train()
    torch.manual_seed(0)
    _, scores = coupling(graph, queries)
    scores.square().sum().backward()
    gradient = coupling.choice.weight.grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 0
    # The factors are 1: noise changes what is chosen, nothing else.
    torch.manual_seed(0)
    first, one = coupling(graph, queries)
    torch.manual_seed(0)
    second, two = coupling(graph, queries)
    assert first.entities.equal(second.entities)
    torch.testing.assert_close(one, two)
    torch.manual_seed(5)
    assert coupling(graph, queries)[0].entities.tolist() != first.entities.tolist()


def test_answers_do_not_depend_on_the_rest_of_the_batch() -> None:
    graph = random_graph(4, facts=150)
    queries = random_queries(graph, 6, 4)
    reasoner = CoupledReasoner(graph, _coupling(graph, 2))
    batch, scores = reasoner.reason(queries)
    for number, query in enumerate(queries):
        alone, own = reasoner.reason(query[None])
        mine = batch.entity_query == number
        assert alone.entities.equal(batch.entities[mine])
        torch.testing.assert_close(own, scores[mine], rtol=1e-4, atol=1e-5)


def test_entities_can_be_forced_in() -> None:
    graph = random_graph(5, facts=150)
    queries = random_queries(graph, 2, 5)
    reasoner = CoupledReasoner(graph, _coupling(graph, 1))
    wanted = torch.arange(graph.num_entities).expand(2, -1)
    batch, scores = reasoner.reason(queries, wanted)
    assert batch.num_entities == len(scores) == 2 * graph.num_entities
    assert torch.isfinite(scores).all()
    # An entity that is reached anyway has the state of a system that chooses it.
    some = int(reasoner.reason(queries)[0].entities[0])
    assert reasoner.reason(queries, torch.tensor([[some], [-1]]))[0].num_entities <= 9


def test_wrong_options() -> None:
    with pytest.raises(InputError, match="per_layer must be at least 1"):
        AdaPropCoupling(CONFIG, 2, per_layer=0)
    wrong: list[dict[str, Any]] = [{"concat": True}, {"priors": True}, {"gate_mask": "reached"}]
    for changes in wrong:
        with pytest.raises(InputError, match="layer-wise systems have"):
            AdaPropCoupling(dataclasses.replace(CONFIG, **changes), 2)
