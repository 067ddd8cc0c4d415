"""Measurement of time and memory, and description of the machine."""

import os
import platform
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from oneshot._version import __version__
from oneshot.system.devices import total_memory
from oneshot.system.process import return_freed_memory

ResultT = TypeVar("ResultT")

_PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "pyarrow",
    "networkx",
    "torch_geometric",
    "numba",
    "pykeen",
)


@dataclass(frozen=True)
class Measured(Generic[ResultT]):
    """A result with its cost. `peak_bytes`: peak memory above that at the start."""

    result: ResultT
    seconds: float
    peak_bytes: int | None


def measure(work: Callable[[], ResultT], device: torch.device | None = None) -> Measured[ResultT]:
    """Run `work` once and measure time and peak memory (of the GPU, if the device is one)."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        started = time.perf_counter()
        result = work()
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
        return Measured(result, seconds, torch.cuda.max_memory_allocated(device) - before)
    with _PeakMemory() as memory:
        started = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - started
    return Measured(result, seconds, memory.peak)


def median_seconds(
    work: Callable[[], object], repeats: int, device: torch.device | None = None
) -> float:
    """Median time of `work`, without the thread that watches the memory in `measure`."""
    is_gpu = device is not None and device.type == "cuda"
    times = []
    for _ in range(repeats):
        if is_gpu:
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        work()
        if is_gpu:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def hardware(device: torch.device | None = None) -> dict[str, Any]:
    """CPU, memory, GPU, versions, revision and date, recorded with every measurement."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round((total_memory(torch.device("cpu")) or 0) / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "oneshot": __version__,
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "revision": _revision(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    if device is not None and device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


class _PeakMemory:
    """Samples the resident memory of this process 500 times per second; Linux only."""

    peak: int | None = None

    def __enter__(self) -> "_PeakMemory":
        return_freed_memory()  # otherwise earlier work would hide the need of this one
        self._start = _resident()
        self._done = threading.Event()
        if self._start is not None:
            self.peak = 0
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._start is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak or 0, (_resident() or 0) - (self._start or 0))


def _resident() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def sources(machines: Iterable[Mapping[str, Any]]) -> list[str]:
    """The machines of measurements, from `hardware`: a line for each machine and date."""
    found: dict[str, dict[str, None]] = {}
    for machine in machines:
        place = machine.get("gpu") or f"{machine['cores']} cores of {machine['processor']}"
        where = f"{place}, torch {machine['versions']['torch']}, {machine['date']}"
        revision = machine.get("revision") or "unknown"
        short = re.sub(r"^([0-9a-f]{7})[0-9a-f]{33}", r"\1", revision)
        found.setdefault(where, {})[short] = None
    return [
        f"{where}, revision{'s' * (len(revisions) > 1)} {', '.join(revisions)}"
        for where, revisions in found.items()
    ]


def _revision() -> str | None:
    """The commit of the source tree, if there is one; "+" marks local changes."""
    if chosen := os.environ.get("ONESHOT_REVISION"):  # for copies without a history
        return chosen
    here = Path(__file__).resolve().parent
    try:
        run = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
