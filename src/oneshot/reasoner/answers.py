"""Answers: what a reasoner says to a query, and how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload


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
