"""KnownFacts: the known answers of queries, for filtered ranking."""

import torch
from torch import Tensor

from oneshot.graph.fact_keys import place_of


class KnownFacts:
    """The known answers of every query, both directions.

    `facts` [n, 3] integers, duplicates allowed, between `num_entities` entities.
    """

    def __init__(self, facts: Tensor, num_entities: int, num_relations: int) -> None:
        self.num_entities, self.num_relations = num_entities, num_relations
        head, relation, tail = facts.long().unbind(1)
        # One sorted key per query and answer.
        keys = self._first_key(
            torch.cat([head, tail]), torch.cat([relation, relation + num_relations])
        )
        keys = keys.add_(torch.cat([tail, head])).sort().values
        is_new = keys[1:] != keys[:-1]
        self._keys = keys if bool(is_new.all()) else torch.cat([keys[:1], keys[1:][is_new]])

    def to(self, device: torch.device | str) -> "KnownFacts":
        """These facts with their tensors on a device."""
        moved = object.__new__(KnownFacts)
        moved.num_entities, moved.num_relations = self.num_entities, self.num_relations
        moved._keys = self._keys.to(device)
        return moved

    def answers(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Known answers of `queries` [n, 2]: (row of the query [m], entity [m]), sorted."""
        first = self._first_key(*queries.unbind(1))
        start = torch.searchsorted(self._keys, first)
        count = torch.searchsorted(self._keys, first + self.num_entities) - start
        row = torch.arange(len(first), device=first.device).repeat_interleave(count)
        shift = start - (count.cumsum(0) - count)
        place = torch.arange(len(row), device=first.device) + shift[row]
        return row, self._keys[place] - first[row]

    def holds(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Whether entities [n, c] are known answers of queries [n, 2]: bool [n, c]."""
        return place_of(self._keys, self._first_key(*queries.unbind(1))[:, None] + entities) >= 0

    def _first_key(self, entity: Tensor, relation: Tensor) -> Tensor:
        """The smallest possible key of an answer of each query (entity, relation), [n]."""
        return (entity * (2 * self.num_relations)).add_(relation).mul_(self.num_entities)
