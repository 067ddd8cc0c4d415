"""Schemas of the arguments and results of the tools.

Results are small: a language model reads all of them. Each list has a maximum length.
"""

from typing import Annotated

from pydantic import BaseModel, Field

from oneshot.serve.limits import MAX_NAME, MAX_SEEDS
from oneshot.serve.schemas import (
    WHOLE,
    CheckMessage,
    Known,
    Logit,
    Name,
    NearMethod,
    NearOut,
    NumCandidates,
    OtherTails,
    Probability,
    ProbabilityWithout,
    Rank,
    Strict,
    Version,
)

MAX_ROWS = 100  # answers, relations, or entities of a result
MAX_SHOWN_FACTS = 300  # of a neighbourhood
MAX_PATHS = 10

Entity = Annotated[Name, Field(description="exact name of an entity; find_entity finds names")]
Relation = Annotated[Name, Field(description="exact name of a relation; list_relations lists them")]
Inverse = Annotated[bool, Field(description="ask (?, relation, entity) for the heads of facts")]
Top = Annotated[int, Field(ge=1, le=MAX_ROWS, description="maximum number of results"), WHOLE]
NumPaths = Annotated[
    int, Field(ge=1, le=MAX_PATHS, description="maximum number of paths of the explanation"), WHOLE
]
FactText = Annotated[str, Field(description="a fact as text: head —relation→ tail")]


class FindEntityIn(Strict):
    text: Annotated[
        str, Field(min_length=1, max_length=MAX_NAME, description="a name, or a part of it")
    ]
    top: Top = 10


class ListRelationsIn(Strict):
    search: Annotated[
        str, Field(max_length=MAX_NAME, description="only relations whose name contains this text")
    ] = ""
    top: Top = 50


class NeighbourhoodIn(Strict):
    entities: Annotated[
        list[Name],
        Field(min_length=1, max_length=MAX_SEEDS, description="exact names of entities"),
    ]
    top: Top = 20


class PredictIn(Strict):
    entity: Entity
    relation: Relation
    inverse: Inverse = False
    top: Top = 10
    exclude_known: Annotated[
        bool, Field(description="only answers that are not facts of the graph yet")
    ] = False


class ExplainIn(Strict):
    entity: Entity
    relation: Relation
    answer: Entity
    inverse: Inverse = False
    paths: NumPaths = 5


class RelationsBetweenIn(Strict):
    head: Entity
    tail: Entity
    top: Top = 10


class CheckFactIn(Strict):
    head: Entity
    relation: Relation
    tail: Entity
    paths: NumPaths = 3


class AddFactIn(Strict):
    head: Annotated[Name, Field(description="name of an entity; a new name makes a new entity")]
    relation: Relation
    tail: Annotated[Name, Field(description="name of an entity; a new name makes a new entity")]


class RemoveFactIn(Strict):
    head: Entity
    relation: Relation
    tail: Entity


class FoundEntity(BaseModel):
    entity: str
    facts: Annotated[int, Field(description="number of facts about the entity")]


class FindEntityOut(BaseModel):
    entities: Annotated[
        list[FoundEntity], Field(description="prefix matches first, then fuzzy matches")
    ]


class RelationOut(BaseModel):
    relation: str
    facts: Annotated[int, Field(description="number of facts with this relation")]
    examples: list[FactText]


class ListRelationsOut(BaseModel):
    relations: Annotated[list[RelationOut], Field(description="most facts first")]
    total: Annotated[int, Field(description="number of matching relations")]
    version: Version


class SchemaOut(BaseModel):
    """The resource `oneshot://schema`."""

    entities: int
    facts: int
    relations: int
    top_entities: Annotated[list[str], Field(description="entities with the most facts")]
    top_relations: Annotated[list[RelationOut], Field(description="most facts first")]
    version: Version


class NeighbourhoodOut(BaseModel):
    entities: Annotated[list[NearOut], Field(description="nearest first")]
    facts: Annotated[list[FactText], Field(description="facts between these entities")]
    omitted_facts: Annotated[int, Field(description="number of further facts between them")]
    method: NearMethod
    version: Version


class PathOut(BaseModel):
    path: Annotated[
        str, Field(description="facts from the entity to the answer; ⁻¹: read backwards")
    ]
    weight: Annotated[float, Field(description="its share of the score")]
    score_without: Annotated[float, Field(description="the score without its facts")]


class AnswerOut(BaseModel):
    entity: str
    probability: Probability
    score: Annotated[float, Field(description="comparable only within a query")]
    known: Known


class PredictOut(BaseModel):
    query: Annotated[str, Field(description="the query as text")]
    answers: Annotated[list[AnswerOut], Field(description="best first")]
    message: Annotated[str, Field(description="why there are no answers; else empty")]
    version: Version


class ExplainOut(BaseModel):
    fact: FactText
    known: Known
    score: float
    paths: Annotated[list[PathOut], Field(description="heaviest first")]
    message: Annotated[str, Field(description="why there are no paths; else empty")]
    version: Version


class RelationBetween(BaseModel):
    fact: FactText
    relation: str
    inverse: Annotated[bool, Field(description="the relation leads from tail to head")]
    probability: Probability
    score: Annotated[
        float,
        Field(
            description="logit of the probability, reduced if an entity has no other fact of the "
            "relation"
        ),
    ]
    known: Known


class RelationsBetweenOut(BaseModel):
    relations: Annotated[
        list[RelationBetween], Field(description="known ones first, then by score")
    ]
    version: Version


class CheckFactOut(BaseModel):
    """The judgement of a fact; a fact of the graph is hidden while it is judged."""

    fact: FactText
    known: Known
    probability: ProbabilityWithout
    score: Logit
    rank: Rank
    candidates: NumCandidates
    paths: Annotated[list[PathOut], Field(description="paths that support the fact")]
    evidence: Annotated[
        list[FactText], Field(description="the facts of these paths, from the graph")
    ]
    other_tails: OtherTails
    message: CheckMessage
    version: Version


class ChangedOut(BaseModel):
    fact: FactText
    changed: Annotated[
        bool, Field(description="false if the graph was already like this; nothing was done then")
    ]
    new_entities: Annotated[list[str], Field(description="entities that did not exist before")]
    version: Version
