"""LiveComponents: the connected components of a graph that changes.

An added pair of neighbours joins two components: the smaller one is renamed. A removed pair may
divide one, which only a search can tell. Changes are collected, and applied when the components are
asked for: the search then starts at the ends of all removed pairs at once, continues where it is
cheapest, and ends when all of them have met or only one part is not yet exhausted.
"""

import heapq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.graph.components import Components, Heads
from oneshot.graph.live.growable import GrowableRows

Ids = NDArray[np.int64]


class LiveComponents:
    """The components of a `base` and the changes of its neighbours.

    `rows`: the current neighbours of each entity. Components that are not in the base have higher
    numbers.
    """

    def __init__(self, base: Components, rows: GrowableRows) -> None:
        self._base = base
        self._rows = rows
        self._component = base.component.cpu().numpy().astype(np.int64)
        self._is_changed = np.zeros(len(self._component), bool)  # degree or component
        self._changed: list[Ids] = []
        # Of components that differ from the base.
        self._volume: dict[int, int] = {}
        self._size: dict[int, int] = {}
        self._next = len(base.volume)
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._num_entities = len(self._component)
        self._heads: dict[tuple[int, int], Ids] = {}

    def change(self, added: Tensor, removed: Tensor, num_entities: int) -> None:
        """Note pairs of neighbours [m, 2], each once, that were added or removed.

        `num_entities`: number of entities after the change.
        """
        self._pending.append((added, removed))
        self._num_entities = num_entities

    def component_of(self, entities: Tensor) -> Tensor:
        self._apply()
        found = torch.from_numpy(self._component[entities.cpu().numpy()])
        return found.to(entities.device)

    def heads(self, entities: Tensor, most: int) -> Heads:
        distinct, which = self.component_of(entities).unique(return_inverse=True)
        numbers = distinct.tolist()
        parts = [self._head_of(number, most) for number in numbers]
        count = torch.tensor([len(part) for part in parts], dtype=torch.long)
        last = count.cumsum(0)
        volume = torch.tensor([float(self._volume_of(n)) for n in numbers], dtype=torch.float64)
        size = torch.tensor([self._size_of(n) for n in numbers], dtype=torch.long)
        listed = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        device, which = entities.device, which.cpu()
        columns = ((last - count)[which], last[which], volume[which], size[which])
        return Heads(torch.from_numpy(listed).to(device), *(c.to(device) for c in columns))

    def _apply(self) -> None:
        """Apply the changes so far."""
        if not self._pending and len(self._component) == self._num_entities:
            return
        self._heads.clear()
        self._add_entities()
        none = np.zeros((0, 2), np.int64)
        added, removed = (
            np.concatenate([none, *(pair[side].cpu().numpy() for pair in self._pending)])
            for side in (0, 1)
        )
        self._pending = []
        self._note_changed(np.unique(np.concatenate([added, removed])))
        for left, right in added.tolist():
            number = self._join(left, right)
            self._volume[number] = self._volume_of(number) + 2
        for left, _ in removed.tolist():  # both ends are still in one component
            number = int(self._component[left])
            self._volume[number] = self._volume_of(number) - 2
        ends = np.unique(removed)
        for number in np.unique(self._component[ends]).tolist():
            self._divide(number, ends[self._component[ends] == number].tolist())

    def _add_entities(self) -> None:
        """Give every new entity a component of its own."""
        known = len(self._component)
        more = self._num_entities - known
        if more:
            numbers = np.arange(self._next, self._next + more)
            self._component = np.concatenate([self._component, numbers])
            self._is_changed = np.concatenate([self._is_changed, np.zeros(more, bool)])
            self._note_changed(np.arange(known, self._num_entities))
            for number in numbers.tolist():
                self._volume[number], self._size[number] = 0, 1
            self._next += more

    def _note_changed(self, entities: Ids) -> None:
        new = entities[~self._is_changed[entities]]
        self._is_changed[new] = True
        self._changed.append(new)

    def _join(self, left: int, right: int) -> int:
        """Make two entities members of one component, and return its number."""
        one, other = int(self._component[left]), int(self._component[right])
        if one == other:
            return one
        if self._size_of(one) < self._size_of(other):
            one, other = other, one
        self._move(self._members(other), other, one)
        return one

    def _move(self, members: Ids, source: int, target: int) -> None:
        """Rename the component of some members."""
        # While pairs are being added, the degrees are ahead of the volumes.
        whole = len(members) == self._size_of(source)
        moved = self._volume_of(source) if whole else int(self._degree(members).sum())
        self._component[members] = target
        self._note_changed(members)
        self._volume[target] = self._volume_of(target) + moved
        self._volume[source] = self._volume_of(source) - moved
        self._size[target] = self._size_of(target) + len(members)
        self._size[source] = self._size_of(source) - len(members)

    def _divide(self, number: int, ends: list[int]) -> None:
        """Give the parts of a component that are no longer connected numbers of their own.

        `ends`: at least one entity of every part.
        """
        for part in self._parts(ends):
            self._volume[self._next], self._size[self._next] = 0, 0
            self._move(np.sort(part), number, self._next)
            self._next += 1

    def _parts(self, ends: list[int]) -> list[Ids]:
        """The parts around some entities, except one, the largest as far as it is known.

        Hubs have long rows, so that the neighbours of a step are processed together. Where two
        searches meet, the smaller one joins the larger one.
        """
        label = np.full(len(self._component), -1, np.int32)  # the search that found an entity
        label[ends] = np.arange(len(ends))
        joined = list(range(len(ends)))
        seen = [[np.array([end], np.int64)] for end in ends]
        border = [[np.array([end], np.int64)] for end in ends]
        size, waiting = [1] * len(ends), [1] * len(ends)
        queue = [(2, place) for place in range(len(ends))]  # sorted, so it is a heap
        exhausted: list[Ids] = []
        living = len(ends)

        def current(place: int) -> int:
            while joined[place] != place:
                joined[place] = joined[joined[place]]
                place = joined[place]
            return place

        while living > 1:
            effort, place = heapq.heappop(queue)
            if joined[place] != place or effort != size[place] + waiting[place]:
                continue  # it has grown or joined another one since
            if not border[place]:
                exhausted.append(np.concatenate(seen[place]))
                joined[place] = -1  # the queue may hold it once more
                living -= 1
                continue
            reached = np.concatenate(border[place])
            border[place], waiting[place] = [], 0
            _, (neighbours,) = self._rows.read(
                torch.from_numpy(reached).to(self._rows.start.device)
            )
            found = neighbours.unique().cpu().numpy().astype(np.int64)
            marks = label[found]
            new = found[marks < 0]
            if len(new):
                label[new] = place
                seen[place].append(new)
                border[place].append(new)
                size[place] += len(new)
                waiting[place] += len(new)
            for mark in np.unique(marks[marks >= 0]).tolist():
                other = current(mark)
                if other == place:
                    continue
                small, place = sorted((place, other), key=lambda p: size[p])
                joined[small] = place
                seen[place] += seen[small]
                border[place] += border[small]
                size[place] += size[small]
                waiting[place] += waiting[small]
                seen[small], border[small] = [], []
                living -= 1
            heapq.heappush(queue, (size[place] + waiting[place], place))
        return exhausted

    def _head_of(self, number: int, most: int) -> Ids:
        if (number, most) not in self._heads:
            self._heads[number, most] = self._by_degree(number, most)
        return self._heads[number, most]

    def _by_degree(self, number: int, most: int) -> Ids:
        """The members of highest degree: of the base's list, and among the changed entities."""
        kept: list[Ids] = []
        missing = most
        first, last = self._range(number)
        while missing > 0 and first < last:
            piece = self._base.order[first : min(first + 2 * most, last)].cpu().numpy()
            first += len(piece)
            same = piece[~self._is_changed[piece]][:missing].astype(np.int64)
            kept.append(same)
            missing -= len(same)
        changed = self._all_changed()
        kept.append(changed[self._component[changed] == number])
        members = np.concatenate(kept)
        order = np.lexsort((members, -self._degree(members)))
        return members[order[:most]]

    def _members(self, number: int) -> Ids:
        first, last = self._range(number)
        listed = self._base.order[first:last].cpu().numpy()
        changed = self._all_changed()
        return np.concatenate(
            [
                listed[~self._is_changed[listed]].astype(np.int64),
                changed[self._component[changed] == number],
            ]
        )

    def _all_changed(self) -> Ids:
        if len(self._changed) > 1:
            self._changed = [np.concatenate(self._changed)]
        return self._changed[0] if self._changed else np.zeros(0, np.int64)

    def _range(self, number: int) -> tuple[int, int]:
        """Where the entities of a component are in the order of the base."""
        if number >= len(self._base.volume):
            return 0, 0
        return int(self._base.first[number]), int(self._base.first[number + 1])

    def _degree(self, entities: Ids) -> Ids:
        count = self._rows.count[torch.from_numpy(entities).to(self._rows.count.device)]
        degree: Ids = count.cpu().numpy()
        return degree

    def _volume_of(self, number: int) -> int:
        found = self._volume.get(number)
        return int(self._base.volume[number]) if found is None else found

    def _size_of(self, number: int) -> int:
        found = self._size.get(number)
        first, last = self._range(number)
        return last - first if found is None else found
