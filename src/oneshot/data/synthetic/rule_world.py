"""Generate a rule world: a synthetic knowledge graph with random relations and random rules.

For pre-training: every world has other relations, and its facts follow from other rules. Entities
have types and belong to groups. The facts of a base relation join entities of two types, mostly of
groups that the relation connects. The facts of a derived relation follow from earlier relations by
a rule: composition, inverse, symmetry or hierarchy. Rules have exceptions in both directions: some
facts that follow are missing, and some facts follow from nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oneshot.data.split import split_facts
from oneshot.data.synthetic.family import Rule
from oneshot.graph.fact_keys import first_occurrences

Pairs = NDArray[np.int64]  # heads and tails [n, 2]

MIN_ENTITIES, MAX_ENTITIES = 50, 10_000_000
MIN_RELATIONS, MAX_RELATIONS = 4, 10_000
INVERSE = "⁻¹"  # as `KnowledgeGraph.relation_name` marks inverses

_ENTITIES_PER_GROUP = 40
_RELATIONS_PER_TYPE = 5
_BASE_SHARE = 0.5  # of the relations
_LARGEST = 2  # facts of a relation per entity
_LARGEST_HUB = 10  # tails of an entity in the middle of a composition
_NOISE = 0.05  # share of facts that follow from nothing
_TRIES = 20  # until a rule has enough facts
_LEAST_FACTS = 10


@dataclass(frozen=True, eq=False)
class RuleWorld:
    """The facts of a world, int64 [n, 3] per split, its relations and rules.

    In a rule, an inverse relation is marked with ⁻¹.
    """

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]
    relations: tuple[str, ...]
    rules: tuple[Rule, ...]


def generate(entities: int, relations: int, seed: int = 0) -> RuleWorld:
    """A world of a size; the same numbers give the same world."""
    for value, least, most, name in (
        (entities, MIN_ENTITIES, MAX_ENTITIES, "entities"),
        (relations, MIN_RELATIONS, MAX_RELATIONS, "relations"),
    ):
        if not least <= value <= most:
            raise ValueError(f"a rule world needs {least:,} to {most:,} {name}, not {value:,}")
    world = _World(entities, relations, np.random.default_rng([seed, entities, relations]))
    names = tuple(f"relation {number}" for number in range(relations))
    facts = np.concatenate(
        [
            np.stack([pairs[:, 0], np.full(len(pairs), number), pairs[:, 1]], axis=1)
            for number, pairs in enumerate(world.pairs)
        ]
    )
    rules = tuple(
        Rule(names[head], tuple(_named(names, relation) for relation in body))
        for head, body in world.rules
    )
    return RuleWorld(*split_facts(facts, seed), names, rules)


def _named(names: tuple[str, ...], relation: int) -> str:
    return names[relation] if relation >= 0 else names[~relation] + INVERSE


class _World:
    """The facts of each relation, drawn one relation after the other.

    `pairs`: the facts of each relation. `rules`: (head, body); in a body, `~r` is the inverse of
    the relation `r`.
    """

    def __init__(self, entities: int, relations: int, generator: np.random.Generator) -> None:
        self.generator = generator
        self.entities = entities
        self.most = _LARGEST * entities
        types = max(relations // _RELATIONS_PER_TYPE, 2)
        weights = generator.random(types) + 0.2
        self.type = generator.choice(types, entities, p=weights / weights.sum())
        self.num_groups = max(entities // _ENTITIES_PER_GROUP, 2)
        self.group = generator.integers(self.num_groups, size=entities)
        self.members = [np.flatnonzero(self.type == number) for number in range(types)]
        self.pairs: list[Pairs] = []
        self.rules: list[tuple[int, tuple[int, ...]]] = []
        base = max(int(_BASE_SHARE * relations), 2)
        for _ in range(base):
            self.pairs.append(self._base())
        derive: tuple[Callable[[], tuple[Pairs, list[tuple[int, ...]]]], ...] = (
            self._composition,
            self._composition,
            self._inverse,
            self._symmetry,
            self._hierarchy,
        )
        while len(self.pairs) < relations:
            for _ in range(_TRIES):
                pairs, bodies = derive[generator.integers(len(derive))]()
                if len(pairs) >= _LEAST_FACTS:
                    break
            else:
                pairs, bodies = self._base(), []
            if bodies:
                pairs = self._thinned(pairs, generator.uniform(0.6, 1.0))
            self.rules += [(len(self.pairs), body) for body in bodies]
            self.pairs.append(self._with_noise(pairs))

    def _base(self) -> Pairs:
        """Facts between two types: heads with one or several tails, mostly in connected groups."""
        generator = self.generator
        domain, target = (self._drawn_type() for _ in range(2))
        heads = domain[generator.random(len(domain)) < generator.uniform(0.3, 1.0)]
        several = generator.random() < 0.5
        if several:
            heads = heads.repeat(generator.poisson(generator.uniform(1.0, 4.0), len(heads)))
        connected = generator.integers(self.num_groups, size=self.num_groups)
        ordered = target[np.argsort(self.group[target], kind="stable")]
        first = np.searchsorted(self.group[ordered], np.arange(self.num_groups + 1))
        group = connected[self.group[heads]]
        size = (first[1:] - first[:-1])[group]
        # Squares of uniform numbers are mostly small: some tails are far more frequent.
        popular = generator.random(len(heads)) ** generator.choice([1.0, 2.0, 3.0])
        near = ordered[
            np.minimum(first[:-1][group] + (popular * size).astype(np.int64), len(ordered) - 1)
        ]
        far = target[(generator.random(len(heads)) ** 2 * len(target)).astype(np.int64)]
        is_near = (generator.random(len(heads)) < generator.uniform(0.5, 0.95)) & (size > 0)
        return self._distinct(np.stack([heads, np.where(is_near, near, far)], axis=1))

    def _drawn_type(self) -> NDArray[np.int64]:
        """The entities of a random type that has any."""
        filled = [members for members in self.members if len(members)]
        return filled[self.generator.integers(len(filled))]

    def _composition(self) -> tuple[Pairs, list[tuple[int, ...]]]:
        """`r ← s ∘ t`, where each of the two may be an inverse."""
        one, other = self._drawn(), self._drawn()
        left, right = self._of(one), self._of(other)
        for _ in range(_TRIES):  # until the types agree
            if np.isin(left[:, 1], right[:, 0]).sum() >= _LEAST_FACTS:
                break
            other = self._drawn()
            right = self._of(other)
        right = right[np.argsort(right[:, 0], kind="stable")]
        start, end = (
            np.searchsorted(right[:, 0], left[:, 1], side=side) for side in ("left", "right")
        )
        count = end - start
        # Hubs in the middle would make most pairs hold.
        count = np.minimum(count, 10)
        row = np.arange(len(left)).repeat(count)
        place = np.arange(len(row)) + (start - np.cumsum(count) + count)[row]
        pairs = np.stack([left[row, 0], right[place, 1]], axis=1)
        return self._distinct(pairs[pairs[:, 0] != pairs[:, 1]]), [(one, other)]

    def _inverse(self) -> tuple[Pairs, list[tuple[int, ...]]]:
        """`r ← s⁻¹`."""
        one = ~int(self.generator.integers(len(self.pairs)))
        return self._of(one), [(one,)]

    def _symmetry(self) -> tuple[Pairs, list[tuple[int, ...]]]:
        """`r ← s` and `r ← s⁻¹`: a symmetric relation."""
        one = int(self.generator.integers(len(self.pairs)))
        pairs = np.concatenate([self._of(one), self._of(~one)])
        return self._distinct(pairs), [(one,), (~one,)]

    def _hierarchy(self) -> tuple[Pairs, list[tuple[int, ...]]]:
        """`r ← s` and `r ← t`: a more general relation."""
        bodies = [(self._drawn(),), (self._drawn(),)]
        pairs = np.concatenate([self._of(relation) for (relation,) in bodies])
        return self._distinct(pairs), list(bodies)

    def _drawn(self) -> int:
        number = int(self.generator.integers(len(self.pairs)))
        return number if self.generator.random() < 0.5 else ~number

    def _of(self, relation: int) -> Pairs:
        """The pairs of a relation, or of the inverse of `~relation`."""
        return self.pairs[relation] if relation >= 0 else self.pairs[~relation][:, ::-1]

    def _thinned(self, pairs: Pairs, share: float) -> Pairs:
        """A random share of the pairs, at most as many as a relation may have."""
        number = min(max(int(share * len(pairs)), _LEAST_FACTS), self.most)
        return pairs[np.sort(self.generator.permutation(len(pairs))[:number])]

    def _with_noise(self, pairs: Pairs) -> Pairs:
        """The pairs with a few random ones between the same heads and tails."""
        number = int(_NOISE * len(pairs))
        heads, tails = (self.generator.choice(pairs[:, side], number) for side in (0, 1))
        return self._distinct(np.concatenate([pairs, np.stack([heads, tails], axis=1)]))

    def _distinct(self, pairs: Pairs) -> Pairs:
        facts = np.stack([pairs[:, 0], np.zeros(len(pairs), np.int64), pairs[:, 1]], axis=1)
        return pairs[first_occurrences(facts, self.entities, 1)]
