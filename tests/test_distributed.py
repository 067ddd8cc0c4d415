"""Tests of training in several processes: the same curve as one process with their batches."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import listing
from reasoning import chain_world, settings, write_world

from oneshot.checkpoints import load_tensors
from oneshot.distributed import Team
from oneshot.recording import CHECKPOINT


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
        timeout=120,
    )


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


def test_one_process_is_a_team_of_its_own() -> None:
    team = Team(torch.device("cpu"))
    assert (team.rank, team.size, team.is_first) == (0, 1, True)
    assert team.sum(torch.tensor([2.0])).tolist() == [2.0]
    assert team.share(3.5) == 3.5
