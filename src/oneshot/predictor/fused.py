"""Forward pass of the predictor with fused kernels; the plain one is the reference.

On a GPU the kernels are written in Triton (`oneshot.predictor.kernels`), on a CPU they are compiled
from C (`oneshot.predictor.cpu`). Both have the same functions, each with its own type of plan.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from oneshot.compiled import knows_weights, library
from oneshot.config import PredictorConfig
from oneshot.predictor.aggregation import AGGREGATES
from oneshot.predictor.layer import Layer
from oneshot.predictor.messages import MESSAGES
from oneshot.predictor.priors import prior_features
from oneshot.predictor.readout import QueryReadout
from oneshot.system.devices import kernels_work

if TYPE_CHECKING:
    from oneshot.predictor.cpu.plan import CPUPlan
    from oneshot.predictor.kernels.plan import FusedPlan
    from oneshot.predictor.predictor import Predictor
    from oneshot.subgraph import SubgraphBatch


def why_not_fused(
    config: PredictorConfig, device: torch.device, kind: torch.dtype, is_weighted: bool = False
) -> str | None:
    """Why the kernels do not support a predictor on a device, or None if they do.

    `is_weighted`: whether the facts have weights.
    """
    if config.network == "ultra":
        return "there are no kernels for the network of ULTRA"
    message, aggregate = MESSAGES[config.message], AGGREGATES[config.aggregate]
    has_kernels = aggregate.has_triton_kernels
    if _takes_compiled(device):
        has_kernels = aggregate.has_compiled_kernels
        if library() is None:
            return "the package was installed without a C compiler"
        if torch.is_autocast_enabled("cpu"):
            return "on a CPU the kernels support only float32"
        if is_weighted and not knows_weights():
            return "the kernels were built before weights of facts; install the package again"
    elif not kernels_work(device):
        return "the Triton kernels do not support this device"
    elif is_weighted:
        return "there are no Triton kernels for weights of facts"
    if kind == torch.float64:
        return "the kernels support only float32"
    if not message.has_kernels:
        return f'there are no kernels for message "{config.message}"'
    if not has_kernels:
        return f'there are no kernels for aggregate "{config.aggregate}" on this device'
    if config.compose == "rotate":
        return 'there are no kernels for compose "rotate"'
    if config.gate and config.gate_mask == "reached" and not can_prune(config):
        return 'there are no kernels for gate_mask "reached" with compose "add"'
    if _takes_compiled(device):
        return None
    if not 16 <= config.dim <= 256:
        return f"the kernels support dimensions from 16 to 256, not {config.dim}"
    if message.has_attention and config.attention_dim > 256:
        return f"the kernels support an attention_dim of at most 256, not {config.attention_dim}"
    return None


def _takes_compiled(device: torch.device) -> bool:
    """Whether a device uses the kernels compiled from C."""
    # Triton's interpreter runs its kernels on a CPU, for tests.
    return device.type == "cpu" and not kernels_work(device)


def can_prune(config: PredictorConfig) -> bool:
    """Whether an entity that no path of `l` edges reaches has a state of zero after `l` layers."""
    return config.compose != "add"


def fused_plan(
    predictor: "Predictor",
    batch: "SubgraphBatch",
    backward: bool,
    reach: Sequence[int] | None = None,
) -> "FusedPlan | CPUPlan":
    """The plan of a batch for the kernels.

    `backward`: also for gradients. `reach`: see `make_plan` of the GPU.
    """
    config = predictor.config
    over_graph = config.aggregate_over == "graph"
    shape = (predictor.num_relations, config.num_layers, can_prune(config), over_graph)
    if _takes_compiled(batch.device):
        from oneshot.predictor.cpu.plan import make_plan as make_cpu_plan

        return make_cpu_plan(batch, *shape)
    from oneshot.predictor.kernels.plan import make_plan

    return make_plan(batch, *shape, backward, reach)


def fused_scores(
    predictor: "Predictor", batch: "SubgraphBatch", plan: "FusedPlan | CPUPlan"
) -> Tensor:
    """Scores of the sampled entities, [N]; the result of `Predictor.forward`."""
    # The functions of the two families differ only in the type of the plan.
    collect: Any
    dots: Any
    spread: Any
    if _takes_compiled(batch.device):
        from oneshot.predictor.cpu.messages import collect
        from oneshot.predictor.cpu.ops import dots, gated, settled, spread
    else:
        from oneshot.predictor.kernels.activation import settled
        from oneshot.predictor.kernels.dot import dots, spread
        from oneshot.predictor.kernels.gru import gated
        from oneshot.predictor.kernels.messages import collect

    config = predictor.config
    query = predictor.query(batch.queries[:, 1])
    kind = next(predictor.parameters()).dtype
    if torch.is_autocast_enabled(batch.device.type):
        kind = torch.get_autocast_dtype(batch.device.type)
    start = predictor.start(query).to(kind)
    state = _initial(start, plan)
    states = [state]
    old = state[:0]
    for number, module in enumerate(predictor.layers):
        layer = cast(Layer, module)
        table, attention = layer.message.terms(state, query)
        collected = collect(
            state, table, attention, plan, number, config.aggregate, config.compose == "add"
        )
        old_state = state if config.shortcut else None
        new, live = settled(layer, collected, plan.degree, old_state, config.activation)
        if predictor.gate is None:
            state = nn.functional.dropout(new, config.dropout, predictor.training)
        else:
            if config.gate_mask == "reached":
                live = torch.ones_like(live)
            new = nn.functional.dropout(new, config.dropout, predictor.training)
            state = old = gated(predictor.gate.cell, new, old, live)
        if config.reinject:
            state = state.index_add(0, plan.start, start.to(state.dtype))
        states.append(state)
    if not config.concat:
        states = states[-1:]
    if isinstance(predictor.readout, QueryReadout):
        asked = predictor.readout.from_query(query.embedding)
        asked = spread(asked, plan.by_row, plan.reach[-1])
        reached = _read_with_query(predictor.readout, states, asked)
    else:
        reached = _read(predictor, states, plan, dots)
    scores = torch.zeros(batch.num_entities, dtype=reached.dtype, device=batch.device)
    scores = scores.index_copy(0, plan.order[: len(reached)], reached)
    if predictor.priors is not None:
        asked = predictor.prior_weights(query)
        scores = scores + dots(prior_features(batch, asked.dtype), asked, plan.by_place)
    return scores


def _initial(start: Tensor, plan: "FusedPlan | CPUPlan") -> Tensor:
    """`h⁰` of the rows that have one, [reach, d]."""
    if plan.reach[0] == len(start):
        return start  # the query entities come first, in order
    state = start.new_zeros(plan.reach[0], start.shape[1])
    return state.index_copy(0, plan.start, start)


def _read(
    predictor: "Predictor", states: list[Tensor], plan: "FusedPlan | CPUPlan", dots: Any
) -> Tensor:
    """The scores of the rows with a final state, [reach]; the sum over the layers' scores."""
    total: Tensor | None = None
    width = predictor.config.dim
    for number, state in enumerate(states):
        if not isinstance(predictor.readout, nn.Linear):
            part = dots(state, state.index_select(0, plan.start), plan.by_row)
        else:
            weight = predictor.readout.weight[:, number * width : (number + 1) * width]
            # Scores are compared with each other, so they are float32 even if states are not.
            with torch.autocast(state.device.type, enabled=False):
                part = nn.functional.linear(state.float(), weight.float()).squeeze(1)
        part = nn.functional.pad(part, (0, plan.reach[-1] - len(part)))
        total = part if total is None else total + part
    assert total is not None
    return total


def _read_with_query(readout: QueryReadout, states: list[Tensor], asked: Tensor) -> Tensor:
    """The scores of the rows with a final state, [reach]; `asked` [reach, d]: the term of their
    query."""
    weights = readout.from_state.weight.split(states[0].shape[1], dim=1)
    parts = [nn.functional.linear(state, w) for state, w in zip(states, weights, strict=True)]
    rows = len(asked)
    hidden = sum(nn.functional.pad(part, (0, 0, 0, rows - len(part))) for part in parts)
    scores: Tensor = readout(hidden, asked)
    return scores
