"""The command that pre-trains a reasoner on several graphs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.options import (
    DeviceOption,
    JsonOption,
    RunOption,
    SeedOption,
    SetOption,
    load_data,
)
from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.runs.pretrain import PretrainingJob

SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA...", help="Data sets whose training facts to train on; as in `oneshot train`."
    ),
]
ValidOption = Annotated[
    list[str] | None,
    typer.Option(
        "--valid",
        metavar="DATA",
        help="Data set whose validation split chooses the best parameters, asked without training; "
        "may be repeated.",
        show_default="the validation splits of DATA",
    ),
]
MinutesOption = Annotated[
    float | None, typer.Option(help="Time budget in minutes.", show_default="none")
]
StepsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of steps.", show_default="no limit")
]
MaxEntitiesOption = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Largest subgraph in training, in entities; smaller ones are mixed in.",
        show_default="1000 on a GPU, 500 on a CPU",
    ),
]
EpisodeOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Steps on one graph before the next one is drawn.",
        show_default="16 on a GPU, 4 on a CPU",
    ),
]
ValidationsOption = Annotated[int, typer.Option(min=1, help="Number of validations.")]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Resume the run in --out with its own configuration; --minutes, --steps and --device "
        "may differ.",
    ),
]


def pretrain(
    sources: SourcesArgument,
    out: RunOption,
    valid: ValidOption = None,
    minutes: MinutesOption = None,
    steps: StepsOption = None,
    settings: SetOption = None,
    max_entities: MaxEntitiesOption = None,
    episode: EpisodeOption = None,
    validations: ValidationsOption = 10,
    resume: ResumeOption = False,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Pre-train a reasoner on several graphs, for use on other graphs without training.

    The result has no relations of its own: use it with --data, as in `oneshot predict RUN ENTITY
    RELATION --data DATA`, or fine-tune it with `oneshot train DATA --from RUN`.
    """
    from oneshot.cli.display.pretraining import PretrainingDisplay
    from oneshot.runs.layout import CONFIG
    from oneshot.runs.pretrain import PretrainingJob
    from oneshot.runs.run import Run
    from oneshot.system.devices import find_device
    from oneshot.training.pretraining import Mixture, pretraining_config

    torch_device = find_device(device)
    on_gpu = torch_device.type != "cpu"
    if minutes is not None and not 0 < minutes <= 10**6:
        raise InputError(f"--minutes must be above 0 and at most 1,000,000, not {minutes:g}")
    if minutes is None and steps is None:
        raise InputError("give a time budget with --minutes or a number of steps with --steps")
    changes = [*(settings or []), f"training.minutes={minutes or 0.0!r}"]
    if resume and (out / CONFIG).is_file():
        config = Run.open(out, changes).config
    else:
        first = [f"training.batch_size={64 if on_gpu else 32}", f"training.seed={seed}"]
        config = pretraining_config([*first, *changes])
    mixture = Mixture(
        steps=episode or (16 if on_gpu else 4),
        max_entities=max_entities or (1000 if on_gpu else 500),
    )
    job = PretrainingJob(
        [load_data(source, seed) for source in sources],
        [load_data(source, seed) for source in valid or []],
        out,
        config,
        torch_device,
        steps=steps or 0,
        mixture=mixture,
        validations=validations,
    )
    result = _run(job, resume, PretrainingDisplay())
    if json:
        console.print_json(result)
    elif result["valid"]:
        rows = [(name, f"{mrr:.4f}") for name, mrr in result["valid"].items()]
        console.print_table(f"{out}, step {result['best_step']:,}", ("data", "valid MRR"), rows)
    if result.get("stopped"):
        console.note("stopped; run the same command with --resume to continue")


def _run(job: "PretrainingJob", resume: bool, display: Any) -> dict[str, Any]:
    from oneshot.training.interrupt import interrupted, stop_request

    with stop_request() as should_stop, interrupted() as is_interrupted:
        return job.run(
            resume,
            [display],
            lambda: should_stop() or is_interrupted(),
            messages=console.note,
        )
