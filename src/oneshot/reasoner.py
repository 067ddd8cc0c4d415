"""Reasoner: graph, sampler and predictor together; what a user saves, loads and asks."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph import INVERSE_MARK, KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.samplers import Sampler
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
    """The answers to one query, best first, and the size of the subgraph they come from."""

    entity: str
    relation: str
    answers: tuple[Answer, ...]
    num_entities: int
    num_edges: int

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


class Reasoner:
    """Answers questions on a graph: the sampler cuts a subgraph, the predictor scores it.

    The graph may be another one than the predictor was trained on, if it has the same relations
    in the same order (`load` matches them by name).
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        sampler: Sampler,
        predictor: Predictor,
        calibration: Calibration | None = None,
    ) -> None:
        predictor.check_graph(graph.num_relations)
        self.graph = graph.to(next(predictor.parameters()).device)
        self.sampler = sampler
        self.predictor = predictor
        self.calibration = calibration

    @property
    def device(self) -> torch.device:
        return self.graph.device

    def to(self, device: torch.device | str) -> "Reasoner":
        """Move predictor and graph to a device. → itself"""
        self.predictor.to(device)
        self.graph = self.graph.to(device)
        return self

    def reason(
        self, queries: Tensor, include: Tensor | None = None
    ) -> tuple[SubgraphBatch, Tensor]:
        """Subgraphs of `queries` [n, 2] and the scores [N] of their entities; no gradients."""
        batch = self.sampler.sample(self.graph, queries, include)
        was_training = self.predictor.training
        self.predictor.eval()
        try:
            with torch.inference_mode():
                return batch, self.predictor(batch).float()
        finally:
            self.predictor.train(was_training)

    def query(
        self, entity: str | int, relation: str | int, inverse: bool = False
    ) -> tuple[int, int]:
        """The ids of a query; names are looked up, `name⁻¹` or `inverse` turns the relation."""
        head = self.graph.entities.index(entity) if isinstance(entity, str) else int(entity)
        count = self.graph.num_relations
        if isinstance(relation, str):
            known = self.graph.relations.get(relation)
            if known is None and relation.endswith(INVERSE_MARK):
                known = self.graph.relations.index(relation.removesuffix(INVERSE_MARK)) + count
            label = self.graph.relations.index(relation) if known is None else known
        else:
            label = int(relation)
        return head, (label + count) % (2 * count) if inverse else label

    def predict(
        self,
        entity: str | int,
        relation: str | int,
        *,
        inverse: bool = False,
        top: int = 10,
        exclude_known: bool = False,
        candidates: Sequence[str | int] | Literal["seen"] | None = None,
    ) -> Prediction:
        """The best answers to `(entity, relation, ?)`, or `(?, relation, entity)` if `inverse`.

        `exclude_known` leaves out facts of the graph. `candidates` restricts the answers to given
        entities (they are put into the subgraph), or to those "seen" with that relation.
        """
        head, label = self.query(entity, relation, inverse)
        if int(self.graph.degree[head]) == 0:
            raise InputError(
                f"entity {self.graph.entities[head]!r} has no fact in the graph, so that nothing "
                "can be reached from it; add a fact about it first"
            )
        allowed = self._allowed(label, candidates)
        include = None
        if allowed is not None and candidates != "seen":
            include = allowed[None]
        query = torch.tensor([[head, label]], device=self.device)
        batch, scores = self.reason(query, include)
        return self._prediction(batch, scores, top, exclude_known, allowed)

    def predict_stream(
        self,
        queries: Iterable[tuple[str | int, str | int]],
        *,
        top: int = 10,
        exclude_known: bool = False,
        batch_size: int = 16,
    ) -> Iterator[Prediction]:
        """The answers to many queries, in their order, in memory for one batch."""
        batch: list[tuple[int, int]] = []
        for entity, relation in queries:
            batch.append(self.query(entity, relation))
            if len(batch) == batch_size:
                yield from self._predict_batch(batch, top, exclude_known)
                batch = []
        if batch:
            yield from self._predict_batch(batch, top, exclude_known)

    def score(self, entity: str | int, relation: str | int, answer: str | int) -> float:
        """The score of one fact; the answer is put into the subgraph if it was not chosen."""
        head, label = self.query(entity, relation)
        tail = self.graph.entities.index(answer) if isinstance(answer, str) else int(answer)
        target = torch.tensor([tail], device=self.device)
        batch, scores = self.reason(torch.tensor([[head, label]], device=self.device), target[None])
        return float(scores[batch.find(target)])

    def save(self, path: str | Path) -> None:
        """Write a run directory that `Reasoner.load` and the command line open."""
        from oneshot.runs import save_reasoner

        save_reasoner(self, Path(path))

    @staticmethod
    def load(path: str | Path, graph: KnowledgeGraph | None = None) -> "Reasoner":
        """The reasoner in a run directory; with another `graph`, relations are matched by name."""
        from oneshot.runs import load_reasoner

        return load_reasoner(Path(path), graph)

    def renumbered(self, graph: KnowledgeGraph, facts: Tensor) -> Tensor:
        """Facts [n, 3] of another graph, its relations numbered as the predictor knows them."""
        if graph.relations == self.graph.relations:
            return facts
        new_id = torch.tensor([self.graph.relations.index(name) for name in graph.relations])
        return torch.stack([facts[:, 0], new_id[facts[:, 1]], facts[:, 2]], dim=1)

    def known_answers(self, entity: int, relation: int) -> Tensor:
        """Entities `v` with a fact `(entity, relation, v)` in the graph, int64 [m]."""
        edges = self.graph.edges
        row = slice(int(edges.indptr[entity]), int(edges.indptr[entity + 1]))
        # An edge (v, r, u) into the entity is the fact (u, r⁻¹, v).
        turned = self.graph.inverse(edges.relation[row].long())
        return edges.source[row][turned == relation].long()

    def _predict_batch(
        self, queries: list[tuple[int, int]], top: int, exclude_known: bool
    ) -> Iterator[Prediction]:
        batch, scores = self.reason(torch.tensor(queries, device=self.device))
        for row in range(len(queries)):
            one, part = _single(batch, scores, row)
            yield self._prediction(one, part, top, exclude_known, None)

    def _prediction(
        self,
        batch: SubgraphBatch,
        scores: Tensor,
        top: int,
        exclude_known: bool,
        allowed: Tensor | None,
    ) -> Prediction:
        """The answers of a batch of one query."""
        head, label = batch.queries[0].tolist()
        known = torch.isin(batch.entities, self.known_answers(head, label))
        shares = scores.log_softmax(0)
        keep = torch.ones_like(known)
        if exclude_known:
            keep &= ~known
        if allowed is not None:
            keep &= torch.isin(batch.entities, allowed)
        places = keep.nonzero().squeeze(1)
        order = places[scores[places].argsort(descending=True, stable=True)[:top]]
        answers = tuple(
            Answer(
                self.graph.entities[int(batch.entities[i])],
                float(scores[i]),
                None
                if self.calibration is None
                else self.calibration.probability(float(shares[i])),
                bool(known[i]),
            )
            for i in order.tolist()
        )
        return Prediction(
            self.graph.entities[head],
            self.graph.relation_name(label),
            answers,
            batch.num_entities,
            batch.num_edges,
        )

    def _allowed(
        self, relation: int, candidates: Sequence[str | int] | Literal["seen"] | None
    ) -> Tensor | None:
        """Ids of the entities that may be answers, or None for all."""
        if candidates is None:
            return None
        if isinstance(candidates, str):
            if candidates != "seen":
                raise InputError(f'candidates must be "seen" or a list, not {candidates!r}')
            edges = self.graph.edges
            mine = edges.relation == relation
            targets = torch.searchsorted(edges.indptr, mine.nonzero().squeeze(1), right=True) - 1
            seen: Tensor = targets.unique()
            return seen
        names = self.graph.entities
        ids = [names.index(c) if isinstance(c, str) else int(c) for c in candidates]
        return torch.tensor(sorted(set(ids)), dtype=torch.long, device=self.device)


def _single(batch: SubgraphBatch, scores: Tensor, row: int) -> tuple[SubgraphBatch, Tensor]:
    """One query of a batch, without its edges' places (only what `_prediction` looks at)."""
    mine = batch.entity_query == row
    edges = batch.edge_query == row
    one = SubgraphBatch(
        queries=batch.queries[row : row + 1],
        entities=batch.entities[mine],
        entity_query=batch.entity_query[mine] - row,
        source=batch.source[row : row + 1] - mine.nonzero()[0],
        score=batch.score[mine],
        degree=batch.degree[mine],
        edges=batch.edges[:, edges],
        edge_query=batch.edge_query[edges] - row,
    )
    return one, scores[mine]
