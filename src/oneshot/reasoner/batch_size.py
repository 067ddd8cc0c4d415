"""Batching: how many queries are answered at once.

On a processor a few are as good as many. A GPU that gets a few spends its time on being told what
to do, so there the batches grow to what keeps it busy and fits into its memory.
"""

import torch

from oneshot.config import PredictorConfig
from oneshot.predictor import AGGREGATES
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import available_memory

_FIRST = 16
# What keeps a GPU busy: more gains nothing.
_EDGES = 16_000_000
_QUERIES = 1024
_BYTES = 16 * 2**30
# Rows of the width `dim` that a layer holds at once for an entity, in float32: state, messages,
# the gate's six; an aggregate may add more.
_ROWS = 12
# Numbers that an edge takes, in bytes: its ends, relation, and the orders that kernels go by.
_EDGE_BYTES = 64


class BatchSize:
    """The number of queries of the next batch, `now`; fixed if the user wants it so."""

    def __init__(
        self, wanted: int | None, predictor: PredictorConfig, device: torch.device
    ) -> None:
        self.now = wanted or _FIRST
        self.is_fixed = wanted is not None or device.type != "cuda"
        self._config, self._device = predictor, device

    def learn(self, batch: SubgraphBatch) -> None:
        """Choose the next size by the subgraphs of the last batch."""
        if self.is_fixed or not batch.num_queries:
            return
        entities = batch.num_entities / batch.num_queries
        edges = max(batch.num_edges / batch.num_queries, 1.0)
        rows = _ROWS + AGGREGATES[self._config.aggregate].answering_rows
        memory = entities * self._config.dim * 4 * rows + edges * _EDGE_BYTES
        fitting = min(available_memory(self._device) / 2, _BYTES) / memory
        self.now = max(int(min(_QUERIES, _EDGES / edges, fitting)), 1)

    def shrink(self, error: torch.OutOfMemoryError) -> None:
        """After running out of memory: half of it, and no more growing."""
        if self.now == 1:
            raise error
        self.now = -(-self.now // 2)
        self.is_fixed = True
        torch.cuda.empty_cache()
