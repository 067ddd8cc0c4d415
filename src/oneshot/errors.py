"""Errors that a user can act on.

Every error caused by user input (a file, a name, a number) is an `InputError`. Its one-line
message states what is wrong, where, and what to do. The command line prints the message and exits
with code 2; a traceback means a bug in this package.
"""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class OneshotError(Exception):
    """Base class of all errors that this package raises; the message is one line."""

    def __init__(self, message: str) -> None:
        # Messages passed on from other libraries may have several lines.
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


class InputError(OneshotError):
    """The input cannot be used; the message names the file and line or the value."""


class DivergedError(OneshotError):
    """The loss or gradient became NaN or infinite; the message names the epoch and step."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error or its cause is a lack of memory, on the GPU or the CPU.

    Torch, which is not imported here, raises `OutOfMemoryError` for the GPU and a plain
    `RuntimeError` for the CPU.
    """
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, RuntimeError) and "allocate memory" in str(error):
            return True
        error = error.__cause__
    return False


class UnknownNameError(InputError, KeyError):
    """A name that is not in a vocabulary or a registry, with the nearest known names."""

    def __init__(
        self,
        kind: str,
        name: str,
        nearest: Iterable[str] = (),
        where: str = "",
        known: Iterable[str] = (),
    ) -> None:
        nearest, known = list(nearest), list(known)
        hint = f"; known: {', '.join(known)}" if known else ""
        hint = f"; did you mean {_any_of(nearest)}?" if nearest else hint
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}unknown {kind} {name!r}{hint}")
        self.kind, self.name, self.nearest = kind, name, nearest

    @staticmethod
    def among(kind: str, name: str, known: Iterable[str]) -> "InputError":
        """The error for a name that is not known: with the nearest names, or all of them."""
        names = list(known)
        nearest = difflib.get_close_matches(name, names, n=3)
        if nearest:
            return UnknownNameError(kind, name, nearest)
        return UnknownNameError(kind, name, (), known=names)

    # KeyError prints the repr of its message.
    __str__ = Exception.__str__


class MissingPackageError(OneshotError):
    """A required optional package is not installed."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or raise an error that names the extra to install.

    `extra`: empty for a package that belongs to no extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        wanted = f"'one-shot-subgraph[{extra}]'" if extra else module.partition(".")[0]
        raise MissingPackageError(
            f"{purpose} needs the package {error.name!r}: pip install {wanted}"
        ) from error


def _any_of(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
