"""Searching: the whole job, from a data set to a trained reasoner with budgets by relation."""

import dataclasses
from pathlib import Path
from statistics import median
from typing import Any

import torch

from oneshot import console
from oneshot.config import Config, to_toml
from oneshot.dataset import Dataset
from oneshot.errors import InputError
from oneshot.files import write_text
from oneshot.jobs import train_run
from oneshot.recording import holds_training
from oneshot.runs import CONFIG, run_config
from oneshot.search.predictor_phase import RANDOM, find_predictor, search_randomly
from oneshot.search.running import best_trial
from oneshot.search.sampler_phase import RUN, budget_space, find_sampler
from oneshot.search.session import OutOfTime, Session, Timer
from oneshot.search.settings import Effort, SearchSettings
from oneshot.search.store import LOCK, STORE, Store, Trial, only_one
from oneshot.search.trial import full_config, provide
from oneshot.search.workers import open_workers


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
) -> bool:
    """Run a search in the directory `out`, or go on with the one that is there.

    `minutes`: after that time nothing new is begun; a trial or an epoch that is under way ends.
    All that it finds is in the store, from where `oneshot.search.summary` reads it.
    → whether it is finished
    """
    if not len(data.valid):
        raise InputError("a search needs a validation split, to judge trials by")
    if not settings.space.dimensions:
        raise InputError("the space has no dimension that is searched")
    if not budget_space(settings, settings.base.sampler, 0.1).dimensions:
        raise InputError("[test_sampler] leaves nothing to search in phase 2")
    with only_one(out):
        store = Store(out, create=True)
        try:
            _remember(store, data, settings)
            store.set_about("effort", dataclasses.asdict(effort))
            store.set_about("finished", False)
            timer = Timer(store, minutes)
            provide(data)
            with open_workers(workers, dask) as crew:
                _run(Session(data, out, settings, effort, device, store, crew, timer))
            timer.keep()
            store.set_about("finished", True)
            return True
        except OutOfTime:
            timer.keep()
            console.note(f"{minutes:g} minutes are over; go on with --resume")
            return False
        finally:
            store.close()


def _run(session: Session) -> None:
    """All that is left to do of a search."""
    best = find_predictor(session)
    for seed in range(session.effort.random_searches):
        search_randomly(session, seed)
    _tell_random(session, best)
    settings = session.settings
    config = full_config(settings, best.values, session.data.graph.num_facts)
    write_text(session.out / CONFIG, to_toml(config))
    if session.effort.final:
        result = _train(session, config, best)
        find_sampler(session, config, result)


def _train(session: Session, config: Config, best: Trial) -> dict[str, Any]:
    """Train the best configuration in full; an earlier, different winner is replaced."""
    run = session.out / RUN
    resume = holds_training(run) and to_toml(run_config(run)) == to_toml(config)
    if not resume:
        console.note(f"trial {best.number + 1} was the best; it is trained in full")
    result = train_run(session.data, run, config, session.device, resume, [session.timer])
    kept = {name: value for name, value in result.items() if name != "already_finished"}
    session.store.set_about("trained", {**kept, "trial": best.number})
    return result


def _tell_random(session: Session, best: Trial) -> None:
    """Say how the search compares with the random ones."""
    others = []
    for seed in range(session.effort.random_searches):
        found = best_trial(session.store.trials(f"{RANDOM}:{seed}"))
        others.append(0.0 if found is None else found.value or 0.0)
    if others:
        console.note(
            f"best {session.settings.target} of the search {best.value:.4f}, of random searches "
            f"{', '.join(f'{value:.4f}' for value in others)} (median {median(others):.4f})"
        )


def stored_settings(out: Path) -> SearchSettings | None:
    """The settings of the search in a directory, or None if there is none."""
    table = _stored(out, "settings")
    return None if table is None else SearchSettings.from_json(table)


def stored_source(out: Path) -> str | None:
    """Where the data set of the search in a directory is read from, if it can be read again."""
    origin = (_stored(out, "data") or {}).get("origin") or {}
    source = origin.get("source")
    return source if isinstance(source, str) else None


def stored_effort(out: Path) -> Effort:
    """How much the search in a directory was last asked to do."""
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
    """Whether a search may begin in a directory: there is nothing, or what a killed one left."""
    if not out.exists():
        return True
    return out.is_dir() and all(
        entry.name == LOCK or entry.name.startswith(STORE) for entry in out.iterdir()
    )


def _remember(store: Store, data: Dataset, settings: SearchSettings) -> None:
    """Write what a search is about; if it was begun before, it must be the same."""
    about = {
        "name": data.name,
        "fingerprint": data.graph.fingerprint,
        "origin": data.graph.origin,
        "facts": data.graph.num_facts,
    }
    before = store.about("data")
    if before is not None and before["fingerprint"] != about["fingerprint"]:
        raise InputError(
            f"{store.path}: is a search on another graph ({before['name']}); search elsewhere"
        )
    saved = store.about("settings")
    if saved is not None and SearchSettings.from_json(saved) != settings:
        raise InputError(
            f"{store.path}: was begun with other settings; resume without them, or search elsewhere"
        )
    if before is None:
        store.set_about("data", about)
    if saved is None:
        store.set_about("settings", settings.as_table())
