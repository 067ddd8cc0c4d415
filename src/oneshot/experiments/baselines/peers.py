"""Peers: the names of the systems that our predictor is compared with, and their metrics."""

import dataclasses
import difflib
import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from oneshot.config import Config, FactorsConfig, SamplerConfig
from oneshot.data.dataset import Dataset
from oneshot.errors import DivergedError, UnknownNameError, is_out_of_memory
from oneshot.evaluation.frequency import frequency_scorer
from oneshot.evaluation.scorer import Ranked, rank_split
from oneshot.experiments.baselines.embedding import Watcher, train_embedding
from oneshot.experiments.baselines.pykeen_import import load_pykeen
from oneshot.experiments.baselines.pykeen_models import DIM, RECIPES, Recipe, is_prime
from oneshot.experiments.bench.measure import measure
from oneshot.factors import Factors, fit_factors
from oneshot.ranking import KnownFacts
from oneshot.training.time_budget import Clock, TimeBudget

OURS = "oneshot"
FREQUENCY = "frequency"
FACTORS = "complexn3"

# Our predictor in the configuration of other systems, which use the whole graph. Options that are
# not listed (layers, dimension, training) are those of our own configuration.
WHOLE_GRAPH: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "nbfnet": (
        "NBFNet",
        {
            "message": "nbfnet",
            "compose": "multiply",
            "aggregate": "pna",
            "activation": "relu",
            "initial": "relational",
            "shortcut": True,
            "gate": False,
            "norm": True,
        },
    ),
    "redgnn": (
        "RED-GNN",
        {
            "message": "redgnn",
            "compose": "multiply",
            "aggregate": "sum",
            "shortcut": False,
            "gate": True,
            "norm": False,
        },
    ),
    "drum": (
        "DRUM",
        {
            "message": "drum",
            "compose": "multiply",
            "aggregate": "sum",
            "activation": "identity",
            "initial": "binary",
            "shortcut": False,
            "gate": False,
            "norm": False,
        },
    ),
}

# Safety factor for the ranking time of the test split, and the minimum number of its queries.
_MARGIN, _LEAST_QUERIES = 1.05, 16

TITLES: dict[str, str] = {
    OURS: OURS,
    FREQUENCY: "frequency",
    FACTORS: "ComplEx-N3",
    **{name: title for name, (title, _) in WHOLE_GRAPH.items()},
    **{name: recipe.title for name, recipe in RECIPES.items()},
}
"""All names, with their titles."""


def find_peer(name: str) -> str:
    """The name of a peer in any spelling (`RotatE`, `R-GCN`); an error suggests similar names."""
    plain = "".join(letter for letter in name.casefold() if letter.isalnum())
    if plain in TITLES:
        return plain
    near = difflib.get_close_matches(plain, TITLES, 3)
    raise UnknownNameError("peer", name, near, known=() if near else TITLES)


def has_pykeen() -> bool:
    """Whether the package that trains embedding models is installed."""
    return importlib.util.find_spec("pykeen") is not None


def check_packages(names: list[str]) -> None:
    """Raise if one of these peers needs a missing package; called before the long work starts."""
    if any(name in RECIPES for name in names):
        load_pykeen()


def whole_graph_config(name: str, ours: Config) -> Config:
    """The configuration of NBFNet, RED-GNN or DRUM, based on ours."""
    return dataclasses.replace(
        ours,
        sampler=SamplerConfig(entity_ratio=1.0),
        factors=FactorsConfig(),
        predictor=dataclasses.replace(ours.predictor, **WHOLE_GRAPH[name][1]),
        training=dataclasses.replace(ours.training, entity_ratio=None),
    )


def measure_frequency(data: Dataset) -> dict[str, Any]:
    """Metrics of the frequency baseline, which needs no training."""
    scorer = frequency_scorer(data)
    valid, test = (rank_split(scorer, data, split) for split in ("valid", "test"))
    return {**_accuracy(valid.metrics.mrr, test), "seconds": 0.0, "parameters": 0}


def measure_factors(
    data: Dataset,
    device: torch.device,
    *,
    dim: int = DIM,
    seed: int = 0,
    minutes: float | None = None,
    started: float | None = None,
) -> dict[str, Any]:
    """Metrics of the factors of `oneshot.factors` alone, without a predictor.

    `minutes`: time limit, from `started` by `time.perf_counter`, by default from now; a tenth of it
    is left for the ranking of the test split.
    """
    started = time.perf_counter() if started is None else started
    graph = data.graph.to(device)
    known = KnownFacts(data.known, graph.num_entities, graph.num_relations).to(device)
    begun = time.perf_counter()
    left = 0.9 * 60 * minutes - (begun - started) if minutes else float("inf")
    config = FactorsConfig(dim=dim)

    def fitted() -> Factors:
        return fit_factors(graph, config, data.valid.to(device), known, seed=seed, seconds=left)

    try:
        measured = measure(fitted, device)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return {"failure": "out of memory"}
    seconds = time.perf_counter() - begun
    factors = measured.result
    asked: dict[str, Any] = {"known": known, "device": device}
    valid, test = (rank_split(factors.scores, data, split, **asked) for split in ("valid", "test"))
    return {
        **_accuracy(valid.metrics.mrr, test),
        "stopped": "time" if seconds >= left else "patience",
        "seconds": seconds,
        "parameters": factors.num_parameters,
        "dim": 2 * dim,
        "peak_megabytes": megabytes(measured.peak_bytes),
    }


def measure_embedding(
    recipe: Recipe,
    data: Dataset,
    device: torch.device,
    *,
    dim: int = DIM,
    seed: int = 0,
    epochs: int | None = None,
    watcher: Watcher | None = None,
    kept: Path | None = None,
    minutes: float | None = None,
    started: float | None = None,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Metrics of a PyKEEN model, trained until it stops improving.

    `kept`: a checkpoint file from which the training resumes. `minutes`: time limit of training,
    validations and the ranking of the test split, from `started` by `clock`, by default from now.
    If little time is left, a sample of the test queries is ranked.
    An impossible dimension, out of memory and values that are not finite are results, too:
    `failure` names the reason.
    """
    pykeen = load_pykeen()
    if recipe.is_image and is_prime(dim):
        return {"failure": f"dimension {dim} is a prime number and cannot form an image"}
    budget = TimeBudget(minutes or 0.0, clock, clock() if started is None else started)
    options: dict[str, Any] = {"dim": dim, "seed": seed, "epochs": epochs, "budget": budget}
    try:
        measured = measure(
            lambda: train_embedding(recipe, data, device, **options, watcher=watcher, kept=kept),
            device,
        )
        trained = measured.result
        asked: dict[str, Any] = {"device": device, "step": trained.queries_per_step}
        test = rank_split(
            trained.scorer, data, "test", **asked, limit=_affordable(budget), seed=seed
        )
    except (DivergedError, pykeen.training.NonFiniteLossError):
        return {"failure": "not finite"}
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return {"failure": "out of memory"}
    # On a CPU, the peak of the last process would be too low; on a GPU it is that of a step.
    before = trained.resumed_after
    is_whole = before is None or (device.type == "cuda" and trained.epochs > before)
    return {
        **_accuracy(trained.valid_mrr, test),
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        "stopped": trained.stopped,
        "seconds": trained.seconds,
        "parameters": trained.parameters,
        "dim": recipe.numbers(dim),
        "peak_megabytes": megabytes(measured.peak_bytes) if is_whole else None,
        **({"queries": test.queries, "of": test.of} if budget.is_limited else {}),
    }


def _affordable(budget: TimeBudget) -> int | None:
    """Number of test queries that fit into the time; None if time is not limited."""
    if not budget.is_limited:
        return None
    return max(int(budget.left / (_MARGIN * budget.seconds_per_query)), _LEAST_QUERIES)


def megabytes(count: int | None) -> float | None:
    return None if count is None else round(count / 2**20, 1)


def _accuracy(valid_mrr: float, test: Ranked) -> dict[str, Any]:
    return {
        "valid_mrr": valid_mrr,
        **test.metrics.scores(),
        "seconds_per_1000_queries": test.seconds_per_1000_queries,
    }
