"""The command that calibrates the probabilities of a run."""

from dataclasses import asdict
from typing import Annotated

import typer

from oneshot.cli.options import DeviceOption, JsonOption, RunArgument, SeedOption
from oneshot.errors import InputError
from oneshot.system import console


def calibrate(
    run: RunArgument,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of validation queries.")] = 1000,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Fit the probabilities of a run to its validation split again, and show their reliability.

    `oneshot train` does this at its end. Use it for a run of an earlier version, or if the training
    had little time for it.
    """
    from oneshot.data.dataset import Dataset
    from oneshot.reasoner.calibration import calibrate as calibrated
    from oneshot.runs.run import Run
    from oneshot.system.devices import find_device

    torch_device = find_device(device)
    opened = Run.open(run)
    if opened.is_hub_copy:
        raise InputError(f"{run} is a copy of a run on the Hugging Face Hub; copy the directory")
    reasoner, data = opened.reasoner_on(opened.base_graph), opened.data
    if not len(data.valid):
        raise InputError(f"{run}: its data set has no validation facts to calibrate with")
    valid, test = (reasoner.renumbered(data.graph, facts) for facts in (data.valid, data.test))
    known = Dataset(data.name, reasoner.graph, valid, test)
    with console.status("asking validation queries"):
        found = calibrated(reasoner.to(torch_device), known, limit, seed)
    before = opened.calibration
    parts = ("alone", "missing", "present", "error")
    if before is not None and any(
        getattr(before, part) is not None and getattr(found, part) is None for part in parts
    ):
        raise InputError(
            f"{run}: {found.queries:,} validation queries are too few to fit all parts of its "
            "calibration, which is left as it is; raise --limit"
        )
    opened.write_calibration(found)
    if json:
        console.print_json({"run": str(run), **asdict(found)})
        return
    console.print_table(
        "reliability on validation queries that were left out of the fit",
        ("mean probability", "share of true answers", "answers"),
        [(f"{p:.3f}", f"{true:.3f}", f"{count:,}") for p, true, count in found.curve],
    )
    error = "not measured" if found.error is None else f"{found.error:.4f}"
    console.note(f"expected calibration error: {error} ({found.queries:,} queries)")
