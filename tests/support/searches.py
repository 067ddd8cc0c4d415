"""What the tests of the search share: small searches, killed searches, a known surface."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oneshot.errors import InputError
from oneshot.search.propose import Known, initial_design, propose, random_proposal
from oneshot.search.search import stored_settings
from oneshot.search.space import phase_1_space
from oneshot.search.store import STORE, Store, Trial
from oneshot.search.workers import Workers

SPACE = """
[predictor]
num_layers = { low = 1, high = 3 }
dim = [2, 4, 8]
attention_dim = [2, 4]
[training]
batch_size = [16, 32]
"""
"""A space whose trials take a moment."""


def needs_smac() -> None:
    for package in ("smac", "ConfigSpace"):
        pytest.importorskip(package, reason="the extra `search` is not installed")


class Time:
    """Is over after so many trials."""

    def __init__(self, trials: int = 1000) -> None:
        self.left = trials

    @property
    def is_over(self) -> bool:
        return self.left <= 0

    def keep(self) -> None:
        self.left -= 1


@dataclass(frozen=True)
class Sitting:
    """What `run_phase` needs of a session."""

    store: Store
    workers: Workers
    timer: Time


def arguments(data: Path, out: Path, *more: object) -> list[object]:
    space = data.parent / "space.toml"
    space.write_text(SPACE)
    settings = ("--set", "training.epochs=2", "--set", "sampler.entity_ratio=0.5")
    budget = ("--queries", 96, "--valid-queries", 10, "--seconds", 0, "--device", "cpu")
    return ["search", data, "--out", out, *budget, "--space", space, *settings, *more]


def start(command: list[object]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "oneshot", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


@dataclass(frozen=True)
class Killed:
    """What came of a search that was killed again and again, then left to end.

    `moments`: how many trials were finished at each kill. `repeated`, `lost`: finished trials
    that were run again, or were gone, after a kill. `trials`: all, in the end.
    """

    moments: list[int]
    repeated: int
    lost: int
    trials: dict[tuple[str, int], Trial]
    result: dict[str, Any]


def kill_and_resume(data: Path, out: Path, kills: int, seed: int, *more: object) -> Killed:
    """Kill a search with SIGKILL at random moments, resume it each time, then let it end.

    Half of the moments lie within ten seconds of its start, half soon after some trials have ended.
    """
    generator = random.Random(seed)
    finished: dict[tuple[str, int], Trial] = {}
    moments: list[int] = []
    repeated = lost = 0
    while True:
        resume = stored_settings(out) is not None
        command: list[object] = ["search", data, "--out", out, "--resume", *more]
        process = start([*(command if resume else arguments(data, out, *more)), "--json"])
        begun = time.monotonic()
        moment = begun + generator.uniform(0, 10) if len(moments) % 2 else None
        more_trials = generator.randint(1, 6)
        while process.poll() is None and len(moments) < kills:
            time.sleep(0.005)
            if moment is None and len(finished_trials(out)) >= len(finished) + more_trials:
                moment = time.monotonic() + generator.uniform(0, 1)
            if moment is not None and time.monotonic() > moment:
                os.killpg(process.pid, signal.SIGKILL)
                break
        output, errors = process.communicate(timeout=600)
        now = finished_trials(out)
        lost += sum(key not in now for key in finished)
        # A trial that is run again ends at another time.
        repeated += sum(key in now and now[key] != trial for key, trial in finished.items())
        finished = now
        if process.returncode == -signal.SIGKILL:
            moments.append(len(finished))
            continue
        assert process.returncode == 0, errors
        assert len(moments) == kills, "it ended before it could be killed often enough"
        return Killed(moments, repeated, lost, finished, json.loads(output))


def finished_trials(out: Path) -> dict[tuple[str, int], Trial]:
    """The finished trials of all phases."""
    if not (out / STORE).exists():
        return {}
    try:
        store = Store(out)
    except InputError:  # the process was killed while it made the tables
        return {}
    try:
        found = [t for phase in store.phases() for t in store.trials(phase) if t.is_finished]
    finally:
        store.close()
    return {(t.phase, t.number): t for t in found}


LEVEL = 0.86
"""What counts as near the optimum of `response`: one random configuration in about 500."""


def response(values: dict[str, Any]) -> float:
    """A known surface on the space of phase 1: its optimum is 0.9."""
    value = 0.9 - 0.12 * math.log10(values["training.learning_rate"] / 4e-3) ** 2
    value -= 0.004 * (values["predictor.num_layers"] - 6) ** 2
    value -= 0.025 * abs(math.log2(values["predictor.dim"] / 64))
    value -= 0.3 * (values["predictor.dropout"] - 0.1) ** 2
    value -= {"redgnn": 0, "nbfnet": 0.04, "drum": 0.15}[values["predictor.message"]]
    value -= {"sum": 0, "mean": 0.03, "max": 0.05, "pna": 0.01}[values["predictor.aggregate"]]
    value -= {"relu": 0, "identity": 0.02, "tanh": 0.03}[values["predictor.activation"]]
    value -= 0.02 * (not values["predictor.shortcut"]) + 0.02 * (not values["predictor.gate"])
    return value - 0.02 * (values["predictor.readout"] == "dot")


def trials_to_reach(level: float, seed: int, most: int, guided: bool) -> int:
    """How many trials it takes to come to a level; `most` + 1 if it takes more."""
    space = phase_1_space({}, {})
    known: list[Known] = []
    design = initial_design(space, 10, seed) if guided else []
    for number in range(most):
        if not guided:
            found = random_proposal(space, seed, number)
        elif number < len(design):
            found = design[number]
        else:
            found = propose(space, known, seed, number)
        value = response(found.values)
        if value >= level:
            return number + 1
        known.append(Known(found.values, 1 - value))
    return most + 1
