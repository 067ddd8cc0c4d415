"""Tests of the pairs of entities and the relations that they answer, in memory and saved."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from tests.support.graphs import graphs, random_graph

from oneshot.data.large.build import build_graph
from oneshot.data.load import load
from oneshot.data.locate import locate
from oneshot.evaluation.frequency import Frequency
from oneshot.graph import relation_graph, storage
from oneshot.graph.answer_pairs import AnswerPairs, count_answers
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.graph.storage import open_graph, save_graph, verify_graph
from oneshot.reasoner.judgement import several_in
from oneshot.samplers._answer_counts import AnswerCounts


def assert_same(ours: AnswerPairs, expected: AnswerPairs) -> None:
    for name in vars(expected):
        assert torch.equal(getattr(ours, name), getattr(expected, name)), name


def saved(graph: KnowledgeGraph, path: Path) -> KnowledgeGraph:
    save_graph(path, graph, {}, {})
    return open_graph(path)[0]


@given(graph=graphs())
@settings(deadline=None, max_examples=20)
def test_pairs_are_counted_in_both_orders(graph: KnowledgeGraph) -> None:
    expected = Counter()
    for head, relation, tail in graph.facts.tolist():
        expected[tail, relation] += 1
        expected[head, relation + graph.num_relations] += 1
    pairs = graph.answer_pairs
    entity = torch.arange(graph.num_entities).repeat_interleave(pairs.first.diff())
    columns = entity, pairs.relation, pairs.count
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    assert found == [(*pair, expected[pair]) for pair in sorted(expected)]
    for relation in range(2 * graph.num_relations):
        entities = pairs.entities_of(relation).tolist()
        assert entities == sorted(v for v, r in expected if r == relation)
        counts = pairs.counts_of(relation).tolist()
        assert counts == [expected[v, relation] for v in entities]


@pytest.mark.parametrize("block", [1, 7, 100])
def test_blocks_give_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(3, 40, 150)
    expected = graph.answer_pairs
    monkeypatch.setattr(relation_graph, "_BLOCK_EDGES", block)
    assert_same(count_answers(graph), expected)


def test_they_are_saved_with_a_graph_and_mapped(tmp_path: Path) -> None:
    graph = random_graph(5, 40, 150)
    mapped = saved(graph, tmp_path / "graph")
    assert "answer_pairs" in vars(mapped)  # nothing is counted
    assert_same(mapped.answer_pairs, graph.answer_pairs)
    assert torch.equal(mapped.relation_graph.joint, graph.relation_graph.joint)
    assert torch.equal(mapped.relation_graph.facts, graph.relation_graph.facts)
    relations = torch.arange(2 * graph.num_relations)
    features = AnswerCounts(mapped).features(relations)
    assert torch.allclose(features, AnswerCounts(graph).features(relations), atol=1e-5)
    verify_graph(tmp_path / "graph")


def test_many_relations_are_saved_as_a_sparse_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relation_graph, "MAX_DENSE", 4)
    graph = random_graph(5, 40, 150)
    mapped = saved(graph, tmp_path / "graph")
    every = torch.arange(2 * graph.num_relations)
    assert torch.equal(mapped.relation_graph.rows(every), graph.relation_graph.rows(every))


def test_a_graph_saved_without_them_counts_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(6, 40, 150)
    with monkeypatch.context() as before:
        before.setattr(storage, "save_counts", lambda *_: None)
        mapped = saved(graph, tmp_path / "graph")
    verify_graph(tmp_path / "graph")
    assert "answer_pairs" not in vars(mapped)
    assert_same(mapped.answer_pairs, graph.answer_pairs)
    assert torch.equal(mapped.relation_graph.joint, graph.relation_graph.joint)


def test_a_build_on_disk_writes_the_same(tmp_path: Path) -> None:
    graph = random_graph(7, 40, 150)
    folder = tmp_path / "text"
    folder.mkdir()
    lines = ["\t".join(f"{kind}{i}" for kind, i in zip("ere", fact, strict=True))
             for fact in graph.facts.tolist()]  # fmt: skip
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    for split in ("valid", "test"):
        (folder / f"{split}.tsv").write_text(lines[0] + "\n")
    build_graph(locate(folder), tmp_path / "built")
    load(folder).save(tmp_path / "saved")
    built, expected = (load(tmp_path / name).graph for name in ("built", "saved"))
    assert built.fingerprint == expected.fingerprint
    assert "answer_pairs" in vars(built)
    assert_same(built.answer_pairs, expected.answer_pairs)
    assert torch.equal(built.relation_graph.joint, expected.relation_graph.joint)


def test_what_is_computed_from_them_equals_that_of_the_facts(tmp_path: Path) -> None:
    graph = random_graph(8, 30, 200)
    mapped = saved(graph, tmp_path / "graph")
    assert torch.allclose(several_in(mapped), several_in(graph))
    known = KnownFacts.of_graph(graph)
    queries = torch.cat([graph.facts[:20, :2].long(), torch.tensor([[3, 4], [29, 5]])])
    answers = torch.cat([graph.facts[:20, 2].long(), torch.tensor([7, 29])])
    ours, expected = (Frequency.of_graph(one) for one in (mapped, graph))
    found, wanted = (one.ranks(queries, answers, known) for one in (ours, expected))
    assert torch.equal(found.optimistic, wanted.optimistic)
    assert torch.equal(found.pessimistic, wanted.pessimistic)
    relations = torch.arange(6)
    assert torch.equal(ours.counts(relations), expected.counts(relations))
