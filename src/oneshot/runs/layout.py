"""The files of a run: their names, and how each one is written, read and checked.

Each file carries its checksum, but for `relations.txt` and `result.json`, which stay plain: their
checksums are in `graph.json`. `metrics.jsonl` is repeated in the checkpoint.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oneshot.data.formats import read_names
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.store import FILES as STORE_FILES
from oneshot.graph.saved import CONTENTS as SAVED_GRAPH
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.answers import Calibration
from oneshot.runs.tensors import load_tensors
from oneshot.system.checksums import (
    damaged,
    digest,
    file_digest,
    read_sealed_json,
    write_sealed_json,
)
from oneshot.system.files import Contents, held

CONFIG, RELATIONS, PREDICTOR = "config.toml", "relations.txt", "predictor.safetensors"
GRAPH, CALIBRATION, METRICS = "graph.json", "calibration.json", "metrics.jsonl"
SAMPLER = "sampler.safetensors"
RESULT, CHECKPOINT = "result.json", Path("checkpoint") / "state.safetensors"
CONTENTS: Contents = {
    **dict.fromkeys((CONFIG, RELATIONS, PREDICTOR, SAMPLER, GRAPH, CALIBRATION, METRICS, RESULT)),
    **dict.fromkeys(STORE_FILES),
    "graph": SAVED_GRAPH,
    CHECKPOINT.parent.name: {CHECKPOINT.name: None},
}
"""All that we write into a run; a directory that holds anything else is left alone."""


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold the directory of a run against other processes that write it; a killed one lets go.

    Facts are added and removed without it: their store lets one process write at a time.
    """
    message = f"{path}: another process is writing this run; wait for it, or choose another place"
    with held(path, message):
        yield


def relation_lines(graph: KnowledgeGraph) -> str:
    """The relations of a graph as the text of `relations.txt`."""
    return "".join(f"{_as_line(name)}\n" for name in graph.relations)


def run_relations(path: Path) -> Vocabulary:
    """The relations that the predictor of a run knows, in its order.

    Of a run that is passed on without the names of a data set in a file of their own they stand
    in the header of its predictor.
    """
    if not (path / RELATIONS).exists() and (path / PREDICTOR).is_file():
        names = load_tensors(path / PREDICTOR)[1].get("relations")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return Vocabulary.from_names(names, "relation")
    check_listed(path, RELATIONS)
    return read_relations(path / RELATIONS)


def check_listed(path: Path, name: str) -> None:
    """Raise unless a file of the run in `path` is the one that its `graph.json` tells of."""
    listed = read_json(path / GRAPH).get("files") if (path / GRAPH).is_file() else None
    wanted = listed.get(name) if isinstance(listed, dict) else None
    if wanted is None or not (path / name).is_file():
        return  # written by an earlier version, or missing, which is told when it is read
    if file_digest(path / name) != wanted:
        raise damaged(path / name)


def list_file(path: Path, name: str, content: bytes) -> None:
    """Have `graph.json` tell of a file of the run in `path`, before it is written."""
    about = read_json(path / GRAPH)
    listed = about.get("files")
    files = (listed if isinstance(listed, dict) else {}) | {name: digest(content)}
    write_sealed_json(path / GRAPH, about | {"files": files})


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


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file of a run."""
    values = read_json(path)
    try:
        found = Calibration(float(values["slope"]), float(values["offset"]), int(values["queries"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a calibration ({error!r})") from error
    if not (math.isfinite(found.slope) and math.isfinite(found.offset)):
        raise InputError(f"{path}: not a calibration (slope and offset must be finite)")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run, which must be as it was written."""
    return read_sealed_json(path)
