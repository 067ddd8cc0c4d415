"""Tests of the family world: brute force over Python sets checks what numpy generated."""

import dataclasses
from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from oneshot.data.synthetic.family import (
    BASE_RELATIONS,
    DERIVED_RELATIONS,
    MAX_CHILDREN,
    MEN,
    SURNAMES,
    WOMEN,
    FamilyWorld,
    Rule,
    generate,
)

Pairs = set[tuple[int, int]]

# Small, odd, tiny generations, most generations, default, few and large generations.
SHAPES = [(100, 6, 0), (101, 3, 1), (100, 12, 2), (437, 50, 3), (1999, 6, 4), (3000, 4, 5)]


@cache
def world_of(people: int, generations: int = 6, seed: int = 0) -> FamilyWorld:
    return generate(people, generations, seed)


def pairs_by_relation(world: FamilyWorld, *parts: NDArray[np.int64]) -> dict[str, Pairs]:
    """The (head, tail) pairs of each relation in the given parts."""
    pairs: dict[str, Pairs] = {relation: set() for relation in world.relations}
    for part in parts:
        for head, relation, tail in part.tolist():
            pairs[world.relations[relation]].add((head, tail))
    return pairs


def all_pairs(world: FamilyWorld) -> dict[str, Pairs]:
    return pairs_by_relation(world, world.train, world.valid, world.test)


def compose(first: Pairs, second: Pairs) -> Pairs:
    """The pairs (x, z), x != z, with some y such that (x, y) is in first and (y, z) in second."""
    onwards = defaultdict(set)
    for y, z in second:
        onwards[y].add(z)
    return {(x, z) for x, y in first for z in onwards[y] if x != z}


def check_facts(world: FamilyWorld) -> None:
    """Check all that must hold of the facts of any world, of whatever size."""
    parts = (world.train, world.valid, world.test)
    for part in parts:
        assert part.dtype == np.int64
        assert part.shape == (len(part), 3)
    facts = np.concatenate(parts)
    assert len(np.unique(facts, axis=0)) == len(facts), "duplicates or an overlap of the parts"
    assert (facts[:, 0] != facts[:, 2]).all(), "self-loops"
    people_in_train = np.unique(world.train[:, [0, 2]])
    assert np.array_equal(people_in_train, np.arange(world.num_people))

    train, everything = pairs_by_relation(world, world.train), all_pairs(world)
    for relation in BASE_RELATIONS:
        assert train[relation] == everything[relation], "a base fact is held out"
    closure: dict[str, Pairs] = {relation: set() for relation in DERIVED_RELATIONS}
    for rule in world.rules:
        first, second = rule.body
        closure[rule.head] |= compose(train[first], train[second])
    for relation in DERIVED_RELATIONS:
        assert everything[relation] == closure[relation]


def check_families(world: FamilyWorld) -> None:
    """Check that the base facts describe monogamous families without marriages of siblings."""
    pairs = all_pairs(world)
    father, mother = dict(pairs["father"]), dict(pairs["mother"])
    assert len(father) == len(pairs["father"])
    assert len(mother) == len(pairs["mother"])
    assert father.keys() == mother.keys()
    husband, wife = dict(pairs["husband"]), dict(pairs["wife"])
    assert len(husband) == len(pairs["husband"])
    assert wife == {man: woman for woman, man in husband.items()}
    for child in father:
        assert husband[mother[child]] == father[child], "parents are a couple"

    families = defaultdict(list)
    for child, man in father.items():
        families[man].append(child)
    siblings = set()
    for children in families.values():
        assert len(children) <= MAX_CHILDREN
        assert max(children) - min(children) == len(children) - 1, "children are contiguous"
        siblings |= {(x, y) for x in children for y in children if x != y}
    assert pairs["brother"] | pairs["sister"] == siblings
    assert not siblings & pairs["wife"]


@pytest.mark.parametrize("shape", SHAPES)
def test_facts_are_complete_and_follow_from_the_rules(shape: tuple[int, int, int]) -> None:
    world = world_of(*shape)
    assert world.num_people == shape[0]
    check_facts(world)
    check_families(world)


@settings(max_examples=40, deadline=None)
@given(st.integers(100, 400), st.integers(3, 12), st.integers(0, 2**64))
def test_any_small_world_is_sound(people: int, generations: int, seed: int) -> None:
    world = generate(people, generations, seed)
    check_facts(world)
    check_families(world)


def test_every_held_out_fact_has_a_derivation_in_train() -> None:
    world = world_of(1999, 6, 4)
    train = pairs_by_relation(world, world.train)
    derivable: dict[str, Pairs] = defaultdict(set)
    for rule in world.rules:
        derivable[rule.head] |= compose(train[rule.body[0]], train[rule.body[1]])
    held_out = pairs_by_relation(world, world.valid, world.test)
    for relation, pairs in held_out.items():
        assert pairs <= derivable[relation]
        assert bool(pairs) == (relation in DERIVED_RELATIONS)


def test_held_out_parts_are_a_tenth_of_the_derived_facts_each_and_mixed() -> None:
    world = world_of(20_000)
    derived = sum(len(all_pairs(world)[relation]) for relation in DERIVED_RELATIONS)
    for part in (world.valid, world.test):
        assert len(part) / derived == pytest.approx(0.1, abs=0.01)
        prefix = Counter(part[:1000, 1].tolist())
        whole = Counter(part[:, 1].tolist())
        for relation, count in whole.items():
            assert prefix[relation] / 1000 == pytest.approx(count / len(part), abs=0.06)


def test_rules_read_well() -> None:
    rules = world_of(100, 6, 0).rules
    assert str(Rule("grandmother", ("mother", "mother"))) == "grandmother ← mother ∘ mother"
    assert {str(rule) for rule in rules} == {
        "grandmother ← mother ∘ mother",
        "grandmother ← father ∘ mother",
        "grandfather ← mother ∘ father",
        "grandfather ← father ∘ father",
        "uncle ← mother ∘ brother",
        "uncle ← father ∘ brother",
        "aunt ← mother ∘ sister",
        "aunt ← father ∘ sister",
    }
    assert len(rules) == 8


def test_same_arguments_give_the_same_world_and_another_seed_another() -> None:
    first, again, other = generate(1000), generate(1000), generate(1000, seed=1)
    for part in ("train", "valid", "test"):
        assert np.array_equal(getattr(first, part), getattr(again, part))
        assert not np.array_equal(getattr(first, part), getattr(other, part))
    assert first.names(0, 1000) == again.names(0, 1000) != other.names(0, 1000)


def test_world_and_rules_are_frozen() -> None:
    world = world_of(100, 6, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.num_people = 5  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.rules[0].head = "cousin"  # type: ignore[misc]


def test_name_lists_are_distinct() -> None:
    assert len(WOMEN) == len(MEN) == len(set(WOMEN)) == len(set(MEN)) == 60
    assert not set(WOMEN) & set(MEN)
    assert len(set(SURNAMES)) == len(SURNAMES) == 100


def test_names_fit_the_sex_and_the_father() -> None:
    world = world_of(3000, 4, 5)
    names = world.names(0, 3000)
    assert len(set(names)) == 3000
    given_names, surnames, numbers = zip(*(name.split() for name in names), strict=True)
    assert [int(number) for number in numbers] == list(range(3000))
    pairs = all_pairs(world)
    for relation in ("mother", "wife", "sister", "grandmother", "aunt"):
        assert {given_names[tail] for _, tail in pairs[relation]} <= set(WOMEN)
    for relation in ("father", "husband", "brother", "grandfather", "uncle"):
        assert {given_names[tail] for _, tail in pairs[relation]} <= set(MEN)
    assert {given_names[head] for head, _ in pairs["husband"]} <= set(WOMEN)
    assert all(surnames[child] == surnames[man] for child, man in pairs["father"])
    assert set(surnames) <= set(SURNAMES)
    assert len(set(surnames)) > 90


def test_names_come_in_chunks() -> None:
    world = world_of(437, 50, 3)
    whole = world.names(0, 437)
    assert whole == [
        name for at in range(0, 437, 50) for name in world.names(at, min(at + 50, 437))
    ]
    assert world.names(7, 7) == []
    for start, stop in ((-1, 3), (3, 2), (0, 438)):
        with pytest.raises(ValueError, match="start <= stop"):
            world.names(start, stop)


def test_numbers_per_person_are_level() -> None:
    world = world_of(20_000)
    pairs = all_pairs(world)
    assert 8.0 < sum(map(len, pairs.values())) / 20_000 < 10.0
    born = len(pairs["father"])
    assert born / 20_000 == pytest.approx(5 / 6, abs=0.01)
    assert 1.3 < (len(pairs["brother"]) + len(pairs["sister"])) / born < 2.0
    assert 0.9 < 2 * len(pairs["wife"]) / 20_000 < 1.0
    children = Counter(Counter(father for _, father in pairs["father"]).values())
    assert set(children) == set(range(1, MAX_CHILDREN + 1))
    assert len(dict(pairs["wife"]).keys() - {father for _, father in pairs["father"]}) > 0

    ends = np.bincount(world.train[:, [0, 2]].ravel(), minlength=20_000)
    assert ends.max() < 100, "nobody is a hub"


def test_marriages_stay_in_the_generation_and_mostly_near() -> None:
    people, generations = 60_000, 6
    world = world_of(people, generations)
    wives = world.train[world.train[:, 1] == world.relations.index("wife")]
    husband, wife = wives[:, 0], wives[:, 2]
    size = people // generations
    assert (husband // size == wife // size).all()
    distance = abs(husband - wife)
    assert np.median(distance) < 40
    assert 0.005 < (distance > 500).mean() < 0.05


@pytest.mark.parametrize("people", [1000, 5000, 100_000])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nearly_everybody_is_connected(people: int, seed: int) -> None:
    train = generate(people, seed=seed).train
    ends = train[:, [0, 2]].T.astype(np.int32)  # older versions of scipy take no other numbers
    links = coo_array((np.ones(len(train)), tuple(ends)), shape=(people, people))
    _, component = connected_components(links, directed=False)
    assert np.bincount(component).max() > 0.95 * people


@pytest.mark.parametrize(
    ("people", "generations", "seed", "message"),
    [
        (99, 6, 0, "people must be"),
        (0, 6, 0, "people must be"),
        (20_000_001, 6, 0, "people must be"),
        (1000, 2, 0, "generations must be"),
        (1000, 51, 0, "generations must be"),
        (100, 13, 0, "too few"),
        (100, 6, -1, "seed must not be negative"),
    ],
)
def test_bad_arguments_are_refused(people: int, generations: int, seed: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(people, generations, seed)
