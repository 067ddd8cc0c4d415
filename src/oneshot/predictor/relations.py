"""RelationNetwork: states of relations relative to the query relation.

Embeddings exist only for the relations of the training. A relative state describes a relation by
how it touches the query relation, directly or through others, and by its own shape. It depends on
counts of the graph at hand alone (see `RelationGraph`), so it exists for every relation of every
graph, and is the same under any numbering of the relations. Following ULTRA ("Towards Foundation
Models for Knowledge Graph Reasoning", ICLR 2024), the states are computed once per query relation;
unlike there, relations are weighted by how often they touch.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.graph.relation_graph import RelationGraph
from oneshot.graph.sparse import SparseMatrix

# Smaller shares are not informative.
_LEAST_SHARE = 1e-3
# Of a pair of relations: shares in eight ways and two marks; of each of the two: four of its shape.
_FEATURES = 8 + 2 + 2 * 4
# Shares of the pairs of entities that both join, in four ways, with `relation_pairs`.
_PAIR_FEATURES = 4
# Divisor of the logarithm of the facts per answer, so that it is about 1.
_FACTS_SCALE = 4.0
_NORM_FLOOR = 1e-6
# Rows that are computed at once, and size of the cache in bytes, both without gradients.
_ROWS = 1 << 17
_CACHE_BYTES = 1 << 28


class RelationNetwork(nn.Module):
    """The state of every relation for each query relation, [n, 2R + 1, d].

    The first state is computed from features of the pair of relations. Layers then exchange states
    between relations that touch. The last row of the result is the identity relation, whose state
    is a parameter. States that were computed without gradients are cached until parameters or
    counts change.
    """

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.dim, self.has_pairs = config.dim, config.relation_pairs
        features = _FEATURES + (_PAIR_FEATURES if self.has_pairs else 0)
        self.encode = nn.Sequential(
            nn.Linear(features, config.dim), nn.ReLU(), nn.Linear(config.dim, config.dim)
        )
        # Of the relation itself, of its inverse, of four groups of relations that touch it, and of
        # those that join the same pairs.
        parts = 7 if self.has_pairs else 6
        self.layers = nn.ModuleList(
            nn.Linear(parts * config.dim, config.dim) for _ in range(config.relation_layers)
        )
        self.identity = nn.Parameter(torch.randn(config.dim))
        # States by query relation, and what they were computed for. Replaced as a whole, because
        # threads of a service use it at the same time.
        self._cache: tuple[tuple[Any, ...], dict[int, Tensor]] = ((), {})

    def forward(self, graph: RelationGraph, relation: Tensor) -> Tensor:
        """States [n, 2R + 1, d] for the query relations, int64 [n]."""
        if not torch.is_grad_enabled():
            distinct, which = relation.unique(return_inverse=True)
            return self._from_cache(graph, distinct).index_select(0, which)
        if relation.device.type != "cpu":
            return self.states(graph, relation)  # without waiting for the device
        distinct, which = relation.unique(return_inverse=True)
        return self.states(graph, distinct).index_select(0, which)

    def states(self, graph: RelationGraph, relation: Tensor) -> Tensor:
        """The states for some query relations, not from the cache: int64 [m] → [m, 2R + 1, d]."""
        weights = _Weights(graph.joint, self.identity.dtype)
        parallel = _Weights(graph.pairs, self.identity.dtype) if self.has_pairs else None
        count = graph.num_relations
        features = _features(graph, relation)
        if self.has_pairs:
            features = torch.cat([features, _pair_features(graph, relation)], dim=-1)
        state = _normalized(self.encode(features.to(self.identity.dtype)))
        for layer in self.layers:
            turned = state.roll(count, 0)  # the inverse of each relation
            near, far = weights.mean(state), weights.mean(turned)
            parts = [state, turned, near, near.roll(count, 0), far, far.roll(count, 0)]
            if parallel is not None:
                parts.append(parallel.mean(state))
            state = _normalized(state + layer(torch.cat(parts, dim=-1)).relu())
        identity = self.identity.to(state.dtype).expand(1, len(relation), -1)
        return torch.cat([state, identity]).transpose(0, 1)

    def _from_cache(self, graph: RelationGraph, relation: Tensor) -> Tensor:
        """`states` for distinct relations, of which known ones are not computed again."""
        some = self.identity
        # In-place changes of a parameter, such as a step of the optimizer, raise its version.
        versions = tuple(parameter._version for parameter in self.parameters())
        dtype = some.dtype
        if torch.is_autocast_enabled(some.device.type):
            dtype = torch.get_autocast_dtype(some.device.type)
        now = (graph, some.device, dtype, versions)
        cached_for, cache = self._cache
        if cached_for[1:] != now[1:] or cached_for[0] is not graph:
            cache = {}
        missing = [number for number in relation.tolist() if number not in cache]
        height = 2 * graph.num_relations + 1
        most = max(_CACHE_BYTES // (height * self.dim * some.element_size()), len(relation))
        if len(cache) + len(missing) > most:
            cache = {number: cache[number] for number in relation.tolist() if number in cache}
        for part in torch.tensor(missing, device=relation.device).split(max(_ROWS // height, 1)):
            if len(part):
                found = self.states(graph, part.long()).contiguous()
                cache = cache | dict(zip(part.tolist(), found, strict=True))
        self._cache = now, cache
        return torch.stack([cache[number] for number in relation.tolist()])


class _Weights:
    """The weights of the relations that touch: roots of their joint counts, without the diagonal.

    The counts span orders of magnitude; roots let rare relations have a part. `joint` [2R, 2R]: a
    symmetric matrix of a relation graph.
    """

    def __init__(self, joint: Tensor | SparseMatrix, dtype: torch.dtype) -> None:
        if isinstance(joint, Tensor) and joint.device.type == "cpu":
            joint = compressed(joint)
        if isinstance(joint, SparseMatrix):
            assert joint.values is not None
            row = torch.arange(joint.shape[0], device=joint.device)
            row = row.repeat_interleave(joint.indptr.diff())
            values = joint.values.to(dtype).sqrt().masked_fill(row == joint.index, 0)
            self._matrix: Tensor | SparseMatrix = SparseMatrix(
                joint.indptr, joint.index, values, joint.shape[1]
            )
            total = torch.zeros(joint.shape[0], dtype=dtype, device=joint.device)
            total = total.index_add(0, row, values)
        else:
            # Without a mask, whose shape would depend on the values: steps can be captured.
            root = joint.to(dtype).sqrt()
            self._matrix = root - root.diagonal().diag()
            total = self._matrix.sum(1)
        self._scale = total.clamp(min=1)[:, None]

    def mean(self, state: Tensor) -> Tensor:
        """The weighted mean of the states of the relations that touch each one: [2R, m, d]."""
        flat = state.flatten(1)
        product: Tensor = SymmetricProduct.apply(flat, self._matrix)  # type: ignore[no-untyped-call]
        return (product / self._scale).reshape(state.shape)


class SymmetricProduct(torch.autograd.Function):
    """The product of a symmetric matrix with a block [2R, m], which is also its gradient."""

    @staticmethod
    def forward(ctx: Any, block: Tensor, matrix: Any) -> Tensor:
        ctx.matrix = matrix
        product: Tensor = matrix @ block.to(_type_of(matrix))
        return product.to(block.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0]
        product: Tensor = ctx.matrix @ gradient.to(_type_of(ctx.matrix))
        return product.to(gradient.dtype), None


def _type_of(matrix: Tensor | SparseMatrix) -> torch.dtype:
    values = matrix if isinstance(matrix, Tensor) else matrix.values
    assert values is not None
    return values.dtype


def compressed(joint: Tensor) -> SparseMatrix:
    """A dense matrix on the CPU as a sparse one: few relations touch."""
    row, column = joint.nonzero().unbind(1)
    indptr = torch.searchsorted(row, torch.arange(len(joint) + 1))
    return SparseMatrix(indptr, column, joint[row, column], joint.shape[1])


def _features(graph: RelationGraph, relation: Tensor) -> Tensor:
    """Features of every relation `r` for each query relation `q`, [2R, m, 18].

    For tails and heads of `r` and `q`: the share of the entities of one that are also entities of
    the other, in both directions. Whether `r` is `q`, or its inverse. The shapes of `r` and `q`.
    """
    count = graph.num_relations
    inverse = (relation + count) % (2 * count)
    answers = graph.answers.clamp(min=1)
    shape = _shapes(graph)
    number = torch.arange(2 * count, device=relation.device)[:, None]
    columns = []
    for asked in (relation, inverse):
        joint = graph.rows(asked).t()  # [2R, m]
        by_query, by_relation = joint / answers[asked], joint / answers[:, None]
        columns += [by_query, by_relation, by_query.roll(count, 0), by_relation.roll(count, 0)]
    shares = _scaled(torch.stack(columns, -1))
    marks = torch.stack([number == relation, number == inverse], -1).to(shares.dtype)
    wide = (2 * count, len(relation), shape.shape[1])
    return torch.cat(
        [shares, marks, shape[:, None].expand(wide), shape[relation][None].expand(wide)], dim=-1
    )


def _pair_features(graph: RelationGraph, relation: Tensor) -> Tensor:
    """Features of every relation `r` for each query relation `q`, [2R, m, 4].

    The share of the facts of one whose entities the other joins as well, in both ways; the same for
    the inverse of `q`.
    """
    facts, count = graph.facts.clamp(min=1), graph.num_relations
    columns = []
    for asked in (relation, (relation + count) % (2 * count)):
        pairs = graph.rows_of_pairs(asked).t()  # [2R, m]
        columns += [pairs / facts[asked], pairs / facts[:, None]]
    return _scaled(torch.stack(columns, -1))


def _scaled(shares: Tensor) -> Tensor:
    """Shares from 0 to 1 on a logarithmic scale from 0 to 1."""
    return (shares / _LEAST_SHARE).log1p() / math.log1p(1 / _LEAST_SHARE)


def _shapes(graph: RelationGraph) -> Tensor:
    """Facts per tail and per head, and shares of the entities that are tails and heads, [2R, 4].

    All as logarithms; zero for a relation without facts.
    """
    answers = graph.answers
    facts = (graph.facts / answers.clamp(min=1)).clamp(min=1).log() / _FACTS_SCALE
    size = answers.log1p() / math.log1p(max(graph.num_entities, 1))
    both = torch.stack([facts, size], dim=1)
    return torch.cat([both, both.roll(graph.num_relations, 0)], dim=1)


def _normalized(state: Tensor) -> Tensor:
    return nn.functional.rms_norm(state, state.shape[-1:], eps=_NORM_FLOOR)
