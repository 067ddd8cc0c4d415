"""Saved graphs: memory-mapped arrays that open in milliseconds, whatever their size.

A saved graph is a directory with `oneshot-graph.json` (format version, fingerprint, checksums) and
one `.npy` file per array. Opening maps the files; pages are read on first access. A graph may be
larger than the memory: queries with the local push (`method="push"`) and the extraction of their
subgraphs read only the rows of the entities that they reach. Graphs that were saved without the
index of components get it in memory, on demand.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import Edges, Neighbours
from oneshot.graph.answer_pairs import AnswerPairs, count_answers
from oneshot.graph.components import Components, component_arrays
from oneshot.graph.graph import KnowledgeGraph, check_relations
from oneshot.graph.hub_index import HubIndex
from oneshot.graph.memory_map import Scattered, map_array
from oneshot.graph.relation_graph import ARRAYS, Arrays, RelationGraph, count_arrays
from oneshot.graph.validation import check_relation_counts, check_values
from oneshot.graph.vocabulary import Vocabulary
from oneshot.system.checksums import (
    file_digest,
    is_intact,
    read_sealed_json,
    sealed,
    write_sealed_json,
)
from oneshot.system.devices import total_memory
from oneshot.system.files import check_replaceable, replacing, replacing_directory

FORMAT = 1
WEIGHTED_FORMAT = 2
"""Format of graphs with weights, which earlier versions would ignore."""
MARKER = "oneshot-graph.json"
CHECKED_BYTES = 1 << 26
"""Saved graphs up to this size in bytes are fully verified when they are opened."""
SCATTERED_SHARE = 0.5
"""Share of the memory above which the adjacency is read page by page (see `graph.memory_map`)."""

_COMPARED = 1 << 16  # components whose sizes are compared with the graph when it is opened
_EDGES = ("indptr", "source", "relation", "fact")
_NEIGHBOURS = ("indptr", "index", "pair")
_COMPONENTS = ("component", "order", "first", "volume")
_COMPONENT_FILES = {f"components_{name}.npy" for name in _COMPONENTS}
_ANSWERS = tuple(field.name for field in dataclasses.fields(AnswerPairs))
_COUNT_FILES = {
    *(f"answers_{name}.npy" for name in _ANSWERS),
    *(f"relations_{name}.npy" for name in ARRAYS),
}
_OPTIONAL = (_COMPONENT_FILES, _COUNT_FILES)
"""Files that graphs saved by earlier versions do not have; computed on demand."""
_HUBS = ("hubs", "degree", "outside", "ppr")
_HUB_FILES = {f"hub_index_{name}.npy" for name in _HUBS}
_SPLITS = ("valid", "test")
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64}
_NAMES = ("blob", "offsets", "hashes", "hash_ids")
_WEIGHTS = "weights.npy"

UNWEIGHTED: tuple[str, ...] = (
    MARKER,
    *(f"edges_{name}.npy" for name in _EDGES),
    *(f"neighbours_{name}.npy" for name in _NEIGHBOURS),
    *sorted(_COMPONENT_FILES),
    *sorted(_COUNT_FILES),
    *(f"{kind}_{name}.npy" for kind in ("entity", "relation") for name in _NAMES),
    *(f"{facts}.npy" for facts in ("facts", "valid", "test")),
)
"""The files of a saved graph without weights and hub index."""
CONTENTS: dict[str, None] = dict.fromkeys([*UNWEIGHTED, _WEIGHTS, *sorted(_HUB_FILES)])
"""The files of a saved graph; a directory with other files is not replaced."""

WRITTEN = tuple(name for name in CONTENTS if name not in _HUB_FILES)
"""The files that are written when a graph is saved; an index of hubs may be added later."""


class MappedEdges(Edges):
    """Edges in files. `scattered`: set if they are too large for the memory."""

    scattered: Scattered | None = None

    def expect(self, start: Tensor, count: Tensor) -> None:
        if self.scattered is not None:
            self.scattered.expect(start, count)


class MappedNeighbours(Neighbours):
    """Neighbours in files: degrees are computed on demand."""

    scattered: Scattered | None = None

    def expect(self, start: Tensor, count: Tensor) -> None:
        if self.scattered is not None:
            self.scattered.expect(start, count)

    def degree_of(self, entities: Tensor) -> Tensor:
        return (self.indptr[entities + 1] - self.indptr[entities]).long()


class MappedGraph(KnowledgeGraph):
    """A graph in a file: degrees are computed on demand."""

    is_mapped = True
    _relation_counts: Arrays | None = None

    @cached_property
    def relation_graph(self) -> RelationGraph:
        if self._relation_counts is None:
            return super().relation_graph
        return RelationGraph.of_arrays(self._relation_counts, self.num_entities)

    def degree_of(self, entities: Tensor) -> Tensor:
        indptr = self.edges.indptr
        return indptr[entities + 1] - indptr[entities]


def check_destination(path: Path) -> None:
    """Raise if no graph can be saved in `path`; called before the long work starts."""
    check_replaceable(path, MARKER, CONTENTS)


def save_graph(
    path: Path, graph: KnowledgeGraph, splits: dict[str, Tensor], about: dict[str, Any]
) -> None:
    """Write a graph and further splits [n, 3]; `about` is stored unchanged."""
    graph = graph.plain
    fingerprint, largest_degree = graph.fingerprint, graph.neighbours.largest_degree
    with replacing_directory(path, MARKER, CONTENTS) as directory:
        for name in _EDGES:
            _save(directory / f"edges_{name}.npy", getattr(graph.edges, name))
        for name in _NEIGHBOURS:
            _save(directory / f"neighbours_{name}.npy", getattr(graph.neighbours, name))
        save_components(directory, graph.neighbours.indptr, graph.neighbours.index)
        save_counts(directory, graph)
        _save(directory / "facts.npy", graph.facts)
        if graph.weights is not None:
            _save(directory / _WEIGHTS, graph.weights)
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
        write_marker(directory, fingerprint, largest_degree, splits, about)


def save_components(directory: Path, indptr: Tensor, index: Tensor) -> None:
    """Write the index of components of a graph with these neighbours (see `Components`)."""
    arrays = component_arrays(indptr.cpu().numpy(), index.cpu().numpy())
    for name in _COMPONENTS:
        np.save(directory / f"components_{name}.npy", arrays[name])


def save_counts(directory: Path, graph: KnowledgeGraph) -> None:
    """Write the pairs of entity and relation of a graph, and its relation graph.

    In blocks: memory grows with the entities only.
    """

    def in_file(name: str, length: int, dtype: torch.dtype) -> Tensor:
        path, kind = directory / f"answers_{name}.npy", _NUMPY[dtype]
        if not length:  # a file without content cannot be mapped
            np.save(path, np.zeros(0, kind))
            return torch.zeros(0, dtype=dtype)
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(length,))
        return torch.from_numpy(mapped)

    near = graph.to("cpu")
    count_answers(near, in_file)
    for name, array in zip(ARRAYS, count_arrays(near), strict=True):
        _save(directory / f"relations_{name}.npy", array)


def note_push_recall(path: Path, recall: float, precision: float | None = None) -> None:
    """Record the measured recall of the local push, and its precision, in a saved graph."""
    measured = {"push_recall": recall, "push_precision": precision}
    write_sealed_json(path / MARKER, read_sealed_json(path / MARKER) | measured)


def save_hub_index(path: Path, index: HubIndex, recall: float) -> None:
    """Add a hub index to a saved graph, or replace it; `recall`: that of the push with it."""
    meta = read_sealed_json(path / MARKER)
    # The old index counts as absent while its files are replaced.
    meta.pop("hub_index", None)
    write_sealed_json(path / MARKER, meta)
    for name in _HUBS:
        array = getattr(index, name).cpu().numpy()
        # Files of saved graphs hold integers.
        with replacing(path / f"hub_index_{name}.npy") as place, place.open("wb") as file:
            np.save(file, array.view(np.int32) if array.dtype == np.float32 else array)
    about = {
        "restart": index.restart,
        "least_degree": index.least_degree,
        "recall": recall,
        "files": _described(path, sorted(_HUB_FILES)),
    }
    write_sealed_json(path / MARKER, meta | {"hub_index": about})


def _described(directory: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "bytes": (directory / name).stat().st_size,
            "blake2b": file_digest(directory / name),
        }
        for name in names
    }


def write_marker(
    directory: Path,
    fingerprint: str,
    largest_degree: int,
    splits: Iterable[str],
    about: dict[str, Any],
) -> None:
    """Write the file that makes a directory of arrays a saved graph."""
    meta = {
        "format": WEIGHTED_FORMAT if (directory / _WEIGHTS).exists() else FORMAT,
        "fingerprint": fingerprint,
        "largest_degree": largest_degree,
        "splits": list(splits),
        "about": about,
        "files": _described(
            directory,
            (n for n in WRITTEN if n != MARKER and (directory / n).exists()),
        ),
    }
    text = json.dumps(sealed(meta), indent=2)
    (directory / MARKER).write_text(text, encoding="utf-8")


def is_saved_graph(path: Path) -> bool:
    return (path / MARKER).is_file()


def open_graph(
    path: Path, *, hub_index: bool = True
) -> tuple[KnowledgeGraph, dict[str, Tensor], dict[str, Any]]:
    """A saved graph, its further splits, and its metadata; without the hub index if false."""
    try:
        meta = json.loads((path / MARKER).read_text(encoding="utf-8"))
        if meta["format"] not in (FORMAT, WEIGHTED_FORMAT):
            raise InputError(
                f"{path}: saved in format {meta['format']}, this version reads up to "
                f"{WEIGHTED_FORMAT}; save it again with `oneshot data SOURCE --save DIR`"
            )
        _check_files(path, meta)
        entities, relations = (_open_vocabulary(path, kind) for kind in ("entity", "relation"))
        check_relations(relations, str(path))
        graph = MappedGraph(_open(path / "facts.npy", dimensions=2), entities, relations)
        graph.path = path
        if meta["format"] == WEIGHTED_FORMAT:
            graph.weights = _open_weights(path)
            graph.largest_weight = float(graph.weights.max()) if len(graph.weights) else 1.0
        edges = {name: map_array(path / f"edges_{name}.npy") for name in _EDGES}
        pairs = {name: map_array(path / f"neighbours_{name}.npy") for name in _NEIGHBOURS}
        graph.edges = MappedEdges(*map(torch.from_numpy, edges.values()))
        graph.neighbours = MappedNeighbours(*map(torch.from_numpy, pairs.values()))
        # The arrays that queries read; `indptr` is small and soon completely in memory.
        touched = edges["source"], edges["relation"], pairs["index"]
        memory = total_memory(torch.device("cpu"))
        size = sum(array.nbytes for array in touched)
        if memory is not None and size > SCATTERED_SHARE * memory:
            vars(graph.edges)["scattered"] = Scattered(*touched[:2])
            vars(graph.neighbours)["scattered"] = Scattered(touched[2])
        if _has(meta, _COUNT_FILES):
            graph.answer_pairs = AnswerPairs(*(_open(path / f"answers_{n}.npy") for n in _ANSWERS))
            counts = tuple(_open(path / f"relations_{name}.npy") for name in ARRAYS)
            graph._relation_counts = cast(Arrays, counts)
        if _has(meta, _COMPONENT_FILES):
            graph.components = Components(
                *(_open(path / f"components_{name}.npy") for name in _COMPONENTS)
            )
        recall = meta.get("push_recall")
        graph.push_recall = None if recall is None else float(recall)
        precision = meta.get("push_precision")
        graph.push_precision = None if precision is None else float(precision)
        if hub_index and "hub_index" in meta:
            graph.hub_index = _open_hub_index(path, graph, meta)
            graph.hub_recall = float(meta["hub_index"]["recall"])
        graph.fingerprint = meta["fingerprint"]
        vars(graph.neighbours)["largest_degree"] = int(meta["largest_degree"])
        splits = {name: _open(path / f"{name}.npy", dimensions=2) for name in meta["splits"]}
        _check_lengths(path, graph, splits)
        if sum((path / name).stat().st_size for name in _arrays(meta)) <= CHECKED_BYTES:
            _check_all(graph, splits)
        return graph, splits, dict(meta["about"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not a whole saved graph ({error})") from error


def verify_graph(path: Path, progress: Callable[[int, int], None] = lambda *_: None) -> None:
    """Raise unless every file of a saved graph has its original checksum.

    Then the values of all arrays are validated. Opening does so for small graphs; for large ones it
    checks only the sizes of the files. `progress` is called with the bytes done and the total.
    """
    try:
        meta = json.loads((path / MARKER).read_text(encoding="utf-8"))
        _check_files(path, meta, whole=True, progress=progress)
        if "hub_index" in meta:
            _check_hub_files(path, meta, whole=True)
        graph, splits, _ = open_graph(path)
        _check_all(graph, splits)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not a whole saved graph ({error})") from error


def _arrays(meta: dict[str, Any]) -> list[str]:
    """The names of the files of arrays."""
    unused = {f"{name}.npy" for name in set(_SPLITS) - set(meta["splits"])}
    for files in _OPTIONAL:
        if not _has(meta, files):
            unused |= files
    if meta["format"] != WEIGHTED_FORMAT:
        unused.add(_WEIGHTS)
    return [name for name in WRITTEN if name != MARKER and name not in unused]


def _has(meta: dict[str, Any], files: set[str]) -> bool:
    """Whether the graph was saved with some of its optional files."""
    return bool(files & set(meta["files"]))


def _check_files(
    path: Path,
    meta: dict[str, Any],
    whole: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Raise if the size or the checksum of a file differs from the saved one."""
    if not is_intact(meta):
        raise ValueError(f"{MARKER} was changed or damaged")
    files: dict[str, dict[str, Any]] = meta["files"]
    _compare_files(path, files, whole or _size_of(files) <= CHECKED_BYTES, progress)


def _size_of(*files: dict[str, dict[str, Any]]) -> int:
    return sum(int(about["bytes"]) for some in files for about in some.values())


def _compare_files(
    path: Path,
    files: dict[str, dict[str, Any]],
    with_checksums: bool,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    total, done = _size_of(files), 0
    for name, about in files.items():
        size = (path / name).stat().st_size
        if size != about["bytes"]:
            raise ValueError(f"{name} has {size:,} bytes instead of {about['bytes']:,}")
        if with_checksums and file_digest(path / name) != about["blake2b"]:
            raise ValueError(f"{name} was changed or damaged: wrong checksum")
        done += size
        progress(done, total)


def _open_hub_index(path: Path, graph: KnowledgeGraph, meta: dict[str, Any]) -> HubIndex:
    _check_hub_files(path, meta)
    try:
        about = meta["hub_index"]
        hubs, degree, outside = (_open(path / f"hub_index_{name}.npy") for name in _HUBS[:3])
        ppr = _open(path / "hub_index_ppr.npy", dimensions=2).view(torch.float32)
        count = len(hubs)
        fits = (
            len(degree) == len(outside) == count
            and ppr.shape == (count, count)
            and bool((hubs.diff() > 0).all())
            and (not count or 0 <= int(hubs[0]) <= int(hubs[-1]) < graph.num_entities)
            and torch.equal(graph.neighbours.degree_of(hubs), degree)
        )
        if not fits:
            raise ValueError("its arrays do not fit the graph")
        return HubIndex(
            float(about["restart"]), int(about["least_degree"]), hubs, degree, outside, ppr
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise _bad_hub_index(path, error) from error


def _check_hub_files(path: Path, meta: dict[str, Any], whole: bool = False) -> None:
    files: dict[str, dict[str, Any]] = meta["hub_index"]["files"]
    try:
        _compare_files(path, files, whole or _size_of(files, meta["files"]) <= CHECKED_BYTES)
    except (OSError, ValueError) as error:
        raise _bad_hub_index(path, error) from error


def _bad_hub_index(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path}: the hub index is damaged ({error}); build it again with "
        f"`oneshot data {path} --hub-index`"
    )


def _save(path: Path, tensor: Tensor) -> None:
    np.save(path, tensor.cpu().numpy())


def _open(path: Path, dimensions: int = 1) -> Tensor:
    return torch.from_numpy(map_array(path, dimensions))


def _open_weights(path: Path) -> Tensor:
    """The weights of the facts of a saved graph."""
    stored = map_array(path / _WEIGHTS, kinds="f")
    if stored.dtype != np.float32:
        raise ValueError(f"{_WEIGHTS} has the type {stored.dtype}")
    return torch.from_numpy(stored)


def _open_vocabulary(path: Path, kind: str) -> Vocabulary:
    blob, offsets, hashes, ids = (map_array(path / f"{kind}_{name}.npy") for name in _NAMES)
    return Vocabulary(blob, offsets, kind, (hashes, ids))


def _check_all(graph: KnowledgeGraph, splits: dict[str, Tensor]) -> None:
    """Raise a `ValueError` if an array has invalid values."""
    check_values(graph, splits)
    if isinstance(graph, MappedGraph) and graph._relation_counts is not None:
        check_relation_counts(graph._relation_counts, graph.num_entities, graph.num_facts)


def _check_lengths(path: Path, graph: MappedGraph, splits: dict[str, Tensor]) -> None:
    """Raise if arrays of different graphs were mixed by a partial copy."""
    edges, neighbours = graph.edges, graph.neighbours
    consistent = (
        len(edges.indptr) == len(neighbours.indptr) == graph.num_entities + 1
        and int(neighbours.indptr[-1]) == len(neighbours.index)
        and all(facts.shape[1] == 3 for facts in (graph.facts, *splits.values()))
        and all(
            len(array) == 2 * graph.num_facts
            for array in (edges.source, edges.relation, edges.fact, neighbours.pair)
        )
        and (graph.weights is None or len(graph.weights) == graph.num_facts)
        and all(
            len(array) == len(names)
            for names in (graph.entities, graph.relations)
            for array in names.hash_index
        )
        and all(
            int(names.offsets[-1]) == len(names.blob) for names in (graph.entities, graph.relations)
        )
    )
    index = vars(graph).get("components")
    if isinstance(index, Components):
        some = index.volume[:_COMPARED]
        pairs = len(neighbours.index)
        consistent &= (
            len(index.component) == len(index.order) == graph.num_entities
            and len(index.first) == len(index.volume) + 1
            and int(index.first[-1]) == graph.num_entities
            and (int(some.sum()) == pairs or (len(some) == _COMPARED and int(some.sum()) < pairs))
        )
    if graph._relation_counts is not None:
        answers, relations = graph.answer_pairs, 2 * graph.num_relations
        *matrices, facts = graph._relation_counts
        consistent &= (
            len(answers.first) == graph.num_entities + 1
            and len(answers.start) == relations + 1
            and int(answers.first[-1]) == int(answers.start[-1]) == len(answers.relation)
            and len(answers.relation) == len(answers.count)
            and len(answers.relation) == len(answers.entity) == len(answers.entity_count)
            and len(facts) == relations
            and int(facts.sum()) == 2 * graph.num_facts
            and all(
                len(indptr) == relations + 1 and int(indptr[-1]) == len(index) == len(count)
                for indptr, index, count in (matrices[:3], matrices[3:])
            )
        )
    if not consistent:
        raise InputError(f"{path}: the arrays of this saved graph do not fit each other")
