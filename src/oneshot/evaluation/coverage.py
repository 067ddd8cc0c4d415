"""Coverage: the share of queries whose subgraph contains the answer.

An answer that is not sampled cannot be predicted, so coverage is an upper bound for any predictor.
All budgets are measured in one pass: the rank of the answer in the sampler's order of entities
determines the budgets with which it is sampled.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.samplers import Sampler
from oneshot.samplers._pagerank import check_entities
from oneshot.samplers.base import check_queries

_QUERIES_PER_STEP = 256


@dataclass(frozen=True)
class Coverage:
    """How often a sampler covers the answer.

    `coverage`: budget → share of all queries whose answer is sampled; a budget is a ratio of the
        entities (float) or a count (int).
    `reachable`: the same, but an answer counts only if a path leads to it (no message reaches
        the others, which are sampled by chance).
    """

    sampler: str
    coverage: dict[float, float]
    reachable: dict[float, float]
    queries: int
    seconds: float


def coverage(
    sampler: Sampler,
    graph: KnowledgeGraph,
    queries: Tensor,
    answers: Tensor,
    budgets: Sequence[float],
    progress: Callable[[int], None] | None = None,
) -> Coverage:
    """Coverage of a sampler on `queries` [n, 2] with `answers` [n], for several budgets.

    The sampler's own budget only determines its method (PPR: push or blocks) and should be the
    largest of `budgets`. `progress` is called with the number of queries done.
    """
    if not len(queries):
        raise InputError("coverage needs at least one query")
    graph = graph.host or graph  # only the sampler runs, so the CPU is used
    counts = [entity_count(graph, budget) for budget in budgets]
    started = time.perf_counter()
    queries = check_queries(graph, queries)
    answers = check_entities(graph, answers)
    if len(answers) != len(queries):
        raise InputError(f"there are {len(queries)} queries, but {len(answers)} answers")
    # Queries about the same entity are scored once if they are in the same step.
    order = queries[:, 0].argsort(stable=True)
    queries, answers = queries[order], answers[order]
    places = []
    for start in range(0, len(queries), _QUERIES_PER_STEP):
        step = slice(start, start + _QUERIES_PER_STEP)
        places.append(sampler.ranks(graph, queries[step], answers[step]))
        if progress is not None:
            progress(len(places[-1]))
    place = torch.cat(places)
    part = components(graph)
    has_path = part[queries[:, 0]] == part[answers]
    return Coverage(
        sampler=sampler.name,
        coverage={
            b: float((place < k).double().mean()) for b, k in zip(budgets, counts, strict=True)
        },
        reachable={
            b: float(((place < k) & has_path).double().mean())
            for b, k in zip(budgets, counts, strict=True)
        },
        queries=len(queries),
        seconds=time.perf_counter() - started,
    )


def budget_label(budget: float) -> str:
    """The label of a budget: `0.1`, `5000`; different budgets have different labels."""
    return str(budget) if isinstance(budget, int) else f"{budget:.15g}"


def entity_count(graph: KnowledgeGraph, budget: float) -> int:
    """Number of entities of a budget: a ratio in (0, 1] (float) or a count (int)."""
    if isinstance(budget, int):
        if budget < 1:
            raise InputError(f"a count of entities must be at least 1, not {budget}")
        return budget
    if not 0 < budget <= 1:
        raise InputError(f"a ratio of entities must be above 0 and at most 1, not {budget}")
    return max(1, int(budget * graph.num_entities))


def components(graph: KnowledgeGraph) -> Tensor:
    """The connected component of each entity, int32 [V]."""
    near = graph.host or graph
    if near.is_mapped:  # saved with the graph
        every = torch.arange(near.num_entities)
        return near.components.component_of(every).int().to(graph.device)
    neighbours = near.neighbours
    index, indptr = neighbours.index.cpu().numpy(), neighbours.indptr.cpu().numpy()
    ones = torch.ones(len(index), dtype=torch.int8).numpy()
    size = (graph.num_entities, graph.num_entities)
    _, labels = connected_components(csr_array((ones, index, indptr), size), directed=False)
    return torch.from_numpy(labels).to(graph.device)
