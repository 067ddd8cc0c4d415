"""Answers: what a reasoner says to a query, and how sure it is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from oneshot.graph.graph import KnowledgeGraph
from oneshot.subgraph import SubgraphBatch


@dataclass(frozen=True)
class Answer:
    """One answer to a query.

    `score`: the predictor's, comparable within a query only. `probability`: that the fact holds,
    calibrated on the validation split; None if the reasoner was never calibrated. `known`:
    whether the graph already holds the fact.
    """

    entity: str
    score: float
    probability: float | None
    known: bool


@dataclass(frozen=True)
class Prediction(Sequence[Answer]):
    """The answers to one query, best first, and the size of the subgraph they come from.

    `error`: why the query could not be asked, in a stream that goes on after such ones.
    """

    entity: str
    relation: str
    answers: tuple[Answer, ...]
    num_entities: int
    num_edges: int
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything, under the names of the command line's JSON."""
        value = {
            "query": {"entity": self.entity, "relation": self.relation},
            "answers": [vars(answer) for answer in self.answers],
            "subgraph": {"entities": self.num_entities, "edges": self.num_edges},
        }
        return value if self.error is None else {**value, "error": self.error}

    def __len__(self) -> int:
        return len(self.answers)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Answer, ...]: ...
    def __getitem__(self, index: int | slice) -> Answer | tuple[Answer, ...]:
        return self.answers[index]


@dataclass(frozen=True)
class Calibration:
    """From scores to probabilities: `σ(slope · log softmax(score) + offset)`.

    Fitted on `queries` questions of the validation split.
    """

    slope: float
    offset: float
    queries: int

    def probability(self, log_share: float) -> float:
        """The probability of an answer that holds `exp(log_share)` of its query's softmax."""
        value = self.slope * log_share + self.offset
        return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


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
