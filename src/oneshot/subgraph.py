"""SubgraphBatch: what a sampler hands to the predictor, and how it is cut out of the graph."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from oneshot.graph import KnowledgeGraph

EdgeScore = Literal["product", "sum"]


@dataclass(frozen=True)
class SubgraphBatch:
    """The subgraphs of `n` queries, one after the other; all integers are int64.

    With `N` sampled entities and `E` edges over all queries:

    `queries` [n, 2]: (entity, relation) as asked; an inverse relation is `relation + R`.
    `entities` [N]: global ids, sorted by (query, id).
    `entity_query` [N]: the query (0..n-1) each entity belongs to.
    `source` [n]: place in `entities` of each query's entity `u`.
    `score` [N] float: the sampler's score of each entity.
    `degree` [N]: the number of edges that point to it in the whole graph.
    `edges` [3, E]: for an edge `(x, r, o)` the place of `x` in `entities`, the relation id
        (0..R-1, inverse R..2R-1, identity 2R), the place of `o`. Messages flow from `x` to
        `o`; sorted by `o`.
    `edge_query` [E]: the query each edge belongs to.
    """

    queries: Tensor
    entities: Tensor
    entity_query: Tensor
    source: Tensor
    score: Tensor
    degree: Tensor
    edges: Tensor
    edge_query: Tensor

    @property
    def num_queries(self) -> int:
        return len(self.queries)

    @property
    def num_entities(self) -> int:
        return len(self.entities)

    @property
    def num_edges(self) -> int:
        return self.edges.shape[1]

    @property
    def device(self) -> torch.device:
        return self.entities.device

    def to(self, device: torch.device | str) -> "SubgraphBatch":
        """This batch with its tensors on a device."""
        return SubgraphBatch(
            *(getattr(self, field.name).to(device) for field in dataclasses.fields(self))
        )

    def find(self, entities: Tensor) -> Tensor:
        """Place of one entity per query, `entities` [n] global ids → [n]; -1 if not sampled."""
        return self.find_pairs(torch.arange(self.num_queries, device=self.device), entities)

    def find_pairs(self, query: Tensor, entities: Tensor) -> Tensor:
        """Place of each entity in the subgraph of its query: both [m] → [m]; -1 if not sampled."""
        if not len(entities) or not self.num_entities:
            return torch.full_like(entities, -1)
        span = int(torch.maximum(self.entities.max(), entities.max())) + 1
        keys = self.entity_query * span + self.entities
        wanted = query * span + entities
        place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        return torch.where((keys[place] == wanted) & (entities >= 0), place, -1)


def extract(
    graph: KnowledgeGraph,
    queries: Tensor,
    entities: Tensor,
    entity_query: Tensor,
    score: Tensor,
    edge_budget: Tensor,
    edge_score: EdgeScore = "product",
) -> SubgraphBatch:
    """Cut the subgraphs on the chosen entities out of the graph, for all queries at once.

    `queries` [n, 2]; `entities`, `entity_query`, `score` [N] as in `SubgraphBatch`, with each
    query's `u` among its entities; `edge_budget` [n]: the most facts, counted in both
    directions, that a query may have. Beyond it the edges of highest `p_x · p_o` (or
    `p_x + p_o`) stay, ties by place. Identity edges are always kept and not counted.
    """
    edges = graph.edges
    count = graph.degree[entities]
    start = edges.indptr[entities]
    # Row `i` of the candidates: the edges into entity `i`, then its identity edge. Walking
    # the rows in order gives edges sorted by target without a sort.
    first = (count + 1).cumsum(0) - (count + 1)
    total = int(first[-1] + count[-1]) + 1 if len(entities) else 0
    places = torch.arange(len(entities), device=graph.device)
    row = places.repeat_interleave(count + 1, output_size=total)
    place = torch.arange(total, device=graph.device) + (start - first)[row]
    identity = first + count
    place[identity] = 0  # has no place in the adjacency; what stands there is replaced below
    any_edge = len(edges.source) > 0
    source = edges.source[place].long() if any_edge else torch.zeros_like(row)
    relation = edges.relation[place].long() if any_edge else torch.zeros_like(row)
    local = _local_places(graph.num_entities, len(queries), entities, entity_query, row, source)
    local[identity] = places
    relation[identity] = 2 * graph.num_relations
    kept = (local >= 0).nonzero().squeeze(1)
    row, local, relation = row[kept], local[kept], relation[kept]
    query = entity_query[row]
    facts_per_query = torch.bincount(query, minlength=len(queries)) - torch.bincount(
        entity_query, minlength=len(queries)
    )
    if bool((facts_per_query > edge_budget).any()):
        left, right = score[local], score[row]
        value = left * right if edge_score == "product" else left + right
        is_fact = relation < 2 * graph.num_relations
        keep = ~is_fact | _highest(value, query, is_fact, edge_budget)
        row, local, relation, query = row[keep], local[keep], relation[keep], query[keep]
    batch = SubgraphBatch(
        queries=queries,
        entities=entities,
        entity_query=entity_query,
        source=torch.zeros(0, dtype=torch.long, device=graph.device),
        score=score,
        degree=count,
        edges=torch.stack([local, relation, row]),
        edge_query=query,
    )
    return dataclasses.replace(batch, source=batch.find(queries[:, 0]))


def concatenate(batches: Sequence[SubgraphBatch]) -> SubgraphBatch:
    """One batch of the subgraphs of several, in their order."""
    if len(batches) == 1:
        return batches[0]
    columns: dict[str, list[Tensor]] = {f.name: [] for f in dataclasses.fields(SubgraphBatch)}
    queries = entities = 0
    for batch in batches:
        shift = torch.tensor([entities, 0, entities], device=batch.device)
        columns["queries"].append(batch.queries)
        columns["entities"].append(batch.entities)
        columns["entity_query"].append(batch.entity_query + queries)
        columns["source"].append(batch.source + entities)
        columns["score"].append(batch.score)
        columns["degree"].append(batch.degree)
        columns["edges"].append(batch.edges + shift[:, None])
        columns["edge_query"].append(batch.edge_query + queries)
        queries += batch.num_queries
        entities += batch.num_entities
    return SubgraphBatch(
        **{name: torch.cat(parts, dim=int(name == "edges")) for name, parts in columns.items()}
    )


def _local_places(
    num_entities: int,
    num_queries: int,
    entities: Tensor,
    entity_query: Tensor,
    row: Tensor,
    source: Tensor,
) -> Tensor:
    """Place in `entities` of each candidate edge's source within the same query, or -1. [C]"""
    base = entity_query * num_entities
    keys = base + entities
    wanted = base[row].add_(source)
    if num_queries * num_entities <= 16 * len(wanted):
        # A table over all (query, entity) pairs: one look-up an edge.
        table = torch.full((num_queries * num_entities,), -1, device=keys.device)
        table[keys] = torch.arange(len(keys), device=keys.device)
        return table[wanted]
    # The table would be mostly empty, and its cost would grow with the graph.
    place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, place, -1)


def _highest(value: Tensor, query: Tensor, eligible: Tensor, budget: Tensor) -> Tensor:
    """Mark each query's `budget` highest eligible values, ties by place. → bool [E]"""
    candidates = eligible.nonzero().squeeze(1)
    by_value = value[candidates].argsort(descending=True, stable=True)
    order = candidates[by_value][query[candidates[by_value]].argsort(stable=True)]
    counts = torch.bincount(query[order], minlength=len(budget))
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(order), device=value.device) - first[query[order]]
    keep = torch.zeros_like(eligible)
    keep[order[rank < budget[query[order]]]] = True
    return keep
