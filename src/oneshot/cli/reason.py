"""The commands about reasoners: train, evaluate, predict."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from oneshot import console
from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    RunArgument,
    SeedOption,
    SetOption,
    load_data,
)
from oneshot.errors import InputError


def train(
    source: DataArgument,
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run directory to write.")],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Configuration in TOML.")
    ] = None,
    settings: SetOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run in --out left off.")
    ] = False,
    json: JsonOption = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Seed; the configuration's if not given."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Train a reasoner, keep the best epoch by validation MRR, evaluate it once on test."""
    from oneshot.config import from_table, read_config
    from oneshot.devices import find_device
    from oneshot.jobs import train_run

    place = find_device(device)
    changes = list(settings or []) + ([] if seed is None else [f"training.seed={seed}"])
    chosen = from_table({}, changes) if config is None else read_config(config, changes)
    dataset = load_data(source, chosen.training.seed)
    result = train_run(dataset, out, chosen, place, resume)
    if json:
        console.print_json(result)
        return
    if result["already_finished"]:
        console.note(f"{out}: this run is finished; nothing was left to do")
    _print_report(f"{dataset.name}, test split", result["test"])
    console.note(f"run: {out}")


def evaluate(
    run: RunArgument,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="Another data set than the run's own."),
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only so many queries, drawn with the seed.")
    ] = None,
    settings: SetOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Queries answered at once.")] = 16,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Filtered ranking of held-out facts, in both directions."""
    from oneshot import evaluation
    from oneshot.devices import find_device
    from oneshot.runs import load_reasoner, run_data, run_graph

    place = find_device(device)
    dataset = run_data(run) if data is None else load_data(data, seed)
    graph = run_graph(run, dataset.graph) if data is None else dataset.graph
    reasoner = load_reasoner(run, graph, settings).to(place)
    facts = reasoner.renumbered(dataset.graph, dataset.facts(split))
    known = reasoner.renumbered(dataset.graph, dataset.known)
    asked = min(2 * len(facts), limit or 2 * len(facts))
    with console.progress_bar() as progress:
        task = progress.add_task("evaluating", total=asked)
        report = evaluation.evaluate(
            reasoner,
            facts,
            known,
            batch_size=batch_size,
            limit=limit,
            seed=seed,
            progress=lambda done: progress.advance(task, done),
        )
    if json:
        console.print_json({"data": dataset.name, "split": split, **report.as_dict()})
        return
    _print_report(f"{dataset.name}, {split} split", report.as_dict())


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
    data: Annotated[
        str | None, typer.Option("--data", metavar="DATA", help="Another graph than the run's own.")
    ] = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Answer one question."""
    from oneshot.devices import find_device
    from oneshot.runs import load_reasoner

    place = find_device(device)
    graph = None if data is None else load_data(data, seed).graph
    reasoner = load_reasoner(run, graph, settings).to(place)
    if entity is None or relation is None:
        raise InputError("name an ENTITY and a RELATION")
    started = time.perf_counter()
    found = reasoner.predict(
        entity, relation, inverse=inverse, top=top, exclude_known=exclude_known
    )
    value = {
        "query": {"entity": found.entity, "relation": found.relation},
        "answers": [vars(answer) for answer in found],
        "subgraph": {"entities": found.num_entities, "edges": found.num_edges},
        "seconds": time.perf_counter() - started,
    }
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
    console.note(f"from {found.num_entities:,} entities and {found.num_edges:,} edges")


def _print_report(title: str, report: dict[str, Any]) -> None:
    names = ("mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "coverage", "queries", "seconds")
    console.print_table(
        title,
        ("", "value"),
        [
            (
                name.replace("_", " "),
                f"{report[name]:,}" if name == "queries" else f"{report[name]:.4f}",
            )
            for name in names
        ],
    )
