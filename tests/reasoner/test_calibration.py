"""Tests of calibration: probabilities that mean something on facts not looked at."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from tests.support.samples import chain_world

from oneshot.config import Config, FactorsConfig, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.dataset import Dataset, both_directions
from oneshot.data.load import family
from oneshot.factors import fit_factors
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.ranking import KnownFacts
from oneshot.reasoner.answers import Calibration, evidence
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.calibration import (
    COST,
    JudgedAnswers,
    _fit_logistic,
    _fitted,
    _fitted_line,
    _other_queries,
    calibrate,
    calibrate_on_graphs,
    calibration_error,
    judge_answers,
    labelled_shares,
    reliability,
)
from oneshot.reasoner.discovery import Search, _candidates
from oneshot.reasoner.judgement import best_of_each
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.training.trainer import fit


def test_probabilities_beat_a_constant_on_held_out_facts() -> None:
    data = family(150)
    shape = PredictorConfig(num_layers=3, dim=16, attention_dim=4)
    reasoner = build_reasoner(data.graph, Config(SamplerConfig(entity_ratio=0.3), shape))
    fit(reasoner, data, TrainingConfig(epochs=4, batch_size=16, learning_rate=0.01, fact_ratio=0.8))
    reasoner.calibration = calibrate(reasoner, data)
    assert reasoner.calibration.slope > 0
    assert reasoner.calibration.error is not None
    assert 0 <= reasoner.calibration.error < 0.2
    assert set(reasoner.calibration.offsets) <= {
        data.graph.relation_name(relation) for relation in range(2 * data.graph.num_relations)
    }
    # The validation facts have been looked at: they are neither asked nor counted as wrong.
    seen = {tuple(fact) for fact in data.valid.tolist()}
    held = {tuple(fact) for fact in data.test.tolist()}
    chances, labels = [], []
    for head, relation in sorted({(h, r) for h, r, _ in held}):
        for answer in reasoner.predict(head, relation, exclude_known=True):
            fact = (head, relation, data.entities.index(answer.entity))
            if fact in seen:
                continue
            assert answer.probability is not None
            assert 0 <= answer.probability <= 1
            chances.append(answer.probability)
            labels.append(fact in held)
    assert 0 < sum(labels) < len(labels)
    rate = sum(labels) / len(labels)

    def log_loss(values: list[float]) -> float:
        return -sum(
            math.log(max(p if y else 1 - p, 1e-9)) for p, y in zip(values, labels, strict=True)
        ) / len(labels)

    assert log_loss(chances) < 0.8 * log_loss([rate] * len(labels))
    sure = [y for p, y in zip(chances, labels, strict=True) if p > 0.5]
    unsure = [y for p, y in zip(chances, labels, strict=True) if p < 0.1]
    assert sum(sure) / len(sure) > 0.5 > 0.1 > sum(unsure) / len(unsure)


def test_the_fit_finds_the_slope_that_made_the_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    values = -5 * torch.rand(20_000, generator=generator, dtype=torch.float64)
    chances = torch.sigmoid(1.7 * values + 2.5)
    labels = torch.rand(20_000, generator=generator, dtype=torch.float64) < chances
    slope, offset = _fit_logistic(values, labels)
    assert (slope, offset) == (pytest.approx(1.7, rel=0.1), pytest.approx(2.5, rel=0.1))


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize("spread", [0.0, 1.0, 1000.0])
def test_the_fit_stays_finite_when_all_labels_agree(label: bool, spread: float) -> None:
    values = torch.linspace(-spread, 0, 50)
    slope, offset = _fit_logistic(values, torch.full((50,), label))
    assert math.isfinite(slope)
    assert slope >= 0
    chance = Calibration(slope, offset, 50).probability(float(values.mean()))
    assert chance > 0.9 if label else chance < 0.1


def test_labels_that_are_perfectly_apart_have_a_finite_fit() -> None:
    values = torch.linspace(-10, 0, 100)
    slope, offset = _fit_logistic(values, values > -3)
    assert math.isfinite(slope)
    calibration = Calibration(slope, offset, 100)
    assert calibration.probability(0.0) > 0.9
    assert calibration.probability(-10.0) < 0.1


def test_scores_that_mislead_give_the_mean_rate() -> None:
    values = torch.linspace(-5, 0, 100)
    slope, offset = _fit_logistic(values, values < -2.5)
    assert slope == 0
    assert Calibration(slope, offset, 100).probability(-3.0) == pytest.approx(0.5, abs=0.01)


def test_probabilities_stay_between_zero_and_one() -> None:
    calibration = Calibration(3.0, 1.0, 5)
    chances = [calibration.probability(value) for value in (-1e9, -500.0, -10.0, -1.0, 0.0)]
    assert chances == sorted(chances)
    assert chances[0] == 0.0
    assert all(0 <= chance <= 1 for chance in chances)
    assert Calibration(1.0, 1e9, 5).probability(0.0) == 1.0


def test_a_limit_and_a_seed_choose_the_questions() -> None:
    data = chain_world(30)
    shape = PredictorConfig(num_layers=2, dim=4, attention_dim=2)
    reasoner = build_reasoner(data.graph, Config(SamplerConfig(entity_ratio=0.5), shape))
    whole = calibrate(reasoner, data)
    assert whole.queries == 2 * len(data.valid)
    assert calibrate(reasoner, data, batch_size=3).slope == pytest.approx(whole.slope, rel=1e-3)
    few = [calibrate(reasoner, data, limit=4, seed=seed) for seed in (0, 0, 1)]
    assert few[0].queries == 4
    assert few[0] == few[1] != few[2]
    # Known facts are left out: with all entities known there is nothing to fit, and no crash.
    everything = torch.cartesian_prod(*(torch.arange(n) for n in (30, 3, 30)))
    full = dataclasses.replace(data)
    object.__setattr__(full, "train_facts", KnownFacts(everything, 30, 3))
    nothing = calibrate(reasoner, full)
    assert nothing.slope == 0
    assert len(KnownFacts(everything, 30, 3).answers(torch.tensor([[0, 0]]))[1]) == 30


def test_the_time_limits_the_questions() -> None:
    data = chain_world(30)
    shape = PredictorConfig(num_layers=2, dim=4, attention_dim=2)
    reasoner = build_reasoner(data.graph, Config(SamplerConfig(entity_ratio=0.5), shape))
    reasoner.factors = fit_factors(data.graph, FactorsConfig(dim=4), data.valid, data.known_facts)
    reasoner.factors.weight = 1.0
    size = 2 * len(data.valid)
    seconds = itertools.count()  # a second for each look at the clock
    limits: dict[str, Any] = {"batch_size": 2, "clock": lambda: float(next(seconds))}
    found = calibrate(reasoner, data, seconds=8 * COST, **limits)
    # Half of the time for each of the two, from the first look on; a batch more reaches the end.
    assert found.queries == 8 < size
    assert found.alone is not None
    assert found.alone.queries == 8
    assert calibrate(reasoner, data, seconds=0.0, **limits).queries == 2
    assert calibrate(reasoner, data, batch_size=2, seconds=600).queries == size


def test_answers_are_judged_query_by_query() -> None:
    data = chain_world(30)
    torch.manual_seed(0)
    shape = PredictorConfig(num_layers=2, dim=4, attention_dim=2)
    reasoner = build_reasoner(data.graph, Config(SamplerConfig(entity_ratio=0.5), shape))
    queries = both_directions(data.valid, data.graph.num_relations)[0].unique(dim=0)
    judged = judge_answers(reasoner, queries, data.valid, data.train)
    known = KnownFacts(data.train, data.graph.num_entities, data.graph.num_relations)
    wanted = {tuple(fact) for fact in both(data.valid, data.graph.num_relations)}
    for number, query in enumerate(queries):
        mine = judged.some(judged.query == number)
        batch, scores = reasoner.reason(query[None])
        is_known = torch.isin(batch.entities, known.answers(query[None])[1])
        rest = scores[~is_known].double()
        order = rest.argsort(descending=True, stable=True)[:10]
        assert mine.evidence.tolist() == pytest.approx((rest - rest.logsumexp(0))[order].tolist())
        assert mine.answer.tolist() == batch.entities[~is_known][order].tolist()
        assert mine.mass.tolist() == pytest.approx([float(rest.logsumexp(0))] * len(order))
        assert mine.known.unique().tolist() == [float(len(known.answers(query[None])[1]))]
        head, relation = query.tolist()
        assert (mine.entity.unique().tolist(), mine.relation.unique().tolist()) == (
            [head],
            [relation],
        )
        asked = [(head, relation, answer) in wanted for answer in mine.answer.tolist()]
        assert mine.holds.tolist() == asked


def both(facts: torch.Tensor, relations: int) -> list[tuple[int, ...]]:
    """The facts [n, 3] and their inverses."""
    forward = [tuple(fact) for fact in facts.tolist()]
    return forward + [(tail, relation + relations, head) for head, relation, tail in forward]


def test_known_answers_do_not_compete() -> None:
    scores = torch.tensor([4.0, 4.0, 4.0, 0.0, 1.0])
    known = torch.tensor([True, True, True, False, False])
    found = evidence(scores, known)
    rest = torch.logsumexp(scores[3:], 0)
    torch.testing.assert_close(found, scores - rest)
    calibration = Calibration(1.0, 0.0, 10)
    assert torch.equal(calibration.evidence(scores, known), found)
    # Earlier versions let all of them share one softmax.
    earlier = Calibration(1.0, 0.0, 10, rivals="all")
    torch.testing.assert_close(earlier.evidence(scores, known), scores.log_softmax(0))
    assert float(evidence(scores, torch.ones_like(known))[0]) == 50.0
    assert len(evidence(scores[:0], known[:0])) == 0


def test_relations_have_their_own_offsets_if_there_are_enough_answers() -> None:
    generator = torch.Generator().manual_seed(0)
    evidences = -4 * torch.rand(6000, generator=generator, dtype=torch.float64)
    relation = torch.randint(3, (6000,), generator=generator)
    own = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)[relation]
    chances = torch.sigmoid(evidences + 1 + own)
    holds = torch.rand(6000, generator=generator, dtype=torch.float64) < chances
    # A fourth relation with one answer stays near the shared offset.
    columns = (evidences, holds, relation, torch.arange(6000))
    last = (
        torch.tensor([-1.0]).double(),
        torch.tensor([True]),
        torch.tensor([3]),
        torch.tensor([6000]),
    )
    both = [torch.cat(pair) for pair in zip(columns, last, strict=True)]
    judged = JudgedAnswers(*both, *[torch.zeros(6001)] * 4)  # the rest is not used
    slope, offset, offsets = _fitted(judged)
    assert offsets[0] - offsets[1] == pytest.approx(3.0, abs=0.4)
    assert 0 < offsets[3] < 1
    probabilities = torch.sigmoid(
        slope * judged.evidence
        + offset
        + torch.tensor([offsets[r] for r in judged.relation.tolist()])
    )
    assert calibration_error(probabilities, judged.holds) < 0.03
    shared = torch.sigmoid(slope * judged.evidence + offset)
    for number in range(3):
        mine = judged.relation == number
        error = calibration_error(shared[mine], judged.holds[mine])
        assert calibration_error(probabilities[mine], judged.holds[mine]) <= error


@pytest.mark.parametrize("labelled", [1.0, 0.5])
def test_a_line_counts_the_true_facts_without_a_label(labelled: float) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(8000, 2, generator=generator, dtype=torch.float64)
    relation = torch.randint(2, (8000,), generator=generator)
    own = torch.tensor([1.0, -1.0], dtype=torch.float64)[relation]
    chances = torch.sigmoid(2 * features[:, 0] + features[:, 1] - 1.5 + own)
    uniform = torch.rand(2, 8000, generator=generator, dtype=torch.float64)
    true = uniform[0] < chances
    holds = true & (uniform[1] < labelled)
    weights = torch.ones(8000, dtype=torch.float64)
    line = _fitted_line(features, holds, relation, weights, labelled, ["a", "b"])
    assert line is not None
    assert line.weights == pytest.approx((2, 1), rel=0.15)
    assert line.offsets["a"] - line.offsets["b"] == pytest.approx(2, abs=0.3)
    found = torch.sigmoid(line.logits(features, ["ab"[r] for r in relation.tolist()]))
    assert float(found.sum()) == pytest.approx(float(true.sum()), rel=0.1)
    assert calibration_error(found, true) < 0.02
    # Scores that mislead give no line.
    assert _fitted_line(-features, holds, relation, weights, labelled, ["a", "b"]) is None


def test_a_line_with_many_relations_is_the_most_likely_one() -> None:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    relation = torch.randint(40, (3000,), generator=generator)
    chances = torch.sigmoid(features[:, 0] - 1 + relation / 20)
    holds = torch.rand(3000, generator=generator, dtype=torch.float64) < chances
    weights = torch.rand(3000, generator=generator, dtype=torch.float64) + 0.1
    names = [str(number) for number in range(50)]
    line = _fitted_line(features, holds, relation, weights, 1.0, names)
    assert line is not None
    assert set(line.offsets) == set(names[:40])
    # At the maximum, the slope of the penalised likelihood is 0 for each offset and each weight.
    chance = torch.sigmoid(line.logits(features, [names[r] for r in relation.tolist()]))
    error = (weights / weights.mean()) * (chance - holds.double())
    offsets = torch.tensor([line.offsets[name] for name in names[:40]], dtype=torch.float64)
    pull = torch.zeros(40, dtype=torch.float64).index_add(0, relation, error) + offsets
    assert pull.abs().max() < 1e-4
    scale = features.std(0, correction=0)
    ours = torch.tensor(line.weights, dtype=torch.float64) * scale
    standard = (features - features.mean(0)) / scale
    assert (standard.T @ error + 0.01 * ours).abs().max() < 1e-4


def test_weights_of_answers_count_as_so_many_answers() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(4000, 1, generator=generator, dtype=torch.float64)
    chances = torch.sigmoid(features[:, 0] - 1)
    holds = torch.rand(4000, generator=generator, dtype=torch.float64) < chances
    relation = torch.zeros(4000, dtype=torch.long)
    kept = holds | (torch.arange(4000) % 4 == 0)
    weights = torch.where(holds, 1.0, 4.0).double()[kept]
    some = _fitted_line(features[kept], holds[kept], relation[kept], weights, 1.0, ["a"])
    whole = _fitted_line(features, holds, relation, torch.ones(4000).double(), 1.0, ["a"])
    assert some is not None
    assert whole is not None
    shift = (some.offset + some.offsets["a"]) - (whole.offset + whole.offsets["a"])
    assert shift == pytest.approx(0, abs=0.2)


def test_other_queries_are_those_that_a_discovery_asks() -> None:
    data = chain_world(30)
    graph = data.graph
    valid = data.valid[:, :2].unique(dim=0)
    found, total = _other_queries(graph, valid, 10_000, 0)
    asked = [
        (int(head), relation)
        for relation, heads in _candidates(graph, Search())
        for head in heads.tolist()
    ]
    expected = set(asked) - {(h, r) for h, r in valid.tolist()}
    assert {(h, r) for h, r in found.tolist()} == expected
    assert total == len(expected) == len(found)
    few, same = _other_queries(graph, valid, 5, 0)
    assert (len(few), same) == (5, total)
    assert {(h, r) for h, r in few.tolist()} < expected


def test_the_best_of_each_query() -> None:
    scores = torch.tensor([1.0, 3.0, -torch.inf, 2.0, 5.0, -torch.inf, 3.0, 3.0])
    query = torch.tensor([0, 0, 0, 0, 2, 2, 3, 3])
    assert best_of_each(scores, query, 4, 2).tolist() == [1, 3, 4, 6, 7]
    assert best_of_each(scores, query, 4, 9).tolist() == [1, 3, 0, 4, 6, 7]
    assert best_of_each(scores[:0], query[:0], 2, 3).tolist() == []


def test_the_reliability_curve_counts_and_averages() -> None:
    probabilities = torch.tensor([0.05, 0.15, 0.11, 0.95, 1.0], dtype=torch.float64)
    holds = torch.tensor([False, True, False, True, False])
    bins = reliability(probabilities, holds)
    assert [part.answers for part in bins] == [1, 2, 2]
    assert [part.true for part in bins] == [0.0, 0.5, 0.5]
    assert [part.probability for part in bins] == pytest.approx([0.05, 0.13, 0.975])
    expected = (0.05 + 2 * abs(0.13 - 0.5) + 2 * abs(0.975 - 0.5)) / 5
    assert calibration_error(probabilities, holds) == pytest.approx(expected)
    assert calibration_error(probabilities[:0], holds[:0]) == 0.0


def test_graphs_with_other_relations_share_one_fit() -> None:
    judges = []
    for size, seed in ((30, 0), (40, 1), (35, 2)):
        data = chain_world(size, seed=seed)
        torch.manual_seed(0)
        shape = PredictorConfig(num_layers=2, dim=4, attention_dim=2)
        predictor = Predictor(shape, data.graph.num_relations)
        judges.append((Reasoner(data.graph, PPRSampler(0.5), predictor), data))
    found = calibrate_on_graphs(judges, limit=8)
    assert found.queries == 24
    assert not found.offsets
    assert found.error is not None
    # A fit to the others judges each graph.
    expected = []
    for number, (reasoner, data) in enumerate(judges):
        others = calibrate_on_graphs([j for n, j in enumerate(judges) if n != number], limit=8)
        order = torch.randperm(2 * len(data.valid), generator=torch.Generator().manual_seed(0))
        queries = both_directions(data.valid, data.graph.num_relations)[0].unique(dim=0)
        judged = judge_answers(reasoner, queries[order[:8]], data.valid, data.train)
        chances = [others.probability(value) for value in judged.evidence.tolist()]
        expected.append(calibration_error(torch.tensor(chances), judged.holds))
    assert found.error == pytest.approx(sum(expected) / 3, abs=1e-6)
    assert calibrate_on_graphs(judges[:1]).error is None


def test_the_fit_stays_finite_for_nearly_separable_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    low = -5 + 0.3 * torch.randn(288, generator=generator)
    high = -0.3 + 0.3 * torch.randn(32, generator=generator)
    labels = torch.cat([torch.zeros(288), torch.ones(32)])
    for flipped in range(4):
        labels[flipped] = 0 if flipped == 0 else 1
        slope, offset = _fit_logistic(torch.cat([low, high]), labels)
        chances = torch.sigmoid(slope * torch.cat([low, high]) + offset)
        assert float(chances[288:].mean()) > 0.8
        assert float(chances[:288].mean()) < 0.1


def test_answers_in_the_test_split_are_counted_but_not_looked_at() -> None:
    # Relation 0: each query has one answer. Relation 1: half of the answers are in the test split.
    valid = [[h, 0, 50 + h] for h in range(10)] + [
        [h, 1, 70 + t] for h in range(10) for t in range(4)
    ]
    test = [[h, 2, 0] for h in range(50)]
    graph = KnowledgeGraph.from_facts([[0, 2, 1]], 100, 3)
    data = Dataset("x", graph, torch.tensor(valid), torch.tensor(test))
    shares = labelled_shares(data)
    assert float(shares[0]) > 0.85  # 1, pulled towards the mean
    # Three answers besides the first one, and as many again in the test split: 4 of 7.
    assert float(shares[1]) == pytest.approx(4 / 7, abs=0.05)
    whole = labelled_shares(Dataset("x", graph, torch.tensor(valid), torch.zeros(0, 3).long()))
    assert whole.tolist() == [1] * 6
    # True answers whose label is missing: the fit finds the rate of all true ones.
    generator = torch.Generator().manual_seed(0)
    values = -4 * torch.rand(20_000, generator=generator, dtype=torch.float64)
    true = torch.rand(20_000, generator=generator) < torch.sigmoid(2 * values + 2)
    holds = true & (torch.rand(20_000, generator=generator) < 0.6)
    ids = torch.zeros(20_000, dtype=torch.long)
    judged = JudgedAnswers(values, holds, ids, torch.arange(20_000), ids, ids, values, values)
    slope, offset, offsets = _fitted(judged, torch.tensor([0.6, 0.6], dtype=torch.float64))
    assert slope == pytest.approx(2, rel=0.15)
    assert offset + offsets[0] == pytest.approx(2, abs=0.25)
