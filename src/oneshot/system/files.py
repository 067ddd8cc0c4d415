"""Atomic writes of files and directories, and locks."""

import ctypes
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from oneshot.errors import InputError

Contents = Mapping[str, "Contents | None"]
"""The expected entries of a directory by name: None for a file, contents for a directory."""

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}(?:\.\w+)?")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which replaces it if the block succeeds."""
    path = _resolved(path)  # the target of a link is replaced, not the link
    if path.exists() and not path.is_file():
        raise InputError(f"{path} exists and is not a file; choose another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        sync(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        # The error of a full disk has no file name: add it.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_directory(path: Path, marker: str, contents: Contents) -> Iterator[Path]:
    """A temporary directory that replaces `path` if the block succeeds.

    An existing directory is replaced only if it is empty, or if it contains the file `marker` and
    otherwise only entries of `contents` (and temporary files of a killed process), which shows that
    oneshot wrote all of it. Otherwise an error is raised and nothing is changed.
    """
    path = _resolved(path)
    check_replaceable(path, marker, contents)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    old = temporary.with_name(temporary.name + ".old")
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        temporary.chmod(0o777 & ~_umask())
        if not (path.exists() and exchange(temporary, path)):
            if path.exists():
                path.replace(old)
            try:
                temporary.replace(path)
            except BaseException:
                if old.exists():
                    old.replace(path)
                raise
        sync(path.parent)
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(temporary)):
            raise
        # The error of a full disk has no file name, or that of a temporary file.
        said = (
            error.strerror or f"cannot be written completely; check the free disk space ({error})"
        )
        raise OSError(error.errno or errno.EIO, said, str(path)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; returns false, without a change, if not supported."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, TypeError, AttributeError):  # not Linux, or an old C library
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def check_replaceable(path: Path, marker: str, contents: Contents) -> None:
    """Raise if `path` exists and may not be replaced (see `replacing_directory`).

    Also if it cannot be created, because something above it is a file.
    """
    if not path.exists():
        above = next(parent for parent in path.parents if parent.exists())
        if not above.is_dir():
            raise InputError(f"{path}: {above} is not a directory; choose another path")
        return
    if not path.is_dir():
        raise InputError(f"{path} exists and is not a directory; choose another path")
    left = {entry.name for entry in leftovers(path, contents)}
    names = {entry.name for entry in path.iterdir()} - left
    if names and marker not in names:
        raise InputError(f"{path} exists and was not written by oneshot; choose another path")
    strange = next(_strangers(path, contents), None)
    if strange is not None:
        raise InputError(
            f"{path} exists and contains {str(strange.relative_to(path))!r}, which was not "
            "written by oneshot; choose another path"
        )


def _strangers(path: Path, contents: Contents) -> Iterator[Path]:
    """Entries of a directory, at any depth, that oneshot did not write."""
    left = set(leftovers(path, contents))
    for entry in sorted(path.iterdir()):
        if entry in left:
            continue
        inside = contents.get(entry.name)
        is_ours = entry.name in contents and entry.is_dir() == (inside is not None)
        if not is_ours or entry.is_symlink():  # oneshot writes no links, and not through links
            yield entry
        elif inside is not None:
            yield from _strangers(entry, inside)


def check_readable(path: Path) -> None:
    """Raise if `path` is a pipe, a device or a socket, which might block forever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a pipe or a device, not a file; copy it to a file first")


def check_output(path: Path, inputs: Iterable[Path]) -> None:
    """Raise if writing to `path` would replace an input file."""
    for file in inputs:
        if path.exists() and file.exists() and path.samefile(file):
            raise InputError(f"{path} is an input of this command; write to another path")


def leftovers(path: Path, names: Collection[str]) -> list[Path]:
    """Temporary files that a killed process left in the directory `path`, by target names.

    Temporary names are those of `replacing`: a dot, the name, eight alphanumeric characters, and
    the suffix again.
    """
    matches = ((entry, _TEMPORARY.fullmatch(entry.name)) for entry in path.iterdir())
    return [entry for entry, match in matches if match and match[1] in names]


def remove_leftovers(path: Path, names: Collection[str]) -> None:
    """Remove the files that `leftovers` finds; the directory `path` may be missing."""
    for entry in leftovers(path, names) if path.is_dir() else ():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Lock `path` against other processes: a directory, or a lock file that is created and kept.

    The system releases the lock when the process ends, even after a crash. Without `wait`, a lock
    of another process raises `BlockingIOError`.
    """
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    is_directory = path.is_dir()
    handle = os.open(path, os.O_RDONLY if is_directory else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP):
                raise
            # The file system does not support locks: continue without.
        if is_directory and not (path.exists() and os.path.samestat(os.fstat(handle), path.stat())):
            raise BlockingIOError(errno.EAGAIN, "was replaced by another process", str(path))
        yield
    finally:
        os.close(handle)


@contextmanager
def held(path: Path, message: str) -> Iterator[None]:
    """Lock `path` (see `locked`); raises an error with a message if another process holds it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path, wait=False))
        except BlockingIOError as error:
            raise InputError(message) from error
        yield


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """One JSON value as readable text."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write one JSON value as readable text."""
    write_text(path, json_text(value))


def sync(path: Path) -> None:
    """Flush a file or directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError as error:  # in Python before 3.13
        raise InputError(f"{path} is a link to itself") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
