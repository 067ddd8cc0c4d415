"""Zero-shot metrics of a pre-trained run, on graphs whose relations it was not trained on.

    python -m benchmarks.zero_shot [RUN] [--split test] [--data zero-shot/FB-50 ...]

RUN is `foundation` by default. The graph is the training split, the filter all splits. Inductive
sets (`inductive/NAME_ind`) are asked for their valid and test facts together, as RED-GNN, ULTRA and
TRIX do, if the split is test. Rows are added to `results/zero-shot.json`; a row that is there
already is replaced.
"""

import argparse
import json

import torch
from benchmarks.common import RESULTS

from oneshot.data.load import load
from oneshot.evaluation.evaluate import drawn_queries, evaluate
from oneshot.evaluation.frequency import Frequency
from oneshot.experiments.bench.measure import hardware
from oneshot.ranking import KnownFacts
from oneshot.runs.run import Run
from oneshot.system.devices import find_device
from oneshot.system.files import write_json

ZERO_SHOT = ("FB-50", "WK-50", "NL-50", "NL-0")
INDUCTIVE = ("fb237_v1", "fb237_v2", "WN18RR_v1", "WN18RR_v2", "nell_v1", "nell_v2")
DATA = (
    *(f"zero-shot/{name}" for name in ZERO_SHOT),
    *(f"inductive/{name}_ind" for name in INDUCTIVE),
    "UMLS",
    "Family",
    "world",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="foundation")
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--split", choices=["valid", "test"], default="test")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    path, device = RESULTS / "zero-shot.json", find_device(options.device)
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    run = Run.open(options.run, options.settings)
    for name in options.data:
        data = load(name)
        facts = data.facts(options.split)
        if name.endswith("_ind") and options.split == "test":
            facts = torch.cat([data.valid, data.test])
        reasoner = run.reasoner_on(data.graph).to(device)
        report = evaluate(reasoner, facts, data.known, limit=options.limit)
        sizes = data.graph.num_entities, data.graph.num_relations
        asked = drawn_queries(facts, data.graph.num_relations, options.limit)
        baseline = Frequency(data.train, *sizes).metrics(*asked, KnownFacts(data.known, *sizes))
        row = {
            "run": options.run,
            "data": name,
            "split": options.split,
            "queries": report.queries,
            "mrr": report.mrr,
            "mrr_pessimistic": report.pessimistic.mrr,
            "hits@1": report.metrics.as_dict()["hits@1"],
            "hits@10": report.metrics.as_dict()["hits@10"],
            "coverage": report.coverage,
            "baseline_mrr": baseline.mrr,
            "seconds": report.seconds,
            "settings": options.settings,
            "hardware": hardware(device),
        }
        key = ("run", "data", "split")
        rows = [old for old in rows if any(old[part] != row[part] for part in key)]
        rows.append(row)
        write_json(path, {"rows": rows})
        print(
            f"{name}, {options.split}: MRR {report.mrr:.4f}, pessimistic "
            f"{report.pessimistic.mrr:.4f}, frequency {baseline.mrr:.4f}, coverage "
            f"{report.coverage:.3f}, {report.seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
