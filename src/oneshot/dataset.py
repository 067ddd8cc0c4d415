"""Dataset: a graph of training facts with held-out facts to ask about."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.errors import UnknownNameError
from oneshot.family import Rule
from oneshot.graph import KnowledgeGraph, combined_key
from oneshot.storage import save_graph
from oneshot.vocabulary import Vocabulary

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@dataclass(frozen=True)
class Dataset:
    """A graph with held-out facts.

    `graph`: the training facts, with all entities of all splits.
    `valid`, `test`: int64 [n, 3] facts (head, relation, tail).
    `duplicates`: facts that stood more than once in a split and are kept once.
    `notes`: what a user should know about how it was read.
    `rules`: for generated worlds, the rules that the held-out facts follow.
    """

    name: str
    graph: KnowledgeGraph
    valid: Tensor
    test: Tensor
    duplicates: int = 0
    notes: Sequence[str] = ()
    rules: Sequence[Rule] = field(default=(), repr=False)

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
        """The facts of all splits, int64 [n, 3], for filtered ranking."""
        return torch.cat([self.train, self.valid, self.test])

    def facts(self, split: str) -> Tensor:
        """The facts of a split, int64 [n, 3]."""
        if split not in SPLITS:
            raise UnknownNameError("split", split, SPLITS)
        facts: Tensor = getattr(self, split)
        return facts

    def queries(self, split: str) -> tuple[Tensor, Tensor]:
        """All questions of a split in both directions: (queries [2n, 2], answers [2n])."""
        return both_directions(self.facts(split), self.graph.num_relations)

    @cached_property
    def unseen_entities(self) -> int:
        """Number of entities of valid and test that occur in no training fact."""
        seen = torch.zeros(len(self.entities), dtype=torch.bool)
        seen[self.graph.facts[:, [0, 2]].cpu().long()] = True
        held_out = torch.cat([self.valid, self.test])[:, [0, 2]].unique()
        return int((~seen[held_out]).sum())

    @cached_property
    def overlaps(self) -> dict[str, int]:
        """Number of facts shared by each pair of splits."""
        sizes = len(self.entities), len(self.relations), len(self.entities)
        facts = [self.facts(split).cpu().numpy() for split in SPLITS]
        parts = np.split(
            combined_key(np.concatenate(facts), sizes),
            np.cumsum([len(part) for part in facts])[:-1],
        )
        keys = dict(zip(SPLITS, parts, strict=True))
        return {
            f"{one}-{other}": _count_common(keys[one], keys[other])
            for one, other in itertools.combinations(SPLITS, 2)
        }

    def save(self, path: str | Path) -> None:
        """Write a memory-mapped form that `load` opens in milliseconds."""
        about = {"name": self.name, "duplicates": self.duplicates, "notes": list(self.notes)}
        about["rules"] = [[rule.head, list(rule.body)] for rule in self.rules]
        save_graph(Path(path), self.graph, {"valid": self.valid, "test": self.test}, about)


def both_directions(facts: Tensor, num_relations: int) -> tuple[Tensor, Tensor]:
    """The two questions of each fact: `facts` [n, 3] → (queries [2n, 2], answers [2n]).

    First all `(h, r, ?)`, then all `(t, r⁻¹, ?)`.
    """
    head, relation, tail = facts.unbind(1)
    forward = torch.stack([head, relation], dim=1)
    backward = torch.stack([tail, relation + num_relations], dim=1)
    return torch.cat([forward, backward]), torch.cat([tail, head])


def _count_common(many: NDArray[np.int64], few: NDArray[np.int64]) -> int:
    """Number of keys that two arrays of distinct keys share; only the second is sorted."""
    if not len(few):
        return 0
    ordered = np.sort(few)
    place = np.searchsorted(ordered, many).clip(max=len(ordered) - 1)
    return int((ordered[place] == many).sum())
