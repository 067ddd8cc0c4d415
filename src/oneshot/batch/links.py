"""Answers to a file of queries, written as predicted facts to a database."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from oneshot.batch.answers import answer_queries
from oneshot.data.sources import Address, Link, write_links
from oneshot.graph.graph import INVERSE_MARK
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.answers import AnswerOptions
from oneshot.reasoner.reasoner import Reasoner

_READ_ROWS = 1 << 14  # answers in memory at a time


@dataclass(frozen=True)
class Written:
    """The outcome: the number of links, and of queries without an answer."""

    links: int
    unanswered: int


def answer_as_links(
    reasoner: Reasoner,
    queries: Path,
    address: Address,
    options: AnswerOptions | None = None,
    *,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Answer the queries in a file, and write each answer that is no known fact as a link.

    All queries are answered before the first link is written. The answers are kept in a temporary
    file, so they may be larger than memory.
    """
    with TemporaryDirectory(prefix="oneshot-") as directory:
        answers = Path(directory) / "answers.parquet"
        unanswered = answer_queries(
            reasoner, queries, answers, options, batch_size=batch_size, progress=progress
        )
        relations = reasoner.graph.relations
        links = write_links(address, lambda: _links(answers, relations))
    return Written(links, unanswered)


def _links(answers: Path, relations: Vocabulary) -> Iterator[Link]:
    """The new facts in a table of answers; those to an inverse query are turned round."""
    import pyarrow.parquet

    columns = ["entity", "relation", "answer", "probability", "known"]
    with pyarrow.parquet.ParquetFile(answers) as file:
        for batch in file.iter_batches(_READ_ROWS, columns=columns):
            rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
            for entity, relation, answer, probability, known in rows:
                if known:
                    continue
                if relation in relations:
                    yield Link(entity, relation, answer, probability)
                else:
                    name = relation.removesuffix(INVERSE_MARK)
                    yield Link(answer, name, entity, probability)
