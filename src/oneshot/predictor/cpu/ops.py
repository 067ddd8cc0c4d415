"""Operations of the fused path besides `collect`, in plain PyTorch.

Rows beyond those of an older state have a state of zero, which is not stored.
"""

from torch import Tensor, nn

from oneshot.predictor.aggregation import degree_factor
from oneshot.predictor.cpu.activation import can_settle, settle
from oneshot.predictor.layer import NORM_FLOOR, Layer
from oneshot.predictor.segments import Rows


def dots(state: Tensor, asked: Tensor, rows: Rows) -> Tensor:
    """Each row of `state` [m, d] times that of its query in `asked` [n, d] → float [m].

    `rows`: the query of each row; those beyond `m` are ignored.
    """
    if len(state) < len(rows.index):
        rows = Rows(rows.index[: len(state)], rows.size)
    return (state * rows.pick(asked)).sum(dim=1)


def spread(asked: Tensor, rows: Rows, count: int) -> Tensor:
    """The row of `asked` [n, d] of the query of each of the first `count` rows: [count, d]."""
    return Rows(rows.index[:count], rows.size).pick(asked)


def gated(cell: nn.GRUCell, new: Tensor, old: Tensor, live: Tensor) -> Tensor:
    """The GRU `cell` on `new` [rows, d] and `old` [≤ rows, d]; zero where `live` [rows] is zero."""
    longer = nn.functional.pad(old, (0, 0, 0, len(new) - len(old)))
    out: Tensor = cell(new, longer)
    return out * live[:, None]


def settled(
    layer: Layer, collected: Tensor, degree: Tensor, old: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """The output states of a layer from the aggregated messages of its rows, [rows, d].

    `collected` [rows, …]; `degree` [≥ rows]; `old` [≤ rows, d] if there is a shortcut. Also returns
    whether the sum of each row is not zero, bool [rows].
    """
    if can_settle(layer.linear.out_features):
        factor = None
        if layer.scaled:
            factor = degree_factor(degree[: len(collected)], collected.dtype).squeeze(1)
        new = settle(
            layer.product(collected), factor, old, NORM_FLOOR if layer.norm else None, activation
        )
    else:
        new = layer.activation(layer.combined(collected, degree))
        if old is not None:
            new = new + nn.functional.pad(old, (0, 0, 0, len(new) - len(old)))
    return new, new.detach().sum(dim=1) != 0
