"""What the fused path needs beside `collect`, by PyTorch's own operations.

Rows beyond those of an older state have a state of zero, which is not stored.
"""

from typing import Any

import torch
from torch import Tensor, nn

from oneshot.predictor.rows import Rows


def dots(state: Tensor, asked: Tensor, rows: Rows) -> Tensor:
    """Each row of `state` [m, d] times that of its query in `asked` [n, d] → float [m].

    `rows`: the query of each row; those beyond `m` are left out.
    """
    if len(state) < len(rows.index):
        rows = Rows(rows.index[: len(state)], rows.size)
    return (state * rows.pick(asked)).sum(dim=1)


def gated(cell: nn.GRUCell, new: Tensor, old: Tensor, live: Tensor) -> Tensor:
    """The GRU `cell` on `new` [rows, d] and `old` [≤ rows, d]; zero where `live` [rows] is."""
    longer = nn.functional.pad(old, (0, 0, 0, len(new) - len(old)))
    out: Tensor = cell(new, longer)
    return out * live[:, None]


def settled(product: Tensor, old: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """`ACT(product) + old` [rows, d], and whether each row sums to anything but zero, bool [rows].

    `product` [rows, d]; `old` [≤ rows, d] if there is a shortcut.
    """
    new: Tensor = _Settle.apply(product, old, activation)  # type: ignore[no-untyped-call]
    return new, new.detach().sum(dim=1) != 0


class _Settle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, product: Tensor, old: Tensor | None, activation: str) -> Tensor:
        ctx.activation, ctx.num_old = activation, None if old is None else len(old)
        new = {"relu": torch.relu, "tanh": torch.tanh, "identity": torch.clone}[activation](product)
        ctx.save_for_backward(product if activation != "identity" else None)
        if old is not None:
            new[: len(old)] += old
        return new

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (product,) = ctx.saved_tensors
        gradient = gradients[0]
        to_old = None if ctx.num_old is None else gradient[: ctx.num_old]
        if ctx.activation == "relu":
            gradient = gradient * (product > 0)
        elif ctx.activation == "tanh":
            gradient = gradient * (1 - product.tanh().square())
        return gradient, to_old, None
