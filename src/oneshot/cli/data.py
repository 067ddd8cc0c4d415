"""The command that shows and saves a data set."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    SeedOption,
    WeightsOption,
    check_output,
    download,
    load_data,
    shown,
)
from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    from torch import Tensor

    from oneshot.data.load import Dataset
    from oneshot.samplers.push_recall import Measured


def data(
    source: DataArgument,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save as a memory-mapped graph in DIR.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the checksum of every file of a saved graph.")
    ] = False,
    weights: WeightsOption = None,
    hub_index: Annotated[
        bool | None,
        typer.Option(
            "--hub-index/--no-hub-index",
            help="Build the hub index of a saved graph, 64 MB at most, or save a graph without it "
            "(default: if the local push finds too little without it).",
            show_default=False,
        ),
    ] = None,
    sha256: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HASH",
            help="Expected SHA-256 of the file that a public data set is downloaded from, or one "
            "per file (default: that of the first download).",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Show the contents of a data set, or save it as a graph that opens in milliseconds.

    Large text and Parquet files without --weights are converted on disk and never loaded as a
    whole; after an interruption, the same command resumes the conversion.
    """
    from oneshot.data.load import check_weighted_source
    from oneshot.graph.storage import MARKER, check_destination
    from oneshot.system.devices import find_device

    find_device(device)
    measured: Measured | None = None
    if save is not None:
        check_destination(save)
        check_output(save / MARKER, source)
    if save is None and hub_index is not None:
        if not hub_index:
            raise InputError("--no-hub-index needs --save")
        measured = _measure(_saved_graph(source, "--hub-index"), hub_index)
    if verify:
        _verify(source)
    check_weighted_source(source, weights)  # of the address, before it is that of a copy
    source = download(source, sha256 or ())
    # Only facts without weights are converted on disk.
    built = save is not None and weights is None and _build(source, save, seed)
    dataset = load_data(str(save) if built else source, seed, weights)
    with console.status("comparing the splits"):
        summary = _summary(dataset)
    summary["downloads"] = _downloads(source)
    if json:
        summary["fingerprint"] = dataset.graph.fingerprint  # takes a sort of all facts
    if save is not None:
        if not built:
            with console.status(f"saving to {save}"):
                dataset.save(save)
        summary["saved"] = str(save)
        measured = _measure(save, hub_index)
    if measured is not None:
        summary |= measured._asdict()
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
    if summary["weights"] is not None:
        found = ", ".join(f"{name} {value:.4g}" for name, value in summary["weights"].items())
        console.note(f"weights of the training facts: {found}")
    for pair, shared in summary["overlaps"].items():
        if shared:
            console.note(f"{shared:,} facts occur in both splits of {pair}")
    for remark in dataset.notes:
        console.note(remark)
    if verify:
        console.note("the checksums of all files are correct")
    if measured is not None:
        for line in _on_push(measured):
            console.note(line)
    if save is not None:
        console.note(f"saved: {save}")


def _verify(source: str) -> None:
    """Verify the files of a saved graph, with a progress bar."""
    from oneshot.graph.storage import verify_graph

    path = _saved_graph(source, "--verify")
    with console.progress_bar(with_counts=False) as bar:
        task = bar.add_task(f"checking {source}", total=None)
        verify_graph(path, lambda done, total: bar.update(task, completed=done, total=total))


def _saved_graph(source: str, option: str) -> Path:
    """The directory of a saved graph, which an option needs."""
    from oneshot.data.locate import look_for
    from oneshot.graph.storage import is_saved_graph

    path = look_for(source)
    if path is None or not is_saved_graph(path):
        raise InputError(f"{shown(source)}: not a saved graph; {option} needs one")
    return path


def _build(source: str, save: Path, seed: int) -> bool:
    """Build a saved graph on disk from large files; false if they fit into memory."""
    from oneshot.data.large.build import build_graph
    from oneshot.data.large.state import Options, building_place
    from oneshot.data.load import large_files
    from oneshot.system.process import return_freed_memory

    files = large_files(source)
    if files is None:
        return False
    partial = building_place(save)
    if partial.exists():
        console.note(f"resuming the interrupted build in {partial}")
    try:
        with console.progress_bar(with_counts=False) as bar:
            tasks: dict[str, Any] = {}

            def progress(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=total)
                bar.update(tasks[what], completed=done)

            build_graph(files, save, Options(seed=seed), progress)
    except KeyboardInterrupt:
        console.note(f"run the same command again to resume; finished parts are in {partial}")
        raise
    return_freed_memory()  # otherwise it adds to the mapped pages of the graph
    return True


def _downloads(source: str) -> list[dict[str, str]]:
    """The addresses and hashes of the files that a public data set was read from."""
    from oneshot.data.locate import look_for
    from oneshot.data.public.catalogue import is_named, source_hashes

    place = look_for(source) if is_named(source) else None
    found = {} if place is None else source_hashes(place)
    return [{"url": url, "sha256": value} for url, value in found.items()]


def _measure(save: Path, hub_index: bool | None) -> "Measured":
    """Measure the local push on the saved graph, if it has hubs and is large."""
    from oneshot.samplers.push_recall import measure_saved_graph

    with console.status("measuring the local push"):
        return measure_saved_graph(save, hub_index)


def _on_push(measured: "Measured") -> Iterator[str]:
    """What `method="auto"` does on a graph with these measurements."""
    from oneshot.samplers.ppr import PUSH_LEAST_RECALL

    if measured.hub_recall is not None:
        yield f"saved a hub index of {measured.hubs:,} entities"
    recall = measured.push_recall if measured.hub_recall is None else measured.hub_recall
    if recall is None:
        return
    if recall >= PUSH_LEAST_RECALL:
        yield f"the local push finds {recall:.3f} of the entities; small budgets use it"
    else:
        yield f"the local push finds only {recall:.3f} of the entities; PPR uses the whole graph"


def _range(weights: "Tensor | None") -> dict[str, float] | None:
    """The smallest, mean and largest weight; None if the facts have none."""
    if weights is None or not len(weights):
        return None
    mean = float(weights.double().mean())
    return {"min": float(weights.min()), "mean": mean, "max": float(weights.max())}


def _summary(dataset: "Dataset") -> dict[str, Any]:
    hub_index = dataset.graph.hub_index
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
        "push_recall": dataset.graph.push_recall,
        "hub_recall": dataset.graph.hub_recall,
        "hubs": len(hub_index.hubs) if hub_index is not None else 0,
        "weights": _range(dataset.graph.weights),
    }
