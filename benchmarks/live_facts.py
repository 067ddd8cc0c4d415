"""Facts that change while queries run: `python -m benchmarks.live_facts [CHANGES]`.

A thread adds and removes random facts of HsGeneKG, half each, 1,000 per second, while another one
samples subgraphs by the local push. Times of queries are those of the CPU in their own thread, with
the application of the changes that have arrived. In the end, the scores of the changed graph are
compared with those of a new graph with the same facts.
"""

import sys
import threading
import time
from typing import Any

import numpy as np
import torch
from benchmarks.common import find, write_result

from oneshot import load
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.samplers import PPRSampler
from oneshot.samplers._push import ppr_push
from oneshot.samplers.push_recall import sampled_entities

GRAPH = "HsGeneKG"
CHANGES = 100_000
RATE = 1000  # per second
BATCH = 100
COUNT = 2000
QUERIES = 200  # before the changes
COMPARED = 20
SEED = 0


def main() -> None:
    changes = int(float(sys.argv[1])) if len(sys.argv) > 1 else CHANGES
    base = load(find(GRAPH)).graph
    generator = np.random.default_rng(SEED)
    entities = sampled_entities(base, 1000, SEED)[torch.randperm(1000)]
    live = LiveGraph(base)
    writer = Writer(live, base, changes, generator)
    writer.change(BATCH)  # so that the overlay stands
    sampler = PPRSampler(max_entities=COUNT, method="push")
    timed(live, sampler, entities[:5])
    before = timed(live, sampler, entities[:QUERIES])
    thread = threading.Thread(target=writer.run)
    thread.start()
    during: list[float] = []
    place = 0
    while thread.is_alive():
        during += timed(live, sampler, entities[place % 1000 : place % 1000 + 10])
        place += 10
    thread.join()
    result = {
        "graph": GRAPH,
        "facts": base.num_facts,
        "changes": writer.done,
        "changes_per_second": round(writer.done / writer.seconds),
        "queries_before": summary(before),
        "queries_during": summary(during),
        **compared(live, writer, entities[:COMPARED]),
    }
    print(result)
    write_result("live-facts", result)


class Writer:
    """Adds and removes random facts, and keeps the facts that should result."""

    def __init__(
        self, live: LiveGraph, base: KnowledgeGraph, changes: int, generator: np.random.Generator
    ) -> None:
        self.live, self.base, self.changes, self.generator = live, base, changes, generator
        self.original = base.facts.numpy().astype(np.int64)
        self.facts: set[tuple[int, ...]] = set()  # added
        self.removed: set[tuple[int, ...]] = set()
        self.done, self.seconds = 0, 0.0

    def change(self, count: int) -> None:
        base, half = self.base, count // 2
        limits = base.num_entities, base.num_relations, base.num_entities
        new = [tuple(map(int, row)) for row in self.generator.integers(0, limits, (half, 3))]
        places = self.generator.integers(0, len(self.original), count - half)
        old = [tuple(map(int, row)) for row in self.original[places]]
        self.live.add([self.named(fact) for fact in new])
        self.live.remove([self.named(fact) for fact in old])
        self.removed -= set(new)
        self.facts |= set(new)
        self.facts -= set(old)
        self.removed |= set(old)
        self.done += count

    def named(self, fact: tuple[int, ...]) -> tuple[str, str, str]:
        head, relation, tail = fact
        return self.base.entities[head], self.base.relations[relation], self.base.entities[tail]

    def run(self) -> None:
        started = time.monotonic()
        while self.done < self.changes:
            self.change(BATCH)
            ahead = self.done / RATE - (time.monotonic() - started)
            if ahead > 0:
                time.sleep(ahead)
        self.seconds = time.monotonic() - started

    def result(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All facts after the changes."""
        key = self._keys(self.original)
        gone = self._keys(np.array(sorted(self.removed), np.int64).reshape(-1, 3))
        stay = self.original[~np.isin(key, gone)]
        more = np.array(sorted(self.facts), np.int64).reshape(-1, 3)
        return np.unique(np.concatenate([stay, more]), axis=0)

    def _keys(self, facts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        relations, entities = self.base.num_relations, self.base.num_entities
        keys: np.ndarray[Any, Any] = (facts[:, 0] * relations + facts[:, 1]) * entities
        keys += facts[:, 2]
        return keys


def timed(live: LiveGraph, sampler: PPRSampler, entities: torch.Tensor) -> list[float]:
    """Milliseconds of the CPU for each query."""
    times = []
    for entity in entities.tolist():
        started = time.thread_time()
        sampler.sample(live.graph(), torch.tensor([[entity, 0]]))
        times.append(1e3 * (time.thread_time() - started))
    return times


def summary(times: list[float]) -> dict[str, Any]:
    return {
        "queries": len(times),
        "cpu_ms": round(float(np.median(times)), 2),
        "p99_cpu_ms": round(float(np.quantile(times, 0.99)), 2),
    }


def compared(live: LiveGraph, writer: Writer, entities: torch.Tensor) -> dict[str, Any]:
    """The changed graph against a new one."""
    base, graph = writer.base, live.graph()
    new = KnowledgeGraph.from_distinct(writer.result(), base.entities, base.relations)
    counts = torch.full((len(entities),), COUNT)
    ours, expected = (ppr_push(one, entities, counts, 0.15) for one in (graph, new))
    same, error = [], 0.0
    for row in range(len(entities)):
        found, wanted = (
            dict(zip(p.entities[row].tolist(), p.score[row].tolist(), strict=True))
            for p in (ours, expected)
        )
        both = found.keys() & wanted.keys()
        same.append(len(both) / COUNT)
        error = max(error, *(abs(found[e] - wanted[e]) / wanted[e] for e in both))
    return {
        "facts_after": graph.num_facts,
        "facts_of_new_graph": new.num_facts,
        "same_degrees": bool(torch.equal(graph.neighbours.degree, new.neighbours.degree)),
        "same_selection": round(float(np.mean(same)), 5),
        "largest_relative_difference": error,
    }


if __name__ == "__main__":
    main()
