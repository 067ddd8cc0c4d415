"""Tests of searches that have a time: they end in it, and trials are judged by it."""

import dataclasses
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.clocks import FakeClock, KilledError, answer_slowly, compute_slowly
from tests.support.commands import Command
from tests.support.samples import chain_world, write_world
from tests.support.searches import arguments, needs_smac, start

from oneshot.config import Config, TrainingConfig, from_table
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.predictor import Predictor
from oneshot.reasoner.build import build_reasoner
from oneshot.runs.run import Run
from oneshot.runs.train import train_run
from oneshot.search import predictor_phase, sampler_phase
from oneshot.search import predictor_trial as trial
from oneshot.search import search as searching
from oneshot.search.allotment import Allotment
from oneshot.search.early_stopping import judged, limits
from oneshot.search.feasibility import Demand, Pace, measure_pace
from oneshot.search.predictor_phase import known_trials
from oneshot.search.predictor_trial import (
    full_config,
    provide,
    run_predictor_trial,
    timed_training,
    trial_training,
)
from oneshot.search.propose import Proposal, propose
from oneshot.search.settings import Effort, SearchSettings, planned_base
from oneshot.search.space import Choice, Range, Space, widened
from oneshot.search.store import STORE, Store, Trial
from oneshot.search.summary import summarise
from oneshot.search.trial_budget import TrialBudget
from oneshot.training.epoch import queries_per_epoch
from oneshot.training.trainer import Trainer

CPU = torch.device("cpu")
SMALL = {
    "sampler": {"entity_ratio": 0.5},
    "predictor": {"num_layers": 2, "dim": 4, "attention_dim": 2},
    "training": {"learning_rate": 0.01, "fact_ratio": 0.7, "batch_size": 8},
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def task(data: Dataset, **changes: Any) -> dict[str, Any]:
    """A trial of 60 seconds with 8 rungs."""
    provide(data)
    return {
        "config": SMALL,
        "values": {},
        "fingerprint": data.graph.fingerprint,
        "origin": None,
        "device": "cpu",
        "target": "mrr",
        "queries": 10**9,
        "validations": 8,
        "valid_queries": 8,
        "seconds": 60.0,
        "limits": {},
        "timed": True,
        "must_run": False,
    } | changes


# How the time is shared out.


@pytest.mark.parametrize("minutes", [0.5, 5, 60, 1000])
def test_the_parts_of_a_search_fit_into_its_time(minutes: float) -> None:
    parts = Allotment(60 * minutes)
    training = parts.training_seconds(parts.predictor_end)
    assert parts.predictor_end + training + parts.sampler_seconds == pytest.approx(
        parts.sampler_end
    )
    assert parts.sampler_end < parts.end < parts.limit
    assert training > parts.sampler_seconds
    # A phase 1 that took longer takes from the training, but not all of it.
    assert parts.training_seconds(parts.predictor_end + 3) == pytest.approx(training - 3)
    assert parts.training_seconds(parts.limit) > 0
    assert Allotment(60 * minutes, trains=False).predictor_end == parts.end


def test_more_time_means_more_trials_and_longer_ones() -> None:
    short, long = Allotment(60), Allotment(6000)
    assert long.trial_seconds() == pytest.approx(10 * short.trial_seconds())
    assert long.expected_trials == pytest.approx(10 * short.expected_trials, rel=0.1)
    assert short.trial_seconds(2.0) == 2.0
    assert short.trial_seconds(100.0) == short.predictor_end / 2  # else there would be one trial
    assert Allotment(1).trial_seconds() <= Allotment(1).predictor_end / 2


def test_the_training_of_a_trial_without_a_time_has_none_of_its_own() -> None:
    config = trial_training(TrainingConfig(minutes=7.0), 1000, 400, 8, 50)
    assert config.minutes == 0


def test_a_search_with_a_time_needs_one_for_its_trials() -> None:
    with pytest.raises(InputError, match="seconds above 0"):
        SearchSettings(minutes=1.0, seconds=0.0)


# What a trial does in its time.


def test_a_trial_is_validated_at_rungs_and_ends_with_its_time(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_slowly(monkeypatch, clock, lambda _: 0.02)
    begun, validated = clock(), []
    validate = Trainer._validate

    def noted(self: Trainer, record: dict[str, Any]) -> float:
        validated.append(self.budget.used)
        return validate(self, record)

    monkeypatch.setattr(Trainer, "_validate", noted)
    found = run_predictor_trial(task(chain_world(30)), clock)
    assert found["status"] == "done"
    assert len(found["curve"]) == 8
    assert found["curve"] == sorted(found["curve"])
    # An epoch is half of the way between two rungs: so much later one may be seen.
    assert validated == pytest.approx([60 * k / 8 for k in range(1, 9)], abs=4.0)
    assert found["about"]["spent"] == pytest.approx(60, rel=0.05)
    assert clock() - begun == found["seconds"] < 65
    assert found["about"]["queries_per_second"] == pytest.approx(50)


def test_the_learning_rate_of_a_trial_follows_its_time(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_slowly(monkeypatch, clock, lambda _: 0.05)
    rates = []
    step = torch.optim.Adam.step

    def noted(self: torch.optim.Adam, *rest: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *rest)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    assert run_predictor_trial(task(chain_world(30)), clock)["status"] == "done"
    assert rates[0] == pytest.approx(0.01, rel=0.01)
    assert rates[len(rates) // 2] == pytest.approx(0.005, rel=0.2)
    assert rates[-1] < 0.0005


def test_a_warm_up_keeps_its_share_of_a_trial() -> None:
    config = TrainingConfig(epochs=20, warmup_epochs=5)
    found = timed_training(config, 1000, task(chain_world(30)), Pace(0.01, 0.001))
    assert found.warmup_epochs / found.epochs == pytest.approx(1 / 4)
    assert found.minutes == 1


def test_rungs_that_judge_are_validated_also_if_that_takes_long() -> None:
    clock = FakeClock()
    budget = TrialBudget(1.0, clock, rungs=8, judged=judged(8))
    budget.validation_queries, budget.seconds_per_query = 100, 0.15  # 15 of 60 seconds
    due: list[int] = []
    for _ in range(60):
        clock.now += 1
        if budget.is_validation_due(not due):
            due.append(budget.passed)
            budget.reached = budget.passed
            budget.learn(100, 15.0)
    assert due[:2] == [2, 4]
    assert len(due) <= 3
    assert budget.valid_limit(100) == 100  # all trials answer the same queries
    assert (judged(8), judged(4), judged(2), judged(9)) == ([2, 4], [2], [], [2, 4, 8])


def test_a_trial_behind_others_after_the_same_time_is_stopped(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faster configuration has trained more by then: it is judged by the time alone."""
    compute_slowly(monkeypatch, clock, lambda _: 0.02)
    found = run_predictor_trial(task(chain_world(30), limits={"2": 1.0}), clock)
    assert (found["status"], len(found["curve"])) == ("stopped", 2)
    assert found["error"] == "below 1.0000 at rung 2"
    assert found["about"]["hopeless"]
    assert found["about"]["spent"] == pytest.approx(60 / 4, abs=4.0)


def test_a_validation_counts_for_all_rungs_that_it_comes_after(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 24 training queries, one epoch, take two rungs: 60 / 4 seconds.
    compute_slowly(monkeypatch, clock, lambda _: 15 / 24)
    found = run_predictor_trial(
        task(chain_world(30), must_run=True, valid_queries=2, limits={"2": 1.0}), clock
    )
    assert found["error"] == "below 1.0000 at rung 2"
    assert len(found["curve"]) == 2
    assert found["curve"][0] == found["curve"][1]


def test_a_trial_is_broken_off_within_a_validation(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first validation would take ten minutes: that is seen after a batch of it."""
    compute_slowly(monkeypatch, clock, lambda _: 0.02)
    begun = clock()
    data = chain_world(300)
    validate = Trainer._validate

    def suddenly_slow(self: Trainer, record: dict[str, Any]) -> float:
        answer_slowly(monkeypatch, clock, 10.0)
        return validate(self, record)

    monkeypatch.setattr(Trainer, "_validate", suddenly_slow)
    found = run_predictor_trial(task(data, valid_queries=60), clock)
    assert (found["status"], found["value"]) == ("infeasible", None)
    assert found["error"] == "longer than 72 s, before its first validation"
    # 16 queries, a batch, take 160 seconds.
    assert clock() - begun < 72 + 160


def test_a_trial_without_a_time_is_broken_off_within_a_validation(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial.Watcher, "_clock", lambda self: clock())
    answer_slowly(monkeypatch, clock, 10.0)
    begun = clock()
    whole = task(chain_world(300), queries=128, valid_queries=60)
    found = run_predictor_trial({k: v for k, v in whole.items() if k not in ("timed", "must_run")})
    assert found["status"] == "failed"
    assert found["error"] == "longer than 60 s, before its first validation"
    assert clock() - begun == 160  # one batch of four


# Configurations that are too slow.


def test_what_cannot_come_to_anything_is_not_started(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_slowly(monkeypatch, clock, lambda _: 0.5)

    def never(self: Trainer) -> None:
        raise AssertionError("it was trained")

    monkeypatch.setattr(Trainer, "run", never)
    begun = clock()
    found = run_predictor_trial(task(chain_world(30)), clock)
    assert (found["status"], found["value"], found["curve"]) == ("infeasible", None, [])
    # 256 queries and three validations of 8, half a second each.
    assert "256 training queries and 3 validations would take 140.0 s" in found["error"]
    assert clock() - begun <= 5  # which took a twelfth of the trial to find out


def test_the_first_trial_runs_also_if_it_is_slow(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_slowly(monkeypatch, clock, lambda _: 0.5)
    found = run_predictor_trial(task(chain_world(30), must_run=True), clock)
    assert found["status"] == "done"
    assert found["about"]["spent"] < 72


def test_a_large_batch_needs_as_many_steps_as_a_small_one() -> None:
    pace = Pace(0.01, 0.001)
    assert Demand(10.0, 16, 100).obstacle(pace) is None
    assert "2,048 training queries" in (Demand(10.0, 128, 100).obstacle(pace) or "")
    assert "3 validations" in (Demand(10.0, 16, 10_000).obstacle(pace) or "")


def test_measuring_a_pace_leaves_everything_as_it_was(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, config = chain_world(30), from_table(SMALL, ["predictor.dropout=0.5"])
    reasoner = build_reasoner(data.graph, config, CPU)
    before = {name: t.clone() for name, t in reasoner.predictor.state_dict().items()}
    generator = torch.get_rng_state()
    # Half a second per call, and a hundredth per query: few queries look slow.
    asked: list[int] = []
    forward = Predictor.forward

    def slow(self: Predictor, batch: Any, *rest: Any, **options: Any) -> Any:
        asked.append(batch.num_queries)
        clock.now += 0.5 + 0.01 * batch.num_queries
        return forward(self, batch, *rest, **options)

    monkeypatch.setattr(Predictor, "forward", slow)
    pace = measure_pace(reasoner, data, config.training, 100.0, clock)
    assert pace == pytest.approx(Pace(0.58 / 8, 0.58 / 8))
    assert asked == [2, 2, 2, 8, 8]
    measure_pace(reasoner, data, config.training, 100.0, clock, lambda pace: True)
    assert asked[5:] == [2, 2, 2]
    measure_pace(reasoner, data, config.training, 10.0, clock)  # more would take too long
    assert asked[8:] == [2, 2, 2]
    for name, tensor in reasoner.predictor.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(p.grad is None for p in reasoner.predictor.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_surrogate_learns_nothing_of_what_was_not_tried() -> None:
    good = Trial("predictor", 0, "done", {"a": 1}, "plan", value=0.5, curve=[0.5])
    slow = Trial("predictor", 1, "infeasible", {"a": 2}, "initial", error="too slow")
    broken = Trial("predictor", 2, "failed", {"a": 3}, "initial", error="out of memory")
    known = known_trials([good, slow, broken])
    assert [one.cost is None for one in known] == [False, True, False]
    assert known[1].values == {"a": 2}  # it is not proposed again
    assert known[2].cost == 1.0
    assert limits([good, slow, broken], 8, 0.5) == {}


# The whole search, by a clock on which only predictors and proposals take time.

SPACE = Space(
    {
        "predictor.dim": Choice((2, 4, 8)),
        "training.learning_rate": Range(1e-3, 1e-1, log=True),
        "training.batch_size": Choice((8, 16)),
    },
    {},
)


def slower_when_wide(predictor: Predictor) -> float:
    """Seconds per query; with dimension 8 no trial of 6 seconds comes to anything."""
    return 0.02 if predictor.config.dim < 8 else 0.5


def take_time(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """Let predictors and proposals take time."""
    compute_slowly(monkeypatch, clock, slower_when_wide)

    def proposed(*rest: Any) -> Proposal:
        clock.now += 3
        return propose(*rest)

    for phase in (predictor_phase, sampler_phase):
        monkeypatch.setattr(phase, "propose", proposed)


def timed_settings(minutes: float, **changes: Any) -> SearchSettings:
    return SearchSettings(
        base=from_table(SMALL),
        space=SPACE,
        minutes=minutes,
        seconds=Allotment(60 * minutes).trial_seconds(),
        queries=10**9,
        final_queries=10**9,
        valid_queries=8,
        initial=4,
        tries_base=True,
        is_planned=True,
        **changes,
    )


def searched(
    out: Path, data: Dataset, clock: FakeClock, settings: SearchSettings, **options: Any
) -> bool:
    effort = options.pop("effort", Effort(trials=0, sampler_trials=0))
    return searching.search(data, out, settings, effort, CPU, clock=clock, **options)


def on_disk(directory: Path) -> Dataset:
    data = chain_world(60)
    data.graph.origin = {"source": str(directory), "options": {}}
    return data


def test_a_search_ends_with_its_time(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_smac()
    take_time(monkeypatch, clock)
    data, out, begun = on_disk(tmp_path), tmp_path / "out", clock()
    clock.now += 20  # reading the data
    assert searched(out, data, clock, timed_settings(2), minutes=2, started=begun)
    assert 0.85 * 120 < clock() - begun < 1.1 * 120
    found = summarise(out).as_dict()
    trials = Store(out).trials("predictor")
    assert (found["finished"], found["minutes"]) == (True, 2)
    assert (trials[0].origin, trials[0].status) == ("plan", "done")
    assert trials[0].values["predictor.dim"] == 4
    assert found["infeasible"] == sum(t.values["predictor.dim"] == 8 for t in trials) > 0
    assert all(t.status == "infeasible" for t in trials if t.values["predictor.dim"] == 8)
    assert found["best"]["predictor"]["dim"] < 8
    # Phase 1 has half of the time, of which reading the data took some.
    seconds = timed_settings(2).seconds
    assert all(t.seconds < 1.2 * seconds for t in trials)
    proposing = 3 * (len(trials) - 1 - timed_settings(2).initial)
    assert sum(t.seconds for t in trials) + proposing == pytest.approx(60 - 20, abs=seconds)
    assert found["sampler_trials"] > 1
    assert 20 < found["trained"]["seconds"] < 120 - 60
    # The best is trained with the time that there is, not with all the queries.
    training = found["best"]["training"]
    assert training["minutes"] > 0
    assert training["epochs"] < 10**5
    before = clock()
    assert searched(out, data, clock, timed_settings(2))  # nothing is left to do
    assert clock() == before


def test_a_search_has_the_trials_it_was_given_if_they_fit(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_smac()
    take_time(monkeypatch, clock)
    begun, effort = clock(), Effort(trials=2, sampler_trials=3)
    out = tmp_path / "out"
    assert searched(out, on_disk(tmp_path), clock, timed_settings(2), minutes=2, effort=effort)
    found = summarise(out).as_dict()
    assert (found["trials"], found["sampler_trials"]) == (2, 3)
    assert clock() - begun < 1.1 * 120


def test_a_search_that_was_killed_goes_on_in_the_time_that_is_left(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_smac()
    take_time(monkeypatch, clock)
    data, out, begun = on_disk(tmp_path), tmp_path / "out", clock()

    def dies(*rest: Any, **options: Any) -> Any:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(searching, "train_run", dies)
        with pytest.raises(KilledError):
            searched(out, data, clock, timed_settings(2), minutes=2)
    trials = Store(out).trials("predictor")
    assert searched(out, data, clock, timed_settings(2))
    assert Store(out).trials("predictor") == trials  # the time of phase 1 is used up
    assert clock() - begun < 1.1 * 120
    assert len(summarise(out).sessions) == 2


def test_a_search_killed_after_its_training_does_not_train_again(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_smac()
    take_time(monkeypatch, clock)
    data, out = on_disk(tmp_path), tmp_path / "out"

    def dies(*rest: Any, **options: Any) -> Any:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(searching, "find_sampler", dies)
        with pytest.raises(KilledError):
            searched(out, data, clock, timed_settings(2), minutes=2)
    results = []

    def noted(*rest: Any, **options: Any) -> Any:
        results.append(train_run(*rest, **options))
        return results[-1]

    monkeypatch.setattr(searching, "train_run", noted)
    assert searched(out, data, clock, timed_settings(2))
    assert results[0]["already_finished"]
    assert summarise(out).as_dict()["sampler_trials"] > 1


def test_a_finished_search_goes_on_when_it_is_given_more_time(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_smac()
    take_time(monkeypatch, clock)
    data, out = on_disk(tmp_path), tmp_path / "out"
    assert searched(out, data, clock, timed_settings(2), minutes=2)
    before, begun = summarise(out).as_dict(), clock()
    assert searched(out, data, clock, timed_settings(2), minutes=2)
    after = summarise(out).as_dict()
    assert 0.8 * 120 < clock() - begun < 1.1 * 120
    assert after["trials"] > before["trials"]
    assert after["trained"]["seconds"] > 0
    assert not searched(out, data, clock, timed_settings(2), minutes=0)


def test_a_search_in_which_phase_2_has_no_time_keeps_the_training(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_smac()
    take_time(monkeypatch, clock)
    data, out = on_disk(tmp_path), tmp_path / "out"

    def late(*rest: Any, **options: Any) -> Any:
        result = train_run(*rest, **options)
        clock.now += 60
        return result

    monkeypatch.setattr(searching, "train_run", late)
    assert searched(out, data, clock, timed_settings(2), minutes=2)
    found = summarise(out).as_dict()
    assert (found["sampler_trials"], found["finished"]) == (0, True)
    assert found["trained"]["test"]["mrr"] > 0
    assert "phase_2" not in found


# What a search with a time starts from.


def test_the_plan_is_the_first_trial(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(60))
    begun: list[Any] = []

    def noted(*given: Any, **options: Any) -> None:
        begun.append((given, options))
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "search", noted)
    out, fixed = tmp_path / "out", ("--set", "training.learning_rate=0.02")
    assert run("search", data, "--out", out, "--minutes", 4, *fixed, "--device", "cpu").code == 130
    (_, _, settings, effort, _), options = begun[0]
    assert (effort.trials, effort.sampler_trials) == (0, 0)
    assert (options["minutes"], settings.minutes) == (4, 4)
    assert settings.seconds == pytest.approx(Allotment(240).trial_seconds())
    assert settings.tries_base
    assert settings.is_planned
    # What the plan sets on every graph, and nothing of a course of its own length.
    assert (settings.base.predictor.aggregate, settings.base.predictor.norm) == ("pna", True)
    assert settings.base.training.learning_rate == 0.02
    assert settings.base.training.minutes == 0
    assert settings.base.training.epochs == TrainingConfig().epochs
    assert settings.space.fixed == {"training.learning_rate": 0.02}
    # The user's own configuration goes before the plan.
    config = tmp_path / "own.toml"
    config.write_text("[predictor]\ndim = 32\n[training]\nepochs = 7\n")
    run("search", data, "--out", out, "--minutes", 4, "--config", config, "--device", "cpu")
    settings = begun[1][0][2]
    assert (settings.base.predictor.dim, settings.is_planned) == (32, False)
    assert settings.tries_base
    assert settings.final_queries == 0  # its own epochs


def test_the_full_training_expects_what_fits_beside_its_evaluation() -> None:
    """It has more epochs than fit, and no warning about that."""
    parts = Allotment(600)
    seconds = parts.training_seconds(parts.predictor_end)
    best = Trial("predictor", 0, "done", {}, "plan", about={"queries_per_second": 100.0})

    def planned(base: Config, queries: int) -> SearchSettings:
        return dataclasses.replace(timed_settings(10), base=base, final_queries=queries)

    for changes, share in (([], 0.7), (["factors.dim=8", "factors.time_share=0.2"], 0.5)):
        settings = planned(from_table(SMALL, changes), 10**9)
        training = full_config(settings, best, 1000).training
        assert training.expected_queries == pytest.approx(share * 100 * seconds, abs=2)
        assert training.epochs * queries_per_epoch(training, 1000) > 1.2 * 100 * seconds
    few = planned(from_table(SMALL), 700)
    assert full_config(few, best, 1000).training.expected_queries == 700
    own = planned(from_table(SMALL, ["training.epochs=7"]), 0)
    assert full_config(own, best, 1000).training.expected_queries == 0


def test_a_plan_with_few_layers_is_in_the_space() -> None:
    base = Config()
    flat = dataclasses.replace(base, predictor=dataclasses.replace(base.predictor, num_layers=3))
    assert widened(flat) == {"predictor.num_layers": Range(3, 10)}
    inside = dataclasses.replace(base, predictor=dataclasses.replace(base.predictor, num_layers=5))
    assert widened(inside) == {}


def test_the_plan_is_for_a_time_between_a_trial_and_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from oneshot.training.plan import make_plan

    asked: list[float] = []

    def noted(data: Dataset, minutes: float, *rest: Any) -> Any:
        asked.append(60 * minutes)
        return make_plan(data, minutes, *rest)

    monkeypatch.setattr("oneshot.search.settings.make_plan", noted)
    parts = Allotment(600)
    config, remark = planned_base(chain_world(30), parts, CPU, ["training.valid_limit=9"], 0)
    assert parts.trial_seconds() < asked[0] < parts.training_seconds(parts.predictor_end)
    assert config.training.valid_limit == 9
    assert config.training.query_share == 1.0
    assert "by the plan" in remark


def test_random_searches_do_not_fit_into_a_time(tmp_path: Path, run: Command) -> None:
    needs_smac()
    wrong = run("search", "umls", "--out", tmp_path / "s", "--minutes", 1, "--random", 2)
    assert (wrong.code, "cannot be combined with --minutes" in wrong.err) == (2, True)


@pytest.mark.slow
def test_a_search_of_a_minute_by_the_real_clock(tmp_path: Path) -> None:
    """All phases in a process of its own, which ends in about its time, on a busy machine too."""
    needs_smac()
    data, out = write_world(tmp_path / "data", chain_world(60)), tmp_path / "out"
    begun = time.monotonic()
    process = start(["search", data, "--out", out, "--minutes", 1, "--device", "cpu", "--json"])
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    # The start of Python and one step that takes long on a busy machine come on top.
    assert 30 < time.monotonic() - begun < 120
    found = json.loads(output)
    assert found["finished"]
    assert found["trials"] > 1
    assert found["trained"]["valid"]["mrr"] > 0
    assert Run.open(out / "best").reasoner.predict("link 1", "next")


# Searches of earlier versions.


def test_a_search_begun_before_there_were_times_goes_on(tmp_path: Path, run: Command) -> None:
    """Its store knows neither the new settings nor the new status, and `--minutes` is a slice."""
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(30))
    out = tmp_path / "out"
    run(*arguments(data, out, "--trials", 2, "--sampler-trials", 2, "--no-final"))
    database = sqlite3.connect(out / STORE)
    (text,) = database.execute("SELECT value FROM about WHERE key = 'settings'").fetchone()
    old = {k: v for k, v in json.loads(text).items() if k not in ("minutes", "is_planned")}
    database.execute("UPDATE about SET value = ? WHERE key = 'settings'", (json.dumps(old),))
    (schema,) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'trials'").fetchone()
    assert "'infeasible'" in schema
    database.execute("ALTER TABLE trials RENAME TO newer")
    database.execute(schema.replace(", 'infeasible'", ""))
    database.execute("INSERT INTO trials SELECT * FROM newer")
    database.execute("DROP TABLE newer")
    database.commit()
    database.close()
    none = run("search", "--out", out, "--resume", "--trials", 3, "--minutes", 0, "--json").json
    assert (none["trials"], none["finished"], none["minutes"]) == (2, False, None)
    rest = run("search", "--out", out, "--resume", "--final", "--json").json
    assert (rest["trials"], rest["finished"], rest["sampler_trials"]) == (3, True, 3)


def test_a_trial_that_is_infeasible_is_kept_and_counted(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    store.start("predictor", 0, {}, "initial")
    store.finish("predictor", 0, {"status": "infeasible", "error": "too slow"}, 1.0)
    (found,) = store.trials("predictor")
    assert (found.status, found.is_finished, found.value) == ("infeasible", True, None)
    store.close()
