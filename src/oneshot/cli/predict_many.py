"""What `predict` does with a file of questions: answers into a file, or a directory of parts."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.batch.job import Job
    from oneshot.reasoner.reasoner import Reasoner


def is_directory_of_parts(out: Path, given: Sequence[str]) -> bool:
    """Whether the answers go to a directory. `given`: the options in use that only make sense so.

    A name without ending, or with the ending that engines give such directories, may be one.
    """
    ending = out.suffix.lower()
    if given and ending in (".jsonl", ".tsv"):
        raise InputError(
            f"{out}: with {given[0]} the answers are a directory of Parquet parts; choose a name "
            f"without {ending}"
        )
    return bool(given) or not ending or out.is_dir()


def answer_into_parts(job: "Job", workers: int | None, dask: str | None, json: bool) -> None:
    """Answer a file of questions into a directory, by several processes."""
    from oneshot.batch.job import run_job

    if workers is not None and dask is not None:
        raise InputError("--workers starts processes here, --dask takes those of a cluster: one")
    try:
        value = run_job(job, workers or 1, dask)
    except KeyboardInterrupt:
        console.note("stopped; the finished parts are kept: go on with the same command")
        raise typer.Exit(130) from None
    if json:
        console.print_json(value)
        return
    if value["already_finished"]:
        console.note(f"{value['out']}: all {value['queries']:,} questions are answered already")
    else:
        _tell(value["out"], value["queries"], value["seconds"], value["unanswered"])


def answer_into_file(
    reasoner: "Reasoner",
    queries: Path,
    out: Path,
    top: int,
    exclude_known: bool,
    batch_size: int | None,
    json: bool,
) -> None:
    """Answer a file of questions into another file."""
    from oneshot.batch.answers import answer_questions, check_answers_place
    from oneshot.batch.questions import check_questions

    check_answers_place(out)
    started = time.perf_counter()
    with console.status(f"checking {queries}"):
        count = check_questions(reasoner, queries)
    with console.progress_bar() as progress:
        task = progress.add_task("answering", total=count)
        unanswered = answer_questions(
            reasoner,
            queries,
            out,
            top=top,
            exclude_known=exclude_known,
            batch_size=batch_size,
            progress=lambda done: progress.advance(task, done),
        )
    seconds = time.perf_counter() - started
    if json:
        value = {"out": str(out), "queries": count, "unanswered": unanswered, "seconds": seconds}
        console.print_json(value)
        return
    _tell(str(out), count, seconds, unanswered)


def _tell(out: str, count: int, seconds: float, unanswered: int) -> None:
    console.note(f"{out}: answers to {count:,} questions in {seconds:.1f} s")
    if unanswered:
        console.note(f"{unanswered:,} have none: their entity has no fact, or all are known")
