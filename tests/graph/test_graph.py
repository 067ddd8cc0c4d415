import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import as_networkx, graphs, random_graph

from oneshot.errors import InputError
from oneshot.graph.fact_keys import first_occurrences
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary


@given(graphs())
@settings(deadline=None, max_examples=60)
def test_edges_are_all_facts_in_both_directions_sorted_by_target(graph):
    count = graph.num_relations
    expected = sorted(
        edge
        for row, (h, r, t) in enumerate(graph.facts.tolist())
        for edge in ((t, h, r, row), (h, t, r + count, row))
    )
    edges = graph.edges
    target = torch.arange(graph.num_entities).repeat_interleave(edges.indptr.diff())
    columns = (target, edges.source, edges.relation, edges.fact)
    assert [tuple(int(x) for x in row) for row in zip(*columns, strict=True)] == expected


@given(graphs())
@settings(deadline=None, max_examples=60)
def test_neighbours_are_those_of_the_simple_undirected_graph(graph):
    whole = as_networkx(graph)
    neighbours = graph.neighbours
    for entity in range(graph.num_entities):
        row = neighbours.index[neighbours.indptr[entity] : neighbours.indptr[entity + 1]]
        assert row.tolist() == sorted(whole.neighbors(entity))
    assert neighbours.degree.tolist() == [whole.degree(i) for i in range(graph.num_entities)]


@given(graphs(), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
@settings(deadline=None, max_examples=60)
def test_subset_equals_a_graph_built_anew(graph, seed, share):
    mask = torch.from_numpy(np.random.default_rng(seed).random(graph.num_facts) < share)
    subset = graph.subset(mask)
    anew = KnowledgeGraph.from_facts(graph.facts[mask], graph.entities, graph.relations)
    for part in ("edges", "neighbours"):
        left, right = getattr(subset, part), getattr(anew, part)
        for column in dataclasses.fields(left):
            assert torch.equal(
                getattr(left, column.name).long(), getattr(right, column.name).long()
            ), column.name
    assert subset.fingerprint == anew.fingerprint


def test_subset_of_a_subset_keeps_its_own_fact_numbers():
    graph = random_graph(1)
    once = graph.subset(torch.arange(graph.num_facts) % 3 > 0)
    twice = once.subset(torch.arange(once.num_facts) % 2 == 0)
    edges = twice.edges
    forward = edges.relation < graph.num_relations
    rows = twice.facts[edges.fact[forward].long()]
    assert torch.equal(rows[:, 0], edges.source[forward])
    assert torch.equal(rows[:, 1], edges.relation[forward])


def test_subset_refuses_a_mask_of_another_shape():
    graph = random_graph(2)
    with pytest.raises(InputError, match="mask"):
        graph.subset(torch.ones(3, dtype=torch.bool))
    with pytest.raises(InputError, match="mask"):
        graph.subset(torch.ones(graph.num_facts))


def test_fingerprint_ignores_the_order_of_facts_and_sees_everything_else():
    graph = random_graph(3)
    facts, entities, relations = graph.facts, graph.entities, graph.relations
    shuffled = facts[torch.randperm(len(facts), generator=torch.Generator().manual_seed(0))]
    same = KnowledgeGraph.from_facts(shuffled, entities, relations)
    fewer = KnowledgeGraph.from_facts(facts[1:], entities, relations)
    renamed = KnowledgeGraph.from_facts(
        facts, Vocabulary.from_names([f"e{name}" for name in entities], "entity"), relations
    )
    turned = KnowledgeGraph.from_facts(facts[:, [2, 1, 0]], entities, relations)
    assert same.fingerprint == graph.fingerprint
    assert len({g.fingerprint for g in (graph, fewer, renamed, turned)}) == 4


def test_from_facts_keeps_the_first_of_equal_facts_in_order():
    facts = [[2, 0, 1], [0, 1, 2], [2, 0, 1], [1, 0, 1], [0, 1, 2]]
    graph = KnowledgeGraph.from_facts(facts)
    assert graph.facts.tolist() == [[2, 0, 1], [0, 1, 2], [1, 0, 1]]
    assert (graph.num_entities, graph.num_relations) == (3, 2)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ([[0, 0, 5]], "entity id 5"),
        ([[0, 3, 1]], "relation id 3"),
        ([[-1, 0, 1]], "entity id -1"),
        ([[0, 0]], "shape"),
        ([[0.5, 0, 1]], "integers"),
    ],
)
def test_from_facts_names_what_is_wrong(facts, message):
    with pytest.raises(InputError, match=message):
        KnowledgeGraph.from_facts(facts, 3, 2)


def test_names_may_be_given_in_several_ways():
    graph = KnowledgeGraph.from_facts([[0, 0, 1]], ["a", "b"], ["likes"])
    assert (graph.entities.index("b"), graph.relations[0]) == (1, "likes")
    assert KnowledgeGraph.from_facts([[0, 0, 1]], np.int64(5)).num_entities == 5
    with pytest.raises(InputError, match="at least 0"):
        KnowledgeGraph.from_facts([[0, 0, 1]], -1)


def test_first_occurrences_without_a_key_of_64_bits_gives_the_same():
    facts = np.random.default_rng(0).integers(5, size=(200, 3))
    assert np.array_equal(first_occurrences(facts, 5, 5), first_occurrences(facts, 2**40, 5))


def test_an_empty_graph_is_a_graph():
    graph = KnowledgeGraph.from_facts(np.empty((0, 3), int), 4, 2)
    assert graph.edges.indptr.tolist() == [0] * 5
    assert graph.neighbours.degree.tolist() == [0] * 4


def test_names_of_relations_and_their_inverses():
    graph = KnowledgeGraph.from_facts(
        [[0, 0, 1]], 2, Vocabulary.from_names(["mother", "father"], "relation")
    )
    assert graph.relation_name(1) == "father"
    assert graph.relation_name(3) == "father⁻¹"
    assert graph.inverse(torch.tensor([0, 1, 2, 3])).tolist() == [2, 3, 0, 1]


def test_a_relation_must_not_have_the_name_of_an_inverse() -> None:
    for names in (["likes", "likes⁻¹"], ["a⁻¹⁻¹", "b", "a⁻¹"]):
        with pytest.raises(InputError, match="has the name of the inverse of"):
            KnowledgeGraph.from_facts([[0, 0, 1]], 2, names)
    graph = KnowledgeGraph.from_facts([[0, 0, 1]], 2, ["likes⁻¹", "a⁻¹b", "a"])
    assert graph.relation_name(3) == "likes⁻¹⁻¹"
    other = KnowledgeGraph.from_facts([[0, 0, 1]], 2, ["likes"])
    with pytest.raises(InputError, match="has the name of the inverse of 'likes'"):
        other.with_relations(Vocabulary.from_names(["likes⁻¹", "likes"], "relation"))
