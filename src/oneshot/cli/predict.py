"""The command that answers one query, or a file of queries."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.options import (
    BatchSizeOption,
    DeviceOption,
    GraphOption,
    JsonOption,
    RunArgument,
    SeedOption,
    SetOption,
    check_names_output,
    check_output,
    check_outside,
    download,
    load_data,
    output,
    relationships,
)
from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.batch.job import Job
    from oneshot.data.sources import Address
    from oneshot.reasoner.answers import AnswerKeywords, AnswerOptions, Prediction
    from oneshot.reasoner.reasoner import Reasoner


EntityArgument = Annotated[str | None, typer.Argument(help="Query entity.")]
RelationArgument = Annotated[str | None, typer.Argument(help="Query relation.")]
InverseOption = Annotated[
    bool, typer.Option("--inverse", help="Answer (?, RELATION, ENTITY) instead.")
]
TopOption = Annotated[
    int | None, typer.Option(help="Number of answers, at least 1.", show_default="10")
]
ExcludeKnownOption = Annotated[
    bool | None,
    typer.Option("--exclude-known", help="Exclude answers that are facts of the graph."),
]
MinProbabilityOption = Annotated[
    float | None,
    typer.Option(help="Exclude answers that are less probable, 0 to 1.", show_default="0"),
]
TypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="RELATION=ENTITY",
        help="Only answers with this fact, such as instance_of=country; repeatable.",
    ),
]
CandidatesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Only answers in this file, one entity per line; one query only."
    ),
]
AndOption = Annotated[
    list[str] | None,
    typer.Option(
        "--and",
        metavar="ENTITY",
        help="Only answers that hold for this entity, too; repeatable; one query only.",
    ),
]
ExplainOption = Annotated[
    bool,
    typer.Option("--explain", help="Show the paths that contribute most to each answer's score."),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Plot the explanation of the best answer: .png, .svg or .html."
    ),
]
QueriesOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File of queries: two columns, .tsv, .csv or .parquet."),
]
OutOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH|ADDRESS",
        help="Output for the answers to --queries: a .jsonl, .tsv, .csv or .parquet file, a "
        "directory of Parquet parts, which can be resumed, or a graph database (neo4j://HOST), in "
        "which each new answer becomes a relationship.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=256,
        help="Number of processes (through Dask); needs a directory as --out.",
        show_default="1",
    ),
]
DaskOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address of a Dask scheduler whose workers to use."),
]
PartitionOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of queries per Parquet part.", show_default="a 32nd, 16 to 1000"
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Resume the directory --out, with its original options."),
]


def predict(
    run: RunArgument,
    entity: EntityArgument = None,
    relation: RelationArgument = None,
    inverse: InverseOption = False,
    top: TopOption = None,
    also: AndOption = None,
    exclude_known: ExcludeKnownOption = None,
    min_probability: MinProbabilityOption = None,
    types: TypeOption = None,
    candidates: CandidatesOption = None,
    explain: ExplainOption = False,
    plot: PlotOption = None,
    queries: QueriesOption = None,
    out: OutOption = None,
    workers: WorkersOption = None,
    dask: DaskOption = None,
    partition: PartitionOption = None,
    resume: ResumeOption = False,
    batch_size: BatchSizeOption = None,
    data: GraphOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Answer one query, or a file of queries."""
    from oneshot.reasoner.answers import AnswerOptions
    from oneshot.runs.run import Run
    from oneshot.system.devices import find_device

    one_only: dict[str, object] = {
        "ENTITY and RELATION": entity,
        "--inverse": inverse,
        "--and": also,
        "--candidates": candidates,
        "--explain": explain,
        "--plot": plot,
    }
    _check_use(entity, relation, one_only, plot, queries, out)
    wanted = _wanted(top, exclude_known, min_probability, types, candidates)
    if explain or plot is not None:  # a plot shows only the best answer
        wanted["explain"] = True if explain else 1
    options = AnswerOptions(**wanted)
    several = {"--workers": workers, "--dask": dask, "--partition": partition, "--resume": resume}
    given = [name for name, value in several.items() if value]
    if queries is None and given:
        raise InputError(f"{given[0]} needs a file of queries; name it with --queries")
    target = None if out is None else _target(out, given)
    is_parts = isinstance(target, Path) and is_directory_of_parts(target, given)
    # The workers of a cluster choose their own devices.
    torch_device = find_device("cpu" if dask is not None else device)
    opened = Run.open(run, settings or ())
    for written in (plot, target):
        if isinstance(written, Path):
            check_outside(written, opened)
            read = [*opened.files, *(path for path in (queries, candidates) if path is not None)]
            check_output(written, data or "", *read)
    if is_parts and queries is not None and isinstance(target, Path):
        from oneshot.batch.job import Job

        job = Job(
            run=opened.path,
            queries=queries,
            out=target,
            data=None if data is None else download(data),
            seed=seed,
            settings=tuple(settings or ()),
            options=wanted,
            partition=partition,
            batch_size=batch_size,
            device=device,
            resume=resume,
        )
        answer_into_parts(job, workers, dask, json)
        return
    graph = None if data is None else load_data(data, seed).graph
    reasoner = opened.reasoner if graph is None else opened.reasoner_on(graph)
    reasoner.to(torch_device)
    if queries is not None and target is not None:
        answer_into(reasoner, queries, target, options, batch_size, json)
        return
    if candidates is not None:
        _check_candidates(reasoner, candidates, wanted["candidates"] or ())
    started = time.perf_counter()
    asked = [entity or "", *also] if also else entity or ""
    found = reasoner.predict(asked, relation or "", inverse=inverse, options=options)
    if plot is not None:
        _draw(found, plot)
    if not explain:  # then they are only for the plot
        found = replace(found, explanations=())
    value: dict[str, Any] = {**found.as_dict(), "seconds": time.perf_counter() - started}
    if plot is not None:
        value["picture"] = str(plot)
    if json:
        console.print_json(value)
        return
    _show(found)
    if plot is not None:
        console.note(f"plot: {plot}")


def _show(found: "Prediction") -> None:
    """Print a prediction for people."""
    console.print_table(
        f"({found.entity}, {found.relation}, ?)",
        ("answer", "score", "probability", ""),
        [
            (
                answer.entity,
                f"{answer.score:.3f}",
                "" if answer.probability is None else f"{answer.probability:.3f}",
                "known" if answer.known else "",
            )
            for answer in found
        ],
    )
    for explanation in found.explanations:
        console.stdout.print(str(explanation), soft_wrap=True)
    console.note(f"from {found.num_entities:,} entities and {found.num_edges:,} edges")


def _wanted(
    top: int | None,
    exclude_known: bool | None,
    min_probability: float | None,
    types: list[str] | None,
    candidates: Path | None,
) -> "AnswerKeywords":
    """The options of the answers that were given."""
    from oneshot.data.formats import read_names
    from oneshot.reasoner.answers import AnswerKeywords

    wanted = AnswerKeywords()
    if top is not None:
        wanted["top"] = top
    if exclude_known is not None:
        wanted["exclude_known"] = exclude_known
    if min_probability is not None:
        wanted["min_probability"] = min_probability
    if types:
        wanted["types"] = tuple(types)
    if candidates is not None:
        wanted["candidates"] = list(read_names(candidates, "entity"))
    return wanted


def _check_candidates(reasoner: "Reasoner", path: Path, names: Iterable[Any]) -> None:
    """Raise on the first unknown entity in a file of candidates, with its line."""
    for line, name in enumerate(names, 1):
        try:
            reasoner.entity_id(name)
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from error


def _check_use(
    entity: str | None,
    relation: str | None,
    one_only: dict[str, object],
    plot: Path | None,
    queries: Path | None,
    out: str | None,
) -> None:
    """Raise if the arguments contradict each other, or a plot cannot be drawn.

    `one_only`: those for one query, with their values.
    """
    if queries is None:
        if entity is None or relation is None:
            raise InputError("give an ENTITY and a RELATION, or a file of queries with --queries")
        if out is not None:
            raise InputError("--out works only with --queries; to save one answer, use --json")
    else:
        for name, given in one_only.items():
            if given:
                more = "; write RELATION⁻¹ in the file instead" if name == "--inverse" else ""
                raise InputError(f"{name} cannot be combined with --queries{more}")
        if out is None:
            raise InputError("--queries needs --out, the output for the answers")
    if plot is not None:
        _check_plot(plot)


def _draw(found: "Prediction", plot: Path) -> None:
    """Plot the explanation of the best answer."""
    if not found.explanations:
        raise InputError("there is no answer to plot")
    getattr(found.explanations[0], f"to_{plot.suffix[1:].lower()}")(plot)


def _check_plot(path: Path) -> None:
    """Raise if no plot can be written to the path; called before the long work starts."""
    from oneshot.errors import require

    if path.suffix.lower() not in (".png", ".svg", ".html"):
        raise InputError(f"{path}: the plot of an explanation must end in .png, .svg or .html")
    if path.is_dir():
        raise InputError(f"{path} is a directory")
    if path.suffix.lower() == ".png":
        require("matplotlib", "plot", "plotting")


def is_directory_of_parts(out: Path, given: Sequence[str]) -> bool:
    """Whether the answers go to a directory. `given`: the options in use that need a directory.

    A name without suffix, or with the suffix .parquet, may be a directory.
    """
    from oneshot.batch.answers import ENDINGS

    ending = out.suffix.lower()
    if given and ending in ENDINGS and ending != ".parquet":
        raise InputError(
            f"{out}: with {given[0]} the output is a directory of Parquet parts; choose a name "
            f"without {ending}"
        )
    return bool(given) or not ending or out.is_dir()


def _target(out: str, given: Sequence[str]) -> "Path | Address":
    """Where the answers go; raises if a database does not accept them.

    `given`: the options in use that need a directory.
    """
    from oneshot.data.sources import check_target

    target = output(out)
    if not isinstance(target, Path):
        if given:
            raise InputError(f"{given[0]} needs a directory as --out, not a database")
        with console.status(f"connecting to {target}"):
            check_target(target)
    return target


def answer_into_parts(job: "Job", workers: int | None, dask: str | None, json: bool) -> None:
    """Answer a file of queries into a directory, with several processes."""
    from oneshot.batch.job import run_job

    if workers is not None and dask is not None:
        raise InputError(
            "--workers starts local processes, --dask uses those of a cluster; give one"
        )
    try:
        value = run_job(job, workers or 1, dask)
    except KeyboardInterrupt:
        console.note("stopped; the finished parts are kept; run the same command again to resume")
        raise typer.Exit(130) from None
    if json:
        console.print_json(value)
        return
    if value["already_finished"]:
        console.note(f"{value['out']}: all {value['queries']:,} queries are already answered")
    else:
        _report(value["out"], value["queries"], value["seconds"], value["unanswered"])


def answer_into(
    reasoner: "Reasoner",
    queries: Path,
    target: "Path | Address",
    options: "AnswerOptions",
    batch_size: int | None,
    json: bool,
) -> None:
    """Answer a file of queries into a file or a database."""
    if isinstance(target, Path):
        answer_into_file(reasoner, queries, target, options, batch_size, json)
    else:
        answer_into_database(reasoner, queries, target, options, batch_size, json)


def answer_into_file(
    reasoner: "Reasoner",
    queries: Path,
    out: Path,
    options: "AnswerOptions",
    batch_size: int | None,
    json: bool,
) -> None:
    """Answer a file of queries into another file."""
    from oneshot.batch.answers import answer_queries, check_answers_path
    from oneshot.batch.queries import check_queries

    check_answers_path(out)
    check_names_output(out, reasoner)
    started = time.perf_counter()
    with console.status(f"checking {queries}"):
        count = check_queries(reasoner, queries)
    with console.progress_bar() as progress:
        task = progress.add_task("answering", total=count)
        unanswered = answer_queries(
            reasoner,
            queries,
            out,
            options,
            batch_size=batch_size,
            progress=lambda done: progress.advance(task, done),
        )
    seconds = time.perf_counter() - started
    if json:
        value = {"out": str(out), "queries": count, "unanswered": unanswered, "seconds": seconds}
        console.print_json(value)
        return
    _report(str(out), count, seconds, unanswered)


def answer_into_database(
    reasoner: "Reasoner",
    queries: Path,
    address: "Address",
    options: "AnswerOptions",
    batch_size: int | None,
    json: bool,
) -> None:
    """Answer a file of queries, and write the new facts to a database."""
    from oneshot.batch.links import answer_as_links
    from oneshot.batch.queries import check_queries

    started = time.perf_counter()
    with console.status(f"checking {queries}"):
        count = check_queries(reasoner, queries)
    with console.progress_bar() as progress:
        task = progress.add_task("answering", total=count)
        written = answer_as_links(
            reasoner,
            queries,
            address,
            options,
            batch_size=batch_size,
            progress=lambda done: progress.advance(task, done),
        )
    seconds = time.perf_counter() - started
    if json:
        value = {"out": str(address), "queries": count, "unanswered": written.unanswered}
        console.print_json({**value, "links": written.links, "seconds": seconds})
        return
    _report(str(address), count, seconds, written.unanswered)
    console.note(relationships(written.links))


def _report(out: str, count: int, seconds: float, unanswered: int) -> None:
    console.note(f"{out}: answers to {count:,} queries in {seconds:.1f} s")
    if unanswered:
        console.note(
            f"{unanswered:,} without answers: the entity has no facts, or all answers are known or "
            "left out by the options"
        )
