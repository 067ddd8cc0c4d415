"""HubIndex: the PPR between the entities with the most neighbours of a graph.

A walk meets hubs all the time, and after a few steps most of its probability is there. Once it is
known how much arrives at each hub, the index gives the PPR of all of them (see `samplers._hubs`).
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.graph.components import Components


class Arrivals(NamedTuple):
    """Where walks that are not at a hub meet hubs, for some entities [n].

    `ppr` float32 [m, H]: PPR of each hub from a walk that is anywhere else in a component, and
    `row` int64 [n]: the row of each entity. `volume` float64 [n]: sum of the degrees in the
    component of the entity, without those of hubs.
    """

    ppr: Tensor
    row: Tensor
    volume: Tensor


@dataclass(frozen=True)
class HubIndex:
    """PPR between hubs, for one `restart`.

    Hubs are all entities with at least `least_degree` neighbours: `hubs` int64 [H], sorted, with
    their `degree` int64 [H]. `outside` int64 [H]: how many of the neighbours are not hubs. `ppr`
    float32 [H, H]: row `i` has the PPR of each hub from hub `i`.
    """

    restart: float
    least_degree: int
    hubs: Tensor
    degree: Tensor
    outside: Tensor
    ppr: Tensor
    _arrivals: dict[int, tuple[Tensor, float]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def num_bytes(self) -> int:
        tensors = self.hubs, self.degree, self.outside, self.ppr
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def arrivals(self, components: Components, entities: Tensor) -> Arrivals:
        """See `Arrivals`, for entities [n]."""
        distinct, row = components.component_of(entities).unique(return_inverse=True)
        parts = [self._arrivals_in(components, number) for number in distinct.tolist()]
        rows = [ppr for ppr, _ in parts]
        volume = torch.tensor([volume for _, volume in parts], dtype=torch.float64)
        return Arrivals(torch.stack(rows) if rows else self.ppr[:0], row, volume[row])

    def _arrivals_in(self, components: Components, number: int) -> tuple[Tensor, float]:
        if number not in self._arrivals:
            inside = components.component_of(self.hubs) == number
            outside = torch.where(inside, self.outside, 0).double()
            volume = float(components.volume[number]) - float(self.degree[inside].sum())
            ppr = torch.zeros(len(self.hubs))
            if volume > 0 and bool(outside.any()):
                # A walk that is anywhere outside of the hubs meets one in its next step with
                # probability `share`, and continues with probability `1 - restart`.
                share = float(outside.sum()) / volume
                follow = 1 - self.restart
                meets = follow * share / (1 - follow * (1 - share))
                ppr = (meets * outside / outside.sum()).float() @ self.ppr
            self._arrivals[number] = ppr, volume
        return self._arrivals[number]
