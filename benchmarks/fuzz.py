"""Fuzzing: thousands of broken input files and run directories; what became of each.

    python -m benchmarks.fuzz [--inputs 10000] [--runs 1000] [--seed 0] [--processes 2]

Every case is a sound file or run, changed at random (bits, bytes, cuts, insertions, swapped and
missing files, pickles that would run code), and used as the commands use it. Cases run in processes
that are watched: one that says nothing for ten seconds is ended and run again, because others may
use the machine as well, and if that takes ten seconds too, it is a hang; one that dies is a crash.
Code that is executed shows in the interpreter's audit events (programs started, connections, code
from elsewhere, files opened for writing outside of the case), and in a directory that the pickles
would make.
Writes `benchmarks/results/fuzz.json`; a case is made again from its target and seed.
"""

import argparse
import collections
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.common import write_result

BAD = ("traceback", "hang", "crash", "code executed")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", help="targets whose name has this in it")
    parser.add_argument("--show", type=int, default=5, help="faults that are printed")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from tests.support import fuzz as fuzzing

    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        bench = fuzzing.make_bench(Path(directory) / "bench")
        fuzzing.check_sound(bench)
        print(f"prepared in {time.perf_counter() - started:.0f} s", file=sys.stderr)
        parts = {}
        for name, targets, count in (
            ("inputs", bench.inputs, options.inputs),
            ("runs", bench.runs, options.runs),
        ):
            if options.only:
                targets = [target for target in targets if options.only in target.name]
            cases = [
                (targets[number % len(targets)].name, options.seed * 1_000_000 + number)
                for number in range(count if targets else 0)
            ]
            parts[name] = report(name, run_all(bench, cases, options.processes), options.show)
    value = {"seconds": round(time.perf_counter() - started, 1), "seed": options.seed, **parts}
    if not options.only:
        write_result("fuzz", value)
    if any(part["faults"] for part in parts.values()):
        sys.exit(1)


def report(name: str, results: Iterator[dict[str, Any]], show: int) -> dict[str, Any]:
    """Counts by outcome, in all and by target; the longest case, and all faults."""
    outcomes: collections.Counter[str] = collections.Counter()
    by_target: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    faults, longest, again = [], 0.0, 0
    for number, result in enumerate(results, 1):
        outcomes[result["outcome"]] += 1
        by_target[result["target"]][result["outcome"]] += 1
        longest = max(longest, result["seconds"])
        again += result["again"]
        if result["outcome"] in BAD:
            faults.append(result)
            if len(faults) <= show:
                shown = f"{result['target']} {result['seed']} {result['done']}"
                print(f"{result['outcome']}: {shown}\n{result['said']}", file=sys.stderr)
        if number % 500 == 0:
            print(f"{name}: {number:,} {dict(outcomes)}", file=sys.stderr, flush=True)
    return {
        "cases": sum(outcomes.values()),
        "outcomes": {name: outcomes[name] for name in ("read", "refused", *BAD)},
        "longest_seconds": round(longest, 3),
        "run_again": again,
        "by_target": {target: dict(counts) for target, counts in sorted(by_target.items())},
        "faults": [{key: fault[key] for key in ("target", "seed", "outcome")} for fault in faults],
    }


def run_all(bench: Any, cases: list[tuple[str, int]], processes: int) -> Iterator[dict[str, Any]]:
    """The results of all cases, in the order in which they come."""
    from tests.support.fuzz import MOST_SECONDS

    shares = [cases[first::processes] for first in range(processes)]
    workers = [Worker(bench, share) for share in shares if share]
    while workers:
        by_pipe = {worker.pipe: worker for worker in workers}
        for pipe in wait(list(by_pipe), timeout=0.2):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                yield worker.result(worker.pipe.recv())
            except EOFError:
                worker.process.join()
                if worker.left:
                    yield worker.failed("crash", f"exit code {worker.process.exitcode}")
        for worker in workers:
            if worker.left and time.monotonic() - worker.since > MOST_SECONDS:
                worker.process.kill()
                worker.process.join()
                if worker.tried_again():
                    yield worker.failed("hang", f"twice more than {MOST_SECONDS:g} s")
        workers = [worker for worker in workers if worker.left]


class Worker:
    """A process that runs cases one after the other; started again after one that ended it."""

    def __init__(self, bench: Any, cases: list[tuple[str, int]]) -> None:
        self.bench, self.left = bench, cases
        self.since = time.monotonic()
        self.again = False
        self._start()

    def result(self, result: dict[str, Any]) -> dict[str, Any]:
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        self.left = self.left[1:]
        again, self.again = self.again, False
        return result | {"seconds": seconds, "again": again}

    def tried_again(self) -> bool:
        """Whether the case was tried again already; else it is now."""
        if self.again:
            return True
        self.again = True
        self._start()
        return False

    def failed(self, outcome: str, said: str) -> dict[str, Any]:
        target, seed = self.left[0]
        result = {"target": target, "seed": seed, "outcome": outcome, "done": [], "said": said}
        result = self.result(result)
        if self.left:
            self._start()
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe: Connection
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(
            target=work, args=(self.bench, self.left, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self.since = time.monotonic()


def work(bench: Any, cases: list[tuple[str, int]], pipe: Connection) -> None:
    """Run cases and send what came of them."""
    from tests.support import fuzz as fuzzing

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what is said of each case is not shown
    fuzzing.limit_memory()
    watch = fuzzing.Watch(bench.home).install()
    targets = {target.name: target for target in [*bench.inputs, *bench.runs]}
    for name, seed in cases:
        pipe.send(fuzzing.run_case(bench, targets[name], seed, watch))


if __name__ == "__main__":
    main()
