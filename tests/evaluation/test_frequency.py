"""Tests of the frequency baseline, against a ranking of all entities one by one."""

import dataclasses

import pytest
import torch
from tests.support.graphs import random_graph
from tests.support.samples import chain_world

from oneshot.data.dataset import Dataset, both_directions
from oneshot.evaluation.frequency import Frequency, frequency_metrics, frequency_scorer
from oneshot.evaluation.scorer import rank_split
from oneshot.ranking import KnownFacts, dense_ranks


@pytest.mark.parametrize("seed", range(8))
def test_ranks_are_those_of_a_full_table(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    entities, relations = (30, 3) if seed % 2 else (7, 2)
    graph = random_graph(seed, entities, 12 * (seed + 1), relations)
    asked = torch.stack(
        [
            torch.randint(size, (40,), generator=generator)
            for size in (entities, relations, entities)
        ],
        dim=1,
    )
    # Of some queries the answer itself is not known, and some relations occur with few entities.
    known = KnownFacts(torch.cat([graph.facts.long(), asked[::3]]), entities, relations)
    queries, answers = both_directions(asked, relations)
    frequency = Frequency(graph.facts, entities, relations)
    counts = torch.zeros(2 * relations, entities)
    for head, relation, tail in graph.facts.tolist():
        counts[relation, tail] += 1
        counts[relation + relations, head] += 1
    assert frequency.counts(queries[:, 1]).equal(counts[queries[:, 1]])
    expected = dense_ranks(counts[queries[:, 1]], queries, answers, known)
    found = frequency.ranks(queries, answers, known)
    assert found.optimistic.equal(expected.optimistic)
    assert found.pessimistic.equal(expected.pessimistic)
    assert bool(found.covered.all())


def test_relations_without_facts_rank_all_alike() -> None:
    frequency = Frequency(torch.tensor([[0, 0, 1]]), 5, 2)
    nothing = KnownFacts(torch.zeros(0, 3, dtype=torch.long), 5, 2)
    found = frequency.ranks(torch.tensor([[3, 1], [2, 0]]), torch.tensor([4, 0]), nothing)
    assert (found.optimistic.tolist(), found.pessimistic.tolist()) == ([1, 2], [5, 5])


@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_scores_of_the_baseline_give_its_metrics(split: str) -> None:
    data: Dataset = dataclasses.replace(chain_world(40), valid=chain_world(40).train[::7])
    ranked = rank_split(frequency_scorer(data), data, split)
    assert frequency_metrics(data, split).as_dict() == pytest.approx(ranked.metrics.as_dict())
