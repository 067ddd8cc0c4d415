"""The main table: accuracy on the large benchmarks, three seeds, with the full trainings."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from oneshot.config import read_config
from oneshot.errors import InputError
from oneshot.paper.table import Column, Figures, Row, Table
from oneshot.paper.trained import ACCURACY
from oneshot.paper.workbench import LARGE, Workbench

CONFIGS = Path("configs")
"""Where the configurations of the full trainings are looked for."""

SEEDS = 3

# MRR, Hits@1, Hits@10 that papers state, for the paper's own system and its peers.
PUBLISHED: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "WN18RR": {
        "one-shot subgraph": (0.567, 0.514, 0.666),
        "NBFNet": (0.551, 0.497, 0.666),
        "RED-GNN": (0.533, 0.485, 0.624),
        "RotatE": (0.477, 0.428, 0.571),
    },
    "NELL-995": {
        "one-shot subgraph": (0.547, 0.485, 0.651),
        "NBFNet": (0.525, 0.451, 0.639),
        "RED-GNN": (0.543, 0.476, 0.651),
        "RotatE": (0.508, 0.448, 0.608),
    },
    "YAGO3-10": {
        "one-shot subgraph": (0.606, 0.540, 0.721),
        "NBFNet": (0.550, 0.479, 0.683),
        "RED-GNN": (0.559, 0.483, 0.689),
        "RotatE": (0.495, 0.402, 0.670),
    },
}


def _plan(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names(*LARGE):
        published = PUBLISHED.get(name, {}).get("one-shot subgraph")
        paper = dict(zip(("mrr", "hits@1", "hits@10"), published or (), strict=bool(published)))
        for number in range(1 if bench.quick else SEEDS):
            seed = bench.seed + number
            yield Row({"data": name, "seed": seed}, partial(_trained, bench, name, seed), paper)


def _trained(bench: Workbench, name: str, seed: int) -> Figures:
    changes = [*bench.changes, f"training.seed={seed}"]
    if bench.quick:
        config = bench.config(name, {"training.seed": seed})
    else:
        path = CONFIGS / f"{name}.toml"
        if not path.is_file():
            raise InputError(
                f"{path}: is missing; run this where the repository's configurations are, or "
                "leave this data set out with --data"
            )
        config = read_config(path, changes)
    return bench.train(bench.dataset(name), config)


def _finding(rows: Sequence[Figures]) -> str:
    parts = []
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data and "mrr" in row]
        if mine:
            mean = statistics.mean(row["mrr"] for row in mine)
            spread = max(row["mrr"] for row in mine) - min(row["mrr"] for row in mine)
            paper = mine[0].get("paper", {}).get("mrr")
            beside = "" if paper is None else f" against {paper:.3f}"
            seeds = f"{len(mine)} seed" + ("s" if len(mine) > 1 else "")
            parts.append(f"{data} {mean:.3f}{beside} ({seeds}, spread {spread:.3f})")
    return "Mean test MRR, the paper's beside it: " + "; ".join(parts) + "." if parts else ""


MAIN = Table(
    "main",
    "Accuracy on the large benchmarks",
    (
        Column("data", "data"),
        Column("seed", "seed"),
        *ACCURACY,
        Column("valid MRR", "valid_mrr", ".3f"),
        Column("training s", "seconds", ",.0f"),
        Column("parameters", "parameters", ","),
        Column("peak MB", "peak_megabytes", ",.0f"),
        Column("failure", "failure"),
    ),
    _plan,
    _finding,
)
