"""The hub index: PPR between the entities with the most neighbours.

Cut a walk at every hub that it meets. From hub `i`, it next meets hub `j` with probability
`B[i, j]`, unless it ends before. The number of visits to each hub adds up over all pieces of the
walk, so that the PPR between hubs is

    restart · (I − B)⁻¹

`B` comes from one push per hub that does not push other hubs, which stays small: walks soon meet
one. The rest of the residue is not estimated by degrees, as an error of `B` is repeated in every
piece of a walk, but by random walks that each carry the same probability. Their noise is small in
sums over many hubs. As `degree(i) · B[i, j]` is symmetric, each pair is estimated twice, and the
mean takes the estimate with more walks more seriously.

For a query, the residue that arrives at hubs is parked. If `b` is what arrives, `b · PPR` is the
PPR of all hubs, however slowly the walk mixes between them (see `_push`).
"""

import ctypes
import math

import torch
from torch import Tensor

from oneshot import compiled
from oneshot.errors import InputError
from oneshot.graph.adjacency import SMALL, AdjacencyGraph, Neighbours
from oneshot.graph.hub_index import HubIndex
from oneshot.samplers._ball import expand
from oneshot.samplers._push import PushCall, adjacency_arguments

MOST_HUBS = 4000
"""Hubs of an index, at most: 64 MB."""

# Threshold of the pushes from hubs, and the probability that one random walk carries.
_THRESHOLD, _WALK = 1e-5, 2e-5
_LEAST_CARRIED = 0.01  # share of its probability with which a random walk ends
_HUB_EDGES = 100_000  # per hub, to decide on the number of threads


def build_hub_index(
    graph: AdjacencyGraph, most: int = MOST_HUBS, restart: float = 0.15, seed: int = 0
) -> HubIndex | None:
    """The index of at most `most` entities with the most neighbours; None if there are none.

    Entities with equally many neighbours are all hubs or none.
    """
    if not 0 < restart < 1:
        raise InputError(f"restart must be between 0 and 1, not {restart}")
    neighbours = graph.neighbours
    every = neighbours.degree
    count = min(most, len(every))
    if not count:
        return None
    # One more than the next entity has, so that there are not more than `most`.
    least = int(every.topk(count + 1).values[-1]) + 1 if count < len(every) else 1
    hubs = (every >= max(least, 2)).nonzero().squeeze(1)
    if not len(hubs):
        return None
    degree, least = every[hubs], max(least, 2)
    row, found = expand(neighbours, hubs)
    outside = torch.zeros_like(degree).index_add_(0, row, (every[found] < least).long())
    is_plain = graph.device.type != "cpu" or compiled.library() is None
    meet = plain_meetings if is_plain or graph.num_entities >= SMALL else compiled_meetings
    meetings = meet(graph, hubs, least, restart, seed)
    ppr = _ppr_between(meetings.double(), degree.double(), restart)
    return None if ppr is None else HubIndex(restart, least, hubs, degree, outside, ppr)


def _ppr_between(meetings: Tensor, degree: Tensor, restart: float) -> Tensor | None:
    """`restart · (I − B)⁻¹` [H, H] from an estimate of `B`; None if that is too bad."""
    # The variance of `degree(i) · B[i, j]` is in proportion to degree(i).
    flow = degree[:, None] * meetings
    flow = (flow * degree + flow.T * degree[:, None]) / (degree + degree[:, None])
    root = degree.sqrt()
    matrix = torch.eye(len(degree), dtype=torch.float64, device=degree.device)
    matrix -= flow / (root * root[:, None])
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        return None
    inverse = torch.cholesky_inverse(factor)
    return (inverse * (restart * root / root[:, None])).clamp_(min=0).float().contiguous()


class _MeetingsCall(ctypes.Structure):
    """The arguments of the kernel, as declared in `compiled/push.c`."""

    _fields_ = [
        ("push", ctypes.c_void_p),
        ("weight", ctypes.c_double),
        ("seed", ctypes.c_int64),
        ("next_hub", ctypes.c_void_p),
    ]


def compiled_meetings(
    graph: AdjacencyGraph, hubs: Tensor, least_degree: int, restart: float, seed: int
) -> Tensor:
    """As `plain_meetings`, with a compiled kernel, several hubs at once; other random walks."""
    arguments, kept = adjacency_arguments(graph)
    failed = torch.zeros(1, dtype=torch.long)
    hubs = hubs.contiguous()
    meetings = torch.zeros(len(hubs), len(hubs))
    push = PushCall(
        **arguments,
        num_hubs=len(hubs),
        hub_degree=least_degree,
        max_edges=2**62,
        restart=restart,
        park_threshold=_THRESHOLD,
        hub=compiled.pointer(hubs),
        failed=compiled.pointer(failed),
    )
    call = _MeetingsCall(
        ctypes.cast(ctypes.byref(push), ctypes.c_void_p), _WALK, seed, compiled.pointer(meetings)
    )
    compiled.run("push_hubs", _HUB_EDGES * len(hubs), ctypes.byref(call))
    del kept
    if int(failed):
        raise MemoryError("not enough memory for the hub index")
    return meetings


def plain_meetings(
    graph: AdjacencyGraph, hubs: Tensor, least_degree: int, restart: float, seed: int
) -> Tensor:
    """`B` float32 [H, H]: where a walk from each hub next meets one.

    The reference implementation, used if the kernel is not available.
    """
    generator = torch.Generator().manual_seed(seed)
    meetings = torch.zeros(len(hubs), len(hubs), dtype=torch.float64, device=graph.device)
    for number in range(len(hubs)):
        found, residue = _push_from(graph.neighbours, hubs[number : number + 1], least_degree,
                                    restart)  # fmt: skip
        at_hub = graph.neighbours.degree_of(found) >= least_degree
        row = meetings[number]
        row.index_add_(0, torch.searchsorted(hubs, found[at_hub]), residue[at_hub])
        last, carried = _walk_from(
            graph.neighbours, found[~at_hub], residue[~at_hub], least_degree, restart, generator
        )
        row.index_add_(0, torch.searchsorted(hubs, last), carried)
    return meetings.float()


def _push_from(
    neighbours: Neighbours, hub: Tensor, least_degree: int, restart: float
) -> tuple[Tensor, Tensor]:
    """Residues after a push from a hub [1] that pushes no hubs. → entities, residues [m]"""
    pushed, amount = hub, torch.ones(1, dtype=torch.float64, device=hub.device)
    touched, residue = hub, torch.zeros_like(amount)
    while len(pushed):
        row, found = expand(neighbours, pushed)
        share = (1 - restart) * amount / neighbours.degree_of(pushed)
        every, which = torch.cat([touched, found]).unique(return_inverse=True)
        wider = residue.new_zeros(len(every))
        wider[which[: len(touched)]] = residue
        residue = wider.index_add_(0, which[len(touched) :], share[row])
        touched, degree = every, neighbours.degree_of(every)
        above = (residue >= _THRESHOLD * degree) & (degree < least_degree) & (residue > 0)
        pushed, amount = touched[above], residue[above]
        residue[above] = 0
    return touched, residue


def _walk_from(
    neighbours: Neighbours,
    entities: Tensor,
    residue: Tensor,
    least_degree: int,
    restart: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Random walks from residues [m] until they meet a hub. → the hubs, what arrives there"""
    ends = residue.cumsum(0)
    total = float(ends[-1]) if len(ends) else 0.0
    first = float(torch.rand(1, generator=generator)) * _WALK
    count = max(math.ceil((total - first) / _WALK), 0)
    places = first + _WALK * torch.arange(count, dtype=torch.float64, device=entities.device)
    at = entities[torch.searchsorted(ends, places, right=True).clamp(max=len(entities) - 1)]
    carried, last, arrived = _WALK, [at[:0]], [residue[:0]]
    while len(at) and carried > _LEAST_CARRIED * _WALK:
        carried *= 1 - restart
        drawn = torch.rand(len(at), generator=generator, dtype=torch.float64).to(at.device)
        place = (drawn * neighbours.degree_of(at)).long()
        at = neighbours.index[neighbours.indptr[at].long() + place].long()
        at_hub = neighbours.degree_of(at) >= least_degree
        last.append(at[at_hub])
        arrived.append(residue.new_full((int(at_hub.sum()),), carried))
        at = at[~at_hub]
    return torch.cat(last), torch.cat(arrived)
