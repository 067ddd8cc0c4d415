"""The files of a run: names, writing, reading and verification.

Each file contains its checksum, except `relations.txt` and `result.json`, which stay plain: their
checksums are in `graph.json`. The checkpoint contains a copy of `metrics.jsonl`.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from oneshot.data.formats import read_names
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.store import FILES as STORE_FILES
from oneshot.graph.storage import CONTENTS as SAVED_GRAPH
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.answers import Calibration, FactCalibration, Rivals
from oneshot.reasoner.judgement import NUM_FEATURES
from oneshot.system.checksums import read_sealed_json
from oneshot.system.files import Contents

CONFIG, RELATIONS, PREDICTOR = "config.toml", "relations.txt", "predictor.safetensors"
GRAPH, CALIBRATION, HISTORY = "graph.json", "calibration.json", "metrics.jsonl"
SAMPLER, FACTORS = "sampler.safetensors", "factors.safetensors"
RESULT, CHECKPOINT = "result.json", Path("checkpoint") / "state.safetensors"
SAVED = "graph"
TRAINED = (str(CHECKPOINT), RESULT, CALIBRATION, PREDICTOR, HISTORY)
"""Files that a training writes to a run, in the order in which they are removed."""
CONTENTS: Contents = {
    **dict.fromkeys((CONFIG, RELATIONS, PREDICTOR, SAMPLER, FACTORS)),
    **dict.fromkeys((GRAPH, CALIBRATION, HISTORY, RESULT)),
    **dict.fromkeys(STORE_FILES),
    SAVED: SAVED_GRAPH,
    CHECKPOINT.parent.name: {CHECKPOINT.name: None},
}
"""All files that oneshot writes to a run; a directory with other files is never replaced."""


def relation_lines(graph: KnowledgeGraph) -> str:
    """The relations of a graph as the text of `relations.txt`."""
    return "".join(f"{_as_line(name)}\n" for name in graph.relations)


def read_relations(file: Path) -> Vocabulary:
    """The relations of a run; the inverse of `_as_line` for each name."""
    lines = read_names(file, "relation")
    names = []
    for number, line in enumerate(lines, 1):
        try:
            name = json.loads(line) if line.startswith('"') else line
        except ValueError as error:
            raise InputError(f"{file}, line {number}: not a name in quotes ({error})") from error
        names.append(name)
    try:
        return Vocabulary.from_names(names, "relation")
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _as_line(name: str) -> str:
    """A name as one line: unchanged, or as a JSON string if it could not be read back.

    These are empty names, names with line breaks (Unicode has many), names that start with a byte
    order mark, which is lost at the start of a file, and names that start with a quote.
    """
    plain = name.splitlines() == [name] and not name.startswith(('"', "\ufeff"))
    return name if plain else json.dumps(name)


def read_calibration(file: Path) -> Calibration:
    """The calibration in a file of a run."""
    values = read_sealed_json(file)
    try:
        alone = values.get("alone")
        found = _calibration(values)
        found = replace(found, alone=None if alone is None else _calibration(alone))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(f"{file}: not a calibration ({error!r})") from error
    for one in (found, found.alone or found):
        if one.rivals not in get_args(Rivals):
            raise InputError(f"{file}: not a calibration (rivals)")
        numbers = [one.slope, one.offset, *one.offsets.values(), *(one.present or ())]
        for line in (one.missing, one.missing_forward):
            if line is not None:
                numbers += [*line.weights, line.offset, *line.offsets.values()]
                if len(line.weights) != NUM_FEATURES:
                    raise InputError(f"{file}: not a calibration (weights)")
        if not all(map(math.isfinite, numbers)):
            raise InputError(f"{file}: not a calibration (slope and offsets must be finite)")
        if not all(0 < share <= 1 for share in one.several.values()):
            raise InputError(f"{file}: not a calibration (several)")
    return found


def _calibration(values: dict[str, Any]) -> Calibration:
    error, present = values.get("error"), values.get("present")
    return Calibration(
        float(values["slope"]),
        float(values["offset"]),
        int(values["queries"]),
        _numbers(values.get("offsets", {})),
        None if error is None else float(error),
        values.get("rivals", "all"),  # earlier versions did not write it
        missing=_line(values.get("missing")),
        missing_forward=_line(values.get("missing_forward")),
        present=None if present is None else (float(present[0]), float(present[1])),
        several=_numbers(values.get("several", {})),
        curve=tuple((float(p), float(t), int(n)) for p, t, n in values.get("curve", ())),
    )


def _line(values: dict[str, Any] | None) -> FactCalibration | None:
    if values is None:
        return None
    weights = tuple(map(float, values["weights"]))
    return FactCalibration(weights, float(values["offset"]), _numbers(values["offsets"]))


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}
