"""Run directories: a reasoner on disk, with all that is needed to ask, judge and resume it.

config.toml              the whole configuration
relations.txt            the relations the predictor knows, in its order, one a line
predictor.safetensors    its parameters (of the best epoch)
sampler.safetensors      what the sampler has learnt, if it learns
graph.json               where the graph came from, and its fingerprint
graph/                   the graph itself, if it came from no file
calibration.json         from scores to probabilities
metrics.jsonl            one record an epoch
checkpoint/              for resuming
facts.sqlite             facts added and removed since (with files -wal and -shm while in use)

What is read from a run is checked against checksums (see `oneshot.runs.layout`).
"""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oneshot.config import Config, TrainingConfig, read_config, to_toml
from oneshot.data.load import Dataset, load, source_exists, source_files
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import with_changes
from oneshot.graph.live.store import STORE, has_changes
from oneshot.graph.saved import is_saved_graph, open_graph, save_graph
from oneshot.reasoner.build import build_reasoner, sampler_config
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.layout import (
    CALIBRATION,
    CHECKPOINT,
    CONFIG,
    CONTENTS,
    GRAPH,
    METRICS,
    PREDICTOR,
    RELATIONS,
    RESULT,
    SAMPLER,
    check_listed,
    list_file,
    only_writer,
    read_calibration,
    read_json,
    read_relations,
    relation_lines,
    run_relations,
)
from oneshot.runs.tensors import load_parameters, load_tensors, save_tensors
from oneshot.samplers import Sampler
from oneshot.system.checksums import check_sealed_text, digest, write_sealed_json, write_sealed_text
from oneshot.system.files import check_replaceable, replacing_directory, write_text

__all__ = [
    "CALIBRATION",
    "CHECKPOINT",
    "CONFIG",
    "CONTENTS",
    "GRAPH",
    "METRICS",
    "PREDICTOR",
    "RELATIONS",
    "RESULT",
    "SAMPLER",
    "check_listed",
    "check_no_changes",
    "check_run_place",
    "current_graph",
    "list_file",
    "load_reasoner",
    "load_sampler",
    "only_writer",
    "read_calibration",
    "read_json",
    "read_relations",
    "relation_lines",
    "run_config",
    "run_data",
    "run_files",
    "run_fingerprint",
    "run_graph",
    "run_relations",
    "save_reasoner",
    "save_sampler",
    "start_run",
]


def save_reasoner(reasoner: Reasoner, path: Path) -> None:
    """Write a run directory for a reasoner made in Python."""
    config = Config(
        sampler=sampler_config(reasoner.sampler),
        predictor=reasoner.predictor.config,
        training=TrainingConfig(seed=reasoner.sampler.seed),
    )
    check_run_place(path, reasoner.graph)
    check_no_changes(path)
    with ExitStack() as stack:
        if path.is_dir():
            stack.enter_context(only_writer(path))
        directory = stack.enter_context(replacing_directory(path, GRAPH, CONTENTS))
        start_run(directory, config, reasoner.graph)
        save_tensors(directory / PREDICTOR, reasoner.predictor.state_dict(), {})
        save_sampler(directory, reasoner.sampler)
        if reasoner.calibration is not None:
            write_sealed_json(directory / CALIBRATION, asdict(reasoner.calibration))


def save_sampler(path: Path, sampler: Sampler) -> None:
    """Write what a sampler has learnt, if anything, into the run in `path`."""
    parameters = sampler.parameters()
    if parameters:
        save_tensors(path / SAMPLER, parameters, {})


def load_sampler(path: Path, sampler: Sampler) -> None:
    """Let a sampler take what that of the run in `path` has learnt, if anything."""
    if not (path / SAMPLER).is_file():
        return
    try:
        sampler.take(load_tensors(path / SAMPLER)[0])
    except InputError as error:
        raise InputError(f"{path / SAMPLER}: {error}") from error


def check_run_place(path: Path, graph: KnowledgeGraph) -> None:
    """Raise unless a run on this graph may be written to `path`; before the long work starts.

    A directory there must be a run of ours: it holds our `graph.json` (a `config.toml` may be
    the user's own) and nothing that we do not write.
    """
    check_replaceable(path, GRAPH, CONTENTS)
    if (path / GRAPH).exists() and "fingerprint" not in read_json(path / GRAPH):
        raise InputError(f"{path / GRAPH}: was not written by oneshot; choose another place")
    source = Path((graph.origin or {}).get("source", ""))  # absolute, but for names of ours
    if source.is_absolute() and source.is_relative_to(path.resolve()):
        raise InputError(f"{path}: the graph is read from there; choose another place for the run")


def check_no_changes(path: Path) -> None:
    """Raise if the run in `path` holds changed facts, which would be lost if it were replaced."""
    if has_changes(path / STORE):
        raise InputError(
            f"{path}: holds facts that were added or removed; keep them with `oneshot facts "
            "RUN export --out FILE` and remove the run, or choose another place"
        )


def start_run(path: Path, config: Config, graph: KnowledgeGraph) -> None:
    """Write what a run is about, before it has a predictor."""
    path.mkdir(parents=True, exist_ok=True)
    # First what marks the directory as ours: a process killed from here on can be resumed.
    relations = relation_lines(graph)
    about = {
        "fingerprint": graph.fingerprint,
        "origin": graph.origin,
        "files": {RELATIONS: digest(relations.encode())},
    }
    write_sealed_json(path / GRAPH, about)
    if graph.origin is None:
        save_graph(path / "graph", graph.to("cpu"), {}, {})
    write_text(path / RELATIONS, relations)
    write_sealed_text(path / CONFIG, to_toml(config))


def load_reasoner(
    path: Path, graph: KnowledgeGraph | None = None, settings: list[str] | None = None
) -> Reasoner:
    """The reasoner in a run directory, on its own graph or on another one.

    Its own graph is taken with the facts that were added and removed since the training.
    `settings`, such as `sampler.entity_ratio=0.2`, change the saved configuration.
    """
    config = run_config(path, settings)
    relations = run_relations(path)
    if graph is None:
        graph = current_graph(path)
    graph = graph.with_relations(relations)
    reasoner = build_reasoner(graph, config)
    if not (path / PREDICTOR).is_file():
        raise InputError(f"{path}: there is no trained predictor in this run yet")
    load_parameters(path / PREDICTOR, reasoner.predictor)
    load_sampler(path, reasoner.sampler)
    if (path / CALIBRATION).is_file():
        reasoner.calibration = read_calibration(path / CALIBRATION)
    return reasoner


def run_config(path: Path, settings: list[str] | None = None) -> Config:
    """The configuration of a run; anything that is not a run is an error."""
    if not (path / CONFIG).is_file():
        raise InputError(f"{path}: is not a run (it holds no {CONFIG})")
    check_sealed_text(path / CONFIG)
    return read_config(path / CONFIG, settings or [])


def run_graph(path: Path, graph: KnowledgeGraph | None = None) -> KnowledgeGraph:
    """The graph of a run (read anew if not given), which must not have changed since."""
    about = read_json(path / GRAPH)
    if graph is not None:
        pass
    elif about.get("origin") is None:
        if not is_saved_graph(path / "graph"):
            raise InputError(f"{path}: its graph is missing; give a data set to answer on")
        graph, _, _ = open_graph(path / "graph")
    else:
        graph = run_data(path).graph
    if graph.fingerprint != about.get("fingerprint"):
        raise InputError(
            f"{path}: the graph has changed since this run was made (it was read from "
            f"{(about.get('origin') or {}).get('source', 'memory')}); to answer on the changed "
            "graph name it as the data set, or train again"
        )
    return graph


def current_graph(path: Path, graph: KnowledgeGraph | None = None) -> KnowledgeGraph:
    """The graph of a run (see `run_graph`) with the facts added and removed since.

    The ids of its entities stay as they are; new ones come after them.
    """
    return with_changes(path, run_graph(path, graph), run_fingerprint(path))


def run_fingerprint(path: Path) -> str:
    """The fingerprint of the graph that a run was made on."""
    return str(read_json(path / GRAPH).get("fingerprint"))


def run_data(path: Path) -> Dataset:
    """The data set that a run was trained on."""
    run_config(path)  # anything that is not a run is told apart first
    origin = read_json(path / GRAPH).get("origin")
    if origin is None:
        raise InputError(f"{path}: was made from a graph in memory; name a data set")
    try:
        source, options = str(origin["source"]), dict(origin["options"])
        wrong = [name for name, value in options.items() if not _is_option(name, value)]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path / GRAPH}: not written by oneshot ({error!r})") from error
    if wrong:
        raise InputError(f"{path / GRAPH}: not written by oneshot (origin.options.{wrong[0]})")
    if not source_exists(source):
        raise InputError(
            f"{path}: its graph {source} was not found here; give it with --data, or set "
            "ONESHOT_DATA to the directory that it is in"
        )
    return load(source, **options)


def run_files(path: Path) -> list[Path]:
    """The files that a run is read from, those of its graph included."""
    files = []
    for name, inside in CONTENTS.items():
        files += [path / name] if inside is None else [path / name / inner for inner in inside]
    origin = read_json(path / GRAPH).get("origin") if (path / GRAPH).is_file() else None
    source = origin.get("source") if isinstance(origin, dict) else None
    return [*files, *source_files(str(source or ""))]


def _is_option(name: str, value: Any) -> bool:
    """Whether `load` takes this option."""
    if isinstance(value, bool):
        return False
    if name == "seed":
        return isinstance(value, int) and value >= 0
    is_share = isinstance(value, int | float) and 0 <= value < 1
    return name in ("valid_share", "test_share") and is_share
