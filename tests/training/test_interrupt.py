"""Tests of Ctrl-C: a training ends, tells what it has learnt, and can be resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.clocks import FakeClock, KilledError, Steps, answer_slowly
from tests.support.commands import Command, listing
from tests.support.damage import contents
from tests.support.samples import SMALL, chain_world, settings, write_world

from oneshot.config import Config, from_table
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.evaluation.evaluate import evaluate
from oneshot.factors import FactorTraining
from oneshot.runs import train as jobs
from oneshot.runs.layout import CONFIG, FACTORS, PREDICTOR
from oneshot.runs.run import Run
from oneshot.runs.tensors import load_tensors
from oneshot.runs.writer import CHECKPOINT
from oneshot.training import final_evaluation
from oneshot.training.interrupt import interrupted
from oneshot.training.steps import Stepper

CPU = torch.device("cpu")
STEPS = ("training.batch_size=8", "training.epochs=4", "predictor.dropout=0.2")


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """As in a terminal; where tests run in the background Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set on disk with a whole run of it."""
    path = tmp_path_factory.mktemp("interrupt")
    write_world(path / "data", chain_world(30))
    jobs.train_run(load(path / "data"), path / "whole", configured(), CPU)
    return path


def configured(*changes: str) -> Config:
    return from_table({}, [*SMALL, *STEPS, *changes])


def interrupt_at(place: Path, run: Path, step: int, *changes: str, **options: Any) -> Any:
    """Train until some step, at which Ctrl-C comes. → the result"""
    steps = Steps(FakeClock())
    return jobs.train_run(
        load(place / "data"),
        run,
        configured(*changes),
        CPU,
        observers=[steps],
        interrupted=lambda: steps.count >= step,
        **options,
    )


def asked_again(run: Path, data: Dataset, split: str) -> float:
    return evaluate(Run(run).reasoner_on(data.graph), data.facts(split), data.known).mrr


# Epochs of 6 steps: in the first, in the second, and at the end of one.
@pytest.mark.parametrize("step", [1, 4, 9, 12])
def test_an_interrupted_training_is_evaluated_and_goes_on(
    place: Path, tmp_path: Path, step: int
) -> None:
    run = tmp_path / "run"
    data = load(place / "data")
    said: list[str] = []
    result = interrupt_at(place, run, step, messages=said.append)
    assert "at most 30 seconds; press Ctrl-C again to exit at once" in said[-1]
    assert (result["stopped"], result["saved"], result["already_finished"]) == (True, True, False)
    assert result["epochs"] == (step - 1) // 6
    state = load_tensors(run / CHECKPOINT)[1]["state"]
    assert 6 * state["epoch"] + state["asked"] / 8 == step
    for split in ("valid", "test"):
        assert result[split]["queries"] == result[split]["of"] == 10
        assert result[split]["mrr"] == pytest.approx(asked_again(run, data, split))
    assert 0 < result["baseline_mrr"] < 1
    # What answers is the best validated state, or the latest if there is none.
    tensors, _ = load_tensors(run / CHECKPOINT)
    part = "best." if step > 6 else "predictor."
    for name, tensor in load_tensors(run / "predictor.safetensors")[0].items():
        assert torch.equal(tensor, tensors[part + name])
    assert Run(run).reasoner_on(data.graph).predict("link 1", "next")[0].probability is not None
    # It is not finished: it goes on, to the same end.
    assert not (run / "result.json").exists()
    final = jobs.train_run(data, run, configured(), CPU, resume=True)
    assert not final["already_finished"]
    assert listing(run) == listing(place / "whole")
    expected, found = (load_tensors(path / CHECKPOINT)[0] for path in (place / "whole", run))
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
    whole = json.loads((place / "whole" / "result.json").read_text())
    assert final["test"]["mrr"] == whole["test"]["mrr"]


def test_the_evaluation_after_ctrl_c_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = chain_world(300)
    data.graph.origin = {"source": "nowhere", "options": {}}
    clock = FakeClock()
    answer_slowly(monkeypatch, clock, 0.5)
    steps = Steps(clock)
    config = configured("training.valid_batch_size=4", "training.epochs=9")
    said: list[str] = []
    result = jobs.train_run(
        data,
        tmp_path,
        config,
        CPU,
        observers=[steps],
        interrupted=lambda: steps.count >= 3,
        clock=clock,
        messages=said.append,
    )
    assert 20 < clock() - (1000 + 3) <= 33
    assert result["stopped"]
    assert 0 < result["valid"]["queries"] < result["test"]["queries"] < 100
    assert said[-1].endswith(f"for all of them: oneshot evaluate {tmp_path}")


def test_an_interrupted_evaluation_is_done_again_by_who_resumes(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the training, while its result is computed."""
    came: list[bool] = []
    original = final_evaluation.evaluate

    def noted(*arguments: Any, **options: Any) -> Any:
        came.append(True)
        return original(*arguments, **options)

    monkeypatch.setattr(final_evaluation, "evaluate", noted)
    data = load(place / "data")
    result = jobs.train_run(data, tmp_path, configured(), CPU, interrupted=lambda: len(came) >= 2)
    assert (result["stopped"], result["saved"], result["epochs"]) == (True, True, 4)
    assert result["test"]["queries"] == 10
    assert not (tmp_path / "result.json").exists()
    final = jobs.train_run(data, tmp_path, configured(), CPU, resume=True)
    assert (final["already_finished"], final["epochs"]) == (False, 4)
    assert json.loads((tmp_path / "result.json").read_text())["test"] == final["test"]


def test_sigterm_is_not_followed_by_an_evaluation(place: Path, tmp_path: Path) -> None:
    said: list[str] = []
    result = interrupt_at(place, tmp_path, 3, should_stop=lambda: False, messages=said.append)
    assert result["test"] is not None
    assert "evaluating the best epoch" in said[-1]
    said.clear()
    shutil.rmtree(tmp_path)
    # Also if both come: who sends it gives little time.
    steps = Steps(FakeClock())
    result = jobs.train_run(
        load(place / "data"),
        tmp_path,
        configured(),
        CPU,
        observers=[steps],
        interrupted=lambda: steps.count >= 3,
        should_stop=lambda: steps.count >= 3,
        messages=said.append,
    )
    assert (result["stopped"], result["saved"], result["valid"]) == (True, True, None)
    assert [line for line in said if "stopped in epoch" in line] == said
    assert Run(tmp_path).reasoner_on(load(place / "data").graph).predict("link 1", "next")


def test_an_older_run_stays_if_its_successor_is_interrupted_early(
    place: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "whole", run)
    before = contents(run)
    result = interrupt_at(place, run, 3, "predictor.dim=4")
    assert (result["stopped"], result["saved"], result["test"]) == (True, False, None)
    assert contents(run) == before
    result = interrupt_at(place, run, 8, "predictor.dim=4")
    assert (result["stopped"], result["saved"], result["epochs"]) == (True, True, 1)
    assert result["test"]["queries"] == 10


# Before the first step: the factors are fitted first, which may take a third of the time.

FITTED = ("sampler.name=fitted", "predictor.priors=true", "predictor.prior_start=1.0")
FACTORED = ("factors.dim=8", "factors.epochs=4", "training.epochs=2")


class FactorEpochs:
    """Counts the epochs of fitting factors; the process dies in the one with number `ends_at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends_at: int = 0) -> None:
        self.count = 0
        original = FactorTraining._train_epoch

        def counted(training: FactorTraining) -> None:
            self.count += 1
            if self.count == ends_at:
                raise KilledError
            original(training)

        monkeypatch.setattr(FactorTraining, "_train_epoch", counted)


@pytest.fixture(scope="module")
def factored(place: Path) -> Path:
    """A whole run with factors."""
    jobs.train_run(load(place / "data"), place / "factored", configured(*FITTED, *FACTORED), CPU)
    return place / "factored"


def assert_same_end(run: Path, whole: Path) -> None:
    for name in (PREDICTOR, FACTORS):
        expected, found = (load_tensors(path / name)[0] for path in (whole, run))
        assert expected.keys() == found.keys()
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_training_that_is_interrupted_while_factors_are_fitted_is_usable(
    place: Path, factored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run, said = load(place / "data"), tmp_path / "run", list[str]()
    config = configured(*FITTED, *FACTORED)
    with monkeypatch.context() as patch:
        epochs = FactorEpochs(patch)
        result = jobs.train_run(
            data, run, config, CPU, interrupted=lambda: epochs.count >= 2, messages=said.append
        )
    assert (result["stopped"], result["saved"], result["epochs"]) == (True, True, 0)
    assert result["test"]["queries"] == 10
    assert about_stop(said) == [f"{run}: stopped in epoch 1 after 0 of 48 queries"]
    reasoner = Run(run).reasoner_on(data.graph)
    assert reasoner.factors is not None
    assert evaluate(reasoner, data.test, data.known).mrr == pytest.approx(result["test"]["mrr"])
    # Resumed, it fits them completely and ends as if nothing had happened.
    said.clear()
    final = jobs.train_run(data, run, config, CPU, resume=True, messages=said.append)
    assert (final["already_finished"], final["epochs"]) == (False, 2)
    assert f"{run / FACTORS}: fitting was interrupted; fitted again" in said
    assert_same_end(run, factored)


def about_stop(said: list[str]) -> list[str]:
    return [line for line in said if ": stopped" in line]


def test_the_score_of_the_sampler_is_enough_to_be_usable(place: Path, tmp_path: Path) -> None:
    data, run = load(place / "data"), tmp_path / "run"
    config = configured(*FITTED)
    result = jobs.train_run(data, run, config, CPU, interrupted=lambda: True)
    assert (result["saved"], result["epochs"], result["factor_weight"]) == (True, 0, None)
    assert result["test"]["mrr"] > 0
    assert Run(run).reasoner_on(data.graph).predict("link 1", "next")
    jobs.train_run(data, run, config, CPU, resume=True)
    jobs.train_run(data, tmp_path / "whole", config, CPU)
    for name in (PREDICTOR, CHECKPOINT):
        expected, found = (load_tensors(tmp_path / d / name)[0] for d in ("whole", "run"))
        assert all(torch.equal(tensor, found[part]) for part, tensor in expected.items())
    # Without such a score, parameters before the first step answer at random.
    plain = configured("sampler.name=fitted", "predictor.priors=true")
    result = jobs.train_run(data, tmp_path / "plain", plain, CPU, interrupted=lambda: True)
    assert (result["stopped"], result["saved"]) == (True, False)


def test_a_training_that_is_killed_while_factors_are_fitted_can_be_resumed(
    place: Path, factored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = load(place / "data"), tmp_path / "run"
    config = configured(*FITTED, *FACTORED)
    with monkeypatch.context() as patch:
        FactorEpochs(patch, ends_at=2)
        with pytest.raises(KilledError):
            jobs.train_run(data, run, config, CPU)
    assert Run.open(run).config == config
    assert not (run / FACTORS).exists()
    assert jobs.train_run(data, run, config, CPU, resume=True)["epochs"] == 2
    assert_same_end(run, factored)


def test_factors_are_not_fitted_again_if_the_process_is_killed_after_them(
    place: Path, factored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = load(place / "data"), tmp_path / "run"
    config = configured(*FITTED, *FACTORED)

    def killed() -> None:
        steps = Steps(FakeClock(), ends_at=2)
        with pytest.raises(KilledError):
            jobs.train_run(data, run, config, CPU, observers=[steps])
        assert not (run / CHECKPOINT).exists()
        assert (run / FACTORS).is_file()

    killed()
    with monkeypatch.context() as patch:
        epochs = FactorEpochs(patch)
        jobs.train_run(data, run, config, CPU, resume=True)
    assert epochs.count == 0
    assert_same_end(run, factored)
    # Another training does not inherit them.
    shutil.rmtree(run)
    killed()
    jobs.train_run(data, run, configured("training.epochs=1"), CPU)
    assert not (run / FACTORS).exists()
    assert Run(run).reasoner_on(data.graph).factors is None
    shutil.rmtree(run)
    killed()
    other = configured(*FITTED, *FACTORED, "factors.dim=4")
    with monkeypatch.context() as patch:
        epochs = FactorEpochs(patch)
        jobs.train_run(data, run, other, CPU, resume=True)
    assert epochs.count > 0


# The signal itself.


class Presses:
    """Ctrl-C at chosen calls of a function."""

    def __init__(self, act: Any, *calls: int) -> None:
        self.act, self.calls, self.seen = act, calls, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.seen += 1
        if self.seen in self.calls:
            os.kill(os.getpid(), signal.SIGINT)
        return self.act(*arguments, **options)


def press(monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, *calls: int) -> None:
    presses = Presses(getattr(holder, name), *calls)
    monkeypatch.setattr(holder, name, lambda *a, **o: presses(*a, **o))


def test_one_ctrl_c_ends_well_and_a_second_one_at_once(
    run: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    changes = [part for setting in STEPS for part in ("--set", setting)]
    command = ["train", place / "data", "--out", out, *settings(), *changes]
    with monkeypatch.context() as patch:
        press(patch, Stepper, "_step", 4)
        told = run(*command, "--json")
    assert told.code == 0, told.err
    result = json.loads(told.out)
    assert result["stopped"] is True
    assert result["valid"]["mrr"] > 0
    assert result["test"]["mrr"] > 0
    assert f"resume with: oneshot train {place / 'data'} --out {out} --resume" in told.err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # A second one in the evaluation: the run is as it was left by the first.
    with monkeypatch.context() as patch:
        press(patch, Stepper, "_step", 2)
        press(patch, final_evaluation, "evaluate", 2)
        told = run(*command, "--resume", "--json")
    assert (told.code, told.out) == (130, "")
    state = load_tensors(out / CHECKPOINT)[1]["state"]
    assert (state["epoch"], state["asked"]) == (0, 6 * 8)
    assert Run(out).reasoner.predict("link 1", "next")
    assert run(*command, "--resume").code == 0
    expected, found = (load_tensors(path / CHECKPOINT)[0] for path in (place / "whole", out))
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_the_result_of_an_interrupted_training_is_shown(
    run: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [part for setting in STEPS for part in ("--set", setting)]
    press(monkeypatch, Stepper, "_step", 8)
    told = run("train", place / "data", "--out", tmp_path / "run", *settings(), *changes)
    assert told.code == 0
    assert "data, test split" in told.out
    assert "mrr of the frequency baseline" in told.out
    assert "stopped in epoch 2 after 16 of 48 queries" in told.err


def test_before_anything_is_learnt_there_is_nothing_to_tell(
    run: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press(monkeypatch, jobs, "build_reasoner", 1)
    told = run("train", place / "data", "--out", tmp_path / "run", *settings())
    assert (told.code, told.out) == (1, "")
    assert "nothing was saved" in told.err


def test_ctrl_c_before_the_first_step_of_a_planned_training(
    run: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    changes = [part for one in (*SMALL, *FITTED, *FACTORED) for part in ("--set", one)]
    command = ["train", place / "data", "--out", out, "--no-plan", *changes]
    with monkeypatch.context() as patch:
        press(patch, FactorTraining, "_train_epoch", 2)
        told = run(*command, "--json")
    assert told.code == 0, told.err
    result = json.loads(told.out)
    assert (result["stopped"], result["saved"], result["epochs"]) == (True, True, 0)
    assert result["test"]["mrr"] > 0
    assert "resume with: oneshot train" in told.err
    assert run("predict", out, "link 1", "next").code == 0
    assert (out / CONFIG).is_file()
    told = run("train", place / "data", "--out", out, "--resume", "--json")
    assert json.loads(told.out)["epochs"] == 2


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupted() as came:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert not came()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with interrupted() as came:
        signal.raise_signal(signal.SIGINT)
        assert came()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen = []

    def elsewhere() -> None:  # only the main thread can listen
        with interrupted() as came:
            seen.append((came(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [(False, signal.default_int_handler)]


def test_ctrl_c_in_a_real_process(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = settings("training.epochs=100000", "training.batch_size=8")
    command = [sys.executable, "-m", "oneshot", "train", place / "data", "--out", out, "--json"]
    process = subprocess.Popen(
        [*map(str, command), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (out / CHECKPOINT).is_file() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert result["stopped"] is True
    assert result["test"]["queries"] == 10
    assert "Traceback" not in errors
    assert Run(out).reasoner.predict("link 1", "next")
