"""Workbench: data, settings, trained runs and time limit that the tables of the paper share."""

import dataclasses
import hashlib
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oneshot.config import Config, from_table, to_toml
from oneshot.data.dataset import Dataset
from oneshot.data.load import load, source_exists
from oneshot.errors import DivergedError, InputError, OneshotError, is_out_of_memory
from oneshot.experiments.baselines.progress import measure_shown
from oneshot.experiments.tables.table import Figures
from oneshot.graph.graph import KnowledgeGraph
from oneshot.ranking import SCORES
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.layout import HISTORY
from oneshot.runs.run import Run
from oneshot.runs.train import train_run, warn
from oneshot.samplers._budget import DEFAULT_EDGE_RATIO, DEFAULT_ENTITY_RATIO
from oneshot.search.observer import SearchObserver
from oneshot.training.interrupt import StopTraining, stop_request
from oneshot.training.observer import Observer

QUICK_DATA = "family:100"
"""The small world on which a quick run measures all tables."""

LARGE = ("WN18RR", "NELL-995", "YAGO3-10-partial", "FB15k-237")
"""The data sets of the main table, if they are available."""

# Short trainings that show the differences of the tables; the configurations for the best results
# are in `configs/` of the repository.
_SHORT: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "WN18RR": {
        "predictor": {"activation": "identity", "num_layers": 8, "shortcut": True},
        "training": {"epochs": 16, "batch_size": 64, "learning_rate": 0.004, "fact_ratio": 0.95},
    },
    "NELL-995": {
        "predictor": {"dropout": 0.2, "attention_dim": 16},
        "training": {
            "epochs": 8,
            "batch_size": 64,
            "learning_rate": 0.002,
            "fact_ratio": 0.95,
            "mask_known": True,
        },
    },
    "YAGO3-10-partial": {
        "training": {"epochs": 4, "batch_size": 32, "learning_rate": 0.002, "fact_ratio": 0.98},
    },
    "FB15k-237": {
        "sampler": {"entity_ratio": 0.2},
        "predictor": {
            "aggregate": "pna",
            "dim": 32,
            "gate": False,
            "norm": True,
            "shortcut": True,
        },
        "training": {
            "epochs": 4,
            "batch_size": 64,
            "learning_rate": 0.003,
            "fact_ratio": 0.95,
            "hide_direct": True,
            "mask_known": True,
            "valid_limit": 4000,
        },
    },
    "UMLS": {
        "sampler": {"entity_ratio": 1.0},
        "predictor": {"num_layers": 4, "dim": 32},
        "training": {"epochs": 12, "learning_rate": 0.004, "fact_ratio": 0.7, "mask_known": True},
    },
    "Family": {
        "predictor": {"num_layers": 5, "dim": 32},
        "training": {"epochs": 10, "learning_rate": 0.004, "mask_known": True},
    },
}
_QUICK: Mapping[str, Mapping[str, Any]] = {
    "sampler": {"entity_ratio": 0.5},
    "predictor": {"num_layers": 3, "dim": 16},
    "training": {"epochs": 1, "batch_size": 32, "learning_rate": 0.01, "valid_limit": 40},
}

# A training to convergence halves its learning rate when the validation MRR stops improving, and
# ends when that no longer helps, at the latest after so many times the epochs of the short one.
_CONVERGED: Mapping[str, Any] = {"schedule": "plateau", "plateau_patience": 2, "patience": 6}
_LONGEST = 6


@dataclass
class Workbench:
    """The environment in which the rows of tables are measured.

    `out`: the directory of reports; trained runs are kept there, so that a training that two tables
    need, or that was interrupted, does not start again. `names`: data sets instead of those of a
    table. `changes`: SECTION.KEY=VALUE for every configuration. `minutes`: no row starts later.
    `seeds`: how many seeds each training of a table has, from `seed` on. `converged`: trainings end
    when the validation MRR stops improving, instead of after the epochs of the short ones.
    `observers` observe every training, `search_observer` the trials of a search; `messages`: called
    with each message for the user (one line).
    """

    out: Path
    device: torch.device
    seed: int = 0
    quick: bool = False
    names: Sequence[str] = ()
    changes: Sequence[str] = ()
    minutes: float | None = None
    seeds: int = field(default=1, kw_only=True)
    converged: bool = field(default=False, kw_only=True)
    observers: Sequence[Observer] = field(default=(), kw_only=True)
    search_observer: SearchObserver = field(default_factory=SearchObserver, kw_only=True)
    messages: Callable[[str], None] = field(default=warn, kw_only=True)
    _loaded: dict[str, Dataset] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    @property
    def has_time(self) -> bool:
        spent = (time.monotonic() - self._started) / 60
        return self.minutes is None or spent < self.minutes

    @property
    def settings(self) -> Figures:
        """Settings that all rows of a report must share; seeds and length are in their keys."""
        return {
            "quick": self.quick,
            "seed": self.seed,
            "data": list(self.names),
            "changes": list(self.changes),
            "device": self.device.type,
        }

    def data_names(self, *usual: str) -> list[str]:
        """The data sets: those of the user, or the available defaults of a table."""
        if self.quick:
            return [QUICK_DATA]
        if self.names:
            return list(self.names)
        found = [name for name in usual if source_exists(name)]
        if not found:
            raise InputError(
                f"none of {', '.join(usual)} was found: set ONESHOT_DATA to the directory that "
                "holds them, or name data with --data"
            )
        return found

    def trainings(self, *usual: str) -> Iterator[tuple[str, int]]:
        """The data sets of a table, each with a seed.

        The first seed of all data sets first, so that a report that is not complete covers them.
        """
        names = self.data_names(*usual)
        for seed in range(self.seed, self.seed + self.seeds):
            for name in names:
                yield name, seed

    def dataset(self, name: str) -> Dataset:
        if name not in self._loaded:
            self._loaded[name] = load(name, seed=self.seed)
        return self._loaded[name]

    def config(self, data: str, changes: Mapping[str, Any] | None = None) -> Config:
        """The short training on a data set, with changes by "section.key".

        The changes of a table take precedence over those of the user.
        """
        chosen = _QUICK if self.quick else _SHORT.get(data, {})
        table = {section: dict(values) for section, values in chosen.items()}
        # Explicit, so that two tables with the same training find the same run.
        sampler = {"entity_ratio": DEFAULT_ENTITY_RATIO, "edge_ratio": DEFAULT_EDGE_RATIO}
        # All tables use the same loss, with which the first of them were measured.
        training = {"seed": self.seed, "valid_every": 2, "precision": "auto", "uncovered": "skip"}
        # On a GPU, validation would use all memory; the peak should be that of the training.
        training["valid_batch_size"] = 64
        table["sampler"] = {**sampler, **table.get("sampler", {})}
        table["training"] = {**training, **table.get("training", {})}
        config = from_table(table, list(self.changes))
        epochs = config.training.epochs
        told: Figures = {}
        for key, value in (changes or {}).items():
            section, option = key.split(".")
            told.setdefault(section, {})[option] = value
        config = dataclasses.replace(
            config,
            **{
                section: dataclasses.replace(getattr(config, section), **options)
                for section, options in told.items()
            },
        )
        if not self.converged:
            return config
        longest = {"epochs": _LONGEST * max(epochs, config.training.epochs), **_CONVERGED}
        asked = {option: value for option, value in longest.items() if not self._is_set(option)}
        return dataclasses.replace(config, training=dataclasses.replace(config.training, **asked))

    def _is_set(self, option: str) -> bool:
        """Whether the user sets this option of the training."""
        return any(
            change.partition("=")[0].strip() == f"training.{option}" for change in self.changes
        )

    def epochs(self, data: str, share: float) -> int:
        """A share of the epochs of the short training, at least one; or the configured epochs."""
        epochs = dataclasses.replace(self, converged=False).config(data).training.epochs
        if self._is_set("epochs"):
            return epochs
        return max(round(epochs * share), 1)

    def train(self, data: Dataset, config: Config, started: float | None = None) -> Figures:
        """Metrics of a training, which is resumed if it was interrupted.

        Out of memory and values that are not finite are results, too: `failure` names the reason.
        `started`: start of its time budget, as `time.perf_counter`, by default now.
        """
        run = self._run(data, config)
        options: Figures = {
            "resume": run.is_dir(),
            "started": started,
            "observers": self.observers,
            "messages": self.messages,
        }
        try:
            with stop_request() as should_stop:
                result = train_run(
                    data, run, config, self.device, **options, should_stop=should_stop
                )
        except DivergedError:
            return {"failure": "not finite"}
        except (OneshotError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return {"failure": "out of memory"}
        if result.get("stopped") or should_stop():  # finished or not, the run is kept
            raise StopTraining
        test, valid = result["test"], result["valid"]
        return {
            **{name: test[name] for name in SCORES},
            "coverage": test["coverage"],
            "valid_mrr": valid["mrr"],
            "epochs": result["epochs"],
            "best_epoch": result["best_epoch"],
            "seconds": result["seconds"],
            "seconds_per_epoch": _seconds_per_epoch(run, result["seconds"] / result["epochs"]),
            "seconds_per_1000_queries": 1000 * test["seconds"] / test["queries"],
            "parameters": result["parameters"],
            "peak_megabytes": result["peak_gpu_megabytes"],
        }

    def reasoner(self, data: Dataset, config: Config) -> Reasoner:
        """The reasoner of a training, which is run first if necessary."""
        found = self.train(data, config)
        if "failure" in found:
            raise OneshotError(f"{data.name}: {found['failure']}")
        return Run.open(self._run(data, config)).reasoner_on(data.graph).to(self.device)

    def has_run(self, data: Dataset, config: Config) -> bool:
        """Whether this training was started before."""
        return self._run(data, config).is_dir()

    def measure_peer(
        self,
        name: str,
        data: Dataset,
        dim: int,
        epochs: int | None,
        minutes: float | None = None,
    ) -> Figures:
        """Metrics of the training of an embedding model, which is resumed if it was interrupted.

        `minutes`: its time limit, if there is one.
        """
        kept = self._peer_file(name, data, dim, epochs, minutes)
        options: Figures = {"dim": dim, "seed": self.seed, "epochs": epochs, "kept": kept}
        return measure_shown(name, data, self.device, **options, minutes=minutes)

    def forget_peer(
        self,
        name: str,
        data: Dataset,
        dim: int,
        epochs: int | None,
        minutes: float | None = None,
    ) -> None:
        """Remove the checkpoint of that training: its metrics are in a report."""
        self._peer_file(name, data, dim, epochs, minutes).unlink(missing_ok=True)

    def _peer_file(
        self, name: str, data: Dataset, dim: int, epochs: int | None, minutes: float | None
    ) -> Path:
        asked = f"{name} {dim} {self.seed} {epochs} {self.device.type}"
        place = self.kept(data, asked if minutes is None else f"{asked} {minutes:g}")
        return place.with_name(f"{place.name}.safetensors")

    def _run(self, data: Dataset, config: Config) -> Path:
        return self.kept(data, to_toml(config))

    def kept(self, data: Dataset, told: str) -> Path:
        """The path for files of a data set and a description."""
        # Only the values that affect the result: the same facts with another name are the same.
        digest = hashlib.sha256(f"{facts_digest(data)}\n{told}".encode()).hexdigest()[:12]
        return self.out / "runs" / f"{file_name(data.name)}-{digest}"


def facts_digest(data: Dataset) -> str:
    """A digest of all facts of a data set: of the graph, validation and test.

    It includes the facts for filtered ranking, if they are different.
    """
    digest = hashlib.sha256(data.graph.fingerprint.encode())
    others = () if data.true_facts is None else (data.true_facts,)
    for facts in (data.valid, data.test, *others):
        digest.update(np.ascontiguousarray(facts.cpu().numpy(), "<i8").data)
    return digest.hexdigest()[:16]


def file_name(name: str) -> str:
    """The name of a data set, which may be a path, as part of a file name."""
    return re.sub(r"[^\w.-]+", "-", Path(name).name)


def _seconds_per_epoch(run: Path, mean: float) -> float:
    """Seconds of an epoch without validation, except for the first, which compiles kernels.

    `mean`: the mean of all epochs, for a training without such an epoch.
    """
    records = [json.loads(line) for line in (run / HISTORY).read_text("utf-8").splitlines()]
    plain = [
        record["seconds"] for record in records if record["epoch"] > 1 and "valid" not in record
    ]
    return statistics.median(plain) if plain else mean


def with_graph(data: Dataset, facts: torch.Tensor, name: str) -> Dataset:
    """The data set with other training facts [n, 3] and the same held-out ones.

    Rankings are still filtered by the true facts: a removed fact is not a wrong answer, an added
    one is.
    """
    graph = KnowledgeGraph.from_facts(facts, data.entities, data.relations)
    return dataclasses.replace(data, name=name, graph=graph, true_facts=data.known)
