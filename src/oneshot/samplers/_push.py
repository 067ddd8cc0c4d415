"""Local PPR by forward push with a degree tail: the entities of highest score around one entity.

Every entity `x` that a walk from `u` has reached has a reserve `p(x)`, the probability that the
walk ended there, and a residue `r(x)`, that of being there on the way. A push of `x` moves the
share `restart` of its residue to its reserve, and the rest to its neighbours in equal parts. All
entities with `r(x) ≥ threshold · degree(x)` are pushed, until there are none; then the reserve of
each entity is at most `threshold · degree` below its PPR (Andersen, Chung and Lang, 2006).

Where the rest of the probability goes is estimated. A walk on an undirected graph that has gone on
for long is at `v` with probability `d(v) / 2m`, where `m` counts the edges in the component of `u`.
So the score of an entity is

    p(v) + restart · r(v) + (1 − restart) · Σ r · d(v) / 2m

The last term, the degree tail, is all that entities without residue have: the `K` highest scores
are those of touched entities and of the head of the list by degree. A hub needs a high residue to
be pushed, so that in a graph with hubs nearly all edges are never read; their outflow is in the
tail.

The threshold is halved until it is small compared with the `K`-th score and the selection hardly
changes any more, or the limit of edges is reached.
"""

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot import compiled
from oneshot.graph.adjacency import SMALL, AdjacencyGraph, Neighbours
from oneshot.graph.components import Heads
from oneshot.samplers._ball import expand
from oneshot.samplers._pagerank import check_unweighted

# Entities of the list by degree that may be compared, as a multiple of the selected ones: more
# than are touched and not selected.
_HEADS = 8
# Edges per query, to decide on the number of threads; a single query runs on one.
_USUAL_EDGES = 200_000


@dataclass(frozen=True)
class PushLimits:
    """When a push ends.

    `precision`: threshold on residue / degree, relative to the K-th score. `stable`: share of the
    selection that must be the same with twice the threshold. `max_edges`: edges per query, except
    those of the query entity itself; no further round starts beyond it. `negligible`: sum of the
    residues that ends a push.
    """

    precision: float = 0.1
    stable: float = 0.97
    max_edges: int = 4_000_000
    negligible: float = 1e-6
    first_threshold: float = 1e-3


LIMITS = PushLimits()


class Pushed(NamedTuple):
    """The entities of highest score around each of n entities.

    `entities` int64 [n, K] in any order, of which the first `counts` int64 [n] are valid; `score`
    float32 [n, K]. `probed` float32 [n, c]: the scores of further entities. `edges`, `touched`
    int64 [n]: edges that were read, entities that were reached. `threshold` float64 [n]: the last
    one, 0 if nothing was left to push; the PPR of `v` differs from its score by less than
    `threshold · degree(v)`.
    """

    entities: Tensor
    score: Tensor
    counts: Tensor
    probed: Tensor
    edges: Tensor
    touched: Tensor
    threshold: Tensor


def ppr_push(
    graph: AdjacencyGraph,
    entities: Tensor,
    counts: Tensor,
    restart: float,
    probes: Tensor | None = None,
    limits: PushLimits = LIMITS,
) -> Pushed:
    """The `counts` int64 [n] entities of highest PPR from each of `entities` int64 [n].

    The entity itself is always among them; there are fewer if its component is smaller. `probes`
    int64 [n, c]: entities whose scores are also returned, -1 for none.
    """
    check_unweighted(graph, "push")
    most = int(counts.max()) if len(counts) else 1
    heads = graph.components.heads(entities, _HEADS * most)
    # Entities outside of the component have score 0.
    if probes is None:
        probes = entities.new_empty(len(entities), 0)
    own = graph.components.component_of(entities)[:, None]
    inside = (probes >= 0) & (graph.components.component_of(probes.clamp(min=0)) == own)
    probes = torch.where(inside, probes, -1)
    counts = torch.minimum(counts, heads.size)
    is_plain = graph.device.type != "cpu" or compiled.library() is None
    push = plain_push if is_plain or graph.num_entities >= SMALL else compiled_push
    return push(graph, entities, counts, most, restart, heads, probes, limits)


class _PushCall(ctypes.Structure):
    """The arguments of the kernel, as declared in `compiled/push.c`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "num_queries", "wide_starts", "wide_ids", "scattered", "most", "num_probes",
            "max_edges",
        )),
        *((name, ctypes.c_double) for name in (
            "restart", "first_threshold", "precision", "stable", "negligible",
        )),
        *((name, ctypes.c_void_p) for name in (
            "start", "index", "counts", "entity", "count", "head_begin", "head_end", "heads",
            "volume", "probe", "found", "score", "probe_score", "num_found", "edges", "touched",
            "threshold", "failed",
        )),
    ]  # fmt: skip


def compiled_push(
    graph: AdjacencyGraph,
    entities: Tensor,
    counts: Tensor,
    most: int,
    restart: float,
    heads: Heads,
    probes: Tensor,
    limits: PushLimits,
) -> Pushed:
    """As `plain_push`, with a compiled kernel, several queries at once."""
    neighbours = graph.neighbours
    size = len(entities)
    gaps = None if len(neighbours.indptr) > graph.num_entities else neighbours.degree.contiguous()
    start, index = neighbours.indptr.contiguous(), neighbours.index.contiguous()
    found = torch.zeros(size, most, dtype=torch.long)
    score = torch.zeros(size, most)
    probed = torch.zeros(probes.shape)
    num_found, edges, touched = (torch.zeros(size, dtype=torch.long) for _ in range(3))
    threshold = torch.zeros(size, dtype=torch.float64)
    failed = torch.zeros(1, dtype=torch.long)
    given = (
        entities.contiguous(),
        counts.contiguous(),
        heads.begin.contiguous(),
        heads.end.contiguous(),
        heads.entities.contiguous(),
        heads.volume.contiguous(),
        probes.contiguous(),
    )
    results = (found, score, probed, num_found, edges, touched, threshold, failed)
    call = _PushCall(
        size,
        start.dtype == torch.int64,
        index.dtype == torch.int64,
        getattr(neighbours, "scattered", None) is not None,
        most,
        probes.shape[1],
        limits.max_edges,
        restart,
        limits.first_threshold,
        limits.precision,
        limits.stable,
        limits.negligible,
        *map(compiled.pointer, (start, index, gaps, *given, *results)),
    )
    compiled.run("push_queries", _USUAL_EDGES * (size - 1), ctypes.byref(call))
    if int(failed):
        raise MemoryError("not enough memory for the local push")
    return Pushed(found, score, num_found, probed, edges, touched, threshold)


def plain_push(
    graph: AdjacencyGraph,
    entities: Tensor,
    counts: Tensor,
    most: int,
    restart: float,
    heads: Heads,
    probes: Tensor,
    limits: PushLimits,
) -> Pushed:
    """See `ppr_push`. The reference implementation, used if the kernel is not available."""
    rows = [
        _push_one(
            graph,
            int(entity),
            int(counts[row]),
            restart,
            heads.entities[int(heads.begin[row]) : int(heads.end[row])],
            float(heads.volume[row]),
            limits,
        )
        for row, entity in enumerate(entities.tolist())
    ]
    device = graph.device
    found = torch.zeros(len(rows), most, dtype=torch.long, device=device)
    score = torch.zeros(len(rows), most, device=device)
    probed = torch.zeros(probes.shape, device=device)
    for row, one in enumerate(rows):
        found[row, : len(one.entities)] = one.entities
        score[row, : len(one.entities)] = one.score
        wanted = probes[row].clamp(min=0)
        probed[row] = torch.where(probes[row] >= 0, one.scores_of(graph.neighbours, wanted), 0)
    columns = [[len(one.entities), one.edges, len(one.touched)] for one in rows]
    number, edges, touched = (
        torch.tensor(columns, dtype=torch.long, device=device).reshape(-1, 3).unbind(1)
    )
    threshold = torch.tensor([one.threshold for one in rows], dtype=torch.float64, device=device)
    return Pushed(found, score, number, probed, edges, touched, threshold)


class _One(NamedTuple):
    """The result of one query: the selection, and the scores of all touched entities (sorted)."""

    entities: Tensor
    score: Tensor
    touched: Tensor
    touched_score: Tensor
    tail: float
    edges: int
    threshold: float

    def scores_of(self, neighbours: Neighbours, wanted: Tensor) -> Tensor:
        """The scores of any entities [m] of the component."""
        place = torch.searchsorted(self.touched, wanted).clamp(max=len(self.touched) - 1)
        rest = (self.tail * neighbours.degree_of(wanted)).to(self.touched_score.dtype)
        return torch.where(self.touched[place] == wanted, self.touched_score[place], rest)


def _push_one(
    graph: AdjacencyGraph,
    entity: int,
    count: int,
    restart: float,
    heads: Tensor,
    volume: float,
    limits: PushLimits,
) -> _One:
    neighbours, device = graph.neighbours, graph.device
    own = torch.tensor([entity], device=device)
    degree = neighbours.degree_of(own).double()
    if not float(degree):
        one = torch.ones(1, device=device)
        return _One(own, one, own, one, 0.0, 0, 0.0)
    touched = own  # sorted, with the reserve, residue and degree of each
    residue = torch.ones(1, dtype=torch.float64, device=device)
    reserve = torch.zeros_like(residue)
    threshold, edges, least = limits.first_threshold, 0, 0.0
    before: Tensor | None = None
    is_done = False
    while True:
        while True:
            pushed = residue >= threshold * degree
            work = int(degree[pushed].sum())
            is_over = bool(edges) and work > 0 and edges + work > limits.max_edges
            is_done |= is_over
            if is_over or not work:
                break
            edges += work
            row, found = expand(neighbours, touched[pushed])
            share = (1 - restart) * residue[pushed] / degree[pushed]
            reserve[pushed] += restart * residue[pushed]
            residue[pushed] = 0
            every, which = torch.cat([touched, found]).unique(return_inverse=True)
            if len(every) > len(touched):
                place = which[: len(touched)]
                reserve = _spread(reserve, place, len(every))
                residue = _spread(residue, place, len(every))
                touched, degree = every, neighbours.degree_of(every).double()
            residue.index_add_(0, which[len(which) - len(found) :], share[row])
        left = float(residue.sum())
        is_done |= min(left, threshold * volume) <= limits.negligible
        if is_done or before is None or threshold <= 4 * limits.precision * least:
            tail = (1 - restart) * left / volume
            score = (reserve + restart * residue + tail * degree).float()
            # If the limit ended the rounds, only twice the threshold holds for all residues.
            reached = 2 * threshold if is_over else threshold
            every_score = _One(own, score[:0], touched, score, tail, edges, reached)
            chosen = _select(every_score, neighbours, entity, count, heads)
            least = float(chosen.score.amin()) if len(chosen.entities) > 1 else torch.inf
            if before is not None and threshold <= limits.precision * least:
                same = int(torch.isin(before, chosen.entities).sum())
                is_done |= same >= limits.stable * len(chosen.entities)
            if is_done:
                return chosen
            before = chosen.entities
        threshold /= 2


def _spread(values: Tensor, place: Tensor, size: int) -> Tensor:
    wider = values.new_zeros(size)
    wider[place] = values
    return wider


def _select(one: _One, neighbours: Neighbours, entity: int, count: int, heads: Tensor) -> _One:
    """The `count` highest scores of the touched entities and the heads, ties by lower id."""
    untouched = heads[~torch.isin(heads, one.touched)][:count]
    entities = torch.cat([one.touched, untouched])
    score = torch.cat([one.touched_score, one.scores_of(neighbours, untouched)])
    value = torch.where(entities == entity, torch.inf, score)
    order = entities.argsort()
    order = order[value[order].argsort(descending=True, stable=True)][:count]
    return one._replace(entities=entities[order], score=score[order])


def push_scores(graph: AdjacencyGraph, entities: Tensor, count: int, restart: float) -> Tensor:
    """Approximate PPR of all entities from each of `entities` int64 [n] → float32 [n, V].

    The `count` highest scores by push. The rest of the probability is divided among the other
    entities of the component in proportion to their degrees.
    """
    counts = torch.full((len(entities),), min(count, graph.num_entities), device=graph.device)
    pushed = ppr_push(graph, entities, counts, restart)
    degree = graph.neighbours.degree.float()
    component = graph.components.component_of(torch.arange(len(degree), device=graph.device))
    volume = graph.components.heads(entities, 1).volume
    scores = torch.empty(len(entities), len(degree), device=graph.device)
    for row, entity in enumerate(entities.tolist()):
        size = int(pushed.counts[row])
        found, score = pushed.entities[row, :size], pushed.score[row, :size]
        left = (1 - score.sum(dtype=torch.float64)).clamp(min=0)
        others = (volume[row] - degree[found].sum(dtype=torch.float64)).clamp(min=1)
        torch.mul(degree, float(left / others), out=scores[row])
        scores[row].masked_fill_(component != component[entity], 0)
        scores[row, found] = score
    return scores
