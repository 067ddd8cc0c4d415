"""What a query teaches whose answer was not sampled: `training.uncovered`, judged on validation.

    python -m benchmarks.uncovered [WN18RR NELL-995 ...] [--seeds 3]

Trains the short configurations of the paper's tables with both values and several seeds. Rows that
`results/uncovered.json` has already are kept.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.common import RESULTS

from oneshot.experiments.bench.measure import hardware
from oneshot.experiments.tables.workbench import Workbench
from oneshot.reasoner.build import build_reasoner
from oneshot.system.devices import find_device
from oneshot.system.files import write_json
from oneshot.training.trainer import fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=["WN18RR", "NELL-995"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    path = RESULTS / "uncovered.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    done = {(row["data"], row["uncovered"], row["seed"]) for row in rows}
    device = find_device(options.device)
    for name in options.data:
        for seed in range(options.seeds):
            for uncovered in ("skip", "push_down"):
                if (name, uncovered, seed) in done:
                    continue
                with tempfile.TemporaryDirectory() as place:
                    bench = Workbench(Path(place), device, seed=seed)
                    config = bench.config(name, {"training.uncovered": uncovered})
                    data = bench.dataset(name)
                    state = fit(build_reasoner(data.graph, config, device), data, config.training)
                rows.append(
                    {
                        "data": name,
                        "uncovered": uncovered,
                        "seed": seed,
                        "valid_mrr": state.best_mrr,
                        "best_epoch": state.best_epoch,
                        "epochs": state.epoch,
                        "coverage": state.history[-1]["valid"]["coverage"],
                        "hardware": hardware(device),
                    }
                )
                write_json(path, {"rows": rows})
                print(f"{name}, seed {seed}, {uncovered}: valid MRR {state.best_mrr:.4f}")


if __name__ == "__main__":
    main()
