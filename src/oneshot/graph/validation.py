"""Validation of the arrays of a graph from a file: every index must be in range.

A checksum detects damage, but not a file that was manipulated on purpose, with its checksum.
Compiled code that uses an invalid index may read outside of its memory, so all indices are
validated first.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from oneshot.graph.answer_pairs import AnswerPairs
from oneshot.graph.components import Components
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.relation_graph import ARRAYS, Arrays
from oneshot.graph.vocabulary import Vocabulary

_PIECE = 1 << 22  # values per chunk


def check_values(graph: KnowledgeGraph, splits: dict[str, Tensor]) -> None:
    """Raise a `ValueError` that names an array with invalid values."""
    entities, relations, facts = graph.num_entities, graph.num_relations, graph.num_facts
    edges, neighbours = graph.edges, graph.neighbours
    _check_rising("edges_indptr", edges.indptr, 2 * facts)
    _check_range("edges_source", edges.source, 0, entities)
    _check_range("edges_relation", edges.relation, 0, 2 * relations)
    _check_range("edges_fact", edges.fact, 0, facts)
    _check_rising("neighbours_indptr", neighbours.indptr, len(neighbours.index))
    _check_range("neighbours_index", neighbours.index, 0, entities)
    _check_range("neighbours_pair", neighbours.pair, -1, len(neighbours.index))
    index = vars(graph).get("components")
    if isinstance(index, Components):
        _check_range("components_component", index.component, 0, len(index.volume))
        _check_range("components_order", index.order, 0, entities)
        _check_rising("components_first", index.first, entities)
        _check_range("components_volume", index.volume, 0, len(neighbours.index) + 1)
    pairs = vars(graph).get("answer_pairs")
    if isinstance(pairs, AnswerPairs):
        _check_rising("answers_first", pairs.first, len(pairs.relation))
        _check_rising("answers_start", pairs.start, len(pairs.relation))
        _check_range("answers_relation", pairs.relation, 0, 2 * relations)
        _check_range("answers_entity", pairs.entity, 0, entities)
        for name, counts in (("count", pairs.count), ("entity_count", pairs.entity_count)):
            _check_range(f"answers_{name}", counts, 1, 2 * facts + 1)
    for name, rows in {"facts": graph.facts, **splits}.items():
        for column, most in enumerate((entities, relations, entities)):
            _check_range(name, rows[:, column], 0, most)
    if graph.weights is not None:
        for piece in _pieces(graph.weights):
            if not bool(((piece > 0) & (piece < np.inf)).all()):
                raise ValueError("weights.npy has invalid values")
    for vocabulary in (graph.entities, graph.relations):
        _check_names(vocabulary)


def check_relation_counts(arrays: Arrays, num_entities: int, num_facts: int) -> None:
    """As `check_values`, for the arrays of a `RelationGraph`."""
    named = dict(zip(ARRAYS, arrays, strict=True))
    for part, most in (("", num_entities), ("pair_", num_facts)):
        index = named[f"{part}index"]
        _check_rising(f"relations_{part}indptr", named[f"{part}indptr"], len(index))
        _check_range(f"relations_{part}index", index, 0, len(named["facts"]))
        _check_range(f"relations_{part}count", named[f"{part}count"], 1, most + 1)
    _check_range("relations_facts", named["facts"], 0, num_facts + 1)


def _check_names(names: Vocabulary) -> None:
    """Raise unless every name is valid UTF-8, and the index of hashes is valid."""
    kind, blob, offsets = names.kind, names.blob, names.offsets
    _check_rising(f"{kind}_offsets", offsets, len(blob))
    hashes, ids = names.hash_index
    _check_range(f"{kind}_hash_ids", ids, 0, len(names))
    for piece in _pieces(offsets[:-1]):
        starts = blob[piece[piece < len(blob)]]
        if bool(((starts & 0xC0) == 0x80).any()):  # in the middle of a character
            raise ValueError(f"{kind}_offsets.npy has invalid values")
    for first in range(0, len(names), _PIECE):
        last = min(first + _PIECE, len(names))
        try:
            blob[int(offsets[first]) : int(offsets[last])].tobytes().decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{kind}_blob.npy is not UTF-8 ({error.reason})") from error
    previous = np.uint64(0)
    for piece in _pieces(hashes):
        if piece[0] < previous or bool((piece[1:] < piece[:-1]).any()):
            raise ValueError(f"{kind}_hashes.npy is not sorted")
        previous = piece[-1]


def _check_rising(name: str, values: Tensor | NDArray[Any], last: int) -> None:
    """Raise unless the values increase monotonically from 0 to `last`."""
    previous = 0
    for number, piece in enumerate(_pieces(values)):
        wrong = number == 0 and int(piece[0]) != 0
        if wrong or int(piece[0]) < previous or bool((piece[1:] < piece[:-1]).any()):
            raise ValueError(f"{name}.npy has invalid values")
        previous = int(piece[-1])
    if previous != last:
        raise ValueError(f"{name}.npy has invalid values")


def _check_range(name: str, values: Tensor | NDArray[Any], least: int, most: int) -> None:
    """Raise unless `least` ≤ value < `most` for all."""
    for piece in _pieces(values):
        if int(piece.min()) < least or int(piece.max()) >= most:
            raise ValueError(f"{name}.npy has invalid values")


def _pieces(values: Tensor | NDArray[Any]) -> Iterator[NDArray[Any]]:
    """An array [n] in non-empty parts."""
    array = values.numpy() if isinstance(values, Tensor) else values
    for start in range(0, len(array), _PIECE):
        yield array[start : start + _PIECE]
