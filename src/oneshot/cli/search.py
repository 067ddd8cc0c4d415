"""The command that searches for configurations."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.display.search import SearchDisplay, described
from oneshot.cli.display.training import TrainingDisplay
from oneshot.cli.options import DeviceOption, JsonOption, load_data, shown
from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    import torch

    from oneshot.config import Config
    from oneshot.data.load import Dataset
    from oneshot.search.settings import Effort, SearchSettings
    from oneshot.search.summary import Summary

# Training queries of the full training, as a multiple of those of a trial.
_FULL = 8
# More queries than any time budget allows: the time decides.
_ANY = 10**9

SearchDataArgument = Annotated[
    str | None, typer.Argument(metavar="DATA", help="Data set, as in `oneshot train`.")
]
SearchOption = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of the search.")]
TrialsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of trials of phase 1 (with --minutes: maximum).",
        show_default="30; with --minutes as many as fit",
    ),
]
SamplerTrialsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Number of trials of phase 2.", show_default="as many as --trials"),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Resume the search in --out; --trials may be higher.")
]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=10**6,
        help="Time budget of the whole search in minutes: both phases, full training and all "
        "evaluations. With --resume: budget of this session; if the search was started without a "
        "budget, no further trial starts after it.",
        show_default="no limit",
    ),
]
ShowOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Show the search in DIR instead of running one.")
]
TargetOption = Annotated[
    str | None,
    typer.Option(help="Metric to maximize, such as mrr or hits@10.", show_default="mrr"),
]
GoalOption = Annotated[
    str | None,
    typer.Option(
        help="Phase 2: 'smaller' subgraphs at the same target, or a 'better' target.",
        show_default="smaller",
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        min=0, help="Loss of the target metric that 'smaller' may cost.", show_default="0.001"
    ),
]
BaseOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Base configuration in TOML: full training, options that are not searched, and the "
        "first trial.",
    ),
]
FixedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Fix an option, so that it is not searched; may be repeated.",
    ),
]
SpaceOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Ranges of the search space, in TOML.")
]
QueriesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of training queries of a full trial.",
        show_default="8192; with --minutes no limit",
    ),
]
FinalQueriesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of training queries for the full training of the best trial.",
        show_default="8 times --queries; training.epochs if set; with --minutes as many as fit",
    ),
]
ValidQueriesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of validation queries per trial of phase 1.",
        show_default="500; with --minutes 100 to 500",
    ),
]
SamplerQueriesOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of validation queries per trial of phase 2.", show_default="4000"
    ),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Time limit per trial in seconds (0 = none).",
        show_default="60; with --minutes chosen to fit",
    ),
]
KeepOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of the trials kept at each halving (1 = no early stopping).",
        show_default="0.5",
    ),
]
SurrogateOption = Annotated[
    str | None,
    typer.Option(
        help="Surrogate of the search: random 'forest', 'gaussian' process, or ensemble of "
        "perceptrons ('mlp').",
        show_default="forest",
    ),
]
WorkersOption = Annotated[
    int, typer.Option(min=1, max=256, help="Number of processes for trials (through Dask).")
]
DaskOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address of a Dask scheduler whose workers to use."),
]
RandomOption = Annotated[
    int | None,
    typer.Option(
        "--random",
        min=0,
        help="Number of random searches with as many trials, for comparison; slow.",
        show_default="0",
    ),
]
FinalOption = Annotated[
    bool | None,
    typer.Option(
        "--final/--no-final",
        help="Train the best configuration in full, and run phase 2 on it.",
        show_default="final",
    ),
]
SearchSeedOption = Annotated[
    int | None, typer.Option(min=0, max=2**63 - 1, help="Random seed.", show_default="0")
]


def search(
    context: typer.Context,
    source: SearchDataArgument = None,
    out: SearchOption = None,
    trials: TrialsOption = None,
    sampler_trials: SamplerTrialsOption = None,
    resume: ResumeOption = False,
    minutes: MinutesOption = None,
    show: ShowOption = None,
    target: TargetOption = None,
    goal: GoalOption = None,
    tolerance: ToleranceOption = None,
    config: BaseOption = None,
    settings: FixedOption = None,
    space: SpaceOption = None,
    queries: QueriesOption = None,
    final_queries: FinalQueriesOption = None,
    valid_queries: ValidQueriesOption = None,
    sampler_queries: SamplerQueriesOption = None,
    seconds: SecondsOption = None,
    keep: KeepOption = None,
    surrogate: SurrogateOption = None,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    random_searches: RandomOption = None,
    final: FinalOption = None,
    json: JsonOption = False,
    seed: SearchSeedOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Search for the configuration of the predictor, then for subgraph budgets per relation.

    Phase 1 trains configurations briefly, guided by a surrogate. The best one is trained in full.
    Phase 2 then searches for the smallest subgraphs with the same metric, by evaluation alone. A
    resumed search keeps its original options.

    With --minutes, the whole search fits that time. The first trial is then the configuration that
    `oneshot plan` chooses, and trials are compared after equal training times.
    """
    started = time.perf_counter()  # loading and planning count towards the time budget
    if show is not None:
        _check_show_alone(context)
        show_search(show, json)
        return
    from oneshot.search.search import search as run_search
    from oneshot.system.devices import find_device

    if out is None:
        raise InputError("give a data set and --out DIR, or --show DIR")
    if source is None:
        source = _stored_source(out, resume)
    torch_device = find_device(device)
    before = _settings_before(out, resume)
    given = {
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
    request = _Request(given, config, settings or [], space, trials, minutes, final is not False)
    request.check(before is None)
    is_timed = bool(minutes) if before is None else before.minutes > 0
    if is_timed and random_searches:
        raise InputError(
            "--random multiplies the time of the search; it cannot be combined with --minutes"
        )
    data = load_data(source, request.seed if before is None or seed is not None else before.seed)
    chosen = (
        request.settings(data, torch_device) if before is None else request.resumed(out, before)
    )
    wanted = {"trials": trials, "sampler_trials": sampler_trials or trials}
    wanted |= {"random_searches": random_searches, "final": final}
    effort = dataclasses.replace(_effort_before(out, before, minutes), **_set(wanted))
    try:
        run_search(
            data,
            out,
            chosen,
            effort,
            torch_device,
            workers=workers,
            dask=dask,
            minutes=minutes,
            started=started,
            observer=SearchDisplay(),
            training_observers=[TrainingDisplay()],
            messages=console.note,
        )
    except KeyboardInterrupt:
        console.note(f"stopped; resume with: oneshot search {shown(source)} --out {out} --resume")
        raise typer.Exit(130) from None
    report(out, json)


def _check_show_alone(context: typer.Context) -> None:
    """Raise if other options are given beside --show."""
    used = {name for name, value in context.params.items() if value}
    if used - {"show", "json", "device", "workers"}:
        raise InputError("--show cannot be combined with options other than --json")


def _stored_source(out: Path, resume: bool) -> str:
    """The data set of the search in `out`, for --resume without DATA."""
    from oneshot.search.search import stored_source

    if not resume:
        raise InputError("give a data set, or --resume to continue the search in --out")
    source = stored_source(out)
    if source is None:
        raise InputError(f"{out}: no search with a recorded data set; give the data set")
    return source


def _settings_before(out: Path, resume: bool) -> "SearchSettings | None":
    """The settings of the search in `out`, None for a new one; raises if `out` is unusable."""
    from oneshot.errors import require
    from oneshot.search.search import may_begin, stored_settings

    require("smac", "search", "the search")
    before = stored_settings(out)
    if before is not None and not resume:
        raise InputError(f"{out} contains a search; use --resume or another directory")
    if before is None and not may_begin(out):
        raise InputError(f"{out} exists and contains no search; choose another directory")
    if before is None and resume:
        console.note(f"{out}: there is no search to resume; starting a new one")
    return before


def _effort_before(out: Path, before: "SearchSettings | None", minutes: float | None) -> "Effort":
    """The default effort: that of the resumed search, or of a new one."""
    from oneshot.search.search import stored_effort
    from oneshot.search.settings import Effort

    if before is not None:
        return stored_effort(out)
    return Effort(trials=0, sampler_trials=0) if minutes else Effort()


def _set(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were set."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class _Request:
    """The options of the user for a search; None if not given.

    `given`: settings of the search by their names. `config`, `changes`, `space`: --config, --set
    and --space. `is_final`: whether the best is trained in full.
    """

    given: dict[str, Any]
    config: Path | None
    changes: list[str]
    space: Path | None
    trials: int | None
    minutes: float | None
    is_final: bool

    @property
    def seed(self) -> int:
        return self.given["seed"] or 0

    def check(self, is_new: bool) -> None:
        """Raise if a setting is wrong; called before the data are read."""
        from oneshot.search.settings import SearchSettings

        if is_new and self.minutes == 0 and self.trials is None:
            raise InputError(
                "--minutes must be above 0; it is 0 only with --trials, to start later"
            )
        SearchSettings(**_set(self.given))

    def resumed(self, out: Path, before: "SearchSettings") -> "SearchSettings":
        """The original settings of the search in `out`; raises if other settings are given."""
        if self.config is not None or self.changes or self.space is not None:
            raise InputError(
                f"{out} was started with its own settings; resume it without --config, --set "
                "and --space"
            )
        for name, value in _set(self.given).items():
            if value != getattr(before, name):
                raise InputError(
                    f"{out} was started with {name} {getattr(before, name)}, not {value}; resume "
                    "it without that option, or choose another directory"
                )
        return before

    def settings(self, data: "Dataset", device: "torch.device") -> "SearchSettings":
        """The settings of a new search."""
        if self.minutes:
            with console.status("planning"):
                return self._timed_settings(data, device, self.minutes)
        from oneshot.search.settings import Effort, SearchSettings

        given = dict(self.given)
        if self._has_default_length:
            given["final_queries"] = _FULL * (given["queries"] or SearchSettings.queries)
        trials = self.trials or Effort.trials
        base = self._base(data, device)
        return self._searched(base, given, trials, tries_base=self.config is not None)

    def _timed_settings(
        self, data: "Dataset", device: "torch.device", minutes: float
    ) -> "SearchSettings":
        """The settings of a new search with a time budget; trial 1 is the plan or --config."""
        from oneshot.search.allotment import RUNGS, Allotment
        from oneshot.search.settings import affordable_validation, planned_base

        allotment = Allotment(60 * minutes, self.is_final)
        if self.config is None:
            base, remark = planned_base(data, allotment, device, self._all_changes, self.seed)
            console.note(remark)
        else:
            base = self._base(data, device)
        given = {**self.given, "seconds": allotment.trial_seconds(self.given["seconds"])}
        if self._has_default_length:
            given["final_queries"] = _ANY
        if given["queries"] is None:
            given["queries"] = _ANY
        if given["valid_queries"] is None:
            given["valid_queries"] = affordable_validation(base, data, device, given["seconds"])
        given |= {"minutes": minutes, "validations": RUNGS, "is_planned": self.config is None}
        trials = self.trials or allotment.expected_trials
        return self._searched(base, given, trials, tries_base=True)

    @property
    def _all_changes(self) -> list[str]:
        return [*self.changes, f"training.seed={self.seed}"]

    @property
    def _has_default_length(self) -> bool:
        """Whether no option sets the length of the full training."""
        sets_epochs = any(_name(change) == "training.epochs" for change in self.changes)
        return self.given["final_queries"] is None and self.config is None and not sets_epochs

    def _base(self, data: "Dataset", device: "torch.device") -> "Config":
        """The configuration of --config or the default, with a sufficient subgraph budget."""
        from oneshot.config import from_table, read_config
        from oneshot.search.settings import fitted_sampler

        changes = self._all_changes
        base = from_table({}, changes) if self.config is None else read_config(self.config, changes)
        sampler, remark = fitted_sampler(base.sampler, data, device, self.seed)
        console.note(remark)
        return dataclasses.replace(base, sampler=sampler)

    def _searched(
        self, base: "Config", given: dict[str, Any], trials: int, tries_base: bool
    ) -> "SearchSettings":
        """The settings of a search around a configuration; fixed options are not searched."""
        from oneshot.search.settings import SearchSettings
        from oneshot.search.space import PHASE_1, Space, phase_1_space, widened
        from oneshot.search.space_file import read_space

        dimensions, fixed = ({}, {}) if self.space is None else read_space(self.space)
        for name in map(_name, self._all_changes):
            if name in dimensions or name in fixed:
                raise InputError(f"{name} is given both by --set and in {self.space}; remove one")
            if name in PHASE_1:  # fixed options are not searched
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
            **_set(given),
        )


def _name(change: str) -> str:
    """The option that SECTION.KEY=VALUE sets."""
    return change.partition("=")[0].strip()


PLOT, RESULT = "search.png", "search.json"


def show_search(path: Path, json: bool) -> None:
    """Print a finished search, or one that another process runs."""
    from oneshot.search.store import LOCK, Store
    from oneshot.system.files import locked

    Store(path).close()  # raises if there is no search
    try:
        with locked(path / LOCK, wait=False):
            report(path, json)
    except BlockingIOError:
        console.note(
            f"{path}: another process is running this search; these are its results so far"
        )
        report(path, json, writes=False)
    except OSError as error:
        console.note(f"{path}: cannot write results to it ({error.strerror})")
        report(path, json, writes=False)


def report(path: Path, json: bool, writes: bool = True) -> None:
    """Print a search; with `writes`, also save its plot, results and best configuration."""
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
    """Write the results of a search to its directory, and add their paths to `value`."""
    from oneshot.config import to_toml
    from oneshot.errors import InputError, MissingPackageError
    from oneshot.plots.search import plot_search
    from oneshot.runs.layout import CONFIG
    from oneshot.system.files import write_json, write_text

    for name in (CONFIG, PLOT, RESULT):
        if (path / name).is_symlink():
            raise InputError(
                f"{path / name} is a symbolic link; results are not written through links"
            )
    if summary.best_config is not None:
        write_text(path / CONFIG, to_toml(summary.best_config))
        value["config"] = str(path / CONFIG)
        try:
            plot_search(summary, path / PLOT)
            value["picture"] = str(path / PLOT)
        except MissingPackageError as error:
            console.note(str(error))
    write_json(path / RESULT, value)


def _print(summary: "Summary", value: dict[str, Any]) -> None:
    target = value["target"]
    valued = [trial for trial in summary.trials if trial.value is not None]
    slow = f", {value['infeasible']} too slow to run" if value["infeasible"] else ""
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
            f"random searches with as many trials: {value['random_median']:.4f}"
        )
    if "phase_2" in value:
        _print_phase_2(value)
    if "config" in value:
        console.note(f"configuration: {value['config']}")
    trained = value.get("trained")
    if trained is not None and trained["trial"] != value["best_trial"]:
        console.note(
            f"trial {trained['trial']} is trained in full, not yet the best one; use --resume"
        )
    if not value["finished"]:
        console.note("the search is not finished; continue it with --resume")
    if "picture" in value:
        console.note(f"plot: {value['picture']}")
    if "best_run" in value:
        console.note(f"reasoner: {value['best_run']}")


def _print_phase_2(value: dict[str, Any]) -> None:
    phase, target = value["phase_2"], value["target"]
    rows = sorted(
        phase["per_relation"].items(),
        key=lambda item: item[1]["queries"] * (item[1]["entities"] - item[1]["entities_before"]),
    )
    console.print_table(
        "Budgets per relation, on validation (at most ten, largest savings first)",
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
        f"phase 2: {before['entities']:,.0f} → {after['entities']:,.0f} entities per query "
        f"({smaller:.0%} fewer), {target} on validation {before['value']:.4f} → "
        f"{after['value']:.4f}"
    )
    if value["test"] is not None:
        for name in dict.fromkeys((target, "mrr")):
            console.stdout.print(
                f"test {name} {value['test'][name]:.4f} (with the training sampler: "
                f"{value['test_before'][name]:.4f})"
            )
