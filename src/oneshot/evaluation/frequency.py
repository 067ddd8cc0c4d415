"""The frequency baseline: ranks entities by how often they occur with the relation."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot.data.dataset import Dataset, both_directions
from oneshot.evaluation.scorer import Scorer
from oneshot.graph.graph import KnowledgeGraph
from oneshot.ranking import KnownFacts, Metrics, Ranks, metrics

Ints = NDArray[np.int64]


class Frequency:
    """How often each entity answers each relation: the number of facts `(·, q, v)`.

    `facts` int64 [n, 3]; both directions are counted. Only the pairs that occur are stored,
    sorted, and ranks are found by binary search: a table [2R, V] would be too large for a large
    graph, and a pass over all entities per query too slow. (In numpy, which sorts several times
    faster than torch on a CPU.)
    """

    def __init__(self, facts: Tensor, num_entities: int, num_relations: int) -> None:
        queries, answers = both_directions(facts.long().cpu(), num_relations)
        pairs = (queries[:, 1] * num_entities + answers).numpy()
        distinct, counts = np.unique(np.append(pairs, -1), return_counts=True)
        counts[0] = 0
        self._set(distinct, counts, num_entities)

    @classmethod
    def of_graph(cls, graph: KnowledgeGraph) -> "Frequency":
        """The counts of the facts of a graph; those of a mapped graph are not copied."""
        near = graph.host or graph
        if near.is_mapped:
            return _MappedFrequency(near)
        return cls(graph.facts, graph.num_entities, graph.num_relations)

    @classmethod
    def _of_pairs(cls, pairs: Ints, counts: Ints, num_entities: int) -> "Frequency":
        """Those of some pairs, relation · V + entity, ascending, and how often each occurs."""
        one = object.__new__(cls)
        one._set(np.append(-1, pairs), np.append(0, counts), num_entities)
        return one

    def _set(self, pairs: Ints, counts: Ints, num_entities: int) -> None:
        self.num_entities = num_entities
        # The first pair never occurs, so that a search always finds a pair.
        self._pair, self._count = pairs, counts
        self._base = int(counts.max()) + 1  # above all counts
        self._by_count = np.sort(pairs // num_entities * self._base + counts)

    def counts(self, relations: Tensor) -> Tensor:
        """The counts of all entities as answers: [n] → float32 [n, V]."""
        start = relations.cpu().numpy() * self.num_entities
        found = torch.zeros(len(start), self.num_entities)
        bounds = np.searchsorted(self._pair, np.stack([start, start + self.num_entities]))
        for row, (first, last) in enumerate(bounds.T.tolist()):
            entities = torch.from_numpy(self._pair[first:last] - start[row])
            found[row, entities] = torch.from_numpy(self._count[first:last]).float()
        return found.to(relations.device)

    def ranks(self, queries: Tensor, answers: Tensor, known: KnownFacts) -> Ranks:
        """Ranks of `answers` [n] of `queries` [n, 2] among all entities, filtered by `known`."""
        entities = self.num_entities
        # Sorted, for memory locality, and to process queries with the same answers once.
        key = queries[:, 1] * entities + queries[:, 0]
        order = key.argsort(stable=True).cpu()
        asked, which = key.cpu()[order].unique_consecutive(return_inverse=True)
        relation, answer = queries.cpu()[order, 1].numpy(), answers.cpu()[order].numpy()
        group = which.numpy()
        count = self._counts(relation * entities + answer)
        higher, equal, total = self._compare(self._by_count, relation, count)
        equal = np.where(count > 0, equal, entities - total)
        # Exclude the other known answers.
        distinct = torch.stack([asked % entities, asked // entities], dim=1)
        row, entity = (part.numpy() for part in known.to("cpu").answers(distinct))
        by_count = self._counts(distinct[:, 1].numpy()[row] * entities + entity)
        by_count = np.sort(row * self._base + by_count)
        known_higher, known_equal, _ = self._compare(by_count, group, count)
        # Exclude the answer itself, known or not.
        is_known = _are_in(group * entities + answer, row * entities + entity)
        best = 1 + higher - known_higher
        worst = best + equal - known_equal - ~is_known
        found = torch.empty(2, len(order), dtype=torch.long)
        found[:, order] = torch.from_numpy(np.stack([best, worst]))
        return Ranks(found[0], found[1], torch.ones(len(order), dtype=torch.bool))

    def metrics(self, queries: Tensor, answers: Tensor, known: KnownFacts) -> Metrics:
        """Metrics of the realistic ranks (see `ranks`)."""
        return metrics(self.ranks(queries, answers, known).realistic)

    def _counts(self, pairs: Ints) -> Ints:
        """How often each pair, relation · V + entity, occurs."""
        row = np.searchsorted(self._pair, pairs).clip(max=len(self._pair) - 1)
        return np.where(self._pair[row] == pairs, self._count[row], 0)

    def _compare(self, by_count: Ints, group: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
        """For each of n counts: numbers of higher, equal and all counts in its group; all [n].

        `by_count`: sorted numbers of the form group · base + count.
        """
        start, end = (np.searchsorted(by_count, (group + next_) * self._base) for next_ in (0, 1))
        key = group * self._base + count
        below = np.searchsorted(by_count, key)
        upto = np.searchsorted(by_count, key, side="right")
        return end - upto, upto - below, end - start


class _MappedFrequency(Frequency):
    """The counts of a memory-mapped graph, relation by relation."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._graph = graph

    def counts(self, relations: Tensor) -> Tensor:
        found = torch.zeros(len(relations), self._graph.num_entities)
        for row, relation in enumerate(relations.tolist()):
            pairs = self._graph.answer_pairs
            found[row, pairs.entities_of(relation)] = pairs.counts_of(relation).float()
        return found.to(relations.device)

    def ranks(self, queries: Tensor, answers: Tensor, known: KnownFacts) -> Ranks:
        queries, answers = queries.cpu(), answers.cpu()
        found = torch.empty(2, len(queries), dtype=torch.long)
        for relation in queries[:, 1].unique().tolist():
            rows = (queries[:, 1] == relation).nonzero().squeeze(1)
            part = self._of(relation).ranks(queries[rows], answers[rows], known)
            found[:, rows] = torch.stack([part.optimistic, part.pessimistic])
        return Ranks(found[0], found[1], torch.ones(len(queries), dtype=torch.bool))

    def _of(self, relation: int) -> Frequency:
        """The counts of the answers of one relation."""
        pairs, size = self._graph.answer_pairs, self._graph.num_entities
        keys = (relation * size + pairs.entities_of(relation)).numpy()
        return Frequency._of_pairs(keys, pairs.counts_of(relation).numpy(), size)


def _are_in(values: Ints, ordered: Ints) -> NDArray[np.bool_]:
    """Which values [n] are among sorted ones."""
    return np.searchsorted(ordered, values, side="right") > np.searchsorted(ordered, values)


def frequency_scorer(data: Dataset) -> Scorer:
    """The score of `v` for `(u, q, ?)`: the number of training facts `(·, q, v)`, whatever `u`."""
    frequency = Frequency.of_graph(data.graph)

    def scores(queries: Tensor) -> Tensor:
        return frequency.counts(queries[:, 1])

    return scores


def frequency_metrics(data: Dataset, split: str = "test") -> Metrics:
    """Metrics of a split with all entities ranked by frequency; filtered, realistic ranks."""
    return Frequency.of_graph(data.graph).metrics(*data.queries(split), data.known_facts)
