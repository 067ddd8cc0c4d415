"""Phase 2: search of the subgraph budgets per relation, by evaluation of a frozen predictor."""

import contextlib
import dataclasses
import hashlib
import math
from typing import Any

import numpy as np

from oneshot.config import Config, SamplerConfig, to_toml
from oneshot.errors import OneshotError
from oneshot.reasoner.build import build_sampler
from oneshot.runs.run import Run
from oneshot.search.budgets import choose, mixed_sampler, setting_of
from oneshot.search.propose import FAILURE_COST, Known, Proposal, nearest, propose
from oneshot.search.sampler_trial import asked_queries, sampler_at_test, target_values
from oneshot.search.scheduler import run_phase
from oneshot.search.session import OutOfTime, PhaseTimer, Session
from oneshot.search.settings import SearchSettings
from oneshot.search.space import Space, phase_2_space
from oneshot.search.store import Trial
from oneshot.training.final_evaluation import FinalEvaluation
from oneshot.training.time_budget import TimeBudget
from oneshot.training.trainer import Trainer

SAMPLER = "sampler"
"""Name in the store; a suffix identifies the training (`sampler:0a1b2c3d4e5f`)."""

_QUERIES = "sampler_queries"
"""Key in the store: the number of queries of the trials of a phase, by its name."""

RUN, BEST = "run", "best"
"""Directories of a search: the full training, and its predictor with the new sampler."""

# The decrease of the target that would be accepted for a subgraph without entities.
_PRICES = (0.0, 0.01, 0.05, 0.2)
# The first trials after the training sampler: smaller versions of it.
_LADDER = (0.5, 0.25, 0.7, 0.35, 0.1)
# With a time limit: the number of trials of the speed of the first one that fit into phase 2, and
# their minimum number of queries. A trial is stopped after this multiple of their time.
_TIMED_TRIALS = 12
_LEAST_QUERIES = 50
_BEYOND = 4


def find_sampler(session: Session, config: Config, result: dict[str, Any]) -> None:
    """Search the budgets per relation for the trained predictor, and evaluate them on test.

    `config`, `result`: configuration and result of the full training.
    """
    settings, graph = session.settings, session.data.graph
    stamp = _stamp(session, config)
    phase = f"{SAMPLER}:{stamp}"
    session.store.set_about(SAMPLER, phase)
    share = float(setting_of(0, config.sampler, graph).entity_ratio.mean())
    space = budget_space(settings, config.sampler, share)
    ladder = [f for f in _LADDER if "test_sampler.entity_ratio" in space.dimensions]
    queries, seconds = _affordable(session, phase, result)

    def next_one(number: int, trials: list[Trial]) -> Proposal:
        if number == 0:
            return Proposal({}, "reference")
        if number <= len(ladder):
            ratio = float(f"{share * ladder[number - 1]:.6g}")
            # With the restart of the training, so that they can be mixed with its setting.
            smaller = {"entity_ratio": ratio, "restart": config.sampler.restart}
            values = {f"test_sampler.{name}": value for name, value in smaller.items()}
            return Proposal(nearest(space, values), "ladder")
        # The same for two in a row: one is a variation, the other a proposal from the whole space.
        price = _PRICES[number // 2 % len(_PRICES)]
        known = []
        for trial in trials[1:]:  # those of earlier versions have no mixture
            values = nearest(space, trial.values)
            known.append(known_budget(dataclasses.replace(trial, values=values), trials[0], price))
        return propose(space, known, settings.seed, number, settings.surrogate)

    def make_task(values: dict[str, Any], _: list[Trial]) -> dict[str, Any]:
        return {
            **session.task("sampler"),
            "config": dataclasses.asdict(config),
            "run": str(session.out / RUN),
            "stamp": stamp,
            "values": space.whole(values) if values else {},
            "sampler_queries": queries,
            "seconds": seconds,
        }

    total, allotment = session.effort.sampler_trials, session.allotment
    with session.phase("sampler trial", total) as observer:
        if allotment is None:
            trials = run_phase(session, phase, total, next_one, make_task, observer)
        else:
            timer = PhaseTimer(session.timer, allotment.sampler_end)
            with contextlib.suppress(OutOfTime):
                run_phase(session, phase, total or math.inf, next_one, make_task, observer, timer)
            trials = session.store.trials(phase)
    done = [t for t in trials if t.status == "done"]
    if allotment is not None and (not trials or trials[0].status in ("stopped", "running")):
        session.messages(f"no time was left for phase 2; the reasoner is in {session.out / RUN}")
        return
    if not done or done[0].number != 0:
        raise OneshotError(f"the training sampler failed in phase 2: {trials[0].error}")
    sampler, summary = _chosen(session, config, phase, space, done, queries)
    saved = session.store.about("final")
    if saved is None or saved["sampler"] != summary["sampler"] or saved["phase"] != phase:
        _finish(session, config, sampler, summary, result)  # the test split is evaluated once


def _affordable(session: Session, phase: str, result: dict[str, Any]) -> tuple[int, float]:
    """The validation queries per trial, and the time limit of a trial in seconds (0 = none).

    All trials of a phase use the same queries, also in later sessions.
    """
    most, allotment = session.settings.sampler_queries, session.allotment
    if allotment is None:
        return most, 0.0
    seconds = allotment.sampler_seconds / _TIMED_TRIALS
    known = session.store.about(_QUERIES) or {}
    if phase not in known:
        report = result["valid"]
        pace = report["seconds"] / max(report["queries"], 1)
        affordable = int(seconds / max(pace, 1e-9))
        known = {phase: min(max(affordable, _LEAST_QUERIES), most)}
        session.store.set_about(_QUERIES, known)
    return known[phase], _BEYOND * seconds


def budget_space(settings: SearchSettings, sampler: SamplerConfig, share: float) -> Space:
    """The space of phase 2 for a sampler with this entity ratio."""
    given = Space.from_table(settings.test_space)
    fixed = dict(given.fixed)
    if sampler.name != "ppr":  # other samplers have no restart, or were fitted with it
        fixed["test_sampler.restart"] = sampler.restart
    if sampler.name != "fitted":
        fixed |= {"test_sampler.mixture": "trained"}
        for options in (fixed, given.dimensions):
            options.pop("test_sampler.context", None)
    return phase_2_space(given.dimensions, fixed, share)


def known_budget(trial: Trial, reference: Trial, price: float) -> Known:
    """A trial with its cost for the surrogate: the target minus a cost of the relative size."""
    if trial.status == "running" or not reference.is_finished:
        return Known(trial.values, None)
    if trial.value is None:
        return Known(trial.values, FAILURE_COST)
    size = trial.about["entities"] / max(reference.about.get("entities", 0.0), 1e-9)
    return Known(trial.values, min(1 - trial.value + price * size, FAILURE_COST))


def _stamp(session: Session, config: Config) -> str:
    """An identifier of the training: trials of another predictor must not be mixed in."""
    found = hashlib.sha256(to_toml(config).encode())
    found.update((session.out / RUN / "predictor.safetensors").read_bytes())
    return found.hexdigest()[:12]


def _chosen(
    session: Session, config: Config, phase: str, space: Space, done: list[Trial], asked: int
) -> tuple[SamplerConfig, dict[str, Any]]:
    """The sampler with the chosen setting of each relation, and its validation result.

    `asked`: number of validation queries of the trials.
    """
    settings, graph = session.settings, session.data.graph
    answers = [session.store.answers(phase, trial.number) for trial in done]
    values = np.stack([target_values(a.ranks, settings.target) for a in answers])
    sizes = np.stack([a.entities for a in answers]).astype(np.float64)
    queries, _ = asked_queries(session.data, asked, settings.seed)
    relation = queries[:, 1].cpu().numpy()
    trained = build_sampler(config.sampler)
    Run.open(session.out / RUN).load_sampler(trained)
    options = []
    for trial in done:
        values_at_test = space.whole(trial.values) if trial.values else {}
        at_test = sampler_at_test(config.sampler, values_at_test)
        options.append(setting_of(trial.number, at_test, graph, trained))
    choice = choose(
        options,
        values,
        sizes,
        relation,
        2 * graph.num_relations,
        settings.goal,
        settings.tolerance,
        settings.seed,
    )
    sampler = mixed_sampler(config.sampler, options, choice, graph)
    picked = choice.setting[relation], np.arange(len(relation))
    summary: dict[str, Any] = {
        "phase": phase,
        "sampler": {k: v for k, v in dataclasses.asdict(sampler).items() if v is not None},
        "before": {"value": float(values[0].mean()), "entities": float(sizes[0].mean())},
        "after": {"value": float(values[picked].mean()), "entities": float(sizes[picked].mean())},
        "expected": {"gain": choice.gain, "size": choice.size},
        "per_relation": {},
    }
    for kind in np.unique(relation).tolist():
        queries = (relation == kind).nonzero()[0]
        setting = int(choice.setting[kind])
        summary["per_relation"][graph.relation_name(kind)] = {
            "queries": len(queries),
            "value_before": float(values[0, queries].mean()),
            "value": float(values[setting, queries].mean()),
            "entities_before": float(sizes[0, queries].mean()),
            "entities": float(sizes[setting, queries].mean()),
            "trial": options[setting].number,
        }
    return sampler, summary


def _finish(
    session: Session,
    config: Config,
    sampler: SamplerConfig,
    summary: dict[str, Any],
    result: dict[str, Any],
) -> None:
    """Save the reasoner with its new sampler, and evaluate it once on test.

    In a search with a time limit, on as many queries as the time allows.
    """
    data, target, timer = session.data, session.settings.target, session.timer
    run = Run.open(session.out / RUN)
    reasoner = run.reasoner_on(data.graph).to(session.device)
    for split in ("valid", "test"):
        summary[f"{split}_before"] = result[split]
    if session.allotment is not None and sampler == config.sampler:
        # Already evaluated with this sampler after the training.
        summary |= {split: result[split] for split in ("valid", "test") if result[split]}
    else:
        reasoner.sampler = build_sampler(sampler, config.training.seed)
        run.load_sampler(reasoner.sampler)
        budget = TimeBudget()
        if session.allotment is not None:
            left = max(session.allotment.end - timer.spent, 1.0)
            budget = TimeBudget(left / 60, timer.clock)
            budget.seconds_per_query = result["valid"]["seconds"] / result["valid"]["queries"]
        evaluation = FinalEvaluation(Trainer(reasoner, data, config.training, budget), budget)
        session.observer.on_evaluation()
        try:
            reports = evaluation.run()
            reasoner.calibration = evaluation.calibrated()
        finally:
            session.observer.on_evaluation_end()
        summary |= {split: report for split, report in reports.items() if report is not None}
        if evaluation.cut:
            session.messages(f"the time allowed {evaluation.cut}, drawn with the seed")
    reasoner.save(session.out / BEST)
    session.store.set_about("final", summary)
    before, after = summary["before"], summary["after"]
    session.messages(
        f"phase 2: {before['entities']:.0f} → {after['entities']:.0f} entities per query, "
        f"{target} on validation {before['value']:.4f} → {after['value']:.4f}"
    )
