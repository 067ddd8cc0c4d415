"""A first training, with nothing set but the data and the time, beside others in the same time.

    python -m benchmarks.first_training [DATA ...] [--minutes 10] [--seeds 0,1,2]
        [--peers distmult,complex,rotate,conve] [--device cpu] [--parallel 8 --cores 2]
        [--until SECONDS] [--busy 2] [--merge FILE ...]

For each data set and seed `oneshot train DATA --plan --minutes M --device D` runs in a process of
its own. Its time is measured from outside, from the start of the command to its end. Beside the
test MRR stand that of the frequency baseline and what the plan expected. With `--peers`, embedding
models of PyKEEN are trained in the same time, as `oneshot compare --minutes-each` does; the best of
them is chosen by validation MRR; `complex-n3` is the factors of `oneshot.factors` alone. With
`--minutes 0 --no-ours` they have no time limit and train until they stop improving; such rows stand
beside ours whatever device they used.

Each finished row is added to `benchmarks/results/first-training.json` at once; a row that is there
is not measured again, unless `--again` is given. `--parallel` measures several at a time, each
pinned to `--cores` cores of its own. `--until` begins nothing that would end later than so many
seconds after the start. `--busy` starts processes beside each training that keep its cores busy, to
see whether it still ends in time. `--results` names another directory for the rows, and `--merge`
first adds those of other such files, for example of another machine. `--show` prints the table of
the rows that are there.

Data sets are looked for in `$ONESHOT_DATA`; without names all of DATA below are taken that are
there. The graphs of `own_graphs.py` belong into its folder `own`. The graphs `*_ind` of the
inductive benchmarks, made to be asked about by reasoners that were trained on another graph, are
here data sets of their own: trained on their training facts, judged by their test facts.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from oneshot.system.process import prepare_process

prepare_process()  # before torch is loaded, as the command line does

from benchmarks.common import RESULTS, write_result  # noqa: E402

from oneshot.data.load import load, source_exists  # noqa: E402
from oneshot.errors import InputError  # noqa: E402
from oneshot.experiments.bench.measure import hardware  # noqa: E402
from oneshot.system.devices import find_device  # noqa: E402

NAME = "first-training"
OURS = "oneshot"
PEERS = ("distmult", "complex", "rotate", "conve", "complex-n3")
_INDUCTIVE = [f"{name}_v{version}" for name in ("WN18RR", "fb237", "nell") for version in (1, 2)]
DATA = (
    "UMLS",
    "Family",
    "world",
    *(f"inductive/{name}" for name in _INDUCTIVE),
    *(f"inductive/{name}_ind" for name in _INDUCTIVE),
    "WN18RR",
    "FB15k-237",
    "NELL-995",
    "zero-shot/CoDEx-M-part",
    "zero-shot/Hetionet-part",
    "own/debian-packages.csv",
    "own/python-stdlib.csv",
)
# What a job may take beyond its minutes: the start of Python, and a last step.
_BEYOND = 20.0
_FIGURES = ("mrr", "hits@1", "hits@10", "coverage", "queries", "of")


class Job(NamedTuple):
    """One row: a model trained on a data set with a seed."""

    data: str
    seed: int
    minutes: float
    model: str
    device: str
    busy: int = 0

    @property
    def title(self) -> str:
        return f"{self.data}, {self.model}, seed {self.seed}"

    def is_of(self, row: dict[str, Any]) -> bool:
        return all(row[name] == value for name, value in self._asdict().items())


class AnyJob(Protocol):
    """What the jobs of all benchmarks of trainings have."""

    @property
    def title(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def minutes(self) -> float: ...
    @property
    def device(self) -> str: ...


SomeJob = TypeVar("SomeJob", bound=AnyJob)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="names or paths; all of DATA that are there")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each training")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--peers", default="", help=f"such as {','.join(PEERS)}")
    parser.add_argument("--no-ours", action="store_true", help="measure the peers alone")
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time")
    parser.add_argument("--cores", type=int, default=2, help="for each job")
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside each job")
    parser.add_argument("--until", type=float, help="seconds after which nothing runs any more")
    parser.add_argument("--again", action="store_true", help="measure rows that are there anew")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="files with more rows")
    parser.add_argument("--show", action="store_true", help="only print the table")
    parser.add_argument("--job", help=argparse.SUPPRESS)  # one peer, in a process of its own
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure_peer(Job(*json.loads(options.job)))))
        return
    if not options.minutes and not (options.no_ours or options.show):
        parser.error("--minutes 0 is for peers: add --no-ours")
    rows = merged([options.results / f"{NAME}.json", *options.merge])
    if options.merge:
        keep(rows, options.results)
    names = options.data or [name for name in DATA if options.show or source_exists(name)]
    if not options.show:
        seeds = [int(seed) for seed in options.seeds.split(",")]
        peers = [name for name in options.peers.split(",") if name]
        models = [*([] if options.no_ours else [OURS]), *peers]
        asked = [
            Job(name, seed, options.minutes, model, options.device, options.busy)
            for model in models
            for seed in seeds
            for name in names
        ]
        if options.again:
            rows = [row for row in rows if not any(job.is_of(row) for job in asked)]
        missing = [job for job in asked if not any(job.is_of(row) for row in rows)]

        def add(row: dict[str, Any]) -> None:
            rows.append(row)
            keep(rows, options.results)

        own = core_sets(options.parallel, options.cores)
        run_all(missing, own, measure, add, options.until)
    shown = [
        row
        for row in rows
        if row["data"] in names
        and (
            (row["minutes"], row["device"], row["busy"])
            == (options.minutes, options.device, options.busy)
            or (row["model"] != OURS and not row["minutes"])
        )
    ]
    for line in table(shown):
        print(line)


def merged(paths: list[Path]) -> list[dict[str, Any]]:
    """The rows of some files that may be there; of several rows of a job, the first."""
    found: dict[Job, dict[str, Any]] = {}
    for path in paths:
        rows = json.loads(path.read_text())["rows"] if path.is_file() else []
        for row in ({"busy": 0, **row} for row in rows):
            found.setdefault(Job(*(row[name] for name in Job._fields)), row)
    return list(found.values())


def keep(rows: list[dict[str, Any]], directory: Path) -> None:
    """Write the rows in their order."""
    write_result(NAME, {"rows": sorted(rows, key=_order)}, directory=directory)


def run_all(
    jobs: Sequence[SomeJob],
    core_sets: Sequence[set[int]],
    measure: Callable[[SomeJob, int], dict[str, Any] | None],
    add: Callable[[dict[str, Any]], None],
    until: float | None,
) -> None:
    """Measure jobs, one at a time on each set of cores; `add` each row, one after the other."""
    started = time.monotonic()
    waiting: queue.SimpleQueue[SomeJob] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    lock = threading.Lock()

    def work(own: set[int]) -> None:
        # Of this thread alone, and of the processes that it starts.
        os.sched_setaffinity(0, own)
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            ends = time.monotonic() - started + 60 * job.minutes + _BEYOND
            if until is not None and ends > until:
                say(f"no time left for {job.title}")
                continue
            row = measure(job, len(own))
            if row is None:
                continue
            with lock:
                add(row)
            say(f"{job.title}: {in_words(row)}")

    threads = [threading.Thread(target=work, args=(own,)) for own in core_sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def core_sets(parallel: int, cores: int) -> list[set[int]]:
    """Cores for each of the jobs that run at a time; no core has two."""
    there = sorted(os.sched_getaffinity(0))
    if parallel * cores > len(there):
        sys.exit(f"{parallel} jobs on {cores} cores each need more than the {len(there)} there are")
    return [set(there[cores * job : cores * (job + 1)]) for job in range(parallel)]


def measure(job: Job, cores: int) -> dict[str, Any] | None:
    """The row of a job, run in a process of its own; None, with a message, if that failed."""
    with tempfile.TemporaryDirectory(prefix="first-training-") as scratch:
        command = ["benchmarks.first_training", "--job", json.dumps(job)]
        if job.model == OURS:
            command = train_command(job, f"{scratch}/run")
        with busy_processes(job.busy):
            done = timed(command, cores, job.title)
    if done is None:
        return None
    result, wall_seconds = done
    found = figures(result) if job.model == OURS else result
    return {**job._asdict(), **found, "wall_seconds": wall_seconds, "hardware": machine(job, cores)}


def train_command(job: AnyJob, out: str) -> list[str]:
    """A planned training of a job, as arguments of `python -m`."""
    command = ["oneshot", "train", job.data, "--plan", "--minutes", str(job.minutes)]
    command += ["--seed", str(job.seed), "--device", job.device, "--json"]
    return [*command, "--out", out]


def timed(command: Sequence[str], cores: int, title: str) -> tuple[dict[str, Any], float] | None:
    """The JSON object that `python -m COMMAND` prints, and its time from start to end.

    None, with a message that begins with `title`, if the command failed.
    """
    variables = {"OMP_NUM_THREADS": str(cores), "MKL_NUM_THREADS": str(cores)}
    with tempfile.TemporaryFile("w+") as log:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
            env={**os.environ, **variables},
        )
        wall_seconds = time.perf_counter() - started
        log.seek(0)
        said = log.read().strip()
    if done.returncode:
        say(f"{title} failed: {said[-2000:]}")
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, round(wall_seconds, 2)


def machine(job: AnyJob, cores: int) -> dict[str, Any]:
    """The machine of a job that is pinned to some cores."""
    return {**hardware(find_device(job.device)), "cores": cores, "threads": cores}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that do nothing but compute, on the cores of this thread."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """What of the command's report goes into a row."""
    plan, test = result["plan"], result["test"]
    return {
        **{name: test[name] for name in _FIGURES if name in test},
        "valid_mrr": result["valid"]["mrr"],
        "valid_coverage": result["valid"]["coverage"],
        "frequency_mrr": result["baseline_mrr"],
        "epochs": result["epochs"],
        "best_epoch": result["best_epoch"],
        "seconds": result["seconds"],
        "parameters": result["parameters"],
        "expected_seconds": plan["seconds"],
        "expected_coverage": plan["coverage"],
        "expected_queries": plan["queries"],
        "chosen": {option: _value(plan["config"], option) for option in plan["reasons"]},
    }


def measure_peer(job: Job) -> dict[str, Any]:
    """The figures of an embedding model that is trained for so many minutes."""
    from oneshot.experiments.baselines.peers import (
        FACTORS,
        find_peer,
        measure_embedding,
        measure_factors,
    )
    from oneshot.experiments.baselines.pykeen_models import RECIPES

    started = time.perf_counter()  # reading the data counts, as it does for ours
    name = find_peer(job.model)
    if name != FACTORS and name not in RECIPES:
        raise InputError(f"{job.model}: is no embedding model")
    data, device = load(job.data, seed=job.seed), find_device(job.device)
    options: dict[str, Any] = {"seed": job.seed, "minutes": job.minutes, "started": started}
    if name == FACTORS:
        return measure_factors(data, device, **options)
    return measure_embedding(RECIPES[name], data, device, **options)


def table(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Lines for people: a data set each."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=_order):
        grouped.setdefault(row["data"], []).append(row)
    head = f"{'data':28s} {'ours':>15s} {'time':>6s} {'freq.':>6s}  {'best peer':18s} "
    lines = [head + f"{'time':>6s}  {'expected/actual: s':>18s} {'coverage':>12s}"]
    for name, found in grouped.items():
        ours = [row for row in found if row["model"] == OURS]
        peers = best_peers(row for row in found if row["model"] != OURS)
        longest = max((row["wall_seconds"] for row in ours), default=None)
        slowest = max((row["wall_seconds"] for row in found if row["model"] != OURS), default=None)
        titles = "/".join(dict.fromkeys(row["model"] for row in peers))
        expected = "–"
        covered = "–"
        if ours:
            mean = statistics.mean
            seconds = mean(row["expected_seconds"] for row in ours)
            expected = f"{seconds:.0f}/{mean(row['wall_seconds'] for row in ours):.0f}"
            coverage = mean(row["expected_coverage"] for row in ours)
            covered = f"{coverage:.3f}/{mean(row['coverage'] for row in ours):.3f}"
        lines.append(
            f"{name:28s} {spread(ours):>15s} {_number(longest, '.0f'):>6s} "
            f"{_number(_mean(ours, 'frequency_mrr'), '.3f'):>6s}  "
            f"{f'{spread(peers)} {titles}' if peers else '–':18s} "
            f"{_number(slowest, '.0f'):>6s}  {expected:>18s} {covered:>12s}"
        )
    return lines


def best_peers(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each seed the peer that is best on validation; the test split has no say."""
    best: dict[int, dict[str, Any]] = {}
    for row in rows:
        if "valid_mrr" in row:
            other = best.get(row["seed"])
            if other is None or row["valid_mrr"] > other["valid_mrr"]:
                best[row["seed"]] = row
    return list(best.values())


def spread(rows: Sequence[dict[str, Any]]) -> str:
    """Mean of the test MRR, and its standard deviation over several seeds."""
    found = [row["mrr"] for row in rows if "mrr" in row]
    if not found:
        return "–"
    mean = f"{statistics.mean(found):.3f}"
    return mean if len(found) < 2 else f"{mean} ± {statistics.stdev(found):.3f}"


def in_words(row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"{row['failure']}, {row['wall_seconds']:.0f} s"
    return f"test MRR {row['mrr']:.4f}, {row['wall_seconds']:.0f} s"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _value(config: dict[str, Any], option: str) -> Any:
    section, key = option.split(".")
    return config[section][key]


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    found = [row[name] for row in rows if row.get(name) is not None]
    return statistics.mean(found) if found else None


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    names = list(DATA)
    place = names.index(row["data"]) if row["data"] in names else len(names)
    rest = tuple(row[name] for name in ("data", "device", "minutes", "busy"))
    return place, *rest, row["model"] != OURS, row["model"], row["seed"]


if __name__ == "__main__":
    main()
