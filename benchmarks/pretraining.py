"""Pre-training of the foundation run in several variants, one after the other; resumable.

    python -m benchmarks.pretraining --out runs [--minutes 12] [--variants 3g all] [--set ...]

A variant that was stopped continues from its checkpoint, and a finished one is kept unless it has
more `--minutes` now. The best parameters are chosen on the validation splits of FB-50 and WK-50.
Rows go to `results/pretraining.json`; `benchmarks.zero_shot` then measures a run.
"""

import argparse
import json
from pathlib import Path

from benchmarks.common import RESULTS

from oneshot.cli.display.pretraining import PretrainingDisplay
from oneshot.data.load import load
from oneshot.experiments.bench.measure import hardware
from oneshot.runs.pretrain import PretrainingJob
from oneshot.system.devices import find_device
from oneshot.system.files import write_json
from oneshot.training.interrupt import stop_request
from oneshot.training.pretraining import Mixture, pretraining_config

THREE = ("FB15k-237", "WN18RR", "zero-shot/CoDEx-M-part")
VARIANTS = {
    "3g": THREE,
    "all": (
        *THREE,
        "NELL-995",
        "zero-shot/Hetionet-part",
        "YAGO3-10-partial",
        "HsGeneKG-core",
        "family:2000",
        "rules:2000:50",
        "rules:5000:200",
    ),
    "small": (
        "inductive/fb237_v1",
        "inductive/fb237_v2",
        "inductive/nell_v1",
        "inductive/nell_v2",
        "inductive/WN18RR_v1",
        "inductive/WN18RR_v2",
        "zero-shot/CoDEx-M-part",
        "zero-shot/Hetionet-part",
        "family:300",
        "rules:1000:30",
    ),
}
VALID = ("zero-shot/FB-50", "zero-shot/WK-50")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=["3g", "all"])
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--max-entities", type=int, default=1000)
    parser.add_argument("--episode", type=int, default=16)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    path, device = RESULTS / "pretraining.json", find_device(options.device)
    size = 32 if device.type == "cpu" else 64
    changes = [f"training.batch_size={size}", f"training.minutes={options.minutes!r}"]
    for variant in options.variants:
        job = PretrainingJob(
            [load(name) for name in VARIANTS[variant]],
            [load(name) for name in VALID],
            options.out / variant,
            pretraining_config([*changes, *options.settings]),
            device,
            mixture=Mixture(steps=options.episode, max_entities=options.max_entities),
        )
        with stop_request() as should_stop:
            result = job.run(True, [PretrainingDisplay()], should_stop)
        result |= {"variant": variant, "settings": options.settings, "hardware": hardware(device)}
        # Read only now: another process may have added the row of another variant.
        rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
        rows = [row for row in rows if row["variant"] != variant] + [result]
        write_json(path, {"rows": rows})
        print(f"{variant}: MRR {result['mrr']}, {result['valid']}", flush=True)
        if result.get("stopped"):
            break


if __name__ == "__main__":
    main()
