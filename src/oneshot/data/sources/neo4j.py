"""Neo4j: the relationships of a database as facts, and predicted facts as relationships."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from oneshot.data.formats.parquet import fact_order
from oneshot.data.sources.address import Address
from oneshot.data.sources.base import Batch, Link, Links, Progress, Source, batch_of
from oneshot.errors import require

MARK = "oneshot"
"""The property `source` of relationships that were predicted; by default they are not read."""

FETCHED_ROWS = 10_000
TRANSACTION_LINKS = 1_000
_RESOLVED_NAMES = 10_000  # looked up by one pass over the nodes
_TIMEOUT = 15.0  # seconds until a server that does not respond is unreachable
_PORT = 7687
# Without a handler, Python prints the warnings of the driver between our own messages. A handler of
# the application gets them all the same.
_SILENT = logging.NullHandler()

T = TypeVar("T")


def read_neo4j(address: Address, notes: list[str]) -> Iterator[Batch]:
    """The facts of all relationships, or of a Cypher query with three columns, in batches."""
    query = address.options.get("query") or _all_facts(address)
    with _session(address, is_written=False) as session:
        result = session.run(query)
        columns = list(result.keys())
        order = fact_order(columns, str(address))
        first = 0
        while records := result.fetch(FETCHED_ROWS):
            rows = [record.values() for record in records]
            yield batch_of(rows, columns, order, address, first)
            first += len(rows)


def check_neo4j(address: Address) -> None:
    """Raise if the server cannot be reached, or does not accept user and password."""
    if "query" in address.options:
        raise address.error("an address to write to has no query")
    with _session(address, is_written=True) as session:
        session.run("RETURN 1").consume()


def write_neo4j(address: Address, links: Links, progress: Progress) -> int:
    """Create a relationship for each link, with the properties `probability` and `source`.

    All entities must be nodes, each with a name of its own: otherwise nothing is written. A link
    that the database has as a fact is left out: the graph of a reasoner lacks held-out facts. A
    relationship that an earlier call created gets the new probability. Nothing is ever removed, and
    other relationships are not changed. Returns the number of written links.
    """
    done = count = 0
    with _session(address, is_written=True) as session:
        ids = _node_ids(session, address, links)
        for some in _parts(links(), TRANSACTION_LINKS):
            count += session.execute_write(_write, some, ids)
            done += len(some)
            progress(done)
    return count


def _write(transaction: Any, links: list[Link], ids: dict[str, str]) -> int:
    """Create the relationships of one transaction. Returns their number."""
    count = 0
    groups: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for link in links:
        ends = {"head": ids[link.head], "tail": ids[link.tail], "probability": link.probability}
        groups.setdefault((link.relation, link.probability is not None), []).append(ends)
    for (relation, is_calibrated), rows in groups.items():
        name = _quoted(relation)  # the type of a relationship cannot be a parameter
        query = (
            "UNWIND $links AS link "
            "MATCH (a) WHERE elementId(a) = link.head "
            "MATCH (b) WHERE elementId(b) = link.tail "
            f"OPTIONAL MATCH (a)-[old:{name}]->(b) WHERE coalesce(old.source, '') <> '{MARK}' "
            "WITH a, b, link.probability AS probability, count(old) AS known WHERE known = 0 "
            f"MERGE (a)-[r:{name} {{source: '{MARK}'}}]->(b) "
            # A value of null would remove the property.
            f"{'SET r.probability = probability ' if is_calibrated else ''}"
            "RETURN count(r) AS written"
        )
        count += int(transaction.run(query, links=rows).single()["written"])
    return count


def _node_ids(session: Any, address: Address, links: Links) -> dict[str, str]:
    """The id of the node of each entity; raises unless there is exactly one."""
    names = dict.fromkeys(name for link in links() for name in (link.head, link.tail))
    name = f"toString({_name('n', address)})"
    query = f"MATCH (n) WHERE {name} IN $names RETURN {name} AS name, elementId(n) AS id"
    ids: dict[str, str] = {}
    for some in _parts(names, _RESOLVED_NAMES):
        for record in session.run(query, names=some):
            found = str(record["name"])
            if found in ids:
                raise address.error(
                    f"several nodes have the name {found!r}; choose a property that identifies "
                    "nodes, with ?name=PROPERTY"
                )
            ids[found] = str(record["id"])
    missing = next((entity for entity in names if entity not in ids), None)
    if missing is not None:
        raise address.error(
            f"no node has the name {missing!r}; nothing was written. Choose the property with the "
            "names of the entities, with ?name=PROPERTY"
        )
    return ids


def _parts(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """The values in lists of at most `size`."""
    left = iter(values)
    while some := list(islice(left, size)):
        yield some


def _all_facts(address: Address) -> str:
    """The default query: all relationships but predicted ones."""
    return (
        f"MATCH (a)-[r]->(b) WHERE coalesce(r.source, '') <> '{MARK}' "
        f"RETURN {_name('a', address)} AS head, type(r) AS relation, "
        f"{_name('b', address)} AS tail"
    )


def _name(node: str, address: Address) -> str:
    """The Cypher expression for the name of a node: a property, or its id if it has none."""
    return f"coalesce({node}.{_quoted(address.options.get('name') or 'name')}, elementId({node}))"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def _session(address: Address, is_written: bool) -> Iterator[Any]:
    """A session with the database of an address; errors of the driver become `InputError`."""
    neo4j = require("neo4j", "neo4j", f"connecting to {address}")
    logging.getLogger("neo4j").addHandler(_SILENT)
    database = address.path or None
    if database is not None and "/" in database:
        raise address.error("expected at most one name, the database, after the host")
    host = f"[{address.host}]" if ":" in address.host else address.host
    auth = address.credentials("NEO4J_USERNAME", "NEO4J_PASSWORD")
    mode = neo4j.WRITE_ACCESS if is_written else neo4j.READ_ACCESS
    try:
        with (
            neo4j.GraphDatabase.driver(
                f"{address.scheme}://{host}:{address.port or _PORT}",
                auth=auth,
                connection_timeout=_TIMEOUT,
                connection_acquisition_timeout=2 * _TIMEOUT,
                max_transaction_retry_time=2 * _TIMEOUT,
            ) as driver,
            driver.session(
                database=database, default_access_mode=mode, fetch_size=FETCHED_ROWS
            ) as session,
        ):
            yield session
    except neo4j.exceptions.AuthError as error:
        raise address.error(
            "the server does not accept user and password; give them in the address, or set "
            "NEO4J_USERNAME and NEO4J_PASSWORD"
        ) from error
    except neo4j.exceptions.ServiceUnavailable as error:
        raise address.error(f"the server cannot be reached ({error}); check the address") from error
    except neo4j.exceptions.Neo4jError as error:
        raise address.error(error.message or error.code) from error
    except (neo4j.exceptions.DriverError, OSError, ValueError) as error:
        raise address.error(error) from error


NEO4J = Source(
    form="neo4j://HOST:PORT/DATABASE?query=MATCH …",
    options=("name", "query"),
    read=read_neo4j,
    check=check_neo4j,
    write=write_neo4j,
)
