"""Settings of a search: what its trials have in common; kept in the store."""

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
"""What predicts a trial: a random forest, a Gaussian process, or an ensemble of perceptrons."""


@dataclass(frozen=True)
class Effort:
    """How much is done; kept in the store, and may differ when a search is resumed.

    `trials`: of phase 1. `sampler_trials`: of phase 2. `random_searches`: how many random
    searches of as many trials are run to compare with. `final`: train the best in full, and phase
    2 with it. A search with a time may have 0 trials of either phase: as many as fit into it.
    """

    trials: int = 30
    sampler_trials: int = 30
    random_searches: int = 0
    final: bool = True


@dataclass(frozen=True)
class SearchSettings:
    """What decides on the outcome of every trial, and so must stay when a search is resumed.

    `target`: what is made as large as possible. `goal`: phase 2 looks for smaller subgraphs with
    the same target, or for a better target. `tolerance`: how much of the target "smaller" may
    cost. `queries`: training queries of a whole trial. `final_queries`: of the training of the
    best in full; 0 for as many as `base.training.epochs` has. `validations`: how often a trial is
    validated, at equal distances. `valid_queries`: on how many queries, always the same.
    `sampler_queries`: how many validation queries a trial of phase 2 answers. `seconds`: when a
    trial is stopped, 0 for never; of the processor's own time, or on a GPU since the first step.
    `keep`: share of the trials that go on at each halving. `initial`: trials before the surrogate
    is asked. `surrogate`: by what the others are proposed, in both phases. `tries_base`: `base` is
    the first trial. `is_planned`: `base` comes from a plan, not from the user. `base`: all options
    that are not searched, and how the winner is trained. `test_space`: what the user gave for
    phase 2.

    `minutes`: the time of the whole search, 0 for none. With a time, a trial takes `seconds` by the
    clock, and its validations stand at equal shares of that (rungs); `queries` and `final_queries`
    are the most that are asked.
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
            raise InputError("a search with a time needs one for its trials: seconds above 0")
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
# Of the answers that a path leads to, this share is to be sampled.
_ENOUGH = 0.94
# No larger subgraphs than this, or a tenth of the graph, whichever is more.
_MOST_ENTITIES = 2000
_QUERIES = 2000
# Of a trial's time, what one validation takes at the pace of the first trial, and how many queries
# it asks then. Most configurations are several times slower than a plan for a short time.
_VALIDATION = 1 / 30
_LEAST_VALID, _MOST_VALID = 100, 500


def fitted_sampler(
    config: SamplerConfig, data: Dataset, device: torch.device, seed: int
) -> tuple[SamplerConfig, str]:
    """The sampler that trials train with: the smallest share of entities that covers enough.

    Small or dense graphs want large shares. A budget in the configuration stays.
    → (configuration, a remark on it)
    """
    if config.entity_ratio is not None or config.max_entities is not None:
        return config, "the sampler's budget is the one given"
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
        f"entity_ratio {ratio:g}: it samples {found.coverage[ratio]:.3f} of the validation answers "
        f"({has_path:.3f} can be reached)"
    )
    return dataclasses.replace(config, entity_ratio=ratio), remark


def planned_base(
    data: Dataset, allotment: Allotment, device: torch.device, settings: Sequence[str], seed: int
) -> tuple[Config, str]:
    """The configuration that a search with a time starts from: a plan (see `oneshot.plan`).

    All trials train with its sampler, and so does the training in full. The plan is therefore made
    for a time between theirs. What it has set for a course of that length is left to the search.
    → (configuration, a remark on it)
    """
    training = allotment.training_seconds(allotment.predictor_end)
    minutes = math.sqrt(allotment.trial_seconds() * training) / 60
    plan = make_plan(data, minutes, device, settings, seed)
    set_by_user = {setting.partition("=")[0].strip() for setting in settings}
    course = ("epochs", "query_share", "valid_every", "valid_limit")
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
    """Queries of a validation in trials of so many seconds, measured with the first one."""
    reasoner = build_reasoner(data.graph, config, device)
    pace = measure_pace(reasoner, data, config.training, seconds, time.perf_counter)
    affordable = int(_VALIDATION * seconds / max(pace.evaluation, 1e-9))
    return min(max(affordable, _LEAST_VALID), _MOST_VALID)
