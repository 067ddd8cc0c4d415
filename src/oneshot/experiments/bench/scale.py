"""Scaling benchmark: build, open, sample and predict for graphs of increasing size.

`family` worlds have no hubs, `power-law` graphs have many. On the former, the cost of a query does
not depend on the size of the graph; on the latter, it must.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oneshot.errors import InputError, UnknownNameError
from oneshot.experiments.bench.measure import hardware
from oneshot.graph.adjacency import SMALL
from oneshot.system.files import write_json

GRAPHS = ("family", "power-law")
LEAST, MOST = 10_000, 150_000_000
GROWING = (
    "build_seconds",
    "build_peak_gb",
    "saved_gb",
    "open_ms",
    "sample_ms",
    "sample_cold_ms",
    "sample_cpu_ms",
    "predict_ms",
    "predict_cpu_ms",
    "resident_gb",
    "whole_graph_ms",
)
"""The columns for which a growth exponent is fitted."""

_DISK_BYTES = 170  # per fact: the text, the saved graph, and temporary files of the build
_OFFSET_BYTES = 40  # per entity: row offsets, degrees, components and the list by degree
_EXACT_BYTES = 24  # per fact: the matrix of the whole graph
_EXACT_ENTITY_BYTES = 150  # the blocks of scores over all entities

Row = dict[str, Any]


def bench_scale(
    sizes: Sequence[int],
    graphs: Sequence[str] = GRAPHS,
    *,
    max_entities: int = 2000,
    questions: int = 100,
    place: Path | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    done: Callable[[Row, dict[str, Any]], None] = lambda *_: None,
    before: dict[str, Any] | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Measure graphs of about so many facts; `place` is the directory of large temporary files.

    `progress` is called with the current step, the number of finished steps and their total; `done`
    with each measured row and the result so far. `before`: an earlier result, whose rows are not
    measured again. `keep`: a directory for the saved graphs, with the measurements of their steps
    (`STEP.json`); both are used again, so that a graph need not be built for every measurement.
    """
    check(sizes, graphs, place)
    steps = ("write", "build", "predict", "sample", "recall")
    asking = {"max_entities": max_entities, "questions": questions, "seed": seed}
    rows = _kept(before, asking)
    known = {(row["graph"], row["size"]) for row in rows}
    missing = [(g, n) for g in graphs for n in sorted(sizes) if (g, n) not in known]
    for place_in_line, (graph, facts) in enumerate(missing):
        row: Row = {"graph": graph, "size": facts}
        with tempfile.TemporaryDirectory(prefix="oneshot-scale-", dir=place) as directory:
            kept = None if keep is None else keep / f"{graph}-{facts}-{seed}"
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
            source = str(Path(directory, "source"))
            saved = str(Path(directory if kept is None else kept, "saved"))
            options: dict[str, dict[str, Any]] = {
                "write": {"graph": graph, "facts": facts, "directory": source, "seed": seed},
                "build": {"source": source, "saved": saved},
            }
            for number, step in enumerate(steps):
                finished = place_in_line * len(steps) + number
                what = f"{graph}, {facts:,} facts: {step}"
                progress(what, finished, len(missing) * len(steps))
                if step == "recall" and not _exact_fits(row):
                    row |= {"recall": None, "least_recall": None, "whole_graph_ms": None}
                    continue
                found = None if kept is None else kept / f"{step}.json"
                if found is not None and found.exists():
                    row |= json.loads(found.read_text(encoding="utf-8"))
                    continue
                measured = run_step(step, options.get(step, {"saved": saved, **asking}))
                if found is not None:
                    write_json(found, measured)
                row |= measured
                if step == "build":
                    shutil.rmtree(source)
        # The load by other jobs; rows may be measured on several machines and days.
        rows.append(row | {"load": round(os.getloadavg()[0], 1), "hardware": hardware()})
        done(row, _result(rows, asking))
    return _result(rows, asking)


def _kept(before: dict[str, Any] | None, asking: dict[str, int]) -> list[Row]:
    """The rows of an earlier result, which must have the same settings."""
    if before is None:
        return []
    for key, value in asking.items():
        if before.get(key) != value:
            raise InputError(
                f"the earlier result was measured with {key} {before.get(key)}, not {value}; write "
                "to another file"
            )
    return [dict(row) for row in before["rows"]]


def _result(rows: list[Row], asking: dict[str, int]) -> dict[str, Any]:
    rows = sorted(rows, key=lambda row: (GRAPHS.index(row["graph"]), row["size"]))
    of_graph = {
        graph: [row for row in rows if row["graph"] == graph]
        for graph in dict.fromkeys(row["graph"] for row in rows)
    }
    growth = {graph: fitted(mine) for graph, mine in of_graph.items()}
    return {
        "bench": "scale",
        **asking,
        "rows": rows,
        "growth": growth,
        "wikidata": {graph: estimate(mine, growth[graph]) for graph, mine in of_graph.items()},
        "hardware": hardware(),
    }


def check(sizes: Sequence[int], graphs: Sequence[str], place: Path | None) -> None:
    """Raise if this cannot be measured; called before the long work starts."""
    for graph in graphs:
        if graph not in GRAPHS:
            raise UnknownNameError.among("graph", graph, GRAPHS)
    for facts in sizes:
        if not LEAST <= facts <= MOST:
            raise InputError(f"the number of facts must be {LEAST:,} to {MOST:,}, not {facts:,}")
    where = Path(tempfile.gettempdir()) if place is None else place
    if not where.is_dir():
        raise InputError(f"{where} is not a directory")
    needed, free = _DISK_BYTES * max(sizes), shutil.disk_usage(where).free
    if needed > free:
        raise InputError(
            f"{where}: {max(sizes):,} facts need about {needed / 2**30:.1f} GB of disk, and "
            f"{free / 2**30:.1f} GB are free; choose another disk with --directory"
        )


def run_step(step: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run a step of `scale_steps` in a new process. Returns its measurements."""
    command = [
        sys.executable,
        "-m",
        "oneshot.experiments.bench.scale_steps",
        step,
        json.dumps(options),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if finished.returncode:
        said = (finished.stderr.strip().splitlines() or ["killed, probably out of memory"])[-1]
        raise InputError(f"the step {step!r} failed (exit code {finished.returncode}): {said}")
    value: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return value


def fitted(rows: Sequence[Row]) -> dict[str, float]:
    """The exponents b of a · facts^b, by least squares of the logarithms; needs two rows."""
    growth = {}
    for key in GROWING:
        points = [(row["facts"], row[key]) for row in rows if row.get(key)]
        if len(points) > 1:
            facts, values = (np.log(column) for column in zip(*points, strict=True))
            growth[key] = round(float(np.polyfit(facts, values, 1)[0]), 3)
    return growth


def read_result(path: Path) -> dict[str, Any]:
    """Read the result of an earlier `oneshot bench scale`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["bench"] == "scale" and all({"graph", "size"} <= set(r) for r in value["rows"]):
            return dict(value)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise InputError(f"{path} was not written by `oneshot bench scale`")


def parse_size(text: str) -> int:
    """A number of facts, such as 1000000 or 1e6."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 1):
        raise InputError(f"--facts: {text!r} is not a number of facts, such as 1e6")
    return int(value)


def _exact_fits(row: Row) -> bool:
    """Whether the exact scores over the whole graph need at most half of the memory."""
    needed = _EXACT_BYTES * row["facts"] + _EXACT_ENTITY_BYTES * row["entities"]
    return bool(needed < 2**29 * hardware()["memory_gb"])


FACTS = 1_500_000_000
ENTITIES = 110_000_000
WORKSPACE_BYTES = 13  # per entity, at most: the scratch memory of the push

ASSUMPTIONS = (
    f"{FACTS:,} facts between {ENTITIES:,} entities, names of about 20 characters.",
    "Build time and disk grow in proportion to the facts, from the largest measured graph on; "
    "edge indices take 8 bytes instead of 4, because there are more than 2^31.",
    "The time of a subgraph continues to grow with the fitted exponent; that of the predictor does "
    "not, because the size of the subgraph is constant. The pages that queries read are assumed to "
    "be in memory, as after a warm-up; before that, each query waits for the disk.",
    f"Memory: up to {WORKSPACE_BYTES} bytes of scratch memory per entity that queries reach, in "
    "addition to the memory of every process; pages of the graph are cached as far as the system "
    "has free memory.",
    "Wikidata has larger hubs than either graph: queries about neighbours of a hub (a country, a "
    "profession) cost more, and the push finds a smaller part of the exact selection.",
)


def estimate(
    rows: Sequence[dict[str, Any]],
    growth: dict[str, float],
    facts: int = FACTS,
    entities: int = ENTITIES,
) -> dict[str, Any]:
    """Estimates from the largest measured graph, and the fitted `growth` of a subgraph's time."""
    largest = max(rows, key=lambda row: int(row["facts"]))
    factor = facts / largest["facts"]
    # `fact` and `pair` of each edge in both directions, for which 4 bytes were enough.
    wider = 16 * facts / 2**30 if 2 * facts >= SMALL else 0.0
    result: dict[str, Any] = {
        "facts": facts,
        "entities": entities,
        "from_facts": largest["facts"],
        "build_hours": round(largest["build_seconds"] * factor / 3600, 1),
        "saved_gb": round(largest["saved_gb"] * factor + wider),
        "scratch_gb": round(WORKSPACE_BYTES * entities / 2**30, 1),
        "temporary_gb": round(_DISK_BYTES * facts / 2**30),
        "offsets_gb": round(_OFFSET_BYTES * entities / 2**30, 1),
    }
    if "sample_ms" in growth:
        sample = largest["sample_ms"] * factor ** max(growth["sample_ms"], 0.0)
        rest = max(largest["predict_ms"] - largest["sample_ms"], 0.0)
        result |= {"sample_ms": round(sample, 1), "predict_ms": round(sample + rest, 1)}
    if "sample_cpu_ms" in growth:
        busy = largest["sample_cpu_ms"] * factor ** max(growth["sample_cpu_ms"], 0.0)
        rest = max(largest["predict_cpu_ms"] - largest["sample_cpu_ms"], 0.0)
        result |= {
            "subgraphs_per_core_second": round(1000 / busy, 1),
            "answers_per_core_second": round(1000 / (busy + rest), 1),
        }
    return result
