"""The commands about data: what is in it, and how well samplers cover it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    LimitOption,
    SeedOption,
    SplitOption,
    check_output,
    count,
    download,
    drawn,
    load_data,
    parts,
)
from oneshot.errors import InputError, UnknownNameError
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.data.load import Dataset

_SHARES = ("coverage", "reachable")


def data(
    source: DataArgument,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save as a memory-mapped graph.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every file of a saved graph.")
    ] = False,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Show what is in a data set, or save it in a form that opens in milliseconds.

    Large text and Parquet files are saved without ever being in memory as a whole; if that is
    interrupted, the same command goes on.
    """
    from oneshot.graph.saved import MARKER, check_place
    from oneshot.system.devices import find_device

    find_device(device)
    if save is not None:
        check_place(save)
        check_output(save / MARKER, source)
    if verify:
        _verify(source)
    built = save is not None and _build(source, save, seed)
    dataset = load_data(str(save) if built else source, seed)
    with console.status("comparing the splits"):
        summary = _summary(dataset)
    if json:
        summary["fingerprint"] = dataset.graph.fingerprint  # takes a sort of all facts
    if save is not None:
        if not built:
            with console.status(f"saving to {save}"):
                dataset.save(save)
        summary["saved"] = str(save)
    if verify:
        summary["verified"] = True
    if json:
        console.print_json(summary)
        return
    console.print_table(
        f"{dataset.name}",
        ("", "count"),
        [
            (key.replace("_", " "), f"{value:,}")
            for key, value in summary.items()
            if isinstance(value, int) and not isinstance(value, bool)
        ],
    )
    for pair, shared in summary["overlaps"].items():
        if shared:
            console.note(f"{shared:,} facts stand in both splits of {pair}")
    for remark in dataset.notes:
        console.note(remark)
    if verify:
        console.note("every file has the checksum that it was saved with")
    if save is not None:
        console.note(f"saved: {save}")


def coverage(
    source: DataArgument,
    sampler: Annotated[
        str, typer.Option(help="ppr, bfs, random_walk, pagerank, random; comma-separated.")
    ] = "ppr",
    ratio: Annotated[
        str | None, typer.Option(help="Shares of the entities, comma-separated. [0.1,0.2,0.5]")
    ] = None,
    max_entities: Annotated[
        str | None, typer.Option(help="Counts of entities instead of shares, comma-separated.")
    ] = None,
    split: SplitOption = "test",
    limit: LimitOption = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw coverage against budget.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Measure how often the answer is in a sampler's subgraph, in both query directions."""
    from oneshot.evaluation.coverage import budget_label
    from oneshot.evaluation.coverage import coverage as measure
    from oneshot.samplers import SAMPLERS
    from oneshot.system.devices import find_device

    place = find_device(device)
    names = _names(sampler)
    if ratio is not None and max_entities is not None:
        raise InputError("give either --ratio or --max-entities, not both")
    if max_entities is not None:
        budgets: list[float] = [
            count(text, "--max-entities") for text in parts(max_entities, "--max-entities")
        ]
    else:
        shares = "0.1,0.2,0.5" if ratio is None else ratio
        budgets = [_ratio(text) for text in parts(shares, "--ratio")]
    if plot is not None:
        from oneshot.plots.coverage import check_picture

        check_picture(plot)
        check_output(plot, source)
    dataset = load_data(source, seed)
    queries, answers = dataset.queries(split)
    if not len(queries):
        raise InputError(
            f"the {split} split of {dataset.name} is empty: there are too few facts to hold any "
            "out; take a larger file, or --split train"
        )
    for remark in dataset.notes:
        console.note(remark)
    if limit is not None:
        chosen = drawn(len(queries), limit, seed)
        queries, answers = queries[chosen], answers[chosen]
    graph = dataset.graph.to(place)
    largest = max(budgets)
    size: Any = {"max_entities" if isinstance(largest, int) else "entity_ratio": largest}
    rows = []
    with console.progress_bar() as progress:
        for name in names:
            task = progress.add_task(name, total=len(queries))
            chosen_sampler = SAMPLERS[name](**size, seed=seed)
            chosen_sampler.fit(graph, seed)
            rows.append(
                measure(
                    chosen_sampler,
                    graph,
                    queries,
                    answers,
                    budgets,
                    lambda done, task=task: progress.advance(task, done),  # type: ignore[misc]
                )
            )
    if plot is not None:
        from oneshot.plots.coverage import plot_coverage

        plot_coverage(rows, f"{dataset.name}, {split} split", plot)
    if json:
        as_text = [
            asdict(row)
            | {key: {budget_label(b): v for b, v in getattr(row, key).items()} for key in _SHARES}
            for row in rows
        ]
        value: dict[str, Any] = {"data": dataset.name, "split": split, "rows": as_text}
        console.print_json(value | ({"picture": str(plot)} if plot else {}))
        return
    console.print_table(
        f"Coverage on {dataset.name}, {split} split, {rows[0].queries:,} queries",
        ("sampler", *map(budget_label, budgets), "seconds"),
        [
            (row.sampler, *(f"{row.coverage[b]:.4f}" for b in budgets), f"{row.seconds:.1f}")
            for row in rows
        ],
    )
    if plot is not None:
        console.note(f"picture: {plot}")


def _verify(source: str) -> None:
    """Check the files of a saved graph, with a bar."""
    from oneshot.data.locate import look_for
    from oneshot.graph.saved import is_saved_graph, verify_graph

    path = look_for(source)
    if path is None or not is_saved_graph(path):
        raise InputError(f"{source}: --verify is for saved graphs, and this is none")
    with console.progress_bar(with_counts=False) as bar:
        task = bar.add_task(f"checking {source}", total=None)
        verify_graph(path, lambda done, total: bar.update(task, completed=done, total=total))


def _build(source: str, save: Path, seed: int) -> bool:
    """Build a saved graph from large files on the disk; false if it fits into memory."""
    from oneshot.data.large.build import build_graph
    from oneshot.data.large.state import Options, building_place
    from oneshot.data.load import large_files
    from oneshot.system.process import return_freed_memory

    download(source)
    files = large_files(source)
    if files is None:
        return False
    place = building_place(save)
    if place.exists():
        console.note(f"going on with what an interrupted build left in {place}")
    try:
        with console.progress_bar(with_counts=False) as bar:
            tasks: dict[str, Any] = {}

            def progress(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=total)
                bar.update(tasks[what], completed=done)

            build_graph(files, save, Options(seed=seed), progress)
    except KeyboardInterrupt:
        console.note(f"the same command goes on from here; what is done lies in {place}")
        raise
    return_freed_memory()  # else it would stand beside the pages of the graph
    return True


def _summary(dataset: "Dataset") -> dict[str, Any]:
    return {
        "name": dataset.name,
        "entities": len(dataset.entities),
        "relations": len(dataset.relations),
        "train": dataset.graph.num_facts,
        "valid": len(dataset.valid),
        "test": len(dataset.test),
        "duplicates": dataset.duplicates,
        "unseen_entities": dataset.unseen_entities,
        "overlaps": dataset.overlaps,
        "notes": list(dataset.notes),
    }


def _names(text: str) -> list[str]:
    from oneshot.samplers import SAMPLERS

    names = parts(text, "--sampler")
    for name in names:
        if name not in SAMPLERS:
            raise UnknownNameError.among("sampler", name, SAMPLERS)
    return names


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"--ratio: {text!r} is not a number") from None
    if not 0 < value <= 1:
        raise InputError(f"--ratio: {text} must be above 0 and at most 1")
    return value
