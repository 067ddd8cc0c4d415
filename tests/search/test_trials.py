"""Tests of the trials of phase 1: what they do, and how they end."""

from typing import Any

import pytest
import torch
from tests.support.samples import chain_world

from oneshot.config import SamplerConfig, TrainingConfig
from oneshot.evaluation.coverage import coverage
from oneshot.samplers import PPRSampler
from oneshot.search.early_stopping import expected_value, limits
from oneshot.search.predictor_trial import (
    full_training,
    provide,
    run_predictor_trial,
    trial_training,
)
from oneshot.search.settings import fitted_sampler
from oneshot.search.store import Trial
from oneshot.training.epoch import queries_per_epoch
from oneshot.training.interrupt import StopTraining


def task(data: Any, **changes: Any) -> dict[str, Any]:
    provide(data)
    return {
        "config": {
            "sampler": {"entity_ratio": 0.5},
            "predictor": {"num_layers": 2, "dim": 4, "attention_dim": 2},
            "training": {"learning_rate": 0.01, "fact_ratio": 0.7, "batch_size": 16},
        },
        "values": {},
        "fingerprint": data.graph.fingerprint,
        "origin": None,
        "device": "cpu",
        "target": "mrr",
        "queries": 128,
        "validations": 4,
        "valid_queries": 8,
        "seconds": 0.0,
        "limits": {},
    } | changes


def test_a_trial_gives_the_same_result_twice_and_the_target_that_was_asked_for() -> None:
    data = chain_world(30)
    one, two = (run_predictor_trial(task(data)) for _ in range(2))
    assert one["status"] == "done"
    assert one["curve"] == two["curve"]
    assert len(one["curve"]) == 4
    assert one["curve"] == sorted(one["curve"])
    assert one["value"] == one["curve"][-1]
    hits = run_predictor_trial(task(data, target="hits@3"))
    assert hits["value"] == hits["about"]["metrics"]["hits@3"]


def test_hopeless_slow_and_diverging_trials_are_told_apart() -> None:
    data = chain_world(30)
    hopeless = run_predictor_trial(task(data, limits={"1": 0.999}))
    assert (hopeless["status"], len(hopeless["curve"])) == ("stopped", 1)
    assert "below 0.9990 at validation 1" in hopeless["error"]
    assert hopeless["about"]["hopeless"]
    slow = run_predictor_trial(task(data, seconds=1e-6))
    assert (slow["status"], slow["value"]) == ("failed", None)
    wild = {"training.learning_rate": 1e3, "predictor.activation": "identity"}
    wild |= {"predictor.gate": False, "predictor.num_layers": 40}
    diverged = run_predictor_trial(task(data, values=wild))
    assert (diverged["status"], diverged["value"]) == ("failed", None)
    assert "not finite" in diverged["error"]
    impossible = run_predictor_trial(task(data, values={"predictor.compose": "rotate"}))
    assert impossible["status"] == "failed"
    assert "rotate" in impossible["error"]


def test_no_memory_is_a_failure_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("oneshot.training.trainer.evaluate", full)
    outcome = run_predictor_trial(task(chain_world(30)))
    assert (outcome["status"], outcome["error"]) == ("failed", "out of memory")


def test_a_fault_of_ours_is_a_failure_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: object, **__: object) -> None:
        raise KeyError("missing")

    monkeypatch.setattr("oneshot.training.trainer.evaluate", odd)
    outcome = run_predictor_trial(task(chain_world(30)))
    assert (outcome["status"], outcome["error"]) == ("failed", "KeyError: 'missing'")


def test_a_trial_that_is_to_stop_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise StopTraining

    monkeypatch.setattr("oneshot.training.trainer.evaluate", stopped)
    with pytest.raises(StopTraining):
        run_predictor_trial(task(chain_world(30)))


def test_trials_of_any_fact_ratio_ask_equally_many_queries() -> None:
    for ratio in (0.5, 0.9, 0.99):
        config = trial_training(TrainingConfig(fact_ratio=ratio), 1000, 400, 8, 50)
        asked = config.epochs * queries_per_epoch(config, 1000)
        assert asked == pytest.approx(400, rel=0.3), ratio
        assert config.epochs // config.valid_every == 8


def test_the_training_in_full_asks_as_many_queries_whatever_the_fact_ratio() -> None:
    for facts, asked in ((1000, 4000), (100, 50_000), (100_000, 4000)):
        for ratio in (0.5, 0.9, 0.98):
            config = full_training(TrainingConfig(fact_ratio=ratio), facts, asked)
            found = config.epochs * queries_per_epoch(config, facts)
            assert found == pytest.approx(asked, rel=0.1), (facts, ratio)
            assert config.epochs // config.valid_every >= 10


def test_trials_train_with_the_smallest_share_that_covers_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, device = chain_world(33), torch.device("cpu")
    given = SamplerConfig(max_entities=7)
    assert fitted_sampler(given, data, device, 0)[0] == given
    found, remark = fitted_sampler(SamplerConfig(), data, device, 0)
    shares = coverage(PPRSampler(), data.graph, *data.queries("valid"), (0.2, 0.3)).coverage
    assert shares[0.2] < 0.94 <= shares[0.3]
    assert found.entity_ratio == 0.3
    assert f"entity_ratio 0.3: coverage {shares[0.3]:.3f}" in remark
    # On a large graph no more than a tenth, which may be no whole number of entities.
    monkeypatch.setattr("oneshot.search.settings._MOST_ENTITIES", 0)
    assert fitted_sampler(SamplerConfig(), data, device, 0)[0].entity_ratio == 0.1


def trial(number: int, *curve: float) -> Trial:
    return Trial("predictor", number, "done", {}, "random", value=curve[-1], curve=list(curve))


def test_a_trial_must_keep_up_with_the_better_half() -> None:
    trials = [trial(i, i / 10, i / 10 + 0.1, i / 5) for i in range(5)]
    assert limits(trials[:3], 8, 0.5) == {}  # too few to judge by
    assert limits(trials, 8, 0.5) == pytest.approx({2: 0.3})
    assert limits(trials, 8, 1.0) == {}
    assert limits(trials, 2, 0.5) == {}  # the end is no place to stop


def test_stopped_trials_are_told_as_if_they_had_gone_on() -> None:
    trials = [trial(i, 0.2 + i / 10, 0.4 + i / 10) for i in range(3)]
    curve, about = [0.1], {"hopeless": True}
    stopped = Trial("predictor", 3, "stopped", {}, "random", value=0.1, curve=curve, about=about)
    assert expected_value(stopped, [*trials, stopped]) == pytest.approx(0.3)
    late = Trial("predictor", 4, "stopped", {}, "random", value=0.45, curve=[0.45], about=about)
    assert expected_value(late, [*trials, late]) == pytest.approx(0.5)  # no more than the others
    slow = Trial("predictor", 5, "stopped", {}, "random", value=0.1, curve=curve)
    assert expected_value(slow, trials) == 0.1  # this is what it reaches in its time
    assert expected_value(stopped, [stopped]) == 0.1
    assert expected_value(Trial("predictor", 6, "failed", {}, "random"), trials) is None
