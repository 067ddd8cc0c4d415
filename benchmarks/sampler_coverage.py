"""Coverage of all samplers on WN18RR and NELL-995, beside the figures of the paper."""

from typing import Any

import torch
from benchmarks.common import find, write_result
from rich.console import Console
from rich.table import Table

from oneshot.data.load import load
from oneshot.evaluation.coverage import coverage
from oneshot.experiments.paper import literature
from oneshot.samplers import SAMPLERS

RATIOS = (0.1, 0.2, 0.5)

DATA = ("WN18RR", "NELL-995")


def main() -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    table = Table("data", "sampler", *(f"{r} (paper)" for r in RATIOS), "seconds")
    for name in DATA:
        data = load(find(name))
        queries, answers = data.queries("test")
        results[name] = []
        for sampler in SAMPLERS:
            paper = literature.COVERAGE.get((name, sampler), {})
            one = SAMPLERS[sampler](0.5)
            one.fit(data.graph)
            row = coverage(one, data.graph, queries, answers, RATIOS)
            results[name].append(
                {
                    "sampler": sampler,
                    "coverage": row.coverage,
                    "reachable": row.reachable,
                    "paper": dict(paper),
                    "queries": row.queries,
                    "seconds": round(row.seconds, 2),
                }
            )
            cells = [f"{row.coverage[r]:.3f} ({paper.get(str(r), '–')})" for r in RATIOS]
            table.add_row(name, sampler, *cells, f"{row.seconds:.1f}")
    Console().print(table)
    walks = SAMPLERS["random_walk"]()
    write_result(
        "coverage",
        {
            "split": "test",
            "random_walk": {"walks": walks.walks, "length": walks.length},  # type: ignore[attr-defined]
            "threads": torch.get_num_threads(),
            "rows": results,
        },
    )


if __name__ == "__main__":
    main()
