import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import graphs, random_graph, random_queries

from oneshot.errors import OneshotError
from oneshot.experiments.compare import VIEWS
from oneshot.ranking import (
    METRICS,
    SCORES,
    KnownFacts,
    bootstrap_interval,
    candidate_ranks,
    filtered_ranks,
    metrics,
)
from oneshot.runs.train import REPORTED
from oneshot.samplers import PPRSampler


def slow_rank(scored, entity, relation, answer, facts, graph, uncovered):
    """The rank of one answer, the obvious way: (optimistic, pessimistic)."""
    count = graph.num_relations
    known = {t for h, r, t in facts if (h, r) == (entity, relation)}
    known |= {h for h, r, t in facts if (t, r + count) == (entity, relation)}
    missing = 0.0 if uncovered == "zero" else -float("inf")
    value = {e: scored.get(e, missing) for e in range(graph.num_entities)}
    rivals = [value[e] for e in value if e != answer and e not in known]
    higher = sum(v > value[answer] for v in rivals)
    equal = sum(v == value[answer] for v in rivals)
    return 1 + higher, 1 + higher + equal


@given(
    graph=graphs(),
    seed=st.integers(0, 1000),
    ratio=st.floats(0.05, 1.0),
    levels=st.integers(1, 6),
    uncovered=st.sampled_from(["below", "zero"]),
)
@settings(deadline=None, max_examples=150)
def test_ranks_equal_the_obvious_way(graph, seed, ratio, levels, uncovered):
    queries, answers = random_queries(graph, 8, seed), random_queries(graph, 8, seed + 1)[:, 0]
    facts = random_queries(graph, 60, seed + 2)
    extra = torch.stack([facts[:30, 0], facts[:30, 1] % graph.num_relations, facts[30:, 0]], dim=1)
    # Some of the questions get known answers, among them the answer asked for.
    asked = torch.stack([queries[:, 0], queries[:, 1] % graph.num_relations, answers], dim=1)
    turned = asked[:, [2, 1, 0]]
    forward = (queries[:, 1] < graph.num_relations)[:, None]
    everything = torch.cat([graph.facts.long(), extra, torch.where(forward, asked, turned)])
    batch = PPRSampler(ratio).sample(graph, queries)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (batch.num_entities,), generator=generator).float() - levels // 2
    known = KnownFacts(everything, graph.num_entities, graph.num_relations)
    ranks = filtered_ranks(batch, scores, answers, known, graph.num_entities, uncovered)
    for row, (entity, relation) in enumerate(queries.tolist()):
        mine = batch.entity_query == row
        scored = dict(zip(batch.entities[mine].tolist(), scores[mine].tolist(), strict=True))
        answer = int(answers[row])
        expected = slow_rank(
            scored, entity, relation, answer, everything.tolist(), graph, uncovered
        )
        assert (int(ranks.optimistic[row]), int(ranks.pessimistic[row])) == expected
        assert float(ranks.realistic[row]) == sum(expected) / 2
        assert bool(ranks.covered[row]) == (answer in scored)


def test_without_known_facts_nothing_is_filtered():
    graph = random_graph(0)
    query, answer = torch.tensor([[0, 0]]), torch.tensor([1])
    batch = PPRSampler(1.0).sample(graph, query)
    scores = torch.arange(30.0)
    ranks = filtered_ranks(batch, scores, answer, None, 30)
    assert int(ranks.optimistic) == int(ranks.pessimistic) == 29


def test_scores_that_are_not_finite_never_pass_for_good_ones():
    graph = random_graph(0)
    batch = PPRSampler(1.0).sample(graph, torch.tensor([[0, 0]]))
    with pytest.raises(OneshotError, match="diverged"):
        filtered_ranks(batch, torch.full((30,), torch.nan), torch.tensor([1]), None, 30)


def test_metrics_are_means_over_the_ranks():
    values = metrics(torch.tensor([1, 2, 4, 10, 11]))
    assert values.mrr == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 10 + 1 / 11) / 5)
    assert (values.hits_at_1, values.hits_at_3, values.hits_at_10) == (0.2, 0.4, 0.8)
    assert values.mean_rank == 5.6


def test_candidate_ranks_count_higher_and_equal_candidates():
    best, worst = candidate_ranks(
        torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, -1.0]])
    )
    assert best.tolist() == [2, 1]
    assert worst.tolist() == [3, 3]


def test_bootstrap_interval_holds_the_mean_and_follows_the_seed():
    ranks = torch.randint(1, 50, (300,), generator=torch.Generator().manual_seed(0))
    low, high = bootstrap_interval(ranks, seed=1)
    assert low < metrics(ranks).mrr < high
    assert [low, high] == list(bootstrap_interval(ranks, seed=1))
    wide = bootstrap_interval(ranks[:30], seed=1)
    assert wide[1] - wide[0] > high - low


def test_each_metric_has_its_field_and_all_users_find_it() -> None:
    values = metrics(torch.tensor([1.0, 2.5, 12.0]))
    assert list(vars(values)) == [name.replace("@", "_at_") for name in METRICS]
    assert list(values.as_dict()) == list(METRICS)
    assert list(values.as_dict().values()) == list(vars(values).values())
    assert set(values.scores()) == set(SCORES) == set(METRICS) - {"mean_rank"}
    assert set(METRICS) < set(REPORTED)
    assert {column.figure for column in VIEWS["accuracy"]} > set(SCORES)
