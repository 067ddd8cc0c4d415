"""Answer counts: how often each entity is the answer of each relation in a graph.

The features describe an entity as an answer to a relation, independent of the query entity: whether
it is a known answer, how often, and which other relations it answers. All features are structural,
so they also apply to entities and graphs that were never seen.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from oneshot.graph.adjacency import AdjacencyGraph

NUM_FEATURES = 5
"""Number of features per entity in `AnswerCounts.features`."""

# Added to shares before the logarithm; smaller shares are not informative.
_LEAST_MEAN, _LEAST_MOST = 1e-4, 1e-3
# Maximum number of table entries that are computed at once.
_BLOCK = 1 << 24


class AnswerCounts:
    """The relations that each entity answers, with counts, including inverses.

    An entity `v` is an answer of `r` if a fact `(x, r, v)` is in the graph. With `I` distinct pairs
    of entity and relation and `V` entities:

    `entity`, `relation`, `count` [I]: the pairs, sorted by (entity, relation), and the number of
    facts of each.
    """

    def __init__(self, graph: AdjacencyGraph) -> None:
        self.num_entities, self.num_relations = (
            graph.num_entities,
            2 * graph.num_relations,
        )  # with inverses
        degree = graph.degree.long()
        every = torch.arange(self.num_entities, device=graph.device)
        target = every.repeat_interleave(degree)
        pairs, self.count = torch.unique(
            target * self.num_relations + _relations(graph, degree), return_counts=True
        )
        self.entity, self.relation = pairs // self.num_relations, pairs % self.num_relations
        self._by_entity = torch.searchsorted(self.entity, every)
        order = self.relation.argsort(stable=True)
        self._entity_by_relation, self._order = self.entity[order], order
        relations = torch.arange(self.num_relations + 1, device=graph.device)
        self._by_relation = torch.searchsorted(self.relation[order], relations)
        self._answers = self._by_relation.diff().clamp(min=1).float()
        self._degree = degree.float().log1p()

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
        answers = self._entities_of(relation)
        is_answer = torch.zeros(self.num_entities, dtype=torch.bool, device=answers.device)
        is_answer[answers] = True
        both = torch.zeros(self.num_relations, device=answers.device)
        both.index_add_(0, self.relation, is_answer[self.entity].float())
        alike = both / self._answers >= least_share
        is_answer[self.entity[alike[self.relation]]] = True
        return is_answer.nonzero().squeeze(1)

    def chances(self, entity: int) -> Tensor:
        """How likely an entity answers each relation, by the company it keeps: [2R].

        1 for the relations that it answers; for others, the largest share of the answers of one of
        those that also answer the other.
        """
        first = int(self._by_entity[entity])
        end = int(torch.searchsorted(self.entity, entity, right=True))
        chance = torch.zeros(self.num_relations, device=self.entity.device)
        for relation in self.relation[first:end].tolist():
            is_answer = torch.zeros(self.num_entities, device=self.entity.device)
            is_answer[self._entities_of(relation)] = 1
            both = torch.zeros_like(chance).index_add_(0, self.relation, is_answer[self.entity])
            chance = torch.maximum(chance, both / self._answers[relation])
        return chance

    def _entities_of(self, relation: int) -> Tensor:
        first, end = self._by_relation[relation : relation + 2].tolist()
        found: Tensor = self._entity_by_relation[first:end]
        return found

    @property
    def _block(self) -> int:
        return max(_BLOCK // max(self.num_entities, 1), 1)

    def _split(self, relations: Tensor) -> tuple[Tensor, ...]:
        return tuple(relations.split(self._block))

    def _columns(self, relations: Tensor) -> list[Tensor]:
        """The features, each [b, V]."""
        block = torch.arange(len(relations), device=relations.device)
        count = torch.zeros(self.num_entities, len(relations), device=relations.device)
        first, end = self._by_relation[relations], self._by_relation[relations + 1]
        column = block.repeat_interleave(end - first)
        shift = first - (end - first).cumsum(0) + (end - first)
        place = torch.arange(len(column), device=relations.device) + shift[column]
        entity = self._entity_by_relation[place]
        count[entity, column] = self.count[self._order[place]].float()
        occurs = (count > 0).float()
        # Number of answers of every relation that are also answers of these, [2R, b].
        joint = embedding_bag(self._entity_by_relation, occurs, self._by_relation[:-1], mode="sum")
        share = joint / self._answers[:, None]
        share[relations, block] = 0  # the relation itself has its own features
        mean = embedding_bag(self.relation, share, self._by_entity, mode="mean")
        most = embedding_bag(self.relation, share, self._by_entity, mode="max")
        columns = (occurs, count.log1p(), (mean + _LEAST_MEAN).log(), (most + _LEAST_MOST).log())
        return [
            *(column.t().contiguous() for column in columns),
            self._degree.expand(len(relations), -1),
        ]


def _relations(graph: AdjacencyGraph, degree: Tensor) -> Tensor:
    """The relation of every edge, in the order of their targets [E]."""
    edges = graph.edges
    if graph.packed:
        return edges.relation.long()
    every = torch.arange(graph.num_entities, device=graph.device)
    return edges.relation[edges.places(every, degree)[1]].long()
