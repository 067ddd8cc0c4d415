"""The command that evaluates a reasoner."""

from typing import Annotated, Any

import typer

from oneshot.cli.options import (
    BatchSizeOption,
    DeviceOption,
    JsonOption,
    LimitOption,
    RunArgument,
    SeedOption,
    SetOption,
    SplitOption,
    interruptible,
    load_data,
)
from oneshot.system import console


def evaluate(
    run: RunArgument,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DATA", help="Data set to evaluate on.", show_default="the run's own"
        ),
    ] = None,
    split: SplitOption = "test",
    limit: LimitOption = None,
    settings: SetOption = None,
    batch_size: BatchSizeOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Evaluate a run: filtered ranking of held-out facts, in both directions."""
    import torch

    from oneshot.evaluation.evaluate import evaluate as evaluated
    from oneshot.runs.run import Run
    from oneshot.system.devices import find_device

    torch_device = find_device(device)
    opened = Run.open(run, settings or ())
    dataset = opened.data if data is None else load_data(data, seed)
    reasoner = opened.reasoner if data is None else opened.reasoner_on(dataset.graph)
    reasoner.to(torch_device)
    facts = reasoner.renumbered(dataset.graph, dataset.facts(split))
    known = reasoner.renumbered(dataset.graph, dataset.known)
    if data is None and opened.graph is not opened.base_graph:  # facts were added or removed
        known = torch.cat([known, reasoner.graph.facts.long().cpu()])
    total = min(2 * len(facts), limit or 2 * len(facts))
    with interruptible(None), console.progress_bar() as progress:
        task = progress.add_task("evaluating", total=total)
        report = evaluated(
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
    print_report(f"{dataset.name}, {split} split", report.as_dict())
    print_cases(report.per_case)


def print_cases(per_case: dict[str, dict[str, float]]) -> None:
    """Metrics of groups of queries: by coverage, and by half-links."""
    rows = [
        (name, f"{part['mrr']:.4f}", f"{part['hits@10']:.4f}", f"{part['queries']:,}")
        for name, part in per_case.items()
    ]
    console.print_table("by case", ("case", "MRR", "Hits@10", "queries"), rows)


def print_report(title: str, report: dict[str, Any], baseline_mrr: float | None = None) -> None:
    from oneshot.runs.train import REPORTED

    rows = {name.replace("_", " "): f"{report[name]:.4f}" for name in REPORTED}
    rows["queries"] = f"{report['queries']:,}"
    if report.get("of", 0) > report["queries"]:
        rows["queries"] += f" of {report['of']:,}"
    if baseline_mrr is not None:
        rows["mrr of the frequency baseline"] = f"{baseline_mrr:.4f}"
    console.print_table(title, ("", "value"), list(rows.items()))
