"""Faults while a command runs: two writers, jumping clocks, SIGTERM, no memory, no numbers."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.clocks import FakeClock, Steps
from tests.support.commands import Command, listing
from tests.support.damage import SEVERAL_STEPS, contents, write_base
from tests.support.samples import settings, small_config
from torch import Tensor

from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.errors import DivergedError, InputError, OneshotError
from oneshot.reasoner.build import build_reasoner
from oneshot.runs import train as jobs
from oneshot.runs.run import Run
from oneshot.runs.tensors import load_tensors
from oneshot.runs.writer import CHECKPOINT
from oneshot.subgraph import SubgraphBatch
from oneshot.training import steps as stepping
from oneshot.training.cuda_graph import Prepared
from oneshot.training.interrupt import StopTraining, ended_by_sigterm
from oneshot.training.losses import query_losses
from oneshot.training.observer import Observer
from oneshot.training.padding import Capacity
from oneshot.training.steps import Stepper
from oneshot.training.time_budget import TimeBudget
from oneshot.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("faults"))


# Two writers.


def test_two_processes_do_not_write_one_run(base: Path, tmp_path: Path, run: Command) -> None:
    out = tmp_path / "run"
    shutil.copytree(base / "run", out)
    before = contents(out)
    code = (
        "import sys, time; from pathlib import Path; from oneshot.runs.run import Run\n"
        "with Run(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        train = ["train", base / "data", "--out", out, *settings("training.epochs=1")]
        for command in (train, [*train[:4], "--resume"]):
            told = run(*command)
            assert told.code == 2
            assert f"error: {out}: another process is writing this run; wait for it" in told.err
        with pytest.raises(InputError, match="another process is writing this run"):
            Run.open(out).reasoner.save(out)
        assert contents(out) == before
        assert run("predict", out, "link 1", "next", "--json").code == 0  # who reads is welcome
    finally:
        holder.kill()  # as the system does when memory is short
        holder.communicate()
    assert run(*train).code == 0


def test_the_successor_of_a_run_is_held_too(base: Path, tmp_path: Path) -> None:
    """A run that takes the place of an older one is as protected as that was."""
    out = tmp_path / "run"
    shutil.copytree(base / "run", out)
    data = Run.open(out).data
    seen = []

    class Look(Observer):
        def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
            seen.append(record["epoch"])
            with (
                pytest.raises(InputError, match="another process is writing"),
                Run(out).lock(),
            ):
                pass

    config = small_config("training.epochs=2")
    jobs.train_run(data, out, config, CPU, observers=[Look()])
    assert seen == [1, 2]
    with Run(out).lock():
        pass
    assert listing(tmp_path)[0] == "run"  # nothing is left beside it


def test_of_two_that_begin_a_run_at_once_one_trains(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    build = jobs.build_reasoner

    def other_is_faster(*arguments: Any) -> Any:
        shutil.copytree(base / "run", out)
        return build(*arguments)

    monkeypatch.setattr(jobs, "build_reasoner", other_is_faster)
    config = small_config("training.epochs=2")
    with pytest.raises(InputError, match="another process has started"):
        jobs.train_run(Run.open(base / "run").data, out, config, CPU)
    assert contents(out) == contents(base / "run")


def test_what_a_killed_process_left_beside_a_run_is_removed(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(base / "run", out)
    shutil.copytree(base / "run", tmp_path / ".run.abcd1234")
    (tmp_path / ".run.mine_own").mkdir()
    (tmp_path / ".run.mine_own" / "thesis.doc").write_text("mine")
    config = small_config("training.epochs=1")
    jobs.train_run(Run.open(out).data, out, config, CPU)
    beside = sorted(path.name for path in tmp_path.iterdir())
    assert beside == [".run.mine_own", "run"]


# Clocks.


def test_a_clock_that_jumps_changes_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: generator.uniform(0, 2e9))
    monkeypatch.setattr(time, "time_ns", lambda: int(generator.uniform(0, 2e18)))
    out = tmp_path / "run"
    data = load(base / "data")
    config = small_config(*SEVERAL_STEPS)
    stop = Stopper(3)
    assert jobs.train_run(data, out, config, CPU, should_stop=stop)["stopped"]
    for path in out.rglob("*"):  # files from the future, and from before they were
        os.utime(path, (generator.choice((0, 4e9)),) * 2)
    result = jobs.train_run(data, out, config, CPU, resume=True)
    assert result["epochs"] == 2
    assert 0 < result["seconds"] < 600
    expected = load_tensors(base / "run" / "predictor.safetensors")[0]
    for name, tensor in load_tensors(out / "predictor.safetensors")[0].items():
        assert torch.equal(tensor, expected[name])


# SIGTERM.


class Stopper:
    """Says that a training should stop when it is asked for the n-th time."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def trained(run: Path) -> tuple[bytes, dict[str, Tensor], list[Any]]:
    """What two trainings must agree on."""
    tensors, about = load_tensors(run / CHECKPOINT)
    history = about["state"]["history"]
    for record in history:
        del record["seconds"], record["queries_per_second"]
    return (run / "predictor.safetensors").read_bytes(), tensors, history


def test_a_training_stopped_anywhere_resumes_as_if_uninterrupted(
    base: Path, tmp_path: Path
) -> None:
    data = load(base / "data")
    config = small_config(*SEVERAL_STEPS)
    expected = trained(base / "run")
    places = set()
    for count in (1, 2, 3, 5, 6, 7, 8, 9, 11):
        run = tmp_path / str(count)
        result = jobs.train_run(data, run, config, CPU, should_stop=Stopper(count))
        assert result["stopped"]
        if (run / CHECKPOINT).is_file():
            state = load_tensors(run / CHECKPOINT)[1]["state"]
            places.add((state["epoch"], state["asked"]))
        jobs.train_run(data, run, config, CPU, resume=True)
        found = trained(run)
        assert found[0] == expected[0]
        assert all(torch.equal(tensor, expected[1][name]) for name, tensor in found[1].items())
        assert found[2] == expected[2]
    assert len({asked for epoch, asked in places if epoch == 0}) >= 3
    assert any(epoch == 1 and asked for epoch, asked in places)


def test_an_older_run_stays_if_its_successor_is_stopped_early(base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "run", run)
    before = contents(run)
    config = small_config("training.epochs=1", "training.batch_size=8")
    result = jobs.train_run(Run.open(run).data, run, config, CPU, should_stop=Stopper(3))
    assert (result["stopped"], result["saved"], contents(run) == before) == (True, False, True)


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_sigterm_ends_a_training_well(base: Path, tmp_path: Path, run: Command) -> None:
    out = tmp_path / "run"
    more = settings("training.epochs=100000", "training.batch_size=8")
    command = [sys.executable, "-m", "oneshot", "train", base / "data", "--out", out, "--json"]
    process = subprocess.Popen(
        [*map(str, command), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((out / CHECKPOINT).is_file)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert json.loads(output)["stopped"] is True
    said = [line for line in errors.splitlines() if "stopped in epoch" in line]
    assert len(said) == 1
    assert f"resume with: oneshot train {base / 'data'} --out {out} --resume" in errors
    state = load_tensors(out / CHECKPOINT)[1]["state"]
    assert state["epoch"] == json.loads(output)["epochs"] >= 1
    # A finished one has nothing to listen to: the signal means what it always means.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_ends_a_block_that_cleans_up() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ended_by_sigterm():
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        with pytest.raises(StopTraining):
            handler(signal.SIGTERM, None)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_sigterm_ends_several_processes_well(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = settings("training.epochs=100000", "training.batch_size=8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "oneshot"]
    process = subprocess.Popen(
        [*launch, "train", str(base / "data"), "--out", str(out), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((out / CHECKPOINT).is_file)
    process.send_signal(signal.SIGTERM)  # torchrun passes it on to all
    _, errors = process.communicate(timeout=300)
    assert errors.count("stopped in epoch") == 1, errors
    done = load_tensors(out / CHECKPOINT)[1]["state"]
    assert done["asked"] > 0 or done["epoch"] > 0
    config = Run(out).config
    result = jobs.train_run(load(base / "data"), out, config, CPU, True, should_stop=Stopper(30))
    assert result["stopped"]
    assert load_tensors(out / CHECKPOINT)[1]["state"]["epoch"] > done["epoch"]


# Memory and losses.


def test_running_out_of_memory_is_told(
    base: Path, tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oneshot.predictor import Predictor

    forward = Predictor.forward

    def short(self: Predictor, batch: SubgraphBatch, *more: Any) -> Tensor:
        if self.training and batch.num_queries > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch, *more)

    monkeypatch.setattr(Predictor, "forward", short)
    config = settings("training.epochs=1", "training.batch_size=16")
    told = run("train", base / "data", "--out", tmp_path / "run", *config)
    assert told.code == 0
    assert "micro-batch of 16 queries; training continues with 8" in told.err
    assert "micro-batch of 8 queries; training continues with 4" in told.err


class PoisonedStep:
    """Makes a parameter not a number in one step; the loss follows in the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self.step, self.seen = step, 0
        optimize = Stepper._optimize

        def act(stepper: Stepper) -> None:
            optimize(stepper)
            self.seen += 1
            if self.seen == self.step:
                with torch.no_grad():
                    next(iter(stepper.predictor.parameters())).fill_(torch.nan)

        monkeypatch.setattr(Stepper, "_optimize", act)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_epoch(
    base: Path, tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    data: Dataset = load(base / "data")
    out = tmp_path / "run"
    opened = Run.open(base / "run")
    stepper = Stepper(opened.reasoner, data, opened.config.training)
    steps = stepper.steps_per_epoch
    assert steps >= 4
    config = settings(*SEVERAL_STEPS)
    # In the middle of an epoch, and in its last step, after which there is no loss to show it.
    for poisoned, said in (
        (steps + 2, "the loss is not finite (epoch 2, step 3): lower training."),
        (2 * steps, "not finite"),
    ):
        shutil.rmtree(out, ignore_errors=True)
        with monkeypatch.context() as patch:
            PoisonedStep(patch, poisoned)
            told = run("train", base / "data", "--out", out, *config)
        assert told.code == 2
        last = told.err.strip().splitlines()[-1]
        assert said in last
        assert f"{out} keeps epoch 1, the last valid one" in last
        assert load_tensors(out / CHECKPOINT)[1]["state"]["epoch"] == 1
        assert Run.open(out).reasoner.predict("link 1", "next")
        # It goes on from there, to the same end.
        assert run("train", base / "data", "--out", out, "--resume").code == 0
        assert trained(out)[0] == trained(base / "run")[0]
    PoisonedStep(monkeypatch, 1)
    with pytest.raises(OneshotError, match="nothing was saved"):
        jobs.train_run(data, tmp_path / "new", Run(base / "run").config, CPU)


class Recorder:
    """Steps as a GPU records them, computed on a processor; out of memory when it is told to be.

    `fails_at`: the step before which there is no memory any more, by what asks for it.
    """

    def __init__(self, stepper: Stepper, fails_at: int | None) -> None:
        self.stepper, self.fails_at, self.played = stepper, fails_at, 0
        self.is_released = False

    def release(self) -> None:
        self.is_released = True

    def reserve(self, block: list[Prepared]) -> None:
        if self.fails_at is not None and self.played >= self.fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def play(self, prepared: Prepared) -> Tensor:
        self.reserve([prepared])
        self.played += 1
        stepper = self.stepper
        stepper.optimizer.zero_grad(set_to_none=True)
        scores = stepper.predictor(prepared.batch)
        losses = query_losses(stepper.config, scores, prepared.batch, prepared.targets)
        (losses.sum() / stepper.config.batch_size).backward()
        return losses.detach().sum()


def recorded_training(
    base: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int | None, said: list[str]
) -> Trainer:
    """A trainer whose whole batches are recorded, three at a time."""
    monkeypatch.setattr(stepping, "ahead", lambda blocks, device: blocks)
    monkeypatch.setattr(stepping, "_SAMPLED_QUERIES", 24)
    nothing = Capacity(0, 0, (0,))  # of memory, which is none of ours
    monkeypatch.setattr(
        stepping, "sizes_of", lambda predictor, whole, parts: [nothing] * len(parts)
    )
    data, config = load(base / "data"), Run(base / "run").config
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reasoner = build_reasoner(data.graph, config)
    trainer = Trainer(reasoner, data, config.training, messages=said.append)
    trainer.stepper.recorder = Recorder(trainer.stepper, fails_at)  # type: ignore[assignment]
    return trainer


@pytest.mark.parametrize("fails_at", [0, 1, 2, 3, 4, 6])
def test_recorded_steps_without_memory_go_on_one_by_one(
    base: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    said: list[str] = []
    expected = recorded_training(base, monkeypatch, None, said).run().history
    assert said == []
    short = recorded_training(base, monkeypatch, fails_at, said)
    found = short.run().history
    assert short.stepper.recorder is None
    assert said == ["out of GPU memory; training continues without CUDA graphs"]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["covered"] == theirs["covered"]


def test_recorded_steps_end_when_the_time_is_used_up(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that are launched together count as one: the time is looked at after all of them."""
    expected = recorded_training(base, monkeypatch, None, []).run().history
    trainer = recorded_training(base, monkeypatch, None, [])
    clock = FakeClock()
    steps = Steps(clock, 25.0)
    trainer.budget = TimeBudget(1.0, clock)
    state = trainer.run([steps])
    assert steps.count == 2
    assert (state.epoch, state.out_of_time, state.finished) == (1, 1.0, True)
    asked, whole = state.history[0]["queries"], expected[0]["queries"]
    assert (asked, asked < whole, "valid" in state.history[0]) == (8 + 24, True, True)
    recorder = trainer.stepper.recorder
    assert isinstance(recorder, Recorder)
    assert recorder.played == asked // 8
    # The evaluation has the memory of the steps.
    assert recorder.is_released


def test_a_recorded_training_that_diverges_says_where(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = recorded_training(base, monkeypatch, None, [])
    PoisonedStep(monkeypatch, 2)
    with pytest.raises(DivergedError, match=r"\(epoch 1, step 3\)"):
        trainer.run()
