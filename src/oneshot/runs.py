"""Run directories: a reasoner on disk, with all that is needed to ask, judge and resume it.

config.toml              the whole configuration
relations.txt            the relations the predictor knows, in its order, one a line
predictor.safetensors    its parameters (of the best epoch)
graph.json               where the graph came from, and its fingerprint
graph/                   the graph itself, if it came from no file
calibration.json         from scores to probabilities
metrics.jsonl            one record an epoch
checkpoint/              for resuming
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oneshot.answers import Calibration
from oneshot.building import build_reasoner, sampler_config
from oneshot.checkpoints import load_parameters, save_tensors
from oneshot.config import Config, TrainingConfig, read_config, to_toml
from oneshot.datasets import Dataset, load
from oneshot.errors import InputError
from oneshot.files import replacing_directory, write_json, write_text
from oneshot.graph import KnowledgeGraph
from oneshot.reading import read_names
from oneshot.reasoner import Reasoner
from oneshot.storage import is_saved_graph, open_graph, save_graph
from oneshot.vocabulary import Vocabulary

CONFIG, RELATIONS, PREDICTOR = "config.toml", "relations.txt", "predictor.safetensors"
GRAPH, CALIBRATION, METRICS = "graph.json", "calibration.json", "metrics.jsonl"
RESULT = "result.json"
OURS = (RELATIONS, PREDICTOR, GRAPH, CALIBRATION, METRICS, RESULT, "graph", "checkpoint")


def save_reasoner(reasoner: Reasoner, path: Path) -> None:
    """Write a run directory for a reasoner made in Python."""
    config = Config(
        sampler=sampler_config(reasoner.sampler),
        predictor=reasoner.predictor.config,
        training=TrainingConfig(seed=reasoner.sampler.seed),
    )
    with replacing_directory(path, CONFIG, OURS) as directory:
        start_run(directory, config, reasoner.graph)
        save_tensors(directory / PREDICTOR, reasoner.predictor.state_dict(), {})
        if reasoner.calibration is not None:
            write_json(directory / CALIBRATION, calibration_values(reasoner.calibration))


def start_run(path: Path, config: Config, graph: KnowledgeGraph) -> None:
    """Write what a run is about, before it has a predictor."""
    path.mkdir(parents=True, exist_ok=True)
    # First what marks the directory as ours: a process killed from here on can be resumed.
    write_text(path / CONFIG, to_toml(config))
    about: dict[str, Any] = {"fingerprint": graph.fingerprint, "origin": graph.origin}
    if graph.origin is None:
        save_graph(path / "graph", graph.to("cpu"), {}, {})
    write_json(path / GRAPH, about)
    write_text(path / RELATIONS, "".join(f"{_as_line(name)}\n" for name in graph.relations))


def load_reasoner(
    path: Path, graph: KnowledgeGraph | None = None, settings: list[str] | None = None
) -> Reasoner:
    """The reasoner in a run directory, on its own graph or on another one.

    `settings`, such as `sampler.entity_ratio=0.2`, change the saved configuration.
    """
    config = run_config(path, settings)
    relations = read_relations(path / RELATIONS)
    if graph is None:
        graph = run_graph(path)
    graph = graph.with_relations(relations)
    reasoner = build_reasoner(graph, config)
    if not (path / PREDICTOR).is_file():
        raise InputError(f"{path}: there is no trained predictor in this run yet")
    load_parameters(path / PREDICTOR, reasoner.predictor)
    if (path / CALIBRATION).is_file():
        reasoner.calibration = _read_calibration(path / CALIBRATION)
    return reasoner


def read_relations(path: Path) -> Vocabulary:
    """The relations of a run; what `_as_line` wrote for a name is that name again."""
    lines = read_names(path, "relation")
    names = []
    for number, line in enumerate(lines, 1):
        try:
            name = json.loads(line) if line.startswith('"') else line
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not a name in quotes ({error})") from error
        names.append(name)
    try:
        return Vocabulary.from_names(names, "relation")
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _as_line(name: str) -> str:
    """A name as one line, as it is; in quotes, as in JSON, if it would not come back so.

    Such are empty names and those with line ends, of which Unicode has many, a byte order mark
    in front, which is lost at the start of a file, and names that begin with a quote themselves.
    """
    plain = name.splitlines() == [name] and not name.startswith(('"', "\ufeff"))
    return name if plain else json.dumps(name)


def run_config(path: Path, settings: list[str] | None = None) -> Config:
    """The configuration of a run; anything that is not a run is an error."""
    if not (path / CONFIG).is_file():
        raise InputError(f"{path}: is not a run (it holds no {CONFIG})")
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


def run_data(path: Path) -> Dataset:
    """The data set that a run was trained on."""
    run_config(path)  # anything that is not a run is told apart first
    origin = read_json(path / GRAPH).get("origin")
    if origin is None:
        raise InputError(f"{path}: was made from a graph in memory; name a data set")
    try:
        source, options = origin["source"], dict(origin["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path / GRAPH}: not written by oneshot ({error!r})") from error
    return load(source, **options)


def calibration_values(calibration: Calibration) -> dict[str, float]:
    """A calibration as JSON."""
    return asdict(calibration)


def _read_calibration(path: Path) -> Calibration:
    values = read_json(path)
    try:
        return Calibration(float(values["slope"]), float(values["offset"]), int(values["queries"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a calibration ({error!r})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: not written by oneshot")
    return value
