"""Tables and queries of relational databases: what an address asks for."""

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from oneshot.data.formats.base import header_order
from oneshot.data.sources.address import Address


def table_or_query(address: Address) -> tuple[str | None, str | None]:
    """The table and the query of an address; at most one of them is given."""
    table, query = address.options.get("table"), address.options.get("query")
    if table is not None and query is not None:
        raise address.error("give a table or a query, not both")
    if query == "":
        raise address.error("the query is empty")
    return table, query.removesuffix(";") if query is not None else None


def database_file(address: Address) -> Path:
    """The file of an address; raises if it does not exist."""
    file = Path(address.location).expanduser()
    if not address.location:
        raise address.error("the address names no file")
    if not file.is_file():
        raise address.error("is a directory" if file.is_dir() else "No such file or directory")
    return file


def chosen_table(address: Address, table: str | None, tables: Sequence[str]) -> str:
    """The table to read: the given one, or the only one there is."""
    listed = ", ".join(tables) or "none"
    if table is None:
        if len(tables) != 1:
            raise address.error(f"give a table with ?table=NAME; there are: {listed}")
        return tables[0]
    if table not in tables:
        nearest = difflib.get_close_matches(table, tables, n=3)
        hint = f"did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
        raise address.error(f"has no table {table!r}; {hint or f'there are: {listed}'}")
    return table


def select_facts(
    address: Address, columns: Sequence[str], table: str, quoted: Callable[[str], str]
) -> str:
    """The query for the facts of a table, without its other columns.

    `table`: its quoted name. The names must match exactly if there are more than three columns.
    """
    order = header_order(columns)
    chosen = "*" if order is None else ", ".join(quoted(columns[place]) for place in order)
    return f"SELECT {chosen} FROM {table}"
