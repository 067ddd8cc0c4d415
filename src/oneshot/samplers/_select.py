"""Selection: the entities of highest score, exactly `K` of them, ties by lower id.

There are kernels for the GPU (`_select_gpu`); `choose_highest` uses them if available.
"""

import torch
from torch import Tensor

from oneshot.system.devices import kernels_work


def choose_highest(
    scores: Tensor, counts: Tensor, forced: Tensor, keep_unreachable: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The highest scores of each row, with some entities forced in.

    `scores` [n, V]; `counts` int64 [n]: number per row; `forced` int64 [n, c]: entities that
    are always chosen, -1 for none. → (entities [N], row [N], score [N]) sorted by (row, id).
    With `keep_unreachable` false, entities of score 0 are excluded unless forced.
    """
    plain = scores.dtype != torch.float32 or not scores.is_contiguous() or not scores.numel()
    if not plain and kernels_work(scores.device):
        from oneshot.samplers import _select_gpu

        return _select_gpu.choose(scores, counts, forced, keep_unreachable)
    rows = torch.arange(len(scores), device=scores.device)[:, None].expand_as(forced)
    valid = forced >= 0
    at = rows[valid], forced[valid]
    original = scores[at]
    scores[at] = torch.inf
    counts = torch.maximum(counts, (scores == torch.inf).sum(1) if forced.shape[1] > 1 else counts)
    chosen = _highest_mask(scores, counts)
    if not keep_unreachable:
        chosen &= scores > 0
    scores[at] = original
    row, entities = chosen.nonzero().unbind(1)
    return entities, row, scores[row, entities]


def counts_of_mass(
    scores: Tensor, first: Tensor, counts: Tensor, mass: Tensor, total: Tensor | None = None
) -> Tensor:
    """Number of highest scores per row that reach a share of the row's sum; at most `counts` [n].

    `scores` [n, V] ≥ 0; `first` int64 [n]: an entity of each row that comes before all others;
    `mass` float64 [n]: the share, 1 for no limit. `total` [n]: the sum, if the row is a part of the
    scores. Includes the entity that completes the share.
    """
    most = int(counts.max()) if len(counts) else 1
    if most <= 1:
        return counts
    rows = torch.arange(len(scores), device=scores.device)
    own = scores[rows, first]
    wanted = mass * (scores.sum(1, dtype=torch.float64) if total is None else total.double())
    scores[rows, first] = -1  # never among the highest of the others
    others = scores.topk(min(most, scores.shape[1]) - 1, dim=1).values
    scores[rows, first] = own
    held = torch.cat([own[:, None], others[:, :-1]], dim=1).double().cumsum(1)
    needed = 1 + (held < wanted[:, None]).sum(1)
    return torch.where(mass < 1, torch.minimum(needed, counts), counts)


def ranks_of(scores: Tensor, first: Tensor, targets: Tensor) -> Tensor:
    """Rank of each row's target when the row is sorted by score, ties by lower id.

    `scores` [n, V]; `first` int64 [n]: an entity of each row that comes before all others;
    `targets` int64 [n] → int64 [n].
    """
    rows = torch.arange(len(scores), device=scores.device)
    original = scores[rows, first]
    scores[rows, first] = torch.inf
    value = scores[rows, targets][:, None]
    ids = torch.arange(scores.shape[1], device=scores.device)
    above = (scores > value).sum(1)
    before = ((scores == value) & (ids < targets[:, None])).sum(1)
    scores[rows, first] = original
    return above + before


def _highest_mask(scores: Tensor, counts: Tensor) -> Tensor:
    """Mark the `counts` [n] highest of each row of `scores` [n, V], ties by lower id."""
    least, most = int(counts.min()), int(counts.max())
    if least >= scores.shape[1]:
        return torch.ones_like(scores, dtype=torch.bool)
    if least == most:
        threshold = scores.topk(most, dim=1, sorted=False).values.amin(1, keepdim=True)
    else:
        threshold = scores.topk(most, dim=1).values.gather(1, counts[:, None] - 1)
    chosen = scores > threshold
    tied = scores == threshold
    spare = counts - chosen.sum(1)
    crowded = (tied.sum(1) > spare).nonzero().squeeze(1)
    if len(crowded):
        part = tied[crowded]
        part &= part.cumsum(1, dtype=torch.int32) <= spare[crowded, None]
        tied[crowded] = part
    return chosen.logical_or_(tied)
