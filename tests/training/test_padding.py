"""Tests of padded batches and their capacity; what kernels make of them is in test_kernels."""

import torch
from tests.support.graphs import random_graph, random_queries

from oneshot.samplers import PPRSampler
from oneshot.training.padding import Capacity, PaddedBatch


def test_a_capacity_grows_only_where_it_must() -> None:
    nothing = Capacity(0, 0, (0, 0, 0))
    first = nothing.grown([Capacity(1000, 9000, (4, 500, 900)), Capacity(900, 9900, (4, 700, 800))])
    assert first.entities >= 1000
    assert first.edges >= 9900
    assert first.reach[0] == 4
    assert first.reach[1] >= 700
    assert first.holds(Capacity(1000, 9900, (4, 700, 900)))
    assert not first.holds(Capacity(1000, 9900, (4, 700, 10**6)))
    assert first.grown([Capacity(10, 10, (4, 10, 10))]) == first
    more = first.grown([Capacity(1000, 20_000, (4, 700, 900))])
    assert (more.entities, more.reach) == (first.entities, first.reach)
    assert more.edges >= 20_000


def test_reach_never_falls_and_never_exceeds_the_entities() -> None:
    small = Capacity(0, 0, (0,) * 4).grown([Capacity(600, 10, (2, 590, 595, 600))])
    large = small.grown([Capacity(600, 10, (2, small.reach[1] + 1, 595, 600))])
    for capacity in (small, large):
        assert list(capacity.reach) == sorted(capacity.reach)
        assert capacity.reach[-1] <= capacity.entities


def test_buffers_hold_the_batch_and_mark_the_rest() -> None:
    graph = random_graph(0, 30, 60, 3)
    sampler = PPRSampler(0.5)
    batches = [sampler.sample(graph, random_queries(graph, 3, seed)) for seed in (1, 2)]
    buffers = PaddedBatch(Capacity(64, 400, (3, 64)), 3, torch.device("cpu"))
    for batch in batches:
        buffers.fill(batch)
        ours, entities, edges = buffers.batch, batch.num_entities, batch.num_edges
        for name, column in vars(batch).items():
            if name in ("queries", "source"):
                assert torch.equal(getattr(ours, name), column)
            elif name == "edges":
                assert torch.equal(ours.edges[:, :edges], column)
            elif name in SubgraphColumns:
                assert torch.equal(getattr(ours, name)[: len(column)], column)
        assert bool((ours.entity_query[entities:] == 3).all())
        assert bool((ours.edges[2, edges:] == 64).all())


SubgraphColumns = ("entities", "entity_query", "score", "degree", "edge_query")
