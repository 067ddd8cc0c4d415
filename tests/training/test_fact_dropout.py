"""Fact dropout: facts that are hidden at random from the training subgraphs."""

import dataclasses
from collections import Counter

import pytest
import torch

from oneshot.config import TrainingConfig
from oneshot.data.dataset import both_directions
from oneshot.data.load import load
from oneshot.errors import InputError
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.training.epoch import without_some_facts


def sampled(count: int = 6) -> tuple[SubgraphBatch, torch.Tensor, int]:
    data = load("umls")
    queries, _ = both_directions(data.test[:count], data.graph.num_relations)
    batch = PPRSampler(entity_ratio=0.4).sample(data.graph, queries)
    return batch, torch.arange(len(queries)), data.graph.num_relations


def facts_of(batch: SubgraphBatch, num_relations: int) -> list[tuple[int, ...]]:
    source, relation, target = batch.edges
    head, tail = batch.entities[source], batch.entities[target]
    return sorted(
        (q, t, r - num_relations, h) if num_relations <= r < 2 * num_relations else (q, h, r, t)
        for q, h, r, t in zip(
            batch.edge_query.tolist(), head.tolist(), relation.tolist(), tail.tolist(), strict=True
        )
    )


def test_a_share_of_the_facts_goes_in_both_directions_and_identities_stay() -> None:
    batch, number, num_relations = sampled()
    fewer = without_some_facts(batch, 0.3, 7, number, num_relations)
    identity = 2 * num_relations
    assert int((fewer.edges[1] == identity).sum()) == int((batch.edges[1] == identity).sum())
    before, after = int((batch.edges[1] != identity).sum()), int((fewer.edges[1] != identity).sum())
    assert 0.65 < after / before < 0.75
    left = Counter(fact for fact in facts_of(fewer, num_relations) if fact[2] != identity)
    whole = Counter(fact for fact in facts_of(batch, num_relations) if fact[2] != identity)
    assert all(whole[fact] == count for fact, count in left.items())
    assert fewer.edges[2].diff().ge(0).all()  # still sorted by target


def test_what_goes_depends_on_the_query_and_not_on_the_company() -> None:
    batch, number, num_relations = sampled()
    together = without_some_facts(batch, 0.5, 7, number, num_relations).split(4)
    for part, own, ours in zip(batch.split(4), number.split(4), together, strict=True):
        alone = without_some_facts(part, 0.5, 7, own, num_relations)
        assert alone.edges.equal(ours.edges)
    other = without_some_facts(batch, 0.5, 8, number, num_relations)
    assert other.edges.shape != torch.cat([p.edges for p in together], 1).shape or not (
        other.edges[1].equal(torch.cat([p.edges[1] for p in together]))
    )


def test_the_share_must_be_below_one() -> None:
    with pytest.raises(InputError, match="fact_dropout must be below 1"):
        TrainingConfig(fact_dropout=1.0)
    assert dataclasses.replace(TrainingConfig(), fact_dropout=0.5).fact_dropout == 0.5
