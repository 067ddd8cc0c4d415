"""Samplers: different ways to choose the subgraph of a query, with a common interface."""

from oneshot.samplers.base import Sampler
from oneshot.samplers.bfs import BFSSampler
from oneshot.samplers.fitted import FittedSampler
from oneshot.samplers.pagerank import PageRankSampler
from oneshot.samplers.ppr import PPRSampler
from oneshot.samplers.random import RandomSampler
from oneshot.samplers.random_walk import RandomWalkSampler

SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler
    for sampler in (
        PPRSampler,
        FittedSampler,
        BFSSampler,
        RandomWalkSampler,
        PageRankSampler,
        RandomSampler,
    )
}

__all__ = [
    "SAMPLERS",
    "BFSSampler",
    "FittedSampler",
    "PPRSampler",
    "PageRankSampler",
    "RandomSampler",
    "RandomWalkSampler",
    "Sampler",
]
