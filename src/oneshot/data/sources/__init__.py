"""Data sources by address: a registry of readers of databases and services.

A new source is one file in this folder and its line in `SOURCES`. What an address names is read
once and copied into the cache (`cache`), as downloads are; everything else works on the copy.
"""

import difflib
import os
import re
from dataclasses import replace
from pathlib import Path

from oneshot.data.sources.address import Address
from oneshot.data.sources.base import Link, Links, Progress, Source
from oneshot.data.sources.duckdb import DUCKDB, MYSQL, POSTGRES
from oneshot.data.sources.neo4j import NEO4J
from oneshot.data.sources.sparql import SPARQL
from oneshot.data.sources.sqlite import SQLITE
from oneshot.errors import InputError, UnknownNameError

__all__ = [
    "SOURCES",
    "Address",
    "Link",
    "Links",
    "check_scheme",
    "check_target",
    "is_address",
    "parse_address",
    "shown",
    "source_file",
    "write_links",
]

SOURCES: dict[str, Source] = {
    "duckdb": DUCKDB,
    "sqlite": SQLITE,
    "postgres": POSTGRES,
    "postgresql": POSTGRES,
    "mysql": MYSQL,
    "sparql": SPARQL,
    "neo4j": NEO4J,
    "neo4j+s": NEO4J,
    "neo4j+ssc": NEO4J,
    "bolt": NEO4J,
    "bolt+s": NEO4J,
    "bolt+ssc": NEO4J,
}
"""The sources by scheme."""

_SCHEME = re.compile(r"([A-Za-z][\w+.-]+):(//)?")  # one character: a drive of Windows


def is_address(name: str) -> bool:
    """Whether a data set is named by the address of a source."""
    found = _SCHEME.match(name)
    return found is not None and found[1].lower() in SOURCES


def parse_address(text: str) -> Address:
    """The address in a text for which `is_address` holds; raises if it is not complete."""
    source = SOURCES[text.partition(":")[0].lower()]
    parsed = Address.parse(text, source.form, source.is_file)
    own = {name: value for name, value in parsed.options.items() if name in source.options}
    other = {name: value for name, value in parsed.options.items() if name not in own}
    if other and not source.has_parameters:
        nearest = difflib.get_close_matches(min(other), source.options, n=1)
        raise InputError(
            f"{parsed}: unknown option {min(other)!r}; "
            + (f"did you mean {nearest[0]!r}?" if nearest else f"expected {source.form}")
        )
    return replace(parsed, options=own, parameters=other)


def shown(name: str) -> str:
    """The name of a data set for messages: an address without user and password."""
    return parse_address(name).public if is_address(name) else name


def source_file(name: str) -> Path | None:
    """The database file of an address; None if it names a server."""
    address = parse_address(name)
    return Path(address.location).expanduser() if SOURCES[address.scheme].is_file else None


def check_scheme(name: str, others: list[str]) -> None:
    """Raise if a name is an address with an unknown scheme; the rest of it is never shown.

    `others`: the prefixes of other data sets.
    """
    found = _SCHEME.match(name)
    if found is None:
        return
    known = [*SOURCES, *others]
    nearest = difflib.get_close_matches(found[1].lower(), known, n=3)
    if nearest or found[2]:
        raise UnknownNameError("scheme", found[1], nearest, known=known)


def check_target(address: Address) -> None:
    """Raise if predicted facts cannot be written to an address; called before the long work."""
    check = SOURCES[address.scheme].check
    if check is None:
        writable = sorted(scheme for scheme, source in SOURCES.items() if source.write)
        raise address.error(f"cannot be written to; use a file, or {', '.join(writable)}")
    if os.environ.get("ONESHOT_OFFLINE") and not SOURCES[address.scheme].is_file:
        raise InputError(f"{address}: $ONESHOT_OFFLINE forbids connections")
    check(address)


def write_links(address: Address, links: Links, progress: Progress | None = None) -> int:
    """Write predicted facts to an address, without its own facts. Returns their number."""
    write = SOURCES[address.scheme].write
    assert write is not None
    return write(address, links, progress or (lambda _: None))
