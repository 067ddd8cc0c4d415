"""Tests of searches that are killed, and of searches with several workers."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.support.commands import Command
from tests.support.samples import chain_world, write_world
from tests.support.searches import arguments, kill_and_resume, needs_smac, start

from oneshot.search.store import STORE, Store


@pytest.mark.slow
def test_a_search_killed_at_ten_random_moments_repeats_and_loses_nothing(tmp_path: Path) -> None:
    """Both phases and the training between them."""
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(30))
    more = ("--trials", 24, "--sampler-trials", 16)
    found = kill_and_resume(data, tmp_path / "out", 10, 0, *more)
    assert (found.repeated, found.lost) == (0, 0)
    assert (found.result["trials"], found.result["sampler_trials"]) == (24, 16)
    assert len(found.trials) == 40
    assert 1 <= sum(t.attempts - 1 for t in found.trials.values()) <= 10


@pytest.mark.slow
def test_a_search_with_two_workers_killed_at_random_moments(tmp_path: Path) -> None:
    needs_smac()
    pytest.importorskip("distributed", reason="the extra `search` is not installed")
    data = write_world(tmp_path / "data", chain_world(30))
    more = ("--trials", 12, "--sampler-trials", 6, "--workers", 2)
    found = kill_and_resume(data, tmp_path / "out", 4, 1, *more)
    assert (found.repeated, found.lost) == (0, 0)
    assert len(found.trials) == 18


def test_a_search_killed_in_a_trial_runs_it_again(tmp_path: Path) -> None:
    """Killed once, and what was left running is run with the configuration that it had."""
    needs_smac()
    data = write_world(tmp_path / "data", chain_world(30))
    out = tmp_path / "out"
    process = start(arguments(data, out, "--trials", 3, "--no-final"))
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
        if (out / STORE).exists() and len(Store(out, create=True).trials("predictor")) >= 2:
            os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = Store(out).trials("predictor")
    process = start(["search", data, "--out", out, "--resume", "--no-final"])
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    after = Store(out).trials("predictor")
    assert all(t.is_finished for t in after)
    assert len(after) == 3
    for old, new in zip(before, after, strict=False):
        assert old.values == new.values
        if old.is_finished:
            assert old == new


@pytest.mark.slow
def test_two_workers_search_together(tmp_path: Path) -> None:
    needs_smac()
    pytest.importorskip("distributed", reason="the extra `search` is not installed")
    data = write_world(tmp_path / "data", chain_world(30))
    more = ("--trials", 4, "--sampler-trials", 3, "--workers", 2, "--json")
    process = start(arguments(data, tmp_path / "out", *more))
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    found = json.loads(output)
    assert (found["trials"], found["failed"], found["sampler_trials"]) == (4, 0, 3)


def test_a_search_on_a_cluster_that_is_there(tmp_path: Path, run: Command) -> None:
    """On a worker with two threads, which runs one trial at a time."""
    needs_smac()
    distributed = pytest.importorskip("distributed", reason="the extra `search` is not installed")
    data = write_world(tmp_path / "data", chain_world(30))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=True, dashboard_address="127.0.0.1:0"
    ) as cluster:
        more = ("--trials", 3, "--sampler-trials", 3, "--dask", cluster.scheduler_address)
        found = run(*arguments(data, tmp_path / "out", *more, "--json")).json
    assert (found["trials"], found["failed"], found["sampler_trials"]) == (3, 0, 3)
