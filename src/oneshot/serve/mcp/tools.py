"""The tools: what a language model can ask a service, each with arguments, result and function."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from oneshot.graph.schema import RelationSummary, relation_summaries
from oneshot.reasoner.answers import AnswerOptions
from oneshot.reasoner.explanation import Path
from oneshot.reasoner.reasoner import Reasoner
from oneshot.reasoner.relations import RelationAnswer, relations_between
from oneshot.serve.mcp import schemas
from oneshot.serve.schemas import NearOut
from oneshot.serve.service import Service

_DIGITS = 4  # of scores and probabilities
_TOP_ENTITIES = 10  # in the schema


@dataclass(frozen=True)
class Tool:
    """A tool: its name, its purpose for the language model, and its function.

    `arguments` and `result`: the schemas of both. `changes`: whether it changes facts.
    """

    name: str
    about: str
    arguments: type[BaseModel]
    result: type[BaseModel]
    function: Callable[[Any], Awaitable[BaseModel]]
    changes: bool = False


class Tools:
    """The tools of a service, by name; those that change facts only if it is not read-only."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._relations: tuple[int, list[RelationSummary]] | None = None  # of a version
        every = (*self._reading(), *(() if service.settings.read_only else self._writing()))
        self.by_name = {tool.name: tool for tool in every}

    def _reading(self) -> Iterable[Tool]:
        return (
            Tool(
                "find_entity",
                "Find the exact names of entities in the knowledge graph: prefix matches first, "
                "then fuzzy matches. All other tools need exact names.",
                schemas.FindEntityIn,
                schemas.FindEntityOut,
                self.find_entity,
            ),
            Tool(
                "list_relations",
                "List the relations of the knowledge graph with the number of their facts and "
                "examples, which show the direction of each relation.",
                schemas.ListRelationsIn,
                schemas.ListRelationsOut,
                self.list_relations,
            ),
            Tool(
                "neighbourhood",
                "Show the entities nearest to one or several entities, by Personalized PageRank, "
                "and the facts between them. These are facts of the graph, not predictions.",
                schemas.NeighbourhoodIn,
                schemas.NeighbourhoodOut,
                self.neighbourhood,
            ),
            Tool(
                "predict",
                "Answer the query (entity, relation, ?), or (?, relation, entity) with "
                "inverse=true: likely answers with probabilities. `known` marks facts of the "
                "graph; all others are predictions.",
                schemas.PredictIn,
                schemas.PredictOut,
                self.predict,
            ),
            Tool(
                "explain",
                "Explain an answer of `predict`: the paths of facts that contribute most to its "
                "score.",
                schemas.ExplainIn,
                schemas.ExplainOut,
                self.explain,
            ),
            Tool(
                "relations_between",
                "List the relations between two entities, in both directions: first those of "
                "facts in the graph, then others that may hold, with probabilities.",
                schemas.RelationsBetweenIn,
                schemas.RelationsBetweenOut,
                self.relations_between,
            ),
            Tool(
                "check_fact",
                "Check one fact (head, relation, tail): whether the graph contains it, how likely "
                "it is by all other facts, its rank, and the facts that support it.",
                schemas.CheckFactIn,
                schemas.CheckFactOut,
                self.check_fact,
            ),
        )

    def _writing(self) -> Iterable[Tool]:
        return (
            Tool(
                "add_fact",
                "Add one fact to the knowledge graph permanently. A name that is not an entity "
                "yet makes a new entity, so look it up with find_entity first.",
                schemas.AddFactIn,
                schemas.ChangedOut,
                self.add_fact,
                changes=True,
            ),
            Tool(
                "remove_fact",
                "Remove one fact from the knowledge graph permanently.",
                schemas.RemoveFactIn,
                schemas.ChangedOut,
                self.remove_fact,
                changes=True,
            ),
        )

    async def find_entity(self, asked: schemas.FindEntityIn) -> schemas.FindEntityOut:
        def find() -> list[schemas.FoundEntity]:
            live = self.service.live
            return [
                schemas.FoundEntity(entity=name, facts=live.facts_of(number, 0)[1])
                for name in self.service.search(asked.text, asked.top)
                if (number := live.entities.get(name)) is not None
            ]

        return schemas.FindEntityOut(entities=await run_in_threadpool(find))

    async def list_relations(self, asked: schemas.ListRelationsIn) -> schemas.ListRelationsOut:
        found, version = await self._summaries()
        wanted = asked.search.casefold()
        matching = [one for one in found if wanted in one.relation.casefold()]
        return schemas.ListRelationsOut(
            relations=_relations(matching[: asked.top]), total=len(matching), version=version
        )

    async def schema(self) -> schemas.SchemaOut:
        """The schema of the graph: sizes, and the first entities and relations by their facts."""
        found, version = await self._summaries()
        entities, facts, _ = self.service.live.size()
        return schemas.SchemaOut(
            entities=entities,
            facts=facts,
            relations=len(found),
            top_entities=await run_in_threadpool(self.service.search, "", _TOP_ENTITIES),
            top_relations=_relations(found[: schemas.MAX_ROWS]),
            version=version,
        )

    async def _summaries(self) -> tuple[list[RelationSummary], int]:
        """The relations with their facts; read again only if facts have changed."""
        self.service.live.catch_up()
        if self._relations is None or self._relations[0] != self.service.live.version:
            found, version = await self.service.run(
                lambda reasoner, _: relation_summaries(reasoner.graph), self.service.deadline()
            )
            self._relations = version, found
        version, found = self._relations
        return found, version

    async def neighbourhood(self, asked: schemas.NeighbourhoodIn) -> schemas.NeighbourhoodOut:
        seeds = await self._entities(asked.entities)
        found, version = await self.service.neighbourhood(seeds, asked.top, schemas.MAX_SHOWN_FACTS)
        return schemas.NeighbourhoodOut(
            entities=[
                NearOut(entity=name, score=round(score, 6)) for name, score in found.entities
            ],
            facts=[fact_text(*fact) for fact in found.facts],
            omitted_facts=found.omitted,
            method=found.method,
            version=version,
        )

    async def predict(self, asked: schemas.PredictIn) -> schemas.PredictOut:
        options = AnswerOptions(top=asked.top, exclude_known=asked.exclude_known)
        question = await run_in_threadpool(
            self.service.question, asked.entity, asked.relation, asked.inverse, options
        )
        (value,) = await self.service.predict([question], self.service.deadline())
        ends = ("?", asked.entity) if asked.inverse else (asked.entity, "?")
        return schemas.PredictOut(
            query=f"({ends[0]}, {asked.relation}, {ends[1]})",
            answers=[
                schemas.AnswerOut(
                    entity=answer["entity"],
                    probability=_rounded(answer["probability"]),
                    score=round(answer["score"], _DIGITS),
                    known=answer["known"],
                )
                for answer in value["answers"]
            ],
            message=value.get("message", ""),
            version=value["version"],
        )

    async def explain(self, asked: schemas.ExplainIn) -> schemas.ExplainOut:
        question, answer = await run_in_threadpool(
            lambda: (
                self.service.question(asked.entity, asked.relation, asked.inverse),
                self.service.entity(asked.answer),
            )
        )
        found, version = await self.service.explain(
            question, answer, asked.paths, self.service.deadline()
        )
        ends = (asked.entity, asked.answer)
        head, tail = reversed(ends) if asked.inverse else ends
        return schemas.ExplainOut(
            fact=fact_text(head, asked.relation, tail),
            known=found.known,
            score=round(found.score, _DIGITS),
            paths=_paths(found.paths),
            message=found.message,
            version=version,
        )

    async def relations_between(
        self, asked: schemas.RelationsBetweenIn
    ) -> schemas.RelationsBetweenOut:
        head, tail = await self._entities([asked.head, asked.tail])

        def find(reasoner: Reasoner, proceed: Callable[[], None]) -> list[RelationAnswer]:
            found = relations_between(reasoner, head, tail, proceed=proceed)
            return sorted(found, key=lambda one: not one.known)[: asked.top]  # stable

        found, version = await self.service.run(find, self.service.deadline())
        return schemas.RelationsBetweenOut(
            relations=[
                schemas.RelationBetween(
                    fact=fact_text(asked.tail, one.relation, asked.head)
                    if one.inverse
                    else fact_text(asked.head, one.relation, asked.tail),
                    relation=one.relation,
                    inverse=one.inverse,
                    probability=_rounded(one.probability),
                    score=round(one.score, _DIGITS),
                    known=one.known,
                )
                for one in found
            ],
            version=version,
        )

    async def check_fact(self, asked: schemas.CheckFactIn) -> schemas.CheckFactOut:
        question, tail = await run_in_threadpool(
            lambda: (
                self.service.question(asked.head, asked.relation, False),
                self.service.entity(asked.tail),
            )
        )

        found, version = await self.service.check(question, tail, asked.paths)
        assert found.fact.rank is not None
        return schemas.CheckFactOut(
            fact=fact_text(found.fact.head, found.fact.relation, found.fact.tail),
            known=found.known,
            probability=_rounded(found.fact.probability),
            score=round(found.fact.score, _DIGITS),
            rank=found.fact.rank,
            candidates=found.explanation.graph.num_entities,
            paths=_paths(found.explanation.paths),
            evidence=[fact_text(*fact) for fact in found.evidence],
            other_tails=list(found.others),
            message=found.message,
            version=version,
        )

    async def add_fact(self, asked: schemas.AddFactIn) -> schemas.ChangedOut:
        names = dict.fromkeys([asked.head, asked.tail])
        new = [name for name in names if not self.service.knows(name)]
        return await self._change((asked.head, asked.relation, asked.tail), True, new)

    async def remove_fact(self, asked: schemas.RemoveFactIn) -> schemas.ChangedOut:
        await self._entities([asked.head, asked.tail])  # a misspelled name is an error
        return await self._change((asked.head, asked.relation, asked.tail), False, [])

    async def _change(
        self, fact: tuple[str, str, str], present: bool, new: list[str]
    ) -> schemas.ChangedOut:
        count, version = await self.service.change([fact], present, self.service.deadline())
        return schemas.ChangedOut(
            fact=fact_text(*fact), changed=count > 0, new_entities=new, version=version
        )

    async def _entities(self, names: Sequence[str]) -> list[int]:
        """The ids of entities; an unknown name is a problem with the most similar names."""
        return await run_in_threadpool(lambda: [self.service.entity(name) for name in names])


def fact_text(head: str, relation: str, tail: str) -> str:
    """A fact as text, in the notation of paths."""
    return f"{head} —{relation}→ {tail}"


def _relations(found: Sequence[RelationSummary]) -> list[schemas.RelationOut]:
    return [
        schemas.RelationOut(
            relation=one.relation,
            facts=one.facts,
            examples=[fact_text(*fact) for fact in one.examples],
        )
        for one in found
    ]


def _paths(found: Sequence[Path]) -> list[schemas.PathOut]:
    return [
        schemas.PathOut(
            path=path.text,
            weight=round(path.weight, _DIGITS),
            score_without=round(path.score_without, _DIGITS),
        )
        for path in found
    ]


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, _DIGITS)
