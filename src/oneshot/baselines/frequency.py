"""The frequency baseline: an entity is as good an answer as it often occurs with the relation."""

import torch
from torch import Tensor

from oneshot.dataset import Dataset, both_directions
from oneshot.ranking import KnownFacts, Metrics, metrics

_QUERIES_PER_STEP = 256


def frequency_metrics(data: Dataset, split: str = "test") -> Metrics:
    """Filtered, realistic ranks of a split, all entities being ranked by their frequency.

    The score of `v` for `(u, q, ?)` is the number of training facts `(·, q, v)`, whatever `u`.
    """
    size, relations = data.graph.num_entities, data.graph.num_relations
    counts = torch.zeros(2 * relations, size)
    asked, answers = both_directions(data.train, relations)
    ones = torch.ones(len(answers))
    counts.index_put_((asked[:, 1], answers), ones, accumulate=True)
    known = KnownFacts(data.known, size, relations)
    queries, answers = data.queries(split)
    ranks = [
        _ranks(counts, queries[step], answers[step], known)
        for step in torch.arange(len(queries)).split(_QUERIES_PER_STEP)
    ]
    return metrics(torch.cat(ranks))


def _ranks(counts: Tensor, queries: Tensor, answers: Tensor, known: KnownFacts) -> Tensor:
    """Realistic ranks [n] of `answers` [n] by `counts` [2R, V]."""
    scores = counts[queries[:, 1]]
    rows = torch.arange(len(queries))
    mine = scores[rows, answers][:, None]
    row, entity = known.answers(queries)
    scores[row, entity] = -1  # known answers are no rivals …
    higher = (scores > mine).sum(1)
    equal = (scores == mine).sum(1)
    return 1 + higher + equal.double() / 2  # … the asked one among them
