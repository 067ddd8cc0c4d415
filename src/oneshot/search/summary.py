"""Summary of a search, read from its store."""

import dataclasses
from pathlib import Path
from statistics import median
from typing import Any

from oneshot.config import Config
from oneshot.ranking import SCORES
from oneshot.search.importance import importance, predicted_random_search
from oneshot.search.predictor_phase import PREDICTOR, RANDOM
from oneshot.search.predictor_trial import full_config
from oneshot.search.sampler_phase import BEST, RUN, SAMPLER
from oneshot.search.scheduler import best_trial
from oneshot.search.session import session_seconds
from oneshot.search.settings import SearchSettings
from oneshot.search.store import Store, Trial


@dataclasses.dataclass(frozen=True)
class Summary:
    """The state of a search.

    `data`, `num_facts`: name of the data set, and number of its training facts. `trials`: trials of
    phase 1. `random`: trials of random searches, by seed. `sampler_trials`: trials of phase 2 with
    the current predictor. `trained`: result of the full training. `final`: choice of phase 2, with
    its test metrics. `predicted_random`: expected best value of a random search after each trial,
    by the forest. `is_finished`: whether all requested work is done. `sessions`: seconds of each
    session.
    """

    path: Path
    data: str
    num_facts: int
    settings: SearchSettings
    trials: list[Trial]
    random: dict[int, list[Trial]]
    sampler_trials: list[Trial]
    trained: dict[str, Any] | None
    final: dict[str, Any] | None
    importance: dict[str, float]
    predicted_random: list[float]
    is_finished: bool
    sessions: list[float]

    @property
    def best(self) -> Trial | None:
        return best_trial(self.trials)

    @property
    def best_config(self) -> Config | None:
        settings, best = self.settings, self.best
        if best is None:
            return None
        return full_config(settings, best, self.num_facts)

    @property
    def random_best(self) -> list[float]:
        """The best value of each random search that has as many trials as the search."""
        found = []
        for trials in self.random.values():
            best = best_trial(trials)
            if best is not None and len(trials) >= len(self.trials):
                found.append(best.value or 0.0)
        return found

    def as_dict(self) -> dict[str, Any]:
        """All values with the keys of the command line's JSON."""
        finished = [trial for trial in self.trials if trial.is_finished]
        best, config = self.best, self.best_config
        value: dict[str, Any] = {
            "search": str(self.path),
            "data": self.data,
            "finished": self.is_finished,
            "target": self.settings.target,
            "best": None if config is None else _table(config),
            "best_trial": None if best is None else best.number + 1,
            "best_value": None if best is None else best.value,
            "valid": None if best is None else best.about.get("metrics", {}).get("mrr", best.value),
            "trials": len(finished),
            "stopped": sum(trial.status == "stopped" for trial in finished),
            "failed": sum(trial.status == "failed" for trial in finished),
            "infeasible": sum(trial.status == "infeasible" for trial in finished),
            "seconds": max((trial.at for trial in finished), default=0.0),
            "session_seconds": self.sessions,
            "minutes": self.settings.minutes or None,
            "importance": self.importance,
            "sampler_trials": sum(trial.is_finished for trial in self.sampler_trials),
            "random_searches": len(self.random_best),
        }
        if self.random_best:
            value["random_best"] = self.random_best
            value["random_median"] = median(self.random_best)
        if self.trained is not None:
            value["run"] = str(self.path / RUN)
            value["trained"] = (
                {name: self.trained[name] for name in ("epochs", "best_epoch", "seconds")}
                | {"trial": self.trained["trial"] + 1}
                | {split: _short(self.trained[split]) for split in ("valid", "test")}
            )
        if self.final is not None:
            value["best_run"] = str(self.path / BEST)
            value["sampler"] = self.final["sampler"]
            value["phase_2"] = {
                name: self.final[name] for name in ("before", "after", "expected", "per_relation")
            }
            value["test"] = _short(self.final.get("test"))
            value["test_before"] = _short(self.final.get("test_before"))
        return value


def summarise(path: Path) -> Summary:
    """Read the search in a directory; raises if there is none."""
    store = Store(path)
    try:
        settings = SearchSettings.from_json(store.about("settings"))
        trials = store.trials(PREDICTOR)
        phases = store.phases()
        random = {
            int(phase.partition(":")[2]): store.trials(phase)
            for phase in phases
            if phase.startswith(f"{RANDOM}:")
        }
        final, trained = store.about("final"), store.about("trained")
        phase = store.about(SAMPLER)
        if final is not None and final["phase"] != phase:
            final = None  # of an earlier winner; the current one has no result yet
        return Summary(
            path,
            store.about("data")["name"],
            store.about("data")["facts"],
            settings,
            trials,
            random,
            [] if phase is None else store.trials(phase),
            trained,
            final,
            importance(settings.space, trials, settings.seed),
            predicted_random_search(settings.space, trials, max(len(trials), 1), settings.seed),
            bool(store.about("finished")),
            session_seconds(store),
        )
    finally:
        store.close()


def _table(config: Config) -> dict[str, Any]:
    return {
        section: {name: value for name, value in options.items() if value is not None}
        for section, options in dataclasses.asdict(config).items()
    }


def _short(report: dict[str, Any] | None) -> dict[str, Any] | None:
    names = (*SCORES, "coverage", "queries")
    return None if report is None else {name: report[name] for name in names if name in report}
