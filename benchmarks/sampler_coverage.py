"""Coverage of the five samplers on WN18RR and NELL-995, beside the figures of the paper."""

from typing import Any

import torch
from common import find, write_result
from rich.console import Console
from rich.table import Table

from oneshot.coverage import coverage
from oneshot.datasets import load
from oneshot.samplers import SAMPLERS

RATIOS = (0.1, 0.2, 0.5)

# Coverage in the paper; "random walk" is not specified further there. The rows of PPR are certain,
# the others still have to be checked against the paper.
PAPER = {
    "WN18RR": {
        "ppr": (0.876, 0.896, 0.929),
        "bfs": (0.818, 0.858, 0.898),
        "random_walk": (0.315, 0.447, 0.694),
        "pagerank": (0.278, 0.407, 0.633),
        "random": (0.100, 0.200, 0.500),
    },
    "NELL-995": {
        "ppr": (0.965, 0.977, 0.987),
        "bfs": (0.872, 0.935, 0.982),
        "random_walk": (0.522, 0.552, 0.710),
        "pagerank": (0.405, 0.454, 0.603),
        "random": (0.100, 0.200, 0.500),
    },
}


def main() -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    table = Table("data", "sampler", *(f"{r} (paper)" for r in RATIOS), "seconds")
    for name, figures in PAPER.items():
        data = load(find(name))
        queries, answers = data.queries("test")
        results[name] = []
        for sampler in SAMPLERS:
            row = coverage(SAMPLERS[sampler](0.5), data.graph, queries, answers, RATIOS)
            results[name].append(
                {
                    "sampler": sampler,
                    "coverage": row.coverage,
                    "reachable": row.reachable,
                    "paper": dict(zip(RATIOS, figures[sampler], strict=True)),
                    "queries": row.queries,
                    "seconds": round(row.seconds, 2),
                }
            )
            cells = [
                f"{row.coverage[r]:.3f} ({p:.3f})"
                for r, p in zip(RATIOS, figures[sampler], strict=True)
            ]
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
