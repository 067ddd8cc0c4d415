"""Our predictor beside six embedding models on small benchmarks, into benchmarks/results.

    python -m benchmarks.compare umls --out DIR [--device auto]

Each model is trained until its validation MRR stops improving. Finished rows are kept in OUT; run
again, it goes on with those that are missing. Our own predictor has a shape that a processor trains
in minutes; the figures of the full configurations are in `results/small-graphs.json`.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from oneshot.system.process import prepare_process

prepare_process()  # before torch is loaded, as the command line does

from benchmarks.common import find, write_result  # noqa: E402

from oneshot.config import from_table  # noqa: E402
from oneshot.data.load import bundled_names, load  # noqa: E402
from oneshot.experiments.compare import Comparison, compare  # noqa: E402
from oneshot.system.devices import find_device  # noqa: E402

PEERS = ("frequency", "transe", "distmult", "complex", "rotate", "quate", "conve")
# Near what `oneshot search umls` found on two cores (benchmarks/search.py), deeper and trained
# for longer.
_FOUND = {
    "message": "nbfnet",
    "compose": "multiply",
    "aggregate": "mean",
    "activation": "identity",
    "dim": 32,
    "dropout": 0.3,
    "gate": False,
    "shortcut": True,
    "concat": True,
    "norm": True,
}
OURS: dict[str, dict[str, Any]] = {
    "umls": {
        "sampler": {"entity_ratio": 1.0},
        "predictor": {**_FOUND, "num_layers": 4},
        "training": {
            "epochs": 100,
            "batch_size": 128,
            "learning_rate": 0.0055,
            "weight_decay": 2e-5,
            "fact_ratio": 0.96,
            "valid_every": 5,
        },
    },
    "Family": {
        "sampler": {"entity_ratio": 0.1},
        "predictor": {**_FOUND, "num_layers": 3},
        "training": {
            "epochs": 24,
            "batch_size": 64,
            "learning_rate": 0.0055,
            "weight_decay": 2e-5,
            "fact_ratio": 0.96,
            "valid_every": 4,
            "valid_limit": 1000,
        },
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=OURS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--with", dest="peers", default=",".join(PEERS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.data not in bundled_names():
        find(options.data)
    device = find_device(options.device)
    bench = Comparison(
        options.out,
        device,
        options.seed,
        data=load(options.data),
        peers=options.peers.split(","),
        ours=from_table({**OURS[options.data]}, [f"training.seed={options.seed}"]),
    )
    found = compare(bench, lambda line: print(line, file=sys.stderr, flush=True))
    write_result(f"compare-{options.data}", found, device)


if __name__ == "__main__":
    main()
