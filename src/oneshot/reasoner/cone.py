"""Cone: the part of the subgraph of a query that the score of one entity depends on.

After layer `l` of `L`, a state matters only if the remaining `L - l` layers can carry it to the
entity, and it is zero unless `l` edges lead there from the query entity. In the middle layers of a
deep predictor that leaves a small part of the subgraph, in the first and last ones next to nothing.
The scores are those of the predictor on the whole subgraph; computing them again, with other
weights of the edges or without some facts, costs a fraction.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from oneshot.predictor import Predictor
from oneshot.predictor.fused import can_prune
from oneshot.predictor.layer import Layer, reached_next
from oneshot.predictor.messages import Query
from oneshot.predictor.priors import prior_features
from oneshot.predictor.readout import QueryReadout
from oneshot.predictor.segments import EdgePlan, Rows
from oneshot.reasoner.paths import hops
from oneshot.subgraph import SubgraphBatch

# Edges of the largest layer that are computed at once: more do not fit into the cache of a CPU.
_EDGES_AT_ONCE = 1 << 13


@dataclasses.dataclass(frozen=True)
class _Step:
    """The edges of one layer, and the rows of its states.

    `rows` [n]: the entities with a state after the layer, as indices of the subgraph, ascending.
    `edges` [m]: edges between rows of the previous and of this layer. `source`, `target` [m]: their
    rows. `before` [n]: the row of each entity in the previous layer, or the number of its rows for
    an entity without a state. `count` [n]: edges into each entity, including those from entities
    without a state.
    """

    rows: Tensor
    edges: Tensor
    source: Tensor
    target: Tensor
    before: Tensor
    count: Tensor


class _CountedRows(Rows):
    """Rows of edges, of which some are not listed; `count` [size] includes those."""

    def __init__(self, index: Tensor, size: int, count: Tensor) -> None:
        super().__init__(index, size)
        _ = self.matrices  # sums of the listed edges
        self.count = count


class _StepPlan(EdgePlan):
    """The edges of one layer as rows; unlike in a whole batch, sources and targets differ."""

    def __init__(self, source: Rows, relation: Tensor, target: Rows, kinds: int) -> None:
        self.source, self.target = source, target
        self.relation = self.query_relation = Rows(relation, kinds)
        self.query = Rows(torch.zeros_like(relation), 1, is_sorted=True)
        self.missing = None  # `target` counts all edges


class Cone:
    """Computes the score of the entity in row `target` of the single query of a batch."""

    def __init__(self, predictor: Predictor, batch: SubgraphBatch, target: int) -> None:
        self.predictor, self.batch, self.target = predictor, batch, target
        config = predictor.config
        depth = config.num_layers
        self.source = int(batch.source[0])
        outward = hops(batch, self.source)
        if not can_prune(config):  # every entity has a state
            outward = torch.zeros_like(outward)
        inward = hops(batch, target, backwards=True)
        if config.readout == "dot":  # the score also depends on the query entity
            inward = torch.minimum(inward, hops(batch, self.source, backwards=True))
        origin, _, goal = batch.edges
        incoming = torch.bincount(goal, minlength=batch.num_entities)
        place = torch.full((batch.num_entities,), -1, device=batch.device)
        self.start = ((outward <= 0) & (inward <= depth)).nonzero().squeeze(1)
        place[self.start] = torch.arange(len(self.start), device=batch.device)
        previous = len(self.start)
        self.steps: list[_Step] = []
        for layer in range(1, depth + 1):
            inside = (outward <= layer) & (inward <= depth - layer)
            rows = inside.nonzero().squeeze(1)
            edges = (inside[goal] & (place[origin] >= 0)).nonzero().squeeze(1)
            before = torch.where(place[rows] >= 0, place[rows], previous)
            source = place[origin[edges]]
            place = torch.full_like(place, -1)
            place[rows] = torch.arange(len(rows), device=batch.device)
            step = _Step(rows, edges, source, place[goal[edges]], before, incoming[rows])
            self.steps.append(step)
            previous = len(rows)

    def shares(self, points: int, proceed: Callable[[], None] = lambda: None) -> Tensor:
        """Contribution of each edge in each layer to the score, [L, E] (see `edge_shares`).

        `proceed` is called before each part of the work.
        """
        kind = next(self.predictor.parameters()).dtype
        shares = torch.zeros(
            len(self.steps), self.batch.num_edges, dtype=kind, device=self.batch.device
        )
        scales = [(point + 0.5) / points for point in range(points)]
        for start, stop in self._parts(points):
            proceed()
            some = torch.tensor(scales[start:stop], dtype=kind, device=self.batch.device)
            weights = [
                some[:, None].repeat(1, len(step.edges)).requires_grad_() for step in self.steps
            ]
            score = self._scores(len(some), weights=weights).sum()
            # Unused if no path leads to the entity.
            gradients = torch.autograd.grad(
                score, weights, allow_unused=True, materialize_grads=True
            )
            for share, step, gradient in zip(shares, self.steps, gradients, strict=True):
                share[step.edges] += gradient.sum(0)
        return shares / points

    def scores_without(self, removed: Sequence[Tensor], degrees: Sequence[Tensor]) -> list[float]:
        """The score without some edges, for each selection: bool [E] and the degrees [N] then."""
        found: list[float] = []
        with torch.no_grad():
            for start, stop in self._parts(len(removed)):
                gone = torch.stack(list(removed[start:stop]))
                degree = torch.stack(list(degrees[start:stop]))
                found += self._scores(stop - start, gone=gone, degree=degree).tolist()
        return found

    def _parts(self, count: int) -> Iterator[tuple[int, int]]:
        """Ranges of `count` computations that are done at once."""
        largest = max(len(step.edges) for step in self.steps)
        size = max(_EDGES_AT_ONCE // max(largest, 1), 1)
        for start in range(0, count, size):
            yield start, min(start + size, count)

    def _scores(
        self,
        copies: int,
        weights: Sequence[Tensor] | None = None,
        gone: Tensor | None = None,
        degree: Tensor | None = None,
    ) -> Tensor:
        """The score in several copies of the cone, [copies].

        `weights`: [copies, m] per layer; `gone` [copies, E]: edges that are left out; `degree`
        [copies, N]: the degrees, if they are not those of the batch.
        """
        predictor, config, batch = self.predictor, self.predictor.config, self.batch
        if degree is None:
            degree = batch.degree.expand(copies, -1)
        query = predictor.query(batch.queries[:, 1])
        state = self._initial(copies, query)
        states = [self._ends(state, self.start, copies)]
        reached = (self.start == self.source).repeat(copies)
        gated = torch.zeros_like(state)
        for number, step in enumerate(self.steps):
            layer = cast(Layer, predictor.layers[number])
            previous = len(state) // copies
            plan, kept = self._plan(step, previous, gone, degree)
            # One more row, of zeros, for entities without a state.
            nothing = state.new_zeros(1, state.shape[1])
            longer = torch.cat([state, nothing])
            messages = layer.message(longer, plan, query)
            scale = None if weights is None else weights[number].flatten()[kept]
            if batch.is_weighted:
                given = batch.weight[step.edges].repeat(copies)[kept].to(messages.dtype)
                scale = given if scale is None else scale * given
            if scale is not None:
                # The edges from entities without a state come last.
                messages = torch.cat(
                    [messages[: len(kept)] * scale[:, None], messages[len(kept) :]]
                )
            collected = layer.aggregate(messages, plan)
            factor = degree[:, step.rows].flatten()
            new = layer.activation(layer.combined(collected, factor))
            shift = torch.arange(copies, device=batch.device)[:, None] * previous
            before = torch.where(step.before < previous, step.before + shift, len(state)).flatten()
            if layer.shortcut:
                new = new + longer.index_select(0, before)
            if predictor.gate is not None:
                old = torch.cat([gated, nothing]).index_select(0, before)
                if config.gate_mask == "reached":
                    reached = reached_next(torch.cat([reached, reached.new_zeros(1)]), plan)
                    new = predictor.gate(new, old, reached)
                else:
                    new = predictor.gate(new, old, None)
                gated = new
            state = new
            if config.reinject:
                state = self._reinjected(state, step.rows, predictor.start(query))
            states.append(self._ends(state, step.rows, copies))
        final = torch.cat(states, dim=-1) if config.concat else states[-1]
        scores = self._read(final, query)
        if predictor.priors is not None:
            weight = predictor.prior_weights(query)
            row = dataclasses.replace(
                batch,
                score=batch.score[self.target].expand(copies),
                degree=degree[:, self.target],
            )
            scores = scores + (prior_features(row, weight.dtype) * weight).sum(dim=-1)
        return scores

    def _initial(self, copies: int, query: Query) -> Tensor:
        start = self.predictor.start(query)
        state = start.new_zeros(len(self.start), start.shape[1])
        state[self.start == self.source] = start
        return state.repeat(copies, 1)

    def _plan(
        self, step: _Step, previous: int, gone: Tensor | None, degree: Tensor
    ) -> tuple[_StepPlan, Tensor]:
        """The edges of a layer in all copies, and which of [copies · m] they are.

        `degree` [copies, N]. Messages from entities without a state are zero. They count in a mean,
        and one of them per entity stands for all in a maximum.
        """
        device, size, copies = self.batch.device, len(step.rows), len(degree)
        copy = torch.arange(copies, device=device)[:, None]
        source = (step.source + copy * previous).flatten()
        target = (step.target + copy * size).flatten()
        relation = self.batch.edges[1, step.edges].repeat(copies)
        count = step.count.repeat(copies)
        kept = torch.arange(len(source), device=device)
        if gone is not None:
            kept = (~gone[:, step.edges]).flatten().nonzero().squeeze(1)
            goal = self.batch.edges[2]
            lost = [torch.bincount(goal[mask], minlength=self.batch.num_entities) for mask in gone]
            count = count - torch.stack(lost)[:, step.rows].flatten()
        if self.predictor.config.aggregate_over == "graph":
            count = torch.maximum(count, degree[:, step.rows].flatten() + 1)
        source, target, relation = source[kept], target[kept], relation[kept]
        zero = (count > torch.bincount(target, minlength=copies * size)).nonzero().squeeze(1)
        identity = 2 * self.predictor.num_relations
        relation = torch.cat([relation, torch.full_like(zero, identity)])
        rows = _CountedRows(torch.cat([target, zero]), copies * size, count)
        nowhere = torch.full_like(zero, copies * previous)
        origins = Rows(torch.cat([source, nowhere]), copies * previous + 1)
        return _StepPlan(origins, relation, rows, identity + 1), kept

    def _reinjected(self, state: Tensor, rows: Tensor, start: Tensor) -> Tensor:
        """The states [copies · n, d] with the initial state [1, d] added to the query entity."""
        added = (rows == self.source)[:, None] * start
        return state + added.repeat(len(state) // max(len(rows), 1), 1)

    def _ends(self, state: Tensor, rows: Tensor, copies: int) -> Tensor:
        """The states of the target and, after them, of the query entity, [2 · copies, d]."""
        found = []
        for entity in (self.target, self.source):
            place = (rows == entity).nonzero().flatten()
            shaped = state.reshape(copies, len(rows), state.shape[1])
            if len(place):
                found.append(shaped[:, int(place)])
            else:
                found.append(state.new_zeros(copies, state.shape[1]))
        return torch.cat(found)

    def _read(self, final: Tensor, query: Query) -> Tensor:
        answer, asked = final.chunk(2)
        readout = self.predictor.readout
        if readout is None:
            return (answer * asked).sum(dim=-1)
        if isinstance(readout, QueryReadout):
            term = readout.from_query(query.embedding).expand(len(answer), -1)
            read: Tensor = readout(readout.from_state(answer), term)
            return read
        scores: Tensor = readout(answer.to(readout.weight.dtype)).squeeze(-1)
        return scores


class WholeSubgraph(Cone):
    """The same results on the whole subgraph, for a network whose layers a cone cannot follow."""

    def __init__(self, predictor: Predictor, batch: SubgraphBatch, target: int) -> None:
        self.predictor, self.batch, self.target = predictor, batch, target

    def shares(self, points: int, proceed: Callable[[], None] = lambda: None) -> Tensor:
        total = torch.zeros((), device=self.batch.device)
        for point in range(points):
            proceed()
            scale = (point + 0.5) / points
            total = total + edge_gradients(self.predictor, self.batch, self.target, scale)
        return total / points

    def scores_without(self, removed: Sequence[Tensor], degrees: Sequence[Tensor]) -> list[float]:
        found = []
        with torch.no_grad():
            for gone, degree in zip(removed, degrees, strict=True):
                batch = dataclasses.replace(self.batch.with_edges(~gone), degree=degree)
                found.append(float(self.predictor(batch)[self.target]))
        return found


class EnsembleCone(Cone):
    """The means of the results over the members of an ensemble."""

    def __init__(self, predictor: Predictor, batch: SubgraphBatch, target: int) -> None:
        self.predictor, self.batch, self.target = predictor, batch, target
        self.members = [Cone(member, batch, target) for member in predictor.parts()]

    def shares(self, points: int, proceed: Callable[[], None] = lambda: None) -> Tensor:
        found = [member.shares(points, proceed) for member in self.members]
        return torch.stack(found).mean(0)

    def scores_without(self, removed: Sequence[Tensor], degrees: Sequence[Tensor]) -> list[float]:
        found = [member.scores_without(removed, degrees) for member in self.members]
        return [sum(scores) / len(scores) for scores in zip(*found, strict=True)]


def edge_gradients(
    predictor: Predictor, batch: SubgraphBatch, target: int, scale: float = 1.0
) -> Tensor:
    """Gradient of the score of the entity in row `target` with respect to the edge weights, [L, E].

    It is evaluated with all weights equal to `scale`.
    """
    dtype = next(predictor.parameters()).dtype
    weights = torch.full(
        (predictor.config.num_layers, batch.num_edges), scale, dtype=dtype, device=batch.device
    ).requires_grad_()
    score = predictor(batch, list(weights))[target]
    # Unused if no path leads to the entity.
    return torch.autograd.grad(score, weights, allow_unused=True, materialize_grads=True)[0]


def cone_of(predictor: Predictor, batch: SubgraphBatch, target: int) -> Cone:
    """What computes the score of the entity in row `target` of the single query of a batch."""
    if predictor.config.network != "oneshot":
        return WholeSubgraph(predictor, batch, target)
    if predictor.config.members > 1:
        return EnsembleCone(predictor, batch, target)
    return Cone(predictor, batch, target)
