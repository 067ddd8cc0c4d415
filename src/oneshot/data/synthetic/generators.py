"""Data sets that are generated on demand, for demos, tests and scaling runs."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from oneshot.data.dataset import Dataset
from oneshot.data.synthetic import family as family_world
from oneshot.data.synthetic import rule_world
from oneshot.errors import InputError
from oneshot.graph.fact_keys import first_occurrences
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary


def family(people: int, generations: int = 6, seed: int = 0) -> Dataset:
    """A synthetic world of people whose held-out facts follow from the training facts.

    100 to 20 million people in families over several generations; `rules` lists the rules, for
    example that the mother of a person's mother is a grandmother.
    """
    try:
        world = family_world.generate(people, generations, seed)
    except ValueError as error:
        raise InputError(f"family:{people}: {error}") from error
    chunk = 1_000_000
    blobs, lengths = [], []
    for start in range(0, people, chunk):
        names = [name.encode() for name in world.names(start, min(start + chunk, people))]
        blobs.append(b"".join(names))
        lengths.append(np.fromiter(map(len, names), np.int64, len(names)))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    entities = Vocabulary(np.frombuffer(b"".join(blobs), np.uint8), offsets, "entity")
    relations = Vocabulary.from_names(world.relations, "relation")
    # The generator returns valid, distinct facts, which need no checks and no sorting.
    graph = KnowledgeGraph.from_distinct(world.train, entities, relations)
    return Dataset(
        name=f"family:{people}",
        graph=graph,
        valid=torch.from_numpy(world.valid),
        test=torch.from_numpy(world.test),
        rules=world.rules,
    )


def rules(entities: int, relations: int, seed: int = 0) -> Dataset:
    """A world whose facts follow from random rules with exceptions, for pre-training.

    Each number of entities and relations is a world of its own.
    """
    try:
        world = rule_world.generate(entities, relations, seed)
    except ValueError as error:
        raise InputError(str(error)) from error
    return Dataset(
        name=f"rules:{entities}:{relations}",
        graph=KnowledgeGraph.from_distinct(
            world.train,
            Vocabulary.numbered(entities, "entity"),
            Vocabulary.from_names(world.relations, "relation"),
        ),
        valid=torch.from_numpy(world.valid),
        test=torch.from_numpy(world.test),
        rules=world.rules,
    )


def uniform(entities: int, facts: int, relations: int = 10, seed: int = 0) -> Dataset:
    """A graph of facts drawn uniformly at random, for speed measurements; nothing can be learnt.

    One percent of the facts is held out for valid, and one for test.
    """
    _check_counts(entities, facts, relations)
    generator = np.random.default_rng(seed)
    columns = [generator.integers(size, size=facts) for size in (entities, relations, entities)]
    drawn = np.stack(columns, axis=1)
    return _held_out(f"random:{entities}:{facts}", drawn, entities, relations)


def power_law(entities: int, facts: int, relations: int = 10, seed: int = 0) -> Dataset:
    """A graph with hubs, for speed measurements: the degree distribution has a heavy tail.

    The share of entities with more than `d` facts falls as d^-1.5, so the largest of a million
    entities is in one percent of the facts; nothing else can be learnt. One percent of the facts
    is held out for valid, and one for test.
    """
    _check_counts(entities, facts, relations)
    drawn = power_law_facts(np.random.default_rng(seed), entities, facts, relations)
    return _held_out(f"power-law:{entities}:{facts}", drawn, entities, relations)


def power_law_facts(
    generator: np.random.Generator, entities: int, facts: int, relations: int
) -> NDArray[np.int64]:
    """Facts of a graph with hubs, drawn with repeats: [facts, 3]."""
    # Hubs should not have adjacent ids: a step coprime to V spreads them over all ids.
    step = next(k for k in range(int(0.618 * entities) | 1, 0, -1) if math.gcd(k, entities) == 1)
    # The rank of an entity by degree is below x with probability (x / V)^(1/3).
    ends = (entities * generator.random((2, facts)) ** 3).astype(np.int64) * step % entities
    return np.stack([ends[0], generator.integers(relations, size=facts), ends[1]], axis=1)


def _check_counts(entities: int, facts: int, relations: int) -> None:
    if not (2 <= entities <= 10**8 and relations >= 1 and 100 <= facts <= 10**9):
        raise InputError(
            "a random graph needs 2 to 100,000,000 entities, 100 to 1,000,000,000 facts and at "
            "least 1 relation"
        )


def _held_out(name: str, drawn: NDArray[np.int64], entities: int, relations: int) -> Dataset:
    """The data set of drawn facts [n, 3], with the last two percent held out."""
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
    return name.split(":")[0] in GENERATORS and ":" in name


def generated(name: str, seed: int) -> Dataset:
    """The generated data set of a name, such as `family:PEOPLE` or `random:ENTITIES:FACTS`."""
    generator_name, *parts = name.split(":")
    generator, meaning = GENERATORS[generator_name]
    try:
        numbers = [int(float(part)) for part in parts]
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name!r}: expected whole numbers after the colon") from error
    if len(numbers) != len(meaning):
        raise InputError(
            f"{name!r}: expected a name of the form {':'.join((generator_name, *meaning))}"
        )
    return generator(*numbers, seed=seed)


GENERATORS: dict[str, tuple[Callable[..., Dataset], tuple[str, ...]]] = {
    "family": (family, ("PEOPLE",)),
    "rules": (rules, ("ENTITIES", "RELATIONS")),
    "random": (uniform, ("ENTITIES", "FACTS")),
    "power-law": (power_law, ("ENTITIES", "FACTS")),
}
