"""Tests of the estimator: the interface of scikit-learn on top of plan and training."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.samples import chain_world

from oneshot import LinkPredictor
from oneshot.config import Config, FactorsConfig, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.errors import InputError, UnknownNameError
from oneshot.evaluation.evaluate import evaluate
from oneshot.evaluation.factor_weight import WEIGHTS, choose_weight
from oneshot.factors import fit_factors
from oneshot.reasoner.check import check_fact

CONFIG = Config(
    SamplerConfig(entity_ratio=0.5),
    PredictorConfig(num_layers=3, dim=16, attention_dim=4),
    TrainingConfig(epochs=12, fact_ratio=0.7, learning_rate=0.01, batch_size=16),
)

Fact = tuple[str, str, str]


def by_name(facts: torch.Tensor) -> list[Fact]:
    data = chain_world()
    entities, relations = data.entities, data.relations
    return [(entities[h], relations[r], entities[t]) for h, r, t in facts.tolist()]


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Fact]]:
    data = chain_world()
    return {split: by_name(data.facts(split)) for split in ("train", "valid", "test")}


@pytest.fixture(scope="module")
def fitted(splits: dict[str, list[Fact]]) -> LinkPredictor:
    return LinkPredictor(config=CONFIG, seed=1, device="cpu").fit(splits)


def test_it_learns_and_scores_with_the_filtered_mrr(
    fitted: LinkPredictor, splits: dict[str, list[Fact]]
) -> None:
    value = fitted.score(splits["test"])
    assert value > 0.5  # chance is about 0.08
    data = fitted.data_
    report = evaluate(fitted.reasoner_, data.test, data.known)
    assert value == pytest.approx(report.mrr, abs=1e-6)
    assert fitted.score(data.test) == pytest.approx(value, abs=1e-6)  # ids of the data set
    assert fitted.config_.training.seed == 1
    assert len(fitted.history_) == 12


def test_predictions_are_the_best_answers(fitted: LinkPredictor) -> None:
    queries = [("link 3", "next"), ("link 3", "next⁻¹"), ("link 9", "after")]
    found = fitted.predict(queries)
    assert found.shape == (3,)
    expected = [fitted.reasoner_.predict(*query, top=1)[0].entity for query in queries]
    assert found.tolist() == expected
    assert fitted.predict(np.array(queries)).tolist() == expected
    new = fitted.predict([("link 3", "next")], exclude_known=True)
    assert new[0] != "link 4"
    assert fitted.predict([]).shape == (0,)
    with pytest.raises(UnknownNameError, match="did you mean"):
        fitted.predict([("lnk 3", "next")])
    with pytest.raises(InputError, match=r"queries must be a list of \(entity, relation\)"):
        fitted.predict(("link 3", "next"))
    with pytest.raises(InputError, match="inverse must be true or false, not 'link 4'"):
        fitted.predict([("link 3", "next", "link 4")])


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_queries_in_frames(fitted: LinkPredictor, name: str) -> None:
    frames = pytest.importorskip(name, reason=f"{name} is not installed")
    columns = {"entity": ["link 3", "link 9"], "relation": ["next", "after"]}
    found = fitted.predict(frames.DataFrame(columns))
    assert found.tolist() == fitted.predict(list(zip(*columns.values(), strict=True))).tolist()


def test_probabilities_of_facts(fitted: LinkPredictor, splits: dict[str, list[Fact]]) -> None:
    false = [(head, relation, "link 0") for head, relation, _ in splits["test"]]
    found = fitted.predict_proba(splits["test"] + false)
    count = len(false)
    assert found.shape == (2 * count, 2)
    assert np.allclose(found.sum(1), 1)
    assert fitted.classes_.tolist() == [False, True]
    assert found[:count, 1].mean() > found[count:, 1].mean() + 0.2


def test_probabilities_are_those_of_facts(
    fitted: LinkPredictor, splits: dict[str, list[Fact]]
) -> None:
    reasoner = fitted.reasoner_
    asked = [*splits["test"][:3], *splits["train"][:3], ("link 2", "next", "link 2")]
    for fact, (_, holds) in zip(asked, fitted.predict_proba(asked), strict=True):
        expected = check_fact(reasoner, *fact).fact.probability
        assert holds == pytest.approx(expected, abs=0.01)  # fewer than 200 facts: hidden alone
    listed = reasoner.discover(top=10)
    assert listed
    found = fitted.predict_proba([(one.head, one.relation, one.tail) for one in listed])[:, 1]
    assert found.tolist() == pytest.approx([one.probability for one in listed], abs=1e-3)


def test_new_entities_have_no_facts(fitted: LinkPredictor, splits: dict[str, list[Fact]]) -> None:
    new = [("newcomer", "next", "link 1")]
    value, both = fitted.score(splits["test"]), fitted.score(splits["test"] + new)
    assert 0 < fitted.score(new) < 0.5
    assert 0 < both < value
    assert fitted.predict_proba(new).shape == (1, 2)
    assert "newcomer" not in fitted.reasoner_.graph.entities


def test_without_splits_some_facts_are_held_out(splits: dict[str, list[Fact]]) -> None:
    facts = splits["train"] + splits["valid"]
    short = Config(CONFIG.sampler, CONFIG.predictor, TrainingConfig(epochs=1))
    fitted = LinkPredictor(config=short, device="cpu").fit(facts)
    data = fitted.data_
    assert (len(data.valid), len(data.test)) == (len(facts) // 10, 0)
    assert len(data.known) == len(facts)


def test_factors_are_fitted_within_the_time(
    splits: dict[str, list[Fact]], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def fitted_factors(*args: Any, seconds: float, **options: Any) -> Any:
        limits.append(seconds)
        return fit_factors(*args, seconds=seconds, **options)

    def chosen_weight(*args: Any, **options: Any) -> Any:
        limits.append(options["until"])
        return choose_weight(*args, **options)

    monkeypatch.setattr("oneshot.training.estimator.fit_factors", fitted_factors)
    monkeypatch.setattr("oneshot.training.final_evaluation.choose_weight", chosen_weight)
    factors = FactorsConfig(dim=4, epochs=2, time_share=0.25)
    config = replace(CONFIG, factors=factors, training=TrainingConfig(epochs=1))
    fitted = LinkPredictor(config=config, minutes=1, device="cpu").fit(splits)
    assert limits[0] == 0.25 * 60
    assert limits[1] is not None
    assert fitted.reasoner_.factors is not None
    assert fitted.reasoner_.factors.weight in WEIGHTS
    LinkPredictor(config=config, device="cpu").fit(splits)
    assert limits[2:] == [math.inf, None]  # without a budget there is no limit


def test_the_plan_is_used_without_a_configuration(splits: dict[str, list[Fact]]) -> None:
    settings = ["predictor.dim=8", "predictor.num_layers=2", "training.epochs=1"]
    fitted = LinkPredictor(config=settings, device="cpu", seed=3).fit(splits)
    assert fitted.config_.predictor.dim == 8
    assert fitted.config_.sampler.name == "fitted"  # chosen by the plan
    assert fitted.config_.training.seed == 3


def test_wrong_use_is_one_line(fitted: LinkPredictor) -> None:
    with pytest.raises(InputError, match=r"not fitted; call fit\(triples\) first"):
        LinkPredictor().predict([("a", "b")])
    with pytest.raises(InputError, match="not fitted"):
        LinkPredictor().score([("a", "b", "c")])
    with pytest.raises(InputError, match="minutes must be above 0"):
        LinkPredictor(minutes=-1).fit([("a", "b", "c")])
    with pytest.raises(InputError, match="training needs"):
        LinkPredictor().fit([("a", "b", "c")])
    with pytest.raises(UnknownNameError, match="list, fact 1: unknown relation 'nxt'"):
        fitted.score([("link 0", "nxt", "link 1")])
    with pytest.raises(UnknownNameError, match="unknown option 'minute'; did you mean 'minutes'"):
        fitted.set_params(minute=3)


def test_options() -> None:
    estimator = LinkPredictor(minutes=2, seed=4)
    expected = {"minutes": 2, "seed": 4, "device": "auto", "config": None}
    assert estimator.get_params() == expected
    assert estimator.set_params(seed=5, device="cpu") is estimator
    assert estimator.get_params(deep=False) == expected | {"seed": 5, "device": "cpu"}
    assert repr(estimator) == "LinkPredictor(minutes=2, seed=5, device='cpu', config=None)"


def test_scikit_learn_clones_and_validates_it(splits: dict[str, list[Fact]]) -> None:
    sklearn_base = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import cross_val_score
    from sklearn.utils.validation import check_is_fitted

    short = Config(CONFIG.sampler, CONFIG.predictor, TrainingConfig(epochs=1))
    estimator = LinkPredictor(config=short, device="cpu", seed=2)
    copy: Any = sklearn_base.clone(estimator)
    assert copy is not estimator
    assert copy.get_params() == estimator.get_params()
    with pytest.raises(NotFittedError):
        check_is_fitted(copy)
    facts = np.array(splits["train"])
    order = np.random.default_rng(0).permutation(len(facts))
    found = cross_val_score(estimator, facts[order], cv=4)
    assert found.shape == (4,)
    assert (found > 0).all()
