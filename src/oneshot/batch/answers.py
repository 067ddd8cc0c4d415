"""Answers to a file of queries, streamed to another file."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from oneshot.batch.queries import read_queries
from oneshot.data.formats import FORMATS
from oneshot.errors import InputError
from oneshot.reasoner.answers import COLUMNS, AnswerOptions, Prediction, answer_rows
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.files import replacing

JSON_LINES = ".jsonl"
ENDINGS = (JSON_LINES, *(suffix for suffix, found in FORMATS.items() if found.write_rows))
"""The suffixes of files of answers."""

_LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # not escaped by JSON


def check_answers_path(path: Path) -> None:
    """Raise if answers cannot be written to this path; called before the long work starts."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: unsupported suffix for answers; use {', '.join(ENDINGS)}")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} exists and is not a file; choose another path")


def answer_queries(
    reasoner: Reasoner,
    queries: Path,
    path: Path,
    options: AnswerOptions | None = None,
    *,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Answer the queries in a file; the answers replace the file `path` when they are complete.

    The suffix selects JSON lines (one line per query) or a table (one row per answer). One batch of
    queries is in memory at a time. Returns the number of queries without an answer.
    """
    check_answers_path(path)
    unanswered = 0

    def stream() -> Iterator[Prediction]:
        nonlocal unanswered
        asked = ((query.entity, query.relation) for query in read_queries(queries))
        for found in reasoner.predict_stream(asked, options=options, batch_size=batch_size):
            unanswered += not found.answers
            yield found
            if progress is not None:
                progress(1)

    with replacing(path) as temporary:
        _write(temporary, stream(), path.suffix.lower())
    return unanswered


def _write(path: Path, predictions: Iterable[Prediction], ending: str) -> None:
    if ending == JSON_LINES:
        _write_json_lines(path, predictions)
        return
    write = FORMATS[ending].write_rows
    assert write is not None
    write(path, (row for found in predictions for row in answer_rows(found)), COLUMNS)


def _write_json_lines(path: Path, predictions: Iterable[Prediction]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for found in predictions:
            line = json.dumps(found.as_dict(), ensure_ascii=False)
            file.write(_LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", line) + "\n")
