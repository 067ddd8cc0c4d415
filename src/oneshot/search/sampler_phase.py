"""Phase 2: the budgets of the subgraphs by relation, by evaluation with the predictor frozen."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from oneshot import console
from oneshot.building import build_sampler
from oneshot.calibrating import calibrate
from oneshot.config import Config, SamplerConfig, to_toml
from oneshot.errors import OneshotError
from oneshot.evaluation import evaluate
from oneshot.runs import load_reasoner
from oneshot.search.answering import asked_queries, sampler_at_test, target_values
from oneshot.search.budgets import choose, mixed_sampler, setting_of
from oneshot.search.display import SearchDisplay
from oneshot.search.fitting import nearest
from oneshot.search.proposing import FAILURE_COST, Known, Proposal, propose
from oneshot.search.running import run_phase
from oneshot.search.session import Session
from oneshot.search.settings import SearchSettings
from oneshot.search.space import Space, phase_2_space
from oneshot.search.store import Trial

SAMPLER = "sampler"
"""Name in the store; with an ending that says of which training (`sampler:0a1b2c3d4e5f`)."""

RUN, BEST = "run", "best"
"""Directories of a search: the full training, and the same predictor with its new sampler."""

# What a trial may give up of the target for asking no entity at all.
_PRICES = (0.0, 0.01, 0.05, 0.2)
# The first trials after the sampler of the training: that one, made smaller.
_LADDER = (0.5, 0.25, 0.7, 0.35, 0.1)


def find_sampler(session: Session, config: Config, result: dict[str, Any]) -> None:
    """Search the budgets by relation for the trained predictor, and evaluate them on test.

    `config`, `result`: of the full training.
    """
    settings, graph = session.settings, session.data.graph
    stamp = _stamp(session, config)
    phase = f"{SAMPLER}:{stamp}"
    session.store.set_about(SAMPLER, phase)
    share = float(setting_of(0, config.sampler, graph).entity_ratio.mean())
    space = budget_space(settings, config.sampler, share)
    ladder = [f for f in _LADDER if "test_sampler.entity_ratio" in space.dimensions]

    def next_one(number: int, trials: list[Trial]) -> Proposal:
        if number == 0:
            return Proposal({}, "reference")
        if number <= len(ladder):
            ratio = float(f"{share * ladder[number - 1]:.6g}")
            # With the restart of the training: only with that they mix with what it had.
            smaller = {"entity_ratio": ratio, "restart": config.sampler.restart}
            values = {f"test_sampler.{name}": value for name, value in smaller.items()}
            return Proposal(nearest(space, values), "ladder")
        # The same for two in a row: one is a variation, the other is looked for everywhere.
        price = _PRICES[number // 2 % len(_PRICES)]
        known = [known_budget(t, trials[0], price) for t in trials[1:]]
        return propose(space, known, settings.seed, number, settings.surrogate)

    def make_task(values: dict[str, Any], _: list[Trial]) -> dict[str, Any]:
        return {
            **session.task("sampler"),
            "config": dataclasses.asdict(config),
            "run": str(session.out / RUN),
            "stamp": stamp,
            "values": space.whole(values) if values else {},
            "sampler_queries": settings.sampler_queries,
        }

    total = session.effort.sampler_trials
    with SearchDisplay("sampler trial", total, settings.target) as display:
        trials = run_phase(session, phase, total, next_one, make_task, display)
    done = [t for t in trials if t.status == "done"]
    if not done or done[0].number != 0:
        raise OneshotError(f"the sampler of the training failed in phase 2: {trials[0].error}")
    sampler, summary = _chosen(session, config, phase, space, done)
    saved = session.store.about("final")
    if saved is None or saved["sampler"] != summary["sampler"] or saved["phase"] != phase:
        _finish(session, config, sampler, summary, result)  # the test split is asked once


def budget_space(settings: SearchSettings, sampler: SamplerConfig, share: float) -> Space:
    """The space of phase 2 for a sampler whose relations have this share of entities."""
    given = Space.from_table(settings.test_space)
    fixed = dict(given.fixed)
    if sampler.name != "ppr":  # then nothing restarts
        fixed["test_sampler.restart"] = sampler.restart
    return phase_2_space(given.dimensions, fixed, share)


def known_budget(trial: Trial, reference: Trial, price: float) -> Known:
    """A trial as the surrogate is told of it: the target, less the price of its relative size."""
    if trial.status == "running" or not reference.is_finished:
        return Known(trial.values, None)
    if trial.value is None:
        return Known(trial.values, FAILURE_COST)
    size = trial.about["entities"] / max(reference.about.get("entities", 0.0), 1e-9)
    return Known(trial.values, min(1 - trial.value + price * size, FAILURE_COST))


def _stamp(session: Session, config: Config) -> str:
    """What tells one training from another: trials of another predictor say nothing here."""
    found = hashlib.sha256(to_toml(config).encode())
    found.update((session.out / RUN / "predictor.safetensors").read_bytes())
    return found.hexdigest()[:12]


def _chosen(
    session: Session, config: Config, phase: str, space: Space, done: list[Trial]
) -> tuple[SamplerConfig, dict[str, Any]]:
    """The sampler in which each relation has its setting, and what it does on validation."""
    settings, graph = session.settings, session.data.graph
    answers = [session.store.answers(phase, trial.number) for trial in done]
    values = np.stack([target_values(a.ranks, settings.target) for a in answers])
    sizes = np.stack([a.entities for a in answers]).astype(np.float64)
    queries, _ = asked_queries(session.data, settings.sampler_queries, settings.seed)
    relation = queries[:, 1].cpu().numpy()
    options = []
    for trial in done:
        mine = space.whole(trial.values) if trial.values else {}
        options.append(setting_of(trial.number, sampler_at_test(config.sampler, mine), graph))
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
        asked = (relation == kind).nonzero()[0]
        place = int(choice.setting[kind])
        summary["per_relation"][graph.relation_name(kind)] = {
            "queries": len(asked),
            "value_before": float(values[0, asked].mean()),
            "value": float(values[place, asked].mean()),
            "entities_before": float(sizes[0, asked].mean()),
            "entities": float(sizes[place, asked].mean()),
            "trial": options[place].number,
        }
    return sampler, summary


def _finish(
    session: Session,
    config: Config,
    sampler: SamplerConfig,
    summary: dict[str, Any],
    result: dict[str, Any],
) -> None:
    """Save the reasoner with its new sampler, and evaluate it once on test."""
    data, target = session.data, session.settings.target
    reasoner = load_reasoner(session.out / RUN, data.graph).to(session.device)
    reasoner.sampler = build_sampler(sampler, config.training.seed)
    reasoner.calibration = calibrate(reasoner, data, seed=config.training.seed)
    size = config.training.valid_batch_size or config.training.batch_size
    for split in ("valid", "test"):
        facts = data.facts(split)
        if len(facts):
            with console.status(f"evaluating {split}"):
                report = evaluate(reasoner, facts, data.known, batch_size=size)
            summary[split] = report.as_dict()
        summary[f"{split}_before"] = result[split]
    reasoner.save(session.out / BEST)
    session.store.set_about("final", summary)
    before, after = summary["before"], summary["after"]
    console.note(
        f"phase 2: {before['entities']:.0f} → {after['entities']:.0f} entities a query, "
        f"{target} on validation {before['value']:.4f} → {after['value']:.4f}"
    )
