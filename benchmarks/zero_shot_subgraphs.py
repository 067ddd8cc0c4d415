"""Zero-shot metrics and time of a pre-trained run, from small subgraphs to whole graphs.

    python -m benchmarks.zero_shot_subgraphs [RUN] [--data NAME ...] [--shares 0.05,0.1,0.2,1]
        [--limit 200] [--device cpu]

RUN is `foundation` by default. The graph is the training split, the filter all splits, the queries
those of the test split or `--limit` of them, the same for all shares of the entities. The share 1
is the whole graph. Time is that of the queries alone, per query: elapsed, and of the CPU cores
together. Rows are added to `results/zero-shot-subgraphs.json` as they are finished; a row that is
there with as many queries is not measured again, unless `--again` is given.
"""

import argparse
import json
import time
from typing import Any

import torch
from benchmarks.common import RESULTS

from oneshot.data.load import Dataset, load
from oneshot.evaluation.evaluate import evaluate
from oneshot.experiments.bench.measure import hardware
from oneshot.runs.run import Run
from oneshot.system.devices import find_device
from oneshot.system.files import write_json

DATA = ("zero-shot/FB-50", "NELL-995", "FB15k-237")
_KEY = ("run", "data", "share", "device")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", default="foundation")
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--shares", default="0.05,0.1,0.2,1", help="of the entities")
    parser.add_argument("--limit", type=int, help="queries, drawn with seed 0; all by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--again", action="store_true", help="measure rows that are there anew")
    options = parser.parse_args()
    path, device = RESULTS / "zero-shot-subgraphs.json", find_device(options.device)
    rows: list[dict[str, Any]] = []
    if path.exists():
        rows = json.loads(path.read_text("utf-8"))["rows"]
    for name in options.data:
        data = load(name)
        for share in map(float, options.shares.split(",")):
            count = min(options.limit or 2 * len(data.test), 2 * len(data.test))
            key = (options.run, name, share, device.type)
            same = [row for row in rows if tuple(row[part] for part in _KEY) == key]
            if same and same[0]["queries"] == count and not options.again:
                continue
            row = dict(zip(_KEY, key, strict=True)) | measure(
                options.run, data, share, options.limit, device
            )
            rows = [old for old in rows if old not in same] + [row]
            rows.sort(key=lambda row: (DATA.index(row["data"]), row["device"], row["share"]))
            write_json(path, {"rows": rows})
            print(
                f"{name}, {share:.0%}: MRR {row['mrr']:.4f}, coverage {row['coverage']:.3f}, "
                f"{1000 * row['seconds_per_query']:.0f} ms and {1000 * row['cpu_per_query']:.0f} "
                "ms of CPU time per query",
                flush=True,
            )


def measure(
    run: str, data: Dataset, share: float, limit: int | None, device: torch.device
) -> dict[str, Any]:
    """The metrics of a run on subgraphs with a share of the entities."""
    entities = max(int(share * data.graph.num_entities), 1)
    opened = Run.open(run, [f"sampler.max_entities={entities}"])
    reasoner = opened.reasoner_on(data.graph).to(device)
    # Kernels are compiled and tables of the graph computed before time is measured.
    evaluate(reasoner, data.valid, data.known, limit=4 if device.type == "cpu" else 128)
    begun, spent = time.perf_counter(), time.process_time()
    report = evaluate(reasoner, data.test, data.known, limit=limit)
    elapsed, spent = time.perf_counter() - begun, time.process_time() - spent
    return {
        "entities": entities,
        "queries": report.queries,
        "of": report.of,
        "mrr": report.mrr,
        "mrr_interval": list(report.interval),
        "hits@10": report.metrics.as_dict()["hits@10"],
        "coverage": report.coverage,
        "seconds_per_query": elapsed / report.queries,
        "cpu_per_query": spent / report.queries,
        "threads": torch.get_num_threads(),
        "hardware": hardware(device),
    }


if __name__ == "__main__":
    main()
