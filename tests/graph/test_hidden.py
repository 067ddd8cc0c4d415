"""Tests of views that hide facts: they equal graphs that were built without these facts."""

from pathlib import Path

import pytest
import torch
from tests.support.graphs import random_graph, random_queries

from oneshot import compiled
from oneshot.data.synthetic.generators import power_law
from oneshot.evaluation.cases import answers_relation
from oneshot.graph import core as core_of_graph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.hidden import HiddenFacts
from oneshot.graph.storage import open_graph, save_graph
from oneshot.samplers import PPRSampler, RandomWalkSampler, Sampler, _extract
from oneshot.samplers._ball import expand
from oneshot.samplers._hubs import build_hub_index
from oneshot.samplers._push import PushLimits, ppr_push
from oneshot.subgraph import SubgraphBatch


def drawn_rows(graph: KnowledgeGraph, share: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(graph.num_facts, generator=generator)[: int(share * graph.num_facts)]


def pair(graph: KnowledgeGraph, share: float = 0.2) -> tuple[HiddenFacts, KnowledgeGraph]:
    """A view, and a copy without the same facts."""
    view = graph.hiding(drawn_rows(graph, share))
    assert isinstance(view, HiddenFacts)
    return view, view.plain


@pytest.fixture(params=("compiled", "plain"))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(compiled, "library", lambda: None)
    elif compiled.library() is None:
        pytest.skip("no kernels without a C compiler")
    return str(request.param)


def assert_equal(ours: SubgraphBatch, expected: SubgraphBatch) -> None:
    for name in ("queries", "entities", "entity_query", "source", "degree", "edges", "edge_query"):
        assert torch.equal(getattr(ours, name), getattr(expected, name)), name


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
def test_rows_and_degrees_are_those_of_a_copy(seed: int, share: float) -> None:
    view, copy = pair(random_graph(seed, 40, 150), share)
    every = torch.arange(view.num_entities)
    assert view.num_facts == copy.num_facts
    assert torch.equal(view.degree, copy.degree)
    assert torch.equal(view.neighbours.degree, copy.neighbours.degree)
    row, place = view.edges.places(every, view.degree)
    assert torch.equal(row, every.repeat_interleave(copy.degree))
    assert torch.equal(view.edges.source[place], copy.edges.source)
    assert torch.equal(view.edges.relation[place], copy.edges.relation)
    assert torch.equal(expand(view.neighbours, every)[1], copy.neighbours.index.long())
    number = torch.cat([torch.arange(n) for n in copy.neighbours.degree.tolist()])
    entities = every.repeat_interleave(copy.neighbours.degree)
    found = view.neighbours.index[view.neighbours.place_of(entities, number)]
    assert torch.equal(found, copy.neighbours.index)
    for entity in range(0, view.num_entities, 7):
        for ours, expected in zip(view.edges_into(entity), copy.edges_into(entity), strict=True):
            assert torch.equal(ours, expected)


def test_rows_of_some_entities_are_read_in_their_order() -> None:
    view, copy = pair(random_graph(3, 40, 150), 0.3)
    some = torch.tensor([7, 0, 7, 2, 39, 1])
    row, place = view.edges.places(some, view.degree_of(some))
    expected_row, expected = copy.edges.places(some, copy.degree_of(some))
    assert torch.equal(row, expected_row)
    assert torch.equal(view.edges.source[place], copy.edges.source[expected])


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("seed", range(6))
def test_subgraphs_are_those_of_a_copy(seed: int) -> None:
    view, copy = pair(random_graph(seed, 50, 200), 0.25)
    queries = random_queries(view, 9, seed)
    sampler = PPRSampler(0.5, method="ball", ball_factor=1000)
    assert_equal(sampler.sample(view, queries), sampler.sample(copy, queries))


@pytest.mark.usefixtures("kind")
def test_subgraphs_of_hubs_are_those_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extract, "_CORE_CANDIDATES", 100)
    monkeypatch.setattr(core_of_graph, "MOST_ENTITIES", 64)
    graph = power_law(2000, 12_000).graph
    view, copy = pair(graph, 0.1)
    entities = torch.cat([graph.degree.topk(150).indices, torch.arange(300, 400)]).unique()
    queries = torch.stack([entities[:3], torch.zeros(3, dtype=torch.long)], dim=1)
    chosen = entities.repeat(3), torch.arange(3).repeat_interleave(len(entities))
    score = torch.ones(len(chosen[0]))
    budget = torch.full((3,), 10**9)
    ours, expected = (
        _extract.extract(one, queries, *chosen, score, budget) for one in (view, copy)
    )
    assert_equal(ours, expected)
    if compiled.library() is not None:
        assert view.core is not None


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("is_mapped", [False, True])
def test_the_push_does_not_see_hidden_facts(is_mapped: bool, tmp_path: Path) -> None:
    graph = power_law(400, 2400).graph
    if is_mapped:
        save_graph(tmp_path / "graph", graph, {}, {})
        graph = open_graph(tmp_path / "graph")[0]
    view, copy = pair(graph, 0.15)
    linked = (copy.neighbours.degree > 0).nonzero().squeeze(1)
    entities = torch.cat([linked[:6], copy.degree.topk(2).indices])
    limits = PushLimits(precision=0.0, negligible=1e-7, max_edges=10**8)
    counts = torch.full((len(entities),), 60)
    ours, expected = (ppr_push(one, entities, counts, 0.15, limits=limits) for one in (view, copy))
    for row in range(len(entities)):
        found = ours.entities[row, : int(ours.counts[row])]
        other = expected.entities[row, : int(expected.counts[row])]
        both = torch.isin(found, other)
        assert float(both.double().mean()) > 0.9
        score = dict(zip(other.tolist(), expected.score[row].tolist(), strict=False))
        for entity, value in zip(found[both].tolist(), ours.score[row][: len(found)][both].tolist(),
                                 strict=True):  # fmt: skip
            assert value == pytest.approx(score[entity], rel=0.02, abs=1e-5)


@pytest.mark.usefixtures("kind")
def test_the_only_neighbour_of_an_entity_can_be_hidden() -> None:
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2], [2, 1, 3], [3, 0, 4]])
    view = graph.hiding(torch.tensor([0]))
    sampler = PPRSampler(max_entities=3, method="push", keep_unreachable=False)
    batch = sampler.sample(view, torch.tensor([[0, 0], [1, 0]]))
    assert batch.entities[batch.entity_query == 0].tolist() == [0]
    assert 0 not in batch.entities[batch.entity_query == 1].tolist()[1:]
    assert int(batch.degree[0]) == 0


@pytest.mark.usefixtures("kind")
def test_the_hub_index_of_the_whole_graph_is_used() -> None:
    graph = power_law(3000, 30_000).graph
    graph.hub_index = build_hub_index(graph, 60)
    graph.hub_recall = 1.0
    view, copy = pair(graph, 0.05)
    assert view.hub_index is not None
    assert view.hub_recall == 1.0
    assert torch.equal(view.hub_index.degree, copy.neighbours.degree[view.hub_index.hubs])
    entities = torch.tensor([5, 900, 2500])
    entities = entities[copy.neighbours.degree[entities] > 0]
    counts = torch.full((len(entities),), 100)
    ours = ppr_push(view, entities, counts, 0.15, hub_index=view.hub_index)
    exact = PPRSampler(1.0, method="chebyshev").scores(copy, entities)
    for row in range(len(entities)):
        best = exact[row].topk(100).indices
        found = ours.entities[row, : int(ours.counts[row])]
        assert float(torch.isin(best, found).double().mean()) > 0.8


def test_counts_of_relations_are_those_of_a_copy() -> None:
    for seed in range(4):
        view, copy = pair(random_graph(seed, 40, 150), 0.3)
        assert torch.equal(view.relation_graph.joint, copy.relation_graph.joint)
        assert torch.equal(view.relation_graph.facts, copy.relation_graph.facts)
        ours, expected = view.answer_pairs, copy.answer_pairs
        for name in vars(expected):
            assert torch.equal(getattr(ours, name), getattr(expected, name))
        queries = random_queries(view, 60, seed)
        assert torch.equal(
            answers_relation(view, *queries.unbind(1)), answers_relation(copy, *queries.unbind(1))
        )


@pytest.mark.parametrize("sampler", [PPRSampler(0.4), RandomWalkSampler(0.4)])
def test_other_samplers_see_the_same(sampler: Sampler) -> None:
    view, copy = pair(random_graph(5, 60, 200), 0.3)
    queries = random_queries(view, 6, 0)
    assert_equal(sampler.sample(view, queries), sampler.sample(copy, queries))


def test_a_view_has_the_facts_and_fingerprint_of_a_copy() -> None:
    graph = random_graph(2, 30, 90)
    rows = drawn_rows(graph, 0.3)
    view = graph.hiding(rows)
    mask = torch.ones(graph.num_facts, dtype=torch.bool)
    mask[rows] = False
    assert torch.equal(view.facts, graph.facts[mask])
    assert view.fingerprint == graph.subset(mask).fingerprint
    again = view.hiding(torch.tensor([0, 1]))
    assert again.num_facts == view.num_facts - 2


def test_weighted_graphs_are_copied() -> None:
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]], weights=[0.5, 0.25])
    rest = graph.hiding(torch.tensor([0]))
    assert not isinstance(rest, HiddenFacts)
    assert rest.facts.tolist() == [[1, 0, 2]]
    assert rest.weights is not None


def test_a_fact_is_found_in_the_adjacency() -> None:
    graph = random_graph(4, 40, 120)
    head, relation, tail = graph.facts.long().unbind(1)
    place = graph.edges.find(tail, head, relation)
    assert torch.equal(graph.edges.fact[place].long(), torch.arange(graph.num_facts))
    queries = torch.cartesian_prod(torch.arange(40), torch.arange(6), torch.arange(0, 40, 5))
    found = graph.edges.find(queries[:, 2], queries[:, 0], queries[:, 1]) >= 0
    facts = set(map(tuple, graph.facts.tolist()))
    for (x, r, o), is_there in zip(queries.tolist(), found.tolist(), strict=True):
        assert is_there == ((x, r, o) in facts if r < 3 else (o, r - 3, x) in facts)
