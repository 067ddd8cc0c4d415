"""Outset: where a search starts from, fitted to the data where the user said nothing."""

import dataclasses

import torch

from oneshot.building import build_sampler
from oneshot.config import SamplerConfig
from oneshot.coverage import components, coverage
from oneshot.dataset import Dataset

_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
# Of the answers that a path leads to, this share is to be sampled.
_ENOUGH = 0.94
# No larger subgraphs than this, or a tenth of the graph, whichever is more.
_MOST_ENTITIES = 2000
_QUERIES = 2000


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
