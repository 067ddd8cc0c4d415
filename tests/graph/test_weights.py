"""Tests of weighted facts: the graph, walks on it, subgraphs, and what has no weights."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.graphs import random_graph, random_queries
from tests.support.samples import chain_world, tiny_predictor

import oneshot
from oneshot.errors import InputError
from oneshot.graph import adjacency
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.storage import MARKER, open_graph, save_graph
from oneshot.predictor.cpu import plan as predictor_cpu_plan
from oneshot.samplers import SAMPLERS, PPRSampler
from oneshot.samplers._pagerank import pagerank, ppr_chebyshev
from oneshot.samplers.neighbourhood import top_ppr
from oneshot.subgraph import SubgraphBatch


def weighted(seed: int = 0, scale: float = 1.0, entities: int = 30) -> KnowledgeGraph:
    plain = random_graph(seed, entities, 3 * entities)
    weights = np.random.default_rng(seed).uniform(0.05, scale, plain.num_facts)
    return KnowledgeGraph.from_facts(plain.facts, entities, 3, weights)


def unweighted(graph: KnowledgeGraph) -> KnowledgeGraph:
    return KnowledgeGraph.from_facts(graph.facts, graph.entities, graph.relations)


def transitions(graph: KnowledgeGraph) -> np.ndarray:
    """`D⁻¹ A`, fact by fact: [V, V]; a walk at an entity without neighbours stays."""
    matrix = np.zeros((graph.num_entities,) * 2)
    assert graph.weights is not None
    for (head, _, tail), weight in zip(graph.facts.tolist(), graph.weights.tolist(), strict=True):
        if head != tail:
            matrix[head, tail] += weight
            matrix[tail, head] += weight
    alone = matrix.sum(1) == 0
    matrix[alone, alone] = 1
    return matrix / matrix.sum(1, keepdims=True)


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_follows_facts_in_proportion_to_their_weights(seed: int) -> None:
    graph = weighted(seed)
    entities = torch.arange(graph.num_entities)
    walk = transitions(graph)
    exact = 0.15 * np.linalg.inv(np.eye(len(walk)) - 0.85 * walk)
    power = oneshot.ppr(graph, entities, tolerance=1e-12, dtype=torch.float64, max_steps=300)
    assert np.allclose(power, exact, atol=1e-9)
    assert np.allclose(ppr_chebyshev(graph, entities), exact, atol=1e-4)
    assert np.allclose(pagerank(graph, tolerance=1e-9), exact.mean(0), atol=1e-5)
    assert not np.allclose(oneshot.ppr(unweighted(graph), entities), exact, atol=1e-2)
    # Multiplying all weights changes no transition.
    assert graph.weights is not None
    larger = KnowledgeGraph.from_facts(graph.facts, 30, 3, 1000 * graph.weights)
    assert torch.allclose(ppr_chebyshev(larger, entities), ppr_chebyshev(graph, entities))


def test_equal_weights_of_single_facts_change_no_walk() -> None:
    facts = [[0, 0, 1], [1, 0, 2], [2, 0, 3], [0, 0, 3], [1, 0, 3]]
    plain = KnowledgeGraph.from_facts(facts, 5, 1)
    graph = KnowledgeGraph.from_facts(facts, 5, 1, [0.5] * 5)
    entities = torch.arange(5)
    assert torch.allclose(ppr_chebyshev(graph, entities), ppr_chebyshev(plain, entities))
    paper = [oneshot.ppr(g, entities, transition="paper") for g in (graph, plain)]
    assert torch.allclose(*paper)


@pytest.mark.parametrize("name", SAMPLERS)
def test_without_weights_nothing_is_computed_with_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adjacency, walks, subgraphs and scores are, bit for bit, those of a graph without the
    feature: no function of weights is called, no tensor of weights is made, and the numbers do not
    depend on whether the graph ever had weights."""

    def fail(*_: object) -> None:
        raise AssertionError("weights of a graph that has none")

    never = chain_world(30).graph
    names = never.entities, never.relations
    once = KnowledgeGraph.from_facts(never.facts, *names, torch.rand(never.num_facts) + 0.1)
    once.weights = None
    monkeypatch.setattr(KnowledgeGraph, "message_weights", fail)
    monkeypatch.setattr(adjacency, "weighted_degree", fail)
    monkeypatch.setattr(predictor_cpu_plan, "_factors", fail)
    assert never.pair_weights is None
    # The values before there were weights.
    for kind in (torch.float32, torch.float64):
        degree = never.neighbours.degree
        assert bool((degree > 0).all())  # others have an entry of their own
        root = degree.to(kind).rsqrt()
        expected = root.repeat_interleave(degree) * root[never.neighbours.index]
        values = never.normalized_adjacency(kind).values
        assert values is not None
        assert torch.equal(values, expected)
    entities = torch.arange(30)
    assert torch.equal(ppr_chebyshev(never, entities), ppr_chebyshev(once, entities))
    assert torch.equal(pagerank(never), pagerank(once))
    queries = random_queries(never, 20, 1)
    batches = [SAMPLERS[name](0.4, max_edges=15).sample(graph, queries) for graph in (never, once)]
    assert batches[0].weight.numel() == 0
    for field in dataclasses.fields(batches[0]):
        one, other = (getattr(batch, field.name) for batch in batches)
        assert torch.equal(one, other), field.name
    predictor = tiny_predictor().float().eval()
    with torch.inference_mode():
        scores = [predictor(batch) for batch in batches]
    assert torch.equal(*scores)
    predictor(batches[0]).square().sum().backward()  # and in training


@pytest.mark.parametrize("name", SAMPLERS)
def test_subgraphs_carry_the_weight_of_every_edge(name: str) -> None:
    graph = weighted(3)
    assert graph.weights is not None
    table = {tuple(f): w for f, w in zip(graph.facts.tolist(), graph.weights.tolist(), strict=True)}
    queries = random_queries(graph, 40, 1)
    for options in ({}, {"max_edges": 15}):
        batch = SAMPLERS[name](0.4, **options).sample(graph, queries)
        assert batch.is_weighted
        for (x, r, o), weight in zip(batch.edges.T.tolist(), batch.weight.tolist(), strict=True):
            head, tail = (int(batch.entities[place]) for place in (x, o))
            fact = (head, r, tail) if r < 3 else (tail, r - 3, head)
            assert weight == pytest.approx(1.0 if r == 6 else table[fact])
    parts = batch.split(7)
    again = SubgraphBatch.concatenate(parts)
    for field in dataclasses.fields(batch):
        assert torch.equal(getattr(again, field.name), getattr(batch, field.name)), field.name
    kept = batch.edges[1] != 6
    assert torch.equal(batch.with_edges(kept).weight, batch.weight[kept])


def test_weights_above_one_are_damped_for_messages() -> None:
    graph = weighted(0, scale=900)
    assert graph.weights is not None
    factor = graph.message_weights(torch.arange(graph.num_facts))
    assert float(factor.max()) == pytest.approx(1)
    assert bool((factor > 0).all())
    assert torch.equal(factor.argsort(), graph.weights.argsort())
    # Those of a part of the facts are the same as those of all.
    mask = torch.arange(graph.num_facts) % 2 == 0
    mask[graph.weights.argmax()] = False
    part = graph.subset(mask)
    assert torch.equal(part.message_weights(torch.arange(part.num_facts)), factor[mask])


def test_a_subset_and_other_relations_keep_the_weights() -> None:
    graph = weighted(2)
    assert graph.weights is not None
    mask = torch.rand(graph.num_facts, generator=torch.Generator().manual_seed(0)) < 0.6
    part = graph.subset(mask)
    made = KnowledgeGraph.from_facts(graph.facts[mask], 30, 3, graph.weights[mask])
    assert torch.equal(part.weights, made.weights)  # type: ignore[arg-type]
    assert part.fingerprint == made.fingerprint
    entities = torch.arange(30)
    assert torch.allclose(ppr_chebyshev(part, entities), ppr_chebyshev(made, entities))
    renamed = graph.with_relations(type(graph.relations).from_names(["2", "0", "1"], "relation"))
    assert torch.equal(renamed.weights, graph.weights)  # type: ignore[arg-type]


def test_the_fingerprint_contains_weights_but_not_their_order() -> None:
    graph = weighted(4)
    assert graph.weights is not None
    order = torch.randperm(graph.num_facts, generator=torch.Generator().manual_seed(1))
    shuffled = KnowledgeGraph.from_facts(graph.facts[order], 30, 3, graph.weights[order])
    assert shuffled.fingerprint == graph.fingerprint
    other = graph.weights.clone()
    other[5] *= 2
    changed = KnowledgeGraph.from_facts(graph.facts, 30, 3, other)
    assert len({graph.fingerprint, changed.fingerprint, unweighted(graph).fingerprint}) == 3


def test_a_repeated_fact_has_its_largest_weight() -> None:
    facts = [[0, 0, 1], [1, 0, 2], [0, 0, 1], [0, 0, 1]]
    graph = KnowledgeGraph.from_facts(facts, 3, 1, [0.2, 0.5, 0.9, 0.1])
    assert graph.facts.tolist() == [[0, 0, 1], [1, 0, 2]]
    assert graph.weights is not None
    assert graph.weights.tolist() == pytest.approx([0.9, 0.5])


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf"), 1e-60, 1e60])
def test_a_weight_must_be_a_number_above_zero(value: float) -> None:
    with pytest.raises(InputError, match=r"fact 2: the weight is .*, expected a number above 0"):
        KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]], 3, 1, [1.0, value])
    with pytest.raises(InputError, match=r"weights must have shape \[2\]"):
        KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]], 3, 1, [1.0])
    with pytest.raises(InputError, match="expected numbers"):
        KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2]], 3, 1, ["a", "b"])


def test_a_saved_graph_has_its_weights(tmp_path: Path) -> None:
    graph = weighted(6, scale=30)
    save_graph(tmp_path / "graph", graph, {}, {})
    opened, _, _ = open_graph(tmp_path / "graph")
    assert torch.equal(opened.weights, graph.weights)  # type: ignore[arg-type]
    assert opened.largest_weight == graph.largest_weight
    assert (
        opened.fingerprint
        == KnowledgeGraph.from_facts(opened.facts, 30, 3, opened.weights).fingerprint
    )
    queries = random_queries(graph, 10, 3)
    here, there = (PPRSampler(0.5).sample(g, queries) for g in (graph, opened))
    assert torch.equal(here.weight, there.weight)
    # A graph without weights replaces it as a whole.
    save_graph(tmp_path / "graph", unweighted(graph), {}, {})
    assert not (tmp_path / "graph" / "weights.npy").exists()
    assert open_graph(tmp_path / "graph")[0].weights is None


def test_damaged_weights_are_an_error(tmp_path: Path) -> None:
    save_graph(tmp_path / "graph", weighted(6), {}, {})
    file = tmp_path / "graph" / "weights.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-4] + b"\0\0\0\1")
    with pytest.raises(InputError, match=r"weights\.npy was changed or damaged"):
        open_graph(tmp_path / "graph")
    file.unlink()
    with pytest.raises(InputError, match=r"not a whole saved graph .*weights\.npy"):
        open_graph(tmp_path / "graph")
    assert (tmp_path / "graph" / MARKER).exists()


def test_facts_of_a_weighted_graph_cannot_change() -> None:
    live = LiveGraph(weighted(1))
    assert live.graph().weights is not None
    with pytest.raises(InputError, match="cannot be added to or removed from a graph with weights"):
        live.add([("0", "0", "7")])


@pytest.mark.parametrize("method", ["push", "ball"])
def test_local_methods_report_that_they_have_no_weights(method: str) -> None:
    graph = weighted(1)
    sampler = PPRSampler(max_entities=5, method=method)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f'"{method}" does not support weights'):
        sampler.sample(graph, torch.tensor([[0, 0]]))
    # By default they are not chosen.
    near = top_ppr(graph, torch.tensor([0]), 5)
    exact = ppr_chebyshev(graph, torch.tensor([0]), steps=60)
    assert torch.allclose(near.scores[0], exact[0].sort(descending=True).values[:5], atol=1e-5)
