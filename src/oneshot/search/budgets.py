"""Budgets: the best sampler setting of each relation, from trials that asked all relations.

The rank of an answer depends only on its own question's subgraph. So one evaluation of a setting
tells about every relation at once, and what a mixture of settings would reach is known without
asking again. What can mislead is chance: a relation with few questions has a best setting by luck.
Therefore each relation's gain is drawn towards the gain of all (as if `_PRIOR` more questions had
had that), and how far to go is decided on questions that the choice did not see.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oneshot.config import SamplerConfig
from oneshot.graph.graph import INVERSE_MARK, KnowledgeGraph
from oneshot.reasoner.build import build_sampler

Floats = NDArray[np.float64]

_PRIOR = 30.0
_PRICES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_REPEATS = 5


@dataclass(frozen=True)
class Setting:
    """What a trial asked with: shares by relation and direction, float [2R] each, and restart."""

    number: int
    entity_ratio: Floats
    edge_ratio: Floats
    mass: Floats
    restart: float


@dataclass(frozen=True)
class Choice:
    """Which setting each relation gets, and what that is worth on the validation queries.

    `setting` int [2R]: place in the list of settings. `gain`: mean change of the target and
    `size`: mean entities as a share of the reference's, both on queries that the choice has not
    seen.
    """

    setting: NDArray[np.int64]
    gain: float
    size: float


def setting_of(number: int, config: SamplerConfig, graph: KnowledgeGraph) -> Setting:
    """A sampler's budget as shares by relation; counts are turned into shares."""
    budget = build_sampler(config).budget
    relations = torch.arange(2 * graph.num_relations, device=graph.device)
    entities = budget.entity_counts(graph, relations).cpu().numpy()
    edges = budget.edge_counts(graph, relations).cpu().numpy()
    masses = budget.masses(graph, relations)
    return Setting(
        number,
        _as_share(entities, graph.num_entities),
        _as_share(edges, 2 * graph.num_facts),
        np.ones(len(relations)) if masses is None else masses.cpu().numpy(),
        config.restart,
    )


def choose(
    settings: list[Setting],
    values: Floats,
    sizes: Floats,
    relation: NDArray[np.int64],
    num_kinds: int,
    goal: str,
    tolerance: float,
    seed: int,
) -> Choice:
    """The setting of each relation; the first of `settings` is the reference.

    `values`, `sizes` [settings, queries]: target and entities; `relation` [queries] below
    `num_kinds`. "smaller": as few entities as possible while the target, on queries not seen,
    falls by no more than the tolerance. "better": the target as high as possible there.
    """
    gains = values - values[0]
    size = sizes / max(sizes[0].mean(), 1e-9)
    kinds = np.zeros((len(relation), num_kinds))
    kinds[np.arange(len(relation)), relation] = 1
    everything = np.ones(len(relation), bool)
    best = Choice(np.zeros(num_kinds, np.int64), 0.0, 1.0)
    for restart in sorted({setting.restart for setting in settings}):
        places = np.array([i for i, s in enumerate(settings) if s.restart == restart])
        for price in _PRICES:
            gain, share = _on_unseen(gains, size, kinds, places, price, seed)
            if goal == "better":
                is_better = gain > best.gain
            else:
                is_better = gain >= -tolerance and share < best.size
            if is_better:
                chosen = _choose(gains, size, kinds, places, price, everything)
                best = Choice(chosen, gain, share)
    return best


def _on_unseen(
    gains: Floats, size: Floats, kinds: Floats, places: NDArray[np.int64], price: float, seed: int
) -> tuple[float, float]:
    """Gain and size of a choice on the half of the queries that it was not made on, in the mean."""
    generator = np.random.default_rng(seed)
    count = len(kinds)
    number = kinds.argmax(1)
    gain, share = 0.0, 0.0
    for _ in range(_REPEATS):
        half = np.zeros(count, bool)
        half[generator.permutation(count)[: count // 2]] = True
        for seen in (half, ~half):
            chosen = _choose(gains, size, kinds, places, price, seen)[number]
            unseen = (~seen).nonzero()[0]
            gain += float(gains[chosen[unseen], unseen].sum())
            share += float(size[chosen[unseen], unseen].sum())
    return gain / (_REPEATS * count), share / (_REPEATS * count)


def _choose(
    gains: Floats,
    size: Floats,
    kinds: Floats,
    places: NDArray[np.int64],
    price: float,
    seen: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """For each relation the place with the highest gain less the price of its size."""
    mine = kinds[seen]
    worth = gains[places][:, seen] - price * size[places][:, seen]
    overall = worth.mean(1, keepdims=True)
    estimate = (worth @ mine + _PRIOR * overall) / (mine.sum(0) + _PRIOR)
    found: NDArray[np.int64] = places[estimate.argmax(0)]
    return found


def mixed_sampler(
    base: SamplerConfig, settings: list[Setting], choice: Choice, graph: KnowledgeGraph
) -> SamplerConfig:
    """The sampler in which each relation has the setting that was chosen for it."""
    if not choice.setting.any():
        return base
    mine = [settings[place] for place in choice.setting]
    edges = _table([float(s.edge_ratio[r]) for r, s in enumerate(mine)], graph)
    mass = _table([float(s.mass[r]) for r, s in enumerate(mine)], graph)
    return dataclasses.replace(
        base,
        entity_ratio=_table([float(s.entity_ratio[r]) for r, s in enumerate(mine)], graph),
        edge_ratio=None if edges == 1.0 else edges,
        mass=None if mass == 1.0 else mass,
        max_entities=None,
        max_edges=None,
        restart=mine[0].restart,
    )


def _table(values: list[float], graph: KnowledgeGraph) -> float | dict[str, float]:
    """Values [2R] as a table by relation name, or as one number if all are equal."""
    default = max(sorted(set(values)), key=values.count)
    table = {"default": default}
    for relation, name in enumerate(graph.relations):
        forward, inverse = values[relation], values[relation + graph.num_relations]
        if forward != default or inverse != default:
            table[name] = forward
        if inverse != forward:
            table[f"{name}{INVERSE_MARK}"] = inverse
    return table if len(table) > 1 else default


def _as_share(counts: NDArray[Any], whole: int) -> Floats:
    """Shares that give these counts again: half a piece more, as shares are rounded down."""
    share = np.minimum((counts + 0.5) / max(whole, 1), 1.0)
    return np.array([float(f"{s:.6g}") for s in share]) if whole < 10**5 else share
