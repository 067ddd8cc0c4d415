"""The commands that measure speed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.config import Config

ConfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE.toml", help="Configuration to measure, in TOML.")
]


def sampler(
    source: DataArgument = "world",
    ratio: Annotated[
        float | None, typer.Option(help="Share of the entities in a subgraph.", show_default="0.1")
    ] = None,
    max_entities: Annotated[
        int | None,
        typer.Option(min=1, help="Number of entities in a subgraph, instead of --ratio."),
    ] = None,
    queries: Annotated[str, typer.Option(help="Number of query entities, or 'all'.")] = "512",
    method: Annotated[
        str, typer.Option(help="PPR method: auto, chebyshev, power or push.")
    ] = "auto",
    baselines: Annotated[
        str,
        typer.Option("--with", help="Baselines: networkx, scipy, pyg; comma-separated, or 'none'."),
    ] = "networkx,scipy,pyg",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the result to FILE as JSON.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Compare the speed of PPR and entity selection with networkx, scipy and PyTorch Geometric."""
    import torch

    from oneshot.experiments.bench import sampler as sampler_bench
    from oneshot.samplers import PPRSampler
    from oneshot.system.devices import find_device

    torch_device = find_device(device)
    if out is not None:
        check_output(out, source)
    dataset = load_data(source, seed)
    graph = dataset.graph.to(torch_device)
    size = graph.num_entities if queries == "all" else count(queries, "--queries")
    entities = drawn(graph.num_entities, size, seed).to(torch_device)
    query_pairs = torch.stack([entities, torch.zeros_like(entities)], dim=1)
    chosen = PPRSampler(ratio, max_entities=max_entities, method=method)  # type: ignore[arg-type]
    names = [] if baselines == "none" else parts(baselines, "--with")
    with console.status("measuring"):
        result = sampler_bench.bench_sampler(graph, chosen, query_pairs, names, note=console.note)
    result = {"data": dataset.name, **result}
    _finish(result, out, json)
    if json:
        return
    rows = {"ours": result["ours"], **result["baseline"]}
    console.print_table(
        f"The {result['chosen_entities']:,} entities of highest PPR on {dataset.name} "
        f"({result['method']})",
        ("", "queries/s", "recall", "peak MB", "speedup of ours"),
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
    queries: Annotated[int, typer.Option(min=1, help="Number of queries per step.")] = 16,
    config: ConfigOption = None,
    settings: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the result to FILE as JSON.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Compare a training step with an edge-by-edge implementation of the same network."""
    from oneshot.experiments.bench.predictor import bench_predictor
    from oneshot.system.devices import find_device

    torch_device = find_device(device)
    if out is not None:
        check_output(out, source)
    dataset = load_data(source, seed)
    asked, answers = dataset.queries("valid")
    if not len(asked):
        raise InputError(f"{dataset.name} has no validation facts, from which queries are drawn")
    chosen = drawn(len(asked), queries, seed)
    with console.status("measuring"):
        result = bench_predictor(
            dataset, _configuration(config, settings), asked[chosen], answers[chosen], torch_device
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
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 20,
    limit: Annotated[int, typer.Option(min=1, help="Number of validation queries.")] = 256,
    config: ConfigOption = None,
    settings: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the result to FILE as JSON.")
    ] = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Compare training and evaluation, including sampling, with a conventional implementation."""
    from oneshot.experiments.bench.predictor import bench_end_to_end
    from oneshot.system.devices import find_device

    torch_device = find_device(device)
    if out is not None:
        check_output(out, source)
    dataset = load_data(source, seed)
    with console.status("measuring"):
        result = bench_end_to_end(
            dataset, _configuration(config, settings), torch_device, steps, limit
        )
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


FactsOption = Annotated[str, typer.Option(help="Numbers of facts, comma-separated, 1e4 to 1.5e8.")]
GraphsOption = Annotated[
    str, typer.Option(help="Graphs: family (no hubs), power-law (many hubs); comma-separated.")
]
MaxEntitiesOption = Annotated[int, typer.Option(min=1, help="Number of entities per subgraph.")]
QuestionsOption = Annotated[
    int, typer.Option(min=1, help="Number of queries, answered one by one.")
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Directory for temporary graphs; 17 GB for 1e8 facts."),
]
PlotOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Plot cost against size to FILE.")
]
OutOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the result to FILE as JSON.")
]
KeepOption = Annotated[
    Path | None,
    typer.Option(
        "--keep", help="Directory for the built graphs and finished steps, which are used again."
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Keep the rows that --out already contains.")
]


def scale(
    facts: FactsOption = "1e5,1e6",
    graphs: GraphsOption = "family,power-law",
    max_entities: MaxEntitiesOption = 2000,
    questions: QuestionsOption = 100,
    directory: DirectoryOption = None,
    plot: PlotOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    keep: KeepOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Measure how the cost of building, opening, sampling and prediction grows with graph size.

    Graphs are built on disk from text and queried on the CPU. Each step runs in its own process,
    with a cold file cache.
    """
    from oneshot.experiments.bench.scale import Row, bench_scale, check, parse_size, read_result
    from oneshot.system.devices import find_device
    from oneshot.system.files import write_json

    find_device(device)
    if resume and out is None:
        raise InputError("--resume continues the file named by --out; give both")
    before = read_result(out) if resume and out is not None and out.exists() else None
    sizes = [parse_size(text) for text in parts(facts, "--facts")]
    names = parts(graphs, "--graphs")
    check(sizes, names, directory)
    if plot is not None:
        from oneshot.plots.coverage import check_plot

        check_plot(plot)
    with console.progress_bar(with_counts=False) as bar:
        task = bar.add_task("", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        def measured(row: Row, result: dict[str, Any]) -> None:
            if out is not None:
                write_json(out, result)
            console.note(
                f"{row['graph']}, {row['facts']:,} facts: built in {row['build_seconds']:.1f} s, "
                f"subgraph {row['sample_ms']:.1f} ms, answer {row['predict_ms']:.1f} ms"
            )

        result = bench_scale(
            sizes,
            names,
            max_entities=max_entities,
            questions=questions,
            place=directory,
            seed=seed,
            progress=progress,
            done=measured,
            before=before,
            keep=keep,
        )
    if plot is not None:
        from oneshot.plots.scale import plot_scale

        plot_scale(result, plot)
        result["picture"] = str(plot)
    _finish(result, out, json)
    if json:
        return
    columns = {
        "facts": ("facts", "{:,}"),
        "build_seconds": ("build, s", "{:.1f}"),
        "build_peak_gb": ("GB", "{:.2f}"),
        "open_ms": ("open, ms", "{:.0f}"),
        "sample_ms": ("subgraph, ms", "{:.1f}"),
        "predict_ms": ("answer, ms", "{:.1f}"),
        "resident_gb": ("GB", "{:.2f}"),
        "recall": ("recall", "{:.3f}"),
    }
    console.print_table(
        f"Cost against size, {max_entities:,} entities per query",
        ("", *(title for title, _ in columns.values())),
        [
            (
                row["graph"],
                *(
                    "–" if row[name] is None else form.format(row[name])
                    for name, (_, form) in columns.items()
                ),
            )
            for row in result["rows"]
        ],
    )
    for graph, growth in result["growth"].items():
        shown = ", ".join(f"{key.replace('_', ' ')} {value:.2f}" for key, value in growth.items())
        console.note(f"growth exponents on {graph}: {shown or 'need at least two sizes'}")


def _configuration(path: Path | None, settings: list[str] | None) -> "Config":
    from oneshot.config import from_table, read_config

    return from_table({}, settings or []) if path is None else read_config(path, settings or [])


def _finish(result: dict[str, Any], out: Path | None, json: bool) -> None:
    """Write and print a result as JSON, if requested."""
    from oneshot.system.files import write_json

    if out is not None:
        write_json(out, result)
    if json:
        console.print_json(result)
