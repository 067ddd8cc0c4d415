"""Selection on a GPU: `choose` is equivalent to `_select.choose_highest`, with Triton kernels.

It needs a few launches and one host synchronization.
"""

import torch
from torch import Tensor

from oneshot.system.devices import current_device

# Columns of the scores per program, and its number of warps.
SCORE_BLOCK, SCORE_WARPS = 4096, 16
SELECT_BLOCK, SELECT_WARPS = 4096, 16


def choose(
    scores: Tensor, counts: Tensor, forced: Tensor, keep_unreachable: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See `_select.choose_highest`; `scores` float32 [n, V], contiguous, n and V > 0."""
    from oneshot.samplers import _triton as kernels

    height, width = scores.shape
    device = scores.device
    threshold, spare, sizes = torch.empty(3, height, dtype=torch.int32, device=device)
    counts, forced = counts.contiguous(), forced.contiguous()
    original = scores.gather(1, forced.clamp(min=0))
    block = _power_of_two(width)
    grid = (height,)
    with current_device(device):
        _put(scores, forced, torch.full_like(original, torch.inf))
        kernels.find_threshold[grid](
            scores,
            counts,
            threshold,
            spare,
            sizes,
            width,
            grow=int(forced.shape[1] > 1),
            drop=int(not keep_unreachable),
            block=min(block, SCORE_BLOCK),
            num_warps=min(_warps(block), SCORE_WARPS),
        )
        ends = sizes.cumsum(0)  # int64
        total = int(ends[-1])
        entities = torch.empty(total, dtype=torch.long, device=device)
        row = torch.empty(total, dtype=torch.long, device=device)
        kernels.select_entities[grid](
            scores,
            threshold,
            spare,
            sizes,
            ends,
            entities,
            row,
            width,
            block=min(block, SELECT_BLOCK),
            num_warps=min(_warps(block), SELECT_WARPS),
        )
        _put(scores, forced, original)
    return entities, row, scores[row, entities]


def _put(scores: Tensor, columns: Tensor, values: Tensor) -> None:
    """`scores[i, columns[i, j]] = values[i, j]` where the column is not -1, asynchronously."""
    from oneshot.samplers import _triton as kernels

    if columns.numel():
        kernels.put_values[(-(-columns.numel() // 256),)](
            scores, columns, values, columns.numel(), columns.shape[1], scores.shape[1], block=256
        )


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least a number."""
    return 1 << max(number - 1, 0).bit_length()


def _warps(block: int) -> int:
    """Warps for a block of columns, at least four columns per thread."""
    return max(1, block // 128)
