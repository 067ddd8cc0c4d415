"""A prediction job: workers answer partitions of the queries until every part is complete."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oneshot.batch.manifest import (
    MANIFEST,
    Manifest,
    alone_in,
    default_partition,
    is_part,
    part_name,
    read_manifest,
)
from oneshot.batch.parts import answer_partition, unanswered_in
from oneshot.batch.queries import check_queries, read_queries
from oneshot.batch.source import Source, file_digest, opened
from oneshot.data.sources import is_address, parse_address
from oneshot.data.sources.cache import fetch
from oneshot.errors import InputError, OneshotError
from oneshot.reasoner.answers import AnswerKeywords, AnswerOptions
from oneshot.system import console
from oneshot.system.files import remove_leftovers
from oneshot.system.workers import Workers, open_workers

_RETRIES = 3  # of a partition whose worker was lost or raised an unknown error
_IN_HAND = 2  # partitions queued per worker, so that no worker is idle

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Job:
    """Queries, the reasoner that answers them, and the directory of the answers.

    `options`: the given options of the answers. `partition`: queries per part. A value of None is
    the default, or with `resume` the value with which the answers in `out` were started; this also
    holds for `data` and `settings` (see `Source`). `batch_size` and `device` apply to each worker
    and may change between calls.
    """

    run: Path
    queries: Path
    out: Path
    data: str | None = None
    seed: int = 0
    settings: tuple[str, ...] = ()
    options: AnswerKeywords = field(default_factory=AnswerKeywords)
    partition: int | None = None
    batch_size: int | None = None
    device: str = "auto"
    resume: bool = False


def run_job(job: Job, workers: int = 1, dask: str | None = None) -> dict[str, Any]:
    """Answer the queries of a job into a directory of parts. Returns a summary.

    Runs on `workers` local processes (1: this process itself) or on the Dask cluster whose
    scheduler is at `dask`. Finished parts of an earlier, interrupted call are kept. If the
    directory holds answers of a different job, an error is raised and they are not changed.
    """
    started = time.perf_counter()
    job = replace(job, run=job.run.resolve(), out=job.out.resolve(), data=_absolute(job.data))
    stored = read_manifest(job.out)
    if job.resume:
        if stored is None:
            console.note(f"{job.out}: no answers to resume; starting from scratch")
        else:
            job = _completed(job, stored)
    is_here = dask is None and workers == 1
    manifest = _manifest(job, stored, is_here)
    with alone_in(job.out):
        # Another process may have been first.
        _check_same(job, read_manifest(job.out), manifest)
        if not (job.out / MANIFEST).exists():
            manifest.write(job.out)
        unanswered, missing = _state(job.out, manifest)
        before = manifest.parts - len(missing)
        if missing:
            if before:
                console.note(
                    f"{job.out}: {before:,} of {manifest.parts:,} parts are already finished"
                )
            purpose = "prediction with several workers"
            count = min(workers, len(missing))
            with open_workers(count, dask, answer_partition, purpose, _RETRIES) as crew:
                unanswered += _work(job, manifest, missing, crew)
            _clean(job.out, manifest)
    return {
        "out": str(job.out),
        "queries": manifest.questions,
        "unanswered": unanswered,
        "parts": manifest.parts,
        "parts_before": before,
        "already_finished": not missing,
        "seconds": time.perf_counter() - started,
    }


def _absolute(data: str | None) -> str | None:
    """A data set name that other processes can resolve; an address is read once, into the cache."""
    if data is not None and is_address(data):
        return str(fetch(parse_address(data)))
    return str(Path(data).resolve()) if data is not None and Path(data).exists() else data


def _completed(job: Job, stored: Manifest) -> Job:
    """A job whose missing values are those of the answers that it resumes."""
    if job.data is None:
        job = replace(job, data=stored.data, seed=stored.seed)
    return replace(job, settings=job.settings or stored.settings)


def _manifest(job: Job, stored: Manifest | None, is_here: bool) -> Manifest:
    """The manifest of a job; checks its queries if this was not done before."""
    source = Source(str(job.run), job.data, job.seed, job.settings)
    begun = AnswerOptions() if stored is None or not job.resume else stored.options
    options = begun.changed(job.options)
    options.check_for_many()
    with console.status(f"checking {job.queries}"):
        digest = file_digest(job.queries)
        if digest is None:
            raise InputError(f"{job.queries}: No such file or directory")
        # Read again, even if it was read for an earlier job. Names are the same on any device;
        # a local worker needs the reasoner again.
        opened.cache_clear()
        reasoner, identity = opened(source, job.device if is_here else "cpu")
        count = check_queries(reasoner, job.queries) if stored is None else stored.questions
    usual = default_partition(count) if stored is None else stored.partition
    manifest = Manifest(
        reasoner=identity,
        digest=digest,
        options=options,
        data=job.data,
        seed=job.seed,
        settings=job.settings,
        questions=count,
        partition=job.partition or usual,
    )
    _check_same(job, stored, manifest)
    if not is_here:
        opened.cache_clear()
    # As written in the existing manifest: a data set may have several names.
    return manifest if stored is None else stored


def _check_same(job: Job, stored: Manifest | None, manifest: Manifest) -> None:
    """Raise if the existing answers are not those of this job."""
    if stored is not None and (said := stored.difference(manifest)) is not None:
        raise InputError(
            f"{job.out}: its answers were started {said}; choose another path, or remove that "
            "directory to start from scratch"
        )


def _state(out: Path, manifest: Manifest) -> tuple[int, list[int]]:
    """The number of queries without an answer in the finished parts, and the missing parts."""
    there = {entry.name for entry in out.iterdir()}
    unanswered, missing = 0, []
    for number in range(manifest.parts):
        found = unanswered_in(out, manifest, number) if part_name(number) in there else None
        if found is None:
            missing.append(number)
        else:
            unanswered += found
    return unanswered, missing


def _work(job: Job, manifest: Manifest, missing: list[int], crew: Workers) -> int:
    """Compute the missing parts. Returns the number of their queries without an answer."""
    task = {
        "out": str(job.out),
        "run": str(job.run),
        "tag": manifest.tag,
        "device": job.device,
        "batch_size": job.batch_size,
    }
    unanswered = 0
    in_hand: set[int] = set()
    with console.progress_bar() as bar:
        left = sum(len(manifest.rows(number)) for number in missing)
        total = manifest.questions
        shown = bar.add_task("answering", total=total, completed=total - left)

        def collect() -> None:
            nonlocal unanswered
            number, outcome = crew.wait()
            in_hand.remove(number)
            rows = manifest.rows(number)
            if outcome["status"] != "done":
                raise OneshotError(
                    f"queries {rows[0] + 1:,} to {rows[-1] + 1:,} of {job.queries}: "
                    f"{outcome['error']}; finished parts are kept, continue with --resume"
                )
            unanswered += outcome["unanswered"]
            bar.advance(shown, len(rows))

        for number, queries in _partitions(job.queries, manifest, missing):
            while len(in_hand) >= _IN_HAND * crew.slots:
                collect()
            crew.submit(number, {**task, "number": number, "questions": queries})
            in_hand.add(number)
        while in_hand:
            collect()
    return unanswered


def _partitions(path: Path, manifest: Manifest, wanted: list[int]) -> Iterator[tuple[int, Pairs]]:
    """The queries of the given partitions, read on demand."""
    before = _stamp(path)
    queries = ((query.entity, query.relation) for query in read_queries(path))
    done = 0
    for number in wanted:
        rows = manifest.rows(number)
        pairs = list(itertools.islice(queries, rows.start - done, rows.stop - done))
        done = rows.stop
        if len(pairs) != len(rows) or _stamp(path) != before:
            raise InputError(f"{path} was changed while its queries were answered")
        yield number, pairs


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size


def _clean(out: Path, manifest: Manifest) -> None:
    """Check that all parts exist, and remove temporary files of killed workers."""
    gone = [n for n in range(manifest.parts) if unanswered_in(out, manifest, n) is None]
    if gone:
        raise OneshotError(
            f"{out}: {part_name(gone[0])} is missing, although a worker has written it; check "
            "that all workers share the disk, then continue with --resume"
        )
    remove_leftovers(out, [MANIFEST, *(e.name for e in out.iterdir() if is_part(e.name))])
