"""The data set: a graph of training facts, and held-out facts as queries."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.data.synthetic.family import Rule
from oneshot.errors import UnknownNameError
from oneshot.graph.fact_keys import combined_key
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.graph.storage import save_graph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.system.notebook import html_table, titled

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

_PIECE = 1 << 20  # facts per chunk
_SHOWN = 3  # facts in a notebook


@dataclass(frozen=True)
class Dataset:
    """A graph with held-out facts.

    `graph`: the training facts, with all entities of all splits.
    `valid`, `test`: int64 [n, 3] facts (head, relation, tail).
    `duplicates`: number of repeated facts in a split, each of which is kept once.
    `notes`: remarks for the user about how the data set was read.
    `rules`: for generated worlds, the rules that the held-out facts follow.
    `true_facts`: int64 [n, 3], the facts for filtered ranking if they are not those of all splits:
        for a graph from which true facts were removed, or to which false ones were added.
    """

    name: str
    graph: KnowledgeGraph
    valid: Tensor
    test: Tensor
    duplicates: int = 0
    notes: Sequence[str] = ()
    rules: Sequence[Rule] = field(default=(), repr=False)
    true_facts: Tensor | None = field(default=None, repr=False)

    @property
    def entities(self) -> Vocabulary:
        return self.graph.entities

    @property
    def relations(self) -> Vocabulary:
        return self.graph.relations

    @cached_property
    def train(self) -> Tensor:
        """The facts of the graph, int64 [n, 3]."""
        return self.graph.facts.long()

    @cached_property
    def known(self) -> Tensor:
        """The facts of all splits, int64 [n, 3], or `true_facts`, for filtered ranking."""
        if self.true_facts is not None:
            return self.true_facts
        return torch.cat([self.train, self.valid, self.test])

    @cached_property
    def train_facts(self) -> KnownFacts:
        """The facts of the graph as the known answers of queries."""
        return KnownFacts.of_graph(self.graph)

    @cached_property
    def known_facts(self) -> KnownFacts:
        """The facts of `known` as the known answers of queries."""
        if self.true_facts is not None:
            return KnownFacts(self.true_facts, self.graph.num_entities, self.graph.num_relations)
        return KnownFacts.of_graph(self.graph, torch.cat([self.valid, self.test]))

    def facts(self, split: str) -> Tensor:
        """The facts of a split, int64 [n, 3]."""
        if split not in SPLITS:
            raise UnknownNameError.among("split", split, SPLITS)
        facts: Tensor = getattr(self, split)
        return facts

    def queries(self, split: str) -> tuple[Tensor, Tensor]:
        """All queries of a split in both directions: (queries [2n, 2], answers [2n])."""
        return both_directions(self.facts(split), self.graph.num_relations)

    @cached_property
    def unseen_entities(self) -> int:
        """Number of entities of valid and test that occur in no training fact."""
        seen, held_out = self._occurring(self.graph.facts), self._occurring(self.valid, self.test)
        return int((held_out & ~seen).sum())

    def _occurring(self, *splits: Tensor) -> NDArray[np.bool_]:
        """Which entities occur in facts [n, 3]; bool [V]."""
        found = np.zeros(len(self.entities), bool)
        for facts in itertools.chain(*map(_pieces, splits)):
            found[facts[:, 0]] = True
            found[facts[:, 2]] = True
        return found

    @cached_property
    def overlaps(self) -> dict[str, int]:
        """Number of facts shared by each pair of splits."""
        splits = {"train": self.graph.facts, "valid": self.valid, "test": self.test}
        return {
            f"{one}-{other}": self._count_common(splits[one], splits[other])
            for one, other in itertools.combinations(SPLITS, 2)
        }

    def _count_common(self, many: Tensor, few: Tensor) -> int:
        """Number of facts that two sets of distinct facts share; only the second is sorted."""
        entities, relations = len(self.entities), len(self.relations)
        wanted = few.cpu().numpy()
        pairs = np.unique(_pair(wanted, entities))
        # Compare pairs of entities first, each encoded as one number; few of them are in both sets.
        near = [part[_common(_pair(part, entities), pairs)] for part in _pieces(many)]
        candidates = np.concatenate([wanted[:0], *near])
        same_pair = _is_in(_pair(wanted, entities), np.unique(_pair(candidates, entities)))
        both = np.concatenate([wanted[same_pair], candidates])
        _, counts = np.unique(
            combined_key(both, (entities, relations, entities)), return_counts=True
        )
        return int((counts == 2).sum())

    def save(self, path: str | Path) -> None:
        """Write a directory of arrays that `load` memory-maps in milliseconds."""
        about = {"name": self.name, "duplicates": self.duplicates, "notes": list(self.notes)}
        about["rules"] = [[rule.head, list(rule.body)] for rule in self.rules]
        save_graph(Path(path), self.graph, {"valid": self.valid, "test": self.test}, about)

    # `objects` imports this module. `load` reads the objects back, as the same facts in the same
    # splits.

    def to_pandas(self) -> Any:
        """A pandas DataFrame of all facts by name: head, relation, tail, split.

        With weights of facts, also `weight`. A data set does not keep the weights of held-out
        facts; theirs is 1.
        """
        from oneshot.data.objects import to_pandas

        return to_pandas(self)

    def to_networkx(self) -> Any:
        """A networkx MultiDiGraph: entities as nodes, facts as edges with their relation as key.

        The edges have the attributes `relation` and `split`, and `weight` as in `to_pandas`.
        """
        from oneshot.data.objects import to_networkx

        return to_networkx(self)

    def to_pyg(self) -> Any:
        """A PyG `Data` with the ids of this data set.

        `edge_index` int64 [2, n], `edge_type` int64 [n], `train_mask`, `val_mask` and `test_mask`
        bool [n], and the names, `entities` and `relations`. With weights of facts, also
        `edge_weight` float32 [n], as in `to_pandas`.
        """
        from oneshot.data.objects import to_pyg

        return to_pyg(self)

    def _repr_html_(self) -> str:
        """The size of the data set and its first facts, for notebooks."""
        about = {"entities": len(self.entities), "relations": len(self.relations)}
        about |= {"train": self.graph.num_facts, "valid": len(self.valid), "test": len(self.test)}
        some = [
            (self.entities[head], self.relations[relation], self.entities[tail])
            for head, relation, tail in self.graph.facts[:_SHOWN].tolist()
        ]
        return titled(
            self.name,
            html_table(tuple(about), [tuple(about.values())]),
            html_table(("head", "relation", "tail"), some),
            notes=self.notes,
        )


def both_directions(facts: Tensor, num_relations: int) -> tuple[Tensor, Tensor]:
    """The two queries of each fact: `facts` [n, 3] → (queries [2n, 2], answers [2n]).

    First all `(h, r, ?)`, then all `(t, r⁻¹, ?)`.
    """
    head, relation, tail = facts.unbind(1)
    forward = torch.stack([head, relation], dim=1)
    backward = torch.stack([tail, relation + num_relations], dim=1)
    return torch.cat([forward, backward]), torch.cat([tail, head])


def _pieces(facts: Tensor) -> Iterator[NDArray[np.integer]]:
    """Facts [n, 3] in chunks: a memory-mapped graph may be larger than memory."""
    return (piece.cpu().numpy() for piece in facts.split(_PIECE))


def _pair(facts: NDArray[np.integer], num_entities: int) -> NDArray[np.int64]:
    """Head and tail of each fact [n, 3], encoded as one number: [n]."""
    return combined_key(facts[:, [0, 2]], (num_entities, num_entities))


def _common(values: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    """`_is_in` for few matches among many values; sorting them first is several times as fast."""
    some = np.sort(values)
    return _is_in(values, some[_is_in(some, ordered)])


def _is_in(values: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which values [n] are among ascending ones; bool [n]."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    place = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    return np.asarray(ordered[place] == values)
