"""The command that finds the relations between two entities."""

from typing import Annotated, Any

import typer

from oneshot.cli.options import (
    DeviceOption,
    GraphOption,
    JsonOption,
    RunArgument,
    SeedOption,
    SetOption,
    open_reasoner,
)
from oneshot.system import console


def relations(
    run: RunArgument,
    head: Annotated[str, typer.Argument(help="First entity.")],
    tail: Annotated[str, typer.Argument(help="Second entity.")],
    top: Annotated[int, typer.Option(min=1, help="Number of relations.")] = 10,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the paths that support the first relation.")
    ] = False,
    data: GraphOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Find the relations that hold between two entities, in both directions."""
    from oneshot.graph.graph import INVERSE_MARK

    reasoner = open_reasoner(run, data, settings, seed, device)
    with console.status("asking all relations"):
        found = reasoner.relations(head, tail, top=top)
    explanation = None
    if explain and found:
        first = found[0]
        explanation = reasoner.explain(head, first.relation, tail, inverse=first.inverse)
    if json:
        value: dict[str, Any] = {
            "head": head,
            "tail": tail,
            "relations": [answer.as_dict() for answer in found],
        }
        if explanation is not None:
            value["relations"][0]["paths"] = explanation.as_dict()["paths"]
        console.print_json(value)
        return
    console.print_table(
        f"relations between {head} and {tail}",
        ("relation", "score", "probability", ""),
        [
            (
                answer.relation + (INVERSE_MARK if answer.inverse else ""),
                f"{answer.score:.2f}",
                "–" if answer.probability is None else f"{answer.probability:.3f}",
                "known" if answer.known else "",
            )
            for answer in found
        ],
    )
    if explanation is not None:
        console.stdout.print(str(explanation), soft_wrap=True)
