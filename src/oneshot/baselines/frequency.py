"""The frequency baseline: an entity is as good an answer as it often occurs with the relation."""

import torch
from torch import Tensor

from oneshot.baselines.scoring import Scorer, rank_split
from oneshot.dataset import Dataset, both_directions
from oneshot.ranking import Metrics


def frequency_scorer(data: Dataset) -> Scorer:
    """The score of `v` for `(u, q, ?)`: the number of training facts `(·, q, v)`, whatever `u`."""
    size, relations = data.graph.num_entities, data.graph.num_relations
    counts = torch.zeros(2 * relations, size)
    asked, answers = both_directions(data.train, relations)
    counts.index_put_((asked[:, 1], answers), torch.ones(len(answers)), accumulate=True)

    def scores(queries: Tensor) -> Tensor:
        return counts[queries[:, 1]]

    return scores


def frequency_metrics(data: Dataset, split: str = "test") -> Metrics:
    """Filtered, realistic ranks of a split, all entities being ranked by their frequency."""
    return rank_split(frequency_scorer(data), data, split).metrics
