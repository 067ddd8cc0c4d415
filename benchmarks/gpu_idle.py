"""How much of a training the GPU stands idle, by the profiler of PyTorch.

    python -m benchmarks.gpu_idle [WN18RR] [--epochs 3]

One process trains the data set's configuration. After a first epoch, in which kernels are compiled
and steps recorded, some epochs are profiled; the GPU is idle when no kernel and no copy runs. The
profiler itself makes the process slower: the epochs are timed without it, too. Writes
`benchmarks/results/idle-DEVICE.json`.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import RESULTS, find
from torch.profiler import ProfilerActivity, profile

from oneshot.config import read_config
from oneshot.data.load import load
from oneshot.experiments.bench.measure import hardware
from oneshot.reasoner.build import build_reasoner
from oneshot.system.files import write_json
from oneshot.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
BUSY = ("kernel", "gpu_memcpy", "gpu_memset")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", default="WN18RR")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    # Training alone: validation is another kind of work, every few epochs.
    unvalidated = ["training.valid_every=1000", "training.epochs=1000"]
    config = read_config(ROOT / f"configs/{options.name}.toml", unvalidated)
    data = load(find(options.name))
    trainer = Trainer(build_reasoner(data.graph, config, device), data, config.training)
    for _ in range(2):
        trainer.run_epoch()
    plain = [timed(trainer) for _ in range(options.epochs)]
    profiled = [look(trainer) for _ in range(options.epochs)]
    value: dict[str, Any] = {
        "data": options.name,
        "queries_per_epoch": trainer.queries_per_epoch,
        "epoch_seconds": plain,
        "profiled": profiled,
        "idle": sum(row["idle_seconds"] for row in profiled)
        / sum(row["seconds"] for row in profiled),
    }
    # What the GPU computes takes as long without the profiler; what it waits for does not.
    busy = sum(row["busy_seconds"] for row in profiled)
    value["idle_without_the_profiler"] = max(1 - busy / sum(plain), 0.0)
    name = "-".join(torch.cuda.get_device_name(device).split()[-1:]).lower()
    write_json(options.results / f"idle-{name}.json", {**value, "hardware": hardware(device)})
    print(json.dumps(value))


def timed(trainer: Trainer) -> float:
    """Seconds of an epoch."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    trainer.run_epoch()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def look(trainer: Trainer) -> dict[str, Any]:
    """An epoch as the profiler saw it."""
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        seconds = timed(trainer)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        watched.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    work = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in BUSY)
    busy = covered(work) / 1e6
    # Before the first and after the last kernel it is idle as well.
    return {
        "seconds": seconds,
        "busy_seconds": busy,
        "idle_seconds": max(seconds - busy, 0.0),
        "kernels_and_copies": len(work),
    }


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of what sorted spans, which may overlap, cover together."""
    total, end = 0.0, float("-inf")
    for start, stop in spans:
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total


if __name__ == "__main__":
    main()
