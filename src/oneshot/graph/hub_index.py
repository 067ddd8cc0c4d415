"""HubIndex: the PPR between the entities with the most neighbours of a graph.

A walk meets hubs all the time, and after a few steps most of its probability is there. Once it is
known how much arrives at each hub, the index gives the PPR of all of them (see `samplers._hubs`).
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.graph.components import ComponentIndex

MOST_CHANGED = 50
"""An index is used until one of so many neighbours of its hubs has changed."""


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
    float32 [H, H]: row `i` has the PPR of each hub from hub `i`. `built_degree` int64 [H]: the
    degrees when the index was built, if facts have changed since; then other entities may have as
    many neighbours, and `least_degree` is that of the hubs. `changes`: how many neighbours of hubs
    have changed since.
    """

    restart: float
    least_degree: int
    hubs: Tensor
    degree: Tensor
    outside: Tensor
    ppr: Tensor
    built_degree: Tensor | None = None
    changes: int = 0
    _arrivals: dict[int, Tensor] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def has_changed(self) -> bool:
        """Whether facts have changed since the index was built."""
        return self.built_degree is not None

    @property
    def num_bytes(self) -> int:
        tensors = self.hubs, self.degree, self.outside, self.ppr
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def on_changed_graph(
        self, degree: Tensor, changes: int, before: ComponentIndex, after: ComponentIndex
    ) -> "HubIndex | None":
        """The index for a graph whose facts have changed; None if that is too much.

        `degree` int64 [H]: neighbours of the hubs now. `changes`: how many of them, at most, were
        added or removed. `before`, `after`: the components. PPR between hubs hardly depends on few
        neighbours, unless components of hubs are joined or divided.
        """
        built = self.degree if self.built_degree is None else self.built_degree
        changes += self.changes
        is_small = MOST_CHANGED * changes <= int(built.sum())
        if not is_small or bool((2 * (degree - built).abs() > built).any()):
            return None
        if not torch.equal(*(_partition(one.component_of(self.hubs)) for one in (before, after))):
            return None
        return dataclasses.replace(
            self,
            degree=degree,
            outside=(self.outside + degree - self.degree).clamp(min=0),
            least_degree=int(degree.min()),
            built_degree=built,
            changes=changes,
        )

    def share_arrivals(self, other: "HubIndex") -> None:
        """Take what `arrivals` has computed for an index with the same components, about."""
        # A product with the whole matrix, which few changes hardly concern.
        self._arrivals.update(other._arrivals)

    def arrivals(self, components: ComponentIndex, entities: Tensor) -> Arrivals:
        """See `Arrivals`, for entities [n]."""
        distinct, row = components.component_of(entities).unique(return_inverse=True)
        first = torch.zeros_like(distinct).scatter_(0, row, torch.arange(len(row)))
        total = components.heads(entities[first], 1).volume
        of_hubs = components.component_of(self.hubs)
        rows, volume = [], total.clone()
        for place, number in enumerate(distinct.tolist()):
            inside = of_hubs == number
            volume[place] -= self.degree[inside].sum()
            rows.append(self._arrivals_in(number, inside, float(volume[place])))
        return Arrivals(torch.stack(rows) if rows else self.ppr[:0], row, volume[row])

    def _arrivals_in(self, number: int, inside: Tensor, volume: float) -> Tensor:
        """The row of `Arrivals` for a component: its hubs bool [H], its volume without them."""
        if number not in self._arrivals:
            outside = torch.where(inside, self.outside, 0).double()
            ppr = torch.zeros(len(self.hubs))
            if volume > 0 and bool(outside.any()):
                # A walk that is anywhere outside of the hubs meets one in its next step with
                # probability `share`, and continues with probability `1 - restart`.
                share = float(outside.sum()) / volume
                follow = 1 - self.restart
                meets = follow * share / (1 - follow * (1 - share))
                ppr = (meets * outside / outside.sum()).float() @ self.ppr
            self._arrivals[number] = ppr
        return self._arrivals[number]


def _partition(component: Tensor) -> Tensor:
    """Which entities [n] are in one component, whatever its number: the first place of each."""
    distinct, which = component.unique(return_inverse=True)
    places = torch.arange(len(component))
    first = torch.full_like(distinct, len(component)).scatter_reduce(0, which, places, "amin")
    return first[which]
