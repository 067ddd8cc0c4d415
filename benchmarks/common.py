"""What the benchmark scripts share: where results go and what they stand beside."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from oneshot.data.load import data_directories
from oneshot.experiments.bench.measure import hardware
from oneshot.system.files import write_json

RESULTS = Path(__file__).with_name("results")


def write_result(
    name: str,
    value: dict[str, Any],
    device: torch.device | None = None,
    directory: Path = RESULTS,
) -> None:
    """Write a result with the machine, and the GPU if it was one, that it was measured on."""
    write_json(directory / f"{name}.json", {**value, "hardware": hardware(device)})
    print(f"wrote {directory / name}.json", file=sys.stderr)


def write_parts(
    name: str,
    parts: dict[str, dict[str, Any]],
    device: torch.device | None = None,
    directory: Path = RESULTS,
) -> None:
    """Write parts of a result, each with the machine and revision that it was measured on.

    Parts that were not measured now keep theirs.
    """
    path = directory / f"{name}.json"
    # Read now: another part may have been written in the meantime.
    before = json.loads(path.read_text()) if path.is_file() else {}
    stamp = hardware(device)
    write_json(path, before | {key: {**part, "hardware": stamp} for key, part in parts.items()})
    print(f"wrote {path}", file=sys.stderr)


def find(name: str) -> Path:
    """The directory of a named data set; ends the script with a word if it is not here."""
    for directory in data_directories():
        if (directory / name).is_dir():
            return directory / name
    sys.exit(f"skipped: {name} is in none of {', '.join(map(str, data_directories()))}")


def in_own_process(code: str, *arguments: str) -> dict[str, Any]:
    """Run Python code that prints a JSON object; adds `peak_gb`, the peak memory it needed.

    A process of its own, because peak memory can only be read for a whole process.
    """
    tail = "\nimport resource as _r, json as _j\n" + (
        "print(_j.dumps({**result, 'peak_gb': "
        "round(_r.getrusage(_r.RUSAGE_SELF).ru_maxrss / 2**20, 3)}))"
    )
    command = [sys.executable, "-c", code + tail, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ)
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value
