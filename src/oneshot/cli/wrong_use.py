"""What the command line says about wrong use: a line of our own, whichever typer is installed.

Typer draws such messages in a box as wide as the terminal, and words them anew from version to
version. Its errors are those of click, which newer versions carry inside under a private name; so
the classes are found by way of `typer.BadParameter`, which all versions have.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import typer
import typer.main

from oneshot.errors import OneshotError, UnknownNameError

WrongUse: type[Exception] = typer.BadParameter.__mro__[2]  # click's ClickException
"""Base of all that typer raises about what was typed."""

_UNKNOWN_COMMAND = re.compile(r"No such command (['\"])(?P<name>.*?)\1", re.DOTALL)


def is_call_for_help(error: Exception) -> bool:
    """Whether the error is none: a command that was given nothing shows its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def describe(error: Any, app: typer.Typer, words: Sequence[str]) -> str:
    """What is wrong and where to look it up, in one line.

    `error`: a `WrongUse`; `words`: what was typed after the name of the program. Not all errors
    know the command they come from, so it is found by its words.
    """
    command: Any = typer.main.get_command(app)
    path = [str(command.name)]
    for word in words:
        if word not in getattr(command, "commands", ()):
            break
        command = command.commands[word]
        path.append(word)
    line = str(OneshotError(f"{_what(error, command)} (see `{' '.join(path)} --help`)"))
    return "".join(map(_visible, line))


def _what(error: Any, command: Any) -> str:
    """The error without the hint; names that are nearly right come with those of the command."""
    message = str(error.format_message())
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        known = [name for param in command.params for name in param.opts]
        return _unknown("option", error.option_name, known)
    unknown = _UNKNOWN_COMMAND.match(message)
    if unknown is not None:
        return _unknown("command", unknown["name"], getattr(command, "commands", ()))
    param = getattr(error, "param", None)
    if param is not None and hasattr(error, "param_type"):
        return f"missing {param.param_type_name} {_name(param)}"
    if param is not None:
        return f"{_name(param)}: {_as_clause(error.message)}"
    return _as_clause(message)


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    return str(UnknownNameError(what, name, difflib.get_close_matches(name, list(known), n=3)))


def _name(param: Any) -> str:
    """How a parameter stands in the help: the longest name of an option, or DATA."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _as_clause(message: str) -> str:
    """A sentence as it stands after `error:`."""
    return message[:1].lower() + message[1:].rstrip(".")


def _visible(letter: str) -> str:
    """A letter; control characters, which could move the cursor, are spelled out."""
    is_control = unicodedata.category(letter) == "Cc"
    return letter.encode("unicode_escape").decode() if is_control else letter
