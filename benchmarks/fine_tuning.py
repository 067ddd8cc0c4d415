"""Trainings that start from the foundation run beside trainings from scratch, in the same time.

    python -m benchmarks.fine_tuning [DATA ...] [--minutes 1,3,10] [--seeds 0] [--device cpu]
        [--parallel 8 --cores 2] [--until SECONDS]

For each data set, time budget and seed, `oneshot train DATA --minutes M` runs twice, each in a
process of its own: as it is, and with `--from foundation`. Nothing else is set; the plan chooses
the rest, and validation the best epoch. An inductive set NAME is trained on NAME, and the run is
then asked for the facts of NAME_ind, whose entities it has never seen: `mrr` is that of the test
facts alone, `merged_mrr` that of valid and test facts together, as ULTRA and TRIX report it. On the
other data sets `mrr` is that of their own test split.

Each finished row is added to `benchmarks/results/fine-tuning.json` at once; a row that is there is
not measured again, unless `--again` is given. `--parallel`, `--cores`, `--until` and `--results`
are those of `benchmarks.first_training`. `--show` prints the table of the rows that are there.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, write_result
from benchmarks.first_training import core_sets, figures, machine, run_all, timed, train_command

from oneshot.data.load import source_exists

NAME = "fine-tuning"
FOUNDATION, SCRATCH = "foundation", "scratch"
_INDUCTIVE = [f"{name}_v{version}" for name in ("WN18RR", "fb237", "nell") for version in (1, 2)]
DATA = (*(f"inductive/{name}" for name in _INDUCTIVE), "UMLS", "zero-shot/NL-50")
_REPORTED = ("mrr", "hits@1", "hits@10", "coverage", "queries")


class Job(NamedTuple):
    """One row: a training on a data set, from some start, with a time budget and a seed."""

    data: str
    minutes: float
    start: str
    seed: int
    device: str

    @property
    def title(self) -> str:
        return f"{self.data}, {self.minutes:g} min from {self.start}, seed {self.seed}"

    def is_of(self, row: dict[str, Any]) -> bool:
        return all(row[name] == value for name, value in self._asdict().items())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="names or paths; all of DATA that are there")
    parser.add_argument("--minutes", default="1,3,10", help="time budgets, separated by commas")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time")
    parser.add_argument("--cores", type=int, default=2, help="for each job")
    parser.add_argument("--until", type=float, help="seconds after which nothing runs any more")
    parser.add_argument("--again", action="store_true", help="measure rows that are there anew")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    parser.add_argument("--show", action="store_true", help="only print the table")
    options = parser.parse_args()
    rows = read_rows(options.results)
    if not options.show:
        names = options.data or [name for name in DATA if source_exists(name)]
        # The longest first, so that none of them is left alone at the end.
        asked = [
            Job(name, minutes, start, int(seed), options.device)
            for minutes in sorted(map(float, options.minutes.split(",")), reverse=True)
            for seed in options.seeds.split(",")
            for name in names
            for start in (FOUNDATION, SCRATCH)
        ]
        if options.again:
            rows = [row for row in rows if not any(job.is_of(row) for job in asked)]
        missing = [job for job in asked if not any(job.is_of(row) for row in rows)]

        def add(row: dict[str, Any]) -> None:
            rows.append(row)
            write_result(NAME, {"rows": sorted(rows, key=_order)}, directory=options.results)

        own = core_sets(options.parallel, options.cores)
        run_all(missing, own, measure, add, options.until)
    for line in table(row for row in rows if row["device"] == options.device):
        print(line)


def read_rows(directory: Path) -> list[dict[str, Any]]:
    path = directory / f"{NAME}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.is_file() else []
    return rows


def measure(job: Job, cores: int) -> dict[str, Any] | None:
    """The row of a job, run in a process of its own; None, with a message, if that failed."""
    with tempfile.TemporaryDirectory(prefix="fine-tuning-") as scratch:
        out = f"{scratch}/run"
        command = train_command(job, out)
        if job.start == FOUNDATION:
            command += ["--from", FOUNDATION]
        done = timed(command, cores, job.title)
        if done is None:
            return None
        result, wall_seconds = done
        row = {**job._asdict(), **figures(result), "wall_seconds": wall_seconds}
        row["factor_weight"] = result["factor_weight"]
        if job.data.startswith("inductive/"):
            for name in _REPORTED:
                row[f"own_{name}"] = row.pop(name)
            asked = inductive_figures(job, out, cores)
            if asked is None:
                return None
            row |= asked
    return {**row, "hardware": machine(job, cores)}


def inductive_figures(job: Job, run: str, cores: int) -> dict[str, Any] | None:
    """The metrics of a run on the graph with new entities that belongs to its data set."""
    found = {}
    for split in ("valid", "test"):
        command = ["oneshot", "evaluate", run, "--data", f"{job.data}_ind", "--split", split]
        done = timed([*command, "--device", job.device, "--json"], cores, job.title)
        if done is None:
            return None
        found[split] = done[0]
    counts = [report["queries"] for report in found.values()]
    parts = [report["mrr"] for report in found.values()]
    merged = sum(n * mrr for n, mrr in zip(counts, parts, strict=True)) / sum(counts)
    return {**{name: found["test"][name] for name in _REPORTED}, "merged_mrr": merged}


def table(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Lines for people: a data set each, fine-tuned / from scratch for each time budget."""
    rows = list(rows)
    budgets = sorted({row["minutes"] for row in rows})
    head = f"{'data':24s}" + "".join(f"{f'{budget:g} min':>20s}" for budget in budgets)
    lines = [head]
    for name in sorted({row["data"] for row in rows}, key=_place):
        cells = []
        for budget in budgets:
            both = [mean_mrr(rows, name, budget, start) for start in (FOUNDATION, SCRATCH)]
            cells.append(" / ".join("–" if mrr is None else f"{mrr:.4f}" for mrr in both))
        lines.append(f"{name:24s}" + "".join(f"{cell:>20s}" for cell in cells))
    return lines


def mean_mrr(rows: Sequence[dict[str, Any]], name: str, minutes: float, start: str) -> float | None:
    """Mean test MRR over the seeds."""
    key = (name, minutes, start)
    found = [row["mrr"] for row in rows if (row["data"], row["minutes"], row["start"]) == key]
    return statistics.mean(found) if found else None


def _place(name: str) -> int:
    return DATA.index(name) if name in DATA else len(DATA)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    rest = tuple(row[name] for name in ("data", "device", "minutes", "start", "seed"))
    return _place(row["data"]), *rest


if __name__ == "__main__":
    main()
