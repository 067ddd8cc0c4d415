"""Budgets: the best sampler setting per relation, from trials with queries of all relations.

The rank of an answer depends only on the subgraph of its query. One evaluation of a setting
therefore covers every relation, and the result of any mixture of settings is known without another
evaluation. Relations with few queries are subject to noise. Therefore the gain of each relation is
shrunk towards the gain over all relations (with the weight of `_PRIOR` queries), and the trade-off
is chosen by cross-validation.
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
from oneshot.samplers import FittedSampler, Sampler

Floats = NDArray[np.float64]

_PRIOR = 30.0
_PRICES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_REPEATS = 5


@dataclass(frozen=True)
class Setting:
    """The sampler setting of a trial: ratios by relation and direction, float [2R], and restart.

    `context` [2R]: the share of PPR of a fitted sampler; 1 for others.
    """

    number: int
    entity_ratio: Floats
    edge_ratio: Floats
    mass: Floats
    context: Floats
    restart: float


@dataclass(frozen=True)
class Choice:
    """The setting of each relation, and its result on the validation queries.

    `setting` int [2R]: index in the list of settings. `gain`: mean change of the target. `size`:
    mean entities relative to the reference. Both are measured on queries not used for the choice.
    """

    setting: NDArray[np.int64]
    gain: float
    size: float


def setting_of(
    number: int, config: SamplerConfig, graph: KnowledgeGraph, trained: Sampler | None = None
) -> Setting:
    """The budget of a sampler as ratios per relation; counts are converted to ratios.

    `trained`: the sampler of the training, whose shares of PPR are used unless they are set.
    """
    sampler = build_sampler(config)
    budget = sampler.budget
    relations = torch.arange(2 * graph.num_relations, device=graph.device)
    entities = budget.entity_counts(graph, relations).cpu().numpy()
    edges = budget.edge_counts(graph, relations).cpu().numpy()
    masses = budget.masses(graph, relations)
    contexts = None
    if isinstance(sampler, FittedSampler):
        if config.context is None and isinstance(trained, FittedSampler):
            sampler = trained
        contexts = sampler.contexts(graph).cpu().numpy()
    return Setting(
        number,
        _as_share(entities, graph.num_entities),
        _as_share(edges, 2 * graph.num_facts),
        np.ones(len(relations)) if masses is None else masses.cpu().numpy(),
        np.ones(len(relations)) if contexts is None else contexts,
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
    `num_kinds`. "smaller": as few entities as possible while the target on held-out queries
    falls by no more than the tolerance. "better": the highest target on held-out queries.
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
    """Mean gain and size of a choice, each on the half of the queries not used for it."""
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
    """The index of the setting with the highest gain minus size cost, for each relation."""
    counts = kinds[seen]
    worth = gains[places][:, seen] - price * size[places][:, seen]
    overall = worth.mean(1, keepdims=True)
    estimate = (worth @ counts + _PRIOR * overall) / (counts.sum(0) + _PRIOR)
    found: NDArray[np.int64] = places[estimate.argmax(0)]
    return found


def mixed_sampler(
    base: SamplerConfig, settings: list[Setting], choice: Choice, graph: KnowledgeGraph
) -> SamplerConfig:
    """The sampler with the chosen setting of each relation; the first of `settings` is its own."""
    if not choice.setting.any():
        return base
    chosen = [settings[index] for index in choice.setting]
    edges = _table([float(s.edge_ratio[r]) for r, s in enumerate(chosen)], graph)
    mass = _table([float(s.mass[r]) for r, s in enumerate(chosen)], graph)
    context = [float(s.context[r]) for r, s in enumerate(chosen)]
    is_as_trained = context == settings[0].context.tolist()
    return dataclasses.replace(
        base,
        entity_ratio=_table([float(s.entity_ratio[r]) for r, s in enumerate(chosen)], graph),
        edge_ratio=None if edges == 1.0 else edges,
        mass=None if mass == 1.0 else mass,
        max_entities=None,
        max_edges=None,
        restart=chosen[0].restart,
        context=base.context if is_as_trained else _table(context, graph),
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
    """Ratios that reproduce these counts; ratios are rounded down, so half a count is added."""
    share = np.minimum((counts + 0.5) / max(whole, 1), 1.0)
    return np.array([float(f"{s:.6g}") for s in share]) if whole < 10**5 else share
