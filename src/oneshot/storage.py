"""Saved graphs: memory-mapped arrays that open in milliseconds, whatever their size.

A saved graph is a directory with `graph.json` (format version, counts, fingerprint) and one
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
from oneshot.files import replacing_directory
from oneshot.graph import Edges, KnowledgeGraph, Neighbours
from oneshot.vocabulary import Vocabulary

FORMAT = 1
MARKER = "graph.json"

_EDGES = ("indptr", "source", "relation", "fact")
_NEIGHBOURS = ("indptr", "index", "pair")


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
    with replacing_directory(path, MARKER) as directory:
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
        (directory / MARKER).write_text(json.dumps(meta, indent=2, ensure_ascii=False))


def is_saved_graph(path: Path) -> bool:
    return (path / MARKER).is_file()


def open_graph(path: Path) -> tuple[KnowledgeGraph, dict[str, Tensor], dict[str, Any]]:
    """A saved graph, its further splits, and what was noted about it."""
    try:
        meta = json.loads((path / MARKER).read_text())
        if meta["format"] != FORMAT:
            raise InputError(
                f"{path}: saved in format {meta['format']}, this version reads {FORMAT}; save it "
                "again with `oneshot data SOURCE --save DIR`"
            )
        entities, relations = (_open_vocabulary(path, kind) for kind in ("entity", "relation"))
        graph = KnowledgeGraph(_open(path / "facts.npy"), entities, relations)
        graph.edges = Edges(*(_open(path / f"edges_{name}.npy") for name in _EDGES))
        graph.neighbours = Neighbours(
            *(_open(path / f"neighbours_{name}.npy") for name in _NEIGHBOURS)
        )
        graph.fingerprint = meta["fingerprint"]
        splits = {name: _open(path / f"{name}.npy") for name in meta["splits"]}
        _check_lengths(path, graph)
        return graph, splits, meta["about"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a whole saved graph ({error})") from error


def _save(path: Path, tensor: Tensor) -> None:
    np.save(path, tensor.cpu().numpy())


def _map(path: Path) -> NDArray[Any]:
    # Copy-on-write: torch wants writable memory, the file is never changed.
    array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


def _open(path: Path) -> Tensor:
    return torch.from_numpy(_map(path))


def _open_vocabulary(path: Path, kind: str) -> Vocabulary:
    blob, offsets, hashes, ids = (
        _map(path / f"{kind}_{name}.npy") for name in ("blob", "offsets", "hashes", "hash_ids")
    )
    return Vocabulary(blob, offsets, kind, (hashes, ids))


def _check_lengths(path: Path, graph: KnowledgeGraph) -> None:
    """Arrays of different graphs, mixed by a partial copy, must not be taken for one."""
    edges = 2 * graph.num_facts
    consistent = (
        len(graph.edges.indptr) == graph.num_entities + 1
        and len(graph.neighbours.indptr) == graph.num_entities + 1
        and len(graph.edges.source) == edges
        and len(graph.neighbours.pair) == edges
    )
    if not consistent:
        raise InputError(f"{path}: the arrays of this saved graph do not fit each other")
