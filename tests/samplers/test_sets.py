"""Subgraphs of sets of entities: one walk with several restarts, and states that start there."""

import dataclasses

import pytest
import torch
from tests.support.samples import chain_world

import oneshot
from oneshot.errors import InputError
from oneshot.predictor import make_predictor
from oneshot.samplers import SAMPLERS
from oneshot.subgraph import SubgraphBatch


@pytest.fixture(scope="module")
def graph() -> oneshot.KnowledgeGraph:
    return oneshot.load("umls").graph


SETS = torch.tensor([[3, 40, 90], [7, -1, 7], [100, 5, -1]])


def test_the_scores_are_those_of_a_walk_that_restarts_at_all_sources(
    graph: oneshot.KnowledgeGraph,
) -> None:
    batch = oneshot.PPRSampler(entity_ratio=0.3, method="power").sample_sets(graph, SETS)
    alone = oneshot.ppr(graph, torch.arange(graph.num_entities))
    for number, some in enumerate(([3, 40, 90], [7], [100, 5])):
        expected = torch.as_tensor(alone)[some].mean(0)
        mine = batch.entity_query == number
        assert torch.allclose(batch.score[mine], expected[batch.entities[mine]].float(), atol=1e-3)
        assert mine.sum() == int(0.3 * graph.num_entities)
        held = batch.sources[number]
        assert batch.entities[held[held >= 0]].tolist() == some
        left = torch.ones(graph.num_entities, dtype=torch.bool)
        left[batch.entities[mine]] = False
        inside = batch.score[mine][~torch.isin(batch.entities[mine], torch.tensor(some))]
        assert float(expected[left].max()) <= float(inside.min()) + 1e-3


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "fitted"])
def test_a_set_of_one_entity_is_an_ordinary_query(graph: oneshot.KnowledgeGraph, name: str) -> None:
    sampler = SAMPLERS[name](entity_ratio=0.2, seed=3)
    queries = torch.tensor([[3, 1], [40, 2]])
    one = sampler.sample(graph, queries)
    same = sampler.sample_sets(graph, queries[:, :1], queries[:, 1])
    for part in dataclasses.fields(SubgraphBatch):
        if part.name not in ("score", "sources"):
            assert torch.equal(getattr(one, part.name), getattr(same, part.name)), part.name
    assert same.sources.squeeze(1).tolist() == one.source.tolist()


def test_batches_of_sets_are_split_and_joined(graph: oneshot.KnowledgeGraph) -> None:
    batch = oneshot.PPRSampler(entity_ratio=0.1).sample_sets(graph, SETS)
    parts = batch.split(1)
    for part, some in zip(parts, ([3, 40, 90], [7], [100, 5]), strict=True):
        places, which = part.all_sources
        assert part.entities[places].tolist() == some
        assert which.tolist() == [0] * len(some)
    again = SubgraphBatch.concatenate(parts)
    for part in dataclasses.fields(SubgraphBatch):
        assert torch.equal(getattr(again, part.name), getattr(batch, part.name)), part.name
    mixed = SubgraphBatch.concatenate(
        [oneshot.PPRSampler(entity_ratio=0.1).sample(graph, torch.tensor([[9, 0]])), *parts]
    )
    assert mixed.sources[0].tolist() == [int(mixed.source[0]), -1, -1]
    assert mixed.entities[mixed.all_sources[0]].tolist() == [9, 3, 40, 90, 7, 100, 5]


@pytest.mark.parametrize("readout", ["linear", "dot"])
def test_states_start_at_all_sources(graph: oneshot.KnowledgeGraph, readout: str) -> None:
    torch.manual_seed(0)
    config = oneshot.PredictorConfig(
        dim=8, num_layers=2, readout=readout, activation="identity", gate=False
    )
    predictor = oneshot.Predictor(config, graph.num_relations)
    predictor.engine = "plain"
    sampler = oneshot.PPRSampler(entity_ratio=1.0)
    with torch.no_grad():
        both = sampler.sample_sets(graph, torch.tensor([[3, 40]]))
        one = sampler.sample_sets(graph, torch.tensor([[3]]))
        asked = sampler.sample(graph, torch.tensor([[3, 0]]))
        assert torch.equal(predictor(one), predictor(asked))
        assert torch.equal(predictor.states(one), predictor.states(asked))
        # Not the states of a single source: those of the other one are there as well.
        assert not torch.allclose(predictor.states(both), predictor.states(one), atol=1e-4)
        if readout == "dot":
            states = predictor.states(both)
            expected = states @ states[both.all_sources[0]].mean(0)
            assert torch.allclose(predictor(both), expected, rtol=1e-4, atol=1e-4)


def test_kernels_do_not_take_sets(graph: oneshot.KnowledgeGraph) -> None:
    config = oneshot.PredictorConfig(dim=8, num_layers=2, members=2)
    ensemble = make_predictor(config, graph.num_relations)
    sampler = oneshot.PPRSampler(entity_ratio=0.5)
    both, one = (sampler.sample_sets(graph, some) for some in (SETS[:1], SETS[:1, :1]))
    with torch.no_grad():
        ensemble.eval()
        members = [member(both) for member in ensemble.parts()]
        assert torch.allclose(ensemble(both), sum(members) / 2)
        assert not torch.allclose(ensemble(both)[both.source], ensemble(one)[one.source])
    ensemble.engine = "fused"
    with pytest.raises(InputError, match="not from a set"):
        ensemble(both)


def test_an_edge_limit_keeps_the_sources(graph: oneshot.KnowledgeGraph) -> None:
    sampler = oneshot.PPRSampler(max_entities=60, edge_limit=100)
    batch = sampler.sample_sets(graph, SETS)
    places, _ = batch.all_sources
    assert batch.entities[places].tolist() == [3, 40, 90, 7, 100, 5]
    assert batch.num_entities < 180


def test_wrong_sets_are_reported() -> None:
    graph = chain_world(10).graph
    sampler = oneshot.PPRSampler(entity_ratio=0.5)
    with pytest.raises(InputError, match=r"shape \[n, s\]"):
        sampler.sample_sets(graph, torch.tensor([1, 2]))
    with pytest.raises(InputError, match="at least one entity"):
        sampler.sample_sets(graph, torch.tensor([[-1, 2]]))
    with pytest.raises(InputError, match="not in the graph"):
        sampler.sample_sets(graph, torch.tensor([[1, 999]]))
    fitted = oneshot.FittedSampler(entity_ratio=0.5)
    with pytest.raises(InputError, match="such as ppr"):
        fitted.sample_sets(graph, torch.tensor([[1, 2]]))
