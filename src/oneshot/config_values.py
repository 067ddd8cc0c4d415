"""Values of a configuration: checked against their types, read from and written as TOML."""

import difflib
import json
import tomllib
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from oneshot.errors import InputError


def checked(value: Any, hint: Any, what: str) -> Any:
    """The value, if it is of the type that the hint asks for; whole numbers pass as float."""
    if get_origin(hint) in (Union, types.UnionType):
        for choice in get_args(hint):
            try:
                return checked(value, choice, what)
            except InputError:
                continue
    elif get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        choices = get_args(hint)
        near = difflib.get_close_matches(shown(value).strip("'"), choices, 1)
        extra = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{what} must be one of {', '.join(choices)}, not {shown(value)}{extra}")
    elif get_origin(hint) is dict:
        if isinstance(value, Mapping):
            inner = get_args(hint)[1]
            return {str(key): checked(item, inner, f"{what}.{key}") for key, item in value.items()}
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and _fits(value):
            return float(value)
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool) and _fits(value):
            return value
    elif isinstance(value, hint):
        return value
    raise InputError(f"{what} must be {_type_name(hint)}, not {shown(value)}")


def _fits(value: float) -> bool:
    """Whether a number can be a float; whole ones may be too large."""
    return isinstance(value, float) or value.bit_length() < 1000


def shown(value: Any) -> str:
    """A value in a message, cut if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return "what it is (too long to be shown)"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_type_name(h) for h in get_args(hint) if h is not type(None))
    return "a table by relation name" if get_origin(hint) is dict else names.get(hint, str(hint))


def parse_value(text: str) -> Any:
    """A value as TOML would read it; a bare word is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def as_toml(value: Any) -> str:
    """A value as it stands in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quoted(k)} = {as_toml(v)}" for k, v in value.items()) + " }"
    return repr(value)


def _quoted(text: str) -> str:
    # As in JSON, but that TOML has one more letter escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
