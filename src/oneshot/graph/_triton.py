"""Products of a sparse matrix with dense blocks on a GPU, in a fixed order; imported only if used.

Those of cuSPARSE differ in the last bits from call to call and with the width of the block, and so
would all that is computed from them. Here a program sums up to `_PIECE` entries of a row for a
block of columns. The pieces of a longer row write partial sums, which a second launch adds.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_PIECE = 256
_TILE = 8  # entries that a program reads at once
_MAX_COLUMNS = 128


class FixedOrderProduct:
    """The product of one matrix in compressed rows.

    `indptr` [rows + 1], `index` [m] and `values` [m] (None: all entries are 1) as in
    `SparseMatrix`. `row` [P]: the row of each piece; `first` [rows + 1]: the first piece of each
    row; `slot` [rows]: where the partial sums of a row with several pieces begin; `split`: these
    rows.
    """

    def __init__(self, indptr: Tensor, index: Tensor, values: Tensor | None) -> None:
        self.indptr, self.index, self.values = indptr, index, values
        pieces = ((indptr.diff() + (_PIECE - 1)) // _PIECE).clamp(min=1)
        rows = torch.arange(len(pieces), device=indptr.device)
        self.row = rows.repeat_interleave(pieces)
        self.first = torch.zeros(len(indptr), dtype=torch.long, device=indptr.device)
        torch.cumsum(pieces, 0, out=self.first[1:])
        parts = torch.where(pieces > 1, pieces, 0).long()
        self.slot = parts.cumsum(0) - parts
        self.split = (pieces > 1).nonzero().squeeze(1)
        self.num_parts = int(parts.sum())

    def __call__(
        self, block: Tensor, previous: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0
    ) -> Tensor:
        """`alpha · M @ block + beta · previous`, [columns, n] → [rows, n]; in place of `previous`
        if given."""
        block = block.contiguous()
        width = block.shape[1]
        out = block.new_empty(len(self.indptr) - 1, width) if previous is None else previous
        assert out.is_contiguous()
        if not out.numel():
            return out
        columns = min(triton.next_power_of_2(width), _MAX_COLUMNS)
        across = triton.cdiv(width, columns)
        parts = block.new_empty(self.num_parts, width)
        shared: dict[str, Any] = {"ADD": previous is not None, "COLUMNS": columns}
        _sum_pieces[(len(self.row), across)](
            self.indptr, self.index, self.index if self.values is None else self.values,
            self.row, self.first, self.slot, block, out, parts, alpha, beta, width,
            VALUES=self.values is not None, TILE=_TILE, PIECE=_PIECE, **shared,
        )  # fmt: skip
        if len(self.split):
            _join_pieces[(len(self.split), across)](
                self.split, self.first, self.slot, parts, out, alpha, beta, width, **shared
            )
        return out


@triton.jit
def _sum_pieces(
    indptr_at, index_at, value_at, row_at, first_at, slot_at, block_at, out_at, part_at,
    alpha, beta, width,
    VALUES: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, ADD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    row = tl.load(row_at + piece)
    first = tl.load(first_at + row)
    begin = tl.load(indptr_at + row) + (piece - first) * PIECE
    end = tl.minimum(begin + PIECE, tl.load(indptr_at + row + 1))
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_width = column < width
    kind = block_at.dtype.element_ty
    total = tl.zeros((COLUMNS,), kind)
    for start in range(begin, end, TILE):
        entry = start + tl.arange(0, TILE)
        inside = entry < end
        at = tl.load(index_at + entry, mask=inside, other=0).to(tl.int64) * width
        grid = inside[:, None] & in_width[None, :]
        x = tl.load(block_at + at[:, None] + column[None, :], mask=grid, other=0.0)
        if VALUES:
            x = x * tl.load(value_at + entry, mask=inside, other=0.0).to(kind)[:, None]
        total += tl.sum(x, axis=0)
    if tl.load(first_at + row + 1) - first > 1:
        slot = tl.load(slot_at + row) + piece - first
        tl.store(part_at + slot * width + column, total, mask=in_width)
    else:
        _finish(out_at + row * width + column, total, in_width, alpha, beta, ADD)


@triton.jit
def _join_pieces(
    split_at, first_at, slot_at, part_at, out_at, alpha, beta, width,
    ADD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.load(split_at + tl.program_id(0))
    count = tl.load(first_at + row + 1) - tl.load(first_at + row)
    slot = tl.load(slot_at + row)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_width = column < width
    total = tl.zeros((COLUMNS,), part_at.dtype.element_ty)
    for number in range(count):
        total += tl.load(part_at + (slot + number) * width + column, mask=in_width, other=0.0)
    _finish(out_at + row * width + column, total, in_width, alpha, beta, ADD)


@triton.jit
def _finish(to, total, in_width, alpha, beta, ADD: tl.constexpr):
    total = total * alpha
    if ADD:
        total += tl.load(to, mask=in_width, other=0.0) * beta
    tl.store(to, total.to(to.dtype.element_ty), mask=in_width)
