"""The command that runs the demonstration."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oneshot.cli.display.training import TrainingDisplay
from oneshot.cli.options import DeviceOption, JsonOption, SeedOption
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.reasoner.answers import Prediction


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the run and the plot.")
    ] = Path("demo"),
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Answer a query on the bundled graph of the world without training, then train, evaluate, and
    explain an answer."""
    from oneshot.experiments.demo import run_demo
    from oneshot.plots.coverage import check_plot
    from oneshot.ranking import SCORES
    from oneshot.system.devices import find_device

    check_plot(out / "explanation.png")
    started = time.perf_counter()

    def answered(prediction: "Prediction") -> None:
        if not json:
            seconds = time.perf_counter() - started
            _print_answers(prediction, f"Without training, after {seconds:.0f} s")

    observers = [TrainingDisplay()]
    shown = run_demo(out, seed, find_device(device), observers, console.note, answered)
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
                "untrained_answers": [vars(answer) for answer in shown.untrained],
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
    _print_answers(found, "After training")
    console.stdout.print(f"Why {found[0].entity}?")
    console.stdout.print(str(shown.explanation), soft_wrap=True)
    console.note(f"plot: {shown.plot}    run: {shown.result['run']}    {seconds:.0f} s")


def _print_answers(prediction: "Prediction", title: str) -> None:
    query = f"what else {prediction.relation} {prediction.entity}? (known facts excluded)"
    console.print_table(
        f"{title}: {query}",
        ("answer", "score", "probability"),
        [
            (
                answer.entity,
                f"{answer.score:.2f}",
                "" if answer.probability is None else f"{answer.probability:.2f}",
            )
            for answer in prediction
        ],
    )
