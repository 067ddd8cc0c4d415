"""Run: a reasoner on disk, with everything needed to query, evaluate and resume it.

config.toml              the whole configuration
relations.txt            the relations of the predictor in its order, one per line
predictor.safetensors    its parameters (of the best epoch)
sampler.safetensors      the state of a fitted sampler, if the run has one
factors.safetensors      vectors of entities and relations, if any
graph.json               the source of the graph and its fingerprint
graph/                   the graph itself, if it was created in memory
                         (a pre-trained run has neither graph nor relations)
calibration.json         the mapping from scores to probabilities
metrics.jsonl            one record per epoch
checkpoint/              state for resuming
facts.sqlite             facts added and removed since (with files -wal and -shm while in use)

Files are verified by checksums when they are read (see `oneshot.runs.layout`).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from oneshot.config import Config, FactorsConfig, TrainingConfig, from_toml, to_toml
from oneshot.data.load import Dataset, source_files
from oneshot.errors import InputError, UnknownNameError
from oneshot.factors import Factors
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import LiveGraph, with_changes
from oneshot.graph.live.store import STORE, has_changes
from oneshot.graph.storage import is_saved_graph, open_graph, save_graph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.answers import Calibration
from oneshot.reasoner.build import build_reasoner, sampler_config
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.layout import (
    CALIBRATION,
    CONFIG,
    CONTENTS,
    FACTORS,
    GRAPH,
    PREDICTOR,
    RELATIONS,
    SAMPLER,
    SAVED,
    TRAINED,
    read_calibration,
    read_relations,
    relation_lines,
)
from oneshot.runs.reference import BUNDLED, FOUNDATION, GraphReference
from oneshot.runs.tensors import load_parameters, load_tensors, save_tensors
from oneshot.samplers import Sampler
from oneshot.samplers._budget import DEFAULT_ENTITY_RATIO
from oneshot.system.checksums import read_sealed_text, write_sealed_json, write_sealed_text
from oneshot.system.files import check_replaceable, held, replacing_directory, write_text

warn = logging.getLogger(__name__).warning
"""Receiver of the messages about a run that is read."""

# Facts of a graph up to which the sampler of a pre-trained run is fitted to it.
_FITTED_FACTS = 1_000_000


def located(path: Path) -> Path:
    """The directory of a run by path, or by the name of the run in the package."""
    if str(path) != FOUNDATION or (path / CONFIG).is_file():
        return path
    if not (BUNDLED / CONFIG).is_file():
        raise InputError(
            "this installation has no foundation run; pre-train one with `oneshot pretrain DATA... "
            "--out RUN`, and give its directory instead"
        )
    return BUNDLED


class Run:
    """The run in a directory. Each part is read once, on first use.

    `path`: the directory, which need not exist yet; `Run.open` requires an existing run.
    `settings`, such as `sampler.entity_ratio=0.2`, override the configuration but do not change the
    file. Graphs and reasoner use the relation ids of the predictor.
    """

    def __init__(self, path: Path, settings: Sequence[str] = ()) -> None:
        self.path = path
        self.settings = tuple(settings)

    @classmethod
    def open(cls, path: str | Path, settings: Sequence[str] = ()) -> "Run":
        """The run in a directory; raises if there is none.

        The name `foundation` means the pre-trained run in the package, unless there is a run at
        that path. `hf://OWNER/NAME` (as text) is a run on the Hugging Face Hub.
        """
        if isinstance(path, str) and path.startswith("hf://"):
            from oneshot.runs.hub import fetched

            return fetched(path, settings)
        run = cls(located(Path(path)), settings)
        run.config  # noqa: B018 (reports a missing run or a wrong setting at once)
        return run

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # contents -------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> Config:
        """The configuration, changed by the settings."""
        file = self.path / CONFIG
        if not file.is_file():
            raise InputError(f"{self.path} is not a run (there is no {CONFIG})")
        return from_toml(read_sealed_text(file), self.settings, str(file))

    @cached_property
    def reference(self) -> GraphReference:
        """The graph of the run and its source."""
        return GraphReference.read(self.path / GRAPH)

    @property
    def has_graph(self) -> bool:
        """Whether the run has a graph of its own; a pre-trained one has none."""
        return self.reference.has_graph

    @property
    def _has_relations(self) -> bool:
        """Whether the run has relations of its own; a pre-trained one has none."""
        return self.config.predictor.relations == "embedded" or self.has_graph

    @cached_property
    def relations(self) -> Vocabulary:
        """The relations of the predictor, in its order.

        If a run is distributed without a separate file for the names of a data set, they are in the
        header of its predictor file.
        """
        file, predictor = self.path / RELATIONS, self.path / PREDICTOR
        if not file.exists() and predictor.is_file():
            names = load_tensors(predictor)[1].get("relations")
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
                return Vocabulary.from_names(names, "relation")
        self.check_listed(RELATIONS)
        return read_relations(file)

    @cached_property
    def data(self) -> Dataset:
        """The data set that the run was trained on."""
        return self.reference.dataset()

    @cached_property
    def base_graph(self) -> KnowledgeGraph:
        """The original graph of the run; raises if it has changed since."""
        self.reference.check_has_graph()
        relations = self.relations  # read before the graph, which may be large
        if self.reference.has_origin:
            graph = self.data.graph
        elif is_saved_graph(self.path / SAVED):
            graph, _, _ = open_graph(self.path / SAVED)
        else:
            raise InputError(f"{self.path}: its graph is missing; give a data set")
        self.reference.check_graph(graph)
        return graph.with_relations(relations)

    @cached_property
    def graph(self) -> KnowledgeGraph:
        """The graph, with added and removed facts applied.

        Existing entities keep their ids; new ones come after them.
        """
        return with_changes(self.path, self.base_graph, self.reference.fingerprint)

    def live_graph(self, device: torch.device | str = "cpu", read_only: bool = False) -> LiveGraph:
        """The graph for adding and removing facts; the caller must close it."""
        if self.is_hub_copy and not read_only:
            raise InputError(
                f"{self.path} is a copy of a run on the Hugging Face Hub, whose facts cannot be "
                "changed; copy the directory to another place, and change the facts there"
            )
        fingerprint = self.reference.fingerprint
        return LiveGraph(self.base_graph, self.path, fingerprint, device, read_only)

    def write_calibration(self, calibration: Calibration) -> None:
        """Replace the calibration."""
        with self.lock():
            write_sealed_json(self.path / CALIBRATION, asdict(calibration))
        self.forget()

    @property
    def is_hub_copy(self) -> bool:
        """Whether the directory is a download from the Hugging Face Hub, in its cache."""
        from oneshot.runs.hub import is_copy

        return is_copy(self.path)

    @property
    def calibration(self) -> Calibration | None:
        """The mapping from scores to probabilities; None if not fitted."""
        file = self.path / CALIBRATION
        return read_calibration(file) if file.is_file() else None

    @cached_property
    def reasoner(self) -> Reasoner:
        """The reasoner on its own graph, with added and removed facts applied."""
        return self.reasoner_on(self.graph)

    def reasoner_on(self, graph: KnowledgeGraph) -> Reasoner:
        """A new reasoner on another graph, whose relations are matched by name.

        With relative relations, the graph may have any relations. A fitted sampler then has its
        shared weights for those that the run does not know. The sampler of a pre-trained run, which
        has no relations, is fitted to the graph, which takes seconds; on a large graph, where it
        would take minutes, it has its default weights. A graph with fewer entities than that of the
        run has subgraphs of as many entities (see `_config_on`).
        """
        config = self._config_on(graph)
        if self._has_relations:
            try:
                graph = graph.with_relations(self.relations)
            except UnknownNameError as error:
                if config.predictor.relations == "embedded":
                    where = f"{self.path} knows only the relations of its training"
                    raise UnknownNameError(error.kind, error.name, error.nearest, where) from error
        reasoner = build_reasoner(graph, config)
        if not (self.path / PREDICTOR).is_file():
            raise InputError(f"{self.path}: this run has no trained predictor yet")
        load_parameters(self.path / PREDICTOR, reasoner.predictor)
        if self._has_relations:
            self._load_or_fit_sampler(reasoner)
        elif graph.num_facts <= _FITTED_FACTS:
            reasoner.sampler.fit(reasoner.graph, config.training.seed)
        reasoner.calibration = self.calibration
        reasoner.factors = self.factors_on(reasoner.graph)
        if reasoner.factors is None:
            reasoner.calibration = reasoner.calibration_alone
        return reasoner

    def _config_on(self, graph: KnowledgeGraph) -> Config:
        """The configuration for a graph.

        The predictor was trained on subgraphs of a size that is a share of its graph. The same
        share of a smaller graph would be fewer entities, and miss answers without need.
        """
        config, before, now = self.config, self.reference.num_entities, graph.num_entities
        budgets = ("sampler.entity_ratio", "sampler.max_entities")
        is_given = any(setting.strip().startswith(budgets) for setting in self.settings)
        if before is None or before <= now or is_given:
            return config
        ratio = config.sampler.entity_ratio
        if ratio is None and config.sampler.max_entities is None:
            ratio = DEFAULT_ENTITY_RATIO
        if ratio is None:
            return config

        def as_many(share: float) -> float:
            return min((int(share * before) + 0.5) / now, 1.0)

        ratio = (
            {name: as_many(one) for name, one in {"default": DEFAULT_ENTITY_RATIO, **ratio}.items()}
            if isinstance(ratio, dict)
            else as_many(ratio)
        )
        return replace(config, sampler=replace(config.sampler, entity_ratio=ratio))

    def factors_on(self, graph: KnowledgeGraph) -> Factors | None:
        """The factors of the run; None if there are none, or if a graph has other entities."""
        file = self.path / FACTORS
        if not file.is_file():
            return None
        contents = load_tensors(file)
        try:
            return Factors.from_contents(*contents, graph)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error

    def load_sampler(self, sampler: Sampler) -> None:
        """Load the fitted state of the run's sampler into a sampler, if it can be fitted.

        A sampler that was saved before it was fitted keeps its defaults.
        """
        if not sampler.scores_answers:  # it has no state, whatever the run was trained with
            return
        file = self.path / SAMPLER
        if not file.is_file():
            raise InputError(
                f"{file} is missing; `oneshot train DATA --out {self.path} --resume` fits the "
                "sampler again"
            )
        parameters, about = load_tensors(file)
        if not parameters and about.get("fitted") is False:
            return
        try:
            sampler.take(parameters, self.relations if self._has_relations else None)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error

    def _load_or_fit_sampler(self, reasoner: Reasoner) -> None:
        """Load the fitted state of the sampler, or fit it to the graph if the run has none.

        It has none if the file is missing, or if a setting selects another sampler.
        """
        sampler, graph = reasoner.sampler, reasoner.graph
        is_missing = sampler.scores_answers and not (self.path / SAMPLER).is_file()
        if is_missing and graph.num_facts <= _FITTED_FACTS:
            warn(f"{self.path / SAMPLER} is missing; the sampler is fitted to the graph now")
            sampler.fit(graph, self.config.training.seed)
        else:
            self.load_sampler(sampler)

    @property
    def files(self) -> list[Path]:
        """The files of the run, including those of its graph."""
        files = []
        for name, inside in CONTENTS.items():
            place = self.path / name
            files += [place] if inside is None else [place / inner for inner in inside]
        source = self.reference.source if (self.path / GRAPH).is_file() else None
        return [*files, *source_files(source or "")]

    @property
    def holds_training(self) -> bool:
        """Whether the directory contains results of a training."""
        return any((self.path / name).exists() for name in TRAINED)

    def check_listed(self, name: str) -> None:
        """Raise unless a file of the run matches its checksum in `graph.json`."""
        if (self.path / GRAPH).is_file():
            self.reference.check_file(name)

    # writing --------------------------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory against other writing processes; the lock ends with its process.

        Adding and removing facts does not need it: their store has its own lock.
        """
        message = (
            f"{self.path}: another process is writing this run; wait for it, or choose another "
            "directory"
        )
        with held(self.path, message):
            yield

    def check_destination(self, graph: KnowledgeGraph) -> None:
        """Raise unless a run on this graph may be written here; called before the long work starts.

        An existing directory must be a run written by oneshot: it has our `graph.json` (a
        `config.toml` may be the user's own) and no other files.
        """
        self.check_writable()
        source = Path((graph.origin or {}).get("source", ""))  # absolute, except for bundled names
        if source.is_absolute() and source.is_relative_to(self.path.resolve()):
            raise InputError(
                f"{self.path} contains the source of the graph; choose another directory"
            )

    def check_start(self, start: "Run") -> None:
        """Raise if a training into this directory would replace the run that it starts from."""
        if self.path.resolve() == start.path.resolve():
            raise InputError(
                f"{self.path} is the run that the training starts from, which would be replaced; "
                "choose another directory for --out"
            )

    def check_writable(self) -> None:
        """Raise unless the directory is a run written by oneshot, empty, or does not exist."""
        check_replaceable(self.path, GRAPH, CONTENTS)
        if (self.path / GRAPH).exists() and not self.reference.is_ours:
            raise InputError(
                f"{self.path / GRAPH} was not written by oneshot; choose another directory"
            )

    def check_no_changes(self) -> None:
        """Raise if the run has changed facts, which would be lost if it were replaced."""
        if has_changes(self.path / STORE):
            raise InputError(
                f"{self.path} contains added or removed facts; export them with `oneshot "
                "facts RUN export --out FILE` and remove the run, or choose another directory"
            )

    def start(self, config: Config, graph: KnowledgeGraph, with_graph: bool = True) -> None:
        """Write configuration, relations and graph of a run, before it has a predictor.

        `with_graph`: also the facts of a graph that was created in memory; a run without them is
        used with another graph.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        # First the file that marks the directory as a run: from here on it can be resumed.
        relations = relation_lines(graph)
        about = {
            "fingerprint": graph.fingerprint,
            "entities": graph.num_entities,
            "origin": graph.origin,
        }
        reference = GraphReference(self.path / GRAPH, about)
        reference.listing(RELATIONS, relations.encode()).write()
        if graph.origin is None and with_graph:
            save_graph(self.path / SAVED, graph.to("cpu"), {}, {})
        write_text(self.path / RELATIONS, relations)
        write_sealed_text(self.path / CONFIG, to_toml(config))
        self.forget()

    def start_without_graph(self, config: Config, sources: Sequence[str]) -> None:
        """Write configuration and reference of a pre-trained run; `sources`: names of graphs."""
        about = {"fingerprint": None, "origin": None, "sources": list(sources)}
        GraphReference(self.path / GRAPH, about).write()
        write_sealed_text(self.path / CONFIG, to_toml(config))
        self.forget()

    def save(self, reasoner: Reasoner, with_graph: bool = True) -> None:
        """Save a reasoner as this run; an older run in the directory is replaced.

        `with_graph`: see `start`.
        """
        config = Config(
            sampler=sampler_config(reasoner.sampler),
            predictor=reasoner.predictor.config,
            factors=FactorsConfig(dim=_factor_dim(reasoner)),
            training=TrainingConfig(seed=reasoner.sampler.seed),
        )
        self.check_destination(reasoner.graph)
        self.check_no_changes()
        with ExitStack() as stack:
            if self.path.is_dir():
                stack.enter_context(self.lock())
            new = Run(stack.enter_context(replacing_directory(self.path, GRAPH, CONTENTS)))
            new.start(config, reasoner.graph, with_graph)
            save_tensors(new.path / PREDICTOR, reasoner.predictor.state_dict(), {})
            new.save_sampler(reasoner.sampler, reasoner.graph)
            new.save_factors(reasoner)
            if reasoner.calibration is not None:
                write_sealed_json(new.path / CALIBRATION, asdict(reasoner.calibration))
        self.forget()
        self.reference.keep_source()

    @staticmethod
    def push(reasoner: Reasoner, name: str, **options: Any) -> str:
        """Upload a reasoner as a run to the Hugging Face Hub (see `Reasoner.push_to_hub`)."""
        from oneshot.runs.hub import push

        return push(reasoner, name, **options)

    def save_sampler(self, sampler: Sampler, graph: KnowledgeGraph) -> None:
        """Save the state of a sampler that can be fitted, also before it is fitted.

        For the relations of the `graph` of the run, also if it was fitted to another one.
        """
        if sampler.scores_answers:
            parameters = sampler.parameters(graph)
            save_tensors(self.path / SAMPLER, parameters, {"fitted": bool(parameters)})

    def save_factors(self, reasoner: Reasoner) -> None:
        """Save the factors of a reasoner, if there are any."""
        if reasoner.factors is not None:
            save_tensors(self.path / FACTORS, *reasoner.factors.contents(reasoner.graph))

    def list_file(self, name: str, content: bytes) -> None:
        """List the checksum of a file in `graph.json`, before the file is written."""
        GraphReference.read(self.path / GRAPH).listing(name, content).write()
        self.forget()

    def forget(self) -> None:
        """Drop cached parts after the files have changed."""
        for name, member in vars(Run).items():
            if isinstance(member, cached_property):
                self.__dict__.pop(name, None)


def _factor_dim(reasoner: Reasoner) -> int:
    return 0 if reasoner.factors is None else reasoner.factors.entities.shape[1] // 2
