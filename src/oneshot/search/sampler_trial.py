"""A trial of phase 2: evaluation of a frozen predictor with another sampler."""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.config import SamplerConfig
from oneshot.data.dataset import Dataset
from oneshot.evaluation.evaluate import answer_ranks
from oneshot.ranking import METRICS, KnownFacts
from oneshot.reasoner.build import build_sampler
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.run import Run
from oneshot.search.predictor_trial import Slow, base_config, failure, free_memory, task_data
from oneshot.search.store import Answers
from oneshot.training.time_budget import Clock


def target_values(ranks: NDArray[Any], target: str) -> NDArray[np.float64]:
    """The contribution of each rank to the target: 1/rank for the MRR, 0 or 1 for Hits@k."""
    return np.asarray(METRICS[target].values(ranks.astype(np.float64)), np.float64)


def sampler_at_test(base: SamplerConfig, values: dict[str, Any]) -> SamplerConfig:
    """The sampler of a trial of phase 2; without values, the training sampler."""
    options = {name.removeprefix("test_sampler."): value for name, value in values.items()}
    for name in ("limit", "mixture"):
        options.pop(name, None)
    if "entity_ratio" in options:
        options["max_entities"] = None
    if "edge_ratio" in options:
        options["max_edges"] = None
    return dataclasses.replace(base, **options)


def asked_queries(data: Dataset, limit: int, seed: int) -> tuple[Tensor, Tensor]:
    """The validation queries of phase 2 and their answers: all, or `limit` drawn with the seed."""
    queries, answers = data.queries("valid")
    if limit < len(queries):
        order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
        chosen = order[:limit].sort().values
        queries, answers = queries[chosen], answers[chosen]
    return queries, answers


def ask(
    reasoner: Reasoner,
    queries: Tensor,
    answers: Tensor,
    known: KnownFacts,
    batch_size: int,
    check_time: Callable[[], None] = lambda: None,
) -> Answers:
    """The rank of each answer, and the size of each subgraph.

    `check_time` is called after each batch; it raises if the trial takes too long.
    """
    graph = reasoner.graph
    queries, answers = queries.to(graph.device), answers.to(graph.device)
    ranks, entities, edges = [], [], []
    for start in range(0, len(queries), batch_size):
        part = slice(start, start + batch_size)
        batch, scores = reasoner.reason(queries[part])
        found = answer_ranks(reasoner, batch, scores, answers[part], known)
        ranks.append(found.realistic.float())
        entities.append(torch.bincount(batch.entity_query, minlength=batch.num_queries))
        edges.append(torch.bincount(batch.edge_query, minlength=batch.num_queries))
        check_time()
    return Answers(
        torch.cat(ranks).cpu().numpy(),
        torch.cat(entities).int().cpu().numpy(),
        torch.cat(edges).int().cpu().numpy(),
    )


def run_sampler_trial(task: dict[str, Any], clock: Clock = time.perf_counter) -> dict[str, Any]:
    """Answer the validation queries with the sampler of a task. Returns the outcome.

    `clock`: the clock of the time limit.
    """
    started = clock()

    def check_time() -> None:
        if task.get("seconds") and clock() - started > task["seconds"]:
            raise Slow(f"longer than {task['seconds']:.6g} s")

    status = "failed"
    try:
        data = task_data(task)  # first, because the reasoner uses it
        reasoner, known = _frozen(task["run"], task["stamp"], task["device"], task["fingerprint"])
        config = base_config(task["config"])
        reasoner.sampler = build_sampler(
            sampler_at_test(config.sampler, task["values"]), config.training.seed
        )
        Run(Path(task["run"])).load_sampler(reasoner.sampler)
        queries, answers = asked_queries(data, task["sampler_queries"], task["seed"])
        size = config.training.valid_batch_size or config.training.batch_size
        found = ask(reasoner, queries, answers, known, size, check_time)
    except Slow as reason:
        found, status, problem = None, "stopped", str(reason)
    except Exception as error:  # as in phase 1
        found = None
        problem = failure(error)
    if found is None:
        _frozen.cache_clear()
        return {
            "status": status,
            "error": problem,
            "is_fatal": not free_memory(torch.device(task["device"])),
            "seconds": clock() - started,
        }
    value = float(target_values(found.ranks, task["target"]).mean())
    return {
        "status": "done",
        "value": value,
        "curve": [value],
        "seconds": clock() - started,
        "answers": (found.ranks.tobytes(), found.entities.tobytes(), found.edges.tobytes()),
        "about": {
            "entities": float(found.entities.mean()),
            "edges": float(found.edges.mean()),
        },
    }


@functools.lru_cache(maxsize=1)
def _frozen(run: str, stamp: str, device: str, fingerprint: str) -> tuple[Reasoner, KnownFacts]:
    """The trained reasoner, read once per process; `stamp` changes when it is trained again."""
    data = task_data({"fingerprint": fingerprint, "origin": None})
    target = torch.device(device)
    reasoner = Run.open(run).reasoner_on(data.graph).to(target)
    known = KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)
    return reasoner, known.to(target)
