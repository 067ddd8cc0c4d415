"""The command that runs the demonstration."""

import time
from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.display.training import TrainingDisplay
from oneshot.cli.options import DeviceOption, JsonOption, SeedOption
from oneshot.system import console


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the run and the plot.")
    ] = Path("demo"),
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Train on the bundled graph of the world, evaluate, and explain an answer."""
    from oneshot.experiments.demo import run_demo
    from oneshot.plots.coverage import check_plot
    from oneshot.ranking import SCORES
    from oneshot.system.devices import find_device

    check_plot(out / "explanation.png")
    started = time.perf_counter()
    shown = run_demo(out, seed, find_device(device), [TrainingDisplay()], console.note)
    seconds = time.perf_counter() - started
    test, baseline = shown.result["test"], shown.baseline
    if json:
        console.print_json(
            {
                **{key: test[key] for key in (*SCORES, "coverage", "queries")},
                "baseline_mrr": baseline.mrr,
                "seconds": seconds,
                "picture": str(shown.plot),
                "run": shown.result["run"],
                "query": {"entity": shown.prediction.entity, "relation": shown.prediction.relation},
                "answers": [vars(answer) for answer in shown.prediction],
                "explanation": shown.explanation.as_dict(),
            }
        )
        return
    console.print_table(
        f"The world, test split, {test['queries']:,} queries",
        ("", "MRR", "Hits@1", "Hits@10"),
        [
            ("oneshot", f"{test['mrr']:.3f}", f"{test['hits@1']:.3f}", f"{test['hits@10']:.3f}"),
            (
                "frequency baseline",
                f"{baseline.mrr:.3f}",
                f"{baseline.hits_at_1:.3f}",
                f"{baseline.hits_at_10:.3f}",
            ),
        ],
    )
    found = shown.prediction
    console.print_table(
        f"What else {found.relation} {found.entity}? (known facts excluded)",
        ("answer", "score", "probability"),
        [
            (
                answer.entity,
                f"{answer.score:.2f}",
                "" if answer.probability is None else f"{answer.probability:.2f}",
            )
            for answer in found
        ],
    )
    console.stdout.print(f"Why {found[0].entity}?")
    console.stdout.print(str(shown.explanation), soft_wrap=True)
    console.note(f"plot: {shown.plot}    run: {shown.result['run']}    {seconds:.0f} s")
