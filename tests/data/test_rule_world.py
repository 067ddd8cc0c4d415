"""Tests of rule worlds: facts follow from the rules, mostly, and worlds differ."""

import numpy as np
import pytest
import torch

from oneshot.data.load import load
from oneshot.data.synthetic.rule_world import INVERSE, generate
from oneshot.errors import InputError


def test_facts_follow_from_the_rules() -> None:
    world = generate(800, 40, 3)
    facts = np.concatenate([world.train, world.valid, world.test])
    pairs = {
        name: {(h, t) for h, r, t in facts.tolist() if r == number}
        for number, name in enumerate(world.relations)
    }
    pairs |= {name + INVERSE: {(t, h) for h, t in held} for name, held in pairs.items()}
    single = [rule for rule in world.rules if len(rule.body) == 1]
    double = [rule for rule in world.rules if len(rule.body) == 2]
    assert len(single) > 5
    assert len(double) > 3
    shares = []
    for rule in single:
        expected = pairs[rule.body[0]]
        shares.append(len(expected & pairs[rule.head]) / len(expected))
    assert np.mean(shares) > 0.5
    # Most facts of a derived relation are explained by one of its rules.
    for head in {rule.head for rule in double}:
        bodies = [rule.body for rule in double if rule.head == head]
        explained = {
            (x, z)
            for one, other in bodies
            for x, y in pairs[one]
            for start, z in pairs[other]
            if start == y
        }
        assert len(explained & pairs[head]) > 0.6 * len(pairs[head])


def test_worlds_are_determined_by_their_numbers() -> None:
    one, same, other = generate(300, 12, 1), generate(300, 12, 1), generate(300, 12, 2)
    assert np.array_equal(one.train, same.train)
    assert one.rules == same.rules
    assert one.rules != other.rules
    assert generate(300, 13, 1).rules[: len(one.rules)] != one.rules


@pytest.mark.parametrize("name", ["rules:50:4", "rules:600:100"])
def test_a_world_is_a_data_set(name: str) -> None:
    data = load(name)
    assert len(torch.cat([data.train, data.valid, data.test]).unique(dim=0)) == sum(
        len(data.facts(split)) for split in ("train", "valid", "test")
    )
    assert len(data.valid) > 0
    assert data.graph.facts[:, 1].max() < data.graph.num_relations
    assert set(data.valid[:, 1].tolist()) <= set(data.train[:, 1].tolist())


@pytest.mark.parametrize("name", ["rules:10:10", "rules:100:2", "rules:100", "rules:x:4"])
def test_wrong_numbers(name: str) -> None:
    with pytest.raises(InputError):
        load(name)
