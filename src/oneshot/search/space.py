"""Space: the dimensions of the search, their ranges and their dependencies.

A dimension has the name of the option that it sets, such as `predictor.dim`; those of phase 2 begin
with `test_sampler`. `oneshot.search.space_file` reads changes to the space from TOML.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oneshot.config import Config
from oneshot.errors import InputError, require

Value = bool | int | float | str


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, inclusive; integers if both are integers."""

    low: float
    high: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True)
class Choice:
    """One of several values; if they are numbers, the surrogate uses their order."""

    values: tuple[Value, ...]

    @property
    def is_ordered(self) -> bool:
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)


Dimension = Range | Choice

_YES_NO = Choice((False, True))

PHASE_1: dict[str, Dimension] = {
    "predictor.message": Choice(("redgnn", "nbfnet", "drum")),
    "predictor.compose": Choice(("multiply", "add", "rotate")),
    "predictor.aggregate": Choice(("sum", "mean", "max", "pna")),
    "predictor.aggregate_over": Choice(("subgraph", "graph")),
    "predictor.activation": Choice(("identity", "relu", "tanh")),
    "predictor.num_layers": Range(4, 10),
    "predictor.dim": Choice((16, 32, 64, 128)),
    "predictor.attention_dim": Choice((2, 4, 8, 16, 32, 64)),
    "predictor.relation_rank": Choice((0, 4, 16)),  # 0: full rank
    "predictor.dropout": Range(0.0, 0.5),
    "predictor.initial": Choice(("binary", "relational")),
    "predictor.shortcut": _YES_NO,
    "predictor.reinject": _YES_NO,
    "predictor.concat": _YES_NO,
    "predictor.readout": Choice(("linear", "dot", "mlp")),
    "predictor.gate": _YES_NO,
    "predictor.norm": _YES_NO,
    "predictor.priors": _YES_NO,
    "training.learning_rate": Range(2e-4, 2e-2, log=True),
    "training.weight_decay": Range(1e-7, 1e-3, log=True),
    "training.schedule": Choice(("constant", "plateau", "cosine")),
    "training.split": Choice(("epoch", "leave_out")),
    "training.fact_ratio": Range(0.7, 0.98),
    "training.batch_size": Choice((16, 32, 64, 128)),
}
"""The space of the paper (sizes and layers), further parts, and options of the training."""

# Denser towards 1: the number of entities grows with the inverse of the missing mass.
_MASSES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998)

CONDITIONS: dict[str, tuple[str, tuple[Value, ...]]] = {
    "predictor.compose": ("predictor.message", ("redgnn", "nbfnet")),
    "predictor.attention_dim": ("predictor.message", ("redgnn",)),
    "predictor.relation_rank": ("predictor.message", ("nbfnet",)),
    "predictor.aggregate_over": ("predictor.aggregate", ("mean", "max", "pna")),
    "predictor.gate_mask": ("predictor.gate", (True,)),
    "training.plateau_patience": ("training.schedule", ("plateau",)),
    "training.softmax_over": ("training.loss", ("softmax",)),
    "training.fact_ratio": ("training.split", ("epoch",)),
    "test_sampler.mass": ("test_sampler.limit", ("mass",)),
    "test_sampler.context": ("test_sampler.mixture", ("context",)),
}
"""Dimensions that are active only if another one has one of these values."""

FORBIDDEN: tuple[tuple[tuple[str, Value], tuple[str, Value]], ...] = (
    (("predictor.message", "redgnn"), ("predictor.compose", "rotate")),
)
"""Pairs of incompatible values."""


@dataclass(frozen=True)
class Space:
    """Dimensions by name, and options with a fixed value."""

    dimensions: dict[str, Dimension]
    fixed: dict[str, Value]

    @staticmethod
    def of(dimensions: Mapping[str, Dimension], fixed: Mapping[str, Value]) -> "Space":
        """A space without dimensions that can never be active and values that are never allowed."""
        chosen = {name: d for name, d in dimensions.items() if name not in fixed}
        for child, (parent, values) in CONDITIONS.items():
            dimension = chosen.get(parent)
            possible = dimension.values if isinstance(dimension, Choice) else ()
            if parent in fixed:
                possible = (fixed[parent],)
            if (parent in fixed or parent in chosen) and not set(values) & set(possible):
                chosen.pop(child, None)
        for pair in FORBIDDEN:
            for (name, value), (other, refused) in (pair, pair[::-1]):
                if fixed.get(name) != value:
                    continue
                dimension = chosen.get(other)
                rest: tuple[Value, ...] = ()
                if isinstance(dimension, Choice):
                    rest = tuple(v for v in dimension.values if v != refused)
                    chosen[other] = Choice(rest)
                if not rest and (other in chosen or fixed.get(other) == refused):
                    raise InputError(f"{name} {value!r} is incompatible with {other} {refused!r}")
        return Space(chosen, dict(fixed))

    def whole(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Values of the dimensions and the fixed options, without inactive ones."""
        found = {**self.fixed, **values}
        for child, (parent, allowed) in CONDITIONS.items():
            if child in self.fixed and parent in found and found[parent] not in allowed:
                del found[child]
        return found

    def as_table(self) -> dict[str, Any]:
        """The space as JSON, for the store: it must not change when a search is resumed."""
        table: dict[str, Any] = dict(self.fixed)
        for name, dimension in self.dimensions.items():
            if isinstance(dimension, Choice):
                table[name] = list(dimension.values)
            else:
                table[name] = dataclasses.asdict(dimension)
        return table

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "Space":
        dimensions: dict[str, Dimension] = {}
        fixed: dict[str, Value] = {}
        for name, value in table.items():
            if isinstance(value, list):
                dimensions[name] = Choice(tuple(value))
            elif isinstance(value, Mapping):
                dimensions[name] = Range(**value)
            else:
                fixed[name] = value
        return Space(dimensions, fixed)

    def configspace(self, seed: int) -> Any:
        """The space as a `ConfigurationSpace` of ConfigSpace."""
        cs = require("ConfigSpace", "search", "the search")
        space = cs.ConfigurationSpace(seed=seed)
        parts = {}
        for name, dimension in self.dimensions.items():
            if isinstance(dimension, Range):
                kind = cs.Integer if dimension.is_whole else cs.Float
                parts[name] = kind(name, (dimension.low, dimension.high), log=dimension.log)
            elif dimension.is_ordered and len(dimension.values) > 1:
                parts[name] = cs.OrdinalHyperparameter(name, list(dimension.values))
            else:
                parts[name] = cs.CategoricalHyperparameter(name, list(dimension.values))
        space.add(*parts.values())
        for child, (parent, values) in CONDITIONS.items():
            if child in parts and parent in parts:
                known = [v for v in values if v in self.dimensions[parent].values]  # type: ignore[union-attr]
                space.add(cs.InCondition(parts[child], parts[parent], known))
        for (one, left), (other, right) in FORBIDDEN:
            if self._has(one, left) and self._has(other, right):
                space.add(
                    cs.ForbiddenAndConjunction(
                        cs.ForbiddenEqualsClause(parts[one], left),
                        cs.ForbiddenEqualsClause(parts[other], right),
                    )
                )
        return space

    def _has(self, name: str, value: Value) -> bool:
        dimension = self.dimensions.get(name)
        return isinstance(dimension, Choice) and value in dimension.values


def plain(space: Space, configuration: Mapping[str, Any]) -> dict[str, Value]:
    """The values of a configuration of ConfigSpace as JSON-compatible Python values.

    Numbers are rounded to six digits, so that a trial uses the values of its configuration file.
    """
    values: dict[str, Value] = {}
    for name, value in dict(configuration).items():
        item = value.item() if hasattr(value, "item") else value
        dimension = space.dimensions[name]
        if isinstance(dimension, Range) and not dimension.is_whole:
            item = min(max(float(f"{item:.6g}"), dimension.low), dimension.high)
        values[name] = item
    return values


def configured(base: Config, values: Mapping[str, Value]) -> Config:
    """The configuration `base` with the options that a trial sets."""
    parts: dict[str, dict[str, Value]] = {}
    for name, value in values.items():
        section, _, option = name.partition(".")
        parts.setdefault(section, {})[option] = value
    changes = {
        section: dataclasses.replace(getattr(base, section), **options)
        for section, options in parts.items()
    }
    return dataclasses.replace(base, **changes)


def phase_1_space(dimensions: Mapping[str, Dimension], fixed: Mapping[str, Value]) -> Space:
    """The space of phase 1 with the changes of the user."""
    mine = {n: d for n, d in dimensions.items() if not n.startswith("test_sampler.")}
    kept = {n: v for n, v in fixed.items() if not n.startswith("test_sampler.")}
    rest = {n: d for n, d in PHASE_1.items() if n not in kept}
    return Space.of({**rest, **mine}, kept)


def phase_2_space(
    dimensions: Mapping[str, Dimension], fixed: Mapping[str, Value], reference: float
) -> Space:
    """The space of phase 2, around the entity ratio of the training.

    `limit`: whether the budget of a query is only the ratio, or also limited by the captured mass.
    `mixture`: whether the share of PPR in the budget of the fitted sampler is that of the training,
    which may differ per relation, or `context`.
    """
    most = min(1.0, 2 * reference)
    own: dict[str, Dimension] = {
        "test_sampler.entity_ratio": Range(max(most / 50, 1e-6), most, log=True),
        "test_sampler.edge_ratio": Choice((0.05, 0.1, 0.2, 0.5, 1.0)),
        "test_sampler.restart": Choice((0.05, 0.15, 0.3, 0.5)),
        "test_sampler.mixture": Choice(("trained", "context")),
        "test_sampler.context": Choice((0.1, 0.25, 0.5, 0.75, 1.0)),
        "test_sampler.limit": Choice(("ratio", "mass")),
        "test_sampler.mass": Choice(_MASSES),
    }
    mine = {n: d for n, d in dimensions.items() if n.startswith("test_sampler.")}
    kept = {n: v for n, v in fixed.items() if n.startswith("test_sampler.")}
    if {"test_sampler.context"} & (mine.keys() | kept.keys()):
        kept.setdefault("test_sampler.mixture", "context")
    rest = {n: d for n, d in own.items() if n not in kept}
    return Space.of({**rest, **mine}, kept)


def widened(base: Config) -> dict[str, Dimension]:
    """The integer ranges of phase 1, extended to include a configuration."""
    found: dict[str, Dimension] = {}
    for name, dimension in PHASE_1.items():
        section, _, option = name.partition(".")
        value = getattr(getattr(base, section), option)
        if isinstance(dimension, Range) and dimension.is_whole:
            low, high = min(dimension.low, value), max(dimension.high, value)
            if (low, high) != (dimension.low, dimension.high):
                found[name] = Range(low, high)
    return found
