"""The command that measures the coverage of samplers."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    LimitOption,
    SeedOption,
    SplitOption,
    WeightsOption,
    check_output,
    count,
    drawn,
    load_data,
    parts,
)
from oneshot.config import SamplerConfig, from_table
from oneshot.errors import InputError, UnknownNameError
from oneshot.system import console

_SHARES = ("coverage", "reachable")
# Sampler options that have an option of their own here.
_CHOSEN = {
    "sampler.name": "--sampler",
    "sampler.entity_ratio": "--ratio",
    "sampler.max_entities": "--max-entities",
}


SamplerOption = Annotated[
    str,
    typer.Option(
        help="Samplers: ppr, fitted, bfs, random_walk, pagerank, random; comma-separated."
    ),
]
RatioOption = Annotated[
    str | None,
    typer.Option(help="Shares of the entities, comma-separated; 0.1,0.2,0.5 if not given."),
]
MaxEntitiesOption = Annotated[
    str | None, typer.Option(help="Numbers of entities instead of shares, comma-separated.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="sampler.KEY=VALUE",
        help="Set an option of the samplers, such as sampler.context=0.3; may be repeated.",
    ),
]
PlotOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Plot coverage against budget to FILE.")
]


def coverage(
    source: DataArgument,
    sampler: SamplerOption = "ppr",
    ratio: RatioOption = None,
    max_entities: MaxEntitiesOption = None,
    split: SplitOption = "test",
    limit: LimitOption = None,
    plot: PlotOption = None,
    settings: SettingsOption = None,
    weights: WeightsOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Measure how often the subgraph contains the answer, in both query directions."""
    from oneshot.evaluation.coverage import budget_label
    from oneshot.evaluation.coverage import coverage as measure
    from oneshot.reasoner.build import build_sampler
    from oneshot.system.devices import find_device

    configured = _configured(settings or ())
    torch_device = find_device(device)
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
        from oneshot.plots.coverage import check_plot

        check_plot(plot)
        check_output(plot, source)
    dataset = load_data(source, seed, weights)
    queries, answers = dataset.queries(split)
    if not len(queries):
        raise InputError(
            f"the {split} split of {dataset.name} is empty: there are too few facts to hold any "
            "out; use a larger file, or --split train"
        )
    for remark in dataset.notes:
        console.note(remark)
    if limit is not None:
        chosen = drawn(len(queries), limit, seed)
        queries, answers = queries[chosen], answers[chosen]
    graph = dataset.graph.to(torch_device)
    largest = max(budgets)
    size: Any = {"max_entities" if isinstance(largest, int) else "entity_ratio": largest}
    rows = []
    with console.progress_bar() as progress:
        for name in names:
            task = progress.add_task(name, total=len(queries))
            chosen_sampler = build_sampler(replace(configured, name=name, **size), seed)
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
        console.note(f"plot: {plot}")


def _names(text: str) -> list[str]:
    from oneshot.samplers import SAMPLERS

    names = parts(text, "--sampler")
    for name in names:
        if name not in SAMPLERS:
            raise UnknownNameError.among("sampler", name, SAMPLERS)
    return names


def _configured(settings: Sequence[str]) -> SamplerConfig:
    """Sampler options set by the user, without name and budget."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if not name.startswith("sampler."):
            raise InputError(f"--set {setting}: only options of the sampler have an effect here")
        if name in _CHOSEN:
            raise InputError(f"--set {setting}: use {_CHOSEN[name]} instead")
    return from_table({"sampler": {"keep_unreachable": True}}, settings).sampler


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"--ratio: {text!r} is not a number") from None
    if not 0 < value <= 1:
        raise InputError(f"--ratio: {text} must be above 0 and at most 1")
    return value
