"""Generated data sets: worlds made on demand, for demos, tests and scaling runs."""

from collections.abc import Callable

import numpy as np
import torch

from oneshot import family as family_world
from oneshot.dataset import Dataset
from oneshot.errors import InputError
from oneshot.graph import KnowledgeGraph, first_occurrences
from oneshot.vocabulary import Vocabulary


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
    if not (2 <= entities <= 10**8 and relations >= 1 and 100 <= facts <= 10**9):
        raise InputError(
            "a random graph has 2 to 100,000,000 entities, 100 to 1,000,000,000 facts and at "
            "least 1 relation"
        )
    generator = np.random.default_rng(seed)
    columns = [generator.integers(size, size=facts) for size in (entities, relations, entities)]
    drawn = np.stack(columns, axis=1)
    rows = first_occurrences(drawn, entities, relations)
    held_out = len(rows) // 100
    train, valid, test = np.split(drawn[rows], [len(rows) - 2 * held_out, len(rows) - held_out])
    return Dataset(
        name=f"random:{entities}:{facts}",
        graph=KnowledgeGraph.from_distinct(
            train,
            Vocabulary.numbered(entities, "entity"),
            Vocabulary.numbered(relations, "relation"),
        ),
        valid=torch.from_numpy(valid),
        test=torch.from_numpy(test),
        duplicates=facts - len(rows),
    )


def is_generated(name: str) -> bool:
    """Whether this is the name of a generated data set, such as `family:1000`."""
    return name.split(":")[0] in _GENERATORS and ":" in name


def generated(name: str, seed: int) -> Dataset:
    """The generated data set of a name: `family:PEOPLE` or `random:ENTITIES:FACTS`."""
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
}
