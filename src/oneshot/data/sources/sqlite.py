"""SQLite: a table or a query of a database file, read by Python's own module."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from oneshot.data.formats.parquet import fact_order
from oneshot.data.sources.address import Address
from oneshot.data.sources.base import BATCH_ROWS, Batch, Source, batch_of
from oneshot.data.sources.tables import chosen_table, database_file, select_facts, table_or_query

# Everything else (ATTACH, PRAGMA, changes) is refused.
_ALLOWED = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)


def read_sqlite(address: Address, notes: list[str]) -> Iterator[Batch]:
    """The facts of a table, a view or a SELECT query, in batches; the file is not changed."""
    file = database_file(address)
    table, query = table_or_query(address)
    with _readable(address), closing(_open(file)) as connection:
        if query is None:
            tables = connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') "
                "AND name NOT LIKE 'sqlite_%' ORDER BY name"
            )
            name = _quoted(chosen_table(address, table, [str(row[0]) for row in tables]))
            described = connection.execute(f"SELECT * FROM {name} LIMIT 0").description
            query = select_facts(address, [column[0] for column in described], name, _quoted)
        connection.set_authorizer(_authorize)
        cursor = connection.execute(query)
        if cursor.description is None:
            raise address.error("the query returns no table; give a SELECT query")
        columns = [column[0] for column in cursor.description]
        order = fact_order(columns, str(address))
        first = 0
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield batch_of(rows, columns, order, address, first)
            first += len(rows)


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _readable(address: Address) -> Iterator[None]:
    """Raise errors of SQLite as `InputError`."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        message = str(error)
        if message == "not authorized":
            message = "only SELECT queries are allowed"
        raise address.error(message) from error


SQLITE = Source(
    form="sqlite:FILE?table=NAME or sqlite:FILE?query=SELECT …",
    options=("table", "query"),
    read=read_sqlite,
    is_file=True,
)
