"""Priors: what speaks for an entity before any reasoning."""

import torch
from torch import Tensor

from oneshot.subgraph import SubgraphBatch

NUM_PRIORS = 2

_SCORE_FLOOR = 1e-7  # below the scores of sampled entities
SCALE = 4.0
"""What the logarithms are divided by, so that the features are about 1."""


def prior_features(batch: SubgraphBatch, kind: torch.dtype) -> Tensor:
    """Logarithms of the sampler's score and of the degree of each entity, [N, 2]."""
    score = batch.score.to(kind).add(_SCORE_FLOOR).log()
    degree = batch.degree.to(kind).add(1).log()
    return torch.stack([score, degree], dim=1) / SCALE
