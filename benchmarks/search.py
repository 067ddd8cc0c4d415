"""What the search promises, measured.

    python benchmarks/search.py umls       30 trials, both phases; then 5 random searches beside it
    python benchmarks/search.py surface    trials to a known optimum, against random search
    python benchmarks/search.py kills      kill -9 at 10 random moments, resumed each time
    python benchmarks/search.py workers    one worker of Dask against two
    python benchmarks/search.py WN18RR     on a GPU; in slices: --out DIR --minutes 8, repeated

Each part writes `benchmarks/results/search-PART.json`; WN18RR when it has come to its end.
"""

import argparse
import importlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import RESULTS, find

from oneshot.bench.measuring import hardware
from oneshot.devices import find_device
from oneshot.files import write_json
from oneshot.search.store import Store

# Cheap trials, so that thirty of them take minutes on two cores.
UMLS = shlex.split(
    "--queries 2048 --final-queries 8192 --valid-queries 200 --sampler-queries 400 --seconds 35 "
    "--set training.valid_limit=200"
)
# 135 entities are soon reached, and wide predictors take a processor longer than a trial may.
UMLS_SPACE = """
[predictor]
num_layers = { low = 2, high = 4 }
dim = [16, 32]
"""
# The space is the one that everybody gets; what is set is how long and how exactly is computed.
WN18RR = shlex.split(
    "--queries 49152 --final-queries 393216 --valid-queries 1500 --seconds 35 "
    "--sampler-queries 6068 --sampler-trials 24 "
    "--set training.precision=auto --set training.valid_batch_size=128"
)
SHOWN = shlex.split(
    "target best_value best_trial trials stopped failed seconds session_seconds best importance "
    "random_best random_median trained sampler_trials phase_2 sampler test test_before"
)
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("umls", "surface", "kills", "workers", "WN18RR"))
    parser.add_argument("--out", type=Path, help="directory of the search, kept for resuming")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--minutes", type=float, help="of this session (WN18RR)")
    parser.add_argument("--random", type=int, default=5, help="random searches (umls)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        out = options.out or Path(directory) / "search"
        parts: dict[str, Callable[[], dict[str, Any] | None]] = {
            "umls": lambda: umls(out, options.trials, options.random),
            "WN18RR": lambda: wn18rr(out, options.trials, options.minutes, options.device),
            "surface": surface,
            "kills": lambda: kills(Path(directory)),
            "workers": lambda: workers(Path(directory)),
        }
        value = parts[options.part]()
    if value is None:
        return
    device = find_device(options.device if options.part == "WN18RR" else "cpu")
    load = round(os.getloadavg()[2], 2)
    write_json(
        options.results / f"search-{options.part}.json",
        {**value, "seed": SEED, "load_15_minutes": load, "hardware": hardware(device)},
    )
    print(f"wrote {options.results}/search-{options.part}.json", file=sys.stderr)


def umls(out: Path, trials: int, random: int) -> dict[str, Any]:
    """The whole search, timed; then random searches with the same budget."""
    command = ["umls", "--out", out, "--workers", 2, "--device", "cpu", "--resume"]
    new: list[Any] = []
    if not (out / "trials.sqlite").exists():
        space = out.with_suffix(".toml")
        space.write_text(UMLS_SPACE)
        new = [*UMLS, "--space", space, "--trials", trials]
    started = time.perf_counter()
    found = oneshot(*command, *new)
    wall = time.perf_counter() - started
    if random:
        found = oneshot(*command, "--random", random)
    return {"wall_seconds": wall, **shown(found)}


def wn18rr(out: Path, trials: int, minutes: float | None, device: str) -> dict[str, Any] | None:
    """A session of the search on WN18RR; the result, if it was the last one."""
    command = [find("WN18RR"), "--out", out, "--device", device, "--resume"]
    if not (out / "trials.sqlite").exists():
        command += [*WN18RR, "--trials", trials]
    if minutes is not None:
        command += ["--minutes", minutes]
    found = oneshot(*command)
    if not found["finished"]:
        spent = sum(found["session_seconds"])
        print(f"not finished after {spent:.0f} s in all; run it again", file=sys.stderr)
        return None
    fewer = 1 - found["phase_2"]["after"]["entities"] / found["phase_2"]["before"]["entities"]
    return {"total_seconds": sum(found["session_seconds"]), "fewer": fewer, **shown(found)}


def surface() -> dict[str, Any]:
    """Trials until a known optimum is near, with the surrogate and at random, over 5 seeds."""
    surfaces = from_tests()
    rows = []
    for seed in range(5):
        guided = surfaces.trials_to_reach(surfaces.LEVEL, seed, 100, guided=True)
        random = surfaces.trials_to_reach(surfaces.LEVEL, seed, 2000, guided=False)
        rows.append({"seed": seed, "surrogate": guided, "random": random})
        print(rows[-1], file=sys.stderr)
    return {"level": surfaces.LEVEL, "optimum": 0.9, "rows": rows}


def kills(directory: Path) -> dict[str, Any]:
    """Both phases of a small search, killed at ten random moments."""
    worlds = from_tests("reasoning")
    data = worlds.write_world(directory / "data", worlds.chain_world(30))
    more = ("--trials", 24, "--sampler-trials", 16)
    found = from_tests().kill_and_resume(data, directory / "killed", 10, SEED, *more)
    return {
        "kills": len(found.moments),
        "finished_at_each": found.moments,
        "trials": len(found.trials),
        "run_anew_because_killed_in_them": sum(t.attempts - 1 for t in found.trials.values()),
        "finished_ones_repeated": found.repeated,
        "finished_ones_lost": found.lost,
    }


def workers(directory: Path) -> dict[str, Any]:
    """The same search with one worker and with two, one thread each; start-up not counted.

    Once guided by the surrogate, which proposes other configurations when it knows less, and once
    at random, where the trials are the same; of about equal cost in both.
    """
    found: dict[str, Any] = {}
    with dask_cluster() as cluster:
        for count in (1, 2):
            cluster.scale(count)
            cluster.wait_for_workers(count)
            out = directory / f"workers-{count}"
            command = ["umls", "--out", out, "--trials", 12, "--no-final", "--device", "cpu"]
            command += ["--queries", 512, "--valid-queries", 64, "--seconds", 0, "--keep", 1]
            command += [
                "--random",
                1,
                "--space",
                small_space(directory),
                "--dask",
                cluster.scheduler_address,
            ]
            oneshot(*command)
            # From the first trial of a phase to the end of its last.
            store = Store(out)
            for phase, name in (("predictor", "search"), ("random:0", "random")):
                found.setdefault(name, {})[count] = store.clock(phase)
            store.close()
    for seconds in found.values():
        seconds["ratio"] = seconds[2] / seconds[1]
    return found


def dask_cluster() -> Any:
    """Workers with one thread each, which are there before the search begins."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=1, threads_per_worker=1, memory_limit=None, dashboard_address="127.0.0.1:0"
    )


def small_space(directory: Path) -> Path:
    """Configurations of about equal cost; all go on to their end."""
    path = directory / "space.toml"
    path.write_text(
        '[predictor]\ndim = 32\nnum_layers = 4\nmessage = "redgnn"\naggregate = "mean"\n'
        "attention_dim = 8\nconcat = false\ngate = true\n"
        "[training]\nfact_ratio = 0.9\nbatch_size = 32\n"
    )
    return path


def from_tests(module: str = "searching") -> Any:
    """A module of the tests, where the surface and the killing are written."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    return importlib.import_module(module)


def oneshot(*command: Any) -> dict[str, Any]:
    """Run `oneshot search`. → its JSON"""
    call = [sys.executable, "-m", "oneshot", "search", *map(str, command), "--json"]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def shown(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in SHOWN if name in found}


if __name__ == "__main__":
    main()
