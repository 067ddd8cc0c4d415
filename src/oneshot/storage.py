"""Saved graphs: memory-mapped arrays that open in milliseconds, whatever their size.

A saved graph is a directory with `oneshot-graph.json` (format version, counts, fingerprint) and one
`.npy` file an array. Opening maps the files; pages are read when they are touched.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.errors import InputError
from oneshot.files import check_replaceable, replacing_directory
from oneshot.graph import Edges, KnowledgeGraph, Neighbours, check_relations
from oneshot.vocabulary import Vocabulary

FORMAT = 1
MARKER = "oneshot-graph.json"

_EDGES = ("indptr", "source", "relation", "fact")
_NEIGHBOURS = ("indptr", "index", "pair")
_NAMES = ("blob", "offsets", "hashes", "hash_ids")

CONTENTS: dict[str, None] = dict.fromkeys(
    [
        MARKER,
        *(f"edges_{name}.npy" for name in _EDGES),
        *(f"neighbours_{name}.npy" for name in _NEIGHBOURS),
        *(f"{kind}_{name}.npy" for kind in ("entity", "relation") for name in _NAMES),
        *(f"{facts}.npy" for facts in ("facts", "valid", "test")),
    ]
)
"""The files of a saved graph; a directory that holds anything else is not replaced."""


def check_place(path: Path) -> None:
    """Raise if no graph can be saved there; for a look before the long work starts."""
    check_replaceable(path, MARKER, CONTENTS)


def save_graph(
    path: Path, graph: KnowledgeGraph, splits: dict[str, Tensor], about: dict[str, Any]
) -> None:
    """Write a graph and further splits [n, 3]; `about` is kept as it is."""
    meta = {
        "format": FORMAT,
        "fingerprint": graph.fingerprint,
        "splits": list(splits),
        "about": about,
    }
    with replacing_directory(path, MARKER, CONTENTS) as directory:
        for name in _EDGES:
            _save(directory / f"edges_{name}.npy", getattr(graph.edges, name))
        for name in _NEIGHBOURS:
            _save(directory / f"neighbours_{name}.npy", getattr(graph.neighbours, name))
        _save(directory / "facts.npy", graph.facts)
        for split, facts in splits.items():
            _save(directory / f"{split}.npy", facts)
        for vocabulary in (graph.entities, graph.relations):
            hashes, ids = vocabulary.hash_index
            arrays: dict[str, NDArray[Any]] = {
                "blob": vocabulary.blob,
                "offsets": vocabulary.offsets,
            }
            arrays |= {"hashes": hashes, "hash_ids": ids}
            for name, array in arrays.items():
                np.save(directory / f"{vocabulary.kind}_{name}.npy", array)
        (directory / MARKER).write_text(json.dumps(meta, indent=2), encoding="utf-8")


def is_saved_graph(path: Path) -> bool:
    return (path / MARKER).is_file()


def open_graph(path: Path) -> tuple[KnowledgeGraph, dict[str, Tensor], dict[str, Any]]:
    """A saved graph, its further splits, and what was noted about it."""
    try:
        meta = json.loads((path / MARKER).read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            raise InputError(
                f"{path}: saved in format {meta['format']}, this version reads {FORMAT}; save it "
                "again with `oneshot data SOURCE --save DIR`"
            )
        entities, relations = (_open_vocabulary(path, kind) for kind in ("entity", "relation"))
        check_relations(relations, str(path))
        graph = KnowledgeGraph(_open(path / "facts.npy", dimensions=2), entities, relations)
        graph.edges = Edges(*(_open(path / f"edges_{name}.npy") for name in _EDGES))
        graph.neighbours = Neighbours(
            *(_open(path / f"neighbours_{name}.npy") for name in _NEIGHBOURS)
        )
        graph.fingerprint = meta["fingerprint"]
        splits = {name: _open(path / f"{name}.npy", dimensions=2) for name in meta["splits"]}
        _check_lengths(path, graph, splits)
        return graph, splits, dict(meta["about"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not a whole saved graph ({error})") from error


def _save(path: Path, tensor: Tensor) -> None:
    np.save(path, tensor.cpu().numpy())


def _map(path: Path, dimensions: int = 1) -> NDArray[Any]:
    try:
        # Copy-on-write: torch wants writable memory, the file is never changed.
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="c")
    except Exception as error:  # a damaged header can fail in tokenize, ast, mmap or numpy
        raise ValueError(f"{path.name}: {error}") from error
    if array.ndim != dimensions or array.dtype.kind not in "iu":
        raise ValueError(f"{path.name} holds {array.dtype} {list(array.shape)}")
    return array


def _open(path: Path, dimensions: int = 1) -> Tensor:
    return torch.from_numpy(_map(path, dimensions))


def _open_vocabulary(path: Path, kind: str) -> Vocabulary:
    blob, offsets, hashes, ids = (_map(path / f"{kind}_{name}.npy") for name in _NAMES)
    return Vocabulary(blob, offsets, kind, (hashes, ids))


def _check_lengths(path: Path, graph: KnowledgeGraph, splits: dict[str, Tensor]) -> None:
    """Arrays of different graphs, mixed by a partial copy, must not be taken for one."""
    edges, neighbours = graph.edges, graph.neighbours
    consistent = (
        len(edges.indptr) == len(neighbours.indptr) == graph.num_entities + 1
        and int(neighbours.indptr[-1]) == len(neighbours.index)
        and all(facts.shape[1] == 3 for facts in (graph.facts, *splits.values()))
        and all(
            len(array) == 2 * graph.num_facts
            for array in (edges.source, edges.relation, edges.fact, neighbours.pair)
        )
        and all(
            len(array) == len(names)
            for names in (graph.entities, graph.relations)
            for array in names.hash_index
        )
        and all(
            int(names.offsets[-1]) == len(names.blob) for names in (graph.entities, graph.relations)
        )
    )
    if not consistent:
        raise InputError(f"{path}: the arrays of this saved graph do not fit each other")
