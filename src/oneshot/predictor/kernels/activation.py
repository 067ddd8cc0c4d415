"""Activation: activation, shortcut and test for zero rows, in one kernel per direction."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from oneshot.predictor.kernels.gru import tanh
from oneshot.predictor.layer import Layer

_ROWS = 16
_ACTIVATIONS = {"identity": 0, "relu": 1, "tanh": 2}


def settled(
    layer: Layer, collected: Tensor, degree: Tensor, old: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The output states of a layer from the aggregated messages of its rows, [rows, d].

    `collected` [rows, …]; `degree` [≥ rows]; `old` [≤ rows, d] if there is a shortcut. Also returns
    whether the sum of each row is not zero, bool [rows].
    """
    product = layer.combined(collected, degree)
    found: tuple[Tensor, Tensor] = _Settle.apply(
        product.contiguous(), None if old is None else old.contiguous(), activation
    )
    return found


class _Settle(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, product: Tensor, old: Tensor | None, activation: str
    ) -> tuple[Tensor, Tensor]:
        rows, dim = product.shape
        new = torch.empty_like(product)
        live = torch.empty(rows, dtype=torch.bool, device=product.device)
        if rows:
            _forward[(triton.cdiv(rows, _ROWS),)](
                product, product if old is None else old, new, live,
                rows, 0 if old is None else len(old),
                D=dim, BD=triton.next_power_of_2(dim), ACT=_ACTIVATIONS[activation], ROWS=_ROWS,
            )  # fmt: skip
        ctx.activation, ctx.num_old = activation, None if old is None else len(old)
        ctx.save_for_backward(product if activation != "identity" else None)
        ctx.mark_non_differentiable(live)
        return new, live

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (product,) = ctx.saved_tensors
        gradient = gradients[0]
        to_old = None if ctx.num_old is None else gradient[: ctx.num_old]
        if product is None:
            return gradient, to_old, None
        if ctx.activation == "relu":
            return gradient.masked_fill(product <= 0, 0), to_old, None
        return gradient * (1 - product.tanh().square()), to_old, None


@triton.jit
def _forward(
    product_at, old_at, new_at, live_at, num_rows, num_old,
    D: tl.constexpr, BD: tl.constexpr, ACT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    at = row[:, None] * D + d[None, :]
    inside = (row < num_rows)[:, None] & (d < D)[None, :]
    x = tl.load(product_at + at, mask=inside, other=0.0).to(tl.float32)
    if ACT == 1:
        x = tl.maximum(x, 0.0)
    elif ACT == 2:
        x = tanh(x)
    x += tl.load(old_at + at, mask=inside & (row < num_old)[:, None], other=0.0).to(tl.float32)
    x = x.to(new_at.dtype.element_ty)
    tl.store(new_at + at, x, mask=inside)
    tl.store(live_at + row, tl.sum(x.to(tl.float32), axis=1) != 0, mask=row < num_rows)
