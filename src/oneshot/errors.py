"""Errors that a user can act on.

Everything that goes wrong because of what the user gave (a file, a name, a number) is
an `InputError`, whose one-line message says what, where and what to do. The command line
prints the message and exits with 2; a traceback means a fault of ours.
"""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class OneshotError(Exception):
    """Base of all errors raised on purpose by this package; the message is one line."""

    def __init__(self, message: str) -> None:
        # Messages of other libraries, which we pass on, may have several lines.
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


class InputError(OneshotError):
    """The input cannot be used; the message names the file and line or the value."""


class DivergedError(OneshotError):
    """A training has come to numbers that are none; the message says in which epoch and step."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is a lack of memory, on a GPU or on the processor.

    Torch, which is not imported here, has an error of its own for a GPU, and a plain
    `RuntimeError` for the processor.
    """
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, RuntimeError) and "allocate memory" in str(error):
            return True
        error = error.__cause__
    return False


class UnknownNameError(InputError, KeyError):
    """A name that is not in a vocabulary or a family of parts, with the nearest known ones."""

    def __init__(
        self,
        kind: str,
        name: str,
        nearest: Iterable[str] = (),
        where: str = "",
        known: Iterable[str] = (),
    ) -> None:
        nearest, known = list(nearest), list(known)
        hint = f"; known are {', '.join(known)}" if known else ""
        hint = f"; did you mean {_any_of(nearest)}?" if nearest else hint
        place = f"{where}: " if where else ""
        super().__init__(f"{place}unknown {kind} {name!r}{hint}")
        self.kind, self.name, self.nearest = kind, name, nearest

    @staticmethod
    def among(kind: str, name: str, known: Iterable[str]) -> "InputError":
        """The error for a name that is none of a few: with the nearest, else with all of them."""
        names = list(known)
        nearest = difflib.get_close_matches(name, names, n=3)
        if nearest:
            return UnknownNameError(kind, name, nearest)
        return UnknownNameError(kind, name, (), known=names)

    # KeyError would print the repr of the message.
    __str__ = Exception.__str__


class MissingPackageError(OneshotError):
    """An optional package is needed and not installed."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or say which extra brings it and what it is for."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{purpose} needs the package {error.name!r}: pip install 'one-shot-subgraph[{extra}]'"
        ) from error


def _any_of(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
