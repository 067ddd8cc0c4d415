"""Batch size: number of queries that are answered together.

On a CPU, small batches are as fast as large ones. On a GPU, small batches are dominated by kernel
launches, so there the batch size grows until it keeps the GPU busy or fills its memory.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oneshot.config import PredictorConfig
from oneshot.predictor import AGGREGATES
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import available_memory

if TYPE_CHECKING:
    from oneshot.reasoner.reasoner import Reasoner

_FIRST = 16
# Enough to keep a GPU busy; larger batches are not faster.
_EDGES = 16_000_000
_QUERIES = 1024
_BYTES = 16 * 2**30
# Rows of `dim` float32 values that a layer holds at once per entity: state, messages, six of the
# gate; an aggregate may add more.
_ROWS = 12
# Bytes per edge: its ends, relation, and the sort orders for the kernels.
_EDGE_BYTES = 64


class BatchSize:
    """The number of queries of the next batch, `now`; constant if set by the user."""

    def __init__(
        self, wanted: int | None, predictor: PredictorConfig, device: torch.device
    ) -> None:
        self.now = wanted or _FIRST
        self.is_fixed = wanted is not None or device.type != "cuda"
        self._config, self._device = predictor, device

    def learn(self, batch: SubgraphBatch) -> None:
        """Choose the next size from the subgraphs of the last batch."""
        if self.is_fixed or not batch.num_queries:
            return
        entities = batch.num_entities / batch.num_queries
        edges = max(batch.num_edges / batch.num_queries, 1.0)
        rows = _ROWS + AGGREGATES[self._config.aggregate].answering_rows
        memory = entities * self._config.dim * 4 * rows + edges * _EDGE_BYTES
        fitting = min(available_memory(self._device) / 2, _BYTES) / memory
        self.now = max(int(min(_QUERIES, _EDGES / edges, fitting)), 1)

    def shrink(self, error: torch.OutOfMemoryError) -> None:
        """After running out of memory, halve the size and stop growing."""
        if self.now == 1:
            raise error
        self.now = -(-self.now // 2)
        self.is_fixed = True
        torch.cuda.empty_cache()


def in_batches(
    reasoner: "Reasoner", queries: Tensor, size: BatchSize, include: Tensor | None = None
) -> Iterator[tuple[slice, SubgraphBatch, Tensor]]:
    """Subgraphs and scores of `queries` [n, 2], batch by batch, each with its rows of the queries.

    `include` [n, c]: entities that each subgraph must have. A batch that does not fit into memory
    is repeated with fewer queries.
    """
    done = 0
    while done < len(queries):
        rows = slice(done, min(done + size.now, len(queries)))
        try:
            added = () if include is None else (include[rows],)
            batch, scores = reasoner.reason(queries[rows], *added)
        except torch.OutOfMemoryError as error:
            size.shrink(error)
            continue
        size.learn(batch)
        done = rows.stop
        yield rows, batch, scores
