"""Train variants of the shipped configurations side by side and compare them on validation.

    python -m benchmarks.recipes VARIANTS.json OUT [--jobs 8] [--data DIR]

VARIANTS: a list of {"name", "config", "data", "set": [...], "test_data"?}, for example
`benchmarks/small-graphs.json`, or `benchmarks/small-graph-variants.json` with several variants of
each small graph, the best of which by validation is to be shipped. Each becomes a run in OUT/name;
`OUT/summary.json` has the validation MRR of each, by which to choose, and the figures of the test
split, which are not for choosing. For inductive data (`test_data`, another graph) they are those of
both protocols in use: `test` asks the test facts of that graph alone, `valid_and_test` its valid
and test facts together. Data sets are looked for in DIR, or in $ONESHOT_DATA and the cache.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

from oneshot.experiments.bench.measure import hardware
from oneshot.system.devices import find_device
from oneshot.system.files import write_json

FIGURES = ("mrr", "hits@1", "hits@10")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path, help="directory of the data sets")
    parser.add_argument("--result", help="also write benchmarks/results/RESULT.json")
    options = parser.parse_args()
    if options.data:
        os.environ["ONESHOT_DATA"] = str(options.data.resolve())
    options.out.mkdir(parents=True, exist_ok=True)
    variants = json.loads(options.variants.read_text())
    summary: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda v: train(v, options.out, options.device), variants):
            summary.append(row)
            value = {"rows": summary, "hardware": hardware(find_device(options.device))}
            write_json(options.out / "summary.json", value)
    if options.result:
        write_json(RESULTS / f"{options.result}.json", value)
    print(f"{'variant':44s} {'valid':>7s} {'best/epochs':>12s} {'seconds':>8s}")
    for row in summary:
        if "error" in row:
            print(f"{row['name']:44s} {row['error']}")
            continue
        epochs = f"{row['best_epoch']}/{row['epochs']}"
        print(f"{row['name']:44s} {row['valid']:7.4f} {epochs:>12s} {row['seconds']:8.1f}")


def train(variant: dict[str, Any], out: Path, device: str) -> dict[str, Any]:
    """One run in a process of its own, and its evaluation on another graph if there is one."""
    run = out / variant["name"]
    command = ["train", variant["data"], "--out", run, "--config", variant["config"], "--json"]
    command += ["--device", device, "--resume"]
    for setting in variant.get("set", []):
        command += ["--set", setting]
    started = time.perf_counter()
    result, error = oneshot(command, out / f"{variant['name']}.log")
    if result is None:
        return {"name": variant["name"], "error": error}
    row = {
        "name": variant["name"],
        "set": variant.get("set", []),
        "valid": result["valid"]["mrr"],
        "best_epoch": result["best_epoch"],
        "epochs": result["epochs"],
        "seconds": result["seconds"],
        "wall_seconds": time.perf_counter() - started,
        "test": {key: result["test"][key] for key in FIGURES},
    }
    if "test_data" in variant:
        asked = {}
        for split in ("test", "valid"):
            command = ["evaluate", run, "--data", variant["test_data"], "--split", split]
            command += ["--json", "--device", device, "--batch-size", "64"]
            report, error = oneshot(command, out / f"{variant['name']}.{split}.log")
            if report is None:
                return {"name": variant["name"], "error": error}
            asked[split] = report
        row["test"] = {key: asked["test"][key] for key in FIGURES}
        row["valid_and_test"] = together(list(asked.values()))
    return row


def together(reports: list[dict[str, Any]]) -> dict[str, float]:
    """The figures over the queries of several evaluations: all are means over their queries."""
    queries = sum(report["queries"] for report in reports)
    return {
        key: sum(report[key] * report["queries"] for report in reports) / queries for key in FIGURES
    }


def oneshot(command: list[Any], log: Path) -> tuple[dict[str, Any] | None, str]:
    """Run the command line. → (its JSON, or None; the last line of its log)"""
    call = [sys.executable, "-m", "oneshot", *map(str, command)]
    with log.open("w") as errors:
        done = subprocess.run(call, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    if done.returncode:
        return None, (log.read_text().strip().splitlines() or ["no message"])[-1]
    value: dict[str, Any] = json.loads(done.stdout)
    return value, ""


if __name__ == "__main__":
    main()
