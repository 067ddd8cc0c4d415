"""Answers: options of a prediction, its answers, and their calibration."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypedDict, overload

import torch
from torch import Tensor

from oneshot.errors import InputError, require
from oneshot.graph.graph import KnowledgeGraph
from oneshot.subgraph import SubgraphBatch
from oneshot.system.notebook import html_table, titled

if TYPE_CHECKING:
    from oneshot.reasoner.explanation import Explanation

Rivals = Literal["unknown", "all"]
"""Entities that an answer is compared with: those that are not known answers, or all."""

COLUMNS = {
    "entity": str,
    "relation": str,
    "rank": int,
    "answer": str,
    "score": float,
    "probability": float,
    "known": bool,
}
"""Columns of tables of answers: one row per answer, best first, `rank` counts from 1."""

MOST_EVIDENCE = 50.0
"""More evidence than this, for or against, does not change a probability."""


class AnswerKeywords(TypedDict, total=False):
    """Some of the fields of `AnswerOptions`, as keyword arguments."""

    top: int
    exclude_known: bool
    min_probability: float
    types: Sequence[str | tuple[str | int, str | int]]
    candidates: Sequence[str | int] | Literal["seen"] | None
    explain: bool | int


@dataclass(frozen=True)
class AnswerOptions:
    """Options of a prediction.

    `top`: maximum number of answers, at least 1. `exclude_known`: exclude facts of the graph.
    `min_probability`: exclude less probable answers; needs a calibrated reasoner. `types`: only
    answers with these facts, as ("instance_of", "country") or "instance_of=country".
    `candidates`: restrict the answers to given entities (they are added to the subgraph), or to
    those "seen" with the relation. `explain`: number of best answers that get an explanation (True
    for all). The last two are for single queries only.
    """

    top: int = 10
    exclude_known: bool = False
    min_probability: float = 0.0
    types: Sequence[str | tuple[str | int, str | int]] = ()
    candidates: Sequence[str | int] | Literal["seen"] | None = None
    explain: bool | int = False

    def __post_init__(self) -> None:
        if isinstance(self.top, bool) or not hasattr(self.top, "__index__"):
            raise InputError(f"top must be an integer, not {self.top!r}")
        if self.top < 1:
            raise InputError(f"top must be at least 1, not {self.top}")
        if not 0 <= self.min_probability <= 1:  # also NaN
            raise InputError(
                f"min_probability must be between 0 and 1, not {self.min_probability!r}"
            )
        check_list("types", self.types)
        # Lists, as JSON has them, are equal to tuples then.
        types = tuple(kind if isinstance(kind, str) else tuple(kind) for kind in self.types)
        for kind in types:
            if not isinstance(kind, str) and len(kind) != 2:
                raise InputError(f"a type is a relation and an entity, not {kind!r}")
        object.__setattr__(self, "types", types)
        if isinstance(self.candidates, str) and self.candidates != "seen":
            raise InputError(f'candidates must be "seen" or a list, not {self.candidates!r}')
        if not hasattr(self.explain, "__index__") or self.explain < 0:
            raise InputError(f"explain must be true, false or a number, not {self.explain!r}")

    @property
    def num_explained(self) -> int:
        """Maximum number of best answers that are explained."""
        return self.top if self.explain is True else min(int(self.explain), self.top)

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> Self:
        """The options among named values, which may include others; defaults for the rest."""
        names = [option.name for option in dataclasses.fields(cls)]
        return cls(**{name: values[name] for name in names if name in values})

    def changed(self, changes: AnswerKeywords) -> Self:
        """These options with some of them replaced."""
        return dataclasses.replace(self, **changes)

    def check_calibrated(self, calibration: "Calibration | None") -> None:
        """Raise if an option needs probabilities and there are none."""
        if calibration is None and self.min_probability > 0:
            raise InputError(
                "min_probability needs a calibrated reasoner; this one is not calibrated"
            )

    def check_for_many(self) -> None:
        """Raise if an option is for single queries only."""
        given = {"candidates": self.candidates is not None, "explain": bool(self.explain)}
        for name, is_given in given.items():
            if is_given:
                raise InputError(f"{name} works only for single queries; use `predict`")


@dataclass(frozen=True)
class Answer:
    """One answer to a query.

    `score`: score of the predictor, comparable only within a query. `probability`: probability that
    the fact is true, calibrated on the validation split; 1 for a fact of the graph, which
    `Reasoner.audit` judges; None if the reasoner is not calibrated. `known`: whether the graph
    already contains the fact.
    """

    entity: str
    score: float
    probability: float | None
    known: bool


@dataclass(frozen=True)
class Prediction(Sequence[Answer]):
    """The answers to one query, best first, and the size of their subgraph.

    `error`: why the query could not be answered, in a stream that records errors. `explanations`:
    explanations of the first answers, as many as requested.
    """

    entity: str
    relation: str
    answers: tuple[Answer, ...]
    num_entities: int
    num_edges: int
    error: str | None = None
    explanations: "tuple[Explanation, ...]" = dataclasses.field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """All values, with the keys of the command line's JSON."""
        answers = [dict(vars(answer)) for answer in self.answers]
        for answer, explanation in zip(answers, self.explanations, strict=False):
            answer["paths"] = explanation.as_dict()["paths"]
        value = {
            "query": {"entity": self.entity, "relation": self.relation},
            "answers": answers,
            "subgraph": {"entities": self.num_entities, "edges": self.num_edges},
        }
        return value if self.error is None else {**value, "error": self.error}

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per answer and the columns of `COLUMNS`."""
        pandas = require("pandas", "", "to_pandas")
        frame = pandas.DataFrame(list(answer_rows(self)), columns=list(COLUMNS))
        # A column of nothing, or of None alone, has no type of its own.
        return frame.astype(
            {"rank": "int64", "score": "float64", "probability": "float64", "known": "bool"}
        )

    def _repr_html_(self) -> str:
        """The answers as a table, for notebooks."""
        columns = list(COLUMNS)[2:]
        rows = [row[2:] for row in answer_rows(self)]
        about = f"subgraph of {self.num_entities:,} entities and {self.num_edges:,} edges"
        notes = [about] if self.error is None else [self.error]
        title = f"({self.entity}, {self.relation}, ?)"
        return titled(title, html_table(columns, rows) if rows else "", notes=notes)

    def __len__(self) -> int:
        return len(self.answers)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Answer, ...]: ...
    def __getitem__(self, index: int | slice) -> Answer | tuple[Answer, ...]:
        return self.answers[index]


def answer_rows(found: Prediction) -> Iterator[tuple[Any, ...]]:
    """The answers of a prediction as rows of `COLUMNS`."""
    for rank, answer in enumerate(found, 1):
        yield (
            found.entity,
            found.relation,
            rank,
            answer.entity,
            answer.score,
            answer.probability,
            answer.known,
        )


@dataclass(frozen=True)
class FactCalibration:
    """Calibration of facts that the graph lacks: `σ(weights · features + offset + own offset)`.

    `Calibration` assumes that a query has an answer that is missing from the graph. Most queries
    have none, and how likely that is depends on more than the evidence: see
    `oneshot.reasoner.judgement.fact_features` for the features. `offsets`: by name of the relation;
    0 for others.
    """

    weights: tuple[float, ...]
    offset: float
    offsets: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def logits(self, features: Tensor, relations: Sequence[str]) -> Tensor:
        """The logits of facts with `features` [n, k] of `relations` [n], float64 [n]."""
        weights = torch.tensor(self.weights, dtype=torch.float64)
        own = [self.offset + self.offsets.get(name, 0.0) for name in relations]
        return features.double().cpu() @ weights + torch.tensor(own, dtype=torch.float64)


@dataclass(frozen=True)
class Calibration:
    """Calibration of scores to probabilities: `σ(slope · evidence + offset + offsets[relation])`.

    The evidence for an answer compares its score with those of the entities that are not known
    answers of the query: several true answers do not compete with each other.

    `offsets`: by name of the relation, inverse ones with ⁻¹; 0 for others. `queries`: number of
    validation queries of the fit. `error`: expected calibration error on validation queries that
    were left out of a fit; None if it was not measured. `rivals`: "unknown", or "all" for
    calibrations of earlier versions, whose evidence is the logarithm of the softmax over all
    entities. `alone`: the calibration of the predictor's scores without factors, if there are
    factors.

    For facts instead of answers: `missing`, of facts that the graph lacks, judged in both
    directions; `missing_forward`, judged in one; `present`, slope and offset of the support for a
    fact of the graph that is hidden, as many wrong facts as right ones assumed. None in
    calibrations of earlier versions, and if there was too little to fit them to. `several`: by name
    of the relation, inverse ones with ⁻¹, the share of its queries that have several answers.

    `curve`: the reliability curve that `error` is the distance of: for answers of similar
    probability, their mean, the share of true ones and their number.
    """

    slope: float
    offset: float
    queries: int
    offsets: Mapping[str, float] = dataclasses.field(default_factory=dict)
    error: float | None = None
    rivals: Rivals = "unknown"
    alone: "Calibration | None" = None
    missing: FactCalibration | None = None
    missing_forward: FactCalibration | None = None
    present: tuple[float, float] | None = None
    several: Mapping[str, float] = dataclasses.field(default_factory=dict)
    curve: tuple[tuple[float, float, int], ...] = ()

    def probability(self, evidence: float, relation: str = "") -> float:
        """The probability of an answer of a relation, given by name, with some evidence."""
        value = self.slope * evidence + self.offset + self.offsets.get(relation, 0.0)
        return 1 / (1 + math.exp(-value)) if value > -700 else 0.0

    def evidence(self, scores: Tensor, known: Tensor) -> Tensor:
        """The evidence for each entity of a query: `scores` [k], `known` bool [k] → [k]."""
        return scores.log_softmax(0) if self.rivals == "all" else evidence(scores, known)


def check_list(name: str, values: object) -> None:
    """Raise if an option that takes a list is a text, whose characters would be taken for names."""
    if isinstance(values, str):
        raise InputError(f"{name} must be a list, not {values!r}")


def evidence(scores: Tensor, known: Tensor) -> Tensor:
    """`s_v − log Σ exp(s_w)` over the entities `w` that are not known answers.

    `scores` [k], `known` bool [k] → [k], from -50 to 50. At most 0 for an entity that is not known.
    """
    rivals = scores.masked_fill(known, -torch.inf)
    return (scores - rivals.logsumexp(0)).clamp(-MOST_EVIDENCE, MOST_EVIDENCE)


class Candidates(NamedTuple):
    """The scored entities of one query, on the CPU.

    `entities` int64 [k]; `scores` float32 [k]; `known` bool [k]: whether the graph contains the
    fact; `answerable`: whether the query entity has any fact,
    or the sampler finds likely answers without; `num_edges`: of the subgraph; `reflexive`: whether
    the graph contains a fact of the query entity with itself.
    """

    query: tuple[int, int]
    entities: Tensor
    scores: Tensor
    known: Tensor
    answerable: bool
    num_edges: int
    reflexive: bool


def candidates_of(
    graph: KnowledgeGraph, batch: SubgraphBatch, scores: Tensor, needs_facts: bool = True
) -> Iterator[Candidates]:
    """The scored entities of each query of a batch, given the scores [N] of its entities.

    `needs_facts`: whether only queries about entities with facts are answerable.
    """
    count = batch.num_queries
    if count == 0:
        return
    heads = batch.queries[:, 0]
    near = graph.host or graph  # where the adjacency is
    numbers = torch.cat(
        [
            batch.queries.T,
            graph.degree_of(heads)[None],
            torch.bincount(batch.entity_query, minlength=count)[None],
            torch.bincount(batch.edge_query, minlength=count)[None],
        ]
    )
    head, label, degree, sizes, edges = numbers.tolist()
    # The edges into a query entity; an edge (v, r, u) is the fact (u, r⁻¹, v).
    _, at = near.edges.places(heads.to(near.device), numbers[2].long().to(near.device))
    source, relation = (
        column[at].cpu().long().split(degree) for column in (near.edges.source, near.edges.relation)
    )
    entities, values = batch.entities.cpu().split(sizes), scores.cpu().split(sizes)
    for place in range(count):
        asked = graph.inverse(relation[place]) == label[place]
        yield Candidates(
            (head[place], label[place]),
            entities[place],
            values[place],
            torch.isin(entities[place], source[place][asked]),
            not needs_facts or degree[place] > 0,
            edges[place],
            bool((source[place] == head[place]).any()),
        )


def best_answers(
    graph: KnowledgeGraph,
    found: Candidates,
    calibration: Calibration | None,
    options: AnswerOptions,
    allowed: Tensor | None = None,
) -> tuple[Answer, ...]:
    """The candidates with the highest scores, as selected by the options; ties by lower id.

    `allowed` int64 [m]: entities that may be answers, None for all. The query entity is no answer
    unless the graph relates it to itself, or it is among given candidates. A query that is not
    answerable has no answers.
    """
    options.check_calibrated(calibration)
    if not found.answerable:
        return ()
    keep = ~found.known if options.exclude_known else torch.ones_like(found.known)
    if not found.reflexive and (options.candidates is None or options.candidates == "seen"):
        keep &= found.entities != found.query[0]
    if allowed is not None:
        keep &= torch.isin(found.entities, allowed.cpu())
    if calibration is None:
        found_evidence = torch.zeros_like(found.scores)
    else:
        found_evidence = calibration.evidence(found.scores, found.known)
    relation = graph.relation_name(found.query[1])
    places = keep.nonzero().squeeze(1)
    order = places[found.scores[places].argsort(descending=True, stable=True)[: options.top]]
    columns = (found.entities, found.scores, found_evidence, found.known)
    answers = (
        Answer(
            graph.entities[entity],
            score,
            None
            if calibration is None
            else 1.0
            if known
            else calibration.probability(value, relation),
            known,
        )
        for entity, score, value, known in zip(
            *(column[order].tolist() for column in columns), strict=True
        )
    )
    least = options.min_probability
    return tuple(a for a in answers if a.probability is None or a.probability >= least)
