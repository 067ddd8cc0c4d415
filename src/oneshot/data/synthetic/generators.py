"""Generated data sets: worlds made on demand, for demos, tests and scaling runs."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from oneshot.data.dataset import Dataset
from oneshot.data.synthetic import family as family_world
from oneshot.errors import InputError
from oneshot.graph.fact_keys import first_occurrences
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary


def family(people: int, generations: int = 6, seed: int = 0) -> Dataset:
    """A synthetic world of people, in which held-out facts follow from the visible ones.

    100 to 20 million people in families over some generations; `rules` names the rules, for
    example that the mother of one's mother is a grandmother.
    """
    try:
        world = family_world.generate(people, generations, seed)
    except ValueError as error:
        raise InputError(str(error)) from error
    chunk = 1_000_000
    blobs, lengths = [], []
    for start in range(0, people, chunk):
        names = [name.encode() for name in world.names(start, min(start + chunk, people))]
        blobs.append(b"".join(names))
        lengths.append(np.fromiter(map(len, names), np.int64, len(names)))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    entities = Vocabulary(np.frombuffer(b"".join(blobs), np.uint8), offsets, "entity")
    relations = Vocabulary.from_names(world.relations, "relation")
    # The generator gives valid, distinct facts: no need to check and sort them again.
    graph = KnowledgeGraph.from_distinct(world.train, entities, relations)
    return Dataset(
        name=f"family:{people}",
        graph=graph,
        valid=torch.from_numpy(world.valid),
        test=torch.from_numpy(world.test),
        rules=world.rules,
    )


def uniform(entities: int, facts: int, relations: int = 10, seed: int = 0) -> Dataset:
    """A graph of facts drawn uniformly at random, for measuring speed; nothing can be learnt.

    A hundredth of the facts each is held out for valid and test.
    """
    _check_counts(entities, facts, relations)
    generator = np.random.default_rng(seed)
    columns = [generator.integers(size, size=facts) for size in (entities, relations, entities)]
    drawn = np.stack(columns, axis=1)
    return _held_out(f"random:{entities}:{facts}", drawn, entities, relations)


def power_law(entities: int, facts: int, relations: int = 10, seed: int = 0) -> Dataset:
    """A graph with hubs, for measuring speed: the number of facts of an entity has a heavy tail.

    The share of entities with more than `d` facts falls as d^-1.5, so that the largest of a
    million entities takes part in one fact of a hundred; nothing else can be learnt. A hundredth
    of the facts each is held out for valid and test.
    """
    _check_counts(entities, facts, relations)
    drawn = power_law_facts(np.random.default_rng(seed), entities, facts, relations)
    return _held_out(f"power-law:{entities}:{facts}", drawn, entities, relations)


def power_law_facts(
    generator: np.random.Generator, entities: int, facts: int, relations: int
) -> NDArray[np.int64]:
    """Some facts of a graph with hubs, drawn with repeats. → [facts, 3]"""
    # Hubs should not stand side by side: their ids are spread by a step that meets each id once.
    step = next(k for k in range(int(0.618 * entities) | 1, 0, -1) if math.gcd(k, entities) == 1)
    # The place of an entity in the order of degrees: below x with probability (x / V)^(1/3).
    ends = (entities * generator.random((2, facts)) ** 3).astype(np.int64) * step % entities
    return np.stack([ends[0], generator.integers(relations, size=facts), ends[1]], axis=1)


def _check_counts(entities: int, facts: int, relations: int) -> None:
    if not (2 <= entities <= 10**8 and relations >= 1 and 100 <= facts <= 10**9):
        raise InputError(
            "a random graph has 2 to 100,000,000 entities, 100 to 1,000,000,000 facts and at "
            "least 1 relation"
        )


def _held_out(name: str, drawn: NDArray[np.int64], entities: int, relations: int) -> Dataset:
    """The data set of drawn facts [n, 3], the last two hundredths of them held out."""
    rows = first_occurrences(drawn, entities, relations)
    held_out = len(rows) // 100
    train, valid, test = np.split(drawn[rows], [len(rows) - 2 * held_out, len(rows) - held_out])
    return Dataset(
        name=name,
        graph=KnowledgeGraph.from_distinct(
            train,
            Vocabulary.numbered(entities, "entity"),
            Vocabulary.numbered(relations, "relation"),
        ),
        valid=torch.from_numpy(valid),
        test=torch.from_numpy(test),
        duplicates=len(drawn) - len(rows),
    )


def is_generated(name: str) -> bool:
    """Whether this is the name of a generated data set, such as `family:1000`."""
    return name.split(":")[0] in _GENERATORS and ":" in name


def generated(name: str, seed: int) -> Dataset:
    """The generated data set of a name, such as `family:PEOPLE` or `random:ENTITIES:FACTS`."""
    kind, *parts = name.split(":")
    generator, meaning = _GENERATORS[kind]
    try:
        numbers = [int(float(part)) for part in parts]
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name!r}: after the colon whole numbers are expected") from error
    if len(numbers) != len(meaning):
        raise InputError(f"{name!r}: such a data set is named {':'.join((kind, *meaning))}")
    return generator(*numbers, seed=seed)


_GENERATORS: dict[str, tuple[Callable[..., Dataset], tuple[str, ...]]] = {
    "family": (family, ("PEOPLE",)),
    "random": (uniform, ("ENTITIES", "FACTS")),
    "power-law": (power_law, ("ENTITIES", "FACTS")),
}
