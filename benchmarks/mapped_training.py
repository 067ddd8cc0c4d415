"""Training on saved graphs: `python -m benchmarks.mapped_training [FACTS ...]`.

Queries per second of a training, and the memory that it takes, on power-law graphs: in memory with
a copy of the adjacency per epoch, in memory with a view, and memory-mapped, without and with worker
processes that sample ahead. Each way is measured in a process of its own. Memory is that of the
process alone; the pages of a mapped graph are a cache that the system takes back when it needs
memory, and are given beside it. Linux only.
"""

import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import write_result

from oneshot import load
from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.data.synthetic.generators import power_law
from oneshot.graph.adjacency import Edges, Neighbours
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.build import build_reasoner
from oneshot.training import epoch as epochs
from oneshot.training.steps import Stepper

FACTS = (10**6, 10**7)
FACTS_PER_ENTITY = 10
ENTITIES = 500  # per subgraph
WAYS = ("memory, copied", "memory, view", "mapped", "mapped, 1 worker", "mapped, 2 workers")
QUERIES = 20_000  # per epoch
WARM_SECONDS, SECONDS = 5.0, 30.0


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(Path(sys.argv[2]), sys.argv[3])))
        return
    rows = []
    for facts in [int(float(size)) for size in sys.argv[1:]] or FACTS:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "graph"
            begun = time.perf_counter()
            power_law(facts // FACTS_PER_ENTITY, facts).save(path)
            print(f"{facts:,} facts: saved in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
            for way in WAYS:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.mapped_training",
                    "--one",
                    str(path),
                    way,
                ]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                rows.append({"facts": facts, "way": way, **json.loads(done.stdout)})
                print(rows[-1], file=sys.stderr)
    about = {"rows": rows, "entities_per_subgraph": ENTITIES, "queries_per_epoch": QUERIES}
    write_result("mapped-training", about)


def measured(path: Path, way: str) -> dict[str, Any]:
    """Time and memory of a part of an epoch, in one way."""
    data = load(path)
    if way.startswith("memory"):
        data = dataclasses.replace(data, graph=in_memory(data))
        epochs._LEAST_HIDING = 0 if "view" in way else 2**62
    workers = int(way.split()[1]) if "worker" in way else 0
    training = TrainingConfig(
        epochs=1,
        batch_size=16,
        fact_ratio=0.95,
        query_share=min(QUERIES / 2 / (0.05 * data.graph.num_facts), 1.0),
        workers=workers,
    )
    shape = PredictorConfig(num_layers=4, dim=32)
    config = Config(SamplerConfig(max_entities=ENTITIES, method="push"), shape, training)
    reasoner = build_reasoner(data.graph, config)
    with Memory() as memory:
        stepper = Stepper(reasoner, data, training)
        begun = time.perf_counter()
        epoch = stepper.draw_epoch(1)
        assert epoch.observed.num_facts
        drawn = time.perf_counter() - begun
        steps = stepper.steps(epoch)
        asked = 0
        for seconds in (WARM_SECONDS, SECONDS):
            begun, asked = time.perf_counter(), 0
            for done in steps:
                asked += done.queries
                if time.perf_counter() - begun > seconds:
                    break
            taken = time.perf_counter() - begun
        stepper.close()
    return {
        "queries_per_second": round(asked / taken, 1),
        "seconds_to_draw": round(drawn, 2),
        "megabytes": round(memory.peak / 1e6),
        "mapped_megabytes": round(status("RssFile") / 1e6),
    }


def in_memory(data: Dataset) -> KnowledgeGraph:
    """The graph of a data set with its own memory, and without the index of its file."""
    graph = data.graph
    copy = KnowledgeGraph(graph.facts.clone(), graph.entities, graph.relations)
    copy.edges = Edges(
        *(getattr(graph.edges, name).clone() for name in ("indptr", "source", "relation", "fact"))
    )
    copy.neighbours = Neighbours(
        *(getattr(graph.neighbours, name).clone() for name in ("indptr", "index", "pair"))
    )
    return copy


class Memory:
    """The largest memory of this process without files, in bytes: `peak`."""

    def __enter__(self) -> "Memory":
        self.peak, self._is_over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        for number in itertools.count():
            self.peak = max(self.peak, status("RssAnon"))
            if self._is_over.wait(0.002 if number < 100 else 0.02):
                return


def status(name: str) -> int:
    """A value of `/proc/self/status` in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
