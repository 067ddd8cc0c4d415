"""Tests of the edge limit: subgraphs lose their last entities, and small ones nothing."""

import numpy as np
import pytest
import torch
from tests.support.graphs import random_graph, random_queries

from oneshot.config import SamplerConfig
from oneshot.data.synthetic.generators import family, power_law
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.build import build_sampler, sampler_config
from oneshot.samplers import SAMPLERS, FittedSampler, PPRSampler, _edge_limit
from oneshot.samplers import base as sampler_base
from oneshot.samplers._edge_limit import limit_edges
from oneshot.subgraph import SubgraphBatch

FIELDS = ("queries", "entities", "entity_query", "source", "score", "degree", "edges", "edge_query")


def facts_of(batch: SubgraphBatch, row: int) -> set[tuple[int, int, int]]:
    """The edges of a query with global ids."""
    x, relation, o = batch.edges[:, batch.edge_query == row]
    columns = batch.entities[x], relation, batch.entities[o]
    return set(zip(*(c.tolist() for c in columns), strict=True))


def weight_of(batch: SubgraphBatch) -> dict[tuple[int, ...], float]:
    """The weight of each edge, by query and global ids."""
    x, relation, o = batch.edges
    columns = batch.edge_query, batch.entities[x], relation, batch.entities[o]
    keys = zip(*(c.tolist() for c in columns), strict=True)
    return dict(zip(keys, batch.weight.tolist(), strict=True))


def equal(one: SubgraphBatch, other: SubgraphBatch) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


@pytest.mark.parametrize("seed", range(8))
def test_the_entities_of_highest_score_stay_as_long_as_their_edges_fit(seed: int) -> None:
    graph = random_graph(seed, 40, 150)
    queries, limit = random_queries(graph, 6, seed), 40
    include = torch.tensor([[3, -1], [5, 7], [-1, -1], [39, 0], [1, 2], [8, 8]])
    whole = PPRSampler(0.8, edge_limit=0).sample(graph, queries, include)
    batch = PPRSampler(0.8, edge_limit=limit).sample(graph, queries, include)
    batch.split(1)  # checks that it is consistent
    for row in range(6):
        mine, all_mine = batch.entity_query == row, whole.entity_query == row
        entities, score = whole.entities[all_mine].tolist(), whole.score[all_mine].tolist()
        forced = {int(queries[row, 0]), *include[row].tolist()} - {-1}
        order = sorted(
            range(len(entities)), key=lambda n: (entities[n] not in forced, -score[n], entities[n])
        )
        every = facts_of(whole, row)
        kept = set(forced)
        for n in order:
            more = kept | {entities[n]}
            inside = [e for e in every if e[0] in more and e[2] in more]
            inside = [e for e in inside if e[1] < 2 * graph.num_relations]
            if entities[n] not in forced and len(inside) > limit:
                break
            kept = more
        assert set(batch.entities[mine].tolist()) == kept
        assert facts_of(batch, row) == {e for e in every if e[0] in kept and e[2] in kept}
        assert int(batch.entities[batch.source[row]]) == int(queries[row, 0])
        own = dict(zip(entities, score, strict=True))
        assert batch.score[mine].tolist() == [own[e] for e in batch.entities[mine].tolist()]
    # Each edge keeps the weight of its fact.
    generator = torch.Generator().manual_seed(seed)
    weights = 0.1 + torch.rand(graph.num_facts, generator=generator)
    weighted = KnowledgeGraph.from_facts(
        graph.facts, graph.entities, graph.relations, weights=weights
    )
    limited = PPRSampler(0.8, edge_limit=limit).sample(weighted, queries)
    every = PPRSampler(0.8, edge_limit=0).sample(weighted, queries)
    assert weight_of(limited).items() <= weight_of(every).items()
    assert len(limited.weight) == limited.num_edges < every.num_edges
    alone = PPRSampler(0.8, edge_limit=limit).sample(graph, queries[2:3], include[2:3])
    assert torch.equal(alone.entities, batch.entities[batch.entity_query == 2])
    assert facts_of(alone, 0) == facts_of(batch, 2)
    assert (batch.edges[2].diff() >= 0).all()
    assert (batch.edge_query.diff() >= 0).all()


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_subgraphs_within_the_limit_are_the_same(name: str) -> None:
    graph = power_law(500, 3000).graph
    queries = random_queries(graph, 5, 1)
    for options in ({"max_entities": 60}, {"entity_ratio": 0.5}):
        batches = [
            SAMPLERS[name](**options, edge_limit=limit).sample(graph, queries)
            for limit in (None, 0, 5999)
        ]
        assert all(equal(batches[0], other) for other in batches[1:])


def test_the_default_is_for_all_budgets_of_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_edge_limit, "EDGE_LIMIT", 100)
    monkeypatch.setattr(sampler_base, "EDGE_LIMIT", 100)
    monkeypatch.setattr(_edge_limit, "ENTITIES_OF_LIMIT", 50)
    graph = power_law(500, 3000).graph
    queries = random_queries(graph, 5, 1)

    def facts(**options: object) -> list[int]:
        batch = PPRSampler(**options).sample(graph, queries)  # type: ignore[arg-type]
        number = torch.bincount(batch.edge_query) - torch.bincount(batch.entity_query)
        return [int(n) for n in number]

    assert max(facts(max_entities=50)) <= 100
    assert max(facts(max_entities=100)) <= 200
    assert min(facts(max_entities=100, edge_limit=0)) > 200
    assert min(facts(entity_ratio=0.2, edge_limit=0)) > 200
    assert max(facts(entity_ratio=0.2)) <= 200
    assert max(facts(entity_ratio={"default": 0.2})) <= 200
    assert min(facts(max_entities=100, max_edges=300)) > 200
    assert max(facts(entity_ratio=0.2, edge_limit=120)) <= 120


@pytest.mark.parametrize("context", [0.0, 0.5, 1.0])
def test_the_fitted_sampler_drops_what_a_smaller_budget_would(
    context: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = family(1500, seed=3).graph
    queries = random_queries(graph, 12, 2)
    sampler = FittedSampler(entity_ratio=0.2, context=context, edge_limit=0)
    sampler.fit(graph)
    whole = sampler.sample(graph, queries)
    limited = FittedSampler(entity_ratio=0.2, context=context, edge_limit=400)
    limited.take(sampler.parameters())
    batch = limited.sample(graph, queries)
    batch.split(1)
    number = torch.bincount(batch.edge_query) - torch.bincount(batch.entity_query)
    assert int(number.max()) <= 400
    by_score = limit_edges(whole, torch.full((12,), 400), graph.num_relations)
    agreed, agreed_by_score = [], []
    for row in range(12):
        mine = batch.entities[batch.entity_query == row]
        smaller = FittedSampler(max_entities=len(mine), context=context, edge_limit=0)
        smaller.take(sampler.parameters())
        expected = smaller.sample(graph, queries[row : row + 1]).entities
        agreed.append(float(torch.isin(mine, expected).float().mean()))
        others = by_score.entities[by_score.entity_query == row]
        agreed_by_score.append(float(torch.isin(others, expected).float().mean()))
    assert float(np.mean(agreed)) >= 0.9
    if context > 0:
        assert float(np.mean(agreed)) > float(np.mean(agreed_by_score)) + 0.05
    # One that is sampled alone, and one below the limit, are the same.
    alone = limited.sample(graph, queries[3:4])
    assert torch.equal(alone.entities, batch.entities[batch.entity_query == 3])
    below = FittedSampler(entity_ratio=0.2, context=context, edge_limit=int(number.max()) * 100)
    below.take(sampler.parameters())
    assert equal(below.sample(graph, queries), whole)
    # By default, the limit applies here, too.
    monkeypatch.setattr(_edge_limit, "EDGE_LIMIT", 400)
    monkeypatch.setattr(sampler_base, "EDGE_LIMIT", 400)
    monkeypatch.setattr(_edge_limit, "ENTITIES_OF_LIMIT", 400)
    default = FittedSampler(entity_ratio=0.2, context=context)
    default.take(sampler.parameters())
    assert equal(default.sample(graph, queries), batch)


def test_the_limit_is_an_option() -> None:
    for limit in (None, 0, 5000):
        sampler = build_sampler(SamplerConfig(max_entities=10, edge_limit=limit))
        assert sampler.edge_limit == limit
        assert sampler_config(sampler).edge_limit == limit
    for wrong in (-1, True):
        with pytest.raises(InputError, match="edge_limit"):
            PPRSampler(edge_limit=wrong)
    with pytest.raises(InputError, match="edge_limit"):
        SamplerConfig(edge_limit=-5)


def test_limits_grow_with_large_budgets() -> None:
    counts = torch.tensor([1, 2000, 4000, 10**6])
    expected = np.array([1_000_000, 1_000_000, 2_000_000, 500_000_000])
    assert _edge_limit.default_edge_limits(counts).tolist() == expected.tolist()
