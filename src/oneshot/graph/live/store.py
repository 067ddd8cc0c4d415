"""FactStore: the added and removed facts of a run, on disk.

One SQLite file in the run, in WAL mode with full synchronization: after `write` has returned, its
changes survive a killed process and a power failure. Rows are never deleted, so that every process
that has the file open can catch up with the others by version. A checksum over all rows, updated
with each change, detects modified rows. The time of each version is kept beside it.
"""

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import InputError
from oneshot.graph.vocabulary import GrowingVocabulary, Vocabulary

STORE = "facts.sqlite"
FILES = (STORE, f"{STORE}-wal", f"{STORE}-shm")
"""All files of a store in its run."""

_FORMAT = 1
_APPLICATION = 0x6F6E6573  # "ones", which identifies the file as ours
_PATIENCE = 30.0  # seconds to wait for another process that writes
_SCHEMA = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE changes (id INTEGER PRIMARY KEY, head TEXT NOT NULL, relation TEXT NOT NULL, "
    "tail TEXT NOT NULL, present INTEGER NOT NULL, in_base INTEGER NOT NULL, "
    "version INTEGER NOT NULL, UNIQUE (head, relation, tail))",
    "CREATE INDEX by_version ON changes (version)",
)
_TIMES = "CREATE TABLE times (version INTEGER PRIMARY KEY, time INTEGER NOT NULL)"
_OBJECTS = {
    *zip(("table", "table", "index"), ("about", "changes", "by_version"), _SCHEMA, strict=True),
    ("index", "sqlite_autoindex_about_1", None),
    ("index", "sqlite_autoindex_changes_1", None),
}
_LATER_OBJECTS = {("table", "times", _TIMES)}  # which older stores do not have
_LAST_VERSION = 2**53  # larger integers are not exact in JSON
_LAST_TIME = 253_402_300_799  # the end of the year 9999
_COLUMNS = "head, relation, tail, present, in_base"
_UPSERT = (
    "INSERT INTO changes (head, relation, tail, present, in_base, version) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (head, relation, tail) "
    "DO UPDATE SET present = excluded.present, version = excluded.version"
)


NamedFact = tuple[str, str, str]


class StoreError(InputError):
    """Facts cannot be stored at the moment, because of the disk or another process."""


class Change(NamedTuple):
    """A fact by name, whether it is present, and whether it is in the run's base graph.

    `version`: that of the graph since the change; 0 before it is stored. `time`: when it was
    stored, in seconds since 1970; None if unknown.
    """

    head: str
    relation: str
    tail: str
    present: bool
    in_base: bool
    version: int = 0
    time: int | None = None


class FactStore:
    """The changed facts of one run; `fingerprint` is that of its base graph.

    One thread may read while another writes, each with its own connection: a writer that waits for
    the disk or for another process does not block readers. `read_only`: for reading; the file must
    exist.
    """

    def __init__(self, path: Path, fingerprint: str, read_only: bool = False) -> None:
        self.path = path
        self._writer: sqlite3.Connection | None = None
        if path.is_symlink() and not read_only:
            raise InputError(f"{path} is a symbolic link; facts are not written through links")
        is_new = not path.exists()
        try:
            if not is_new:
                with contextlib.closing(_connect(path, read_only=True)) as connection:
                    _check_schema(connection)
            if not read_only:
                self._writer = _connect(path, read_only=False)
                _prepare(self._writer, fingerprint)
            self._reader = _connect(path, read_only)
            _check_schema(self._reader)
            about = dict(self._rows("SELECT key, value FROM about"))
            self._version()
        except sqlite3.OperationalError as error:
            # A partial store, from a full disk, is removed; one that another process has just
            # created and locked is left alone.
            is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            if is_new and is_full and self._writer is not None and not path.stat().st_size:
                self._writer.close()
                for name in FILES:
                    path.with_name(name).unlink(missing_ok=True)
            # SQLite does not always report why a file could not be opened.
            more = "" if os.access(path.parent, os.W_OK) else "; the directory is read-only"
            raise StoreError(
                f"{path}: changed facts cannot be stored there ({error}{more})"
            ) from error
        except (
            sqlite3.Error,
            ValueError,
            TypeError,
        ) as error:  # an error message of sqlite3 may be undecodable
            raise InputError(f"{path}: not a whole store of facts ({error})") from error
        if about.get("format") != str(_FORMAT):
            raise InputError(
                f"{path}: facts are stored in format {about.get('format')}, this version reads "
                f"{_FORMAT}; update oneshot"
            )
        if about.get("fingerprint") != fingerprint:
            raise InputError(
                f"{path} contains changes of a different graph; move the file away to use the "
                "run without them"
            )
        self._inode = path.stat().st_ino
        self._stamp = _stamp(path) if read_only else None
        self._seen = self._data_version()

    def read(self, since: int = 0) -> tuple[int, list[Change]]:
        """The version, and the changes since another version, in order of first occurrence.

        With `since` 0, all rows are verified by their checksum.
        """
        try:
            # One transaction: the changes are those up to the version, and no more.
            self._reader.execute("BEGIN")
            try:
                version = self._version()
                rows = self._rows(
                    f"SELECT {_COLUMNS}, version FROM changes WHERE version > ? ORDER BY id", since
                )
                times = _times(self._reader, since)
                if since == 0:
                    self._check(version, [*(row[:-1] for row in rows), *times.items()])
            finally:
                self._reader.execute("COMMIT")
            changes = [_change(row, times.get(row[-1])) for row in rows]
            if max((*times, *(one.version for one in changes)), default=0) > version:
                raise ValueError("a change is later than its version")
            return version, changes
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise InputError(f"{self.path}: not a whole store of facts ({error})") from error

    def moved_on(self) -> bool:
        """Whether another process has written since the last call; takes microseconds."""
        if self._stamp is not None and self._stamp != _stamp(self.path):
            # A file that nobody was writing is read without its log; now there is one.
            self._reader.close()
            self._reader = _connect(self.path, read_only=True)
            self._stamp = _stamp(self.path)
            self._seen = self._data_version()
            return True
        before, self._seen = self._seen, self._data_version()
        return before != self._seen

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock out all other writers; changes are persistent at the end of the block."""
        writer = self._writer
        if writer is None:
            raise StoreError(f"{self.path.name} was opened read-only")
        try:
            if not self.path.exists() or self.path.stat().st_ino != self._inode:
                raise StoreError(f"{self.path.name}: the run was replaced; restart the service")
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield
                writer.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    writer.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(f"{self.path.name}: facts cannot be written ({error})") from error

    def write(self, changes: Sequence[Change]) -> int:
        """Store these changes, within `writing`. → the new version"""
        assert self._writer is not None
        # Not by the reader, which may be in the transaction of another thread.
        before = self._version(self._writer)
        if before >= _LAST_VERSION:
            raise StoreError(f"{self.path.name} has the last version that there is")
        checksum = self._checksum(before, self._writer)
        if checksum is None:  # nothing has been written yet
            rows = self._writer.execute(f"SELECT {_COLUMNS} FROM changes").fetchall()
            checksum = _sum_of([*rows, *_times(self._writer).items()])
        find = f"SELECT {_COLUMNS} FROM changes WHERE head = ? AND relation = ? AND tail = ?"
        for head, relation, tail, present, in_base, *_ in changes:
            fact = (head, relation, tail)
            old = self._writer.execute(find, fact).fetchall()
            new = (*fact, int(present), old[0][4] if old else int(in_base))
            checksum ^= _sum_of([*old, new])
            self._writer.execute(_UPSERT, (*fact, present, in_base, before + 1))
        if not _has_times(self._writer):
            self._writer.execute(_TIMES)
        stamp = (before + 1, int(time.time()))
        checksum ^= _sum_of([stamp])
        self._writer.execute("INSERT INTO times VALUES (?, ?)", stamp)
        keep = "INSERT OR REPLACE INTO about VALUES (?, ?)"
        self._writer.execute(keep, ("version", str(before + 1)))
        self._writer.execute(keep, ("checksum", f"{before + 1}:{checksum:032x}"))
        return before + 1

    def close(self) -> None:
        self._reader.close()
        if self._writer is not None:
            self._writer.close()

    def _check(self, version: int, rows: list[tuple[Any, ...]]) -> None:
        wanted = self._checksum(version)
        if wanted is not None and _sum_of(rows) != wanted:
            raise ValueError("was changed or damaged: wrong checksum")

    def _checksum(self, version: int, source: sqlite3.Connection | None = None) -> int | None:
        """The checksum of all rows of a version, if it is known."""
        wanted = "SELECT value FROM about WHERE key = 'checksum'"
        rows = (source or self._reader).execute(wanted).fetchall()
        kept, _, checksum = str(rows[0][0]).partition(":") if rows else ("", "", "")
        return int(checksum, 16) if kept == str(version) else None

    def _version(self, source: sqlite3.Connection | None = None) -> int:
        wanted = "SELECT value FROM about WHERE key = 'version'"
        rows = (source or self._reader).execute(wanted).fetchall()
        text = str(rows[0][0]) if rows else ""
        if not text.isascii() or not text.isdecimal() or len(text) > len(str(_LAST_VERSION)):
            raise ValueError("its version is not a number")
        if int(text) > _LAST_VERSION:
            raise ValueError("its version is too large")
        return int(text)

    def _data_version(self) -> int:
        return int(self._rows("PRAGMA data_version")[0][0])

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._reader.execute(statement, values).fetchall()


def _has_times(connection: sqlite3.Connection) -> bool:
    wanted = "SELECT 1 FROM sqlite_master WHERE name = 'times'"
    return connection.execute(wanted).fetchone() is not None


def _times(connection: sqlite3.Connection, since: int = 0) -> dict[int, int]:
    """The times of the versions after another one; older stores have none."""
    if not _has_times(connection):
        return {}
    wanted = "SELECT version, time FROM times WHERE version > ?"
    found = dict(connection.execute(wanted, (since,)).fetchall())
    if not all(isinstance(one, int) and 0 <= one <= _LAST_TIME for one in found.values()):
        raise ValueError("the time of a change is not a time")
    return found


def _change(row: tuple[Any, ...], stored: int | None) -> Change:
    """A row as a change; SQLite stores values of any type in any column."""
    *names, present, in_base, version = row
    if not all(isinstance(name, str) and name for name in names):
        raise TypeError("a name is not text")
    if present not in (0, 1) or in_base not in (0, 1):
        raise ValueError("a change is neither an addition nor a removal")
    if not isinstance(version, int) or not 0 <= version <= _LAST_VERSION:
        raise ValueError("the version of a change is not a version")
    head, relation, tail = names
    return Change(head, relation, tail, bool(present), bool(in_base), version, stored)


def _check_schema(connection: sqlite3.Connection) -> None:
    """Raise unless a file is a store of facts, or a new one without any content.

    A view or trigger could do anything when a table is read or written, and a database of another
    program must not become a store.
    """
    ours = connection.execute("PRAGMA application_id").fetchone()[0]
    found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if ours not in (0, _APPLICATION) or (found and ours != _APPLICATION):
        raise ValueError("it is a database of another program")
    unknown = set(found) - _OBJECTS - _LATER_OBJECTS
    if unknown or (found and not set(found) >= _OBJECTS):
        name = min((str(name) for _, name, _ in unknown), default="a missing table")
        raise ValueError(f"its schema is not that of a store: {name}")


def _prepare(connection: sqlite3.Connection, fingerprint: str) -> None:
    """Initialize the file: identification, durable writes and tables."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone() is None:
        for statement in (*_SCHEMA, _TIMES):
            connection.execute(statement)
        about = {"format": _FORMAT, "fingerprint": fingerprint, "version": 0}
        connection.executemany(
            "INSERT INTO about VALUES (?, ?)", [(k, str(v)) for k, v in about.items()]
        )
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute("COMMIT")


def _sum_of(rows: Iterable[tuple[Any, ...]]) -> int:
    """A checksum of rows that does not depend on their order; checksums combine with ^."""
    total = 0
    for row in rows:
        content = "\x1f".join(map(str, row)).encode("utf-8", "surrogatepass")
        total ^= int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "big")
    return total


def has_changes(path: Path) -> bool:
    """Whether a store exists and contains changes that were not undone."""
    if not path.is_file():
        return False
    try:
        with contextlib.closing(_connect(path, read_only=True)) as connection:
            _check_schema(connection)
            wanted = "SELECT 1 FROM changes WHERE present != in_base LIMIT 1"
            return connection.execute(wanted).fetchone() is not None
    except (sqlite3.Error, ValueError) as error:
        raise InputError(f"{path}: not a whole store of facts ({error})") from error


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        return _opened(str(path))
    address = path.resolve().as_uri()
    if not path.with_name(f"{path.name}-wal").exists():
        # Nobody has it open for writing. Without this, SQLite would create files next to it.
        return _opened(f"{address}?immutable=1")
    connection = _opened(f"{address}?mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError:
        # A WAL file needs files next to it even for reading. If none can be created (a run on a
        # read-only disk), there are no writers either.
        connection.close()
        connection = _opened(f"{address}?immutable=1")
    return connection


def _stamp(path: Path) -> tuple[bool, int, int]:
    """Changes when a store is opened for writing or has been written."""
    about = path.stat()
    return path.with_name(f"{path.name}-wal").exists(), about.st_mtime_ns, about.st_size


def _opened(address: str) -> sqlite3.Connection:
    is_uri = address.startswith("file:")
    connection = sqlite3.connect(
        address, timeout=_PATIENCE, isolation_level=None, check_same_thread=False, uri=is_uri
    )
    # The file may come from anywhere: nothing in its schema may call functions.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def checked_fact(fact: Sequence[str]) -> NamedFact:
    """A fact as three names that can be stored."""
    if len(fact) != 3 or not all(isinstance(name, str) for name in fact):
        raise InputError("a fact is three names: head, relation, tail")
    head, relation, tail = fact
    for name in (head, tail):
        if not name:
            raise InputError("an entity's name must not be empty")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"entity {name!r} cannot be written in UTF-8") from error
    return head, relation, tail


def numbered_facts(
    changes: Sequence[Change], entities: GrowingVocabulary, relations: Vocabulary
) -> NDArray[np.int64]:
    """Changes as ids [n, 3]; new entities are added."""
    rows = [
        (
            entities.add(change.head),
            relations.index(change.relation),
            entities.add(change.tail),
        )
        for change in changes
    ]
    return np.array(rows, np.int64).reshape(-1, 3)
