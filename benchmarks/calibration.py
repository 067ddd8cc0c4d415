"""How honest probabilities are: expected calibration error on the test split, before and after.

    python -m benchmarks.calibration RUN ... [--limit 1000] [--device cpu]

Each run is calibrated on its validation split in two ways: as earlier versions did, by a softmax
over all entities with one line for all relations; and as now, by evidence against entities that are
not known answers, with an offset per relation. Both are judged on the ten best answers of test
queries that are facts of neither training nor validation, of which those in the test split hold.
Results of other data sets in the file are kept.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import RESULTS, write_result

from oneshot.data.dataset import both_directions
from oneshot.experiments.bench.measure import hardware
from oneshot.reasoner.answers import Rivals
from oneshot.reasoner.calibration import (
    JudgedAnswers,
    _fit_logistic,
    _fitted,
    _probabilities,
    calibration_error,
    judge_answers,
    labelled_shares,
    reliability,
)
from oneshot.runs.run import Run
from oneshot.system.devices import find_device

# Relations with fewer facts in the test split are not judged on their own.
_LEAST_FACTS = 50


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, default=1000, help="queries per split")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = find_device(options.device)
    file = RESULTS / "calibration.json"
    kept = json.loads(file.read_text())["rows"] if file.exists() else []
    for path in options.runs:
        row = {**measure(path, options.limit, device), "hardware": hardware(device)}
        print(row["data"])
        for name in ("before", "after"):
            part = row[name]
            print(
                f"  {name:6s} error {part['error']:.4f}, per relation "
                f"{part['relation_error'] or 0:.4f} ({row['relations']} relations)"
            )
        kept = sorted(
            [row, *(old for old in kept if old["data"] != row["data"])], key=lambda one: one["data"]
        )
        write_result("calibration", {"split": "test", "rows": kept})


def measure(path: Path, limit: int, device: torch.device) -> dict[str, Any]:
    """The errors of one run."""
    run = Run.open(path)
    reasoner, data = run.reasoner.to(device), run.data
    parts: dict[str, dict[str, Any]] = {}
    facts = torch.bincount(data.test[:, 1], minlength=data.graph.num_relations)
    common = [r for r, count in enumerate(facts.tolist()) if count >= _LEAST_FACTS]
    ways: tuple[tuple[str, Rivals], ...] = (("before", "all"), ("after", "unknown"))
    for name, rivals in ways:
        valid, test = (judged(reasoner, data, split, rivals, limit) for split in ("valid", "test"))
        if rivals == "all":
            chances = torch.sigmoid(_line(valid, test.evidence))
        else:
            chances = _probabilities(test, *_fitted(valid, labelled_shares(data)))
        own = {
            data.graph.relations[r]: calibration_error(chances[mine], test.holds[mine])
            for r in common
            if bool((mine := test.relation % data.graph.num_relations == r).any())
        }
        parts[name] = {
            "error": calibration_error(chances, test.holds),
            "relation_error": statistics.mean(own.values()) if own else None,
            "per_relation": own,
            "curve": [part._asdict() for part in reliability(chances, test.holds)],
            "answers": len(chances),
        }
    return {"data": data.name, "relations": len(common), "limit": limit, **parts}


def _line(valid: JudgedAnswers, evidence: torch.Tensor) -> torch.Tensor:
    slope, offset = _fit_logistic(valid.evidence, valid.holds)
    return slope * evidence + offset


def judged(reasoner: Any, data: Any, split: str, rivals: Rivals, limit: int) -> JudgedAnswers:
    """Judged answers of at most `limit` queries of a split."""
    queries, _ = both_directions(data.facts(split), data.graph.num_relations)
    queries = queries.unique(dim=0)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:limit]
    known = data.train if split == "valid" else torch.cat([data.train, data.valid])
    asked = queries[order].to(reasoner.device)
    return judge_answers(reasoner, asked, data.facts(split), known, rivals)


if __name__ == "__main__":
    main()
