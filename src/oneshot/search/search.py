"""The search: from a data set to a trained reasoner with budgets per relation."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from oneshot.config import Config, to_toml
from oneshot.data.dataset import Dataset
from oneshot.data.sources import is_address
from oneshot.errors import InputError
from oneshot.runs.checkpoint import read_checkpoint
from oneshot.runs.layout import CONFIG
from oneshot.runs.run import Run
from oneshot.runs.train import train_run
from oneshot.search.allotment import Allotment
from oneshot.search.observer import SearchObserver
from oneshot.search.predictor_phase import RANDOM, find_predictor, search_randomly
from oneshot.search.predictor_trial import full_config, provide
from oneshot.search.sampler_phase import RUN, budget_space, find_sampler
from oneshot.search.scheduler import best_trial
from oneshot.search.session import OutOfTime, Session, Timer, session_seconds, warn
from oneshot.search.settings import Effort, SearchSettings
from oneshot.search.store import LOCK, STORE, Store, Trial, only_one
from oneshot.search.workers import open_workers, run_task
from oneshot.system.files import write_text
from oneshot.training.observer import Observer
from oneshot.training.time_budget import Clock


def search(
    data: Dataset,
    out: Path,
    settings: SearchSettings,
    effort: Effort,
    device: torch.device,
    *,
    workers: int = 1,
    dask: str | None = None,
    minutes: float | None = None,
    started: float | None = None,
    clock: Clock = time.perf_counter,
    observer: SearchObserver | None = None,
    training_observers: Sequence[Observer] = (),
    messages: Callable[[str], None] = warn,
) -> bool:
    """Run a search in the directory `out`, or resume the one that it contains.

    A search with a time limit (`settings.minutes`) ends within it. A later session ends within its
    own `minutes`, by default within the remaining time. In other searches, `minutes` is the time
    after which a session starts nothing new; a running trial or epoch is completed.
    `started`: start of the session by `clock`, by default now.
    `observer` observes the trials, `training_observers` the full training. `messages`: called with
    each message for the user (one line), by default logged.
    All results are in the store, from which `oneshot.search.summary` reads them.
    Returns whether the search is finished.
    """
    if not len(data.valid):
        raise InputError("a search needs a validation split to compare trials")
    if not settings.space.dimensions:
        raise InputError("the space has no dimension to search")
    if not budget_space(settings, settings.base.sampler, 0.1).dimensions:
        raise InputError("[test_sampler] leaves nothing to search in phase 2")
    with only_one(out):
        store = Store(out, create=True)
        try:
            before = store.about("settings") is not None
            _remember(store, data, settings)
            store.set_about("effort", dataclasses.asdict(effort))
            if settings.minutes and minutes is None and store.about("finished"):
                return True  # its results are kept until it gets more time
            store.set_about("finished", False)
            has_more = before and minutes is not None
            minutes = _session_minutes(store, settings, minutes)
            timer = Timer(store, minutes, clock, started)
            provide(data)
            with open_workers(workers, dask, functools.partial(run_task, clock=clock)) as crew:
                _run(
                    Session(
                        data,
                        out,
                        settings,
                        effort,
                        device,
                        store,
                        crew,
                        timer,
                        has_more,
                        observer or SearchObserver(),
                        training_observers,
                        messages,
                    )
                )
            timer.keep()
            store.set_about("finished", True)
            return True
        except OutOfTime:
            timer.keep()
            messages(f"the time limit of {minutes:g} minutes is reached; continue with --resume")
            return False
        finally:
            store.close()


def _run(session: Session) -> None:
    """Do the remaining work of a search."""
    if session.timer.minutes == 0 and session.settings.minutes:
        raise OutOfTime
    best = find_predictor(session)
    for seed in range(session.effort.random_searches):
        search_randomly(session, seed)
    _tell_random(session, best)
    settings = session.settings
    config = full_config(settings, best, session.data.graph.num_facts)
    write_text(session.out / CONFIG, to_toml(config))
    if session.effort.final:
        result = _train(session, config, best)
        find_sampler(session, config, result)


def _train(session: Session, config: Config, best: Trial) -> dict[str, Any]:
    """Train the best configuration in full; an earlier, different winner is replaced."""
    run, timer, allotment = Run(session.out / RUN), session.timer, session.allotment
    resume = run.holds_training
    if resume and allotment is not None:  # its time is that of the session
        resume = to_toml(_without_minutes(run.config)) == to_toml(_without_minutes(config))
    elif resume:
        resume = to_toml(run.config) == to_toml(config)
    if not resume:
        session.messages(f"full training of the best trial ({best.number + 1})")
    if allotment is not None:
        minutes = _training_minutes(session, run, allotment, resume)
        training = dataclasses.replace(config.training, minutes=minutes)
        config = dataclasses.replace(config, training=training)
    result = train_run(
        session.data,
        run.path,
        config,
        session.device,
        resume,
        observers=[*session.training_observers, timer],
        clock=timer.clock,
        messages=session.messages,
    )
    kept = {name: value for name, value in result.items() if name != "already_finished"}
    session.store.set_about("trained", {**kept, "trial": best.number})
    return result


def _training_minutes(session: Session, run: Run, allotment: Allotment, resume: bool) -> float:
    """The time limit of the full training, including that of earlier sessions."""
    checkpoint = read_checkpoint(run) if resume else None
    if checkpoint is not None and checkpoint.state.finished and not session.has_more_time:
        return run.config.training.minutes
    trained = 0.0 if checkpoint is None else checkpoint.state.seconds
    return round((trained + allotment.training_seconds(session.timer.spent)) / 60, 4)


def _without_minutes(config: Config) -> Config:
    training = dataclasses.replace(config.training, minutes=0.0, expected_queries=0)
    return dataclasses.replace(config, training=training)


def _session_minutes(store: Store, settings: SearchSettings, minutes: float | None) -> float | None:
    """The time limit of a session: the given one, or the remaining time of the search.

    At least a tenth of the total: a search that was killed shortly before its end has work left.
    """
    if minutes is not None or not settings.minutes:
        return minutes
    left = settings.minutes - sum(session_seconds(store)) / 60
    return max(left, settings.minutes / 10)


def _tell_random(session: Session, best: Trial) -> None:
    """Report the comparison of the search with the random searches."""
    others = []
    for seed in range(session.effort.random_searches):
        found = best_trial(session.store.trials(f"{RANDOM}:{seed}"))
        others.append(0.0 if found is None else found.value or 0.0)
    if others:
        session.messages(
            f"best {session.settings.target} of the search {best.value:.4f}, of random searches "
            f"{', '.join(f'{value:.4f}' for value in others)} (median {median(others):.4f})"
        )


def stored_settings(out: Path) -> SearchSettings | None:
    """The settings of the search in a directory, or None if there is none."""
    table = _stored(out, "settings")
    return None if table is None else SearchSettings.from_json(table)


def stored_source(out: Path) -> str | None:
    """The source of the data set of the search in a directory, if it can be read again."""
    origin = (_stored(out, "data") or {}).get("origin") or {}
    source = origin.get("source")
    # An address is never stored: a copied directory must not cause connections.
    return source if isinstance(source, str) and not is_address(source) else None


def stored_effort(out: Path) -> Effort:
    """The amount of work last requested from the search in a directory."""
    return Effort(**(_stored(out, "effort") or {}))


def _stored(out: Path, key: str) -> Any:
    try:
        store = Store(out)
    except InputError:
        return None
    try:
        return store.about(key)
    finally:
        store.close()


def may_begin(out: Path) -> bool:
    """Whether a search may start in a directory: it is empty, or a killed search left its files."""
    if not out.exists():
        return True
    return out.is_dir() and all(
        entry.name == LOCK or entry.name.startswith(STORE) for entry in out.iterdir()
    )


def _remember(store: Store, data: Dataset, settings: SearchSettings) -> None:
    """Record the data and settings of a search; those of a resumed search must be the same."""
    about = {
        "name": data.name,
        "fingerprint": data.graph.fingerprint,
        "origin": data.graph.origin,
        "facts": data.graph.num_facts,
    }
    before = store.about("data")
    if before is not None and before["fingerprint"] != about["fingerprint"]:
        raise InputError(
            f"{store.path} is a search on another graph ({before['name']}); choose another path"
        )
    saved = store.about("settings")
    if saved is not None and SearchSettings.from_json(saved) != settings:
        raise InputError(
            f"{store.path} was started with other settings; resume without them, "
            "or choose another path"
        )
    if before is None:
        store.set_about("data", about)
    if saved is None:
        store.set_about("settings", settings.as_table())
