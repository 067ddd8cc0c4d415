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
class Question:
    """A query by names; `place`: its file and line, for messages."""

    entity: str
    relation: str
    place: str


def read_questions(path: Path) -> Iterator[Question]:
    """The queries in a file of two columns, entity and relation, in order."""
    for place, (entity, relation) in read_rows(path, _COLUMNS, "queries"):
        yield Question(entity, relation, place)


def check_questions(reasoner: Reasoner, path: Path) -> int:
    """Raise on the first query with an unknown name. Returns the number of queries."""
    count = 0
    for question in read_questions(path):
        try:
            reasoner.query(question.entity, question.relation)
        except InputError as error:
            raise InputError(f"{question.place}: {error}") from error
        count += 1
    if not count:
        raise InputError(f"{path}: the file has no queries")
    return count
