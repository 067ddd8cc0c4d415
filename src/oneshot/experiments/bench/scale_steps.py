"""The steps of `oneshot bench scale`, each in a separate process.

Peak and resident memory are measured per process, and only a new process has read no pages yet.
`python -m oneshot.experiments.bench.scale_steps STEP JSON` prints the measurements as JSON.
"""

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.config import PredictorConfig
from oneshot.data.dataset import SPLITS, Dataset
from oneshot.data.large.build import build_graph
from oneshot.data.load import load
from oneshot.data.locate import locate
from oneshot.data.synthetic.generators import family, power_law_facts
from oneshot.errors import OneshotError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.samplers._pagerank import ppr_chebyshev
from oneshot.samplers._push import hub_index_for, ppr_push
from oneshot.samplers.ppr import BALL_LARGEST_HUB
from oneshot.samplers.push_recall import measure_saved_graph, sampled_entities
from oneshot.system.process import prepare_process

FAMILY_FACTS = (
    7.87  # facts of train per person; rounded such that there are rather more facts than requested
)
POWER_LAW_FACTS = 10  # facts per entity, about as in Wikidata
RELATIONS = 10
HELD_OUT = 10_000  # at most, in valid and in test
_BLOCK = 1 << 20
_PASSES = 5  # over the same queries, after the warm-up
_PATIENCE = 60  # seconds after which no further pass starts
_WHOLE_QUERIES = 2  # queries with PPR on the whole graph; the first one builds the matrix
_EXACT_STEPS = 30  # terms of the Chebyshev series: the remainder is below 1e-7
_EXACT_QUERIES = 100
_TIMES = 3  # as many queries for the times of subgraphs as are answered: their p99 needs many
_EXACT_BLOCK = 6  # queries at once; takes 150 bytes per entity
_EXACT_PATIENCE = 3600  # seconds of the CPU after which no further block starts


def write(graph: str, facts: int, directory: str, seed: int) -> dict[str, Any]:
    """Write train, valid and test of a generated graph as text, `facts` of them in train."""
    place = Path(directory)
    place.mkdir()
    _WRITERS[graph](facts, place, seed)
    return {"text_gb": _size_gb(place)}


def build(source: str, saved: str) -> dict[str, Any]:
    """Build the saved graph on disk, regardless of its size."""
    started = time.perf_counter()
    build_graph(locate(Path(source)), Path(saved))
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    found = measure_saved_graph(Path(saved))
    return {
        "build_seconds": round(seconds, 2),
        "measure_seconds": round(time.perf_counter() - started, 2),
        "push_recall": found.push_recall,
        "hub_recall": found.hub_recall,
        "build_peak_gb": _memory_gb("VmHWM"),
        "saved_gb": _size_gb(Path(saved)),
    }


def predict(saved: str, max_entities: int, questions: int, seed: int) -> dict[str, Any]:
    """Open a saved graph that is not in the page cache, and answer queries one by one."""
    data, opened = _open_cold(Path(saved))
    asked = _questions(data, questions, seed)
    torch.manual_seed(seed)
    predictor = Predictor(PredictorConfig(), data.graph.num_relations)
    sampler = _local_sampler(data, max_entities)
    reasoner = Reasoner(data.graph, sampler, predictor)
    times, busy = [], []
    for entity, relation in asked.tolist():
        started, busy_before = time.perf_counter(), time.process_time()
        reasoner.predict(entity, relation)
        times.append(1000 * (time.perf_counter() - started))
        busy.append(1000 * (time.process_time() - busy_before))
    return {
        "open_ms": round(opened, 1),
        "first_question_ms": round(times[0], 1),
        "predict_ms": round(statistics.median(times), 2),
        "predict_p90_ms": round(float(np.quantile(times, 0.9)), 2),
        "predict_cpu_ms": round(statistics.median(busy), 2),
        "resident_gb": _memory_gb("VmRSS"),
        "resident_peak_gb": _memory_gb("VmHWM"),
    }


def sample(saved: str, max_entities: int, questions: int, seed: int) -> dict[str, Any]:
    """Sample subgraphs from a saved graph: first with a cold page cache, then again.

    Of the further passes, the lowest median counts, because other load of the machine can only
    increase it. `_cpu_ms`: the time of the CPU, which other load lengthens less. `slowest`: the
    query that took most of it, with its number of neighbours and the edges that it read.
    """
    data, _ = _open_cold(Path(saved))
    graph = data.graph
    asked = _questions(data, _TIMES * questions, seed)
    sampler = _local_sampler(data, max_entities)
    medians: list[float] = []
    tails: list[float] = []
    busy_medians: list[float] = []
    busy_tails: list[float] = []
    edges: list[int] = []
    least_busy: list[float] = []  # of each query, in a warm pass
    begun = time.perf_counter()
    while len(medians) < 2 or (len(medians) <= _PASSES and time.perf_counter() - begun < _PATIENCE):
        times, busy = [], []
        for query in asked[:, None]:
            started, busy_before = time.perf_counter(), time.process_time()
            batch = sampler.sample(graph, query)
            times.append(1000 * (time.perf_counter() - started))
            busy.append(1000 * (time.process_time() - busy_before))
            edges.append(batch.num_edges)
        for values, middle, tail in ((times, medians, tails), (busy, busy_medians, busy_tails)):
            middle.append(round(statistics.median(values), 3))
            tail.append(round(float(np.quantile(values, 0.99)), 3))
        if len(medians) > 1:
            least_busy = list(map(min, busy, least_busy or busy))
    place = int(np.argmax(least_busy))
    auto = PPRSampler(max_entities=max_entities)
    return {
        "facts": graph.num_facts,
        "entities": graph.num_entities,
        "largest_degree": graph.neighbours.largest_degree,
        "sample_cold_ms": medians[0],
        "sample_ms": min(medians[1:]),
        "sample_p99_ms": min(tails[1:]),
        "sample_cpu_ms": min(busy_medians[1:]),
        "sample_p99_cpu_ms": min(busy_tails[1:]),
        "sample_queries": len(asked),
        "slowest": {
            "cpu_ms": round(least_busy[place], 3),
            "degree": int(graph.neighbours.degree_of(asked[place, :1])),
            "subgraph_edges": edges[place],
            "push_edges": _push_edges(graph, asked[place, :1], max_entities)
            if sampler.method == "push"
            else None,
        },
        "local_method": sampler.method,
        "subgraph_edges": round(float(np.mean(edges))),
        "method_of_auto": auto.chosen_method(graph, max_entities),
    }


def _push_edges(graph: KnowledgeGraph, entity: Tensor, max_entities: int) -> int:
    """The edges that the push of `PPRSampler` reads for an entity [1]."""
    counts = torch.tensor([min(max_entities, graph.num_entities)])
    restart = PPRSampler().restart
    index = hub_index_for(graph, restart)
    return int(ppr_push(graph, entity, counts, restart, hub_index=index).edges)


def recall(saved: str, max_entities: int, questions: int, seed: int) -> dict[str, Any]:
    """The recall of the local method, and the cost of exact scores over the whole graph."""
    data = load(saved)
    graph = data.graph
    asked = _questions(data, min(questions, _EXACT_QUERIES), seed)
    pushed = _local_sampler(data, max_entities).select(graph, asked)
    whole = PPRSampler(max_entities=max_entities, method="chebyshev")
    times = []
    for query in asked[:_WHOLE_QUERIES, None]:
        started = time.perf_counter()
        whole.sample(graph, query)
        times.append(1000 * (time.perf_counter() - started))
    hits: list[float] = []
    begun = time.process_time()
    for part in asked.split(_EXACT_BLOCK):
        if hits and time.process_time() - begun > _EXACT_PATIENCE:
            break
        for of_row in ppr_chebyshev(graph, part[:, 0], whole.restart, _EXACT_STEPS):
            best = of_row.topk(min(max_entities, len(of_row))).indices
            best = best[of_row[best] > 0]
            found = pushed.entities[pushed.query == len(hits)]
            hits.append(float(torch.isin(best, found).float().mean()))
    return {
        "recall_queries": len(hits),
        "recall": round(float(np.mean(hits)), 4),
        "least_recall": round(min(hits), 4),
        "whole_graph_ms": round(min(times), 1),
    }


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "write": write,
    "build": build,
    "predict": predict,
    "sample": sample,
    "recall": recall,
}


def _open_cold(path: Path) -> tuple[Dataset, float]:
    """A saved graph whose files are not in the page cache, and the milliseconds to open it."""
    if hasattr(os, "posix_fadvise"):
        for file in path.iterdir():
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
    started = time.perf_counter()
    data = load(path)
    return data, 1000 * (time.perf_counter() - started)


def _local_sampler(data: Dataset, max_entities: int) -> PPRSampler:
    """The local method for this graph, even if "auto" would use the whole graph."""
    has_hubs = data.graph.neighbours.largest_degree > BALL_LARGEST_HUB
    return PPRSampler(max_entities=max_entities, method="push" if has_hubs else "ball")


def _questions(data: Dataset, count: int, seed: int) -> Tensor:
    """Queries about entities with a fact, [≤ count, 2], in random order.

    Half of them from the test split, half about the 1 % of the entities with the most neighbours.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.test), generator=generator)
    asked = data.test[order[: 2 * count], :2]
    asked = asked[data.graph.degree_of(asked[:, 0]) > 0][: count - count // 2]
    hubs = sampled_entities(data.graph, 2 * (count // 2), seed)[-(count // 2) :]
    relations = torch.randint(data.graph.num_relations, (len(hubs),), generator=generator)
    both = torch.cat([asked, torch.stack([hubs, relations], dim=1)])
    return both[torch.randperm(len(both), generator=generator)]


def _write_family(facts: int, place: Path, seed: int) -> None:
    data = family(max(int(facts / FAMILY_FACTS), 100), seed=seed)
    splits = (data.graph.facts, data.valid[:HELD_OUT], data.test[:HELD_OUT])
    for split, rows in zip(SPLITS, splits, strict=True):
        _write_table(
            place / f"{split}.tsv",
            (piece.numpy() for piece in rows.split(_BLOCK)),
            data.entities.blob,
            data.entities.offsets,
            list(data.relations),
        )


def _write_power_law(facts: int, place: Path, seed: int) -> None:
    """`power_law` in chunks, without removal of duplicates, which the builder does."""
    entities = max(facts // POWER_LAW_FACTS, 2)
    digits = [f"e{number}".encode() for number in range(entities)]
    offsets = np.cumsum([0, *map(len, digits)], dtype=np.int64)
    blob = np.frombuffer(b"".join(digits), np.uint8)
    del digits
    generator = np.random.default_rng(seed)
    held_out = min(HELD_OUT, facts // 10)
    for split, count in zip(SPLITS, (facts, held_out, held_out), strict=True):
        pieces = (
            power_law_facts(generator, entities, min(_BLOCK, count - start), RELATIONS)
            for start in range(0, count, _BLOCK)
        )
        relations = [f"r{number}" for number in range(RELATIONS)]
        _write_table(place / f"{split}.tsv", pieces, blob, offsets, relations)


_WRITERS: dict[str, Callable[[int, Path, int], None]] = {
    "family": _write_family,
    "power-law": _write_power_law,
}


def _write_table(
    path: Path,
    pieces: Iterator[NDArray[Any]],
    blob: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    relations: list[str],
) -> None:
    """Write facts [n, 3] with the names of their entities, which are in one block."""
    import pyarrow as pa
    import pyarrow.csv

    buffers = pa.py_buffer(offsets), pa.py_buffer(blob)
    entities = pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)
    labels = pa.array(relations, pa.large_string())
    schema = pa.schema([(name, pa.large_string()) for name in ("head", "relation", "tail")])
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with pyarrow.csv.CSVWriter(str(path), schema, write_options=options) as target:
        for head, relation, tail in (piece.T for piece in pieces):
            columns = entities.take(head), labels.take(relation), entities.take(tail)
            target.write_table(pa.table(columns, schema=schema))


def _memory_gb(field: str) -> float:
    """Memory of this process in bytes: `VmHWM` (peak resident) or `VmRSS` (resident)."""
    try:
        with Path("/proc/self/status").open() as lines:
            fields = dict(line.split(":", 1) for line in lines)
        kilobytes = int(fields[field].split()[0])
    except (OSError, KeyError):
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes / 2**20, 3)


def _size_gb(directory: Path) -> float:
    return round(sum(file.stat().st_size for file in directory.iterdir()) / 2**30, 6)


def main() -> None:
    prepare_process()
    step, options = sys.argv[1:]
    try:
        sys.stdout.write(json.dumps(STEPS[step](**json.loads(options))) + "\n")
    except (OneshotError, OSError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
