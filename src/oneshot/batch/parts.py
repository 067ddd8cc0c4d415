"""Parts: the answers to one partition of the queries, each a Parquet file."""

import platform
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from oneshot.batch.manifest import Manifest, part_name, read_manifest
from oneshot.batch.source import Source, opened_as
from oneshot.data.formats.parquet import schema_of, write_table
from oneshot.errors import InputError, OneshotError
from oneshot.reasoner.answers import COLUMNS, Prediction, answer_rows
from oneshot.system.files import replacing
from oneshot.system.workers import Outcome, Task

_KEY = b"oneshot"

# A worker may have several threads, but has one reasoner, and one partition uses all its cores.
_ONE_AT_A_TIME = threading.Lock()


def answer_partition(task: Task) -> Outcome:
    """Answer a partition into its part, on a worker.

    Returns the number of queries without an answer, or the error.

    `task`: the directory `out`, the partition `number`, the `tag` of the manifest, its `questions`
    as names (entity, relation), the run directory `run`, `device`, `batch_size`.
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
    # Do not write if this is a different directory, or one that the other processes do not see.
    manifest = read_manifest(out) if out.is_dir() else None
    if manifest is None or manifest.tag != task["tag"]:
        raise InputError(
            f"{out} is not the same directory on {platform.node()}; workers need the run, the "
            "graph and the answers at the same paths on a shared disk"
        )
    # If a worker dies after writing its part, the part is requested again but still valid.
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
    """Write the part of a partition atomically. Returns the number of queries without an answer.

    One row per answer, as in other tables of answers. The additional first column `question` is the
    index of the query in the file, from 0.
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
    """The number of queries without an answer in a part; None if it is missing or incomplete.

    A part of a different job counts as missing.
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
