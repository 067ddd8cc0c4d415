"""Splitting: facts held out at random, without losing an entity or relation from train."""

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import InputError


def split_facts(
    facts: NDArray[np.int64], seed: int, valid_share: float = 0.1, test_share: float = 0.1
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A random split of `facts` [n, 3] that keeps every entity and relation in train.

    For each entity and relation one random fact stays in train; the held-out facts are drawn from
    the others. → train, valid, test, each in the order of `facts`.
    """
    if not (valid_share >= 0 and test_share >= 0 and valid_share + test_share < 1):
        raise InputError(
            f"the shares held out must be at least 0 and below 1 together, not {valid_share} "
            f"and {test_share}"
        )
    if seed < 0:
        raise InputError(f"the seed must not be negative, not {seed}")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(facts))
    shuffled = facts[order]
    needed = np.zeros(len(facts), bool)
    for columns in ((0, 2), (1,)):
        # Of all that is written to the same place the last stays: written backwards, the first.
        first = np.full(int(facts[:, columns].max(initial=-1)) + 1, -1)
        rows = np.repeat(np.arange(len(facts)), len(columns))
        first[shuffled[:, columns].ravel()[::-1]] = rows[::-1]
        needed[first[first >= 0]] = True
    free = order[~needed]
    num_valid, num_test = int(valid_share * len(facts)), int(test_share * len(facts))
    if num_valid + num_test > len(free):
        num_valid = len(free) * num_valid // (num_valid + num_test)
        num_test = len(free) - num_valid
    part = np.zeros(len(facts), np.int8)
    part[free[:num_valid]] = 1
    part[free[num_valid : num_valid + num_test]] = 2
    return facts[part == 0], facts[part == 1], facts[part == 2]
