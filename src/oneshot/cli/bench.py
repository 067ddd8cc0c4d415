"""The commands that measure speed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot import console
from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    SeedOption,
    SetOption,
    check_output,
    count,
    drawn,
    load_data,
    parts,
)

if TYPE_CHECKING:
    from oneshot.config import Config

ConfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE.toml", help="The configuration to measure.")
]


def sampler(
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
    from oneshot.samplers import PPRSampler

    place = find_device(device)
    if out is not None:
        check_output(out, source)
    dataset = load_data(source, seed)
    graph = dataset.graph.to(place)
    size = graph.num_entities if queries == "all" else count(queries, "--queries")
    entities = drawn(graph.num_entities, size, seed).to(place)
    asked = torch.stack([entities, torch.zeros_like(entities)], dim=1)
    chosen = PPRSampler(ratio, max_entities=max_entities, method=method)  # type: ignore[arg-type]
    names = [] if baselines == "none" else parts(baselines, "--with")
    with console.status("measuring"):
        result = sampler_bench.bench_sampler(graph, chosen, asked, names, note=console.note)
    result = {"data": dataset.name, **result}
    _finish(result, out, json)
    if json:
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


def predictor(
    source: DataArgument = "world",
    queries: Annotated[int, typer.Option(min=1, help="Queries of a step.")] = 16,
    config: ConfigOption = None,
    settings: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the result as JSON.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Time a training step against the same network written edge by edge."""
    from oneshot.bench.predictor import bench_predictor
    from oneshot.devices import find_device

    place = find_device(device)
    if out is not None:
        check_output(out, source)
    dataset = load_data(source, seed)
    asked, answers = dataset.queries("valid")
    chosen = drawn(len(asked), queries, seed)
    with console.status("measuring"):
        result = bench_predictor(
            dataset, _configuration(config, settings), asked[chosen], answers[chosen], place
        )
    result = {"data": dataset.name, **result}
    _finish(result, out, json)
    if json:
        return
    rows = {**result["variants"], **result["baseline"]}
    console.print_table(
        f"{result['queries']} queries on {dataset.name}: {result['edges']:,} edges, dimension "
        f"{result['dim']}, {result['layers']} layers",
        ("", "step, ms", "peak, MB", "inference, queries/s"),
        [
            (
                name,
                f"{row['step_milliseconds']:,.2f}",
                "–" if row["peak_megabytes"] is None else f"{row['peak_megabytes']:,.0f}",
                f"{row['inference_queries_per_second']:,.0f}",
            )
            for name, row in rows.items()
        ],
    )


def end_to_end(
    source: DataArgument = "world",
    steps: Annotated[int, typer.Option(min=1, help="Steps to train.")] = 20,
    limit: Annotated[int, typer.Option(min=1, help="Validation queries to answer.")] = 256,
    config: ConfigOption = None,
    settings: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the result as JSON.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Time training and evaluation, sampling included, against the usual way of writing it."""
    from oneshot.bench.predictor import bench_end_to_end
    from oneshot.devices import find_device

    place = find_device(device)
    if out is not None:
        check_output(out, source)
    dataset = load_data(source, seed)
    with console.status("measuring"):
        result = bench_end_to_end(dataset, _configuration(config, settings), place, steps, limit)
    result = {"data": dataset.name, **result}
    _finish(result, out, json)
    if json:
        return
    rows = {"ours": result["ours"], **result["baseline"]}
    console.print_table(
        f"Training and evaluation on {dataset.name}",
        ("", "training, queries/s", "evaluation, queries/s", "s per epoch", "s for valid + test"),
        [(name, *(f"{value:,.1f}" for value in row.values())) for name, row in rows.items()],
    )


def _configuration(path: Path | None, settings: list[str] | None) -> "Config":
    from oneshot.config import from_table, read_config

    return from_table({}, settings or []) if path is None else read_config(path, settings or [])


def _finish(result: dict[str, Any], out: Path | None, json: bool) -> None:
    """Write and print a result as JSON, where wanted."""
    from oneshot.files import write_json

    if out is not None:
        write_json(out, result)
    if json:
        console.print_json(result)
