"""Epoch: the random split of the training facts into observation facts and query facts."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.config import TrainingConfig
from oneshot.data.dataset import both_directions
from oneshot.graph.graph import KnowledgeGraph
from oneshot.subgraph import SubgraphBatch


class QueryBatch(NamedTuple):
    """The queries of one step, the `step`-th of its epoch, counted from 0.

    `queries` int64 [n, 2]; `answers` int64 [n].
    """

    step: int
    queries: Tensor
    answers: Tensor

    def share(self, rank: int, size: int) -> "QueryBatch":
        """The share of process `rank` of `size` processes."""
        return QueryBatch(self.step, self.queries[rank::size], self.answers[rank::size])


@dataclass(frozen=True)
class Epoch:
    """The observation facts as a graph, and the query facts as queries in both directions.

    `number`: counted from 1; `observed`: the graph of the observation facts, with all entities;
    `queries` int64 [m, 2]; `answers` int64 [m], in random order.
    """

    number: int
    observed: KnowledgeGraph
    queries: Tensor
    answers: Tensor

    def batches(self, size: int, start: int = 0) -> Iterator[QueryBatch]:
        """The queries from `start` on, `size` at a time; the last batch may be smaller."""
        for begin in range(start, len(self.queries), size):
            part = slice(begin, begin + size)
            yield QueryBatch(begin // size, self.queries[part], self.answers[part])

    def first(self, count: int) -> "Epoch":
        """The epoch with only its first queries."""
        return dataclasses.replace(self, queries=self.queries[:count], answers=self.answers[:count])


def draw_epoch(graph: KnowledgeGraph, config: TrainingConfig, number: int) -> Epoch:
    """The split of epoch `number`; the same seed and number give the same split."""
    generator = torch.Generator().manual_seed(mixed_seed(config.seed, number))
    order = torch.randperm(graph.num_facts, generator=generator)
    num_observed = _num_observed(config, graph.num_facts)
    mask = torch.zeros(graph.num_facts, dtype=torch.bool)
    mask[order[:num_observed]] = True
    asked = order[num_observed:][: queries_per_epoch(config, graph.num_facts) // 2]
    facts = graph.facts[asked.to(graph.device)].long()
    queries, answers = both_directions(facts, graph.num_relations)
    mixed = torch.randperm(len(queries), generator=generator).to(graph.device)
    return Epoch(number, graph.subset(mask), queries[mixed], answers[mixed])


def without_direct(batch: SubgraphBatch, answers: Tensor, num_relations: int) -> SubgraphBatch:
    """The batch without the edges between each query entity and its answer, `answers` [n].

    In data such as FB15k-237, entity pairs of the test split have no direct facts. Direct facts
    that only training queries have would then mislead training. Identity edges stay.
    """
    source, relation, target = batch.edges
    asked = batch.source[batch.edge_query]
    answer = batch.find(answers)[batch.edge_query]
    is_direct = ((source == asked) & (target == answer)) | ((source == answer) & (target == asked))
    kept = (~is_direct | (relation == 2 * num_relations)).nonzero().squeeze(1)
    return dataclasses.replace(batch, edges=batch.edges[:, kept], edge_query=batch.edge_query[kept])


def queries_per_epoch(config: TrainingConfig, num_facts: int) -> int:
    """Number of queries per epoch, in both directions."""
    facts = num_facts - _num_observed(config, num_facts)
    return 2 * max(1, int(config.query_share * facts))


def mixed_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers, such that (1, 2) and (2, 1) give different seeds."""
    value = 0x9E3779B97F4A7C15
    for part in parts:
        value = (value ^ (part + 0x2545F4914F6CDD1D)) * 0xBF58476D1CE4E5B9 % (1 << 64)
        value ^= value >> 29
    return value >> 1


def _num_observed(config: TrainingConfig, num_facts: int) -> int:
    return min(max(int(config.fact_ratio * num_facts), 1), num_facts - 1)
