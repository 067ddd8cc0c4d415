"""What requests and answers look like."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from oneshot.serve.settings import MAX_FACTS, MAX_NAME, MAX_QUESTIONS, MAX_TOP


def _whole(value: Any) -> Any:
    """2.0 as 2: in JSON both are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Stands last among the annotations, so that the bounds before it get into the description.
_WHOLE = BeforeValidator(_whole)
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class _Strict(BaseModel):
    # What a field says is what it takes: no "5" for 5, nothing that is not described.
    model_config = ConfigDict(strict=True, extra="forbid")


class QuestionIn(_Strict):
    """`(entity, relation, ?)`, or `(?, relation, entity)` if inverse."""

    entity: Name
    relation: Name
    inverse: bool = False


class PredictIn(_Strict):
    questions: Annotated[list[QuestionIn], Field(min_length=1, max_length=MAX_QUESTIONS)]
    top: Annotated[int, Field(ge=1, le=MAX_TOP, description="answers to each question"), _WHOLE] = (
        10
    )
    explain: Annotated[
        bool, Field(description="with the paths that carry the score of each of the best answers")
    ] = False
    exclude_known: Annotated[bool, Field(description="leave out facts of the graph")] = False


class ExplainIn(_Strict):
    entity: Name
    relation: Name
    inverse: bool = False
    answer: Name
    paths: Annotated[int, Field(ge=1, le=20), _WHOLE] = 5
    drawing: Annotated[bool, Field(description="with pictures as SVG")] = False


class FactsIn(_Strict):
    facts: Annotated[
        list[Annotated[list[Name], Field(min_length=3, max_length=3)]],
        Field(
            min_length=1,
            max_length=MAX_FACTS,
            description="head, relation, tail",
            examples=[[["a", "r", "b"]]],
        ),
    ]


class QueryOut(BaseModel):
    entity: str
    relation: Annotated[str, Field(description="ends in ⁻¹ for an inverse question")]


class StepOut(BaseModel):
    source: str
    relation: str
    inverse: bool
    target: str


class PathOut(BaseModel):
    steps: list[StepOut]
    weight: Annotated[float, Field(description="its share of the score")]
    score_without: Annotated[float, Field(description="the score if its facts were not there")]
    known: Annotated[bool, Field(description="whether it is the asked fact itself")]
    parallel: Annotated[int, Field(description="lighter paths through the same entities")]


class AnswerOut(BaseModel):
    entity: str
    score: float
    probability: Annotated[
        float | None, Field(description="that the fact holds; null if never calibrated")
    ]
    known: Annotated[bool, Field(description="whether the graph holds the fact")]
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
            description="waiting; updating the graph by what was changed, and sampling, for the "
            "whole batch; reasoning, ranking and explaining; "
            "and the number of questions in the batch as `batch`"
        ),
    ]
    message: Annotated[str | None, Field(description="why there are no answers")] = None


class PredictOut(BaseModel):
    results: list[ResultOut]
    version: Annotated[int, Field(description="of the facts; grows with every change")]


class ExplainOut(BaseModel):
    query: QueryOut
    answer: str
    score: float
    known: bool
    reachable: bool
    message: str
    paths: list[PathOut]
    milliseconds: dict[str, float]
    drawing: Annotated[str | None, Field(description="the paths and what is around, SVG")] = None
    charts: Annotated[
        list[str] | None, Field(description="degrees and distances in the subgraph, SVG")
    ] = None


class EntitiesOut(BaseModel):
    entities: list[str]


class RelationsOut(BaseModel):
    relations: list[str]


class EntityOut(BaseModel):
    entity: str
    facts: list[list[str]]
    total: Annotated[int, Field(description="facts in all, of which some are shown")]


class AddedOut(BaseModel):
    added: Annotated[int, Field(description="facts that were not there before")]
    version: int


class RemovedOut(BaseModel):
    removed: Annotated[int, Field(description="facts that were there before")]
    version: int


class HealthOut(BaseModel):
    status: str


class ReadyOut(BaseModel):
    status: str
    entities: int
    relations: int
    facts: int
    version: int
    waiting: Annotated[int, Field(description="questions in the queue")]
    read_only: Annotated[bool, Field(description="whether facts cannot be changed")]
