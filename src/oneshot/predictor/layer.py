"""Layer: one round of message passing, and the gate between the rounds."""

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.predictor.aggregation import AGGREGATES, degree_factor
from oneshot.predictor.messages import MESSAGES, Query
from oneshot.predictor.segments import EdgePlan

NORM_FLOOR = 1e-3

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}


class Layer(nn.Module):
    """`z = ACT(W · AGG{MESS(h_x, r, h_o)})`, with an optional shortcut `z + h`."""

    def __init__(self, config: PredictorConfig, num_relations: int, layer: int) -> None:
        super().__init__()
        self.message = MESSAGES[config.message](config, num_relations, layer)
        aggregate = AGGREGATES[config.aggregate]
        self.aggregate, self.scaled = aggregate.function, aggregate.scales_by_degree
        width = aggregate.width * (3 if self.scaled else 1)
        self.linear = nn.Linear(width * config.dim, config.dim, bias=False)
        self.activation = ACTIVATIONS[config.activation]()
        self.shortcut = config.shortcut
        self.norm = config.norm

    def forward(
        self, state: Tensor, plan: EdgePlan, query: Query, edge_weight: Tensor | None = None
    ) -> Tensor:
        """`state` [N, d] → [N, d]; `edge_weight` [E] scales the messages."""
        messages = self.message(state, plan, query)
        if edge_weight is not None:
            messages = messages * edge_weight[:, None]
        collected = self.aggregate(messages, plan)
        new: Tensor = self.activation(self.combined(collected, plan.batch.degree))
        return new + state if self.shortcut else new

    def combined(self, collected: Tensor, degree: Tensor) -> Tensor:
        """`W · AGG{…}` [N, d], optionally normalized; `collected` [N, …]; `degree` [≥ N].

        Normalization divides by the root mean square, so entities without messages stay at zero. If
        degrees scale the aggregate, `W` has three parts: for the unscaled, amplified and damped
        aggregate. The factors are one number per entity and are applied after the product.
        """
        product = self.product(collected)
        if self.scaled:
            plain, more, less = product.split(self.linear.out_features, dim=1)
            factor = degree_factor(degree[: len(collected)], plain.dtype)
            product = plain + more * factor + less / factor
        if self.norm:
            product = nn.functional.rms_norm(product, product.shape[1:], eps=NORM_FLOOR)
        return product

    def product(self, collected: Tensor) -> Tensor:
        """`W · AGG{…}` [N, d]; [N, 3 · d], with the parts side by side, if degrees scale."""
        if not self.scaled:
            product: Tensor = self.linear(collected)
            return product
        return nn.functional.linear(collected, torch.cat(self.linear.weight.chunk(3, dim=1)))


class Gate(nn.Module):
    """A GRU over the layers, shared by all; entities without messages stay at zero.

    `mask`: "nonzero" keeps at zero the entities whose new state sums to zero (as the official
    code), "reached" those farther from `u` than the number of layers so far.
    """

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.cell = nn.GRUCell(config.dim, config.dim)
        self.mask = config.gate_mask
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, new: Tensor, old: Tensor, reached: Tensor | None) -> Tensor:
        """`new` [N, d] from the layer, `old` [N, d] from the previous gate → [N, d]."""
        live = new.sum(dim=-1) != 0 if reached is None else reached
        gated: Tensor = self.cell(self.dropout(new), old)
        return gated * live[:, None]


def reached_next(reached: Tensor, plan: EdgePlan) -> Tensor:
    """The entities within one more hop: bool [N] → bool [N]."""
    arrives = reached.index_select(0, plan.source.index).float()[:, None]
    return plan.target.sum_without_gradient(arrives).squeeze(1) > 0
