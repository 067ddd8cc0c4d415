"""Parts: the answers to one partition of the questions, each a Parquet file."""

import platform
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from oneshot.batch.answers import COLUMNS, answer_rows
from oneshot.batch.manifest import Manifest, part_name, read_manifest
from oneshot.batch.source import Source, opened_as
from oneshot.data.formats.parquet import schema_of, write_table
from oneshot.errors import InputError, OneshotError
from oneshot.reasoner.answers import Prediction
from oneshot.system.files import replacing
from oneshot.system.workers import Outcome, Task

_KEY = b"oneshot"

# A worker may have several threads, but one reasoner, and its cores are busy with one partition.
_ONE_AT_A_TIME = threading.Lock()


def answer_partition(task: Task) -> Outcome:
    """Answer a partition into its part; on a worker. → how many have no answer, or what failed

    `task`: `out` the directory, `number` the partition, `tag` of the manifest, `questions` its
    (entity, relation) by names, `run` the run directory, `device`, `batch_size`.
    """
    try:
        with _ONE_AT_A_TIME:
            return {"status": "done", "unanswered": _answer(task)}
    except OneshotError as error:
        return {"status": "failed", "error": str(error)}
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return {"status": "failed", "error": said}


def _answer(task: Task) -> int:
    out = Path(task["out"])
    # Not to write somewhere else where the directory is another one, or not to be seen.
    manifest = read_manifest(out) if out.is_dir() else None
    if manifest is None or manifest.tag != task["tag"]:
        raise InputError(
            f"{out}: is not the same directory on {platform.node()}; workers need run, graph and "
            "answers under the same paths, on a disk that they share"
        )
    # The word of a worker that dies is lost, not its work: it is asked for once more.
    finished = unanswered_in(out, manifest, task["number"])
    if finished is not None:
        return finished
    source = Source(task["run"], manifest.data, manifest.seed, manifest.settings)
    reasoner = opened_as(source, task["device"], manifest.reasoner)
    predictions = reasoner.predict_stream(
        task["questions"], options=manifest.options, batch_size=task["batch_size"]
    )
    return write_part(out, manifest, task["number"], predictions)


def write_part(
    out: Path, manifest: Manifest, number: int, predictions: Iterable[Prediction]
) -> int:
    """Write the part of a partition, whole or not at all. → how many questions have no answer

    One row an answer, as in other tables of answers, with the number of its `question` in front,
    as they stand in the file, from 0.
    """
    import pyarrow as pa

    unanswered = 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal unanswered
        for question, found in zip(manifest.rows(number), predictions, strict=True):
            unanswered += not found.answers
            for row in answer_rows(found):
                yield question, *row

    schema = pa.schema([pa.field("question", pa.int64()), *schema_of(COLUMNS)])
    schema = schema.with_metadata({_KEY: _label(manifest, number)})
    with replacing(out / part_name(number)) as temporary:
        write_table(temporary, rows(), schema)
    return unanswered


def unanswered_in(out: Path, manifest: Manifest, number: int) -> int | None:
    """How many questions of a finished part have no answer; None if it is not there, or not whole.

    A part of other answers counts as not there.
    """
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    path = out / part_name(number)
    answered = 0
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if (file.schema_arrow.metadata or {}).get(_KEY) != _label(manifest, number):
                return None
            for batch in file.iter_batches(columns=["rank"]):
                answered += pa.compute.sum(pa.compute.equal(batch.column(0), 1)).as_py() or 0
    except (pa.ArrowException, OSError):
        return None
    return len(manifest.rows(number)) - answered


def _label(manifest: Manifest, number: int) -> bytes:
    return f"{manifest.tag} {number}".encode()
