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
changes any more, or the limit of edges is reached. Around an entity with somewhat more than `K`
neighbours, nearly all of these have the same score, and which of them are selected changes for
long: scores that are tied with the `K`-th count as selected, and the search for a stable selection
ends at a multiple of the edges that the precision needs.

With a hub index (`_hubs`), the PPR of hubs does not depend on the tail. In a first phase, residue
that arrives at hubs is parked. The index then gives the PPR `s(h)` of every hub. As `s(h) /
restart` is all that ever leaves a hub, it becomes its residue: each hub is pushed at most once, and
nothing is added to hubs any more. What the entities lack together is the tail of the others.
"""

import ctypes
import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oneshot import compiled
from oneshot.graph.adjacency import SMALL, AdjacencyGraph, Neighbours
from oneshot.graph.components import Heads
from oneshot.graph.hidden import HiddenNeighbours
from oneshot.graph.hub_index import HubIndex
from oneshot.samplers._ball import expand
from oneshot.samplers._pagerank import check_unweighted

# Entities of the list by degree that may be compared, as a multiple of the selected ones: more
# than are touched and not selected.
_HEADS = 8
_LARGE_SHARE = 0.01
# Edges per query, to decide on the number of threads; a single query runs on one.
_USUAL_EDGES = 200_000


@dataclass(frozen=True)
class PushLimits:
    """When a push ends.

    `precision`: threshold on residue / degree, relative to the K-th score. `stable`: share of the
    selection that must be the same with twice the threshold. `tie`: relative difference from the
    K-th score within which an entity counts as selected. `backstop`: edges that a query may read
    until its selection is stable, as a multiple of those for `precision`. `max_edges`: edges per
    query, except those of the query entity itself; no further round starts beyond it.
    `negligible`: sum of the
    residues that ends a push. `park_threshold`: threshold of the phase in which the residue of hubs
    is parked; `least_parked`: residue of a hub for which its row of the index is read;
    `hub_precision`: the `precision` with a hub index, where hubs need not be pushed to be known and
    the entities around them decide. `large_precision`: the `precision`, if that is not lower, of
    selections of more than a hundredth of the entities, whose last scores differ little.
    """

    precision: float = 0.1
    stable: float = 0.97
    tie: float = 0.001
    backstop: float = 12.0
    max_edges: int = 4_000_000
    negligible: float = 1e-6
    first_threshold: float = 1e-3
    park_threshold: float = 1e-6
    least_parked: float = 1e-6
    hub_precision: float = 0.025
    large_precision: float = 0.05

    def large_count(self, graph: AdjacencyGraph) -> int:
        """The number of entities of a selection above which `large_precision` holds."""
        return int(_LARGE_SHARE * graph.num_entities)


LIMITS = PushLimits()


def limits_for(graph: AdjacencyGraph) -> PushLimits:
    """The limits of a push on a graph: the default ones, with the precision chosen for it."""
    if graph.push_precision is None:
        return LIMITS
    return at_precision(graph.push_precision)


def at_precision(precision: float) -> PushLimits:
    """The default limits with another precision, for selections of any size."""
    return dataclasses.replace(LIMITS, precision=precision, large_precision=precision)


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
    limits: PushLimits | None = None,
    hub_index: HubIndex | None = None,
) -> Pushed:
    """The `counts` int64 [n] entities of highest PPR from each of `entities` int64 [n].

    The entity itself is always among them; there are fewer if its component is smaller. `probes`
    int64 [n, c]: entities whose scores are also returned, -1 for none. `limits`: by default those
    for the graph. `hub_index`: that of the graph for this `restart`; the bound of the error by
    `threshold` does not hold with it.
    """
    if limits is None:
        limits = limits_for(graph)
    check_unweighted(graph, "push")
    if hub_index is not None and hub_index.restart != restart:
        raise ValueError(f"the hub index is for restart {hub_index.restart}, not {restart}")
    most = int(counts.max()) if len(counts) else 1
    heads = graph.components.heads(entities, _HEADS * most)
    # Entities outside of the component have score 0.
    if probes is None:
        probes = entities.new_empty(len(entities), 0)
    own = graph.components.component_of(entities)[:, None]
    inside = (probes >= 0) & (graph.components.component_of(probes.clamp(min=0)) == own)
    probes = torch.where(inside, probes, -1)
    counts = torch.minimum(counts, heads.size)
    is_hiding = isinstance(graph.neighbours, HiddenNeighbours)
    is_plain = graph.device.type != "cpu" or not compiled.can_read(is_hiding)
    push = plain_push if is_plain or graph.num_entities >= SMALL else compiled_push
    return push(graph, entities, counts, most, restart, heads, probes, limits, hub_index)


class PushCall(ctypes.Structure):
    """The arguments of the kernel, as declared in `compiled/push.c`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "num_queries", "wide_starts", "wide_ids", "scattered", "most", "num_probes",
            "max_edges", "num_hubs", "hub_degree", "hubs_are_listed", "large_count",
        )),
        *((name, ctypes.c_double) for name in (
            "restart", "first_threshold", "precision", "large_precision", "stable", "tie",
            "backstop", "negligible", "park_threshold", "least_parked",
        )),
        *((name, ctypes.c_void_p) for name in (
            "start", "index", "counts", "entity", "count", "head_begin", "head_end", "heads",
            "volume", "probe", "found", "score", "probe_score", "num_found", "edges", "touched",
            "threshold", "failed", "hub", "between", "arrival", "arrival_row", "rest_volume",
            "hidden", "touched_bits",
        )),
        ("num_hidden", ctypes.c_int64),
    ]  # fmt: skip


def adjacency_arguments(graph: AdjacencyGraph) -> tuple[dict[str, Any], list[Tensor | None]]:
    """The fields of `PushCall` for a graph, and the tensors that must live as long as they do."""
    neighbours = graph.neighbours
    has_gaps = len(neighbours.indptr) <= graph.num_entities
    counts = neighbours.degree.contiguous() if has_gaps else None
    start, index = neighbours.indptr.contiguous(), neighbours.index.contiguous()
    tensors = {"start": start, "index": index, "counts": counts}
    num_hidden = 0
    if isinstance(neighbours, HiddenNeighbours):
        num_hidden = len(neighbours.hidden)
        tensors |= {"hidden": neighbours.hidden, "touched_bits": neighbours.touched_bits}
    fields: dict[str, Any] = {
        "num_hidden": num_hidden,
        "wide_starts": start.dtype == torch.int64,
        "wide_ids": index.dtype == torch.int64,
        "scattered": getattr(neighbours, "scattered", None) is not None,
    }
    fields |= {name: compiled.pointer(tensor) for name, tensor in tensors.items()}
    return fields, list(tensors.values())


def compiled_push(
    graph: AdjacencyGraph,
    entities: Tensor,
    counts: Tensor,
    most: int,
    restart: float,
    heads: Heads,
    probes: Tensor,
    limits: PushLimits,
    hub_index: HubIndex | None = None,
) -> Pushed:
    """As `plain_push`, with a compiled kernel, several queries at once."""
    size = len(entities)
    fields, kept = adjacency_arguments(graph)
    tensors = {
        "entity": entities.contiguous(),
        "count": counts.contiguous(),
        "head_begin": heads.begin.contiguous(),
        "head_end": heads.end.contiguous(),
        "heads": heads.entities.contiguous(),
        "volume": heads.volume.contiguous(),
        "probe": probes.contiguous(),
        "found": torch.zeros(size, most, dtype=torch.long),
        "score": torch.zeros(size, most),
        "probe_score": torch.zeros(probes.shape),
        "threshold": torch.zeros(size, dtype=torch.float64),
        "failed": torch.zeros(1, dtype=torch.long),
    }
    for name in ("num_found", "edges", "touched"):
        tensors[name] = torch.zeros(size, dtype=torch.long)
    if hub_index is not None:
        arrivals = hub_index.arrivals(graph.components, entities)
        tensors |= {
            "hub": hub_index.hubs.contiguous(),
            "between": hub_index.ppr.contiguous(),
            "arrival": arrivals.ppr.contiguous(),
            "arrival_row": arrivals.row.contiguous(),
            "rest_volume": arrivals.volume.contiguous(),
        }
        fields |= {
            "num_hubs": len(hub_index.hubs),
            "hub_degree": hub_index.least_degree,
            "hubs_are_listed": hub_index.has_changed,
        }
    options = dataclasses.asdict(limits)
    hub_precision = options.pop("hub_precision")
    if hub_index is not None:
        options["precision"] = hub_precision
    call = PushCall(
        num_queries=size,
        most=most,
        num_probes=probes.shape[1],
        restart=restart,
        large_count=limits.large_count(graph),
        **options,
        **fields,
        **{name: compiled.pointer(tensor) for name, tensor in tensors.items()},
    )
    compiled.run("push_queries", _USUAL_EDGES * (size - 1), ctypes.byref(call))
    del kept
    if int(tensors["failed"]):
        raise MemoryError("not enough memory for the local push")
    return Pushed(
        tensors["found"],
        tensors["score"],
        tensors["num_found"],
        tensors["probe_score"],
        tensors["edges"],
        tensors["touched"],
        tensors["threshold"],
    )


def plain_push(
    graph: AdjacencyGraph,
    entities: Tensor,
    counts: Tensor,
    most: int,
    restart: float,
    heads: Heads,
    probes: Tensor,
    limits: PushLimits,
    hub_index: HubIndex | None = None,
) -> Pushed:
    """See `ppr_push`. The reference implementation, used if the kernel is not available."""
    hubs: list[_Hubs | None] = [None] * len(entities)
    if hub_index is not None:
        arrivals = hub_index.arrivals(graph.components, entities)
        hubs = [
            _Hubs(hub_index, arrivals.ppr[int(row)], float(volume))
            for row, volume in zip(arrivals.row, arrivals.volume, strict=True)
        ]
        limits = dataclasses.replace(limits, precision=limits.hub_precision)
    rows = [
        _push_one(
            graph,
            int(entity),
            int(counts[row]),
            restart,
            heads.entities[int(heads.begin[row]) : int(heads.end[row])],
            float(heads.volume[row]),
            limits,
            hubs[row],
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


class _Hubs(NamedTuple):
    """The hub index for one query: `arrival` [H] and `volume` as in `Arrivals`."""

    known: HubIndex
    arrival: Tensor
    volume: float


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


class _Residues:
    """The touched entities of one query, sorted, with reserve, residue and degree of each.

    `least_hub`: degree from which entities are hubs; infinite if they are pushed as others.
    `listed`: the hubs, if other entities may have as many neighbours. Residue is parked at hubs
    until they are `closed`; then nothing arrives there any more.
    """

    def __init__(self, neighbours: Neighbours, entity: Tensor, restart: float) -> None:
        self.neighbours, self.restart = neighbours, restart
        self.touched = entity
        self.degree = neighbours.degree_of(entity).double()
        self.residue = torch.ones(1, dtype=torch.float64, device=entity.device)
        self.reserve = torch.zeros_like(self.residue)
        self.edges = 0
        self.least_hub, self.closed = torch.inf, False
        self.listed: Tensor | None = None

    def is_hub(self) -> Tensor:
        large = self.degree >= self.least_hub
        return large if self.listed is None else large & torch.isin(self.touched, self.listed)

    def push(self, threshold: float, max_edges: int) -> bool:
        """Push all entities above the threshold until there are none; false at the limit."""
        while True:
            pushed = (self.residue >= threshold * self.degree) & (self.residue > 0)
            if not self.closed:
                pushed &= ~self.is_hub()
            work = int(self.degree[pushed].sum())
            if not work:
                return True
            if self.edges and self.edges + work > max_edges:
                return False
            self.edges += work
            row, found = expand(self.neighbours, self.touched[pushed])
            share = (1 - self.restart) * self.residue[pushed] / self.degree[pushed]
            self.reserve[pushed] += self.restart * self.residue[pushed]
            self.residue[pushed] = 0
            place = self.touch(found)
            amount = share[row]
            if self.closed:
                amount = torch.where(self.is_hub()[place], 0, amount)
            self.residue.index_add_(0, place, amount)

    def touch(self, found: Tensor) -> Tensor:
        """The places of some entities [m], which are added if necessary."""
        every, which = torch.cat([self.touched, found]).unique(return_inverse=True)
        if len(every) > len(self.touched):
            place = which[: len(self.touched)]
            self.reserve = _spread(self.reserve, place, len(every))
            self.residue = _spread(self.residue, place, len(every))
            self.touched, self.degree = every, self.neighbours.degree_of(every).double()
        places: Tensor = which[len(which) - len(found) :]
        return places

    def close_hubs(self, hubs: _Hubs, least_parked: float) -> None:
        """From parked residue to the PPR of all hubs, which becomes their residue."""
        ids = hubs.known.hubs
        place = torch.searchsorted(self.touched, ids).clamp(max=len(self.touched) - 1)
        parked = torch.where(self.touched[place] == ids, self.residue[place], 0)
        parked = torch.where(parked >= least_parked, parked, 0)
        elsewhere = (self.residue.sum() - parked.sum()).clamp(min=0)
        ppr = parked.float() @ hubs.known.ppr + elsewhere.float() * hubs.arrival
        reached = ppr > 0
        place = self.touch(ids[reached])
        self.residue[place] = ppr[reached].double() / self.restart
        self.closed = True

    def unknown(self) -> float:
        """The probability that no entity has yet, with closed hubs."""
        return max(1 - float((self.reserve + self.restart * self.residue).sum()), 0.0)


def _push_one(
    graph: AdjacencyGraph,
    entity: int,
    count: int,
    restart: float,
    heads: Tensor,
    volume: float,
    limits: PushLimits,
    hubs: _Hubs | None,
) -> _One:
    neighbours, device = graph.neighbours, graph.device
    own = torch.tensor([entity], device=device)
    if not int(neighbours.degree_of(own)):
        one = torch.ones(1, device=device)
        return _One(own, one, own, one, 0.0, 0, 0.0)
    state = _Residues(neighbours, own, restart)
    if hubs is not None:
        state.least_hub = hubs.known.least_degree
        if hubs.known.has_changed:
            state.listed = hubs.known.hubs
        threshold = limits.first_threshold
        while state.push(max(threshold, limits.park_threshold), limits.max_edges):
            if threshold <= limits.park_threshold:
                break
            threshold /= 4
        state.close_hubs(hubs, limits.least_parked)
    threshold, least, precision = limits.first_threshold, 0.0, limits.precision
    if count > limits.large_count(graph):
        precision = min(precision, limits.large_precision)
    before: Tensor | None = None
    is_done, is_precise, max_edges = False, False, limits.max_edges
    while True:
        is_over = not state.push(threshold, max_edges)
        left = float(state.residue.sum()) if hubs is None else state.unknown()
        most_left = threshold * volume if hubs is not None else min(left, threshold * volume)
        is_done |= is_over or most_left <= limits.negligible
        if is_done or before is None or threshold <= 4 * precision * least:
            degree = state.degree
            if hubs is None:
                tail = (1 - restart) * left / volume
            else:
                # The PPR of hubs is complete; `left` is what the other entities lack.
                tail = left / hubs.volume if hubs.volume > 0 else 0.0
                degree = torch.where(state.is_hub(), 0, degree)
            score = (state.reserve + restart * state.residue + tail * degree).float()
            # If the limit ended the rounds, only twice the threshold holds for all residues.
            reached = 2 * threshold if is_over else threshold
            every_score = _One(own, score[:0], state.touched, score, tail, state.edges, reached)
            chosen = _select(every_score, neighbours, entity, count, heads)
            least = float(chosen.score.amin()) if len(chosen.entities) > 1 else torch.inf
            if before is not None and threshold <= precision * least:
                kept = every_score.scores_of(neighbours, before) >= least * (1 - limits.tie)
                same = int((kept | (before == entity)).sum())
                is_done |= same >= limits.stable * len(chosen.entities)
                if not is_precise:
                    max_edges = int(min(max_edges, limits.backstop * state.edges))
                    is_precise = True
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


def hub_index_for(graph: AdjacencyGraph, restart: float) -> HubIndex | None:
    """The hub index of the graph, if there is one for this `restart`."""
    index = graph.hub_index
    return None if index is None or index.restart != restart else index


def push_scores(graph: AdjacencyGraph, entities: Tensor, count: int, restart: float) -> Tensor:
    """Approximate PPR of all entities from each of `entities` int64 [n] → float32 [n, V].

    The `count` highest scores by push. The rest of the probability is divided among the other
    entities of the component in proportion to their degrees.
    """
    counts = torch.full((len(entities),), min(count, graph.num_entities), device=graph.device)
    pushed = ppr_push(graph, entities, counts, restart, hub_index=hub_index_for(graph, restart))
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
