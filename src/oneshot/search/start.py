"""Outset: where a search starts from, fitted to the data where the user said nothing."""

import dataclasses
import math
import time
from collections.abc import Sequence

import torch

from oneshot.config import Config, SamplerConfig
from oneshot.data.dataset import Dataset
from oneshot.evaluation.coverage import components, coverage
from oneshot.reasoner.build import build_reasoner, build_sampler
from oneshot.search.allotment import Allotment
from oneshot.search.feasibility import measure_pace
from oneshot.training.plan import make_plan

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
