"""Tests of the store of facts on files that were made or changed on purpose."""

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest
from tests.support.samples import chain_world

from oneshot.errors import InputError
from oneshot.graph.live import store as module
from oneshot.graph.live.live_graph import LiveGraph, with_changes
from oneshot.graph.live.store import STORE, FactStore, StoreError, has_changes

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, x FROM n"
CRAFTED = {
    "an endless view": (
        f"DROP TABLE about; CREATE VIEW about (key, value) AS {ENDLESS}",
        "its schema is not that of a store: about",
    ),
    "a trigger": (
        "CREATE TRIGGER t AFTER INSERT ON changes BEGIN DELETE FROM changes; END",
        "its schema is not that of a store: t",
    ),
    "a further table": ("CREATE TABLE more (x)", "its schema is not that of a store: more"),
    "a missing index": ("DROP INDEX by_version", "its schema is not that of a store"),
    "another table": (
        "DROP TABLE about; CREATE TABLE about (key, value)",
        "its schema is not that of a store: about",
    ),
    "a blob as name": ("UPDATE changes SET head = x'ff00ff'", "a name is not text"),
    "a number as state": ("UPDATE changes SET present = 7", "neither an addition nor a removal"),
    "a long version": (
        f"UPDATE about SET value = '{'9' * 30}' WHERE key = 'version'",
        "its version is not a number",
    ),
    "a large version": (
        f"UPDATE about SET value = '{2**53 + 1}' WHERE key = 'version'",
        "its version is too large",
    ),
    "a negative version": (
        "UPDATE about SET value = '-1' WHERE key = 'version'",
        "its version is not a number",
    ),
    "no version": ("DELETE FROM about WHERE key = 'version'", "its version is not a number"),
    "a text as time": ("UPDATE times SET time = 'now'", "the time of a change is not a time"),
    "a time too far away": (
        "UPDATE times SET time = 1 << 60",
        "the time of a change is not a time",
    ),
    "another table of times": (
        "DROP TABLE times; CREATE TABLE times (version, time)",
        "its schema is not that of a store: times",
    ),
    "a change after its version": (
        "UPDATE changes SET version = 2",
        "a change is later than its version",
    ),
    "a time after its version": (
        "INSERT INTO times VALUES (2, 1)",
        "a change is later than its version",
    ),
    "a fact of the run as new": (
        "UPDATE changes SET head = 'link 0', tail = 'link 1'",
        "wrong about which facts are in the graph of the run: link 0, next, link 1",
    ),
    "a new fact as one of the run": (
        "UPDATE changes SET in_base = 1, present = 0",
        "wrong about which facts are in the graph of the run: new, next, link 1",
    ),
    "a text that is no text": (
        "UPDATE changes SET head = CAST(x'ff' AS TEXT)",
        "decode",
    ),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    live = live_graph(tmp_path)
    live.add([("new", "next", "link 1")])
    live.close()
    return tmp_path


def live_graph(run: Path, read_only: bool = False) -> LiveGraph:
    graph = chain_world(8).graph
    return LiveGraph(graph, run, graph.fingerprint, read_only=read_only)


def change(run: Path, statements: str) -> None:
    with contextlib.closing(sqlite3.connect(run / STORE)) as connection:
        # Without its checksum, as one who writes such a file would compute another.
        connection.executescript(f"DELETE FROM about WHERE key = 'checksum'; {statements}")


@pytest.mark.parametrize("what", CRAFTED)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_crafted_store_is_refused(run: Path, what: str, read_only: bool) -> None:
    statements, message = CRAFTED[what]
    change(run, statements)
    with pytest.raises(InputError, match=f"not a whole store of facts .*{message}"):
        live_graph(run, read_only)
    graph = chain_world(8).graph
    with pytest.raises(InputError, match=f"not a whole store of facts .*{message}"):
        with_changes(run, graph, graph.fingerprint)


def test_a_store_with_the_last_version_stays_readable(run: Path) -> None:
    change(run, f"UPDATE about SET value = '{2**53}' WHERE key = 'version'")
    live = live_graph(run)
    with pytest.raises(StoreError, match="has the last version that there is"):
        live.add([("b", "next", "link 1")])
    assert live.size() == (9, 23, 2**53)
    live.close()
    again = live_graph(run)
    assert again.size() == (9, 23, 2**53)
    again.close()


def test_the_database_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    for number, script in enumerate(
        ("CREATE TABLE mine (x)", "PRAGMA application_id = 7", "CREATE TABLE about (key, value)")
    ):
        run = tmp_path / str(number)
        run.mkdir()
        with contextlib.closing(sqlite3.connect(run / STORE)) as connection:
            connection.executescript(script)
        before = (run / STORE).read_bytes()
        with pytest.raises(InputError, match="it is a database of another program"):
            live_graph(run)
        with pytest.raises(InputError, match="it is a database of another program"):
            has_changes(run / STORE)
        assert (run / STORE).read_bytes() == before
        assert [file.name for file in run.iterdir()] == [STORE]


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """It may be left by a full disk."""
    (tmp_path / STORE).touch()
    live = live_graph(tmp_path)
    assert live.add([("a", "next", "b")]) == 1
    live.close()
    assert has_changes(tmp_path / STORE)


def test_a_store_is_written_durably(run: Path) -> None:
    live = live_graph(run)
    assert live._store is not None
    writer = live._store._writer
    assert writer is not None
    found = [
        writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    ]
    live.close()
    assert found == ["wal", 2]  # full


def test_a_store_of_the_previous_version_opens(tmp_path: Path) -> None:
    """The statements with which versions before that of times have created it."""
    graph = chain_world(8).graph
    with contextlib.closing(sqlite3.connect(tmp_path / STORE)) as connection:
        connection.executescript(
            "PRAGMA journal_mode = WAL;"
            "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);"
            "CREATE TABLE changes (id INTEGER PRIMARY KEY, head TEXT NOT NULL, relation TEXT NOT "
            "NULL, tail TEXT NOT NULL, present INTEGER NOT NULL, in_base INTEGER NOT NULL, "
            "version INTEGER NOT NULL, UNIQUE (head, relation, tail));"
            "CREATE INDEX by_version ON changes (version);"
            f"INSERT INTO about VALUES ('format', '1'), ('version', '1'), "
            f"('fingerprint', '{graph.fingerprint}');"
            "INSERT INTO changes VALUES (1, 'a', 'next', 'link 1', 1, 0, 1);"
            "PRAGMA application_id = 1869505907"
        )
    store = FactStore(tmp_path / STORE, graph.fingerprint)
    version, changes = store.read()
    old = ("a", "next", "link 1", True, False, 1, None)
    assert (version, [tuple(one) for one in changes]) == (1, [old])
    store.close()
    reading = live_graph(tmp_path, read_only=True)  # open while the store gets its times
    live = live_graph(tmp_path)
    before = time.time()
    assert live.add([("b", "next", "link 1")]) == 1
    live.close()
    again = live_graph(tmp_path)
    found = again.history(10)[0]
    again.close()
    assert found[1:] == [old]
    assert found[0][:6] == ("b", "next", "link 1", True, False, 2)
    assert found[0].time is not None
    assert int(before) <= found[0].time <= time.time()
    assert reading.history(10)[0] == found
    reading.close()


def test_a_changed_time_is_noticed(run: Path) -> None:
    with contextlib.closing(sqlite3.connect(run / STORE)) as connection:
        connection.executescript("UPDATE times SET time = time + 1")
    with pytest.raises(InputError, match="wrong checksum"):
        live_graph(run)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("is_written", [False, True])
def test_nothing_in_a_schema_calls_functions(
    tmp_path: Path, read_only: bool, is_written: bool
) -> None:
    """However a store is opened, also if the check of its schema missed something."""
    path, called = tmp_path / STORE, []
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE VIEW about AS SELECT 'key' AS key, probe() AS value")
        writer.commit()
        if not is_written:
            writer.close()
        with contextlib.closing(module._connect(path, read_only)) as connection:
            connection.create_function("probe", 0, lambda: called.append(1) or 1)
            with pytest.raises(sqlite3.OperationalError, match="unsafe use of probe"):
                connection.execute("SELECT * FROM about").fetchall()
            assert connection.execute("SELECT probe()").fetchone() == (1,)  # of the program itself
    assert called == [1]
