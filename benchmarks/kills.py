"""Kills: each writing command ended by SIGKILL at random moments; is what was there still readable?

    python -m benchmarks.kills [--moments 50] [--seed 0] [--processes 2] [--only NAME]

Each time a command writes over a fresh copy of what an earlier one wrote. Half of the moments are
drawn from the time that the command takes, half are right before one of its file operations. After
that the old result, or the new one, must be readable as a whole, and the same command, run again,
must end well. Writes `benchmarks/results/kills.json`.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import write_result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", help="commands whose name has this in it")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from tests.support import kills as killing

    torch.set_num_threads(1)
    for module in ("matplotlib.pyplot", "pyarrow.parquet", "smac", "ConfigSpace", "sklearn"):
        importlib.import_module(module)  # once, before all forks
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory).resolve() / "home"
        writers = [w for w in killing.make_writers(home) if (options.only or "") in w.name]
        killing.prepare(home, writers)
        print(f"prepared in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        context = multiprocessing.get_context("fork")
        # Forked, because the commands are functions of this process and cannot be sent.
        _SHARED.update(home=home, writers=writers)
        with concurrent.futures.ProcessPoolExecutor(options.processes, context) as pool:
            tasks = [
                pool.submit(one, number, Path(directory) / str(number), options)
                for number in range(len(writers))
            ]
            rows = [task.result() for task in tasks]
    value = {
        "seconds": round(time.perf_counter() - started, 1),
        "seed": options.seed,
        "commands": len(rows),
        "kills": sum(row["moments"] for row in rows),
        "unreadable": sum(len(row["unreadable"]) for row in rows),
        "rows": rows,
    }
    if not options.only:
        write_result("kills", value)
    if value["unreadable"] or not all(row["runs_again"] for row in rows):
        sys.exit(1)


_SHARED: dict[str, Any] = {}


def one(number: int, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All moments of one command."""
    from tests.support import kills as killing

    writer = _SHARED["writers"][number]
    found = killing.kill_at_random(
        _SHARED["home"], scratch.resolve(), writer, options.moments, options.seed
    )
    row = dataclasses.asdict(found) | {"seconds": round(found.seconds, 3)}
    print(row, file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    main()
