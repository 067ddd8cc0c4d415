"""Answer counts: how often each entity is the answer of each relation in a graph.

The features describe an entity as an answer to a relation, independent of the query entity: whether
it is a known answer, how often, and which other relations it answers. All features are structural,
so they also apply to entities and graphs that were never seen.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from oneshot.graph.adjacency import AdjacencyGraph, row_places

NUM_FEATURES = 5
"""Number of features per entity in `AnswerCounts.features`."""

# Added to shares before the logarithm; smaller shares are not informative.
_LEAST_MEAN, _LEAST_MOST = 1e-4, 1e-3
# Maximum number of table entries that are computed at once.
_BLOCK = 1 << 24


class AnswerCounts:
    """The relations that each entity answers, with counts, including inverses.

    `pairs`: the pairs of entity and relation, `I` of them, which may be in memory-mapped files.
    """

    def __init__(self, graph: AdjacencyGraph) -> None:
        self.num_entities, self.num_relations = (
            graph.num_entities,
            2 * graph.num_relations,
        )  # with inverses
        self.pairs = graph.answer_pairs
        self._answers = self.pairs.start.diff().clamp(min=1).float()
        self._degree = graph.degree.float().log1p()

    def features(self, relations: Tensor) -> Tensor:
        """Features of each entity as an answer of each relation: [b] → [b, V, 5].

        Whether it is a known answer; log(1 + count); for the other relations that it answers, the
        shares of their answers that also answer this relation: logarithm of mean and maximum; and
        log(1 + degree).
        """
        return torch.cat([torch.stack(self._columns(part), -1) for part in self._split(relations)])

    def weighted(self, relations: Tensor, weights: Tensor) -> Tensor:
        """The weighted sums of the features, with weights [b, 5]: [b] → [b, V]."""
        sums = []
        for part, weight in zip(self._split(relations), weights.split(self._block), strict=True):
            columns = self._columns(part)
            total = columns[0] * weight[:, :1]
            for column, factor in zip(columns[1:], weight.unbind(1)[1:], strict=True):
                total.addcmul_(column, factor[:, None])
            sums.append(total)
        return torch.cat(sums)

    def likely_answers(self, relation: int, least_share: float) -> Tensor:
        """Entities that answer a relation, or may do so by the company they keep: int64 [k].

        These are the answers of another relation of whose answers at least `least_share` also
        answer this one.
        """
        answers = self.pairs.entities_of(relation)
        is_answer = torch.zeros(self.num_entities, dtype=torch.bool, device=answers.device)
        is_answer[answers] = True
        alike = self._shared(answers) / self._answers >= least_share
        for other in alike.nonzero().squeeze(1).tolist():
            is_answer[self.pairs.entities_of(other)] = True
        return is_answer.nonzero().squeeze(1)

    def chances(self, entity: int) -> Tensor:
        """How likely an entity answers each relation, by the company it keeps: [2R].

        1 for the relations that it answers; for others, the largest share of the answers of one of
        those that also answer the other.
        """
        first, end = self.pairs.first[entity : entity + 2].tolist()
        chance = torch.zeros(self.num_relations, device=self._degree.device)
        for relation in self.pairs.relation[first:end].tolist():
            both = self._shared(self.pairs.entities_of(relation))
            chance = torch.maximum(chance, both / self._answers[relation])
        return chance

    def _shared(self, entities: Tensor) -> Tensor:
        """How many of some entities [k] are answers of each relation, float [2R]."""
        marked = torch.zeros(self.num_entities, 1, device=self._degree.device)
        marked[entities] = 1
        start = self.pairs.start[:-1]
        return embedding_bag(self.pairs.entity, marked, start, mode="sum").squeeze(1)

    @property
    def _block(self) -> int:
        return max(_BLOCK // max(self.num_entities, 1), 1)

    def _split(self, relations: Tensor) -> tuple[Tensor, ...]:
        return tuple(relations.split(self._block))

    def _columns(self, relations: Tensor) -> list[Tensor]:
        """The features, each [b, V]."""
        block = torch.arange(len(relations), device=relations.device)
        count = torch.zeros(self.num_entities, len(relations), device=relations.device)
        pairs = self.pairs
        first, end = (pairs.start[relations + one].long() for one in (0, 1))
        column, place = row_places(first, end - first)
        count[pairs.entity[place].long(), column] = pairs.entity_count[place].float()
        occurs = (count > 0).float()
        # Number of answers of every relation that are also answers of these, [2R, b].
        joint = embedding_bag(pairs.entity, occurs, pairs.start[:-1], mode="sum")
        share = joint / self._answers[:, None]
        share[relations, block] = 0  # the relation itself has its own features
        mean = embedding_bag(pairs.relation, share, pairs.first[:-1], mode="mean")
        most = embedding_bag(pairs.relation, share, pairs.first[:-1], mode="max")
        columns = (occurs, count.log1p(), (mean + _LEAST_MEAN).log(), (most + _LEAST_MOST).log())
        return [
            *(column.t().contiguous() for column in columns),
            self._degree.expand(len(relations), -1),
        ]
