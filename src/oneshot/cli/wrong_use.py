"""One-line messages for wrong use of the command line, the same for all versions of typer.

Typer draws such messages in a box as wide as the terminal, and their wording changes between
versions. Its errors are those of click, which newer versions include under a private name.
Therefore the classes are found through `typer.BadParameter`, which all versions have.
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
"""Base class of all errors that typer raises for wrong arguments."""

_UNKNOWN_COMMAND = re.compile(r"No such command (['\"])(?P<name>.*?)\1", re.DOTALL)


def is_call_for_help(error: Exception) -> bool:
    """Whether the error only means that a command without arguments shows its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def describe(error: Any, app: typer.Typer, words: Sequence[str]) -> str:
    """What is wrong and which help to read, in one line.

    `error`: a `WrongUse`; `words`: the arguments of the program. Not all errors contain the
    command that raised them, so it is found from the words.
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
    """The error without the hint; for misspelled names, with similar names of the command."""
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
    """The name of a parameter in the help: the longest name of an option, or DATA."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _as_clause(message: str) -> str:
    """A sentence as a clause after `error:`."""
    return message[:1].lower() + message[1:].rstrip(".")


def _visible(character: str) -> str:
    """A character; control characters, which could move the cursor, are escaped."""
    is_control = unicodedata.category(character) == "Cc"
    return character.encode("unicode_escape").decode() if is_control else character
