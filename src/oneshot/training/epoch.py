"""Epoch: the random split of the training facts into observation facts and query facts."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.config import TrainingConfig
from oneshot.data.dataset import both_directions
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.hidden import can_hide
from oneshot.samplers import Sampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system.hashed_random import permuted, uniform

# With "leave_out": facts that are left out together, at most this number and share of all facts.
_LEFT_OUT, _LEFT_OUT_SHARE = 512, 0.01
# Facts of a graph in memory from which on a view is faster than a copy without the query facts.
_LEAST_HIDING = 1_000_000


class QueryBatch(NamedTuple):
    """The queries of one step, the `step`-th of its epoch, counted from 0.

    `observed`: the graph of the observation facts; `queries` int64 [n, 2]; `answers` int64 [n].
    """

    step: int
    observed: KnowledgeGraph
    queries: Tensor
    answers: Tensor

    def share(self, rank: int, size: int) -> "QueryBatch":
        """The share of process `rank` of `size` processes."""
        return self._replace(queries=self.queries[rank::size], answers=self.answers[rank::size])


class Part(NamedTuple):
    """Queries of an epoch with the same observation facts.

    `begin`: number of the first query in the epoch; `observed`: the graph of the observation facts,
    with all entities; `queries` int64 [m, 2]; `answers` int64 [m].
    """

    begin: int
    observed: KnowledgeGraph
    queries: Tensor
    answers: Tensor


@dataclass(frozen=True)
class Epoch:
    """The query facts of an epoch as queries in both directions, and what each may see.

    `number`: counted from 1; `queries` int64 [m, 2]; `answers` int64 [m], in random order. The
    queries come in parts of `part_size`. A part sees the facts of `graph` where `mask` bool [F] is
    true, except its own: `hidden` int64 [m] is the fact that each query asks about. Without a mask,
    it sees all others, as a view (see `KnowledgeGraph.hiding`).
    """

    number: int
    graph: KnowledgeGraph
    mask: Tensor | None
    queries: Tensor
    answers: Tensor
    hidden: Tensor
    part_size: int
    # The graph of the latest part, by its first query.
    _graphs: dict[int, KnowledgeGraph] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def whole(
        cls, number: int, observed: KnowledgeGraph, queries: Tensor, answers: Tensor
    ) -> "Epoch":
        """An epoch of one part, whose queries all see the same graph."""
        mask = torch.ones(observed.num_facts, dtype=torch.bool)
        nothing = torch.zeros(0, dtype=torch.long)
        size = max(len(queries), 1)
        graphs = {0: observed}
        return cls(number, observed, mask, queries, answers, nothing, size, graphs)

    @property
    def observed(self) -> KnowledgeGraph:
        """The observation facts of the first part."""
        return self._observed(0)

    def parts(self, start: int = 0) -> Iterator[Part]:
        """The queries from `start` on, part by part."""
        while start < len(self.queries):
            first = start - start % self.part_size
            rows = slice(start, first + self.part_size)
            yield Part(start, self._observed(first), self.queries[rows], self.answers[rows])
            start = first + self.part_size

    def batches(self, size: int, start: int = 0) -> Iterator[QueryBatch]:
        """The queries from `start` on, `size` at a time; the last batch may be smaller."""
        for part in self.parts(start):
            for begin in range(0, len(part.queries), size):
                step, rows = (part.begin + begin) // size, slice(begin, begin + size)
                yield QueryBatch(step, part.observed, part.queries[rows], part.answers[rows])

    def first(self, count: int) -> "Epoch":
        """The epoch with only its first queries."""
        return dataclasses.replace(self, queries=self.queries[:count], answers=self.answers[:count])

    def _observed(self, first: int) -> KnowledgeGraph:
        """The graph that the part from query `first` on sees."""
        if first not in self._graphs:
            self._graphs.clear()
            hidden = self.hidden[first : first + self.part_size]
            if self.mask is None:
                self._graphs[first] = self.graph.hiding(hidden)
            else:
                mask = self.mask.clone()
                mask[hidden] = False
                self._graphs[first] = self.graph.subset(mask)
        return self._graphs[first]


def hides_facts(graph: KnowledgeGraph, sampler: Sampler) -> bool:
    """Whether epochs hide the facts they ask about in a view, instead of copying the others.

    That is for large graphs and those in files, if the sampler reads only few rows of them.
    """
    near = graph.host or graph
    is_large = near.is_mapped or near.num_facts >= _LEAST_HIDING
    return is_large and can_hide(near) and sampler.is_local(near)


def draw_epoch(
    graph: KnowledgeGraph,
    config: TrainingConfig,
    number: int,
    step_size: int = 0,
    hides: bool = False,
) -> Epoch:
    """The split of epoch `number`; the same seed and number give the same split.

    `step_size`: queries per step, by default the batch size; no step has queries of two parts.
    `hides`: see `hides_facts`. Then time and memory are in proportion to the facts that are asked,
    and they alone are hidden, also if they are only a share of the query facts (`query_share`).
    """
    seed = mixed_seed(config.seed, number)
    generator = torch.Generator().manual_seed(seed)
    num_asked = queries_per_epoch(config, graph.num_facts) // 2
    part_size = 2 * num_asked
    if config.split == "leave_out":
        part_size = _part_size(graph.num_facts, step_size or config.batch_size)
    if hides:
        mask, asked = None, permuted(torch.arange(num_asked), graph.num_facts, seed)
    else:
        order = torch.randperm(graph.num_facts, generator=generator)
        mask = torch.ones(graph.num_facts, dtype=torch.bool)
        if config.split == "epoch":
            order = order[_num_observed(config, graph.num_facts) :]
            mask[order] = False
        asked = order[:num_asked]
    parts = []
    for part in torch.arange(num_asked).split(part_size // 2):
        places = torch.cat([part, part + num_asked])  # those of `both_directions`
        parts.append(places[torch.randperm(len(places), generator=generator)])
    mixed = torch.cat(parts)
    near = graph.host or graph  # where all facts are
    facts = near.facts[asked.to(near.device)].long().to(graph.device)
    queries, answers = both_directions(facts, graph.num_relations)
    hidden = asked[mixed % num_asked]
    mixed = mixed.to(graph.device)
    return Epoch(number, graph, mask, queries[mixed], answers[mixed], hidden, part_size)


def _part_size(num_facts: int, step_size: int) -> int:
    """Queries per part with "leave_out": even, and a multiple of the queries per step."""
    unit = step_size if step_size % 2 == 0 else 2 * step_size
    facts = min(_LEFT_OUT, int(_LEFT_OUT_SHARE * num_facts))
    return max(2 * facts // unit, 1) * unit


def sampled_for(
    sampler: Sampler,
    graph: KnowledgeGraph,
    config: TrainingConfig,
    epoch: int,
    part: Part,
    numbers: Tensor,
) -> SubgraphBatch:
    """The subgraphs of training queries of an epoch, with the options of the configuration.

    `graph`: all training facts; `part`: some queries, with the graph that they see; `numbers` int64
    [n]: those of the queries in the epoch.
    """
    seen = graph if config.sample_from == "train" else part.observed
    batch = sampler.sample(seen, part.queries, edges_from=part.observed)
    if config.hide_direct:
        batch = without_direct(batch, part.answers, graph.num_relations)
    if config.fact_dropout:
        seed = mixed_seed(config.seed, epoch)
        batch = without_some_facts(batch, config.fact_dropout, seed, numbers, graph.num_relations)
    return batch


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
    return batch.with_edges(kept)


def without_some_facts(
    batch: SubgraphBatch, share: float, seed: int, number: Tensor, num_relations: int
) -> SubgraphBatch:
    """The batch with a random share of the facts of each subgraph removed, in both directions.

    `number` int64 [n]: the number of each query in its epoch. What is removed depends on `seed`,
    this number and the fact alone, not on the other queries of the batch. Identity edges stay.
    """
    source, relation, target = batch.edges
    is_inverse = relation >= num_relations
    head = batch.entities[torch.where(is_inverse, target, source)]
    tail = batch.entities[torch.where(is_inverse, source, target)]
    drawn = uniform(seed, number[batch.edge_query], head, relation % num_relations, tail)
    kept = ((drawn > share) | (relation == 2 * num_relations)).nonzero().squeeze(1)
    return batch.with_edges(kept)


def queries_per_epoch(config: TrainingConfig, num_facts: int) -> int:
    """Number of queries per epoch, in both directions."""
    facts = num_facts
    if config.split == "epoch":
        facts -= _num_observed(config, num_facts)
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
