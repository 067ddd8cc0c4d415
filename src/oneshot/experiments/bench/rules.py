"""Faithfulness of explanations: whether the relations of a path are a rule of a family world."""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from oneshot.data.dataset import Dataset, both_directions
from oneshot.ranking import KnownFacts, filtered_ranks
from oneshot.reasoner.explanation import Explanation
from oneshot.reasoner.reasoner import Reasoner

RELIABLE = 0.95
"""Share of cases in which a sequence of relations must hold to count as a rule."""

_BATCH = 64  # queries per batch


class Truth(NamedTuple):
    """The senses in which a path is a rule, from the strictest to the widest.

    `listed`: one of the generator's rules (reversed for inverse queries). `everywhere`: that, or
    any other sequence of relations that holds in the world of all facts: at least 95% of the pairs
    that it joins by a path without repeated people are also joined by the query relation. Examples
    are grandmother ← grandfather ∘ wife and uncle ← brother ∘ uncle, but not uncle ← aunt ∘ brother
    (he may be the father). `asked`: the same, counting only paths from people who have an answer.
    The query "whose uncle is Max?" implies that Max is an uncle; then each child of his sister is
    an answer. Without that knowledge, "Max" could also be an aunt.
    """

    listed: bool
    everywhere: bool
    asked: bool


class RuleBook:
    """Decides whether a sequence of relations is a rule, by all facts of a family world."""

    def __init__(self, data: Dataset) -> None:
        self.people, count = len(data.entities), len(data.relations)
        number = data.relations.index
        rules = {(number(rule.head), tuple(map(number, rule.body))) for rule in data.rules}
        self.rules = rules | {
            (head + count, tuple(part + count for part in reversed(body))) for head, body in rules
        }
        facts = data.known.numpy()
        self._pairs, self._starts, self._ends = [], [], []
        for relation in range(2 * count):
            mine = facts[facts[:, 1] == relation % count]
            head, tail = (mine[:, 0], mine[:, 2]) if relation < count else (mine[:, 2], mine[:, 0])
            order = np.lexsort((tail, head))
            sizes = np.bincount(head, minlength=self.people)
            self._starts.append(np.concatenate([[0], np.cumsum(sizes)]))
            self._ends.append(tail[order])
            self._pairs.append(head * self.people + tail)
        self.truth = cache(self._truth)

    def truth_of(self, explanation: Explanation, relation: int) -> Truth:
        """Whether the first path of an answer to a query about `relation` is a rule."""
        if not explanation.paths:
            return Truth(False, False, False)
        labels = explanation.batch.edges[1, list(explanation.paths[0].edges)]
        return self.truth(tuple(labels.tolist()), relation)

    def precision(self, body: tuple[int, ...], head: int, asked: bool) -> float:
        """The share of pairs joined by a path `body` without repeats that `head` also joins.

        `asked`: only paths from people for whom `head` has an answer. The share of no pairs is 0.
        """
        everyone = np.arange(self.people)
        chosen = np.isin(everyone, self._pairs[head] // self.people) if asked else everyone >= 0
        paths = everyone[chosen][:, None]
        for relation in body:
            first, ends = self._starts[relation], self._ends[relation]
            last = paths[:, -1]
            sizes = first[last + 1] - first[last]
            row = np.repeat(np.arange(len(paths)), sizes)
            step = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            reached = ends[first[last][row] + step]
            new = ~(paths[row] == reached[:, None]).any(axis=1)
            paths = np.concatenate([paths[row], reached[:, None]], axis=1)[new]
        joined = np.unique(paths[:, 0] * self.people + paths[:, -1])
        return float(np.isin(joined, self._pairs[head]).mean()) if len(joined) else 0.0

    def _truth(self, body: tuple[int, ...], head: int) -> Truth:
        listed = (head, body) in self.rules
        everywhere, asked = (
            listed or self.precision(body, head, where) >= RELIABLE for where in (False, True)
        )
        return Truth(listed, everywhere, asked)


def right_answers(reasoner: Reasoner, data: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """The test split in both directions: queries [n, 2], answers [n], whether ranked first [n]."""
    queries, answers = both_directions(data.test, len(data.relations))
    known = KnownFacts(data.known, len(data.entities), len(data.relations))
    right = []
    for asked, wanted in zip(queries.split(_BATCH), answers.split(_BATCH), strict=True):
        batch, scores = reasoner.reason(asked)
        ranks = filtered_ranks(batch, scores, wanted, known, len(data.entities))
        right.append(ranks.pessimistic == 1)
    return queries, answers, torch.cat(right)
