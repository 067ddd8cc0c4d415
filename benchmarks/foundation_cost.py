"""Cost of the foundation run: seconds to a first answer, time per query, and memory.

    python -m benchmarks.foundation_cost [--cores 2] [--queries 100] [--device cpu]
        [--only first-answer WN18RR HsGeneKG "saved HsGeneKG"]

`first-answer`: `oneshot predict foundation ENTITY RELATION --data FILE`, from the start of Python
to its end, for a TSV file of 100,000 facts of FB15k-237; three times, each with another query.
For each other name a process of its own loads the graph, prepares the reasoner and answers queries
of the test split one at a time; `power-law:1e6:1e7` is a generated graph of ten million facts.
`saved NAME` is the graph as `oneshot data NAME --save DIR` writes it, with what is measured once
for the local push (`save_seconds`); other graphs are read from their files or generated. A few
answers come before those that are timed. `cpu` is the CPU time of all threads, `peak_mb` the peak
memory of the whole process. Rows are written to `results/foundation-cost.json` as they are
finished, and replace those of the same name and device.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from oneshot.system.process import prepare_process

prepare_process()  # before torch is loaded, as the command line does

import numpy as np  # noqa: E402
import torch  # noqa: E402
from benchmarks.common import RESULTS  # noqa: E402

from oneshot.data.load import load  # noqa: E402
from oneshot.experiments.bench.measure import hardware  # noqa: E402
from oneshot.runs.run import Run  # noqa: E402
from oneshot.system.devices import find_device  # noqa: E402
from oneshot.system.files import write_json  # noqa: E402

RUN = "foundation"
FIRST, FACTS, SOURCE = "first-answer", 100_000, "FB15k-237"
SAVED = "saved "
NAMES = (
    FIRST,
    "WN18RR",
    "HsGeneKG",
    "saved HsGeneKG",
    "power-law:1e6:1e7",
    "saved power-law:1e6:1e7",
)
_REPEATS, _WARM_UP, _TOP = 3, 5, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--job", help=argparse.SUPPRESS)  # one graph, in a process of its own
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure_queries(options.job, options.queries, options.device)))
        return
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    os.sched_setaffinity(0, cores)
    variables = {"OMP_NUM_THREADS": str(len(cores)), "MKL_NUM_THREADS": str(len(cores))}
    os.environ |= variables
    path = RESULTS / "foundation-cost.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    for name in options.only:
        if name == FIRST:
            found = measure_first_answer(options.device)
        elif name.startswith(SAVED):
            with tempfile.TemporaryDirectory(prefix="foundation-cost-") as scratch:
                begun = time.perf_counter()
                in_json("oneshot", "data", name.removeprefix(SAVED), "--save", f"{scratch}/graph")
                seconds = round(time.perf_counter() - begun, 1)
                found = queries_in_own_process(f"{scratch}/graph", options)
                found["save_seconds"] = seconds
        else:
            found = queries_in_own_process(name, options)
        machine = {**hardware(find_device(options.device)), "cores": len(cores)}
        row = {"name": name, "device": options.device, **found, "hardware": machine}
        key = (name, options.device)
        rows = [old for old in rows if (old["name"], old["device"]) != key] + [row]
        rows.sort(key=lambda row: (row["device"], NAMES.index(row["name"])))
        write_json(path, {"rows": rows})
        print({key: value for key, value in row.items() if key != "hardware"}, flush=True)


def queries_in_own_process(data: str, options: argparse.Namespace) -> dict[str, Any]:
    settings = ("--queries", str(options.queries), "--device", options.device)
    return in_json("benchmarks.foundation_cost", "--job", data, *settings)


def in_json(*command: str) -> dict[str, Any]:
    """The JSON object that `python -m COMMAND` prints at its end."""
    whole = [sys.executable, "-m", *command, *(["--json"] if command[0] == "oneshot" else [])]
    done = subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True)
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def measure_first_answer(device: str) -> dict[str, Any]:
    """Time and memory of the command, for a file of facts that it has never read."""
    data = load(SOURCE)
    order = np.random.default_rng(0).permutation(len(data.train))[:FACTS]
    facts = data.train.numpy()[order]
    entities, relations = list(data.entities), list(data.relations)
    rows = []
    with tempfile.TemporaryDirectory(prefix="foundation-cost-") as scratch:
        file = Path(scratch) / "facts.tsv"
        names = ((entities[h], relations[r], entities[t]) for h, r, t in facts.tolist())
        file.write_text("".join("\t".join(fact) + "\n" for fact in names), "utf-8")
        for head, relation, _ in facts[:_REPEATS].tolist():
            command = [sys.executable, "-m", "oneshot", "predict", RUN, entities[head]]
            command += [relations[relation], "--data", str(file), "--device", device, "--json"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            begun = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            elapsed = time.perf_counter() - begun
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            rows.append({"seconds": elapsed, "cpu": spent, "peak_mb": after.ru_maxrss / 1024})
    return {
        "facts": FACTS,
        "entities": len(np.unique(facts[:, [0, 2]])),
        "seconds": [round(row["seconds"], 2) for row in rows],
        "cpu": [round(row["cpu"], 2) for row in rows],
        "peak_mb": round(max(row["peak_mb"] for row in rows)),
    }


def measure_queries(name: str, count: int, device: str) -> dict[str, Any]:
    """Time of loading, preparation and each of some queries of the test split."""
    begun = time.perf_counter()
    data = load(name)
    loaded = time.perf_counter()
    reasoner = Run.open(RUN).reasoner_on(data.graph).to(find_device(device))
    prepared = time.perf_counter()
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))
    elapsed, spent = [], []
    for number, (head, relation, _) in enumerate(data.test[order[: _WARM_UP + count]].tolist()):
        start, cpu = time.perf_counter(), time.process_time()
        reasoner.predict(head, relation, top=_TOP)
        if number >= _WARM_UP:
            elapsed.append(time.perf_counter() - start)
            spent.append(time.process_time() - cpu)
        elif not number:
            first = time.perf_counter() - start
    return {
        "facts": data.graph.num_facts,
        "entities": data.graph.num_entities,
        "load_seconds": round(loaded - begun, 2),
        "prepare_seconds": round(prepared - loaded, 2),
        "first_query_seconds": round(first, 2),
        "queries": len(elapsed),
        "median_seconds": round(statistics.median(elapsed), 4),
        "p90_seconds": round(float(np.quantile(elapsed, 0.9)), 4),
        "max_seconds": round(max(elapsed), 4),
        "median_cpu": round(statistics.median(spent), 4),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    main()
