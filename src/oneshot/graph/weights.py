"""Weights of facts: validation, and the weights of repeated facts."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import InputError
from oneshot.graph.fact_keys import combined_key

Place = Callable[[int], str]
"""The location of fact number `row` (from 0), for messages."""


def checked_weights(
    values: NDArray[Any], place: Place = lambda row: f"weights, fact {row + 1}"
) -> NDArray[np.float32]:
    """Weights [n] as float32; raises unless each is a finite number above 0."""
    if values.dtype.kind not in "iuf":
        raise InputError(f"{place(0)}: the weights have the type {values.dtype}, expected numbers")
    with np.errstate(over="ignore", under="ignore"):
        weights = values.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
    if len(wrong):
        raise wrong_weight(values[wrong[0]].item(), place(int(wrong[0])))
    return weights


def wrong_weight(value: object, where: str) -> InputError:
    """The error for a weight that is not valid."""
    given = "missing" if value is None else f"{value!r}"
    return InputError(
        f"{where}: the weight is {given}, expected a number above 0; drop facts without weight"
    )


def largest_weights(
    facts: NDArray[np.integer],
    weights: NDArray[np.float32],
    rows: NDArray[np.int64],
    num_entities: int,
    num_relations: int,
) -> NDArray[np.float32]:
    """The weight of each distinct fact: the largest of those of its repetitions.

    `facts` [n, 3] with `weights` [n]; `rows` [m]: those of the distinct facts. → [m]
    """
    if len(rows) == len(facts):
        return weights
    _, group = np.unique(
        combined_key(facts, (num_entities, num_relations, num_entities)), return_inverse=True
    )
    largest = np.zeros(len(rows), np.float32)
    np.maximum.at(largest, group, weights)
    return largest[group[rows]]
