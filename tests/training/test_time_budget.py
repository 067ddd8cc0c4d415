"""Tests of the time budget: a training ends in time, and goes on when there is more."""

import dataclasses
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.clocks import FakeClock, KilledError, Steps, answer_slowly
from tests.support.commands import Command
from tests.support.samples import SMALL, chain_world, settings, write_world
from torch import Tensor

from oneshot.config import Config, TrainingConfig, from_table
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.evaluation.evaluate import drawn_queries, evaluate
from oneshot.ranking import KnownFacts, metrics
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs import train as jobs
from oneshot.runs.run import Run
from oneshot.runs.tensors import load_tensors, save_tensors
from oneshot.runs.writer import CHECKPOINT
from oneshot.system.distributed import Team
from oneshot.training.interrupt import StopTraining
from oneshot.training.observer import Observer
from oneshot.training.schedule import Schedule
from oneshot.training.steps import Stepper
from oneshot.training.time_budget import TimeBudget
from oneshot.training.trainer import Trainer, TrainingState

CPU = torch.device("cpu")
# 48 queries in 6 steps an epoch on a chain of 30.
STEPS = ("training.batch_size=8", "training.epochs=100")
CONSTANT = (*STEPS, "training.schedule=constant", "predictor.dropout=0.2")


def world(links: int = 30) -> Dataset:
    data = chain_world(links)
    data.graph.origin = {"source": "nowhere", "options": {}}
    return data


def configured(*changes: str) -> Config:
    return from_table({}, [*SMALL, *changes])


def trained(
    run: Path,
    config: Config,
    clock: FakeClock,
    steps: Steps | None = None,
    data: Dataset | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train into a run by a clock on which each step takes a second."""
    watching = [steps or Steps(clock)]
    return jobs.train_run(
        data or world(), run, config, CPU, observers=watching, clock=clock, **options
    )


def state_of(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = load_tensors(run / CHECKPOINT)[1]["state"]
    return state


def parameters(run: Path, part: str = "predictor.") -> dict[str, Tensor]:
    """The tensors of a checkpoint, of the latest state unless said otherwise."""
    tensors, _ = load_tensors(run / CHECKPOINT)
    return {name: tensor for name, tensor in tensors.items() if name.startswith(part)}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def losses(run: Path) -> list[tuple[float, float, int]]:
    return [
        (record["loss"], record["covered"], record["queries"])
        for record in state_of(run)["history"]
    ]


# The budget itself.


def test_the_share_of_the_time_leaves_out_what_the_end_needs() -> None:
    clock = FakeClock()
    budget = TimeBudget(2, clock, started=clock() - 10, final_queries=80, validation_queries=20)
    budget.learn(10, 2.0)
    assert budget.reserve == pytest.approx(1.1 * 0.2 * 100 + 1)
    assert (budget.used, budget.left) == (10, 110)
    assert budget.share == pytest.approx(10 / (120 - 23))
    clock.now += 86
    assert not budget.is_over()
    assert budget.is_over(step=4)  # more of it would lie behind the end than before it
    assert not budget.is_over(step=1)
    clock.now += 50
    assert (budget.is_over(), budget.share) == (True, 1.0)
    budget.spent_before = 7
    assert budget.used == 153


def test_a_fifth_of_the_budget_is_the_most_that_evaluation_gets() -> None:
    budget = TimeBudget(1, FakeClock(), final_queries=10**6)
    budget.learn(1, 1.0)
    assert budget.reserve == 12


def test_without_a_budget_the_time_never_ends() -> None:
    clock = FakeClock()
    budget = TimeBudget(0, clock, final_queries=100)
    budget.learn(1, 1.0)
    clock.now += 1e9
    assert not budget.is_limited
    assert (budget.share, budget.is_over(1e9), budget.left) == (0.0, False, math.inf)
    assert budget.valid_limit(10**9) == 10**9


def test_validations_get_their_share() -> None:
    clock = FakeClock()
    budget = TimeBudget(1, clock)
    assert budget.valid_limit(1000) == 1000  # nothing is known yet
    budget.learn(100, 2.0)
    assert budget.valid_limit(1000) == 150  # a twentieth of a minute
    assert budget.valid_limit(20) == 20
    budget.seconds_per_query = 100.0
    assert budget.valid_limit(1000) == 16
    budget.seconds_per_query, budget.validation_queries = 0.1, 10
    clock.now += 11.9
    assert not budget.affords_validation  # 2 s were used, 1 s more would be used, of 11.9
    clock.now += 0.2
    assert budget.affords_validation


@pytest.mark.parametrize("minutes", [-1.0, math.inf, math.nan, 1e7])
def test_a_budget_that_is_none_is_refused(minutes: float) -> None:
    with pytest.raises(InputError, match="minutes must be at"):
        TrainingConfig(minutes=minutes)


def test_the_schedule_follows_the_clock_where_that_is_ahead() -> None:
    schedule = Schedule(TrainingConfig(epochs=10, warmup_epochs=2.0))
    by_epochs = [schedule.factor(epochs) for epochs in (1, 2, 6, 10)]
    schedule.time_share = 0.1
    assert schedule.factor(0) == by_epochs[0]
    assert [schedule.factor(epochs) for epochs in (1, 2, 6, 10)] == by_epochs
    schedule.time_share = 0.6
    assert [schedule.factor(epochs) for epochs in (0, 3, 6, 10)] == [*by_epochs[2:3] * 3, 0]
    schedule.time_share = 1.0
    assert schedule.factor(0) == 0


# Training by it.


def trainer_of(data: Dataset, config: Config, clock: FakeClock) -> Trainer:
    reasoner = build_reasoner(data.graph, config)
    budget = TimeBudget(config.training.minutes, clock)
    return Trainer(reasoner, data, config.training, budget)


def test_a_training_ends_within_an_epoch_when_its_time_is_used_up() -> None:
    clock = FakeClock()
    steps = Steps(clock)
    config = configured(*STEPS, "training.minutes=0.25")
    trainer = trainer_of(world(), config, clock)
    state = trainer.run([steps])
    # 15 s but for 1 s that is kept for writing.
    assert steps.count == 14
    assert [record["queries"] for record in state.history] == [48, 48, 16]
    assert all("valid" in record for record in state.history)
    assert (state.finished, state.out_of_time, state.epoch, state.asked) == (True, 0.25, 3, 0)
    assert state.seconds == 14
    last = state.history[-1]
    assert 0 < last["covered"] <= 1
    assert last["queries_per_second"] == 8
    # The learning rate has gone through its whole course, by the time that was used.
    expected = [0.01 * (1 + math.cos(math.pi * step / 14)) / 2 for step in range(14)]
    assert steps.rates[1:] == pytest.approx(expected[1:])
    kept = state.best_epoch
    assert state.best_mrr == max(record["valid"]["mrr"] for record in state.history)
    assert state.history[kept - 1]["valid"]["mrr"] == state.best_mrr


def test_with_time_enough_the_epochs_decide() -> None:
    outcomes = []
    for minutes in (0, 60):
        clock = FakeClock()
        config = configured("training.epochs=3", f"training.minutes={minutes}")
        trainer = trainer_of(world(), config, clock)
        state = trainer.run([Steps(clock)])
        assert (state.finished, state.out_of_time, state.epoch) == (True, 0.0, 3)
        outcomes.append([record["learning_rate"] for record in state.history])
        outcomes.append([record["loss"] for record in state.history])
    assert outcomes[:2] == outcomes[2:]


def test_one_step_is_made_even_if_there_is_no_time_for_it() -> None:
    clock = FakeClock()
    steps = Steps(clock)
    trainer = trainer_of(world(), configured(*STEPS, "training.minutes=0.1"), clock)
    clock.now += 100
    state = trainer.run([steps])
    assert (steps.count, state.epoch, state.best_epoch, state.finished) == (1, 1, 1, True)


def test_validations_are_fewer_and_smaller_if_they_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    answer_slowly(monkeypatch, clock, 0.5)
    few = "training.query_share=0.1", "training.valid_batch_size=8"
    trainer = trainer_of(world(300), configured(*STEPS, *few, "training.minutes=4"), clock)
    asked: list[int] = []

    class Asked(Observer):
        def on_validation(self, queries: int) -> None:
            asked.append(queries)

    state = trainer.run([Steps(clock), Asked()])
    # A twentieth of four minutes: 12 s, 24 of the 100 queries.
    assert trainer.validation_queries == state.valid_limit == 24
    assert set(asked) == {24}
    queries, _ = trainer.drawn_for_validation()
    assert queries.equal(drawn_queries(trainer.data.valid, 3, 24, 0)[0])
    validated = ["valid" in record for record in state.history]
    assert validated[0]
    assert validated[-1]
    assert not all(validated)
    assert 12 * sum(validated) <= state.seconds / 4 + 12 + 12


class Together(Team):
    """One of two processes, which are threads here, each with its own clock."""

    def __init__(self, rank: int, meeting: "Meeting") -> None:
        self.rank, self.size, self.meeting = rank, 2, meeting

    def sum(self, values: Tensor) -> Tensor:
        return sum(self.meeting.exchanged(self.rank, values), torch.zeros(()))  # type: ignore[return-value]

    def gathered(self, mine: Tensor, count: int) -> Tensor:
        found = mine.new_empty(count, *mine.shape[1:])
        for rank, part in enumerate(self.meeting.exchanged(self.rank, mine)):
            found[rank::2] = part
        return found


class Meeting:
    """Where two threads hand each other tensors; it fails if one of them does not come."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=30)
        self._brought: list[Any] = [None, None]

    def exchanged(self, rank: int, value: Tensor) -> list[Tensor]:
        self._brought[rank] = value.clone()
        self._barrier.wait()
        found = list(self._brought)
        self._barrier.wait()
        return found


def test_processes_with_different_clocks_stop_at_the_same_step() -> None:
    meeting = Meeting()
    found: dict[int, tuple[TrainingState, Steps]] = {}
    errors: list[BaseException] = []
    kept: list[tuple[int, float]] = []

    class Keeper(Observer):
        def on_checkpoint(self, trainer: Trainer) -> None:
            kept.append((trainer.team.rank, trainer.state.loss))

    def work(rank: int) -> None:
        clock = FakeClock()
        # The clock of the second process runs three times as fast.
        steps = Steps(clock, 30.0 * (1 + 2 * rank))
        trainer = trainer_of(world(), configured(*STEPS, "training.minutes=8"), clock)
        trainer.stepper.team = Together(rank, meeting)
        try:
            found[rank] = trainer.run([steps, Keeper()]), steps
        except BaseException as error:
            errors.append(error)
            meeting._barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    (first, steps), (second, others) = found[0], found[1]
    assert steps.count == others.count == 16  # of 30 s each, in 8 minutes
    assert steps.rates == others.rates
    for record in (*first.history, *second.history):
        del record["seconds"], record["queries_per_second"]
    assert first.history == second.history
    # Both keep a checkpoint at the same steps; what the epoch has come to is with the first.
    assert len(kept) == 2 * len([rank for rank, _ in kept if rank == 0])
    assert all(loss == 0 if rank else loss > 0 for rank, loss in kept)


# Into a run.


def test_the_whole_command_stays_within_its_time_and_says_what_was_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, data = FakeClock(), world(300)
    # Some answers that occur with their relation in training, and some that do not.
    data = dataclasses.replace(data, test=torch.cat([data.test[:25], data.train[:25]]))
    answer_slowly(monkeypatch, clock, 1.0)
    config = configured(*STEPS, "training.minutes=5", "training.valid_batch_size=4")
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, seed=7))
    started = clock()
    clock.now += 20  # to read the data
    said: list[str] = []
    result = trained(
        tmp_path / "run", config, clock, data=data, started=started, messages=said.append
    )
    used = clock() - started
    assert 0.9 * 300 < used <= 1.05 * 300
    assert state_of(tmp_path / "run")["out_of_time"] == 5
    for split in ("valid", "test"):
        report = result[split]
        assert (report["of"], report["queries"] < 100) == (100, True)
    assert result["test"]["queries"] > result["valid"]["queries"] >= 4
    counts = [f"{result[split]['queries']} of 100 {split} queries" for split in ("valid", "test")]
    assert f"only {counts[0]} and {counts[1]} were evaluated (random sample)" in said[-1]
    assert f"for all of them: oneshot evaluate {tmp_path / 'run'}" in said[-1]
    # The sample is the one that a limit draws with the seed; the baseline is asked the same.
    asked = result["test"]["queries"]
    reasoner = Run(tmp_path / "run").reasoner_on(data.graph)
    again = evaluate(reasoner, data.test, data.known, limit=asked, seed=7)
    assert (again.queries, again.of) == (asked, 100)
    assert again.mrr == pytest.approx(result["test"]["mrr"])
    assert result["baseline_mrr"] == pytest.approx(counted_mrr(data, asked, 7))
    assert result["baseline_mrr"] != pytest.approx(counted_mrr(data, 100, 7))
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["queries"] < 100


def counted_mrr(data: Dataset, limit: int, seed: int) -> float:
    """MRR of the frequency baseline, counted entity by entity."""
    queries, answers = drawn_queries(data.test, 3, limit, seed)
    known = {tuple(fact) for fact in data.known.tolist()}
    ranks = []
    for (entity, asked), answer in zip(queries.tolist(), answers.tolist(), strict=True):
        counts = [0] * data.graph.num_entities
        for head, relation, tail in data.train.tolist():
            if relation == asked % 3:
                counts[tail if asked < 3 else head] += 1
        rivals = [
            counts[other]
            for other in range(len(counts))
            if other != answer
            and ((entity, asked, other) if asked < 3 else (other, asked - 3, entity)) not in known
        ]
        higher = sum(count > counts[answer] for count in rivals)
        ranks.append(1 + higher + sum(count == counts[answer] for count in rivals) / 2)
    return metrics(torch.tensor(ranks)).mrr


def test_with_time_enough_everything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    answer_slowly(monkeypatch, clock, 0.01)
    config = configured(*STEPS, "training.minutes=1")
    started = clock()
    said: list[str] = []
    result = trained(tmp_path / "run", config, clock, started=started, messages=said.append)
    assert 0.9 * 60 < clock() - started <= 1.05 * 60
    for split in ("valid", "test"):
        assert result[split]["queries"] == result[split]["of"] == 10
    assert not [line for line in said if "for lack of time" in line]
    plain = jobs.train_run(world(), tmp_path / "plain", configured(), CPU)
    assert plain["test"]["of"] == 10


@pytest.mark.parametrize("ends_at", [1, 4, 6, 9])
def test_a_killed_training_with_a_constant_rate_ends_the_same(tmp_path: Path, ends_at: int) -> None:
    """It is told to stop, or dies and loses what came after the last checkpoint."""
    config = configured(*CONSTANT, "training.minutes=0.25")
    clock = FakeClock()
    trained(tmp_path / "whole", config, clock)
    clock = FakeClock()
    stop = Steps(clock)
    # Asked once before an epoch, after each step, and in each of two batches of a validation.
    told = trained(
        tmp_path / "told", config, clock, stop, should_stop=lambda: stop.count >= ends_at
    )
    assert told["stopped"]
    assert state_of(tmp_path / "told")["seconds"] == ends_at
    clock.now += 10_000  # between two sessions time does not count
    result = trained(tmp_path / "told", config, clock, resume=True)
    assert result["seconds"] == 14
    assert_equal(parameters(tmp_path / "told", ""), parameters(tmp_path / "whole", ""))
    assert losses(tmp_path / "told") == losses(tmp_path / "whole")
    # Killed: what was done since the last epoch is done again, in the time that it had left.
    clock = FakeClock()
    with pytest.raises(KilledError):
        trained(tmp_path / "killed", config, clock, Steps(clock, ends_at=ends_at))
    trained(tmp_path / "killed", config, clock, resume=True)
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert_equal(parameters(tmp_path / "killed", ""), parameters(tmp_path / "whole", ""))


def test_a_resumed_training_goes_on_with_the_schedule_of_the_time(tmp_path: Path) -> None:
    config = configured(*STEPS, "training.minutes=0.25")
    clock = FakeClock()
    stop = Steps(clock)
    trained(tmp_path, config, clock, stop, should_stop=lambda: stop.count >= 7)
    clock.now += 10_000
    rest = Steps(clock)
    trained(tmp_path, config, clock, rest, resume=True)
    whole = [0.01 * (1 + math.cos(math.pi * step / 14)) / 2 for step in range(14)]
    assert rest.rates == pytest.approx(whole[7:])


def test_a_run_whose_time_was_used_up_goes_on_with_more(tmp_path: Path) -> None:
    short, long = (configured(*CONSTANT, f"training.minutes={m}") for m in (0.25, 0.5))
    clock = FakeClock()
    trained(tmp_path / "whole", long, clock)
    run = tmp_path / "run"
    first = trained(run, short, clock)
    assert not first["already_finished"]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    # With the same or less there is nothing to do, and nothing is changed.
    for config in (short, configured(*CONSTANT, "training.minutes=0.1")):
        again = trained(run, config, clock, resume=True)
        assert again == {**first, "already_finished": True}
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    # With more it goes on within the epoch that was broken off.
    steps = Steps(clock)
    more = trained(run, long, clock, steps, resume=True)
    assert (more["already_finished"], steps.count, more["epochs"]) == (False, 15, 5)
    assert Run(run).config == long
    assert_equal(parameters(run), parameters(tmp_path / "whole"))
    found, expected = losses(run), losses(tmp_path / "whole")
    assert [queries for _, _, queries in found] == [48, 48, 48, 48, 40]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs)
    assert json.loads((run / "result.json").read_text())["epochs"] == 5
    # And with no limit to the end of its epochs.
    endless = configured(*CONSTANT, "training.epochs=6")
    with pytest.raises(InputError, match=r"only training\.minutes and training\.workers may"):
        trained(run, endless, clock, resume=True)


def test_a_run_that_goes_on_has_no_result_until_it_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    trained(tmp_path, configured(*CONSTANT, "training.minutes=0.25"), clock)
    long = configured(*CONSTANT, "training.minutes=0.5")
    with pytest.raises(KilledError):
        trained(tmp_path, long, clock, Steps(clock, ends_at=2), resume=True)
    assert not (tmp_path / "result.json").exists()
    assert not (tmp_path / "calibration.json").exists()
    assert Run(tmp_path).reasoner_on(world().graph).predict("link 1", "next")
    # Killed before its first checkpoint, it goes on all the same.
    result = trained(tmp_path, long, clock, resume=True)
    assert (result["already_finished"], result["epochs"]) == (False, 5)
    limitless = dataclasses.replace(long.training, minutes=0.0)
    with pytest.raises(KilledError):
        trained(
            tmp_path,
            dataclasses.replace(long, training=limitless),
            clock,
            Steps(clock, ends_at=20),
            resume=True,
        )
    assert state_of(tmp_path)["epoch"] == 8  # 29 steps before, and 20 now, of 6 an epoch


def test_a_run_killed_in_its_evaluation_is_evaluated_in_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(*CONSTANT, "training.minutes=0.25")
    clock = FakeClock()
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise KilledError

        patch.setattr(jobs.FinalEvaluation, "run", die)
        with pytest.raises(KilledError):
            trained(tmp_path, config, clock)
    steps = Steps(clock)
    result = trained(tmp_path, config, clock, steps, resume=True)
    assert (steps.count, result["already_finished"], result["test"]["queries"]) == (0, False, 10)


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    config = configured(*CONSTANT, "training.epochs=3")
    clock = FakeClock()
    stop = Steps(clock)
    trained(tmp_path, config, clock, stop, should_stop=lambda: stop.count >= 8)
    tensors, about = load_tensors(tmp_path / CHECKPOINT)
    del about["state"]["out_of_time"], about["state"]["valid_limit"]
    save_tensors(tmp_path / CHECKPOINT, tensors, about)
    assert trained(tmp_path, config, clock, resume=True)["epochs"] == 3


# Checkpoints by time.


def test_a_long_epoch_is_kept_once_a_minute(tmp_path: Path) -> None:
    """Steps of 25 s: the third, the sixth and so on end after a minute."""
    config = configured(*CONSTANT, "training.batch_size=4", "training.epochs=2")
    trained(tmp_path / "whole", config, FakeClock())
    for ends_at, kept in ((2, None), (4, 3), (5, 3), (8, 6)):
        run, clock = tmp_path / str(ends_at), FakeClock()
        with pytest.raises(KilledError):
            trained(run, config, clock, Steps(clock, 25, ends_at))
        if kept is None:
            assert not (run / CHECKPOINT).exists()
        else:
            state = state_of(run)
            assert (state["epoch"], state["asked"], state["seconds"]) == (0, 4 * kept, 25 * kept)
            # There was no validation yet: it answers with what it has.
            reasoner = Run(run).reasoner_on(world().graph)
            found = {f"predictor.{k}": v for k, v in reasoner.predictor.state_dict().items()}
            assert_equal(found, parameters(run))
            assert reasoner.predict("link 1", "next")
        steps = Steps(clock)
        trained(run, config, clock, steps, resume=True)
        assert steps.count == 24 - (kept or 0)
        assert_equal(parameters(run, ""), parameters(tmp_path / "whole", ""))
        assert losses(run) == losses(tmp_path / "whole")


def test_a_lost_predictor_comes_back_before_there_is_a_best_one(tmp_path: Path) -> None:
    config = configured(*CONSTANT, "training.batch_size=4")
    clock = FakeClock()
    stop = Steps(clock)
    trained(tmp_path, config, clock, stop, should_stop=lambda: stop.count >= 3)
    before = (tmp_path / "predictor.safetensors").read_bytes()
    (tmp_path / "predictor.safetensors").unlink()
    with pytest.raises(KilledError):
        trained(tmp_path, config, clock, Steps(clock, ends_at=1), resume=True)
    assert (tmp_path / "predictor.safetensors").read_bytes() == before


def test_an_older_run_is_replaced_by_one_that_has_trained_a_minute(tmp_path: Path) -> None:
    jobs.train_run(world(), tmp_path, configured("training.epochs=1"), CPU)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    config = configured(*CONSTANT, "training.batch_size=4")
    clock = FakeClock()
    with pytest.raises(KilledError):
        trained(tmp_path, config, clock, Steps(clock, 25, ends_at=3))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(KilledError):
        trained(tmp_path, config, clock, Steps(clock, 25, ends_at=4))
    assert Run(tmp_path).config == config
    assert state_of(tmp_path)["asked"] == 12
    assert not (tmp_path / "result.json").exists()
    assert Run(tmp_path).reasoner_on(world().graph).predict("link 1", "next")


def test_parameters_that_are_no_numbers_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    optimize = Stepper._optimize

    steps = Steps(clock, 25)

    def act(stepper: Stepper) -> None:
        optimize(stepper)
        if steps.count == 5:
            with torch.no_grad():
                next(iter(stepper.predictor.parameters())).fill_(torch.nan)

    monkeypatch.setattr(Stepper, "_optimize", act)
    config = configured(*CONSTANT, "training.batch_size=4")
    with pytest.raises(Exception, match=r"not finite .* keeps its last checkpoint"):
        trained(tmp_path, config, clock, steps)
    assert state_of(tmp_path)["asked"] == 12
    assert all(bool(tensor.isfinite().all()) for tensor in parameters(tmp_path).values())


# Evaluation in a given time.


def test_an_evaluation_that_is_ended_has_asked_what_a_limit_draws() -> None:
    data = chain_world(60)
    reasoner: Reasoner = build_reasoner(data.graph, configured())
    known = KnownFacts(data.known, 60, 3)
    asked: list[int] = []
    cut = evaluate(
        reasoner,
        data.test,
        known,
        batch_size=3,
        seed=5,
        progress=asked.append,
        until=lambda: sum(asked) >= 7,
    )
    limited = evaluate(reasoner, data.test, known, batch_size=3, seed=5, limit=9)
    assert (cut.queries, cut.of, sum(asked)) == (9, 20, 9)
    assert cut.mrr == pytest.approx(limited.mrr)
    assert cut.coverage == limited.coverage
    assert cut.per_direction.keys() == limited.per_direction.keys()
    whole = evaluate(reasoner, data.test, known, until=lambda: False)
    assert (whole.queries, whole.of) == (20, 20)
    assert whole.mrr == pytest.approx(evaluate(reasoner, data.test, known).mrr)


def test_a_training_can_be_stopped_by_the_library_as_before() -> None:
    """`fit` and `Trainer.run` let KeyboardInterrupt through, and StopTraining."""
    data = world()
    for kind in (KeyboardInterrupt, StopTraining):

        class Ends(Steps):
            def on_step(self, queries: int, loss: float, kind: Any = kind) -> None:
                raise kind

        clock = FakeClock()
        trainer = trainer_of(data, configured(*STEPS), clock)
        with pytest.raises(kind):
            trainer.run([Ends(clock)])


# The command line.


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_wrong_minutes_are_one_line(run: Command, tmp_path: Path, minutes: str) -> None:
    data = write_world(tmp_path / "data", chain_world(20))
    result = run("train", data, "--out", tmp_path / "run", "--minutes", minutes)
    assert (result.code, result.err.count("\n"), result.out) == (2, 1, "")
    assert "--minutes" in result.err
    assert not (tmp_path / "run").exists()


def test_minutes_on_the_command_line(run: Command, tmp_path: Path) -> None:
    data = write_world(tmp_path / "data", chain_world(20))
    out = tmp_path / "run"
    command = ["train", data, "--out", out]
    shape = settings("training.epochs=2")
    first = run(*command, *shape, "--minutes", 50, "--json").json
    assert Run(out).config.training.minutes == 50
    assert {"valid", "test", "baseline_mrr"} <= first.keys()
    # The time of the run stays as it was unless another one is given; others must be the same.
    again = run(*command, *shape, "--resume", "--json").json
    assert again == {**first, "already_finished": True}
    for given in (["--minutes", 60], ["--set", "training.minutes=60"], [*shape, "--minutes", 60]):
        again = run(*command, *given, "--resume", "--json").json
        assert again["already_finished"] is True
    assert Run(out).config.training.minutes == 50
    (out / "result.json").unlink()
    assert run(*command, "--resume", "--minutes", 70).code == 0
    assert Run(out).config.training.minutes == 70
    refused = run(*command, "--resume", "--minutes", 70, "--set", "predictor.dim=4")
    assert refused.code == 2
    assert "only training.minutes and training.workers may differ" in refused.err
    shown = run(*command, "--resume")
    assert "mrr of the frequency baseline" in shown.out
