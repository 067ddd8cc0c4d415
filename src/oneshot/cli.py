"""The command line: parse, call the library, print."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot import console
from oneshot._version import __version__
from oneshot.errors import InputError, OneshotError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

    from oneshot.datasets import Dataset

app = typer.Typer(
    name="oneshot",
    help="Link prediction on large knowledge graphs: one small subgraph per question.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(no_args_is_help=True, help="Time our code against plain formulations.")
app.add_typer(bench, name="bench")

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A bundled name (world, umls), family:PEOPLE, random:ENTITIES:FACTS, a directory "
        "with train, valid and test files, a saved graph, one file of triples, or a name in "
        "$ONESHOT_DATA.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout.")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of everything random.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def main() -> None:
    """Run the command line; bad input ends with a message and exit code 2, not a traceback."""
    try:
        app()
    except OneshotError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError:
        _fail("the memory of this machine is too small for this; take a smaller graph or budget")


def _fail(message: str) -> None:
    console.stderr.print(f"error: {message}", soft_wrap=True)
    sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.stdout.print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def data(
    source: DataArgument,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save as a memory-mapped graph.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Show what is in a data set, or save it in a form that opens in milliseconds."""
    from oneshot.devices import find_device
    from oneshot.storage import check_place

    find_device(device)
    if save is not None:
        check_place(save)
    dataset = _load(source, seed)
    summary = _summary(dataset)
    if json:
        summary["fingerprint"] = dataset.graph.fingerprint  # takes a sort of all facts
    if save is not None:
        with console.status(f"saving to {save}"):
            dataset.save(save)
        summary["saved"] = str(save)
    if json:
        console.print_json(summary)
        return
    console.print_table(
        f"{dataset.name}",
        ("", "count"),
        [
            (key.replace("_", " "), f"{value:,}")
            for key, value in summary.items()
            if isinstance(value, int)
        ],
    )
    for pair, count in summary["overlaps"].items():
        if count:
            console.note(f"{count:,} facts stand in both splits of {pair}")
    for remark in dataset.notes:
        console.note(remark)
    if save is not None:
        console.note(f"saved: {save}")


@app.command()
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
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only so many queries, drawn with the seed.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw coverage against budget.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Measure how often the answer is in a sampler's subgraph, in both query directions."""
    from oneshot.coverage import coverage as measure
    from oneshot.devices import find_device
    from oneshot.samplers import SAMPLERS

    place = find_device(device)
    names = _names(sampler)
    if ratio is not None and max_entities is not None:
        raise InputError("give either --ratio or --max-entities, not both")
    if max_entities is not None:
        budgets: list[float] = [
            _count(text, "--max-entities") for text in _parts(max_entities, "--max-entities")
        ]
    else:
        shares = "0.1,0.2,0.5" if ratio is None else ratio
        budgets = [_ratio(text) for text in _parts(shares, "--ratio")]
    if plot is not None:
        from oneshot.report.coverage import check_picture

        check_picture(plot)
    dataset = _load(source, seed)
    queries, answers = dataset.queries(split)
    if limit is not None:
        chosen = _drawn(len(queries), limit, seed)
        queries, answers = queries[chosen], answers[chosen]
    graph = dataset.graph.to(place)
    largest = max(budgets)
    size: Any = {"max_entities" if isinstance(largest, int) else "entity_ratio": largest}
    rows = []
    with console.progress_bar() as progress:
        for name in names:
            task = progress.add_task(name, total=len(queries))
            rows.append(
                measure(
                    SAMPLERS[name](**size, seed=seed),
                    graph,
                    queries,
                    answers,
                    budgets,
                    lambda done, task=task: progress.advance(task, done),  # type: ignore[misc]
                )
            )
    if plot is not None:
        from oneshot.report.coverage import plot_coverage

        plot_coverage(rows, f"{dataset.name}, {split} split", plot)
    if json:
        as_text = [
            asdict(row)
            | {key: {f"{b:g}": v for b, v in getattr(row, key).items()} for key in _SHARES}
            for row in rows
        ]
        value: dict[str, Any] = {"data": dataset.name, "split": split, "rows": as_text}
        console.print_json(value | ({"picture": str(plot)} if plot else {}))
        return
    console.print_table(
        f"Coverage on {dataset.name}, {split} split, {rows[0].queries:,} queries",
        ("sampler", *(f"{budget:g}" for budget in budgets), "seconds"),
        [
            (row.sampler, *(f"{row.coverage[b]:.4f}" for b in budgets), f"{row.seconds:.1f}")
            for row in rows
        ],
    )
    if plot is not None:
        console.note(f"picture: {plot}")


@bench.command("sampler")
def bench_sampler(
    source: DataArgument = "world",
    ratio: Annotated[float | None, typer.Option(help="Share of the entities. [0.1]")] = None,
    max_entities: Annotated[
        int | None, typer.Option(min=1, help="Count of entities instead of a share.")
    ] = None,
    queries: Annotated[str, typer.Option(help="How many entities to ask about, or 'all'.")] = "512",
    method: Annotated[str, typer.Option(help="auto, chebyshev, power or push.")] = "auto",
    baselines: Annotated[
        str, typer.Option("--with", help="networkx, scipy, pyg; comma-separated, or 'none'.")
    ] = "networkx,scipy,pyg",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the result as JSON.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Time PPR and the choice of entities against networkx, scipy and PyTorch Geometric."""
    import torch

    from oneshot.bench import sampler as sampler_bench
    from oneshot.devices import find_device
    from oneshot.files import write_json
    from oneshot.samplers import PPRSampler

    place = find_device(device)
    dataset = _load(source, seed)
    graph = dataset.graph.to(place)
    size = graph.num_entities if queries == "all" else _count(queries, "--queries")
    entities = _drawn(graph.num_entities, size, seed).to(place)
    asked = torch.stack([entities, torch.zeros_like(entities)], dim=1)
    sampler = PPRSampler(ratio, max_entities=max_entities, method=method)  # type: ignore[arg-type]
    names = [] if baselines == "none" else _parts(baselines, "--with")
    with console.status("measuring"):
        result = sampler_bench.bench_sampler(graph, sampler, asked, names, note=console.note)
    result = {"data": dataset.name, **result}
    if out is not None:
        write_json(out, result)
    if json:
        console.print_json(result)
        return
    rows = {"ours": result["ours"], **result["baseline"]}
    console.print_table(
        f"The {result['chosen_entities']:,} entities of highest PPR on {dataset.name} "
        f"({result['method']})",
        ("", "queries/s", "recall", "peak MB", "ours is faster by"),
        [
            (
                name,
                f"{row['queries_per_second']:,.1f}",
                f"{row['recall']:.4f}",
                "–" if row["peak_megabytes"] is None else f"{row['peak_megabytes']:,.0f}",
                f"{result['ratio'][name]:,.1f} ×" if name in result["ratio"] else "",
            )
            for name, row in rows.items()
        ],
    )
    console.note(f"with subgraphs: {result['ours']['subgraphs_per_second']:,.1f} queries/s")


_SHARES = ("coverage", "reachable")


def _load(source: str, seed: int) -> "Dataset":
    from oneshot.datasets import load

    with console.status(f"reading {source}"):
        return load(source, seed=seed)


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


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError(f"{option} is empty; give one value or several, separated by commas")
    return parts


def _names(text: str) -> list[str]:
    from oneshot.samplers import SAMPLERS

    names = _parts(text, "--sampler")
    for name in names:
        if name not in SAMPLERS:
            raise UnknownNameError("sampler", name, SAMPLERS)
    return names


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"--ratio: {text!r} is not a number") from None
    if not 0 < value <= 1:
        raise InputError(f"--ratio: {text} must be above 0 and at most 1")
    return value


def _count(text: str, option: str) -> int:
    # Longer numbers do not fit 64 bits; no graph has as many entities.
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise InputError(f"{option}: {text!r} is not a whole number from 1 to 10^18")
    return int(text)


def _drawn(total: int, limit: int, seed: int) -> "Tensor":
    """A seeded sample of at most `limit` of `total` rows, ascending."""
    import torch

    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return order[:limit].sort().values
