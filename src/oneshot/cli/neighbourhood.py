"""The command that shows the neighbourhood of entities in the graph of a run."""

import math
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.options import DeviceOption, JsonOption, RunArgument, SeedOption
from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.graph.graph import KnowledgeGraph
    from oneshot.samplers.neighbourhood import Neighbourhood

_SHOWN = 20  # entities and facts in the tables


def neighbourhood(
    run: RunArgument,
    entities: Annotated[
        list[str], typer.Argument(metavar="ENTITY...", help="Entities around which to look.")
    ],
    top: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of entities in the neighbourhood.")
    ] = 100,
    restart: Annotated[
        float, typer.Option(help="Probability of jumping back to the entities in PPR.")
    ] = 0.15,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Show the entities of highest Personalized PageRank around others, and the facts between."""
    import torch

    from oneshot.runs.run import Run
    from oneshot.samplers.neighbourhood import neighbourhood as find
    from oneshot.system.devices import find_device

    find_device(device)
    if not 0 < restart < 1:
        raise InputError(f"--restart must be between 0 and 1, not {restart}")
    with console.status(f"reading {run}"):
        graph = Run.open(run).graph
    if len(set(entities)) < len(entities):
        raise InputError("an entity is given twice")
    started = time.perf_counter()
    seeds = torch.tensor([graph.entities.index(name) for name in entities])
    found = find(graph, seeds, max(top, len(seeds)), restart)
    value = described(graph, found, entities) | {"seconds": time.perf_counter() - started}
    if json:
        console.print_json(value)
        return
    title = f"around {', '.join(entities)}"
    console.print_table(
        title,
        ("entity", "score"),
        [(row["entity"], f"{row['score']:.6f}") for row in value["entities"][:_SHOWN]],
    )
    console.print_table(
        "facts",
        ("head", "relation", "tail"),
        [(row["head"], row["relation"], row["tail"]) for row in value["facts"][:_SHOWN]],
    )
    console.note(
        f"{_counted(len(value['entities']), 'entity', 'entities')} and "
        f"{_counted(len(value['facts']), 'fact', 'facts')} between them; --json prints all"
    )
    console.note(_accuracy(found))


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _accuracy(found: "Neighbourhood") -> str:
    """How accurate the scores are."""
    if found.method == "exact":
        return "the scores are exact"
    if found.method == "hub index":
        return "the scores are approximate, by a push with the hub index; their errors are unknown"
    most = float(found.error[:_SHOWN].max())
    return f"the scores are approximate, by a push; those shown are wrong by at most {most:.1g}"


def described(graph: "KnowledgeGraph", found: "Neighbourhood", seeds: list[str]) -> dict[str, Any]:
    """A neighbourhood by names, as JSON."""
    names = {number: graph.entities[number] for number in found.entities.tolist()}
    return {
        "seeds": list(dict.fromkeys(seeds)),
        "entities": [
            {"entity": names[number], "score": score, "error": None if math.isnan(error) else error}
            for number, score, error in zip(
                found.entities.tolist(), found.scores.tolist(), found.error.tolist(), strict=True
            )
        ],
        "method": found.method,
        "facts": [
            {"head": names[head], "relation": graph.relations[relation], "tail": names[tail]}
            for head, relation, tail in found.facts.tolist()
        ],
    }
