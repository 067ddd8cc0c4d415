"""The features of answers equal what a plain loop over the facts gives."""

import math

import torch
from hypothesis import given, settings
from tests.support.graphs import graphs

from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers._answer_counts import NUM_FEATURES, AnswerCounts


def naive_features(graph: KnowledgeGraph, q: int, v: int) -> list[float]:
    count = graph.num_relations
    facts = [(h, r, t) for h, r, t in graph.facts.tolist()]
    edges = facts + [(t, r + count, h) for h, r, t in facts]
    answers = {r: {t for _, k, t in edges if k == r} for r in range(2 * count)}
    mine = sum(1 for _, r, t in edges if (r, t) == (q, v))
    kinds = [r for r in range(2 * count) if v in answers[r]]
    shares = [len(answers[q] & answers[r]) / len(answers[r]) if r != q else 0.0 for r in kinds]
    degree = sum(1 for _, _, t in edges if t == v)
    return [
        float(mine > 0),
        math.log1p(mine),
        math.log(sum(shares) / max(len(shares), 1) + 1e-4),
        math.log(max(shares, default=0.0) + 1e-3),
        math.log1p(degree),
    ]


@given(graph=graphs())
@settings(deadline=None, max_examples=30)
def test_features_equal_a_plain_computation(graph: KnowledgeGraph) -> None:
    relations = torch.arange(2 * graph.num_relations)
    found = AnswerCounts(graph).features(relations)
    assert found.shape == (len(relations), graph.num_entities, NUM_FEATURES)
    for q in relations.tolist():
        for v in range(graph.num_entities):
            expected = torch.tensor(naive_features(graph, q, v))
            assert torch.allclose(found[q, v], expected, atol=1e-4), (q, v)


@given(graph=graphs())
@settings(deadline=None, max_examples=10)
def test_weighted_sums_are_those_of_the_features(graph: KnowledgeGraph) -> None:
    counts, relations = AnswerCounts(graph), torch.arange(2 * graph.num_relations).flip(0)
    weights = torch.randn(len(relations), NUM_FEATURES)
    expected = (counts.features(relations) * weights[:, None]).sum(-1)
    assert torch.allclose(counts.weighted(relations, weights), expected, atol=1e-4)
