"""Pieces: rows of edges, split so that no program has a very long row.

A kernel has one program per piece. A row of at most `PIECE` edges is one piece, whose program
writes the result. The pieces of a longer row write partial results, which a second launch joins in
a fixed order, so the result is deterministic. Nothing here synchronizes with the GPU: launch sizes
are upper bounds known to the host.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 128


@dataclass(frozen=True)
class Pieces:
    """The pieces of `num_rows` rows that together have `num_edges` edges; all int32.

    `indptr` [num_rows + 1]: the edges of a row. `row` [P]: the row of each piece, `num_rows` for
    unused ones; `first` [num_rows + 1]: the first piece of each row; `slot`
    [num_rows]: start of the parts of a row with several pieces; `split` [H]: these rows,
    filled up with `num_rows`.
    """

    indptr: Tensor
    row: Tensor
    first: Tensor
    slot: Tensor
    split: Tensor
    num_rows: int
    num_edges: int

    @property
    def num_slots(self) -> int:
        """Maximum number of parts."""
        return 2 * (self.num_edges // PIECE)

    def bound(self, num_rows: int) -> int:
        """Maximum number of pieces of the first `num_rows` rows."""
        return min(len(self.row), num_rows + self.num_edges // PIECE)


def cut(indptr: Tensor, num_edges: int) -> Pieces:
    """The pieces of rows whose edges are `indptr[i]:indptr[i + 1]`, int32 [rows + 1]."""
    num_rows = len(indptr) - 1
    device = indptr.device
    pieces = ((indptr.diff() + (PIECE - 1)) // PIECE).clamp_(min=1)
    first = torch.zeros(num_rows + 1, dtype=torch.int32, device=device)
    torch.cumsum(pieces, 0, dtype=torch.int32, out=first[1:])
    most = num_rows + num_edges // PIECE
    row = torch.searchsorted(
        first[1:], torch.arange(most, dtype=torch.int32, device=device), right=True, out_int32=True
    )
    is_split = pieces > 1
    parts = torch.where(is_split, pieces, 0)
    slot = (parts.cumsum(0, dtype=torch.int32) - parts).to(torch.int32)
    num_split = num_edges // PIECE
    # Rows that are not split all write past the end.
    place = torch.where(is_split, is_split.cumsum(0) - 1, num_split)
    split = torch.full((num_split + 1,), num_rows, dtype=torch.int32, device=device)
    split.scatter_(0, place, torch.arange(num_rows, dtype=torch.int32, device=device))
    return Pieces(indptr, row, first, slot, split[:num_split], num_rows, num_edges)


@triton.jit
def _join_sums(
    part_at, one_at, two_at, split_at, first_at, slot_at, num_rows,
    W1: tl.constexpr, W2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.load(split_at + tl.program_id(0))
    if row < num_rows:
        count = tl.load(first_at + row + 1) - tl.load(first_at + row)
        slot = tl.load(slot_at + row).to(tl.int64)
        column = tl.arange(0, BLOCK)
        inside = column < W1 + W2
        total = tl.zeros((BLOCK,), tl.float32)
        for number in range(count):
            total += tl.load(part_at + (slot + number) * (W1 + W2) + column, mask=inside, other=0.0)
        place = row.to(tl.int64)
        tl.store(one_at + place * W1 + column, total.to(one_at.dtype.element_ty), mask=column < W1)
        if W2 > 0:
            second = (column >= W1) & inside
            tl.store(
                two_at + place * W2 + column - W1,
                total.to(two_at.dtype.element_ty),
                mask=second,
            )


def join_sums(
    parts: Tensor, pieces: Pieces, num_rows: int, one: Tensor, two: Tensor | None
) -> None:
    """Add up the parts [slots, w1 + w2] of split rows into `one` [rows, w1] and `two` [rows, w2].

    Only rows below `num_rows`.
    """
    if not len(pieces.split):
        return
    w1, w2 = one.shape[1], 0 if two is None else two.shape[1]
    _join_sums[(len(pieces.split),)](
        parts,
        one,
        one if two is None else two,
        pieces.split,
        pieces.first,
        pieces.slot,
        num_rows,
        W1=w1,
        W2=w2,
        BLOCK=triton.next_power_of_2(w1 + w2),
        num_warps=4,
    )
