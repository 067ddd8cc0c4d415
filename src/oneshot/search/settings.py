"""Settings of a search, common to all its trials; saved in the store."""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from oneshot.config import Config, SamplerConfig, from_table
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.evaluation.coverage import components, coverage
from oneshot.ranking import SCORES
from oneshot.reasoner.build import build_reasoner, build_sampler
from oneshot.search.allotment import Allotment
from oneshot.search.feasibility import measure_pace
from oneshot.search.space import Space
from oneshot.training.plan import make_plan

Goal = Literal["smaller", "better"]
Surrogate = Literal["forest", "gaussian", "mlp"]
"""The surrogate: a random forest, a Gaussian process, or an ensemble of perceptrons."""


@dataclass(frozen=True)
class Effort:
    """The amount of work; saved in the store, and may change when a search is resumed.

    `trials`: trials of phase 1. `sampler_trials`: trials of phase 2. `random_searches`: number of
    random searches with as many trials, for comparison. `final`: train the best trial in full, then
    run phase 2. In a search with a time limit, 0 trials means as many as fit.
    """

    trials: int = 30
    sampler_trials: int = 30
    random_searches: int = 0
    final: bool = True


@dataclass(frozen=True)
class SearchSettings:
    """Settings that determine the outcome of every trial and are fixed when a search is resumed.

    `target`: the metric to maximise. `goal`: phase 2 searches smaller subgraphs with the same
    target, or a better target. `tolerance`: accepted decrease of the target for "smaller".
    `queries`: training queries of a complete trial. `final_queries`: training queries of the full
    training; 0 for those of `base.training.epochs`. `validations`: number of equidistant
    validations of a trial. `valid_queries`: number of queries of a validation, always the same
    ones. `sampler_queries`: number of validation queries of a trial of phase 2. `seconds`: time
    limit of a trial, 0 for none; CPU time, or on a GPU the time since the first step. `keep`: share
    of the trials that continue at each halving. `initial`: number of trials before the surrogate is
    used. `surrogate`: the surrogate of both phases. `tries_base`: `base` is the first trial.
    `is_planned`:
    `base` is from a plan, not from the user. `base`: all options that are not searched, and the
    options of the full training. `test_space`: the user's space of phase 2.

    `minutes`: time limit of the whole search, 0 for none. With a time limit, a trial takes
    `seconds` of wall-clock time and is validated after equal shares of it (rungs); `queries` and
    `final_queries` are upper limits.
    """

    target: str = "mrr"
    goal: Goal = "smaller"
    tolerance: float = 0.001
    queries: int = 8192
    final_queries: int = 0
    validations: int = 8
    valid_queries: int = 500
    sampler_queries: int = 4000
    seconds: float = 60.0
    keep: float = 0.5
    initial: int = 10
    surrogate: Surrogate = "forest"
    seed: int = 0
    tries_base: bool = False
    is_planned: bool = False
    minutes: float = 0.0
    base: Config = field(default_factory=Config)
    space: Space = field(default_factory=lambda: Space({}, {}))
    test_space: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.target not in SCORES:
            raise InputError(f"target must be one of {', '.join(SCORES)}")
        if self.goal not in get_args(Goal):
            raise InputError(f"goal must be one of {', '.join(get_args(Goal))}")
        if self.surrogate not in get_args(Surrogate):
            raise InputError(f"surrogate must be one of {', '.join(get_args(Surrogate))}")
        for name in ("queries", "validations", "valid_queries", "sampler_queries", "initial"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.keep <= 1:
            raise InputError(f"keep must be above 0 and at most 1, not {self.keep}")
        if self.minutes and not self.seconds:
            raise InputError("a search with a time limit needs seconds above 0 for its trials")
        for name in ("tolerance", "seconds", "final_queries", "minutes"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0, not {getattr(self, name)}")

    def as_table(self) -> dict[str, Any]:
        """The settings as JSON."""
        table = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return table | {"base": dataclasses.asdict(self.base), "space": self.space.as_table()}

    @staticmethod
    def from_json(table: dict[str, Any]) -> "SearchSettings":
        base = {
            section: {k: v for k, v in options.items() if v is not None}
            for section, options in table["base"].items()
        }
        changes = {"base": from_table(base), "space": Space.from_table(table["space"])}
        return SearchSettings(**{**table, **changes})


_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
# The share of the reachable answers that should be sampled.
_ENOUGH = 0.94
# The maximum size of subgraphs, if it is above a tenth of the graph.
_MOST_ENTITIES = 2000
_QUERIES = 2000
# The share of a trial's time for one validation at the speed of the first trial, and the limits of
# its queries. Most configurations are several times slower than a plan for a short time.
_VALIDATION = 1 / 30
_LEAST_VALID, _MOST_VALID = 100, 500


def fitted_sampler(
    config: SamplerConfig, data: Dataset, device: torch.device, seed: int
) -> tuple[SamplerConfig, str]:
    """The training sampler of all trials: the smallest entity ratio with enough coverage.

    Small or dense graphs need large ratios. A budget in the configuration is not changed. Returns
    (configuration, message for the user).
    """
    if config.entity_ratio is not None or config.max_entities is not None:
        return config, "the sampler budget is given by the configuration"
    graph = data.graph.to(device)
    queries, answers = data.queries("valid")
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    queries = queries[order[:_QUERIES]].to(device)
    answers = answers[order[:_QUERIES]].to(device)
    most = max(_MOST_ENTITIES, graph.num_entities // 10)
    ratios = [r for r in _RATIOS if int(r * graph.num_entities) <= most] or [_RATIOS[0]]
    widest = dataclasses.replace(config, entity_ratio=ratios[-1])
    found = coverage(build_sampler(widest, seed), graph, queries, answers, ratios)
    part = components(graph)
    has_path = float((part[queries[:, 0]] == part[answers]).double().mean())
    enough = (r for r in ratios if found.reachable[r] >= _ENOUGH * has_path)
    ratio = next(enough, ratios[-1])
    remark = (
        f"entity_ratio {ratio:g}: coverage {found.coverage[ratio]:.3f} of the validation answers "
        f"({has_path:.3f} are reachable)"
    )
    return dataclasses.replace(config, entity_ratio=ratio), remark


def planned_base(
    data: Dataset, allotment: Allotment, device: torch.device, settings: Sequence[str], seed: int
) -> tuple[Config, str]:
    """The initial configuration of a search with a time limit: a plan (see `oneshot.plan`).

    All trials and the full training use its sampler. The plan is therefore made for a time between
    theirs. Options of the plan that depend on the length of a training are left to the search.
    Returns (configuration, message for the user).
    """
    training = allotment.training_seconds(allotment.predictor_end)
    minutes = math.sqrt(allotment.trial_seconds() * training) / 60
    plan = make_plan(data, minutes, device, settings, seed)
    set_by_user = {setting.partition("=")[0].strip() for setting in settings}
    course = ("epochs", "query_share", "valid_every", "valid_limit", "expected_queries")
    default = type(plan.config.training)()
    changes = {
        name: getattr(default, name) for name in course if f"training.{name}" not in set_by_user
    }
    config = dataclasses.replace(
        plan.config, training=dataclasses.replace(plan.config.training, **changes, minutes=0.0)
    )
    predictor, ratio = config.predictor, config.sampler.entity_ratio
    budget = "" if not isinstance(ratio, float) else f", entity_ratio {ratio:g}"
    remark = (
        f"first trial, by the plan: {predictor.num_layers} layers, dim {predictor.dim}{budget} "
        f"(coverage {plan.coverage:.3f})"
    )
    return config, remark


def affordable_validation(
    config: Config, data: Dataset, device: torch.device, seconds: float
) -> int:
    """Queries per validation in trials of so many seconds, measured with the first trial."""
    reasoner = build_reasoner(data.graph, config, device)
    pace = measure_pace(reasoner, data, config.training, seconds, time.perf_counter)
    affordable = int(_VALIDATION * seconds / max(pace.evaluation, 1e-9))
    return min(max(affordable, _LEAST_VALID), _MOST_VALID)
