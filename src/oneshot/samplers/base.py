"""Sampler: the common interface of all samplers."""

import copy
import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Self, get_args

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.samplers import _extract_gpu
from oneshot.samplers._budget import Budget, Count, Ratio
from oneshot.samplers._edge_limit import (
    EDGE_LIMIT,
    crowded_queries,
    default_edge_limits,
    limit_edges,
)
from oneshot.samplers._extract import EdgeScore, extract
from oneshot.samplers._pagerank import check_entities
from oneshot.samplers._select import choose_highest, counts_of_mass, ranks_of
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import available_memory, kernels_work, total_memory

# Number of dense blocks [V, block] in memory while a block of queries is scored.
_LIVE_BLOCKS = 8
# Maximum number of candidate edges at once; each takes about 100 bytes.
_CANDIDATE_EDGES = 1 << 24


class Selection(NamedTuple):
    """The chosen entities of some queries, sorted by (query, id).

    `entities` int64 [N], `query` int64 [N], `score` float [N].
    """

    entities: Tensor
    query: Tensor
    score: Tensor


class Sampler(ABC):
    """Chooses, for each query `(u, q, ?)`, the entities and edges of its subgraph.

    A sampler scores all entities relative to `u`. It takes the `K` entities with the highest
    scores, always including `u`, ties by lower id; then all edges between them, within the edge
    budget. The subgraph of a query does not depend on earlier calls or on the rest of the batch. A
    new sampler implements `scores`; one that is fitted to a graph also `fit`, `parameters` and
    `take`.

    `entity_ratio`, `edge_ratio`, `max_entities`, `max_edges`,
    `mass`: see `Budget`.
    `keep_unreachable`: false drops chosen entities of score 0 (no path leads there, or only one
        that is too long for the sampler, so they cost time and receive no message); true keeps
        exactly `K` entities.
    `edge_score`: if there are more edges than the budget, those with the highest "product" (or
        "sum") of the scores of their ends are kept.
    `edge_limit`: maximum number of edges without an edge budget; the entities of lowest score are
        dropped until there are no more (see `priority`). By default 1,000,000, and 500 per entity
        for budgets above 2,000 entities; 0 is no limit.
    `seed`: for random samplers.

    A sampler in the registry has a `name`; `options`: further arguments of its `__init__`, each an
    attribute and a field of `SamplerConfig`; `scores_answers`: whether the score is the likelihood
    of being the answer, also for unreachable entities.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    scores_answers: ClassVar[bool] = False

    def __init__(
        self,
        entity_ratio: Ratio | None = None,
        edge_ratio: Ratio | None = None,
        *,
        max_entities: Count | None = None,
        max_edges: Count | None = None,
        mass: Ratio | None = None,
        keep_unreachable: bool = True,
        edge_score: EdgeScore = "product",
        edge_limit: int | None = None,
        seed: int = 0,
    ) -> None:
        self.seed = seed
        self.budget = Budget(entity_ratio, edge_ratio, max_entities, max_edges, mass)
        self.keep_unreachable = keep_unreachable
        if edge_score not in get_args(EdgeScore):
            raise InputError(f"edge_score must be one of {get_args(EdgeScore)}, not {edge_score!r}")
        self.edge_score = edge_score
        if edge_limit is not None and (isinstance(edge_limit, bool) or edge_limit < 0):
            raise InputError(f"edge_limit must be at least 0, not {edge_limit}")
        self.edge_limit = edge_limit

    def with_entity_ratio(self, entity_ratio: Ratio) -> Self:
        """A copy of this sampler with another share of the entities; `max_entities` is dropped."""
        other = copy.copy(self)
        other.budget = dataclasses.replace(
            self.budget, entity_ratio=entity_ratio, max_entities=None
        )
        return other

    def check_names(self, graph: AdjacencyGraph) -> None:
        """Raise if an option names a relation that the graph does not have."""
        self.budget.check_names(graph)

    def fit(self, graph: KnowledgeGraph, seed: int = 0) -> None:  # noqa: B027
        """Fit the sampler to the facts of a graph; does nothing for most samplers."""

    def parameters(self, graph: AdjacencyGraph | None = None) -> dict[str, Tensor]:
        """The fitted parameters by name; empty if there are none.

        For the relations of `graph`, by default of the one that the sampler was fitted to.
        """
        return {}

    def take(self, parameters: dict[str, Tensor], relations: Vocabulary | None = None) -> None:
        """Load the fitted parameters of another sampler of the same type.

        `relations`: names of the relations that the parameters are for. They are matched by name on
        each graph; without names, by their ids.
        """
        if parameters:
            raise InputError(f"the sampler {self.name!r} has no parameters")

    def is_local(self, graph: AdjacencyGraph) -> bool:
        """Whether the subgraphs are chosen from the rows of few entities, not the whole graph."""
        return False

    @abstractmethod
    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        """Scores of all entities relative to each of `entities` [n] → float [n, V], ≥ 0.

        Zero means unreachable. The caller may overwrite the result. Called with a block of
        distinct entities that fits into memory, on the graph's device.
        """

    def sample(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        include: Tensor | None = None,
        edges_from: AdjacencyGraph | None = None,
    ) -> SubgraphBatch:
        """The subgraphs of `queries` int64 [n, 2] (entity, relation; inverse = relation + R).

        `include` int64 [n, c] forces entities into the subgraph of each query, -1 for none;
        they count towards `K`, which grows if necessary. `edges_from`: another graph with the same
        entities from which the edges are taken, while `graph` determines the entities.
        """
        if graph.host is not None:
            # Too large for the device: only the subgraphs are transferred.
            other = edges_from if edges_from is None else edges_from.host or edges_from
            return self.sample(graph.host, queries, include, other).to(graph.device)
        queries = check_queries(graph, queries)
        if include is not None:
            include = check_include(graph, queries, include)
        selection = self.select(graph, queries, include)
        source = graph if edges_from is None else edges_from
        batch = self._extracted(source, queries, selection)
        limits = self._edge_limits(source, queries)
        if limits is None or batch.num_edges <= (self.edge_limit or EDGE_LIMIT):
            return batch
        crowded = crowded_queries(batch, limits, source.num_relations)
        if not len(crowded):
            return batch
        priority = self.priority(graph, batch, crowded)
        return limit_edges(batch, limits, source.num_relations, include, priority)

    def sample_sets(
        self, graph: AdjacencyGraph, sources: Tensor, relations: Tensor | None = None
    ) -> SubgraphBatch:
        """One subgraph per set of entities, `sources` int64 [n, s], -1 for none; see `sources` of
        the batch.

        The score of an entity is the mean of its scores relative to the sources: of PPR, that of a
        walk which restarts at a random one of them. All sources are among the entities; the budget
        grows if necessary. `relations` int64 [n]: those of the queries, if there are any; they
        select ratios by relation, and enter the predictor.
        """
        if graph.host is not None:
            return self.sample_sets(graph.host, sources, relations).to(graph.device)
        if self.scores_answers:
            raise InputError(
                f"the sampler {self.name!r} scores the answers of a query; sets of entities need "
                "another one, such as ppr"
            )
        sources = check_sets(graph, sources)
        if relations is None:
            relations = torch.zeros_like(sources[:, 0])
        relations = torch.as_tensor(relations, device=graph.device)
        queries = check_queries(graph, torch.stack([sources[:, 0], relations], dim=1))
        batch = self._extracted(graph, queries, self._select_sets(graph, queries, sources))
        limits = self._edge_limits(graph, queries)
        if limits is not None and batch.num_edges > (self.edge_limit or EDGE_LIMIT):
            batch = limit_edges(batch, limits, graph.num_relations, sources)
        which = torch.arange(len(queries), device=graph.device)[:, None].expand_as(sources)
        places = batch.find_pairs(which.flatten(), sources.flatten()).view_as(sources)
        return dataclasses.replace(batch, sources=places)

    def _select_sets(self, graph: AdjacencyGraph, queries: Tensor, sources: Tensor) -> Selection:
        """The entities of each set's subgraph."""
        counts = self.budget.entity_counts(graph, queries[:, 1])
        masses = self.budget.masses(graph, queries[:, 1])
        parts = []
        rows = torch.arange(len(sources), device=graph.device)
        for some in rows.split(max(block_size(graph) // sources.shape[1], 1)):
            row, column = (sources[some] >= 0).nonzero().unbind(1)
            distinct, which = sources[some][row, column].unique(return_inverse=True)
            each = self.scores(graph, distinct)[which]
            scores = each.new_zeros(len(some), graph.num_entities).index_add(0, row, each)
            scores /= row.bincount(minlength=len(some))[:, None]
            limits = counts[some]
            if masses is not None:
                limits = counts_of_mass(scores, queries[some, 0], limits, masses[some])
            entities, query, score = choose_highest(
                scores, limits, sources[some], self.keep_unreachable
            )
            parts.append((entities, some[query], score))
        return joined(parts, queries)

    def priority(self, graph: AdjacencyGraph, batch: SubgraphBatch, rows: Tensor) -> Tensor:
        """Which entities stay if the subgraphs of some queries have too many edges: the highest.

        `rows` int64 [b]: these queries of the batch; → float [N], where the values of the others
        have no effect. By default the score.
        """
        return batch.score

    def _edge_limits(self, graph: AdjacencyGraph, queries: Tensor) -> Tensor | None:
        """The edge limit of each query, int64 [n]; None if there is none."""
        budget = self.budget
        if self.edge_limit is not None:
            if not self.edge_limit:
                return None
            limits = torch.full_like(queries[:, 0], self.edge_limit)
            return limits if 2 * graph.num_facts > self.edge_limit else None
        if budget.limits_edges:
            return None
        if 2 * graph.num_facts <= EDGE_LIMIT:  # no subgraph can exceed it
            return None
        return default_edge_limits(budget.entity_counts(graph, queries[:, 1]))

    def _extracted(
        self, graph: AdjacencyGraph, queries: Tensor, selection: Selection
    ) -> SubgraphBatch:
        """The subgraphs on the chosen entities, within the edge budget."""
        budget = self.budget.edge_counts(graph, queries[:, 1])
        size = _extraction_size(graph)
        if self.budget.limits_edges and len(queries):
            # All edges of the entities are candidates, many more than are kept.
            candidates = int(graph.degree_of(selection.entities).sum())
            size = min(size, max(_CANDIDATE_EDGES * len(queries) // max(candidates, 1), 1))
        if len(queries) <= size:
            return extract(graph, queries, *selection, budget, self.edge_score)
        first = range(0, len(queries), size)
        ends = torch.searchsorted(
            selection.query,
            torch.arange(0, len(queries) + size, size, device=graph.device),
        ).tolist()
        parts = []
        for start, (left, right) in zip(first, itertools.pairwise(ends), strict=True):
            part = slice(start, start + size)
            parts.append(
                extract(
                    graph,
                    queries[part],
                    selection.entities[left:right],
                    selection.query[left:right] - start,
                    selection.score[left:right],
                    budget[part],
                    self.edge_score,
                )
            )
        return SubgraphBatch.concatenate(parts)

    def select(
        self, graph: AdjacencyGraph, queries: Tensor, include: Tensor | None = None
    ) -> Selection:
        """The entities of each query's subgraph (see `sample`)."""
        counts = self.budget.entity_counts(graph, queries[:, 1])
        masses = self.budget.masses(graph, queries[:, 1])
        forced = queries[:, :1]
        if include is not None:
            forced = torch.cat([forced, include], dim=1)
        parts = []
        for rows, scores in self._score_blocks(graph, queries[:, 0]):
            limits = counts[rows]
            if masses is not None:
                limits = counts_of_mass(scores, queries[rows, 0], limits, masses[rows])
            entities, query, score = self._choose(
                graph, queries[rows], scores, limits, forced[rows]
            )
            whole = len(rows) == len(queries)  # then the rows are all queries, in order
            parts.append((entities, query if whole else rows[query], score))
        return joined(parts, queries)

    def _choose(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        scores: Tensor,
        counts: Tensor,
        forced: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Entities of some queries [b, 2] by their scores [b, V]; → see `choose_highest`."""
        return choose_highest(scores, counts, forced, self.keep_unreachable)

    def ranks(self, graph: AdjacencyGraph, queries: Tensor, targets: Tensor) -> Tensor:
        """Rank of one target per query in the sampler's order of entities, starting with `u` at 0.

        `queries` [n, 2], `targets` [n] → int64 [n]: the target is sampled with a budget of `K`
        entities if its rank is below `K`.
        """
        if graph.host is not None:
            here = graph.host.device
            return self._ranks(graph.host, queries.to(here), targets.to(here)).to(graph.device)
        return self._ranks(graph, queries, targets)

    def likelihoods(
        self, graph: AdjacencyGraph, queries: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Likelihood of every entity to be the answer, for blocks of rows of `queries` [n, 2].

        → (rows [b], likelihoods [b, V]), on the device of the graph; nothing if the sampler has no
        such score (see `scores_answers`).
        """
        yield from ()

    def _ranks(self, graph: AdjacencyGraph, queries: Tensor, targets: Tensor) -> Tensor:
        """See `ranks`; other samplers may override it with a faster method."""
        places = torch.empty(len(queries), dtype=torch.long, device=graph.device)
        for rows, scores in self._score_blocks(graph, queries[:, 0]):
            places[rows] = ranks_of(scores, queries[rows, 0], targets[rows])
        return places

    def _score_blocks(
        self, graph: AdjacencyGraph, entities: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of rows of `entities` [n] with their scores: (rows [b], scores [b, V]).

        The rows of a block are ascending.
        """
        if not len(entities):
            return
        size = block_size(graph)
        rows = torch.arange(len(entities), device=graph.device)
        distinct, which = entities.unique(return_inverse=True)
        if len(distinct) == len(entities):
            for part in rows.split(size):
                yield part, self.scores(graph, entities[part])
            return
        if len(entities) <= size:
            yield rows, self.scores(graph, distinct)[which]
            return
        # Queries with the same entity are grouped and scored once.
        order = which.argsort(stable=True)
        ordered = which[order]
        last = torch.cat([ordered[size - 1 : -1 : size], ordered[-1:]])
        bounds = torch.stack([ordered[::size], last]).tolist()
        for block, first, final in zip(order.split(size), *bounds, strict=True):
            part = block.sort().values
            if final - first + 1 == len(part):
                yield part, self.scores(graph, entities[part])
            else:
                yield part, self.scores(graph, distinct[first : final + 1])[which[part] - first]


def check_queries(graph: AdjacencyGraph, queries: Tensor) -> Tensor:
    """Queries as int64 [n, 2] on the graph's device; raises for ids outside the graph."""
    queries = torch.as_tensor(queries, device=graph.device)
    if queries.dim() != 2 or queries.shape[1] != 2 or queries.is_floating_point():
        raise InputError(
            f"queries must be integers of shape [n, 2], not {queries.dtype} {list(queries.shape)}"
        )
    queries = queries.long()
    entities, relations = queries.unbind(1)
    no_relation = (relations < 0) | (relations >= 2 * graph.num_relations)
    # One check for all of them, because each result from the device is a synchronization.
    if bool((no_relation | (entities < 0) | (entities >= graph.num_entities)).any()):
        check_entities(graph, entities)
        bad = relations[no_relation]
        raise InputError(
            f"relation id {int(bad[0])} is not in the graph; ids range from 0 to "
            f"{2 * graph.num_relations - 1}, including inverses"
        )
    return queries


def check_sets(graph: AdjacencyGraph, sources: Tensor) -> Tensor:
    """Sets of entities as int64 [n, s] on the graph's device, each entity once, otherwise -1."""
    sources = torch.as_tensor(sources, device=graph.device)
    if sources.dim() != 2 or not sources.shape[1] or sources.is_floating_point():
        raise InputError(
            f"sources must be integers of shape [n, s], not {sources.dtype} {list(sources.shape)}"
        )
    sources = sources.long()
    if bool((sources[:, 0] == -1).any()):
        raise InputError("a set needs at least one entity; fill up with -1 after the last")
    check_entities(graph, sources[sources != -1])
    again = (sources[:, :, None] == sources[:, None, :]).tril(-1).any(2)
    return sources.masked_fill(again, -1)


def check_include(graph: AdjacencyGraph, queries: Tensor, include: Tensor) -> Tensor:
    """Entities to force in, as int64 [n, c] on the graph's device; -1 for none."""
    include = torch.as_tensor(include, dtype=torch.long, device=graph.device)
    if include.dim() != 2 or len(include) != len(queries):
        raise InputError(
            f"include must have shape [{len(queries)}, c], one row per query, not "
            f"{list(include.shape)}"
        )
    check_entities(graph, include[include != -1])
    return include


def block_size(graph: AdjacencyGraph) -> int:
    """Number of queries that are scored at once, given the free memory.

    A CPU does not benefit from more than 32 (two cache lines per row of the block), a GPU little
    from more than 1,024.
    """
    per_query = 4 * max(graph.num_entities, 1) * _LIVE_BLOCKS
    if graph.device.type == "cuda":
        most = 1024
        # Querying the free memory takes longer than a small block, so it is avoided if possible.
        if most * per_query <= (total_memory(graph.device) or 0) // 16:
            return most
        return min(max(available_memory(graph.device) // 2 // per_query, 1), most)
    return min(max(available_memory(graph.device) // 4 // per_query, 1), 32)


def _extraction_size(graph: AdjacencyGraph) -> int:
    """Number of subgraphs that are extracted at once.

    On a CPU as many as are scored, so that the candidate edges stay in the cache; on a GPU as many
    as the table of the kernels allows.
    """
    if kernels_work(graph.device):
        return _extract_gpu.most_queries(graph)
    return block_size(graph)


def joined(parts: list[tuple[Tensor, Tensor, Tensor]], queries: Tensor) -> Selection:
    """One selection from those of the blocks, each sorted by (query, id), sorted likewise."""
    if not parts:
        empty = queries.new_empty(0)
        return Selection(empty, empty, empty.float())
    if len(parts) == 1:
        return Selection(*parts[0])
    entities, query, score = (torch.cat(columns) for columns in zip(*parts, strict=True))
    if len(query) > 1 and bool((query[1:] < query[:-1]).any()):
        order = query.argsort(stable=True)  # within a query, the ids are already sorted
        entities, query, score = entities[order], query[order], score[order]
    return Selection(entities, query, score)
