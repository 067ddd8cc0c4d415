"""The service: a loaded run, with the operations that the routes call."""

import asyncio
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.live.store import NamedFact, StoreError
from oneshot.graph.schema import RelationStatistics, relation_statistics
from oneshot.reasoner.answers import AnswerOptions
from oneshot.reasoner.check import CheckedFact, JudgedFact, judge_fact
from oneshot.reasoner.explanation import Explanation
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.run import Run
from oneshot.samplers.neighbourhood import Method, neighbourhood
from oneshot.serve.engine import (
    Answered,
    Engine,
    ExpiredError,
    OverloadedError,
    Question,
    Result,
    Sampled,
    Task,
)
from oneshot.serve.entity_search import NameSearch, fold
from oneshot.serve.labels import Labels, labels_in_file, labels_in_graph
from oneshot.serve.limits import MAX_EXPLAINED, MAX_NEW_NAME, MAX_OTHERS, MAX_SEARCHES
from oneshot.serve.metrics import Metrics
from oneshot.serve.problems import Problem
from oneshot.serve.settings import ServeSettings

log = logging.getLogger("oneshot.serve")

_HOPELESS = 2.0  # times the time that is left
_MORE_NAMES = 20  # searched besides those wanted, in case some of them have no facts


@dataclass(frozen=True)
class NearFacts:
    """A neighbourhood by names: entities with scores, nearest first, and facts between them.

    `omitted`: the number of facts between them that are not listed. `method`: how the scores were
    computed (see `Neighbourhood`).
    """

    entities: list[tuple[str, float]]
    facts: list[NamedFact]
    omitted: int
    method: Method


class Service:
    """A reasoner with its live graph, an engine and an index of names."""

    def __init__(
        self,
        run: Path,
        settings: ServeSettings | None = None,
        device: torch.device | str = "cpu",
        changes: Sequence[str] = (),
        graph: KnowledgeGraph | None = None,
    ) -> None:
        """Load a run; `changes` override its configuration, such as `sampler.entity_ratio=0.2`.

        `graph`: another graph than that of the run. Changed facts are then kept only in memory, as
        are those of a run on the Hugging Face Hub.
        """
        self.settings = settings or ServeSettings()
        self.metrics = Metrics()
        opened = Run.open(run, changes)
        base = opened.base_graph if graph is None else graph
        self.reasoner = opened.reasoner_on(base)
        self._process = secrets.token_hex(8)
        self.reasoner.predictor.to(device)
        if graph is None and not opened.is_hub_copy:
            self.live = opened.live_graph(device, self.settings.read_only)
        else:
            self.live = LiveGraph(self.reasoner.graph.to("cpu"), device=device)
        self.reasoner.predictor.eval()
        self.reasoner.graph = self.live.graph()
        self.names = NameSearch(self.live.entities, _degrees(base))
        self._searching, self._search_count = threading.Lock(), threading.Lock()
        self._searches = 0  # that run or wait
        self.labels = _labels(self.settings, self.reasoner.graph)
        self.engine = Engine(self.reasoner, self.live, self.settings, self.metrics)
        watched = {
            "queue_length": ("Queries in the queue.", lambda: self.engine.waiting),
            "graph_entities": ("Entities.", lambda: self.live.num_entities),
            "graph_facts": ("Facts.", lambda: self.live.num_facts),
            "graph_version": ("Version of the facts.", lambda: self.live.version),
        }
        for name, (about, value) in watched.items():
            self.metrics.watch(name, about, value)
        # Changes are written one after another; queries do not wait for them.
        self._changer = ThreadPoolExecutor(1, "oneshot-facts")
        self._changes: set[asyncio.Future[tuple[int, int]]] = set()
        self._is_refusing = False

    def start(self) -> None:
        """Start the engine and warm it up with one query."""
        linked = torch.nonzero(self.reasoner.graph.degree)
        pace = 0.0
        if len(linked) and self.reasoner.graph.num_relations:
            query = torch.tensor([[int(linked[0]), 0]], device=self.reasoner.device)
            for _ in range(2):  # the first one includes preparations
                started = time.monotonic()
                self.reasoner.reason(query)
                pace = time.monotonic() - started
        self.engine.start(pace)

    def refuse(self) -> None:
        """Refuse all requests that are not answered yet; called in the event loop."""
        self._is_refusing = True
        self.engine.refuse()
        for change in list(self._changes):
            change.cancel()

    def stop(self) -> None:
        """Finish what is being computed and stored, and close the files."""
        self.engine.stop()
        self._changer.shutdown(cancel_futures=True)  # none of them was acknowledged
        self.live.close()

    async def check_version(self, wanted: int | None) -> None:
        """Raise a problem if the facts are older than a version."""
        if wanted is None or self.live.version >= wanted:
            return
        # In a thread: it waits while a large change is applied.
        await asyncio.get_running_loop().run_in_executor(None, self.live.catch_up)
        if self.live.version < wanted:
            detail = f"the facts have version {self.live.version}, and {wanted} was requested"
            raise Problem(409, detail, {"Retry-After": "1"})

    def tag(self, version: int) -> str:
        """The entity tag of a response that depends on the facts and labels of this process.

        Another process may have other labels, or other changes of a graph in memory.
        """
        return f'"{self._process}-{version}"'

    def deadline(self) -> float:
        """The deadline of a request that starts now, as `time.monotonic`."""
        return time.monotonic() + self.settings.timeout

    def question(
        self,
        entity: str,
        relation: str,
        inverse: bool,
        options: AnswerOptions | None = None,
        suggest: bool = True,
    ) -> Question:
        """A query by names; an unknown name raises a problem with the most similar names."""
        number = self.entity(entity, suggest)
        return Question(number, self.relation(relation, inverse), options or AnswerOptions())

    def relation(self, name: str, inverse: bool = False) -> int:
        """The id of a relation or, with `inverse`, of its inverse."""
        try:
            return self.reasoner.relation_id(name, inverse)
        except UnknownNameError as error:
            raise Problem(404, str(error), nearest=error.nearest) from error

    def question_or_problem(
        self, entity: str, relation: str, inverse: bool, options: AnswerOptions, suggest: bool
    ) -> Question | Problem:
        """As `question`, with the problem as result."""
        try:
            return self.question(entity, relation, inverse, options, suggest)
        except Problem as problem:
            return problem

    def check_options(self, options: AnswerOptions) -> None:
        """Raise a problem if the options of a request do not suit the reasoner or the graph."""
        try:
            options.check_calibrated(self.reasoner.calibration)
        except InputError as error:
            raise Problem(422, str(error)) from error
        for kind in options.types:
            assert not isinstance(kind, str)  # the schema has pairs
            relation, entity = kind
            self.question(str(entity), str(relation), True)

    def knows(self, entity: str) -> bool:
        """Whether the lookup of an entity is immediate."""
        return entity in self.live.entities

    def entity(self, name: str, suggest: bool = True) -> int:
        """The id of an entity; an unknown name raises a problem.

        Called in a thread: with `suggest`, the most similar names are searched, unless many
        searches wait already.
        """
        number = self.live.entities.get(name)
        if number is None:
            self.live.catch_up()  # another process may have added it
            number = self.live.entities.get(name)
        if number is None:
            nearest = (self._found(name[:100], 3) or []) if suggest else []
            error = UnknownNameError("entity", name[:100], nearest)
            raise Problem(404, str(error), nearest=nearest)
        return number

    async def predict(self, questions: Sequence[Question], deadline: float) -> list[dict[str, Any]]:
        """Answers to queries as JSON."""
        self._check_explanations(questions, deadline)
        every = await self._answered(questions, deadline)
        results = []
        for question, answered in zip(questions, every, strict=True):
            value = self._as_json(question, answered)
            if question.options.explain:
                await self._add_paths(value, question, answered, deadline)
            results.append(value)
        return results

    def _check_explanations(self, questions: Sequence[Question], deadline: float) -> None:
        """Raise a problem if the explanations of answers would by far exceed the time limit."""
        wanted = [one.options for one in questions if one.options.explain]
        count = sum(min(one.num_explained, MAX_EXPLAINED) for one in wanted)
        left = deadline - time.monotonic()
        if self.engine.explaining_seconds(count) > _HOPELESS * left:
            raise Problem(
                504,
                f"the explanations of {count:,} answers would exceed the time limit; send fewer "
                "queries per request, or with a smaller `top`",
            )

    async def predict_patiently(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        """As `predict`; while the service is busy, waits instead of refusing the queries."""
        until = self.deadline()
        while True:
            try:
                return await self.predict(questions, self.deadline())
            except Problem as problem:
                pause = self.engine.patience
                if problem.status != 503 or self._is_refusing or not self.engine.alive:
                    raise
                if time.monotonic() + pause > until:
                    raise
                await asyncio.sleep(pause)

    async def _add_paths(
        self, value: dict[str, Any], question: Question, answered: Answered, deadline: float
    ) -> None:
        """Explain the best answers of a result, on their subgraph."""
        started = time.monotonic()
        for answer in value["answers"][: min(question.options.num_explained, MAX_EXPLAINED)]:
            number = self.entity(answer["entity"])
            reason, _ = await self.explain(question, number, 5, deadline, answered.sampled)
            answer["paths"] = reason.as_dict()["paths"]
        value["milliseconds"]["explaining"] = round(1e3 * (time.monotonic() - started), 3)

    async def _answered(self, questions: Sequence[Question], deadline: float) -> list[Answered]:
        """The answers to each query."""
        try:
            futures = self.engine.ask(questions, deadline)
        except OverloadedError as error:
            raise self.busy(error) from error
        return await self._waited(futures, deadline)

    def _as_json(self, question: Question, answered: Answered) -> dict[str, Any]:
        value = answered.prediction.as_dict()
        value["version"] = answered.version
        value["milliseconds"] = {**answered.milliseconds, "batch": answered.batch}
        wanted = question.options
        is_whole = not (wanted.exclude_known or wanted.min_probability or wanted.types)
        if not value["answers"] and is_whole:
            value["message"] = "the entity has no facts; add one first"
        return value

    async def explain(
        self,
        question: Question,
        answer: int,
        paths: int,
        deadline: float,
        sampled: Sampled | None = None,
    ) -> tuple[Explanation, int]:
        """The explanation of an answer id, and the version of its graph.

        `sampled`: the subgraph of the answer, if kept.
        """
        try:
            future = self.engine.explain(question, answer, paths, deadline, sampled)
        except OverloadedError as error:
            raise self.busy(error) from error
        found: tuple[Explanation, int] = (await self._waited([future], deadline))[0]
        return found

    async def run(self, task: Task[Result], deadline: float) -> tuple[Result, int]:
        """The result of a task on the graph of the moment, and the version of the graph."""
        try:
            future = self.engine.run(task, deadline)
        except OverloadedError as error:
            raise self.busy(error) from error
        found: tuple[Result, int] = (await self._waited([future], deadline))[0]
        return found

    async def neighbourhood(
        self, seeds: Sequence[int], top: int, max_facts: int
    ) -> tuple[NearFacts, int]:
        """The neighbourhood of entity ids, with at most `max_facts` facts; and the version."""

        def find(reasoner: Reasoner, _: Callable[[], None]) -> NearFacts:
            return _near_facts(reasoner.graph, seeds, top, max_facts)

        return await self.run(find, self.deadline())

    async def check(self, question: Question, tail: int, paths: int) -> tuple[CheckedFact, int]:
        """The judgement of the fact of a query and an answer id; and the version.

        It is explained by the thread of explanations, so that queries do not wait for that.
        """
        deadline = self.deadline()

        def find(reasoner: Reasoner, proceed: Callable[[], None]) -> JudgedFact:
            entity, relation = question.entity, question.relation
            return judge_fact(reasoner, entity, relation, tail, others=MAX_OTHERS, proceed=proceed)

        judged, version = await self.run(find, deadline)
        sampled = Sampled(judged.batch, judged.known_tails, version, judged.reasoner)
        found, _ = await self.explain(question, judged.tail, paths, deadline, sampled)
        return judged.explained(found), version

    async def relation_statistics(self, relation: int) -> tuple[RelationStatistics, int]:
        """The statistics of a relation id, and the version."""
        return await self.run(
            lambda reasoner, _: relation_statistics(reasoner.graph, relation), self.deadline()
        )

    def busy(self, error: OverloadedError) -> Problem:
        """The problem of a full queue."""
        return Problem(503, str(error), {"Retry-After": str(self.engine.patience)})

    async def _waited(self, futures: "Sequence[Future[Any]]", deadline: float) -> list[Any]:
        """The results of futures; if one fails, cancels the others and raises a problem."""
        waiting = [asyncio.wrap_future(future) for future in futures]
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                return list(await asyncio.gather(*waiting))
        except (TimeoutError, ExpiredError) as error:
            raise Problem(
                504, "the request exceeded its time limit; send fewer queries per request"
            ) from error
        except OverloadedError as error:
            raise self.busy(error) from error
        finally:
            for future in futures:
                future.cancel()

    async def change(
        self, facts: Sequence[Sequence[str]], present: bool, deadline: float
    ) -> tuple[int, int]:
        """Add or remove facts durably. → number of changed facts, and the version since then"""
        if len(self._changes) >= self.settings.queue:
            raise Problem(
                503, "too many changes are waiting; retry in a moment", {"Retry-After": "1"}
            )
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._changer, self._change, facts, present)
        self._changes.add(running)
        unknown = "and may or may not be saved; send it again"
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                return await running
        except TimeoutError as error:
            raise Problem(504, f"the change exceeded its time limit {unknown}") from error
        except asyncio.CancelledError as error:
            if not self._is_refusing:
                raise
            detail = f"the service is stopping; the change was not finished {unknown}"
            raise Problem(503, detail, {"Retry-After": "5"}) from error
        finally:
            self._changes.discard(running)

    def _change(self, facts: Sequence[Sequence[str]], present: bool) -> tuple[int, int]:
        # Facts with an unknown relation are refused for that.
        if present and all(relation in self.live.relations for _, relation, _ in facts):
            self._check_new_names(facts)
        try:
            count, version = self.live.change(facts, present)
        except UnknownNameError as error:
            raise Problem(404, str(error), nearest=error.nearest) from error
        except StoreError as error:
            log.error("cannot save facts: %s", error)  # the operator must act
            detail = "facts cannot be saved at the moment; nothing was changed"
            raise Problem(503, detail, {"Retry-After": "10"}) from error
        except InputError as error:
            raise Problem(422, str(error)) from error
        self.metrics.facts("added" if present else "removed", count)
        return count, version

    def _check_new_names(self, facts: Sequence[Sequence[str]]) -> None:
        """Raise a problem if an entity that would be new has a blank name or too long a one."""
        for head, _, tail in facts:
            for name in (head, tail):
                if name in self.live.entities:
                    continue
                if not name.strip():
                    raise Problem(422, "the name of a new entity is blank; give it a name")
                if len(name) > MAX_NEW_NAME:
                    raise Problem(
                        422,
                        f"the name of a new entity has {len(name):,} characters; at most "
                        f"{MAX_NEW_NAME:,} are accepted",
                    )

    def search(self, text: str, limit: int) -> list[str]:
        """Entities by name: prefix matches first, then fuzzy matches.

        Entities without facts come last, except for the one with exactly this name.
        """
        self.live.catch_up()
        found = self._found(text, limit + _MORE_NAMES)
        if found is None:
            detail = "too many searches are waiting; retry in a moment"
            raise Problem(503, detail, {"Retry-After": "1"})
        if self.labels is not None:
            found = self._with_labelled(found, text, limit)
        found.sort(key=lambda name: name != text and not self._has_facts(name))  # stable
        return found[:limit]

    def _found(self, text: str, limit: int) -> list[str] | None:
        """Names by `NameSearch`, one search at a time; None if many wait.

        A search of long names takes a long time, in which other threads hardly run.
        """
        with self._search_count:
            if self._searches >= MAX_SEARCHES:
                return None
            self._searches += 1
        try:
            with self._searching:
                return self.names.search(text, limit)
        finally:
            with self._search_count:
                self._searches -= 1

    def _with_labelled(self, found: list[str], text: str, limit: int) -> list[str]:
        """Entities found by name and by label; prefix matches of either first."""
        assert self.labels is not None
        labelled = self.labels.search(text, limit + _MORE_NAMES)
        # The entity with exactly this name comes first, however many labels begin with it.
        named = [text] if text in self.live.entities else []
        every = dict.fromkeys([*named, *labelled, *found])
        wanted = fold(text)

        def is_fuzzy(name: str) -> bool:
            label = self.labels.entities.get(name, name) if self.labels else name
            return not (fold(label).startswith(wanted) or fold(name).startswith(wanted))

        return sorted(every, key=is_fuzzy)  # stable

    def label(self, name: str) -> str:
        """The label of an entity or a relation, or its name."""
        return name if self.labels is None else self.labels.text(name)

    def labels_of(self, names: Iterable[str]) -> dict[str, str]:
        """The labels of those entities that have one."""
        return {} if self.labels is None else self.labels.of(names)

    def _has_facts(self, name: str) -> bool:
        number = self.live.entities.get(name)
        return number is not None and self.live.facts_of(number, 0)[1] > 0

    def state(self) -> dict[str, Any]:
        """The size and state of the service as JSON."""
        entities, facts, version = self.live.size()
        return {
            "status": "ready",
            "entities": entities,
            "relations": len(self.live.relations),
            "facts": facts,
            "version": version,
            "waiting": self.engine.waiting,
            "read_only": self.settings.read_only,
            "labels": self.labels is not None,
        }

    def facts_of(self, name: str, limit: int, offset: int) -> dict[str, Any]:
        """The facts about an entity as JSON, without the first `offset`."""
        entity = self.entity(name)
        counts, version = self.live.relations_of(entity)
        found, total, later = self.live.facts_of(entity, limit, offset)
        while later != version:  # a change has come between the two
            counts, version = self.live.relations_of(entity)
            found, total, later = self.live.facts_of(entity, limit, offset)
        names = list(self.live.relations)
        most = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
        return {
            "entity": name,
            "facts": [list(self.live.names(fact)) for fact in found],
            "total": total,
            "relations": [
                {
                    "relation": names[number % len(names)],
                    "inverse": number >= len(names),
                    "facts": int(counts[number]),
                }
                for number in most
            ],
            "version": version,
        }

    def entities(self, limit: int, offset: int) -> dict[str, Any]:
        """A page of all entities as JSON, in the order of their ids, which never changes."""
        self.live.catch_up()
        total = self.live.num_entities
        numbers = range(offset, min(offset + limit, total))
        return {"entities": [self.live.entities[number] for number in numbers], "total": total}

    def relations(self) -> dict[str, Any]:
        """All relations with the number of their facts as JSON."""
        counts, version = self.live.relation_counts()
        names = list(self.live.relations)
        counted = dict(zip(names, counts.tolist(), strict=True))
        labels = {} if self.labels is None else {"labels": self.labels.relations}
        return {"relations": names, "counts": counted, **labels, "version": version}

    def history(self, limit: int, offset: int) -> dict[str, Any]:
        """The latest changes as JSON, without the first `offset`."""
        found, total, version = self.live.history(limit, offset)
        changes = [
            {
                "fact": [one.head, one.relation, one.tail],
                "change": "added" if one.present else "removed",
                "in_base": one.in_base,
                "version": one.version,
                "time": None if one.time is None else _in_words(one.time),
            }
            for one in found
        ]
        return {"changes": changes, "total": total, "version": version}


def _in_words(seconds: int) -> str:
    """A time in seconds since 1970 as in RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _labels(settings: ServeSettings, graph: KnowledgeGraph) -> Labels | None:
    """The labels of a graph that the settings name; those of the file come first."""
    if settings.labels is None and settings.label_relation is None:
        return None
    file, relation = settings.labels, settings.label_relation
    return Labels(
        graph,
        itertools.chain(
            () if file is None else labels_in_file(file),
            () if relation is None else labels_in_graph(graph, relation),
        ),
    )


def _near_facts(graph: KnowledgeGraph, seeds: Sequence[int], top: int, max_facts: int) -> NearFacts:
    distinct = sorted(set(seeds))
    found = neighbourhood(graph, torch.tensor(distinct), max(top, len(distinct)))
    ids = found.entities.tolist()
    score = dict(zip(ids, found.scores.tolist(), strict=True))
    names = {number: graph.entities[number] for number in ids}
    facts = sorted(found.facts.tolist(), key=lambda fact: -score[fact[0]] * score[fact[2]])
    listed = [
        (names[head], graph.relations[relation], names[tail])
        for head, relation, tail in facts[:max_facts]
    ]
    near = [(names[one], score[one]) for one in ids]
    return NearFacts(near, listed, len(facts) - len(listed), found.method)


def _degrees(graph: Any) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    degrees: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = graph.degree.cpu().numpy()
    return degrees
