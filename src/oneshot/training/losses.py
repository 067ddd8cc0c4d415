"""Losses on the scores of the sampled entities."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oneshot.config import TrainingConfig
from oneshot.ranking import KnownFacts
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import kernels_work


@dataclass(frozen=True)
class Targets:
    """The answers of a batch, as the loss needs them.

    `place` int64 [n]: row of each answer in the batch, -1 if not sampled. `skip` bool [N] or None:
    other known answers, masked in the loss. `unsampled` int64 [n]: number of negatives outside the
    subgraph.
    """

    place: Tensor
    skip: Tensor | None
    unsampled: Tensor


def find_targets(
    config: TrainingConfig,
    batch: SubgraphBatch,
    answers: Tensor,
    seen: KnownFacts,
    num_entities: int,
) -> Targets:
    """The targets of `answers` [n]; `seen`: the training facts, whose other answers are masked
    if `mask_known` is set."""
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
    return Targets(place, skip, unsampled)


def query_losses(
    config: TrainingConfig, scores: Tensor, batch: SubgraphBatch, targets: Targets
) -> Tensor:
    """The loss of each query [n]; `scores` [N] of the sampled entities, or [members, N].

    The members of an ensemble learn on their own: each has the gradients of its own loss.
    """
    if scores.dim() == 2:
        each = torch.stack([query_losses(config, one, batch, targets) for one in scores])
        # The value is the mean over the members; the gradient is that of the sum.
        return each.sum(0) - (each.sum(0) - each.mean(0)).detach()
    push_down = config.uncovered == "push_down"
    if config.loss == "bce":
        return bce_loss(scores, batch, targets.place, targets.skip, push_down)
    unsampled = targets.unsampled if config.softmax_over == "all" else None
    return softmax_loss(scores, batch, targets.place, targets.skip, unsampled, push_down)


def softmax_loss(
    scores: Tensor,
    batch: SubgraphBatch,
    place: Tensor,
    skip: Tensor | None,
    unsampled: Tensor | None,
    push_down: bool = False,
) -> Tensor:
    """Cross-entropy of each query's answer against the other entities, [n].

    `scores` [N]; `place` int64 [n]: row of each answer, -1 if not sampled; `skip` bool [N]: other
    known answers, which are masked; `unsampled` [n]: number of entities outside the subgraph, which
    are negatives of score 0. `push_down`: an answer that was not sampled has score 0, which pushes
    the sampled scores down; otherwise its query has loss 0.
    """
    rivals = scores if skip is None else scores.masked_fill(skip, -torch.inf)
    total = _logsumexp(rivals, batch)
    if unsampled is not None:
        # log(eˢ + m e⁰); without negatives the logarithm is -∞.
        total = torch.logaddexp(total, unsampled.to(total.dtype).log())
    answer = scores.index_select(0, place.clamp(min=0))
    # The answer is one of the entities outside, or an extra one of score 0 if these do not count.
    missed = total if unsampled is not None else nn.functional.softplus(total)
    return torch.where(place >= 0, total - answer, missed if push_down else 0.0)


def _logsumexp(scores: Tensor, batch: SubgraphBatch) -> Tensor:
    """`log Σ exp` of each query's scores [N], [n]; very low if no score is above -∞."""
    if scores.dtype == torch.float32 and kernels_work(scores.device):
        from oneshot.training._triton import query_logsumexp

        queries = torch.arange(batch.num_queries + 1, device=scores.device)
        return query_logsumexp(scores, torch.searchsorted(batch.entity_query, queries))
    # Subtracting the maximum of each query avoids overflow and underflow of exp; it cancels out.
    highest = scores.new_full((batch.num_queries,), -torch.inf)
    highest = highest.scatter_reduce(0, batch.entity_query, scores.detach(), "amax")
    highest = highest.masked_fill(highest == -torch.inf, 0)
    weight = (scores - highest[batch.entity_query]).exp()
    total = torch.zeros_like(highest).scatter_add(0, batch.entity_query, weight)
    return total.clamp(min=torch.finfo(total.dtype).tiny).log() + highest


def bce_loss(
    scores: Tensor,
    batch: SubgraphBatch,
    place: Tensor,
    skip: Tensor | None,
    push_down: bool = False,
) -> Tensor:
    """Binary cross-entropy as in the paper: `−log σ(s_answer) − Σ log(1 − σ(s_other))`, [n].

    `push_down`: a query whose answer was not sampled keeps the sum; otherwise its loss is 0.
    """
    covered = place >= 0
    target = torch.zeros_like(scores)
    target[place[covered]] = 1
    each = nn.functional.binary_cross_entropy_with_logits(scores, target, reduction="none")
    if skip is not None:
        each = each.masked_fill(skip, 0.0)
    zero = torch.zeros(batch.num_queries, dtype=each.dtype, device=each.device)
    loss = zero.scatter_add(0, batch.entity_query, each)
    return loss if push_down else torch.where(covered, loss, torch.zeros_like(loss))
