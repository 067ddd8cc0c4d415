"""The commands that measure speed."""

from pathlib import Path
from typing import Annotated

import typer

from oneshot import console
from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    SeedOption,
    count,
    drawn,
    load_data,
    parts,
)


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
    from oneshot.files import write_json
    from oneshot.samplers import PPRSampler

    place = find_device(device)
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
