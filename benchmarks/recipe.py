"""Train a data set's configuration from raw triples, with several seeds, and record the evidence.

    python -m benchmarks.recipe WN18RR [--seeds 0,1,2] [--jobs 1] [--runs DIR] [--pretrained]
    python -m benchmarks.recipe WN18RR --config WN18RR-sum

Each seed is a run of `oneshot train` in DIR, resumed if it was begun there, with the file
`configs/NAME.toml`, or another one of `configs/` that `--config` names. With `--jobs`, seeds share
the device, each of which then takes longer (`side_by_side` says so, and counts the `--others`, jobs
that this command has not started). Written are `benchmarks/results/recipe-NAME.json` (figures,
learning curve, seconds from start to end, memory; seeds that were run before with the same
configuration stay in it, and `--merge` adds those of other such files; `--seeds ""` does only that)
and, with `--pretrained`, the best run by validation as `pretrained/NAME`; NAME is that of
`--config`, if it is given. Factors are only shipped if they are small; a message says so.
"""

import argparse
import json
import shutil
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.recipes import oneshot

from oneshot.config import FactorsConfig, to_toml
from oneshot.experiments.bench.measure import hardware
from oneshot.runs.layout import CALIBRATION, CONFIG, FACTORS, GRAPH, PREDICTOR, SAMPLER
from oneshot.runs.run import Run
from oneshot.runs.tensors import load_tensors, save_tensors
from oneshot.system.checksums import read_sealed_json, write_sealed_json, write_sealed_text
from oneshot.system.devices import find_device
from oneshot.system.files import write_json

ROOT = Path(__file__).parents[1]
FIGURES = ("mrr", "hits@1", "hits@3", "hits@10", "coverage", "queries", "seconds")
# Bytes of the factors that are shipped; those of 512 dimensions on WN18RR take 84 MB.
LARGEST_FACTORS = 20_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--config", help="another file of `configs/`, without its ending")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--jobs", type=int, default=1, help="seeds that are trained side by side")
    parser.add_argument("--others", type=int, default=0, help="other jobs on the same device")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="files with more seeds")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--pretrained", action="store_true")
    options = parser.parse_args()
    recipe = options.config or options.name
    target = options.results / f"recipe-{recipe}.json"
    head = {
        "data": options.name,
        "config": tomllib.loads((ROOT / f"configs/{recipe}.toml").read_text()),
        "set": options.settings,
    }
    done: dict[int, dict[str, Any]] = {}
    for path in (*options.merge, target):
        before = json.loads(path.read_text()) if path.is_file() else {}
        if all(before.get(key) == value for key, value in head.items()):
            done |= {row["seed"]: row for row in before["rows"]}
    if options.merge and done:
        rows = [done[seed] for seed in sorted(done)]
        write_json(target, {**head, "rows": rows, "hardware": rows[0]["hardware"]})
    seeds = [int(seed) for seed in options.seeds.split(",") if seed]
    if not seeds:
        return
    more = (options.runs, options.device, options.settings)
    mine = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        asked = [pool.submit(train, options.name, recipe, seed, *more) for seed in seeds]
        for future in as_completed(asked):
            beside = min(options.jobs, len(seeds)) + options.others
            row = future.result() | {"side_by_side": beside}
            done[row["seed"]] = mine[row["seed"]] = row
            rows = [done[seed] for seed in sorted(done)]
            write_json(target, {**head, "rows": rows, "hardware": row["hardware"]})
    best = max(mine.values(), key=lambda row: row["valid"]["mrr"])
    if options.pretrained:
        ship(options.name, options.runs / f"{recipe}-{best['seed']}", ROOT / "pretrained" / recipe)
    for row in mine.values():
        print(
            f"{recipe} seed {row['seed']}: valid {row['valid']['mrr']:.4f} "
            f"test {row['test']['mrr']:.4f} after {row['training_seconds']:.0f} s of training"
        )


def train(
    name: str, recipe: str, seed: int, runs: Path, device: str, settings: list[str]
) -> dict[str, Any]:
    """One run, from raw triples to the test split."""
    run = runs / f"{recipe}-{seed}"
    runs.mkdir(parents=True, exist_ok=True)
    is_new = not (run / "checkpoint").exists()
    command: list[Any] = ["train", name, "--out", run, "--config", ROOT / f"configs/{recipe}.toml"]
    command += ["--json", "--device", device, "--resume", "--seed", seed]
    for setting in settings:
        command += ["--set", setting]
    started = time.perf_counter()
    result, error = oneshot(command, runs / f"{recipe}-{seed}.log")
    if result is None:
        sys.exit(f"{recipe}, seed {seed}: {error}")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {
        "seed": seed,
        "valid": {key: result["valid"][key] for key in FIGURES},
        "test": {key: result["test"][key] for key in FIGURES},
        "factor_weight": result["factor_weight"],
        "epochs": result["epochs"],
        "best_epoch": result["best_epoch"],
        "parameters": result["parameters"],
        "training_seconds": result["seconds"],
        # All of it: reading, training, validation, evaluation; not known of a resumed run.
        "wall_seconds": time.perf_counter() - started if is_new else None,
        "peak_gpu_megabytes": result["peak_gpu_megabytes"],
        "curve": [
            {
                "epoch": record["epoch"],
                "seconds": record["seconds"],
                "loss": record["loss"],
                "valid_mrr": record.get("valid", {}).get("mrr"),
            }
            for record in map(json.loads, lines)
        ],
        "hardware": hardware(find_device(device)),
    }


def ship(name: str, run: Path, target: Path) -> None:
    """Copy what evaluation needs; the graph is named, not pointed to on this machine.

    Factors are left out if they are large; configuration and calibration are then those of the
    predictor alone.
    """
    target.mkdir(parents=True, exist_ok=True)
    opened = Run(run)
    config, calibration = opened.config, opened.calibration
    if calibration is None:
        sys.exit(f"{run}: has no calibration; finish its training first")
    factors = run / FACTORS
    size = factors.stat().st_size if factors.is_file() else 0
    is_whole = size <= LARGEST_FACTORS
    if not is_whole:
        config = replace(config, factors=FactorsConfig())
        calibration = calibration.alone or calibration
        print(
            f"{target}: without the factors of {size / 1e6:.0f} MB (at most "
            f"{LARGEST_FACTORS / 1e6:.0f} MB are shipped); its figures are those of the predictor "
            "alone, not those of the recipe",
            file=sys.stderr,
        )
    for file, is_shipped in ((SAMPLER, (run / SAMPLER).is_file()), (FACTORS, is_whole and size)):
        (target / file).unlink(missing_ok=True)  # of a run that was shipped before
        if is_shipped:
            shutil.copy(run / file, target / file)
    write_sealed_text(target / CONFIG, to_toml(config))
    write_sealed_json(target / CALIBRATION, asdict(calibration))
    graph = read_sealed_json(run / GRAPH)
    graph["origin"]["source"] = name
    graph.pop("files", None)
    write_sealed_json(target / GRAPH, graph)
    # The relations as a part of the predictor, not as a file of the data set.
    tensors, about = load_tensors(run / PREDICTOR)
    about["relations"] = list(opened.relations)
    save_tensors(target / PREDICTOR, tensors, about)


if __name__ == "__main__":
    main()
