"""The gate: two matrix products and one elementwise kernel per direction.

Rows beyond those of the old state have an old state of zero, which is not stored.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

_BLOCK = 1024
_ROWS = 16


def gated(cell: nn.GRUCell, new: Tensor, old: Tensor, live: Tensor) -> Tensor:
    """The GRU `cell` on `new` [rows, d] and `old` [≤ rows, d]; zero where `live` [rows] is zero."""
    out: Tensor = _Gate.apply(
        new.contiguous(),
        old.contiguous(),
        live,
        cell.weight_ih,
        cell.weight_hh,
        cell.bias_ih,
        cell.bias_hh,
        torch.is_grad_enabled(),  # it is always disabled inside the function
    )
    return out


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        new: Tensor,
        old: Tensor,
        live: Tensor,
        weight_new: Tensor,
        weight_old: Tensor,
        bias_new: Tensor,
        bias_old: Tensor,
        needs_gradient: bool,
    ) -> Tensor:
        rows, dim = new.shape
        dtype = new.dtype
        from_new = torch.addmm(bias_new.to(dtype), new, weight_new.to(dtype).t())
        from_old = torch.addmm(bias_old.to(dtype), old, weight_old.to(dtype).t())
        out = torch.empty_like(new)
        hidden = torch.empty_like(new) if needs_gradient else out
        if rows:
            _forward[(triton.cdiv(rows * dim, _BLOCK),)](
                from_new, from_old, old, live, bias_old, out, hidden,
                rows * dim, len(old), D=dim, BLOCK=_BLOCK, STORE=needs_gradient,
            )  # fmt: skip
        if needs_gradient:
            ctx.save_for_backward(new, old, live, from_new, hidden, weight_new, weight_old)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        new, old, live, gates, hidden, weight_new, weight_old = ctx.saved_tensors
        rows, dim = new.shape
        dtype = new.dtype
        # Does not overwrite the gates: backward may run twice on a graph.
        slopes, slope_hidden = torch.empty_like(gates), torch.empty_like(hidden)
        to_old = torch.empty_like(old)
        programs = triton.cdiv(rows, _ROWS)
        sums = torch.empty(programs, 4 * dim, dtype=torch.float32, device=new.device)
        if rows:
            _backward[(programs,)](
                gradients[0].contiguous(), gates, hidden, old, live,
                slopes, slope_hidden, to_old, sums,
                rows, len(old), D=dim, BD=triton.next_power_of_2(dim), ROWS=_ROWS,
            )  # fmt: skip
        total = sums.sum(0)
        shared, few = slopes[:, : 2 * dim], len(old)
        weight_old = weight_old.to(dtype)
        to_old.addmm_(shared[:few], weight_old[: 2 * dim])
        to_old.addmm_(slope_hidden[:few], weight_old[2 * dim :])
        to_new = slopes @ weight_new.to(dtype)
        to_weight_new = slopes.t() @ new
        to_weight_old = torch.cat([shared[:few].t() @ old, slope_hidden[:few].t() @ old])
        to_bias_new = total[: 3 * dim]
        to_bias_old = torch.cat([total[: 2 * dim], total[3 * dim :]])
        master = weight_new.dtype
        return (
            to_new,
            to_old,
            None,
            to_weight_new.to(master),
            to_weight_old.to(master),
            to_bias_new.to(master),
            to_bias_old.to(master),
            None,
        )


@triton.jit
def tanh(x):
    """Accurate in float32 also near zero, where `(1 − e⁻²ˣ) / (1 + e⁻²ˣ)` is not."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    far = tl.where(x < 0, -far, far)
    s = x * x
    near = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
    return tl.where(tl.abs(x) < 0.25, near, far)


@triton.jit
def _forward(
    new_at, old_at, state_at, live_at, bias_at, out_at, hidden_at, count, num_old,
    D: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    row = place // D
    d = place % D
    has_old = inside & (row < num_old)
    at = new_at + row * (3 * D) + d
    r = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(at + D, mask=inside, other=0.0).to(tl.float32)
    n = tl.load(at + 2 * D, mask=inside, other=0.0).to(tl.float32)
    # Without an old state, its product with the weights is only the bias.
    bias = bias_at + d
    other = old_at + row * (3 * D) + d
    r += tl.where(
        has_old,
        tl.load(other, mask=has_old, other=0.0).to(tl.float32),
        tl.load(bias, mask=inside, other=0.0).to(tl.float32),
    )
    u += tl.where(
        has_old,
        tl.load(other + D, mask=has_old, other=0.0).to(tl.float32),
        tl.load(bias + D, mask=inside, other=0.0).to(tl.float32),
    )
    hidden = tl.where(
        has_old,
        tl.load(other + 2 * D, mask=has_old, other=0.0).to(tl.float32),
        tl.load(bias + 2 * D, mask=inside, other=0.0).to(tl.float32),
    )
    r = tl.sigmoid(r)
    u = tl.sigmoid(u)
    n = tanh(n + r * hidden)
    h = tl.load(state_at + place, mask=has_old, other=0.0).to(tl.float32)
    live = tl.load(live_at + row, mask=inside, other=0).to(tl.int1)
    out = tl.where(live, n + u * (h - n), 0.0)
    dtype = out_at.dtype.element_ty
    tl.store(out_at + place, out.to(dtype), mask=inside)
    if STORE:  # for the backward pass: the gates overwrite the products
        tl.store(at, r.to(dtype), mask=inside)
        tl.store(at + D, u.to(dtype), mask=inside)
        tl.store(at + 2 * D, n.to(dtype), mask=inside)
        tl.store(hidden_at + place, hidden.to(dtype), mask=inside)


@triton.jit
def _backward(
    gradient_at, gate_at, hidden_at, state_at, live_at,
    slope_at, slope_hidden_at, to_old_at, sum_at,
    num_rows, num_old, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    in_d = d < D
    inside = (row < num_rows)[:, None] & in_d[None, :]
    has_old = inside & (row < num_old)[:, None]
    live = tl.load(live_at + row, mask=row < num_rows, other=0).to(tl.int1)
    place = row[:, None] * D + d[None, :]
    at = row[:, None] * (3 * D) + d[None, :]
    g = tl.load(gradient_at + place, mask=inside & live[:, None], other=0.0).to(tl.float32)
    r = tl.load(gate_at + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(gate_at + at + D, mask=inside, other=0.0).to(tl.float32)
    n = tl.load(gate_at + at + 2 * D, mask=inside, other=0.0).to(tl.float32)
    hidden = tl.load(hidden_at + place, mask=inside, other=0.0).to(tl.float32)
    h = tl.load(state_at + place, mask=has_old, other=0.0).to(tl.float32)
    by_n = g * (1.0 - u) * (1.0 - n * n)
    by_u = g * (h - n) * u * (1.0 - u)
    by_r = by_n * hidden * r * (1.0 - r)
    dtype = slope_at.dtype.element_ty
    tl.store(slope_at + at, by_r.to(dtype), mask=inside)
    tl.store(slope_at + at + D, by_u.to(dtype), mask=inside)
    tl.store(slope_at + at + 2 * D, by_n.to(dtype), mask=inside)
    tl.store(slope_hidden_at + place, (by_n * r).to(dtype), mask=inside)
    tl.store(to_old_at + place, (g * u).to(dtype), mask=has_old)
    # The gradients of the biases, from these rows.
    total = sum_at + tl.program_id(0).to(tl.int64) * (4 * D) + d
    tl.store(total, tl.sum(by_r, axis=0), mask=in_d)
    tl.store(total + D, tl.sum(by_u, axis=0), mask=in_d)
    tl.store(total + 2 * D, tl.sum(by_n, axis=0), mask=in_d)
    tl.store(total + 3 * D, tl.sum(by_n * r, axis=0), mask=in_d)
