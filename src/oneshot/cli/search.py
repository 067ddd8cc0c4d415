"""The command that searches for configurations."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.display.search import SearchDisplay, described
from oneshot.cli.display.training import TrainingDisplay
from oneshot.cli.options import DeviceOption, JsonOption, load_data
from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    import torch

    from oneshot.config import Config
    from oneshot.data.load import Dataset
    from oneshot.search.allotment import Allotment
    from oneshot.search.settings import SearchSettings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oneshot.search.summary import Summary

# How many times the training queries of a trial the best gets in full.
_FULL = 8
# More queries than there is time for.
_ANY = 10**9


def search(
    source: Annotated[
        str | None, typer.Argument(metavar="DATA", help="The data set, as in `oneshot train`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The directory of the search.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Trials of phase 1, at most with --minutes.",
            show_default="30; with --minutes as many as fit",
        ),
    ] = None,
    sampler_trials: Annotated[
        int | None,
        typer.Option(min=1, help="Trials of phase 2.", show_default="as many as --trials"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the search in --out; --trials may be more."),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=10**6,
            help="Time for the whole search in minutes: both phases, the training in full and all "
            "evaluations. With --resume: time for this session. A search begun without it, or with "
            "0, then begins nothing new after this time.",
            show_default="no limit",
        ),
    ] = None,
    show: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Show a search instead of running one.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Metric to raise, such as mrr or hits@10.", show_default="mrr"),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            help="Phase 2: 'smaller' subgraphs at the same target, or a 'better' target.",
            show_default="smaller",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="What of the target 'smaller' may cost.", show_default="0.001"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="How the best is trained, and all that is not searched; its own values are the "
            "first trial.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Set an option, which is then not searched; may be repeated.",
        ),
    ] = None,
    space: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ranges of the space, in TOML.")
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training queries of a whole trial.",
            show_default="8192; with --minutes no limit",
        ),
    ] = None,
    final_queries: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training queries of the best, in full.",
            show_default="8 times --queries; with training.epochs set, those; with --minutes as "
            "many as fit",
        ),
    ] = None,
    valid_queries: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Validation queries that judge a trial.",
            show_default="500; with --minutes 100 to 500",
        ),
    ] = None,
    sampler_queries: Annotated[
        int | None,
        typer.Option(
            min=1, help="Validation queries that a trial of phase 2 answers.", show_default="4000"
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Time limit per trial in seconds (0 = none).",
            show_default="60; with --minutes chosen to suit it",
        ),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of the trials that go on at each halving; 1 stops none early.",
            show_default="0.5",
        ),
    ] = None,
    surrogate: Annotated[
        str | None,
        typer.Option(
            help="What predicts trials: a random 'forest', a 'gaussian' process, or an ensemble of "
            "perceptrons ('mlp').",
            show_default="forest",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that run trials, through Dask.")
    ] = 1,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers to use.")
    ] = None,
    random_searches: Annotated[
        int | None,
        typer.Option(
            "--random",
            min=0,
            help="Random searches of as many trials to compare with; slow.",
            show_default="0",
        ),
    ] = None,
    final: Annotated[
        bool | None,
        typer.Option(
            "--final/--no-final",
            help="Train the best in full, and phase 2 with it.",
            show_default="final",
        ),
    ] = None,
    json: JsonOption = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Seed.", show_default="0")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Search for the predictor's configuration, then for subgraph budgets by relation.

    Phase 1 trains configurations for a short while, guided by a surrogate. The best is
    trained in full; phase 2 then looks for the smallest subgraphs that answer as well, by
    evaluation alone. A search that is resumed keeps the options that it was begun with.

    With --minutes everything ends in that time. The first trial is then the configuration that
    `oneshot plan` chooses, and trials are compared after equal times.
    """
    used = {name for name, value in locals().items() if value not in (None, False, [])}
    started = time.perf_counter()  # what is read and planned counts, too
    if show is not None:
        if used - {"show", "json", "device", "workers"}:
            raise InputError("--show takes --json and nothing else: it only shows")
        show_search(show, json)
        return
    from oneshot.errors import require
    from oneshot.search.allotment import Allotment
    from oneshot.search.search import may_begin, stored_effort, stored_settings, stored_source
    from oneshot.search.search import search as run_search
    from oneshot.search.settings import Effort, SearchSettings
    from oneshot.system.devices import find_device

    if out is None:
        raise InputError("give a data set and --out DIR, or --show DIR")
    if source is None and resume:
        source = stored_source(out)
        if source is None:
            raise InputError(f"{out}: there is no search that names its data; give the data set")
    if source is None:
        raise InputError("give a data set, or --resume to go on with the search in --out")
    place = find_device(device)
    require("smac", "search", "the search")
    before = stored_settings(out)
    if before is not None and not resume:
        raise InputError(f"{out}: holds a search; go on with --resume, or choose another place")
    if before is None and not may_begin(out):
        raise InputError(f"{out}: exists and holds no search; choose another place")
    if before is None and resume:
        console.note(f"{out}: there is no search to go on with; it starts afresh")
    given: dict[str, Any] = {
        "target": target,
        "goal": goal,
        "tolerance": tolerance,
        "queries": queries,
        "final_queries": final_queries,
        "valid_queries": valid_queries,
        "sampler_queries": sampler_queries,
        "seconds": seconds,
        "keep": keep,
        "surrogate": surrogate,
        "seed": seed,
    }
    # Looked at before the data are read, which may take minutes.
    SearchSettings(**{name: value for name, value in given.items() if value is not None})
    chosen_seed = seed if seed is not None else (0 if before is None else before.seed)
    is_timed = bool(minutes) if before is None else before.minutes > 0
    if is_timed and random_searches:
        raise InputError("--random takes as long again for each search: leave out --minutes")
    data = load_data(source, chosen_seed)
    if before is None and minutes:
        effort = Effort(trials=0, sampler_trials=0)
        allotment = Allotment(60 * minutes, final is not False)
        with console.status("planning"):
            chosen = _timed_settings(
                data, place, given, config, settings, space, trials, minutes, allotment
            )
    elif before is None:
        effort = Effort()
        chosen = _settings(data, place, given, config, settings, space, trials or effort.trials)
    else:
        effort = stored_effort(out)
        chosen = before
        if config is not None or settings or space is not None:
            raise InputError(
                f"{out}: was begun with settings of its own; resume it without --config, --set "
                "and --space"
            )
        for name, value in given.items():
            if value is not None and value != getattr(before, name):
                raise InputError(
                    f"{out}: was begun with {name} {getattr(before, name)}, not {value}; resume it "
                    "without that option, or search elsewhere"
                )
    wanted: dict[str, Any] = {"trials": trials, "sampler_trials": sampler_trials or trials}
    wanted |= {"random_searches": random_searches, "final": final}
    effort = dataclasses.replace(effort, **{k: v for k, v in wanted.items() if v is not None})
    try:
        run_search(
            data,
            out,
            chosen,
            effort,
            place,
            workers=workers,
            dask=dask,
            minutes=minutes,
            started=started,
            observer=SearchDisplay(),
            training_observers=[TrainingDisplay()],
            messages=console.note,
        )
    except KeyboardInterrupt:
        console.note(f"stopped; go on with: oneshot search {source} --out {out} --resume")
        raise typer.Exit(130) from None
    report(out, json)


def _sets_epochs(changes: list[str]) -> bool:
    return any(change.partition("=")[0].strip() == "training.epochs" for change in changes)


def _settings(
    data: "Dataset",
    device: "torch.device",
    given: dict[str, Any],
    config: Path | None,
    changes: list[str] | None,
    space: Path | None,
    trials: int,
) -> "SearchSettings":
    """The settings of a new search."""
    from oneshot.config import from_table, read_config
    from oneshot.search.settings import SearchSettings, fitted_sampler

    seed = given["seed"] or 0
    changes = [*(changes or []), f"training.seed={seed}"]
    base = from_table({}, changes) if config is None else read_config(config, changes)
    sampler, remark = fitted_sampler(base.sampler, data, device, seed)
    console.note(remark)
    base = dataclasses.replace(base, sampler=sampler)
    if given["final_queries"] is None and config is None and not _sets_epochs(changes):
        whole = given["queries"] or SearchSettings.queries
        given = {**given, "final_queries": _FULL * whole}
    return _searched(base, given, changes, space, trials, tries_base=config is not None)


def _timed_settings(
    data: "Dataset",
    device: "torch.device",
    given: dict[str, Any],
    config: Path | None,
    changes: list[str] | None,
    space: Path | None,
    trials: int | None,
    minutes: float,
    allotment: "Allotment",
) -> "SearchSettings":
    """The settings of a new search that has a time: its first trial is the plan, or --config."""
    from oneshot.config import read_config
    from oneshot.search.allotment import RUNGS
    from oneshot.search.settings import affordable_validation, fitted_sampler, planned_base

    seed = given["seed"] or 0
    changes = [*(changes or []), f"training.seed={seed}"]
    if config is None:
        base, remark = planned_base(data, allotment, device, changes, seed)
    else:
        base = read_config(config, changes)
        sampler, remark = fitted_sampler(base.sampler, data, device, seed)
        base = dataclasses.replace(base, sampler=sampler)
    console.note(remark)
    given = {**given, "seconds": allotment.trial_seconds(given["seconds"])}
    if given["final_queries"] is None and config is None and not _sets_epochs(changes):
        given["final_queries"] = _ANY
    if given["queries"] is None:
        given["queries"] = _ANY
    if given["valid_queries"] is None:
        given["valid_queries"] = affordable_validation(base, data, device, given["seconds"])
    return _searched(
        base,
        given | {"minutes": minutes, "validations": RUNGS, "is_planned": config is None},
        changes,
        space,
        trials or allotment.expected_trials,
        tries_base=True,
    )


def _searched(
    base: "Config",
    given: dict[str, Any],
    changes: list[str],
    space: Path | None,
    trials: int,
    tries_base: bool,
) -> "SearchSettings":
    """The settings of a search around a configuration: what is set is not searched."""
    from oneshot.search.settings import SearchSettings
    from oneshot.search.space import PHASE_1, Space, phase_1_space, widened
    from oneshot.search.space_file import read_space

    dimensions, fixed = ({}, {}) if space is None else read_space(space)
    for name in (change.partition("=")[0].strip() for change in changes):
        if name in dimensions or name in fixed:
            raise InputError(f"{name}: is given both by --set and in {space}; leave one out")
        if name in PHASE_1:  # what is set is not searched
            section, _, option = name.partition(".")
            fixed[name] = getattr(getattr(base, section), option)
    if given.get("is_planned"):
        dimensions = {**widened(base), **dimensions}
    test_space = {n: d for n, d in dimensions.items() if n.startswith("test_sampler.")}
    test_fixed = {n: v for n, v in fixed.items() if n.startswith("test_sampler.")}
    return SearchSettings(
        base=base,
        space=phase_1_space(dimensions, fixed),
        test_space=Space(test_space, test_fixed).as_table(),
        initial=max(min(10, trials // 3), 1),
        tries_base=tries_base,
        **{name: value for name, value in given.items() if value is not None},
    )


PICTURE, RESULT = "search.png", "search.json"


def show_search(path: Path, json: bool) -> None:
    """Print a search that has been run, or runs elsewhere."""
    from oneshot.search.store import LOCK, Store
    from oneshot.system.files import locked

    Store(path).close()  # else there is nothing to show
    try:
        with locked(path / LOCK, wait=False):
            report(path, json)
    except BlockingIOError:
        console.note(f"{path}: another process is searching there; this is what it has so far")
        report(path, json, writes=False)
    except OSError as error:
        console.note(f"{path}: nothing can be written there ({error.strerror})")
        report(path, json, writes=False)


def report(path: Path, json: bool, writes: bool = True) -> None:
    """Print a search; if it `writes`, with its picture, figures and best configuration beside."""
    from oneshot.search.summary import summarise

    summary = summarise(path)
    value = summary.as_dict()
    if writes:
        _write(path, summary, value)
    if json:
        console.print_json(value)
    else:
        _print(summary, value)


def _write(path: Path, summary: "Summary", value: dict[str, Any]) -> None:
    """Write what a search has found beside it, and add to `value` where it is."""
    from oneshot.config import to_toml
    from oneshot.errors import InputError, MissingPackageError
    from oneshot.plots.search import plot_search
    from oneshot.runs.layout import CONFIG
    from oneshot.system.files import write_json, write_text

    for name in (CONFIG, PICTURE, RESULT):
        if (path / name).is_symlink():
            raise InputError(f"{path / name}: is a link, and nothing is written to where one leads")
    if summary.best_config is not None:
        write_text(path / CONFIG, to_toml(summary.best_config))
        value["config"] = str(path / CONFIG)
        try:
            plot_search(summary, path / PICTURE)
            value["picture"] = str(path / PICTURE)
        except MissingPackageError as error:
            console.note(str(error))
    write_json(path / RESULT, value)


def _print(summary: "Summary", value: dict[str, Any]) -> None:
    target = value["target"]
    valued = [trial for trial in summary.trials if trial.value is not None]
    slow = f", {value['infeasible']} too slow to be tried" if value["infeasible"] else ""
    console.print_table(
        f"The best of {value['trials']} trials on {value['data']} ({value['stopped']} stopped "
        f"early, {value['failed']} failed{slow})",
        ("configuration", "trial", target, "seconds"),
        [
            (described(t.values), str(t.number + 1), f"{t.value:.4f}", f"{t.seconds:.1f}")
            for t in sorted(valued, key=lambda t: -(t.value or 0.0))[:5]
        ],
    )
    if value["importance"]:
        console.print_table(
            "Importance of the dimensions (share of the forest's variance)",
            ("dimension", "share"),
            [(name, f"{share:.3f}") for name, share in value["importance"].items()],
        )
    if "random_median" in value:
        console.stdout.print(
            f"best {target} {value['best_value']:.4f}; the median of {value['random_searches']} "
            f"random searches of as many trials: {value['random_median']:.4f}"
        )
    if "phase_2" in value:
        _print_phase_2(value)
    if "config" in value:
        console.note(f"configuration: {value['config']}")
    trained = value.get("trained")
    if trained is not None and trained["trial"] != value["best_trial"]:
        console.note(
            f"trained in full is trial {trained['trial']}, not yet the best one; --resume does that"
        )
    if not value["finished"]:
        console.note("the search is not finished; go on with --resume")
    if "picture" in value:
        console.note(f"picture: {value['picture']}")
    if "best_run" in value:
        console.note(f"reasoner: {value['best_run']}")


def _print_phase_2(value: dict[str, Any]) -> None:
    phase, target = value["phase_2"], value["target"]
    rows = sorted(
        phase["per_relation"].items(),
        key=lambda item: item[1]["queries"] * (item[1]["entities"] - item[1]["entities_before"]),
    )
    console.print_table(
        "Budgets by relation, on validation (at most ten, those that saved most first)",
        ("relation", "queries", "entities before", "after", f"{target} before", "after"),
        [
            (
                name,
                f"{row['queries']:,}",
                f"{row['entities_before']:,.0f}",
                f"{row['entities']:,.0f}",
                f"{row['value_before']:.4f}",
                f"{row['value']:.4f}",
            )
            for name, row in rows[:10]
        ],
    )
    before, after = phase["before"], phase["after"]
    smaller = 1 - after["entities"] / max(before["entities"], 1e-9)
    console.stdout.print(
        f"phase 2: {before['entities']:,.0f} → {after['entities']:,.0f} entities a query "
        f"({smaller:.0%} fewer), {target} on validation {before['value']:.4f} → "
        f"{after['value']:.4f}"
    )
    if value["test"] is not None:
        for name in dict.fromkeys((target, "mrr")):
            console.stdout.print(
                f"test {name} {value['test'][name]:.4f} (with the sampler of the training "
                f"{value['test_before'][name]:.4f})"
            )
