"""Several measurements side by side on one machine, each on cores of its own.

    python -m benchmarks.lanes JOBS.json OUT [--until SECONDS] [--check]

JOBS: a list of groups {"cores": ["0-1", "2-3"], "jobs": [{"name", "command", "seconds"?}]}. A group
has as many lanes as it has entries of cores, which may be equal; a lane takes the next job of its
group when it has finished one. `{out}` in a command stands for OUT/NAME, a directory of the job;
its messages go to OUT/NAME.log. A job whose `seconds` would end after `--until` is left out. What
began and ended when is printed and kept in OUT/status.txt. `--check` only prints the commands, and
fails if a program or module of them is missing.

The jobs go on if the terminal is closed (`setsid`), so that one can look at them from time to time.
"""

import argparse
import importlib.util
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Lanes:
    """Runs the jobs of groups; `until`: seconds after the start at which nothing runs any more."""

    def __init__(self, out: Path, until: float | None = None) -> None:
        self.out, self.until = out, until
        self._started, self._lock = time.monotonic(), threading.Lock()
        out.mkdir(parents=True, exist_ok=True)

    def run(self, groups: list[dict[str, Any]]) -> int:
        """Run all jobs. → number of those that failed"""
        self.failed = 0
        threads: list[threading.Thread] = []
        for group in groups:
            waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
            for job in group["jobs"]:
                waiting.put(job)
            threads += [
                threading.Thread(target=self._work, args=(waiting, cores))
                for cores in group["cores"]
            ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._say("all have ended")
        return self.failed

    def _work(self, waiting: "queue.SimpleQueue[dict[str, Any]]", cores: str) -> None:
        os.sched_setaffinity(0, core_numbers(cores))  # of this thread, and of what it starts
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            ends = time.monotonic() - self._started + job.get("seconds", 0)
            if self.until is not None and ends > self.until:
                self._say(f"no time for {job['name']}")
                continue
            self._say(f"{job['name']} begins")
            with (self.out / f"{job['name']}.log").open("w") as log:
                code = subprocess.run(
                    self.command(job), stdout=log, stderr=subprocess.STDOUT, check=False
                ).returncode
            with self._lock:
                self.failed += code != 0
            self._say(f"{job['name']} ends" + (f" with code {code}" if code else ""))

    def command(self, job: dict[str, Any]) -> list[str]:
        """The words of a job's command."""
        words = shlex.split(job["command"].replace("{out}", str(self.out / job["name"])))
        return [sys.executable if word == "python" else word for word in words]

    def _say(self, line: str) -> None:
        line = f"{time.monotonic() - self._started:6.0f} s  {line}"
        with self._lock, (self.out / "status.txt").open("a") as status:
            print(line, file=status)
            print(line, flush=True)


def core_numbers(cores: str) -> set[int]:
    """The numbers in a list of cores, such as 0-3,8."""
    found: set[int] = set()
    for part in cores.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def missing(command: list[str]) -> str:
    """The program or the module of a command that is not there; empty if all are."""
    if shutil.which(command[0]) is None:
        return command[0]
    if command[1:2] == ["-m"] and importlib.util.find_spec(command[2]) is None:
        return command[2]
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--until", type=float, help="seconds")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    groups = json.loads(options.jobs.read_text())
    lanes = Lanes(options.out, options.until)
    absent = set()
    for job in (job for group in groups for job in group["jobs"]):
        command = lanes.command(job)
        absent.add(missing(command))
        if options.check:
            print(shlex.join(command))
    if absent - {""}:
        sys.exit(f"not found: {', '.join(sorted(absent - {''}))}")
    if not options.check and lanes.run(groups):
        sys.exit(f"{lanes.failed} jobs failed; see {options.out}/status.txt")


if __name__ == "__main__":
    main()
