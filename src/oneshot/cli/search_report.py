"""What is printed of a search, and the files that are written beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.search.summary import Summary

PICTURE, RESULT = "search.png", "search.json"


def show(path: Path, json: bool) -> None:
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
    from oneshot.runs.run import CONFIG
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
    from oneshot.search.display import described

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
