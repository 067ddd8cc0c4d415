"""The command that shows the configuration `oneshot train` would choose; display of plans."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    SeedOption,
    SetOption,
    WeightsOption,
    load_data,
)
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.training.plan import Plan

MinutesOption = Annotated[
    float | None,
    typer.Option(
        metavar="M",
        help="Time budget in minutes for training and evaluation.",
        show_default="10 on a CPU, 5 on a GPU",
    ),
]


def plan(
    source: DataArgument,
    minutes: MinutesOption = None,
    settings: SetOption = None,
    weights: WeightsOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Show the configuration that `oneshot train` would choose for a data set, and why."""
    from oneshot.config import from_table
    from oneshot.system.devices import find_device
    from oneshot.training.plan import check_minutes, make_plan

    check_minutes(minutes)
    torch_device = find_device(device)
    from_table({}, list(settings or []))  # report wrong settings before the data are read
    dataset = load_data(source, seed, weights)
    with console.status("planning"):
        found = make_plan(dataset, minutes, torch_device, list(settings or []), seed)
    if json:
        console.print_json(as_json(found))
        note_excess(found)
        return
    print_plan(dataset.name, found)
    console.stdout.print(expectation(found), soft_wrap=True)
    note_excess(found)


def as_json(plan: "Plan") -> dict[str, Any]:
    """A plan as a JSON value."""
    return {
        "config": dataclasses.asdict(plan.config),
        "seconds": plan.seconds,
        "coverage": plan.coverage,
        "memory": plan.memory,
        "queries": plan.queries,
        "reasons": {choice.option: choice.reason for choice in plan.choices},
    }


def print_plan(name: str, plan: "Plan") -> None:
    """Print the chosen options and the reason for each, as a table on stdout."""
    rows = [
        (choice.option, _shown(choice.value), choice.reason)
        for choice in plan.choices
        if not choice.is_detail
    ]
    console.print_table(f"{name}: chosen configuration", ("option", "value", "why"), rows)


def expectation(plan: "Plan") -> str:
    """Expected time, coverage and memory of a plan, in one line."""
    return (
        f"expected: {plan.seconds / 60:.1f} minutes, coverage {plan.coverage:.3f}, "
        f"{max(plan.memory / 2**20, 1):,.0f} MB per step, {plan.queries:,} training queries"
    )


def note_excess(plan: "Plan") -> None:
    """Report a plan that needs more than the time budget."""
    if plan.is_beyond_budget:
        console.note(
            f"planning, training and evaluation need about {plan.seconds / 60:.2g} minutes, more "
            f"than the budget of {plan.config.training.minutes:g}: training is cut short; raise "
            "--minutes"
        )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
