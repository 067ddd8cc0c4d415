"""Measurements of a system that couples sampling and reasoning, and of ours beside it."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oneshot.data.dataset import Dataset
from oneshot.evaluation.evaluate import Report, drawn_queries, evaluate
from oneshot.experiments.baselines.peers import megabytes
from oneshot.experiments.bench.measure import measure
from oneshot.experiments.rivals.coupling import Chosen, CoupledReasoner
from oneshot.ranking import KnownFacts
from oneshot.reasoner.reasoner import Reasoner


@dataclass(frozen=True)
class LayerCoverage:
    """What is chosen after each layer, [L] each: the share of queries whose answer is chosen, and
    the mean number of chosen entities per query."""

    coverage: list[float]
    entities: list[float]


def layer_coverage(
    reasoner: Reasoner,
    facts: Tensor,
    *,
    batch_size: int = 16,
    limit: int | None = None,
    seed: int = 0,
) -> LayerCoverage:
    """The coverage of the layers of a reasoner on `facts` [n, 3], in both directions.

    Of a reasoner with a sampler, that of the subgraph, which all layers share: one value.
    `limit`: maximum number of queries, sampled with `seed`.
    """
    graph = reasoner.graph
    queries, answers = drawn_queries(facts.to(graph.device), graph.num_relations, limit, seed)
    hits: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for part in torch.arange(len(queries), device=graph.device).split(batch_size):
        right = answers[part]

        def watch(chosen: Chosen, right: Tensor = right) -> None:
            found = int((chosen.entities == right[chosen.query]).sum())
            hits[chosen.layer] = hits.get(chosen.layer, 0) + found
            sizes[chosen.layer] = sizes.get(chosen.layer, 0) + len(chosen.entities)

        if isinstance(reasoner, CoupledReasoner):
            reasoner.reason(queries[part], watch=watch)
        else:
            batch = reasoner.sampler.sample(graph, queries[part])
            watch(Chosen(0, batch.entity_query, batch.entities))
    return LayerCoverage(
        [hits[layer] / len(queries) for layer in sorted(hits)],
        [sizes[layer] / len(queries) for layer in sorted(sizes)],
    )


def inference_cost(
    reasoner: Reasoner,
    data: Dataset,
    known: KnownFacts,
    *,
    batch_size: int = 16,
    limit: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Milliseconds per test query, ranking included, and the memory of a batch in MB.

    On a CPU, the time is CPU time, which other jobs change less.
    """
    options: dict[str, Any] = {"batch_size": batch_size, "seed": seed}

    def work() -> Report:
        return evaluate(reasoner, data.test, known, limit=limit, **options)

    evaluate(reasoner, data.test, known, limit=batch_size, **options)  # kernels are compiled
    begun = time.process_time()
    measured = measure(work, reasoner.device)
    is_cpu = reasoner.device.type == "cpu"
    seconds = time.process_time() - begun if is_cpu else measured.result.seconds
    return {
        "ms_per_query": 1000 * seconds / measured.result.queries,
        "inference_megabytes": megabytes(measured.peak_bytes),
    }
