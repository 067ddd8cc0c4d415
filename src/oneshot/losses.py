"""Losses: how far the scores of a subgraph are from singling out the answer."""

import torch
from torch import Tensor

from oneshot.subgraph import SubgraphBatch


def softmax_loss(
    scores: Tensor,
    batch: SubgraphBatch,
    place: Tensor,
    skip: Tensor | None,
    unsampled: Tensor | None,
) -> Tensor:
    """Cross-entropy of each query's answer against its other entities, [n].

    `scores` [N]; `place` int64 [n]: the answers' places, -1 where not sampled (loss 0: such a
    query teaches nothing); `skip` bool [N]: entities that are no rivals, being answers too;
    `unsampled` [n]: number of entities outside the subgraph that count as rivals of score 0.
    """
    covered = place >= 0
    # One maximum a query keeps exp from overflowing; it cancels out.
    highest = torch.zeros(batch.num_queries, dtype=scores.dtype, device=scores.device)
    highest = highest.scatter_reduce(0, batch.entity_query, scores.detach(), "amax")
    weight = (scores - highest[batch.entity_query]).exp()
    if skip is not None:
        weight = weight.masked_fill(skip, 0.0)
    total = torch.zeros_like(highest).scatter_add(0, batch.entity_query, weight)
    if unsampled is not None:
        total = total + unsampled * (-highest).exp()
    answer = scores[place.clamp(min=0)]
    loss = total.log() + highest - answer
    return torch.where(covered, loss, torch.zeros_like(loss))


def bce_loss(scores: Tensor, batch: SubgraphBatch, place: Tensor, skip: Tensor | None) -> Tensor:
    """Binary cross-entropy as in the paper: `−log σ(s_answer) − Σ log(1 − σ(s_other))`, [n]."""
    covered = place >= 0
    target = torch.zeros_like(scores)
    target[place[covered]] = 1
    each = torch.nn.functional.binary_cross_entropy_with_logits(scores, target, reduction="none")
    if skip is not None:
        each = each.masked_fill(skip, 0.0)
    zero = torch.zeros(batch.num_queries, dtype=each.dtype, device=each.device)
    loss = zero.scatter_add(0, batch.entity_query, each)
    return torch.where(covered, loss, torch.zeros_like(loss))
