"""Schemas of requests and responses."""

import itertools
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from oneshot.serve.limits import (
    MAX_ERRORS,
    MAX_EXPLAINED,
    MAX_FACTS,
    MAX_NAME,
    MAX_NEAR,
    MAX_OTHERS,
    MAX_PAGE,
    MAX_QUESTIONS,
    MAX_SEEDS,
    MAX_STREAMED,
    MAX_TOP,
    MAX_TYPES,
)


def _whole(value: Any) -> Any:
    """Convert 2.0 to 2: in JSON both are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_PART = 100  # items of a long list that are validated at once


def _in_parts(most: int) -> WrapValidator:
    """Validate a list of up to `most` items in parts, until one of them has errors.

    Each error costs more than the item itself, and a body can contain a hundred thousand.
    """

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, list) or not _PART < len(value) <= most:
            return handler(value)
        found: list[Any] = []
        for start in range(0, len(value), _PART):
            try:
                found += handler(value[start : start + _PART])
            except ValidationError:
                return handler(value[: start + _PART])  # raises, with the places in the whole list
        return found

    return WrapValidator(validate)


# Last among the annotations, so that the description contains the bounds before it.
WHOLE = BeforeValidator(_whole)
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class Strict(BaseModel):
    # Strict types and no unknown fields: "5" is not accepted for 5.
    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_unknown_fields(cls, value: Any) -> Any:
        """Leave a few unknown fields for the error: a body can contain a hundred thousand."""
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        known = {name: value[name] for name in cls.model_fields if name in value}
        unknown = (name for name in value if name not in cls.model_fields)
        return known | dict.fromkeys(itertools.islice(unknown, MAX_ERRORS))


class QuestionIn(Strict):
    """`(entity, relation, ?)`, or `(?, relation, entity)` if inverse."""

    entity: Name
    relation: Name
    inverse: bool = False


MinVersion = Annotated[
    int | None,
    Field(ge=0, le=2**53, description="refuse to answer on facts older than this version"),
    WHOLE,
]


class AnswersIn(Strict):
    top: Annotated[
        int, Field(ge=1, le=MAX_TOP, description="number of answers per query"), WHOLE
    ] = 10
    explain: Annotated[
        bool, Field(description="include the paths that explain the best answers")
    ] = False
    exclude_known: Annotated[bool, Field(description="exclude facts of the graph")] = False
    min_probability: Annotated[
        float, Field(ge=0, le=1, description="exclude less probable answers")
    ] = 0.0
    types: Annotated[
        list[Annotated[list[Name], Field(min_length=2, max_length=2)]],
        Field(
            max_length=MAX_TYPES,
            description="only answers with these facts: relation, entity",
            examples=[[["instance_of", "country"]]],
        ),
    ] = []
    min_version: MinVersion = None


class PredictIn(AnswersIn):
    questions: Annotated[list[QuestionIn], Field(min_length=1, max_length=MAX_QUESTIONS)]


class StreamIn(AnswersIn):
    questions: Annotated[
        list[QuestionIn], Field(min_length=1, max_length=MAX_STREAMED), _in_parts(MAX_STREAMED)
    ]


NumPaths = Annotated[int, Field(ge=1, le=20, description="maximum number of paths"), WHOLE]


class AnsweredIn(QuestionIn):
    """A query with one of its answers."""

    answer: Name


class ExplainManyIn(Strict):
    questions: Annotated[list[AnsweredIn], Field(min_length=1, max_length=MAX_EXPLAINED)]
    paths: NumPaths = 5
    min_version: MinVersion = None


class CheckIn(Strict):
    head: Name
    relation: Name
    tail: Name
    paths: NumPaths = 5
    min_version: MinVersion = None


class NeighbourhoodIn(Strict):
    entities: Annotated[list[Name], Field(min_length=1, max_length=MAX_SEEDS)]
    top: Annotated[int, Field(ge=1, le=MAX_NEAR, description="number of entities"), WHOLE] = 20


class ExplainIn(AnsweredIn):
    paths: NumPaths = 5
    drawing: Annotated[bool, Field(description="include drawings as SVG")] = False
    min_version: MinVersion = None


class FactsIn(Strict):
    facts: Annotated[
        list[Annotated[list[Name], Field(min_length=3, max_length=3)]],
        Field(
            min_length=1,
            max_length=MAX_FACTS,
            description="head, relation, tail",
            examples=[[["a", "r", "b"]]],
        ),
        _in_parts(MAX_FACTS),
    ]


Version = Annotated[
    int,
    Field(description="version of the facts that this was computed on; increases with changes"),
]

Probability = Annotated[
    float | None,
    Field(
        description="probability that the fact holds, 1 if the graph contains it; null if not "
        "calibrated"
    ),
]
ProbabilityWithout = Annotated[
    float | None,
    Field(
        description="probability that the fact holds by all other facts, also if the graph "
        "contains it; null if not calibrated"
    ),
]
Known = Annotated[bool, Field(description="whether the graph contains the fact")]

# Of the judgement of a fact.
Logit = Annotated[float, Field(description="logit of the probability; evidence if not calibrated")]
Rank = Annotated[
    float,
    Field(
        description="mean rank of the tail among all tails and of the head among all heads, "
        "other known ones left out; 1 is best"
    ),
]
NumCandidates = Annotated[int, Field(description="number of entities that are ranked")]
OtherTails = Annotated[
    list[str],
    Field(description=f"up to {MAX_OTHERS} other tails of head and relation in the graph"),
]
CheckMessage = Annotated[
    str, Field(description="why there are no paths, or why they do not count; else empty")
]


class QueryOut(BaseModel):
    entity: str
    relation: Annotated[str, Field(description="ends in ⁻¹ for an inverse query")]


class StepOut(BaseModel):
    source: str
    relation: str
    inverse: bool
    target: str


class PathOut(BaseModel):
    steps: list[StepOut]
    weight: Annotated[float, Field(description="its share of the score")]
    score_without: Annotated[float, Field(description="the score without its facts")]
    known: Annotated[bool, Field(description="whether it is the queried fact itself")]
    parallel: Annotated[
        int, Field(description="number of lower-weight paths through the same entities")
    ]


class AnswerOut(BaseModel):
    entity: str
    score: float
    probability: Probability
    known: Known
    paths: list[PathOut] | None = None


class SubgraphOut(BaseModel):
    entities: int
    edges: int


class ResultOut(BaseModel):
    query: QueryOut
    answers: list[AnswerOut]
    subgraph: SubgraphOut
    milliseconds: Annotated[
        dict[str, float],
        Field(
            description="times of waiting, updating the graph and sampling (both for the whole "
            "batch), reasoning, ranking and explaining; "
            "and the number of queries in the batch as `batch`"
        ),
    ]
    version: Version
    message: Annotated[str | None, Field(description="why there are no answers")] = None
    error: Annotated[
        dict[str, Any] | None,
        Field(description="the problem of a query that cannot be answered, as for a request"),
    ] = None


class PredictOut(BaseModel):
    results: list[ResultOut]
    version: Version


class ExplainOut(BaseModel):
    query: QueryOut
    answer: str
    score: float
    known: bool
    reachable: bool
    message: str
    paths: list[PathOut]
    milliseconds: dict[str, float]
    version: Version
    drawing: Annotated[
        str | None, Field(description="drawing of the paths and their neighbourhood, SVG")
    ] = None
    charts: Annotated[
        list[str] | None,
        Field(description="histograms of degrees and distances in the subgraph, SVG"),
    ] = None


class ExplainedOut(BaseModel):
    """The explanation of an answer; without paths and with an error if it is not possible."""

    query: QueryOut
    answer: str
    score: float | None = None
    known: bool | None = None
    reachable: bool | None = None
    message: str | None = None
    paths: list[PathOut]
    version: Annotated[int | None, Field(description="version of the facts")] = None
    error: Annotated[
        dict[str, Any] | None,
        Field(description="the problem of a query that cannot be explained, as for a request"),
    ] = None


class ExplainManyOut(BaseModel):
    results: list[ExplainedOut]


FactOut = Annotated[list[str], Field(min_length=3, max_length=3)]


class CheckOut(BaseModel):
    """The judgement of a fact; a fact of the graph is hidden while it is judged."""

    fact: FactOut
    known: Known
    probability: ProbabilityWithout
    score: Logit
    rank: Rank
    candidates: NumCandidates
    paths: list[PathOut]
    evidence: Annotated[list[FactOut], Field(description="the facts of these paths")]
    other_tails: OtherTails
    message: CheckMessage
    version: Version


class NearOut(BaseModel):
    entity: str
    score: Annotated[float, Field(description="Personalized PageRank from the given entities")]


NearMethod = Annotated[
    Literal["exact", "push", "hub index"],
    Field(description="how scores were computed: over the whole graph, or approximately"),
]


class NeighbourhoodOut(BaseModel):
    entities: Annotated[list[NearOut], Field(description="nearest first")]
    facts: Annotated[list[FactOut], Field(description="facts between these entities")]
    omitted_facts: Annotated[int, Field(description="number of further facts between them")]
    method: NearMethod
    version: Version


class LabelsIn(Strict):
    entities: Annotated[list[Name], Field(min_length=1, max_length=MAX_PAGE)]


class LabelsOut(BaseModel):
    labels: Annotated[dict[str, str], Field(description="labels of those that have one")]


class EntitiesOut(BaseModel):
    entities: list[str]
    labels: Annotated[
        dict[str, str] | None, Field(description="labels of these entities, if there are any")
    ] = None
    total: Annotated[
        int | None, Field(description="number of all entities; absent for a search")
    ] = None


class RelationsOut(BaseModel):
    relations: list[str]
    counts: Annotated[dict[str, int], Field(description="number of facts of each relation")]
    labels: Annotated[
        dict[str, str] | None, Field(description="labels of relations, if there are any")
    ] = None
    version: Version


class EndOut(BaseModel):
    entity: str
    facts: int


class RelationOut(BaseModel):
    relation: str
    facts: Annotated[int, Field(description="number of facts")]
    heads: Annotated[int, Field(description="number of different heads")]
    tails: Annotated[int, Field(description="number of different tails")]
    top_heads: Annotated[list[EndOut], Field(description="heads of the most facts")]
    top_tails: Annotated[list[EndOut], Field(description="tails of the most facts")]
    version: Version


class EntityRelationOut(BaseModel):
    relation: str
    inverse: Annotated[bool, Field(description="the entity is the tail of these facts")]
    facts: int


class EntityOut(BaseModel):
    entity: str
    facts: list[list[str]]
    total: Annotated[int, Field(description="number of all facts; `facts` lists at most `limit`")]
    relations: Annotated[
        list[EntityRelationOut],
        Field(description="the relations of the entity by the number of facts, most first"),
    ]
    version: Version


class ChangeOut(BaseModel):
    fact: FactOut
    change: Annotated[str, Field(description="added or removed", examples=["added"])]
    in_base: Annotated[bool, Field(description="whether the graph of the run has the fact")]
    version: Annotated[int, Field(description="version of the facts since this change")]
    time: Annotated[
        datetime | None,
        Field(description="time of this change in UTC; null if it was stored without one"),
    ]


class ChangesOut(BaseModel):
    changes: Annotated[
        list[ChangeOut], Field(description="each fact with its latest change, latest first")
    ]
    total: Annotated[int, Field(description="number of all changed facts")]
    version: Version


class AddedOut(BaseModel):
    added: Annotated[int, Field(description="number of facts that were new")]
    version: int


class RemovedOut(BaseModel):
    removed: Annotated[int, Field(description="number of facts that were in the graph")]
    version: int


class HealthOut(BaseModel):
    status: str


class ReadyOut(BaseModel):
    status: str
    entities: int
    relations: int
    facts: int
    version: int
    waiting: Annotated[int, Field(description="number of queries in the queue")]
    read_only: Annotated[bool, Field(description="whether facts cannot be changed")]
    labels: Annotated[bool, Field(description="whether entities have labels")]
