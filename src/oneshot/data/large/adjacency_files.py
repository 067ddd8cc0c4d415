"""Adjacency on the disk: the arrays of `Edges` and `Neighbours`, written from sorted edges."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.data.large import arrays as array_files
from oneshot.data.large.arrays import ArrayWriter


class AdjacencyWriter:
    """Writes the arrays of `Edges` and `Neighbours` from sorted edges.

    `ids`, `places`: the types of ids, and of places in the arrays.
    """

    def __init__(
        self, work: Path, num_entities: int, ids: np.dtype[Any], places: np.dtype[Any]
    ) -> None:
        self._num_entities = num_entities
        self._stack = ExitStack()
        self._files = {
            name: self._stack.enter_context(ArrayWriter(work / f"{name}.npy", dtype))
            for name, dtype in (
                ("edges_indptr", np.dtype(np.int64)),
                ("edges_source", ids),
                ("edges_relation", ids),
                ("edges_fact", places),
                ("neighbours_indptr", places),
                ("neighbours_index", ids),
                ("neighbours_pair", places),
            )
        }
        self._next_entity = 0

    def __enter__(self) -> "AdjacencyWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            none = np.zeros(0, np.int64)
            self._begin_rows(none, np.zeros(1, np.int64), self._num_entities + 1)
        self._stack.__exit__(*error)

    def append(self, key: NDArray[np.int64], label: NDArray[Any], row: NDArray[Any]) -> None:
        """Further edges: (target · V + source) in ascending order, relation, fact.

        All edges of a pair come in one call.
        """
        target, source = np.divmod(key, self._num_entities)
        loop = source == target
        new = ~loop
        new[1:] &= key[1:] != key[:-1]
        new_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(new)])
        self._begin_rows(target, new_before, int(target[-1]) + 1)
        pair = new_before[1:] - 1 + self._files["neighbours_index"].length
        pair[loop] = -1
        self._files["edges_source"].append(source)
        self._files["edges_relation"].append(label)
        self._files["edges_fact"].append(row)
        self._files["neighbours_pair"].append(pair)
        self._files["neighbours_index"].append(source[new])

    def _begin_rows(
        self, target: NDArray[np.int64], new_before: NDArray[np.int64], end: int
    ) -> None:
        """Write where the rows of the entities up to `end` begin, before these edges are added."""
        edges = self._files["edges_source"].length
        pairs = self._files["neighbours_index"].length
        for first in range(self._next_entity, end, array_files.PIECE):
            begin = np.searchsorted(target, np.arange(first, min(first + array_files.PIECE, end)))
            self._files["edges_indptr"].append(begin + edges)
            self._files["neighbours_indptr"].append(new_before[begin] + pairs)
        self._next_entity = max(self._next_entity, end)


def row_order(key: NDArray[np.int64], label: NDArray[Any], labels: int) -> NDArray[np.int64]:
    """The order of rows by (key, label), `label < labels`; equal rows in any order."""
    least = key.min()
    if (int(key.max()) - int(least) + 1) * labels < 2**63:
        return np.argsort((key - least) * labels + label)
    return np.lexsort((label, key))
