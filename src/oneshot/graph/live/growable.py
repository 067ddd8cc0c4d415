"""Mutable adjacency: rows that can grow, and a matrix with a few modified entries.

A change of a graph touches the rows of few entities. These rows are rewritten, in place if they
fit, otherwise at the end of the arrays, and the walk matrix is corrected where it differs. The cost
depends on the touched rows, not on the graph.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from oneshot.graph.adjacency import row_places
from oneshot.graph.sparse import Matrix


class GrowableRows:
    """Rows of different lengths in shared arrays, each of which can be rewritten.

    Row `i` is `start[i] : start[i] + count[i]` of every column; rows may be in any
    order and have gaps between them. `columns`: [capacity] each, of which `used` are in use.
    """

    def __init__(
        self, start: Tensor, count: Tensor, columns: Sequence[Tensor], spare_rows: int, spare: int
    ) -> None:
        rows = len(count)
        self.start = torch.zeros(rows + spare_rows, dtype=torch.long, device=count.device)
        self.count = torch.zeros_like(self.start)
        self.room = torch.zeros_like(self.start)
        self.start[:rows] = start[:rows]
        self.count[:rows] = count
        self.room[:rows] = count
        self.used = len(columns[0])
        # Uninitialized: untouched memory is never allocated by the system.
        self.columns = [_longer(column, len(column) + spare) for column in columns]

    def reserve(self, rows: int) -> None:
        """Make room for a number of rows."""
        if rows > len(self.start):
            for name in ("start", "count", "room"):
                old = getattr(self, name)
                new = torch.zeros(2 * rows, dtype=torch.long, device=old.device)
                new[: len(old)] = old
                setattr(self, name, new)

    def read(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The content of some rows [m]: (index in `rows` of each entry, the columns), int64."""
        row, place = row_places(self.start[rows], self.count[rows])
        return row, [column[place].long() for column in self.columns]

    def write(self, rows: Tensor, counts: Tensor, columns: Sequence[Tensor]) -> None:
        """Replace distinct rows [m]: `counts` [m] entries each, one row after the other."""
        tight = counts > self.room[rows]
        if bool(tight.any()):
            room = counts[tight] + counts[tight] // 2 + 4
            ends = room.cumsum(0)
            if self.used + int(ends[-1]) > len(self.columns[0]):
                length = self.used + int(ends[-1]) + len(self.columns[0]) // 2
                self.columns = [_longer(column[: self.used], length) for column in self.columns]
            self.start[rows[tight]] = self.used + ends - room
            self.room[rows[tight]] = room
            self.used += int(ends[-1])
        self.count[rows] = counts
        _, place = row_places(self.start[rows], counts)
        for column, values in zip(self.columns, columns, strict=True):
            column[place] = values.to(column.dtype)


class PatchedMatrix:
    """`C S C + P`: a sparse symmetric matrix, some rows and columns scaled, some entries added.

    `base` S: [V, V]; `size`: rows of the whole, at least V, those beyond V empty in S.
    `scaled` [t] and `scale` [t]: where the diagonal C is not 1, and its values there. `row`,
    `column`, `value` [m]: the entries of P.
    """

    def __init__(
        self,
        base: Matrix,
        size: int,
        scaled: Tensor,
        scale: Tensor,
        entries: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        self.base, self.size = base, size
        self.scaled, self.scale = scaled, scale[:, None]
        self.row, self.column = entries[:2]
        self.value = entries[2][:, None]

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    @property
    def device(self) -> torch.device:
        return self.base.device

    def __matmul__(self, block: Tensor) -> Tensor:
        """The product with a dense block [V', n]."""
        known = self.base.shape[0]
        result = torch.zeros_like(block)
        inner = block[:known]
        # Scaled in place and restored: a copy of the block would cost as much as the product.
        kept = inner[self.scaled]
        inner[self.scaled] = kept * self.scale
        result[:known] = self.base @ inner
        inner[self.scaled] = kept
        result[self.scaled] *= self.scale
        return result.index_add_(0, self.row, block[self.column] * self.value)

    def chebyshev_step(self, current: Tensor, previous: Tensor) -> Tensor:
        """See `Matrix.chebyshev_step`."""
        return torch.sub((self @ current).mul_(2), previous, out=previous)


def _longer(column: Tensor, length: int) -> Tensor:
    longer = torch.empty(length, dtype=column.dtype, device=column.device)
    longer[: len(column)] = column
    return longer
