"""Activation: the operations after the matrix product of a layer, in one kernel per direction.

`ACT(norm(p + m · f + l / f)) + old`: the parts for amplified and damped aggregates if degrees scale
them, the optional norm, the activation and the shortcut. All of it is computed in float32 and
written in the type of the product.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from oneshot.predictor.aggregation import DEGREE_SCALE
from oneshot.predictor.kernels.gru import tanh
from oneshot.predictor.layer import NORM_FLOOR, Layer

_ROWS = 8
_ACTIVATIONS = {"identity": 0, "relu": 1, "tanh": 2}


class _Shape(NamedTuple):
    """What a layer computes: the constants of the kernels."""

    activation: int
    scaled: bool
    norm: bool


def settled(
    layer: Layer, collected: Tensor, degree: Tensor, old: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The output states of a layer from the aggregated messages of its rows, [rows, d].

    `collected` [rows, …]; `degree` [≥ rows]; `old` [≤ rows, d] if there is a shortcut. Also returns
    whether the sum of each row is not zero, bool [rows].
    """
    shape = _Shape(_ACTIVATIONS[activation], layer.scaled, layer.norm)
    found: tuple[Tensor, Tensor] = _Settle.apply(
        layer.product(collected).contiguous(),
        degree,
        None if old is None else old.contiguous(),
        shape,
    )
    return found


class _Settle(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, product: Tensor, degree: Tensor, old: Tensor | None, shape: _Shape
    ) -> tuple[Tensor, Tensor]:
        rows, dim = len(product), product.shape[1] // (3 if shape.scaled else 1)
        new = product.new_empty(rows, dim)
        live = torch.empty(rows, dtype=torch.bool, device=product.device)
        if rows:
            _forward[(triton.cdiv(rows, _ROWS),)](
                product, degree, product if old is None else old, new, live,
                rows, 0 if old is None else len(old), **_constants(shape, dim),
            )  # fmt: skip
        ctx.shape, ctx.old = shape, None if old is None else (len(old), old.dtype)
        ctx.save_for_backward(product, degree)
        ctx.mark_non_differentiable(live)
        return new, live

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        product, degree = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        rows, dim = gradient.shape
        to_product = torch.empty_like(product)
        if rows:
            _backward[(triton.cdiv(rows, _ROWS),)](
                product, degree, gradient, to_product, rows, **_constants(ctx.shape, dim)
            )
        to_old = None
        if ctx.old is not None:
            num_old, kind = ctx.old
            to_old = gradient[:num_old].to(kind)
        return to_product, None, to_old, None


def _constants(shape: _Shape, dim: int) -> dict[str, Any]:
    return {
        "D": dim,
        "BD": triton.next_power_of_2(dim),
        "ACT": shape.activation,
        "SCALED": shape.scaled,
        "NORM": shape.norm,
        "SCALE": DEGREE_SCALE,
        "FLOOR": NORM_FLOOR,
        "ROWS": _ROWS,
    }


@triton.jit
def _combined(
    product_at, degree_at, row, d, inside, num_rows,
    D: tl.constexpr, SCALED: tl.constexpr, NORM: tl.constexpr, SCALE: tl.constexpr,
    FLOOR: tl.constexpr,
):  # fmt: skip
    """The input of the activation, [rows, channels], one over its root mean square before the norm,
    and the factor of the degree, both [rows]."""
    at = product_at + row[:, None] * (3 * D if SCALED else D) + d[None, :]
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.full(row.shape, 1.0, tl.float32)
    if SCALED:
        degree = tl.load(degree_at + row, mask=row < num_rows, other=0).to(tl.float32)
        factor = (tl.log(degree + 1.0) + 1.0) / SCALE
        x += tl.load(at + D, mask=inside, other=0.0).to(tl.float32) * factor[:, None]
        x += tl.load(at + 2 * D, mask=inside, other=0.0).to(tl.float32) / factor[:, None]
    root = factor
    if NORM:
        root = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / D + FLOOR)
        x = x * root[:, None]
    return x, root, factor


@triton.jit
def _forward(
    product_at, degree_at, old_at, new_at, live_at, num_rows, num_old,
    D: tl.constexpr, BD: tl.constexpr, ACT: tl.constexpr, SCALED: tl.constexpr,
    NORM: tl.constexpr, SCALE: tl.constexpr, FLOOR: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = (row < num_rows)[:, None] & (d < D)[None, :]
    x, _, _ = _combined(
        product_at, degree_at, row, d, inside, num_rows, D, SCALED, NORM, SCALE, FLOOR
    )
    if ACT == 1:
        x = tl.maximum(x, 0.0)
    elif ACT == 2:
        x = tanh(x)
    at = row[:, None] * D + d[None, :]
    x += tl.load(old_at + at, mask=inside & (row < num_old)[:, None], other=0.0).to(tl.float32)
    x = x.to(new_at.dtype.element_ty)
    tl.store(new_at + at, x, mask=inside)
    tl.store(live_at + row, tl.sum(x.to(tl.float32), axis=1) != 0, mask=row < num_rows)


@triton.jit
def _backward(
    product_at, degree_at, gradient_at, out_at, num_rows,
    D: tl.constexpr, BD: tl.constexpr, ACT: tl.constexpr, SCALED: tl.constexpr,
    NORM: tl.constexpr, SCALE: tl.constexpr, FLOOR: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = (row < num_rows)[:, None] & (d < D)[None, :]
    x, root, factor = _combined(
        product_at, degree_at, row, d, inside, num_rows, D, SCALED, NORM, SCALE, FLOOR
    )
    g = tl.load(gradient_at + row[:, None] * D + d[None, :], mask=inside, other=0.0)
    g = g.to(tl.float32)
    if ACT == 1:
        g = tl.where(x > 0, g, 0.0)
    elif ACT == 2:
        y = tanh(x)
        g = g * (1.0 - y * y)
    if NORM:
        g = (g - x * (tl.sum(g * x, axis=1) / D)[:, None]) * root[:, None]
    at = out_at + row[:, None] * (3 * D if SCALED else D) + d[None, :]
    kind = out_at.dtype.element_ty
    tl.store(at, g.to(kind), mask=inside)
    if SCALED:
        tl.store(at + D, (g * factor[:, None]).to(kind), mask=inside)
        tl.store(at + 2 * D, (g / factor[:, None]).to(kind), mask=inside)
