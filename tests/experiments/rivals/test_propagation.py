"""Propagation: edges out of pairs, the best of each query, and batches of pairs."""

import pytest
import torch
from tests.support.graphs import random_graph, random_queries

from oneshot.experiments.rivals.propagation import (
    best_rows,
    edges_out,
    first_keys,
    include_keys,
    restricted,
    rows_of,
    segment_softmax,
    subgraphs,
    with_forced,
)
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch


def test_edges_out_are_all_facts_of_an_entity_in_both_directions() -> None:
    graph = random_graph(1)
    size, relations = graph.num_entities, graph.num_relations
    keys = torch.tensor([3, size + 0, size + 7, 2 * size + 29])  # the last one has no facts
    found = edges_out(graph, keys)
    expected = []
    for row, key in enumerate(keys.tolist()):
        query, entity = divmod(key, size)
        for head, relation, tail in graph.facts.tolist():
            if head == entity:
                expected.append((row, relation, query * size + tail))
            if tail == entity:
                expected.append((row, relation + relations, query * size + head))
    columns = (found.source.tolist(), found.relation.tolist(), found.target.tolist())
    assert sorted(zip(*columns, strict=True)) == sorted(expected)
    kept = found.where(found.source == 1)
    assert set(kept.source.tolist()) == {1}


def test_best_rows_are_counted_per_query_and_ties_go_to_the_lower_row() -> None:
    score = torch.tensor([1.0, 3.0, 3.0, 2.0, 5.0, 4.0])
    query = torch.tensor([0, 0, 0, 0, 2, 2])
    assert best_rows(score, query, 2, 3).tolist() == [False, True, True, False, True, True]
    assert best_rows(score, query, 1, 3).tolist() == [False, True, False, False, True, False]
    counts = torch.tensor([3, 0, 1])
    assert best_rows(score, query, counts, 3).tolist() == [False, True, True, True, True, False]
    assert best_rows(score, query, 9, 3).all()
    assert best_rows(score[:0], query[:0], 1, 3).tolist() == []


def test_rows_of_keys_that_are_missing() -> None:
    among = torch.tensor([2, 5, 9])
    assert rows_of(torch.tensor([5, 1, 9, 10]), among).tolist() == [1, -1, 2, -1]
    assert rows_of(torch.tensor([5]), among[:0]).tolist() == [-1]


def test_the_whole_graph_as_pairs_is_the_subgraph_of_a_sampler() -> None:
    graph = random_graph(2)
    queries = random_queries(graph, 3, 0)
    keys = torch.arange(3 * graph.num_entities)
    batch = subgraphs(graph, queries, keys, edges_out(graph, keys), keys)
    expected = PPRSampler(entity_ratio=1.0).sample(graph, queries)
    for name in ("queries", "entities", "entity_query", "source", "degree"):
        assert getattr(batch, name).equal(getattr(expected, name)), name
    ours, theirs = (sorted(one.edges.T.tolist()) for one in (batch, expected))
    assert ours == theirs
    assert batch.edges[2].equal(batch.edges[2].sort().values)
    assert batch.edge_query.equal(batch.entity_query[batch.edges[2]])


def _edges_by_id(batch: SubgraphBatch) -> set[tuple[int, ...]]:
    source, relation, target = batch.edges
    columns = (batch.edge_query, batch.entities[source], relation, batch.entities[target])
    return set(zip(*(column.tolist() for column in columns), strict=True))


def test_a_restricted_batch_has_the_edges_between_its_entities() -> None:
    graph = random_graph(3)
    queries = random_queries(graph, 2, 1)
    whole = PPRSampler(entity_ratio=1.0).sample(graph, queries)
    rows = torch.cat([torch.arange(0, whole.num_entities, 2), whole.source]).unique()
    part = restricted(whole, rows)
    assert part.entities.equal(whole.entities[rows])
    assert part.entities[part.source].equal(queries[:, 0])
    inside = set(zip(part.entity_query.tolist(), part.entities.tolist(), strict=True))
    expected = {
        edge for edge in _edges_by_id(whole) if {(edge[0], edge[1]), (edge[0], edge[3])} <= inside
    }
    assert _edges_by_id(part) == expected


def test_forced_entities_are_added_once() -> None:
    graph = random_graph(4)
    queries = random_queries(graph, 2, 2)
    size = graph.num_entities
    few = PPRSampler(max_entities=4).sample(graph, queries)
    keys = few.entity_query * size + few.entities
    forced = include_keys(graph, torch.tensor([[29, -1], [28, int(queries[1, 0])]]))
    assert forced is not None
    wider, rows = with_forced(graph, few, keys, forced)
    assert wider.find(torch.tensor([29, 28])).min() >= 0
    assert wider.num_entities == few.num_entities + 2
    assert wider.entities[rows].equal(few.entities)
    assert wider.entities[wider.source].equal(queries[:, 0])
    assert _edges_by_id(wider) == _edges_by_id(few)
    assert include_keys(graph, None) is None


def test_softmax_within_queries() -> None:
    values, query = torch.tensor([1.0, 2.0, 50.0, 0.5]), torch.tensor([0, 0, 1, 1])
    found = segment_softmax(values, query, 3)
    expected = torch.cat([values[:2].softmax(0), values[2:].softmax(0)])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("count", [1, 4])
def test_first_keys_are_sorted_and_name_the_query_entity(count: int) -> None:
    graph = random_graph(5)
    queries = random_queries(graph, count, 3)
    keys = first_keys(graph, queries)
    assert (keys % graph.num_entities).equal(queries[:, 0])
    assert (keys // graph.num_entities).tolist() == list(range(count))
