"""The theorem on the size of subgraphs: block models, and how their predictions are measured."""

import math

import pytest
import torch
from torch import nn

import oneshot
from oneshot.experiments.paper import TABLES, block_model
from oneshot.experiments.paper.block_model import BlockGraph, draw_graph, fit, least_size, measure
from oneshot.experiments.paper.theorem import BLOCKS, answer_shares

CPU = torch.device("cpu")


class Given(nn.Module):
    """Scores the pairs by what is known of them."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, graph: BlockGraph) -> torch.Tensor:
        return self.sign * (2 * graph.same.float() - 1)


def test_the_links_of_a_block_graph_have_its_probabilities() -> None:
    graphs = [draw_graph(200, (0, number)) for number in range(40)]
    for graph in graphs:
        assert torch.equal(graph.adjacency, graph.adjacency.T)
        assert not graph.adjacency.diagonal().any()
        # The links of the pairs are hidden, in both directions.
        assert not graph.adjacency[graph.sources[:, None], graph.targets].any()
    linked = torch.cat([graph.linked.flatten() for graph in graphs]).double()
    same = torch.cat([graph.same.flatten() for graph in graphs])
    assert float(linked[same].mean()) == pytest.approx(block_model.WITHIN, abs=0.03)
    assert float(linked[~same].mean()) == pytest.approx(block_model.ACROSS, abs=0.03)
    degree = torch.stack([graph.adjacency.mean() for graph in graphs]).mean()
    assert float(degree) == pytest.approx(block_model.LEAST_DEGREE, abs=0.02)


def test_the_least_size_is_that_of_the_condition() -> None:
    def is_met(size: int) -> bool:
        return math.sqrt(size / math.log(2 * size / 0.05)) >= 4 * math.sqrt(2) / 0.5

    assert is_met(least_size())
    assert not is_met(least_size() - 1)


def test_predictions_are_measured() -> None:
    right, wrong, none = (measure(Given(sign), 60, 0, 3, CPU) for sign in (40.0, -40.0, 0.0))
    assert (right["gap"], right["right"], right["ordered"]) == pytest.approx((1, 1, 1))
    assert (wrong["gap"], wrong["right"], wrong["ordered"]) == pytest.approx((-1, 0, 0), abs=1e-9)
    assert (none["gap"], none["ordered"]) == (0, 0.5)


def test_entity_states_lose_the_difference_as_the_graph_grows_and_ours_keep_the_order() -> None:
    states = fit("entity states", 50, 0, 100, CPU)
    here, there = (measure(states, size, 0, 8, CPU) for size in (50, 800))
    assert here["gap"] > 0.1
    assert there["gap"] < here["gap"] / 3
    ours = measure(fit("query, mean", 50, 0, 40, CPU), 200, 0, 4, CPU)
    assert ours["ordered"] > 0.95


def test_the_shares_of_all_answers_of_a_query_add_up_to_one() -> None:
    data = oneshot.load("umls")
    torch.manual_seed(0)
    config = oneshot.PredictorConfig(dim=8, num_layers=2)
    predictor = oneshot.Predictor(config, data.graph.num_relations)
    reasoner = oneshot.Reasoner(data.graph, oneshot.PPRSampler(entity_ratio=0.3), predictor)
    entities = torch.arange(data.graph.num_entities)
    queries = torch.tensor([[5, 3]]).expand(len(entities), 2)
    shares = answer_shares(reasoner, queries, entities)
    assert float(shares.sum()) == pytest.approx(1)
    assert int((shares > 0).sum()) == int(0.3 * len(entities))


def test_the_finding_weighs_losses_against_chance() -> None:
    def row(growth: float, loss: float) -> dict[str, object]:
        return {"data": "a", "growth": growth, "loss": loss}

    finding = TABLES["theorem"].finding
    lost = finding([row(1, 0.002), row(5, 0.05), row(0.2, 0.001)])
    assert "up to 0.050 is lost (at 5 times the size), more than by chance" in lost
    assert "up to 0.001 is lost (at 0.2 times the size), not more than by chance" in lost
    noisy = finding([row(1, -0.06), row(5, 0.05)])
    assert "differ by up to 0.060 MRR" in noisy
    assert ", not more than by chance" in noisy
    assert finding([{"data": BLOCKS, "predictor": "x", "growth": 1}]) == ""
