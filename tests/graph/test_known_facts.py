"""Known answers, against a set of facts."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.graphs import random_graph, random_queries

from oneshot.graph import known_facts
from oneshot.graph.known_facts import KnownFacts, MappedFacts
from oneshot.graph.storage import open_graph, save_graph


@given(seed=st.integers(0, 1000))
def test_answers_are_those_of_the_facts_in_both_directions(seed: int) -> None:
    graph = random_graph(seed, 12, 30, 3)
    facts = graph.facts.long()
    true = {(h, r, t) for h, r, t in facts.tolist()} | {(t, r + 3, h) for h, r, t in facts.tolist()}
    known = KnownFacts(torch.cat([facts, facts[::2]]), 12, 3)  # repeated ones count once
    queries = torch.cat([random_queries(graph, 6, seed), facts[:3, :2]])
    row, entity = known.to("cpu").answers(queries)
    expected = [
        (i, v) for i, (u, q) in enumerate(queries.tolist()) for v in range(12) if (u, q, v) in true
    ]
    assert list(zip(row.tolist(), entity.tolist(), strict=True)) == expected
    every = torch.arange(12).expand(len(queries), -1)
    holds = known.holds(queries, every)
    assert [tuple(pair) for pair in holds.nonzero().tolist()] == expected


def test_without_facts_nothing_is_known() -> None:
    known = KnownFacts(torch.zeros(0, 3, dtype=torch.long), 5, 2)
    queries = torch.tensor([[0, 0], [4, 3]])
    assert [len(column) for column in known.answers(queries)] == [0, 0]
    assert not known.holds(queries, torch.tensor([[0, 4], [1, 2]])).any()
    row, entity = KnownFacts(torch.tensor([[0, 1, 4]]), 5, 2).answers(queries[:0])
    assert (len(row), len(entity)) == (0, 0)


@pytest.mark.parametrize("block", [1, 50, 1 << 20])
def test_the_rows_of_a_mapped_graph_give_the_same(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_facts, "LEAST_FACTS", 0)
    monkeypatch.setattr(known_facts, "_BLOCK", block)
    graph = random_graph(1, 30, 120)
    more = torch.tensor([[0, 1, 29], [3, 0, 3], *graph.facts[:2].tolist()])
    save_graph(tmp_path / "graph", graph, {}, {})
    mapped = open_graph(tmp_path / "graph")[0]
    for others in (None, more):
        expected = KnownFacts.of_graph(graph, others)
        assert not isinstance(expected, MappedFacts)
        known = KnownFacts.of_graph(mapped, others).to("cpu")
        assert isinstance(known, MappedFacts)
        queries = torch.cartesian_prod(torch.arange(30), torch.arange(6))
        queries = torch.cat([queries, queries[:5]])
        for ours, theirs in zip(known.answers(queries), expected.answers(queries), strict=True):
            assert torch.equal(ours, theirs)
        every = torch.arange(30).expand(len(queries), -1)
        assert torch.equal(known.holds(queries, every), expected.holds(queries, every))
        assert [len(column) for column in known.answers(queries[:0])] == [0, 0]
