"""Tests of the relation graph: counts by definition, in blocks, sparse, and after changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import graphs, random_graph
from torch import Tensor

from oneshot.graph import relation_graph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.host import HostGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.relation_graph import ARRAYS, RelationGraph
from oneshot.graph.storage import open_graph, save_graph


def counted_by_hand(graph: KnowledgeGraph) -> tuple[Tensor, Tensor, Tensor]:
    """Joint counts and common pairs [2R, 2R], and facts [2R], by sets of answers and of pairs."""
    count = graph.num_relations
    answers: list[set[int]] = [set() for _ in range(2 * count)]
    pairs: list[set[tuple[int, int]]] = [set() for _ in range(2 * count)]
    facts = torch.zeros(2 * count)
    for head, relation, tail in graph.facts.tolist():
        answers[relation].add(tail)
        answers[relation + count].add(head)
        pairs[relation].add((head, tail))
        pairs[relation + count].add((tail, head))
        facts[relation] += 1
        facts[relation + count] += 1
    joint = [[float(len(one & other)) for other in answers] for one in answers]
    common = [[float(len(one & other)) for other in pairs] for one in pairs]
    return torch.tensor(joint), torch.tensor(common), facts


def check(found: RelationGraph, graph: KnowledgeGraph) -> None:
    joint, pairs, facts = counted_by_hand(graph)
    every = torch.arange(2 * graph.num_relations)
    assert torch.equal(found.rows(every), joint)
    assert torch.equal(found.rows_of_pairs(every), pairs)
    assert torch.equal(found.answers, joint.diagonal())
    assert torch.equal(found.facts, facts)
    assert (found.num_relations, found.num_entities) == (graph.num_relations, graph.num_entities)


@settings(max_examples=25, deadline=None)
@given(graph=graphs())
def test_counts_are_the_sizes_of_common_answers(graph: KnowledgeGraph) -> None:
    check(graph.relation_graph, graph)


@pytest.mark.parametrize("most", [0, 10_000])
def test_counts_in_blocks(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Dense and sparse, a few edges at a time."""
    monkeypatch.setattr(relation_graph, "_BLOCK_EDGES", 7)
    monkeypatch.setattr(relation_graph, "MAX_DENSE", most)
    graph = random_graph(3, 40, 120, 4)
    assert isinstance(graph.relation_graph.joint, Tensor) == (most > 0)
    check(graph.relation_graph, graph)
    some = torch.tensor([5, 0, 5])
    assert torch.equal(graph.relation_graph.rows(some), counted_by_hand(graph)[0][some])


@pytest.mark.parametrize("most", [0, 10_000])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_changed_graph_has_new_counts(most: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relation_graph, "MAX_DENSE", most)
        base = random_graph(seed, 12, 20, 2)
        live = LiveGraph(base)
        before = live.graph().relation_graph
        check(before, base)
        generator = np.random.default_rng(seed)
        names = [*base.entities, "new a", "new b"]
        for _ in range(3):
            heads, tails = generator.integers(len(names), size=(2, 4))
            labels = generator.integers(2, size=4)
            facts = [
                (names[h], base.relations[int(r)], names[t])
                for h, r, t in zip(heads, labels, tails, strict=True)
            ]
            live.add(facts)
            live.remove(facts[:1])
            changed = live.graph()
            check(changed.relation_graph, changed)


def test_relations_between_the_same_entities_are_counted() -> None:
    """Also in opposite directions, and from an entity to itself."""
    facts = np.array([[0, 0, 1], [0, 1, 1], [1, 2, 0], [2, 0, 2], [3, 1, 1]])
    pairs = KnowledgeGraph.from_facts(facts, 4, 3).relation_graph.rows_of_pairs(torch.arange(6))
    assert pairs[0].tolist() == [2, 1, 0, 1, 0, 1]  # 0 → 1 twice more; 2 → 2 is its own inverse
    assert pairs[1].tolist() == [1, 2, 0, 0, 0, 1]
    assert torch.equal(pairs, pairs.t())


def test_counts_are_cached_per_graph() -> None:
    graph = random_graph(1)
    assert graph.relation_graph is graph.relation_graph
    mask = torch.ones(graph.num_facts, dtype=torch.bool)
    mask[: graph.num_facts // 2] = False
    check(graph.subset(mask).relation_graph, graph.subset(mask))


def test_counts_of_a_graph_in_a_file(tmp_path: Path) -> None:
    graph = random_graph(5, 50, 200, 6)
    save_graph(tmp_path / "graph", graph, {}, {})
    check(open_graph(tmp_path / "graph")[0].relation_graph, graph)


@pytest.mark.parametrize("most", [0, 10_000])
def test_counts_in_a_file_are_exact(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of which float32 knows only every other one."""
    monkeypatch.setattr(relation_graph, "MAX_DENSE", most)
    graph = random_graph(5, 50, 200, 6)
    counted = relation_graph._counted
    large = 2**24 + 1

    def many(*arguments: Any) -> relation_graph._Counts:
        return relation_graph._Counts(*(large * part for part in counted(*arguments)))

    monkeypatch.setattr(relation_graph, "_counted", many)
    path = tmp_path / "graph"
    save_graph(path, graph, {}, {})
    found = {name: torch.from_numpy(np.load(path / f"relations_{name}.npy")) for name in ARRAYS}
    joint, pairs, facts = counted_by_hand(graph)
    assert torch.equal(found["facts"], large * facts.long())
    for prefix, expected in (("", joint), ("pair_", pairs)):
        row, index = expected.nonzero().unbind(1)
        assert torch.equal(found[f"{prefix}index"], index)
        assert torch.equal(found[f"{prefix}indptr"].diff(), torch.bincount(row, minlength=12))
        assert torch.equal(found[f"{prefix}count"], large * expected[row, index].long())


def test_a_graph_on_the_host_has_the_counts_on_the_device() -> None:
    graph = random_graph(2)
    hosted = HostGraph(graph, torch.device("cpu"))
    check(hosted.relation_graph, graph)


def test_a_graph_without_facts() -> None:
    graph = KnowledgeGraph.from_facts(np.empty((0, 3), np.int64), 3, 2)
    check(graph.relation_graph, graph)
