"""Answering: the answers to a file of questions, written to another file as they come."""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from oneshot.batch.questions import read_questions
from oneshot.errors import InputError
from oneshot.reasoner.answers import AnswerOptions, Prediction
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.files import replacing

COLUMNS = ("entity", "relation", "rank", "answer", "score", "probability", "known")
"""Columns of tables of answers: one row an answer, best first, numbered by `rank` from 1."""

_ROWS = 10_000  # of a Parquet file, in memory at a time
_SPECIAL = re.compile('[\t\n\r"]')
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # which JSON leaves bare


def check_answers_place(path: Path) -> None:
    """Raise if answers cannot be written there; for a look before the long work starts."""
    if path.suffix.lower() not in WRITERS:
        raise InputError(f"{path}: answers are written to files ending in {', '.join(WRITERS)}")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: exists and is not a file; choose another place")


def answer_questions(
    reasoner: Reasoner,
    questions: Path,
    path: Path,
    options: AnswerOptions | None = None,
    *,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Answer the questions in a file; the answers replace the file `path` when all are there.

    JSON lines (one line a question), TSV or Parquet (one row an answer), by the ending. In memory
    for one batch of questions. → the number of questions without any answer
    """
    check_answers_place(path)
    unanswered = 0

    def stream() -> Iterator[Prediction]:
        nonlocal unanswered
        asked = ((question.entity, question.relation) for question in read_questions(questions))
        for found in reasoner.predict_stream(asked, options=options, batch_size=batch_size):
            unanswered += not found.answers
            yield found
            if progress is not None:
                progress(1)

    with replacing(path) as temporary:
        WRITERS[path.suffix.lower()](temporary, stream())
    return unanswered


def _write_json_lines(path: Path, predictions: Iterable[Prediction]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for found in predictions:
            line = json.dumps(found.as_dict(), ensure_ascii=False)
            file.write(_LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", line) + "\n")


def _write_tsv(path: Path, predictions: Iterable[Prediction]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("\t".join(COLUMNS) + "\n")
        for found in predictions:
            for row in answer_rows(found):
                file.write("\t".join(map(table_field, row)) + "\n")


def table_field(value: Any) -> str:
    """A value in a table; quotes stand only around a text with a tab, a line end or a quote."""
    # Not by the module csv, which before Python 3.13 leaves a carriage return bare.
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _write_parquet(path: Path, predictions: Iterable[Prediction]) -> None:
    write_rows(path, answers_schema(), (row for found in predictions for row in answer_rows(found)))


def answers_schema() -> Any:
    """The schema of a Parquet table of answers, as pyarrow has it."""
    import pyarrow as pa

    text, number = pa.string(), pa.float32()
    kinds = (text, text, pa.int32(), text, number, number, pa.bool_())
    return pa.schema(list(zip(COLUMNS, kinds, strict=True)))


def write_rows(path: Path, schema: Any, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows to a Parquet file, some thousands in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet

    # Checksums tell a damaged page from a good one when the table is read.
    with pyarrow.parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        left = iter(rows)
        while some := list(itertools.islice(left, _ROWS)):
            columns = zip(*some, strict=True)
            arrays = [pa.array(c, k) for c, k in zip(columns, schema.types, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def answer_rows(found: Prediction) -> Iterator[tuple[Any, ...]]:
    """The answers of a prediction as rows of `COLUMNS`."""
    for rank, answer in enumerate(found, 1):
        yield (
            found.entity,
            found.relation,
            rank,
            answer.entity,
            answer.score,
            answer.probability,
            answer.known,
        )


WRITERS: dict[str, Callable[[Path, Iterable[Prediction]], None]] = {
    ".jsonl": _write_json_lines,
    ".tsv": _write_tsv,
    ".parquet": _write_parquet,
}
