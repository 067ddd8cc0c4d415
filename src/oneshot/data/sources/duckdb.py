"""DuckDB: tables and queries of its files, and of PostgreSQL and MySQL through its extensions."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from oneshot.data.formats.parquet import as_names, fact_order
from oneshot.data.sources.address import Address
from oneshot.data.sources.base import BATCH_ROWS, Batch, Source
from oneshot.data.sources.tables import chosen_table, database_file, select_facts, table_or_query
from oneshot.errors import require

_ATTACHED = "source"  # the name of an attached database
_SYSTEM = ("information_schema", "pg_catalog", "performance_schema", "mysql", "sys")


def read_duckdb(address: Address, notes: list[str]) -> Iterator[Batch]:
    """The facts of a table, a view or a SELECT query of a DuckDB file, in batches.

    The file is opened read-only. `:memory:` is an empty database, whose queries can read files.
    """
    duckdb = require("duckdb", "databases", f"reading {address}")
    location = address.location
    if location != ":memory:":
        location = str(database_file(address))
    with _readable(address, duckdb):
        connection = duckdb.connect(location, read_only=location != ":memory:")
        with closing(connection):
            yield from _facts(connection, address, duckdb)


def read_server(address: Address, notes: list[str]) -> Iterator[Batch]:
    """The facts of a table or query of PostgreSQL or MySQL, in batches; nothing is changed there.

    A query is SQL of DuckDB, with the tables of the server.
    """
    duckdb = require("duckdb", "databases", f"reading {address}")
    is_postgres = address.scheme != "mysql"
    extension = "postgres" if is_postgres else "mysql"
    target = _postgres_target(address) if is_postgres else _mysql_target(address)
    with closing(duckdb.connect(":memory:")) as connection:
        _load_extension(connection, extension, address, duckdb)
        with _readable(address, duckdb, hidden=target):
            connection.execute(
                f"ATTACH {_text(target)} AS {_ATTACHED} (TYPE {extension}, READ_ONLY)"
            )
            connection.execute(f"USE {_ATTACHED}")
            yield from _facts(connection, address, duckdb)


def _facts(connection: Any, address: Address, duckdb: Any) -> Iterator[Batch]:
    """The facts that an address asks for, in an open database."""
    import pyarrow as pa

    table, query = table_or_query(address)
    if query is None:
        name = _table(connection, address, table)
        columns = connection.sql(f"SELECT * FROM {name} LIMIT 0").columns
        query = select_facts(address, columns, name, _quoted)
    statements = connection.extract_statements(query)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise address.error("only a single SELECT query is allowed")
    relation = connection.sql(query)
    columns = list(relation.columns)
    order = fact_order(columns, str(address))
    # Renamed in version 1.4.
    reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    first = 0
    for batch in reader(BATCH_ROWS):
        given = [pa.chunked_array([batch.column(place)]) for place in order]
        yield as_names(given, str(address), columns, order, first)
        first += batch.num_rows


def _table(connection: Any, address: Address, table: str | None) -> str:
    """The quoted name of the table of an address; outside of the main schema, SCHEMA.TABLE."""
    catalog, schema = connection.execute("SELECT current_database(), current_schema()").fetchone()
    rows = connection.execute(
        "SELECT table_schema, table_name FROM information_schema.tables "
        "WHERE table_catalog = ? ORDER BY ALL",
        [catalog],
    ).fetchall()
    found = {
        name if within == schema else f"{within}.{name}": (within, name)
        for within, name in rows
        if within not in _SYSTEM
    }
    if table is not None and table.startswith(f"{schema}."):
        table = table.removeprefix(f"{schema}.")
    parts = (catalog, *found[chosen_table(address, table, list(found))])
    return ".".join(map(_quoted, parts))


def _load_extension(connection: Any, extension: str, address: Address, duckdb: Any) -> None:
    """Load an extension of DuckDB, which is downloaded once."""
    try:
        try:
            connection.execute(f"LOAD {extension}")
        except duckdb.Error:
            connection.execute(f"INSTALL {extension}")
            connection.execute(f"LOAD {extension}")
    except duckdb.Error as error:
        reason = str(error).strip().partition("\n")[0]
        raise address.error(
            f"needs DuckDB's extension {extension!r}, which cannot be loaded ({reason}); connect "
            "to the network once, or install the extension file with DuckDB"
        ) from error


def _postgres_target(address: Address) -> str:
    """The connection parameters of PostgreSQL; missing ones come from its environment variables."""
    values = {
        "host": address.host,
        "port": address.port,
        "dbname": address.path,
        "user": address.user,
        "password": address.password,
        "connect_timeout": "15",
        **address.parameters,
    }
    return " ".join(f"{name}={_text(str(v), chr(92))}" for name, v in values.items() if v)


def _mysql_target(address: Address) -> str:
    """The connection parameters of MySQL."""
    found = address.credentials("MYSQL_USER", "MYSQL_PWD")
    user, password = found if found is not None else (None, None)
    values = {
        "host": address.host,
        "port": address.port,
        "database": address.path,
        "user": user,
        "password": password,
        **address.parameters,
    }
    return " ".join(f'{name}="{_escaped(str(v))}"' for name, v in values.items() if v)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _text(value: str, escape: str = "'") -> str:
    """A value in single quotes."""
    if escape == "\\":
        value = value.replace("\\", "\\\\")
    return "'" + value.replace("'", f"{escape}'") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _readable(address: Address, duckdb: Any, hidden: str = "") -> Iterator[None]:
    """Raise errors of DuckDB as `InputError`; `hidden`: a part of them that is not shown."""
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        # The other lines repeat the query.
        message = str(error).strip().partition("\n")[0]
        for form in (hidden, _text(hidden)[1:-1]) if hidden else ():
            message = message.replace(form, str(address))
        raise address.error(message) from error


DUCKDB = Source(
    form="duckdb:FILE?table=NAME or duckdb:FILE?query=SELECT …",
    options=("table", "query"),
    read=read_duckdb,
    is_file=True,
)
POSTGRES = Source(
    form="postgres://HOST:PORT/DATABASE?table=NAME or ?query=SELECT …",
    options=("table", "query"),
    read=read_server,
    has_parameters=True,
)
MYSQL = Source(
    form="mysql://HOST:PORT/DATABASE?table=NAME or ?query=SELECT …",
    options=("table", "query"),
    read=read_server,
    has_parameters=True,
)
