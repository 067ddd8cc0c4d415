"""What the search promises, measured.

    python -m benchmarks.search umls       30 trials, both phases; then 5 random searches beside it
    python -m benchmarks.search surface    trials to a known optimum, against random search
    python -m benchmarks.search kills      kill -9 at 10 random moments, resumed each time
    python -m benchmarks.search workers    one worker of Dask against two
    python -m benchmarks.search WN18RR     on a GPU; in slices: --out DIR --minutes 8, repeated
    python -m benchmarks.search goals      phase 2 with both of its goals, on umls, trained for it
    python -m benchmarks.search goals --run pretrained/WN18RR     the same on a trained run
    python -m benchmarks.search minutes --minutes 5     a search with a time limit, beside the plan
                                                        trained for the same time; --data umls world

Each part writes `benchmarks/results/search-PART.json`; WN18RR when it has come to its end. Goals
write `search-goals-DATA.json`.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import RESULTS, find

from oneshot.evaluation.evaluate import evaluate
from oneshot.experiments.bench.measure import hardware
from oneshot.runs.run import Run
from oneshot.search.predictor_trial import provide
from oneshot.search.sampler_phase import RUN, find_sampler
from oneshot.search.session import Session, Timer
from oneshot.search.settings import Effort, Goal, SearchSettings
from oneshot.search.store import Store
from oneshot.search.workers import open_workers
from oneshot.system.devices import find_device
from oneshot.system.files import write_json

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
# A training of half a minute, on half of the entities: phase 2 can ask with fewer and with more.
UMLS_TRAINING = shlex.split(
    "--set predictor.dim=32 --set predictor.num_layers=3 --set sampler.entity_ratio=0.5 "
    "--set training.epochs=6 --set training.learning_rate=0.005"
)
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
    parts_there = ("umls", "surface", "kills", "workers", "WN18RR", "goals", "minutes")
    parser.add_argument("part", choices=parts_there)
    parser.add_argument("--run", type=Path, help="a trained run, instead of one on umls (goals)")
    parser.add_argument("--out", type=Path, help="directory of the search, kept for resuming")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--minutes", type=float, help="of the session (WN18RR); in all (minutes)")
    parser.add_argument("--data", nargs="+", default=["umls", "world"], help="data sets (minutes)")
    parser.add_argument("--random", type=int, default=5, help="random searches (umls)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    name = f"search-{options.part}"
    device = find_device(options.device if options.part in ("WN18RR", "goals") else "cpu")
    with tempfile.TemporaryDirectory() as directory:
        out = options.out or Path(directory) / "search"
        parts: dict[str, Callable[[], dict[str, Any] | None]] = {
            "umls": lambda: umls(out, options.trials, options.random),
            "WN18RR": lambda: wn18rr(out, options.trials, options.minutes, options.device),
            "surface": surface,
            "kills": lambda: kills(Path(directory)),
            "workers": lambda: workers(Path(directory)),
            "goals": lambda: goals(out, options.run, options.trials, device),
            "minutes": lambda: in_minutes(Path(directory), options.data, options.minutes or 5.0),
        }
        value = parts[options.part]()
    if value is None:
        return
    if options.part == "goals":
        name += f"-{value['data']}"
    load = round(os.getloadavg()[2], 2)
    write_json(
        options.results / f"{name}.json",
        {**value, "seed": SEED, "load_15_minutes": load, "hardware": hardware(device)},
    )
    print(f"wrote {options.results}/{name}.json", file=sys.stderr)


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


def goals(out: Path, run: Path | None, trials: int, device: torch.device) -> dict[str, Any]:
    """Phase 2 alone on a trained run, with each of its goals; both choose among the same trials."""
    if run is None:
        run = out.with_name("umls-run")
        oneshot("umls", "--out", run, "--device", device, *UMLS_TRAINING, command="train")
    trained = Run.open(run)
    data, config = trained.data, trained.config
    shutil.copytree(run, out / RUN, dirs_exist_ok=True)
    reasoner = trained.reasoner_on(data.graph).to(device)
    before = {
        split: evaluate(reasoner, data.facts(split), data.known).as_dict()
        for split in ("valid", "test")
    }
    found: dict[str, Any] = {"data": data.name, "run": run.name, "sampler_trials": trials}
    store = Store(out, create=True)
    provide(data)
    names: tuple[Goal, ...] = ("smaller", "better")
    with open_workers(1, None) as crew:
        for goal in names:
            settings = SearchSettings(goal=goal, sampler_queries=10**9, seed=SEED, base=config)
            effort, timer = Effort(sampler_trials=trials), Timer(store, None)
            session = Session(data, out, settings, effort, device, store, crew, timer)
            # Else a goal that chooses what the other one chose would show the other's figures.
            store.set_about("final", None)
            started = time.perf_counter()
            find_sampler(session, config, before)
            final = store.about("final")
            found[goal] = {
                "seconds": time.perf_counter() - started,
                **{name: final[name] for name in ("sampler", "before", "after", "expected")},
                **{
                    name: {key: final[name][key] for key in ("mrr", "hits@1", "hits@10")}
                    for name in ("valid_before", "valid", "test_before", "test")
                },
            }
    store.close()
    return found


def in_minutes(directory: Path, names: list[str], minutes: float) -> dict[str, Any]:
    """Searches with a time limit: wall time, and validation MRR beside that of the plan.

    Each search is a process of its own. `first` is the trial of the plan, `planned` the training by
    `oneshot train` with the same time limit.
    """
    rows = []
    for name in names:
        limit = ["--minutes", minutes, "--device", "cpu", "--seed", SEED]
        started = time.perf_counter()
        found = oneshot(name, "--out", directory / f"{name}-search", *limit)
        wall = time.perf_counter() - started
        store = Store(directory / f"{name}-search")
        first = store.trials("predictor")[0]
        store.close()
        started = time.perf_counter()
        planned = oneshot(name, "--out", directory / f"{name}-run", *limit, command="train")
        trained, phase_2 = found.get("trained") or {}, found.get("phase_2") or {}
        rows.append(
            {
                "data": name,
                "minutes": minutes,
                "wall_seconds": wall,
                "of_the_budget": wall / (60 * minutes),
                **{key: found[key] for key in ("trials", "stopped", "failed", "infeasible")},
                "sampler_trials": found["sampler_trials"],
                "valid_mrr": {
                    "first": first.value,
                    "best_trial": found["best_value"],
                    "trained": (trained.get("valid") or {}).get("mrr"),
                    "phase_2": (phase_2.get("after") or {}).get("value"),
                    "planned": planned["valid"]["mrr"],
                },
                "test_mrr": {
                    "trained": (trained.get("test") or {}).get("mrr"),
                    "phase_2": (found.get("test") or {}).get("mrr"),
                    "planned": planned["test"]["mrr"],
                },
                "test_queries": {  # a sample, if there was no time for all
                    "trained": (trained.get("test") or {}).get("queries"),
                    "phase_2": (found.get("test") or {}).get("queries"),
                    "planned": planned["test"]["queries"],
                },
                "planned_wall_seconds": time.perf_counter() - started,
            }
        )
        print(rows[-1], file=sys.stderr)
    return {"rows": rows}


def surface() -> dict[str, Any]:
    """Trials until a known optimum is near, with the surrogate and at random, over 5 seeds."""
    from tests.support import searches as surfaces

    rows = []
    for seed in range(5):
        guided = surfaces.trials_to_reach(surfaces.LEVEL, seed, 100, guided=True)
        random = surfaces.trials_to_reach(surfaces.LEVEL, seed, 2000, guided=False)
        rows.append({"seed": seed, "surrogate": guided, "random": random})
        print(rows[-1], file=sys.stderr)
    return {"level": surfaces.LEVEL, "optimum": 0.9, "rows": rows}


def kills(directory: Path) -> dict[str, Any]:
    """Both phases of a small search, killed at ten random moments."""
    from tests.support import samples, searches

    data = samples.write_world(directory / "data", samples.chain_world(30))
    more = ("--trials", 24, "--sampler-trials", 16)
    found = searches.kill_and_resume(data, directory / "killed", 10, SEED, *more)
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


def oneshot(*options: Any, command: str = "search") -> dict[str, Any]:
    """Run a command of `oneshot`. → its JSON"""
    call = [sys.executable, "-m", "oneshot", command, *map(str, options), "--json"]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def shown(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in SHOWN if name in found}


if __name__ == "__main__":
    main()
