"""Queries from a file, read one by one, so that the file may have any size."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oneshot.data.formats import FACT_COLUMNS, Columns, read_rows
from oneshot.errors import InputError
from oneshot.reasoner.reasoner import Reasoner

_COLUMNS: Columns = {
    "entity": FACT_COLUMNS["head"] | {"entity"},
    "relation": FACT_COLUMNS["relation"],
}


@dataclass(frozen=True)
class NamedQuery:
    """A query by names; `location`: its file and line, for messages."""

    entity: str
    relation: str
    location: str


def read_queries(path: Path) -> Iterator[NamedQuery]:
    """The queries in a file of two columns, entity and relation, in order."""
    for location, (entity, relation) in read_rows(path, _COLUMNS, "queries"):
        yield NamedQuery(entity, relation, location)


def check_queries(reasoner: Reasoner, path: Path) -> int:
    """Raise on the first query with an unknown name. Returns the number of queries."""
    count = 0
    for query in read_queries(path):
        try:
            reasoner.query(query.entity, query.relation)
        except InputError as error:
            raise InputError(f"{query.location}: {error}") from error
        count += 1
    if not count:
        raise InputError(f"{path}: the file has no queries")
    return count
