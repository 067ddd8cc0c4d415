"""The best answers among the scored entities of each query of a batch.

Everything is brought to the processor at once and ranked there: on a GPU each look at a single
number would wait for the device, longer than the ranking takes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.answers import Answer, Calibration
from oneshot.subgraph import SubgraphBatch


class Candidates(NamedTuple):
    """The scored entities of one query, on the processor.

    `entities` int64 [k]; `scores` float32 [k]; `known` bool [k]: whether the graph holds the fact
    already; `linked`: whether the query's entity is in any fact; `num_edges`: of the subgraph.
    """

    query: tuple[int, int]
    entities: Tensor
    scores: Tensor
    known: Tensor
    linked: bool
    num_edges: int


def candidates_of(
    graph: KnowledgeGraph, batch: SubgraphBatch, scores: Tensor
) -> Iterator[Candidates]:
    """The scored entities of each query of a batch, by the scores [N] of its entities."""
    count = batch.num_queries
    if count == 0:
        return
    heads = batch.queries[:, 0]
    near = graph.host or graph  # where the adjacency is
    numbers = torch.cat(
        [
            batch.queries.T,
            near.edges.indptr[heads.to(near.device)].to(heads.device)[None],
            graph.degree_of(heads)[None],
            torch.bincount(batch.entity_query, minlength=count)[None],
            torch.bincount(batch.edge_query, minlength=count)[None],
        ]
    )
    head, label, start, degree, sizes, edges = numbers.tolist()
    # The edges into a query's entity; an edge (v, r, u) is the fact (u, r⁻¹, v).
    rows = [slice(first, first + length) for first, length in zip(start, degree, strict=True)]
    source, relation = (
        torch.cat([column[row] for row in rows]).cpu().long().split(degree)
        for column in (near.edges.source, near.edges.relation)
    )
    entities, values = batch.entities.cpu().split(sizes), scores.cpu().split(sizes)
    for place in range(count):
        asked = graph.inverse(relation[place]) == label[place]
        yield Candidates(
            (head[place], label[place]),
            entities[place],
            values[place],
            torch.isin(entities[place], source[place][asked]),
            degree[place] > 0,
            edges[place],
        )


def best_answers(
    graph: KnowledgeGraph,
    found: Candidates,
    calibration: Calibration | None,
    top: int,
    keep: Tensor | None = None,
) -> tuple[Answer, ...]:
    """The `top` of the candidates by score, ties by lower id; of those where `keep` [k] is true."""
    shares = found.scores.log_softmax(0)
    places = torch.arange(len(found.scores)) if keep is None else keep.nonzero().squeeze(1)
    order = places[found.scores[places].argsort(descending=True, stable=True)[:top]]
    columns = (found.entities, found.scores, shares, found.known)
    return tuple(
        Answer(
            graph.entities[entity],
            score,
            None if calibration is None else calibration.probability(share),
            known,
        )
        for entity, score, share, known in zip(
            *(column[order].tolist() for column in columns), strict=True
        )
    )
