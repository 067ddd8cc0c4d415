"""Writing files so that a crash leaves either the old or the new content, never half of it."""

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
"""What we write into a directory, by name: None for a file, contents for a directory."""

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}(?:\.\w+)?")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well."""
    path = _resolved(path)  # what a link points to is replaced, not the link
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: exists and is not a file; choose another place")
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
        # A full disk tells no name: say which file could not be written.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_directory(path: Path, marker: str, contents: Contents) -> Iterator[Path]:
    """A temporary directory that takes the place of `path` when the block ends well.

    An existing directory is replaced only if it is empty, or holds the file `marker` and beside
    it only what stands in `contents` (and what a killed process left of writing that): the sign
    that all of it was written by us. Anything else there is an error and stays.
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
        # A full disk tells no name, or that of a file which is gone by now.
        said = error.strerror or f"cannot be written whole; is the disk full? ({error})"
        raise OSError(error.errno or errno.EIO, said, str(path)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; false, and nothing done, where that cannot be."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, TypeError, AttributeError):  # another system, or an old C library
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def check_replaceable(path: Path, marker: str, contents: Contents) -> None:
    """Raise unless `path` is free or may be replaced (see `replacing_directory`)."""
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path}: exists and is not a directory; choose another place")
    left = {entry.name for entry in leftovers(path, contents)}
    names = {entry.name for entry in path.iterdir()} - left
    if names and marker not in names:
        raise InputError(f"{path}: exists and was not written by oneshot; choose another place")
    strange = next(_strangers(path, contents), None)
    if strange is not None:
        raise InputError(
            f"{path}: exists and holds {str(strange.relative_to(path))!r}, which was not written "
            "by oneshot; choose another place"
        )


def _strangers(path: Path, contents: Contents) -> Iterator[Path]:
    """What lies in a directory, at any depth, that we did not write."""
    left = set(leftovers(path, contents))
    for entry in sorted(path.iterdir()):
        if entry in left:
            continue
        inside = contents.get(entry.name)
        is_ours = entry.name in contents and entry.is_dir() == (inside is not None)
        if not is_ours or entry.is_symlink():  # we write no links, and not to where one leads
            yield entry
        elif inside is not None:
            yield from _strangers(entry, inside)


def check_readable(path: Path) -> None:
    """Raise if reading `path` might never end: a pipe, a device, a socket."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: is a pipe or a device, not a file; copy it to a file first")


def check_output(path: Path, inputs: Iterable[Path]) -> None:
    """Raise if writing to `path` would replace a file that is read."""
    for file in inputs:
        if path.exists() and file.exists() and path.samefile(file):
            raise InputError(f"{path}: is an input of this command; write to another place")


def leftovers(path: Path, names: Collection[str]) -> list[Path]:
    """What a killed process left in the directory `path` of writing files of these names.

    Temporary names are those that `replacing` makes: a point, the name, eight letters or digits,
    and the ending once more.
    """
    matches = ((entry, _TEMPORARY.fullmatch(entry.name)) for entry in path.iterdir())
    return [entry for entry, match in matches if match and match[1] in names]


def remove_leftovers(path: Path, names: Collection[str]) -> None:
    """Remove what `leftovers` finds; there may be no directory `path`."""
    for entry in leftovers(path, names) if path.is_dir() else ():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold `path` against other processes: a directory, or a lock file that is made and stays.

    The system lets go of the lock when the process ends, however it ends. Without `wait` a lock
    that another process holds is a `BlockingIOError`.
    """
    try:
        import fcntl
    except ImportError:  # a system without such locks, where nobody watches
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
            # A file system that cannot lock this: as if there were no locks.
        if is_directory and not (path.exists() and os.path.samestat(os.fstat(handle), path.stat())):
            raise BlockingIOError(errno.EAGAIN, "was replaced by another process", str(path))
        yield
    finally:
        os.close(handle)


@contextmanager
def held(path: Path, message: str) -> Iterator[None]:
    """Hold `path` (see `locked`); if another process does so, that is an error with a message."""
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
    """One JSON value, readably, as the text of a file."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write one JSON value, readably."""
    write_text(path, json_text(value))


def sync(path: Path) -> None:
    """Have the system write a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError as error:  # how Python before 3.13 says it
        raise InputError(f"{path}: is a link that leads to itself") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
