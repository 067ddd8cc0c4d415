"""Tests of resuming: a training that was stopped ends like one that was not."""

import json
import math
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
from safetensors.torch import save_file
from tests.support.commands import Command, listing
from tests.support.samples import chain_world, settings, small_config, trained_run, write_world
from torch import Tensor

from oneshot.config import from_table
from oneshot.errors import OneshotError
from oneshot.runs import train as jobs
from oneshot.runs.tensors import load_tensors, save_tensors
from oneshot.runs.writer import CHECKPOINT
from oneshot.training.observer import Observer
from oneshot.training.trainer import Trainer

CPU = torch.device("cpu")
# Everything that a checkpoint has to carry over.
CHANGES = (
    "training.epochs=5",
    "training.schedule=plateau",
    "training.plateau_patience=2",
    "training.learning_rate=0.05",
    "training.weight_decay=0.001",
    "predictor.dropout=0.2",
)
# Twelve short epochs, to be hit in the middle of writing.
KILLED = (*CHANGES, "training.epochs=12", "sampler.entity_ratio=0.2")
FILES = [
    "calibration.json",
    "checkpoint",
    "checkpoint/state.safetensors",
    "config.toml",
    "graph.json",
    "metrics.jsonl",
    "predictor.safetensors",
    "relations.txt",
    "result.json",
]


class StoppedError(Exception):
    """What stops a training in these tests."""


class StopAfter(Observer):
    """An observer that stops the training after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        if record["epoch"] == self.epoch:
            raise StoppedError


def outcome(run: Path) -> tuple[bytes, dict[str, Tensor], dict[str, Any], list[Any]]:
    """What two runs must agree on: everything but times."""
    tensors, about = load_tensors(run / CHECKPOINT)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["epoch"] for record in records] == list(range(1, len(records) + 1))
    assert records == about["state"].pop("history")
    about["state"].pop("seconds")
    for record in records:
        del record["seconds"], record["queries_per_second"]
    return (run / "predictor.safetensors").read_bytes(), tensors, about, records


def assert_same(one: Path, other: Path) -> None:
    left, right = outcome(one), outcome(other)
    assert left[0] == right[0]
    assert left[1].keys() == right[1].keys()
    for name, tensor in left[1].items():
        assert torch.equal(tensor, right[1][name]), name
    assert left[2:] == right[2:]
    results = [json.loads((run / "result.json").read_text()) for run in (one, other)]
    for result in results:
        result.pop("run"), result.pop("seconds")
        for split in ("valid", "test"):
            result[split].pop("seconds")
    assert results[0] == results[1]
    assert listing(one) == listing(other) == FILES


@pytest.mark.parametrize(
    "changes",
    [(), ("training.average=0.8", "training.split='leave_out'")],
    ids=["plain", "average"],
)
def test_a_training_stopped_after_any_epoch_ends_the_same(
    tmp_path: Path, changes: tuple[str, ...]
) -> None:
    data = chain_world(30)
    data.graph.origin = {"source": "nowhere", "options": {}}
    config = small_config(*CHANGES, *changes)
    jobs.train_run(data, tmp_path / "whole", config, CPU)
    for epoch in range(1, 6) if not changes else (2,):
        run = tmp_path / f"stopped-{epoch}"
        with pytest.raises(StoppedError):
            jobs.train_run(data, run, config, CPU, observers=[StopAfter(epoch)])
        assert not (run / "result.json").exists()
        result = jobs.train_run(data, run, config, CPU, resume=True)
        assert not result["already_finished"]
        assert_same(tmp_path / "whole", run)
    # Stopped again and again.
    run = tmp_path / "often"
    for epoch in range(1, 5):
        with pytest.raises(StoppedError):
            jobs.train_run(data, run, config, CPU, resume=True, observers=[StopAfter(epoch)])
    jobs.train_run(data, run, config, CPU, resume=True)
    assert_same(tmp_path / "whole", run)


@pytest.mark.parametrize("moment", ["predictor", "metrics", "checkpoint", "calibration"])
def test_a_training_stopped_between_two_files_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The parameters are newer than the checkpoint, or the record is: both are written again."""
    data = chain_world(30)
    data.graph.origin = {"source": "nowhere", "options": {}}
    config = small_config("training.epochs=2")
    jobs.train_run(data, tmp_path / "whole", config, CPU)
    names = {
        "predictor": ("predictor.safetensors", 2),
        "metrics": ("metrics.jsonl", 2),
        "checkpoint": ("state.safetensors", 2),
        "calibration": ("calibration.json", 1),
    }
    wanted, times = names[moment]
    replace = Path.replace
    seen = []

    def stopping(self: Path, target: Path) -> Path:
        done = replace(self, target)
        if target.name == wanted:
            seen.append(target)
            if len(seen) == times:
                raise StoppedError
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopping)
        with pytest.raises(StoppedError):
            jobs.train_run(data, tmp_path / "stopped", config, CPU)
    jobs.train_run(data, tmp_path / "stopped", config, CPU, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "stopped")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set on disk, with a whole run of it, trained as those that are killed are.

    In a process of its own: other tests leave other numbers of threads in this one, and the last
    bits of a sum depend on them.
    """
    path = tmp_path_factory.mktemp("kill")
    write_world(path / "data", chain_world(40))
    assert start(path / "data", path / "whole").wait() == 0
    return path


def start(data: Path, run: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "oneshot", "train", str(data), "--out", str(run), *more]
    return subprocess.Popen(
        [*command, *settings(*KILLED)],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def signs_of_life(run: Path) -> list[object]:
    """What changes as soon as a training has written something."""
    if not run.exists():
        return []
    names = listing(run)
    checkpoint = run / CHECKPOINT
    return [names, checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0]


def kill_and_resume(world: Path, run: Path, delays: list[float]) -> int:
    """Kill -9 a training some time after it began to write, again and again, then let it end.

    → how often it was hit
    """
    hits = 0
    for delay in delays:
        before = signs_of_life(run)
        process = start(world / "data", run, "--resume")
        while process.poll() is None and signs_of_life(run) == before:
            time.sleep(0.001)
        time.sleep(delay)
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(world / "data", run, "--resume").wait() == 0
    assert_same(world / "whole", run)
    return hits


def test_a_killed_training_ends_the_same(world: Path, tmp_path: Path) -> None:
    delays = [0.0, random.random() * 0.1, random.random() * 0.5]
    assert kill_and_resume(world, tmp_path / "run", delays) >= 1


@pytest.mark.slow
def test_a_training_killed_at_twenty_moments_ends_the_same(world: Path, tmp_path: Path) -> None:
    hits = 0
    for number in range(7):
        delays = [random.random() * longest for longest in (0.1, 0.3, 1)]
        hits += kill_and_resume(world, tmp_path / str(number), delays)
    assert hits >= 14


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_world(tmp_path / "data", chain_world(30))


def test_temporary_files_of_a_killed_process_are_no_hindrance(
    run: Command, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "littered"
    out.mkdir()
    (out / ".config.toml.abcd1234.toml").write_text("form")  # killed while it wrote the marker
    arguments = ["train", data, "--out", out, "--resume", *settings()]
    assert run(*arguments).code == 0
    litter = [
        out / ".metrics.jsonl.a1b2c3d4.jsonl",
        out / ".predictor.safetensors.a_b2c3d4.safetensors",
        out / "checkpoint" / ".state.safetensors.00000000.safetensors",
    ]
    for path in litter:
        path.write_text("torn")
    (out / ".graph.abcd1234").mkdir()
    (out / "result.json").unlink()
    assert run(*arguments).code == 0
    assert listing(out) == FILES
    (out / ".mine.abcd1234").write_text("a file of somebody else")
    result = run(*arguments)
    assert result.code == 2
    assert "contains '.mine.abcd1234'" in result.err


def test_resuming_says_what_it_finds(run: Command, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "said"
    arguments = ["train", data, "--out", out, "--resume", "--json", *settings()]
    first = run(*arguments)  # without a checkpoint it starts afresh
    assert first.json["already_finished"] is False
    again = run(*arguments)
    assert again.json == {**first.json, "already_finished": True}
    told = run(*arguments[:5], *settings())
    assert (told.code, "this run is already finished" in told.err) == (0, True)


def test_resuming_with_something_else_is_an_error_and_loses_nothing(
    run: Command, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = ["train", data, "--out", out, "--resume"]
    assert run(*arguments, *settings()).code == 0
    (out / "result.json").unlink()
    before = {name: (out / name).read_bytes() for name in FILES[2:-1]}

    def refused(message: str, *command: object) -> None:
        result = run(*command)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert message in result.err
        assert before == {name: (out / name).read_bytes() for name in before}

    refused("with another configuration", *arguments, *settings("predictor.dim=4"))
    refused("unknown option training.epoch;", *arguments, "--set", "training.epoch=3")
    other = write_world(tmp_path / "other", chain_world(20))
    refused("the graph has changed", "train", other, "--out", out, "--resume", *settings())
    # Not even without --resume, before it is sure that training can start.
    refused("unknown sampler 'prr'", *arguments[:4], "--set", "sampler.name=prr")
    refused("restart must be between", *arguments[:4], "--set", "sampler.restart=2")
    checkpoint = out / CHECKPOINT
    checkpoint.write_bytes(before["checkpoint/state.safetensors"][:100])
    before["checkpoint/state.safetensors"] = checkpoint.read_bytes()
    refused("not a readable safetensors file", *arguments, *settings())


def test_other_errors_are_not_taken_for_a_missing_checkpoint(tmp_path: Path) -> None:
    save_tensors(tmp_path / CHECKPOINT, {"x": torch.zeros(1)}, {})
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "graph.json").write_text('{"fingerprint": ""}')
    with pytest.raises(OneshotError, match="not a checkpoint of oneshot"):
        jobs.train_run(chain_world(30), tmp_path, from_table({}), CPU, resume=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set on disk with a small finished run of it."""
    path = tmp_path_factory.mktemp("base")
    write_world(path / "data", chain_world(20))
    trained_run(path / "data", path / "run", "training.epochs=1")
    return path


@pytest.fixture
def copied(base: Path, tmp_path: Path) -> Path:
    """A copy of the run, without its result."""
    shutil.copytree(base / "run", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    return tmp_path / "run"


def changed(about: dict[str, Any], place: str, value: object) -> None:
    *way, last = place.split(".")
    for name in way:
        about = about[name]
    if value is None:
        del about[last]
    else:
        about[last] = value


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("schedule", None, "schedule.plateau_factor"),
        ("schedule", 3, "schedule.plateau_factor"),
        ("schedule.bad_epochs", "x", "schedule.bad_epochs"),
        ("schedule.plateau_factor", math.nan, "schedule.plateau_factor"),
        ("micro_batch", None, "micro_batch"),
        ("micro_batch", "x", "micro_batch"),
        ("micro_batch", 0, "micro_batch"),
        ("micro_batch", 2.5, "micro_batch"),
        ("state", [], "state"),
        ("state.epoch", "x", "state.epoch"),
        ("state.epoch", None, "state.epoch"),
        ("state.epoch", -1, "state.epoch"),
        ("state.epoch", 7, "state.epoch"),
        ("state.best_epoch", 7, "state.best_epoch"),
        ("state.best_mrr", math.nan, "state.best_mrr"),
        ("state.finished", "no", "state.finished"),
        ("state.history", "x", "state.history"),
        ("state.history", [3], "state.history"),
        ("state.more", 3, "state.more"),
    ],
)
def test_a_damaged_state_is_named_and_loses_nothing(
    run: Command, base: Path, copied: Path, place: str, value: object, message: str
) -> None:
    tensors, about = load_tensors(copied / CHECKPOINT)
    changed(about, place, value)
    save_tensors(copied / CHECKPOINT, tensors, about)
    check_refused(run, base, copied, f"({message})")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("best.readout.weight", None, "the tensor readout.weight is missing in the file"),
        ("best.strange", torch.zeros(1), "the tensor strange is [1] in the file"),
        ("predictor.readout.weight", torch.zeros(2), "the tensor readout.weight is"),
        ("optimizer.0.exp_avg", torch.zeros(2), "optimizer.0.exp_avg [2] does not fit"),
        ("optimizer.0.step", torch.zeros(2), "optimizer.0.step [2] does not fit"),
        ("optimizer.0.exp_avg", None, "some tensors optimizer.0 are missing"),
        ("optimizer.99.step", torch.zeros(()), "optimizer.99.step [] does not fit"),
        ("optimizer.x.step", torch.zeros(()), "optimizer.x.step [] does not fit"),
        ("optimizer.1.2.3", torch.zeros(()), "optimizer.1.2.3 [] does not fit"),
        ("odd", torch.zeros(1), "(the tensor odd)"),
    ],
)
def test_damaged_tensors_are_named_and_lose_nothing(
    run: Command, base: Path, copied: Path, name: str, tensor: Tensor | None, message: str
) -> None:
    tensors, about = load_tensors(copied / CHECKPOINT)
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    save_tensors(copied / CHECKPOINT, tensors, about)
    check_refused(run, base, copied, message)


def check_refused(run: Command, base: Path, out: Path, message: str) -> None:
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    result = run("train", base / "data", "--out", out, "--resume")
    assert (result.code, result.err.count("\n")) == (2, 1), result.err
    assert message in result.err
    assert str(out / CHECKPOINT) in result.err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_metadata_of_a_checkpoint_may_be_anything(
    run: Command, base: Path, copied: Path
) -> None:
    tensors, _ = load_tensors(copied / CHECKPOINT)
    for about in ("[" * 100_000, '{"x": 1' + "0" * 5000 + "}", "[]"):
        save_file(tensors, copied / CHECKPOINT, metadata={"about": about})
        check_refused(run, base, copied, "state.safetensors: not ")


@pytest.mark.parametrize("content", ["{}", "", "[]", '{"run": 1, "valid": {}, "test": 3}', None])
def test_a_broken_result_is_made_again(
    run: Command, base: Path, copied: Path, content: str
) -> None:
    if content is None:
        shutil.copy(base / "run" / "result.json", copied)
        (copied / "calibration.json").write_text("{}")
    else:
        (copied / "result.json").write_text(content)
    result = run("train", base / "data", "--out", copied, "--resume", "--json").json
    assert result["already_finished"] is False
    whole = json.loads((base / "run" / "result.json").read_text())
    assert result["test"]["mrr"] == whole["test"]["mrr"]
    assert json.loads((copied / "result.json").read_text())["valid"]["mrr"] == whole["valid"]["mrr"]


@pytest.mark.parametrize("name", ["predictor.safetensors", "relations.txt", "metrics.jsonl"])
@pytest.mark.parametrize("finished", [True, False])
def test_what_is_broken_in_a_run_comes_back_from_its_checkpoint(
    run: Command, base: Path, copied: Path, name: str, finished: bool
) -> None:
    if finished:
        shutil.copy(base / "run" / "result.json", copied)
    for damage in (b"torn", None):
        if damage is None:
            (copied / name).unlink()
        elif name != "metrics.jsonl":
            (copied / name).write_bytes(damage)
        else:
            continue
        result = run("train", base / "data", "--out", copied, "--resume")
        assert result.code == 0
        assert f"{copied / name} was missing or damaged; restored" in result.err
        assert (copied / name).read_bytes() == (base / "run" / name).read_bytes()
    assert run("evaluate", copied).code == 0


@pytest.mark.parametrize("damage", [b"torn", None])
def test_a_damaged_sampler_is_fitted_again(
    run: Command, data: Path, tmp_path: Path, damage: bytes | None
) -> None:
    changes = settings("training.epochs=1", "sampler.name=fitted")
    command = ["train", data, "--out", tmp_path / "run", *changes]
    whole = run(*command, "--json").json
    file = tmp_path / "run" / "sampler.safetensors"
    before = file.read_bytes()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
        refused = run("evaluate", tmp_path / "run")
        assert (refused.code, refused.err.count(str(file))) == (2, 1)
    again = run(*command, "--resume", "--json")
    assert f"{file} was missing or damaged; fitted again" in again.err
    assert not again.json["already_finished"]
    assert again.json["test"]["mrr"] == whole["test"]["mrr"]
    assert file.read_bytes() == before
    assert run(*command, "--resume", "--json").json["already_finished"]


def test_resuming_takes_the_configuration_of_the_run(
    run: Command, base: Path, copied: Path
) -> None:
    config = (copied / "config.toml").read_text()
    assert run("train", base / "data", "--out", copied, "--resume").code == 0
    again = run("train", base / "data", "--out", copied, "--resume", "--json")
    assert again.json["already_finished"] is True
    assert (copied / "config.toml").read_text() == config
    refused = run("train", base / "data", "--out", copied, "--resume", "--seed", 5)
    assert refused.code == 2
    assert "another configuration; resume it without --config and --set" in refused.err


def test_training_says_what_becomes_of_an_older_run(run: Command, base: Path, copied: Path) -> None:
    command = ["train", base / "data", "--out", copied, *settings("training.epochs=1")]
    assert f"{copied} contains an older run, which is replaced after" in run(*command).err
    fresh = run("train", base / "data", "--out", copied.parent / "new", "--resume", *command[4:])
    assert "there is no checkpoint to resume from; training starts from scratch" in fresh.err
    assert "older run" not in fresh.err
