"""Store: the trials of a search in an SQLite file, each change in one transaction.

A trial is inserted with its configuration before it starts and completed when it ends. After a kill
at any moment, the store has each finished trial exactly once and knows the unfinished ones. SMAC
gets the trials from the store for each proposal.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import InputError
from oneshot.system.files import held

FORMAT = 1
STORE, LOCK = "trials.sqlite", "lock"

Status = Literal["running", "done", "stopped", "failed", "infeasible"]
"""`infeasible`: too slow for the time of a trial; its target is unknown."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    phase TEXT NOT NULL,
    number INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (
        status IN ('running', 'done', 'stopped', 'failed', 'infeasible')
    ),
    choice TEXT NOT NULL,
    origin TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    value REAL,
    curve TEXT NOT NULL DEFAULT '[]',
    seconds REAL,
    at REAL,
    ended REAL,
    error TEXT,
    about TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (phase, number)
);
CREATE TABLE IF NOT EXISTS answers (
    phase TEXT NOT NULL,
    number INTEGER NOT NULL,
    ranks BLOB NOT NULL,
    entities BLOB NOT NULL,
    edges BLOB NOT NULL,
    PRIMARY KEY (phase, number)
);
"""

_STATUSES = "'failed', 'infeasible'"
_EARLIER_SCHEMA = _SCHEMA.replace(_STATUSES, "'failed'")  # which still opens


@dataclass(frozen=True)
class Trial:
    """One trial.

    `values`: its values by dimension. `origin`: what proposed it. `value`: the target, None if it
    failed. `curve`: the best target after each validation. `at`: its end in seconds of the phase,
    without pauses. `about`: further information.
    """

    phase: str
    number: int
    status: Status
    values: dict[str, Any]
    origin: str
    attempts: int = 0
    value: float | None = None
    curve: list[float] = field(default_factory=list)
    seconds: float = 0.0
    at: float = 0.0
    error: str | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        return self.status != "running"

    @property
    def is_hopeless(self) -> bool:
        """Whether the trial was stopped because others were better at that point."""
        return self.status == "stopped" and bool(self.about.get("hopeless"))


@dataclass(frozen=True)
class Answers:
    """Results of a trial of phase 2 per query, all [n]: rank, entities, edges."""

    ranks: NDArray[np.float32]
    entities: NDArray[np.int32]
    edges: NDArray[np.int32]


class Store:
    """The file of trials in the directory of a search."""

    def __init__(self, directory: Path, create: bool = False) -> None:
        self.path = directory / STORE
        if not create and not self.path.is_file():
            raise InputError(f"{directory} contains no search (no {STORE})")
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        try:
            self._database = sqlite3.connect(self.path, isolation_level=None, timeout=30)
            # The file may come from anywhere: nothing in its schema may call functions.
            self._database.execute("PRAGMA trusted_schema = OFF")
            self._check_schema()
            self._database.execute("PRAGMA synchronous = FULL")
            if create:
                self._database.executescript(_SCHEMA)
            version = self.about("format")
        except sqlite3.OperationalError as error:
            if create:
                raise InputError(f"{self.path}: cannot write trials ({error})") from None
            raise InputError(f"{directory}: incomplete search ({error})") from None
        except (sqlite3.DatabaseError, ValueError) as error:  # the message may be damaged, too
            self._database.close()
            raise InputError(f"{self.path}: not written by oneshot, or damaged ({error})") from None
        if version is None and create:
            self.set_about("format", FORMAT)
        elif version != FORMAT:
            raise InputError(
                f"{self.path}: unknown format {version}; this version of oneshot reads {FORMAT}"
            )

    def close(self) -> None:
        self._database.close()

    def about(self, key: str) -> Any:
        """A value that belongs to the search as a whole, or None."""
        with self._reading():
            row = self._database.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
            return None if row is None else json.loads(row[0])

    def set_about(self, key: str, value: Any) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO about VALUES (?, ?)", (key, json.dumps(value))
        )

    def trials(self, phase: str) -> list[Trial]:
        """The trials of a phase, ordered by number, including unfinished ones."""
        with self._reading():
            rows = self._database.execute(
                "SELECT phase, number, status, choice, origin, attempts, value, curve, seconds, "
                "at, error, about FROM trials WHERE phase = ? ORDER BY number",
                (phase,),
            )
            return [_trial(row) for row in rows]

    def phases(self) -> list[str]:
        with self._reading():
            rows = self._database.execute("SELECT DISTINCT phase FROM trials").fetchall()
            if not all(isinstance(row[0], str) for row in rows):
                raise TypeError("the name of a phase is not text")
            return [row[0] for row in rows]

    def start(self, phase: str, number: int, values: dict[str, Any], origin: str) -> None:
        """Insert a trial before it runs, or count another attempt of an unfinished one."""
        self._database.execute(
            "INSERT INTO trials (phase, number, status, choice, origin, attempts) "
            "VALUES (?, ?, 'running', ?, ?, 1) "
            "ON CONFLICT (phase, number) DO UPDATE SET attempts = attempts + 1",
            (phase, number, json.dumps(values), origin),
        )

    def finish(self, phase: str, number: int, outcome: dict[str, Any], at: float) -> None:
        """Complete a trial with its outcome; raises if it is already finished."""
        answers = outcome.get("answers")
        with self._transaction():
            changed = self._database.execute(
                "UPDATE trials SET status = ?, value = ?, curve = ?, seconds = ?, at = ?, "
                "ended = ?, error = ?, about = ? "
                "WHERE phase = ? AND number = ? AND status = 'running'",
                (
                    outcome["status"],
                    outcome.get("value"),
                    json.dumps(outcome.get("curve", [])),
                    outcome.get("seconds", 0.0),
                    at,
                    time.time(),
                    outcome.get("error"),
                    json.dumps(outcome.get("about", {})),
                    phase,
                    number,
                ),
            )
            if changed.rowcount != 1:
                raise RuntimeError(f"trial {number} of {phase} was not running")
            if answers is not None:
                self._database.execute(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
                    (phase, number, *answers),
                )

    def answers(self, phase: str, number: int) -> Answers:
        """The results of a trial of phase 2 per query."""
        with self._reading():
            row = self._database.execute(
                "SELECT ranks, entities, edges FROM answers WHERE phase = ? AND number = ?",
                (phase, number),
            ).fetchone()
            if row is None:
                raise ValueError(f"trial {number} of {phase} has no answers")
            return Answers(
                np.frombuffer(row[0], np.float32),
                np.frombuffer(row[1], np.int32),
                np.frombuffer(row[2], np.int32),
            )

    def clock(self, phase: str) -> float:
        """Seconds of a phase so far, without pauses between sessions."""
        with self._reading():
            row = self._database.execute(
                "SELECT MAX(at) FROM trials WHERE phase = ?", (phase,)
            ).fetchone()
            return float(row[0] or 0.0)

    def _check_schema(self) -> None:
        """Raise if the file has anything but the tables of a search.

        A view or trigger could do anything when a table is read or written. Tables may be missing:
        the process that created the file may have been killed.
        """
        found = _objects(self._database)
        known = set()
        for schema in (_SCHEMA, _EARLIER_SCHEMA):
            with closing(sqlite3.connect(":memory:")) as plain:
                plain.executescript(schema)
                known |= _objects(plain)
        if unknown := sorted(found - known):
            raise ValueError(f"its schema is not that of a search: {unknown[0][1]}")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise an error with the path if the content of the file is invalid."""
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{self.path}: not written by oneshot, or damaged ({error})"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _objects(database: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """All tables, views, indexes and triggers; the white space of their definitions is ignored."""
    rows = database.execute("SELECT type, name, sql FROM sqlite_master")
    return {(kind, name, "".join((sql or "").split())) for kind, name, sql in rows}


def _trial(row: tuple[Any, ...]) -> Trial:
    """A row as a trial; SQLite stores values of any type in any column."""
    phase, number, status, choice, origin, attempts, value, curve, seconds, at, error, about = row
    values, curve, about = (json.loads(text) for text in (choice, curve, about))
    is_valid = (
        all(isinstance(text, str) for text in (phase, origin))
        and all(isinstance(count, int) for count in (number, attempts))
        and status in get_args(Status)
        and all(isinstance(table, dict) for table in (values, about))
        and isinstance(curve, list)
        and all(isinstance(one, int | float) for one in curve)
        and all(one is None or isinstance(one, float) for one in (value, seconds, at))
        and (error is None or isinstance(error, str))
    )
    if not is_valid:
        raise TypeError(f"trial {number!r} has values of wrong types")
    return Trial(
        phase=phase,
        number=number,
        status=status,
        values=values,
        origin=origin,
        attempts=attempts,
        value=value,
        curve=curve,
        seconds=seconds or 0.0,
        at=at or 0.0,
        error=error,
        about=about,
    )


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Lock the directory of a search; the lock of a killed process is released."""
    directory.mkdir(parents=True, exist_ok=True)
    with held(directory / LOCK, f"{directory}: another process is running this search"):
        yield
