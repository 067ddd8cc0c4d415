"""`log Σ exp` of each query's scores on the GPU, in a fixed order; imported only if used."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def query_logsumexp(scores: Tensor, ends: Tensor) -> Tensor:
    """`log Σ exp(scores)` of each query, [n]; 0 where no score is above -∞.

    `scores` float32 [N], those of query `i` in `ends[i]:ends[i + 1]`, int64 [n + 1].
    """
    out: Tensor = _LogSumExp.apply(scores.contiguous(), ends)
    return out


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, ends: Tensor) -> Tensor:
        out = torch.empty(len(ends) - 1, dtype=torch.float32, device=scores.device)
        if len(out):
            _forward[(len(out),)](scores, ends, out, BLOCK=_BLOCK)
        ctx.save_for_backward(scores, ends, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        scores, ends, total = ctx.saved_tensors
        to_scores = torch.zeros_like(scores)
        if len(total):
            _backward[(len(total),)](
                scores, ends, total, gradients[0].contiguous(), to_scores, BLOCK=_BLOCK
            )
        return to_scores, None


@triton.jit
def _forward(score_at, end_at, out_at, BLOCK: tl.constexpr):
    query = tl.program_id(0)
    begin = tl.load(end_at + query)
    end = tl.load(end_at + query + 1)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(begin, end, BLOCK):
        index = start + tl.arange(0, BLOCK)
        s = tl.load(score_at + index, mask=index < end, other=float("-inf"))
        highest = tl.maximum(highest, s)
    top = tl.max(highest, axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(begin, end, BLOCK):
        index = start + tl.arange(0, BLOCK)
        s = tl.load(score_at + index, mask=index < end, other=float("-inf"))
        total += tl.exp(s - top)
    whole = tl.sum(total, axis=0)
    tl.store(out_at + query, tl.where(whole > 0, top + tl.log(whole), 0.0))


@triton.jit
def _backward(score_at, end_at, total_at, gradient_at, out_at, BLOCK: tl.constexpr):
    query = tl.program_id(0)
    begin = tl.load(end_at + query)
    end = tl.load(end_at + query + 1)
    total = tl.load(total_at + query)
    g = tl.load(gradient_at + query)
    for start in range(begin, end, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < end
        s = tl.load(score_at + index, mask=inside, other=float("-inf"))
        tl.store(out_at + index, g * tl.exp(s - total), mask=inside)
