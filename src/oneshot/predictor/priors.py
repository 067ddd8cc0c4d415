"""Priors: features of an entity that do not depend on message passing."""

import torch
from torch import Tensor

from oneshot.subgraph import SubgraphBatch

NUM_PRIORS = 2

_SCORE_FLOOR = 1e-7  # below the scores of sampled entities
SCALE = 4.0
"""Divisors of the logarithms, so that the features are about 1."""


def prior_features(batch: SubgraphBatch, dtype: torch.dtype) -> Tensor:
    """Logarithms of the sampler's score and of the degree of each entity, [N, 2]."""
    score = batch.score.to(dtype).add(_SCORE_FLOOR).log()
    degree = batch.degree.to(dtype).add(1).log()
    return torch.stack([score, degree], dim=1) / SCALE
