"""Space files: the space narrowed, widened or fixed by a user, in TOML.

[predictor]
dim = [32, 64]                                          # one of these
message = "redgnn"                                      # not searched
num_layers = { low = 3, high = 6 }                      # a range of whole numbers
[training]
learning_rate = { low = 1e-4, high = 1e-2, log = true } # a range of numbers
[sampler]
entity_ratio = { low = 0.05, high = 0.5, log = true }   # the sampler that trials train with
[test_sampler]
mass = { low = 0.8, high = 0.99 }                       # phase 2
"""

import difflib
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oneshot.config import PredictorConfig, SamplerConfig, TrainingConfig, checked, shown
from oneshot.errors import InputError
from oneshot.reasoner.build import build_sampler
from oneshot.search.space import FORBIDDEN, Choice, Dimension, Range, Value
from oneshot.system.files import check_readable

TEST_OPTIONS = ("entity_ratio", "edge_ratio", "restart", "context", "mass")

_SECTIONS: dict[str, Any] = {
    "predictor": PredictorConfig,
    "training": TrainingConfig,
    "sampler": SamplerConfig,
    "test_sampler": SamplerConfig,
}
# Set by the search itself.
_NOT_SEARCHED = {
    f"training.{name}" for name in ("epochs", "query_share", "valid_limit", "expected_queries")
}
_NOT_SEARCHED |= {"training.valid_every", "training.seed", "training.patience"}
# Options that the configuration may reject because of others.
_DEPENDENT = {name for pair in FORBIDDEN for name, _ in pair}


def read_space(path: Path) -> tuple[dict[str, Dimension], dict[str, Value]]:
    """The dimensions and fixed options in a TOML file; names, types and ranges are checked."""
    check_readable(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from error
    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, Value] = {}
    for section, options in table.items():
        if section not in _SECTIONS or not isinstance(options, Mapping):
            sections = ", ".join(_SECTIONS)
            raise InputError(f"{path}: unknown section {section!r}; known sections: {sections}")
        hints = typing.get_type_hints(_SECTIONS[section])
        for option, value in options.items():
            name = f"{section}.{option}"
            known = TEST_OPTIONS if section == "test_sampler" else hints
            if option not in known or name in _NOT_SEARCHED:
                near = difflib.get_close_matches(option, known, 1)
                hint = f"; did you mean {near[0]}?" if near and near[0] != option else ""
                raise InputError(f"{path}: {name} cannot be searched{hint}")
            found = _dimension(value, hints[option], f"{path}: {name}")
            _check(section, option, found, path)
            if isinstance(found, Range | Choice):
                dimensions[name] = found
            else:
                fixed[name] = found
    return dimensions, fixed


def _check(section: str, option: str, found: Dimension | Value, path: Path) -> None:
    """Raise if the configuration rejects a value in any case."""
    if f"{section}.{option}" in _DEPENDENT:
        return
    values: tuple[Any, ...] = (found,)
    if isinstance(found, Choice):
        values = found.values
    elif isinstance(found, Range):
        values = (found.low, found.high)
    for value in values:
        try:
            config = _SECTIONS[section](**{option: value})
            if isinstance(config, SamplerConfig):
                build_sampler(config)
        except InputError as error:
            raise InputError(f"{path}: {section}: {error}") from error


def _dimension(value: Any, hint: Any, what: str) -> Dimension | Value:
    if isinstance(value, list):
        if not value:
            raise InputError(f"{what}: the list is empty")
        items = tuple(dict.fromkeys(checked(item, hint, what) for item in value))
        choice = Choice(items)
        if choice.is_ordered:
            choice = Choice(tuple(sorted(items)))
        return items[0] if len(items) == 1 else choice
    if isinstance(value, Mapping):
        unknown = value.keys() - {"low", "high", "log"}
        if unknown or not {"low", "high"} <= value.keys():
            raise InputError(f"{what}: a range is {{ low = …, high = …, log = true or false }}")
        low, high = (checked(value[end], hint, what) for end in ("low", "high"))
        log = checked(value.get("log", False), bool, f"{what}: log")
        numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in (low, high))
        if not numbers or not low < high or (log and low <= 0):
            raise InputError(
                f"{what}: low must be below high, and above 0 with log, not {shown(value)}"
            )
        return Range(low, high, log)
    found: Value = checked(value, hint, what)
    return found
