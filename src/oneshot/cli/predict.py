"""The command that asks: predict, one question or a file of them."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot import console
from oneshot.cli.options import (
    DeviceOption,
    JsonOption,
    RunArgument,
    SeedOption,
    SetOption,
    check_output,
    load_data,
)
from oneshot.errors import InputError

if TYPE_CHECKING:
    from oneshot.answers import Prediction
    from oneshot.explanation import Explanation
    from oneshot.reasoner import Reasoner


def predict(
    run: RunArgument,
    entity: Annotated[str | None, typer.Argument(help="The entity that is asked about.")] = None,
    relation: Annotated[str | None, typer.Argument(help="The relation.")] = None,
    inverse: Annotated[
        bool, typer.Option("--inverse", help="Ask (?, RELATION, ENTITY) instead.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many answers.")] = 10,
    exclude_known: Annotated[
        bool, typer.Option("--exclude-known", help="Leave out facts of the graph.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the paths that carry each answer's score.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the best answer's reasons: .png, .svg or .html."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Questions: two columns, in .tsv, .csv or .parquet."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where their answers go: .jsonl, .tsv or .parquet."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions answered at once.")] = 16,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DATA", help="Another graph than the run's own.")
    ] = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Answer one question, or a file of them."""
    from oneshot.devices import find_device
    from oneshot.runs import load_reasoner, run_files

    _check_use(entity, relation, inverse, explain, plot, queries, out)
    place = find_device(device)
    for target in (plot, out):
        if target is not None:
            read = [*run_files(run), *([] if queries is None else [queries])]
            check_output(target, data or "", *read)
    graph = None if data is None else load_data(data, seed).graph
    reasoner = load_reasoner(run, graph, settings).to(place)
    if queries is not None and out is not None:
        _predict_file(reasoner, queries, out, top, exclude_known, batch_size, json)
        return
    started = time.perf_counter()
    head, label = reasoner.query(entity or "", relation or "", inverse)
    found = reasoner.predict(head, label, top=top, exclude_known=exclude_known)
    value: dict[str, Any] = {
        "query": {"entity": found.entity, "relation": found.relation},
        "answers": [vars(answer) for answer in found],
        "subgraph": {"entities": found.num_entities, "edges": found.num_edges},
    }
    reasons = _reasons(reasoner, (head, label), found, explain, plot)
    for answer, reason in zip(value["answers"], reasons if explain else (), strict=False):
        answer["paths"] = reason.as_dict()["paths"]
    value["seconds"] = time.perf_counter() - started
    if plot is not None:
        value["picture"] = str(plot)
    if json:
        console.print_json(value)
        return
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
    for reason in reasons if explain else ():
        console.stdout.print(str(reason), soft_wrap=True)
    console.note(f"from {found.num_entities:,} entities and {found.num_edges:,} edges")
    if plot is not None:
        console.note(f"picture: {plot}")


def _check_use(
    entity: str | None,
    relation: str | None,
    inverse: bool,
    explain: bool,
    plot: Path | None,
    queries: Path | None,
    out: Path | None,
) -> None:
    """Raise if the arguments contradict each other, or a picture cannot be drawn."""
    if queries is None:
        if entity is None or relation is None:
            raise InputError("name an ENTITY and a RELATION, or a file of questions with --queries")
        if out is not None:
            raise InputError("--out is for the answers to --queries; to keep one answer use --json")
    else:
        one_only = {
            "ENTITY and RELATION": entity is not None,
            "--inverse": inverse,
            "--explain": explain,
            "--plot": plot is not None,
        }
        for name, given in one_only.items():
            if given:
                more = "; write RELATION⁻¹ in the file instead" if name == "--inverse" else ""
                raise InputError(f"{name} cannot stand beside --queries{more}")
        if out is None:
            raise InputError("--queries needs --out: where the answers go")
    if plot is not None:
        _check_plot(plot)


def _reasons(
    reasoner: "Reasoner",
    query: tuple[int, int],
    found: "Prediction",
    explain: bool,
    plot: Path | None,
) -> list["Explanation"]:
    """Explanations of the answers (of the best one only, if just a picture is wanted)."""
    if not explain and plot is None:
        return []
    wanted = found[:] if explain else found[:1]
    reasons = [reasoner.explain(*query, answer.entity) for answer in wanted]
    if plot is not None:
        if not reasons:
            raise InputError("there is no answer to draw")
        getattr(reasons[0], f"to_{plot.suffix[1:].lower()}")(plot)
    return reasons


def _check_plot(path: Path) -> None:
    """Raise if no picture can be written there; before the long work starts."""
    from oneshot.errors import require

    if path.suffix.lower() not in (".png", ".svg", ".html"):
        raise InputError(f"{path}: a picture of reasons ends in .png, .svg or .html")
    if path.is_dir():
        raise InputError(f"{path}: is a directory")
    if path.suffix.lower() == ".png":
        require("matplotlib", "plot", "drawing a picture")


def _predict_file(
    reasoner: "Reasoner",
    queries: Path,
    out: Path,
    top: int,
    exclude_known: bool,
    batch_size: int,
    json: bool,
) -> None:
    """Answer a file of questions."""
    from oneshot.answering import answer_questions, check_answers_place
    from oneshot.questions import check_questions

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
    console.note(f"{out}: answers to {count:,} questions in {seconds:.1f} s")
    if unanswered:
        console.note(f"{unanswered:,} have none: their entity has no fact, or all are known")
