"""Construction of samplers and reasoners from a configuration, and the reverse."""

from collections.abc import Mapping
from typing import Any

import torch

from oneshot.config import Config, SamplerConfig
from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import make_predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import SAMPLERS, Sampler


def build_sampler(config: SamplerConfig, seed: int = 0) -> Sampler:
    """The sampler that a configuration describes."""
    if config.name not in SAMPLERS:
        raise UnknownNameError.among("sampler", config.name, SAMPLERS)
    options: dict[str, Any] = {
        "entity_ratio": config.entity_ratio,
        "edge_ratio": config.edge_ratio,
        "max_entities": config.max_entities,
        "max_edges": config.max_edges,
        "mass": config.mass,
        "keep_unreachable": config.keep_unreachable,
        "edge_score": config.edge_score,
        "edge_limit": config.edge_limit,
        "seed": seed,
    }
    sampler = SAMPLERS[config.name]
    options |= {option: getattr(config, option) for option in sampler.options}
    return sampler(**options)


def sampler_config(sampler: Sampler) -> SamplerConfig:
    """The configuration that describes a sampler."""
    if sampler.name not in SAMPLERS or type(sampler) is not SAMPLERS[sampler.name]:
        raise InputError(
            f"a sampler of type {type(sampler).__name__} is not registered, so a reasoner "
            "with it cannot be saved"
        )
    budget = sampler.budget
    return SamplerConfig(
        name=sampler.name,
        entity_ratio=_plain(budget.entity_ratio),
        edge_ratio=_plain(budget.edge_ratio),
        max_entities=_plain(budget.max_entities),
        max_edges=_plain(budget.max_edges),
        mass=_plain(budget.mass),
        keep_unreachable=sampler.keep_unreachable,
        edge_score=sampler.edge_score,
        edge_limit=sampler.edge_limit,
        **{option: _plain(getattr(sampler, option)) for option in sampler.options},
    )


def build_reasoner(
    graph: KnowledgeGraph, config: Config, device: torch.device | str = "cpu"
) -> Reasoner:
    """A reasoner with a new predictor, initialized with the seed of the training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        predictor = make_predictor(config.predictor, graph.num_relations)
    sampler = build_sampler(config.sampler, config.training.seed)
    sampler.check_names(graph)
    return Reasoner(graph.to(device), sampler, predictor.to(device))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
