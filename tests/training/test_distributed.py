"""Tests of training in several processes: the same curve as one process with their batches."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.commands import listing
from tests.support.samples import chain_world, settings, write_world

from oneshot.runs.tensors import load_tensors
from oneshot.runs.writer import CHECKPOINT
from oneshot.system.distributed import Team

LINUX = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"
)


def train(
    data: Path, run: Path, processes: int, batch_size: int, *changes: str
) -> subprocess.CompletedProcess[str]:
    """Train in some processes, each with batches of its own."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = ["-m", "oneshot", "train", str(data), "--out", str(run), "--json", "--device", "cpu"]
    options = settings(f"training.batch_size={batch_size}", "training.valid_batch_size=32")
    options += [part for change in changes for part in ("--set", change)]
    return subprocess.run(
        [sys.executable, *(start if processes > 1 else []), *command, *options],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )


def begin(
    data: Path, run: Path, processes: int, *changes: str, restarts: int = 0
) -> subprocess.Popen[str]:
    """Begin or resume a training in some processes."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    start += [f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    command = ["-m", "oneshot", "train", str(data), "--out", str(run), "--json", "--resume"]
    options = settings("training.batch_size=10", "training.valid_batch_size=32")
    options += [part for change in changes for part in ("--set", change)]
    return subprocess.Popen(
        [sys.executable, *start, *command, "--device", "cpu", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for_epochs(run: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if (run / "metrics.jsonl").is_file() and len(curve(run)) >= count:
            return
        time.sleep(0.02)
    raise AssertionError("the training does not begin")


def workers(run: Path) -> dict[int, int]:
    """The processes that train into a run, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            given = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [part[5:] for part in environment if part.startswith(b"RANK=")]
        if str(run).encode() in given and ranks:
            found[int(ranks[0])] = int(entry.name)
    return found


def kill_all(training: subprocess.Popen[str], run: Path) -> None:
    """`torchrun`, and its processes, which outlive it when it gets no chance to end them."""
    training.kill()
    for process in workers(run).values():
        os.kill(process, signal.SIGKILL)
    training.communicate()


def curve(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same_training(one: Path, many: Path) -> None:
    for left, right in zip(curve(one), curve(many), strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-5)
        assert left["covered"] == right["covered"]
        assert left["learning_rate"] == right["learning_rate"]
        assert left["valid"]["mrr"] == pytest.approx(right["valid"]["mrr"], rel=1e-4)
    expected, _ = load_tensors(one / CHECKPOINT)
    found, _ = load_tensors(many / CHECKPOINT)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    assert listing(one) == listing(many)


def test_two_processes_train_like_one_with_the_double_batch(tmp_path: Path) -> None:
    data = write_world(tmp_path / "data", chain_world(30))
    # 48 queries an epoch: the last step has 8, of which each process has 4 in two parts.
    changes = "training.accumulate=2", "training.clip=0.5"
    alone = train(data, tmp_path / "one", 1, 20, *changes)
    together = train(data, tmp_path / "two", 2, 10, *changes)
    assert (alone.returncode, together.returncode) == (0, 0), alone.stderr + together.stderr
    assert_same_training(tmp_path / "one", tmp_path / "two")
    # Only the first process speaks.
    results = json.loads(alone.stdout), json.loads(together.stdout)
    assert results[1]["test"]["mrr"] == pytest.approx(results[0]["test"]["mrr"], rel=1e-4)
    assert together.stderr.count("epoch 1/3: loss") == 1
    assert "destroy_process_group" not in together.stderr


@pytest.mark.slow
def test_a_process_without_queries_takes_part(tmp_path: Path) -> None:
    """Three processes with two queries in the last step; stopped and resumed."""
    data = write_world(tmp_path / "data", chain_world(31))
    steps = "training.fact_ratio=0.7", "training.accumulate=1"
    alone = train(data, tmp_path / "one", 1, 12, *steps)
    together = train(data, tmp_path / "three", 3, 4, *steps)
    assert (alone.returncode, together.returncode) == (0, 0), alone.stderr + together.stderr
    assert 2 * (len(chain_world(31).train) - int(0.7 * len(chain_world(31).train))) % 12 == 2
    assert_same_training(tmp_path / "one", tmp_path / "three")


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("later", [1, 3])
def test_a_training_is_resumed_by_another_number_of_processes(tmp_path: Path, later: int) -> None:
    data = write_world(tmp_path / "data", chain_world(30))
    run, changes = tmp_path / "run", ("training.epochs=40",)
    first = begin(data, run, 2, *changes)
    wait_for_epochs(run, 2)
    kill_all(first, run)
    done = curve(run)
    assert len(done) < 40
    second = begin(data, run, later, *changes)
    out, err = second.communicate(timeout=600)
    assert second.returncode == 0, err
    assert [record["epoch"] for record in curve(run)] == list(range(1, 41))
    # The latest epoch may have been noted down without a checkpoint, and is then trained again.
    assert curve(run)[: len(done) - 1] == done[:-1]
    assert json.loads(out)["epochs"] == 40


@pytest.mark.slow
@LINUX
def test_a_process_that_dies_is_started_again(tmp_path: Path) -> None:
    data = write_world(tmp_path / "data", chain_world(30))
    whole, broken, changes = tmp_path / "whole", tmp_path / "broken", ("training.epochs=40",)
    undisturbed = begin(data, whole, 2, *changes)
    undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0
    disturbed = begin(data, broken, 2, *changes, restarts=2)
    wait_for_epochs(broken, 3)
    os.kill(workers(broken)[1], signal.SIGKILL)
    _, err = disturbed.communicate(timeout=600)
    assert disturbed.returncode == 0, err
    assert_same_training(whole, broken)


def test_one_process_is_a_team_of_its_own() -> None:
    team = Team(torch.device("cpu"))
    assert (team.rank, team.size, team.is_first) == (0, 1, True)
    assert team.sum(torch.tensor([2.0])).tolist() == [2.0]
    assert team.dealt(3).tolist() == [0, 1, 2]
    assert team.gathered(torch.tensor([4, 5]), 2).tolist() == [4, 5]


def test_rows_of_several_processes_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes and seven rows: the first has three of them, the others two."""
    rows = torch.arange(14).reshape(7, 2)
    teams = [Team(torch.device("cpu")) for _ in range(3)]
    for rank, team in enumerate(teams):
        team.rank, team.size = rank, 3
    shares = [rows[team.dealt(7)] for team in teams]
    assert [len(share) for share in shares] == [3, 2, 2]

    def all_gather(parts: list[torch.Tensor], mine: torch.Tensor) -> None:
        for part, share in zip(parts, shares, strict=True):
            part.zero_()
            part[: len(share)] = share

    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    for team, share in zip(teams, shares, strict=True):
        assert team.gathered(share, 7).equal(rows)
