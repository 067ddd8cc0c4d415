"""Activation: the operations after the matrix product of a layer, in one pass per direction.

`ACT(norm(p + m · f + l / f)) + old`: the parts for amplified and damped aggregates if degrees scale
them, the optional norm, the activation and the shortcut.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from oneshot.compiled import pointer, run

_ACTIVATIONS = {"identity": 0, "relu": 1, "tanh": 2}
_LANES = 16


def settle(
    product: Tensor, factor: Tensor | None, old: Tensor | None, floor: float | None, activation: str
) -> Tensor:
    """The new states [rows, d].

    `product` [rows, d], or [rows, 3 · d] with the `factor` [rows] of each row's degree; `old`
    [≤ rows, d] if there is a shortcut; `floor`: added to the mean square before division, None for
    no norm.
    """
    parts = 1 if factor is None else 3
    new: Tensor = _Settle.apply(  # type: ignore[no-untyped-call]
        product.contiguous(),
        None if factor is None else factor.contiguous(),
        None if old is None else old.contiguous(),
        parts,
        floor,
        activation,
    )
    return new


def can_settle(dim: int) -> bool:
    """Whether these kernels support states of a width; otherwise PyTorch operations are used."""
    return dim % _LANES == 0


class _Call(ctypes.Structure):
    """The arguments of the kernels, as declared in `compiled/predictor.c`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "num_rows", "num_old", "dim", "parts", "norm", "activation",
        )),
        ("floor", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in (
            "product", "factor", "old", "normed", "root", "out", "gradient", "to_product",
        )),
    ]  # fmt: skip


class _Settle(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        product: Tensor,
        factor: Tensor | None,
        old: Tensor | None,
        parts: int,
        floor: float | None,
        activation: str,
    ) -> Tensor:
        rows, dim = len(product), product.shape[1] // parts
        num_old = 0 if old is None else len(old)
        normed, out = torch.empty(rows, dim), torch.empty(rows, dim)
        root = torch.empty(rows if floor is not None else 0)
        shape = (rows, num_old, dim, parts, floor is not None, _ACTIVATIONS[activation])
        call = _Call(*shape, floor or 0.0, *map(pointer, (product, factor, old, normed, root, out)))
        run("settle", product.numel(), ctypes.byref(call))
        ctx.shape, ctx.has_old = shape, old is not None
        ctx.save_for_backward(factor, normed, root)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        factor, normed, root = ctx.saved_tensors
        rows, num_old, dim, parts, *_ = ctx.shape
        gradient = gradients[0].contiguous()
        to_product = torch.empty(rows, parts * dim)
        call = _Call(*ctx.shape)
        call.factor, call.normed, call.root = map(pointer, (factor, normed, root))
        call.gradient, call.to_product = pointer(gradient), pointer(to_product)
        run("settle_back", to_product.numel(), ctypes.byref(call))
        return to_product, None, gradient[:num_old] if ctx.has_old else None, None, None, None
