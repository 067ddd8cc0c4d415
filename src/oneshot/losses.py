"""Losses: how far the scores of a subgraph are from singling out the answer."""

import torch
from torch import Tensor

from oneshot.config import TrainingConfig
from oneshot.ranking import KnownFacts
from oneshot.subgraph import SubgraphBatch


def query_losses(
    config: TrainingConfig,
    scores: Tensor,
    batch: SubgraphBatch,
    answers: Tensor,
    seen: KnownFacts,
    num_entities: int,
) -> tuple[Tensor, float]:
    """The loss of each query [n], and the number of those whose answer was sampled.

    `scores` [N] of the sampled entities; `answers` [n]; `seen`: the training facts, whose other
    answers are no rivals if the configuration says so.
    """
    place = batch.find(answers)
    unsampled = num_entities - torch.bincount(batch.entity_query, minlength=batch.num_queries)
    skip = None
    if config.mask_known:
        row, entity = seen.answers(batch.queries)
        other = entity != answers[row]
        row, entity = row[other], entity[other]
        at = batch.find_pairs(row, entity)
        skip = torch.zeros(batch.num_entities, dtype=torch.bool, device=batch.device)
        skip[at[at >= 0]] = True
        unsampled = unsampled - torch.bincount(row[at < 0], minlength=batch.num_queries)
    covered = float((place >= 0).sum())
    if config.loss == "bce":
        return bce_loss(scores, batch, place, skip), covered
    rivals = unsampled if config.softmax_over == "all" else None
    return softmax_loss(scores, batch, place, skip, rivals), covered


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
    rivals = scores if skip is None else scores.masked_fill(skip, -torch.inf)
    # One maximum a query keeps exp from overflowing, and the sum from vanishing; it cancels out.
    highest = scores.new_full((batch.num_queries,), -torch.inf)
    highest = highest.scatter_reduce(0, batch.entity_query, rivals.detach(), "amax")
    if unsampled is not None:
        highest = torch.where(unsampled > 0, highest.clamp(min=0), highest)
    highest = highest.masked_fill(highest == -torch.inf, 0)  # nothing but known answers
    weight = (rivals - highest[batch.entity_query]).exp()
    total = torch.zeros_like(highest).scatter_add(0, batch.entity_query, weight)
    if unsampled is not None:
        total = total + unsampled * (-highest).clamp(max=0).exp()
    answer = scores[place.clamp(min=0)]
    loss = total.log() + highest - answer
    return torch.where(covered, loss, 0.0)


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
