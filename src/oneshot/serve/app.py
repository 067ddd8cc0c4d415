"""The REST API: routes that validate requests, call the service and respond with JSON."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import cache
from typing import Annotated, Any

from fastapi import Body, FastAPI, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException

from oneshot._version import __version__
from oneshot.graph.graph import INVERSE_MARK
from oneshot.reasoner.answers import AnswerOptions
from oneshot.serve import schemas
from oneshot.serve.engine import Question
from oneshot.serve.limits import (
    LARGE_BODY,
    MAX_FOUND,
    MAX_NAME,
    MAX_NEAR_FACTS,
    MAX_PAGE,
    MAX_PARSED,
    MAX_SUGGESTED,
    limited,
)
from oneshot.serve.pages import PAGE, page_file, reference_page
from oneshot.serve.problems import MEDIA_TYPE, SCHEMA, Problem, about_status, handle_errors
from oneshot.serve.service import Service

_DESCRIPTION = (
    "Link prediction on a knowledge graph with one small subgraph per query. Queries that arrive "
    "at the same time are answered in one batch. Facts, including those about new entities, can "
    "be added and removed at any time and take effect from the next query on."
)


_BODY = (408, 413, 415, 422)  # refusals of a body
_NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "the response is that of the entity tag in If-None-Match"}
}


class _Anything(Convertor[str]):
    """The rest of a path as a name, including slashes and line breaks."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())


_ANY = (400, 421, 500)  # problems of every request
_REFUSED = (401, 429)  # refusals of routes with access control


def _problems(*statuses: int, is_open: bool = False) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for its description; `is_open`: without access control."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": about_status(status), "content": content}
        for status in sorted({*_ANY, *(() if is_open else _REFUSED), *statuses})
    }


class _Parser:
    """Parses large bodies in another thread, one at a time: the event loop needs the others."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def parse(self, body: bytes) -> Any:
        if self._waiting >= MAX_PARSED:
            detail = "too many large requests are waiting; retry in a moment"
            # A Problem would become a 400 here.
            raise HTTPException(503, detail, {"Retry-After": "1"})
        self._waiting += 1
        try:
            async with self._lock:
                return await run_in_threadpool(json.loads, body)
        finally:
            self._waiting -= 1


class _LargeRequest(Request):
    """A request whose body, if it is large, is parsed in another thread."""

    async def json(self) -> Any:
        body = await self.body()
        if len(body) < LARGE_BODY:
            return await super().json()
        return await self.app.state.parser.parse(body)


class _LargeRoute(APIRoute):
    """A route for bodies that can be large: the event loop serves others in the meantime."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_LargeRequest(request.scope, request.receive))

        return handle


def create_app(service: Service) -> FastAPI:
    """The app of a service. The service must be started separately."""
    app = FastAPI(
        title="oneshot",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,  # served below, with limits like every other route
        docs_url=None,  # both load scripts from other hosts; /reference replaces them
        redoc_url=None,
        redirect_slashes=False,  # an unknown path is a 404
        generate_unique_id_function=lambda route: route.name,  # names of functions in clients
        servers=[{"url": service.settings.prefix or "/"}],
    )
    app.router.route_class = _LargeRoute
    app.state.parser = _Parser()
    handle_errors(app)
    _describe(app)
    _add_questions(app, service)
    _add_names(app, service)
    _add_facts(app, service)
    _add_state(app, service)
    _add_pages(app)
    return app


def _add_questions(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/predict",
        response_model=schemas.PredictOut,
        response_model_exclude_none=True,
        responses=_problems(404, 409, *_BODY, 503, 504),
        summary="Answer queries",
    )
    @limited(json=True, queued=True)
    async def predict(body: Annotated[schemas.PredictIn, Body()]) -> Response:
        await service.check_version(body.min_version)
        questions = await _asked(service, body, body.questions)
        valid = [one for one in questions if isinstance(one, Question)]
        if not valid:
            raise next(one for one in questions if isinstance(one, Problem))
        answered = iter(await service.predict(valid, service.deadline()))
        results = [
            next(answered) if isinstance(one, Question) else _refused(query, one)
            for query, one in zip(body.questions, questions, strict=True)
        ]
        version = next(result["version"] for result in results if "version" in result)
        for result in results:
            result["version"] = version
        return _json({"results": results, "version": version})

    @app.post(
        "/v1/predict/stream",
        response_class=_Lines,
        responses={200: _LINES, **_problems(404, 409, *_BODY, 503)},
        summary="Answer many queries, one line per query",
    )
    @limited(json=True, queued=True)
    async def predict_stream(body: Annotated[schemas.StreamIn, Body()]) -> Response:
        """The results as NDJSON, in the order of the queries, each as soon as it is there."""
        await service.check_version(body.min_version)
        await run_in_threadpool(service.check_options, AnswerOptions.among(dict(body)))
        return _Lines(_streamed(service, body))

    @app.post(
        "/v1/explain",
        response_model=schemas.ExplainOut,
        responses=_problems(404, 409, *_BODY, 503, 504),
        summary="Explain one answer",
    )
    @limited(json=True, queued=True)
    async def explain(body: Annotated[schemas.ExplainIn, Body()]) -> Response:
        await service.check_version(body.min_version)
        question, answer = await run_in_threadpool(_answered, service, body)
        started = time.monotonic()
        reason, version = await service.explain(question, answer, body.paths, service.deadline())
        value = {**reason.as_dict(), "version": version}
        clock = [started, time.monotonic()]
        if body.drawing:
            from oneshot.plots.explanation.figure import page_svg

            value["drawing"], value["charts"] = await run_in_threadpool(
                page_svg, reason, service.label
            )
            clock.append(time.monotonic())
        steps = zip(("explaining", "drawing"), clock, clock[1:], strict=False)
        value["milliseconds"] = {name: round(1e3 * (b - a), 3) for name, a, b in steps}
        return _json(value)

    @app.post(
        "/v1/explain/many",
        response_model=schemas.ExplainManyOut,
        response_model_exclude_none=True,
        responses=_problems(409, *_BODY, 503, 504),
        summary="Explain several answers",
    )
    @limited(json=True, queued=True)
    async def explain_many(body: Annotated[schemas.ExplainManyIn, Body()]) -> Response:
        """One that cannot be explained has an error and does not refuse the others."""
        await service.check_version(body.min_version)
        deadline = service.deadline()
        results: list[dict[str, Any]] = []
        for one in body.questions:
            try:
                question, answer = await run_in_threadpool(_answered, service, one)
            except Problem as problem:
                error = problem.as_dict()
                results.append(
                    {"query": _query(one), "answer": one.answer, "paths": [], "error": error}
                )
                continue
            found, version = await service.explain(question, answer, body.paths, deadline)
            results.append({**found.as_dict(), "version": version})
        return _json({"results": results})

    @app.post(
        "/v1/check",
        response_model=schemas.CheckOut,
        responses=_problems(404, 409, *_BODY, 503, 504),
        summary="Check a fact",
    )
    @limited(json=True, queued=True)
    async def check(body: Annotated[schemas.CheckIn, Body()]) -> Response:
        """How likely a fact is by all other facts, and the paths that support it."""
        await service.check_version(body.min_version)
        asked = schemas.AnsweredIn(entity=body.head, relation=body.relation, answer=body.tail)
        question, tail = await run_in_threadpool(_answered, service, asked)
        found, version = await service.check(question, tail, body.paths)
        value = found.explanation.as_dict()
        return _json(
            {
                "fact": [found.fact.head, found.fact.relation, found.fact.tail],
                "known": found.known,
                "probability": found.fact.probability,
                "score": found.fact.score,
                "rank": found.fact.rank,
                "candidates": found.explanation.graph.num_entities,
                "paths": value["paths"],
                "evidence": [list(fact) for fact in found.evidence],
                "other_tails": list(found.others),
                "message": found.message,
                "version": version,
            }
        )


async def _asked(
    service: Service,
    body: schemas.AnswersIn,
    queries: Sequence[schemas.QuestionIn],
    suggested: int = MAX_SUGGESTED,
) -> list[Question | Problem]:
    """The queries of a request by ids, with its options; problems for those with unknown names.

    The first `suggested` of these have the most similar names.
    """

    def find() -> list[Question | Problem]:
        options = AnswerOptions.among(dict(body))
        service.check_options(options)
        found: list[Question | Problem] = []
        left = suggested
        for one in queries:
            asked = one.entity, one.relation, one.inverse
            found.append(service.question_or_problem(*asked, options, suggest=left > 0))
            left -= isinstance(found[-1], Problem)
        return found

    # The fuzzy search for an unknown name is slow.
    names = [one.entity for one in queries] + [entity for _, entity in body.types]
    is_quick = all(service.knows(name) for name in names)
    return find() if is_quick else await run_in_threadpool(find)


class _Lines(StreamingResponse):
    """A response of JSON values, one per line."""

    media_type = "application/x-ndjson"


_LINES: dict[str, Any] = {
    "description": "a result per line",
    "content": {_Lines.media_type: {"schema": {"$ref": "#/components/schemas/ResultOut"}}},
}


async def _streamed(service: Service, body: schemas.StreamIn) -> AsyncIterator[bytes]:
    """The results of many queries as lines, batch by batch; those of a batch on one snapshot."""
    # The explanations of a batch have the time of one request.
    size = 1 if body.explain else service.settings.batch_size
    version = service.live.version
    suggested = MAX_SUGGESTED
    for start in range(0, len(body.questions), size):
        queries = body.questions[start : start + size]
        questions = await _asked(service, body, queries, suggested)
        valid = [one for one in questions if isinstance(one, Question)]
        suggested -= len(questions) - len(valid)
        failure: Problem | None = None
        answered: list[dict[str, Any]] = []
        try:
            answered = await service.predict_patiently(valid) if valid else []
        except Problem as problem:
            failure = problem
        results = iter(answered)
        version = answered[0]["version"] if answered else version
        for query, one in zip(queries, questions, strict=True):
            refusal = failure if isinstance(one, Question) else one
            value = next(results) if refusal is None else _refused(query, refusal)
            yield _encoded({**value, "version": version}) + b"\n"


def _answered(service: Service, asked: schemas.AnsweredIn) -> tuple[Question, int]:
    """A query and the id of its answer; called in a thread, as `Service.entity`."""
    question = service.question(asked.entity, asked.relation, asked.inverse)
    return question, service.entity(asked.answer)


def _query(asked: schemas.QuestionIn) -> dict[str, str]:
    mark = INVERSE_MARK if asked.inverse else ""
    return {"entity": asked.entity, "relation": asked.relation + mark}


def _refused(query: schemas.QuestionIn, problem: Problem) -> dict[str, Any]:
    """The result of a query that cannot be answered, among others that can."""
    return {
        "query": _query(query),
        "answers": [],
        "subgraph": {"entities": 0, "edges": 0},
        "milliseconds": {},
        "error": problem.as_dict(),
    }


Offset = Annotated[
    int, Query(ge=0, le=2**53, description="number of rows to skip, for further pages")
]


def _add_names(app: FastAPI, service: Service) -> None:
    @app.get(
        "/v1/entities",
        response_model=schemas.EntitiesOut,
        responses=_problems(422, 503),
        summary="Find or list entities",
    )
    @limited()
    async def search_entities(
        search: Annotated[
            str | None,
            Query(max_length=MAX_NAME, description="prefix of the name; similar names follow"),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 10,
        offset: Offset = 0,
    ) -> Response:
        """Without `search`, all entities in pages; with it, up to 100 matches, the best first."""
        if search is None:
            value = await run_in_threadpool(service.entities, limit, offset)
            return _json(_labelled(service, value))
        limit = min(limit, MAX_FOUND)
        found = await run_in_threadpool(service.search, search, limit)
        if offset:  # the first page, then all other matches, in one order for pages of this size
            every = await run_in_threadpool(service.search, search, MAX_FOUND)
            found = list(dict.fromkeys([*found, *every]))[offset : offset + limit]
        return _json(_labelled(service, {"entities": found}))

    @app.post(
        "/v1/labels",
        response_model=schemas.LabelsOut,
        responses=_problems(*_BODY),
        summary="Labels of entities",
    )
    @limited(json=True)
    async def labels(body: Annotated[schemas.LabelsIn, Body()]) -> Response:
        """The labels of those entities that have one; unknown names are ignored."""
        return _json({"labels": service.labels_of(body.entities)})

    @app.get(
        "/v1/entities/{name:anything}",
        response_model=schemas.EntityOut,
        responses={**_problems(404, 422), **_NOT_MODIFIED},
        summary="Facts about an entity",
    )
    @limited()
    async def entity_facts(
        request: Request,
        name: Annotated[str, Path(min_length=1, max_length=MAX_NAME)],
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        offset: Offset = 0,
    ) -> Response:
        value = await run_in_threadpool(service.facts_of, name, limit, offset)
        return _tagged(request, value, service.tag(value["version"]))

    @app.get(
        "/v1/relations",
        response_model=schemas.RelationsOut,
        responses={**_problems(), **_NOT_MODIFIED},
        summary="List all relations",
    )
    @limited()
    async def relations(request: Request) -> Response:
        value = await run_in_threadpool(service.relations)
        return _tagged(request, value, service.tag(value["version"]))

    @app.get(
        "/v1/relations/{name:anything}",
        response_model=schemas.RelationOut,
        responses=_problems(404, 422, 503, 504),
        summary="Statistics of a relation",
    )
    @limited(queued=True)
    async def relation_statistics(
        name: Annotated[str, Path(min_length=1, max_length=MAX_NAME)],
    ) -> Response:
        number = service.relation(name)
        if number >= len(service.live.relations):
            raise Problem(404, "statistics are those of the relation itself; omit ⁻¹")
        found, version = await service.relation_statistics(number)
        ends = {
            key: [{"entity": entity, "facts": facts} for entity, facts in rows]
            for key, rows in (("top_heads", found.top_heads), ("top_tails", found.top_tails))
        }
        sizes = {"facts": found.facts, "heads": found.heads, "tails": found.tails}
        return _json({"relation": found.relation, **sizes, **ends, "version": version})

    @app.post(
        "/v1/neighbourhood",
        response_model=schemas.NeighbourhoodOut,
        responses=_problems(404, *_BODY, 503, 504),
        summary="The neighbourhood of entities",
    )
    @limited(json=True, queued=True)
    async def neighbourhood(body: Annotated[schemas.NeighbourhoodIn, Body()]) -> Response:
        """The nearest entities by Personalized PageRank, and the facts between them."""
        seeds = await run_in_threadpool(lambda: [service.entity(name) for name in body.entities])
        found, version = await service.neighbourhood(seeds, body.top, MAX_NEAR_FACTS)
        return _json(
            {
                "entities": [{"entity": name, "score": score} for name, score in found.entities],
                "facts": [list(fact) for fact in found.facts],
                "omitted_facts": found.omitted,
                "method": found.method,
                "version": version,
            }
        )


def _labelled(service: Service, value: dict[str, Any]) -> dict[str, Any]:
    """A list of entities with their labels, if the service has labels."""
    if service.labels is None:
        return value
    return {**value, "labels": service.labels_of(value["entities"])}


def _add_facts(app: FastAPI, service: Service) -> None:
    async def change(body: schemas.FactsIn, present: bool) -> Response:
        if service.settings.read_only:
            raise Problem(403, "this service is read-only: facts cannot be changed")
        count, version = await service.change(body.facts, present, service.deadline())
        key = "added" if present else "removed"
        return _json({key: count, "version": version})

    @app.post(
        "/v1/facts",
        response_model=schemas.AddedOut,
        responses=_problems(403, 404, *_BODY, 503, 504),
        summary="Add facts",
    )
    @limited(json=True, write=True)
    async def add_facts(body: Annotated[schemas.FactsIn, Body()]) -> Response:
        """Entities may be new; relations must be known. Facts are on disk before the response."""
        return await change(body, True)

    @app.delete(
        "/v1/facts",
        response_model=schemas.RemovedOut,
        responses=_problems(403, 404, *_BODY, 503, 504),
        summary="Remove facts",
    )
    @limited(json=True, write=True)
    async def remove_facts(body: Annotated[schemas.FactsIn, Body()]) -> Response:
        """Facts that the graph does not hold are ignored."""
        return await change(body, False)

    @app.post(
        "/v1/facts/remove",
        response_model=schemas.RemovedOut,
        responses=_problems(403, 404, *_BODY, 503, 504),
        summary="Remove facts, for clients that cannot send a body with DELETE",
    )
    @limited(json=True, write=True)
    async def remove_facts_by_post(body: Annotated[schemas.FactsIn, Body()]) -> Response:
        """The same as DELETE /v1/facts."""
        return await change(body, False)

    @app.get(
        "/v1/changes",
        response_model=schemas.ChangesOut,
        responses={**_problems(422), **_NOT_MODIFIED},
        summary="List the changed facts",
    )
    @limited()
    async def changes(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        offset: Offset = 0,
    ) -> Response:
        """Each fact that was added or removed, with its latest change, the latest first."""
        value = await run_in_threadpool(service.history, limit, offset)
        return _tagged(request, value, service.tag(value["version"]))


_READ = ["GET", "HEAD"]


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get(
        "/v1/healthz",
        response_model=schemas.HealthOut,
        responses=_problems(is_open=True),
        summary="Is the process alive?",
    )
    @limited(token=False)  # for monitoring
    async def healthz() -> Response:
        return _json({"status": "ok"})

    @app.get(
        "/v1/readyz",
        response_model=schemas.ReadyOut,
        responses=_problems(503, is_open=True),
        summary="Is the service ready to answer queries?",
    )
    @limited(token=False)
    async def readyz() -> Response:
        if not service.engine.alive:
            raise Problem(503, "the service is stopping", {"Retry-After": "5"})
        return _json(await run_in_threadpool(service.state))

    # Probes send HEAD requests.
    app.head("/v1/healthz", include_in_schema=False)(healthz)
    app.head("/v1/readyz", include_in_schema=False)(readyz)

    @app.get("/metrics", include_in_schema=False)
    @limited()
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI) -> None:
    # Both take milliseconds to write, and are asked for without a token.
    document = cache(lambda: JSONResponse(app.openapi()).body)
    page = cache(lambda: reference_page(app.openapi()))

    @app.api_route("/", methods=_READ, include_in_schema=False)
    @limited(token=False)
    async def index() -> Response:
        return page_file("index.html")

    @app.api_route("/page/{name}", methods=_READ, include_in_schema=False)
    @limited(token=False)
    async def asset(name: str) -> Response:
        if name not in PAGE:
            raise Problem(404)
        return page_file(name)

    @app.api_route("/openapi.json", methods=_READ, include_in_schema=False)
    @limited(token=False)
    async def description(_: Request) -> Response:
        return Response(document(), media_type="application/json")

    @app.api_route("/reference", methods=_READ, include_in_schema=False)
    @limited(token=False)
    async def reference(_: Request) -> Response:
        return HTMLResponse(page())


def _describe(app: FastAPI) -> None:
    """Describe error responses and the token as they are in the OpenAPI document."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            value = plain()
            components = value.setdefault("components", {})
            components.setdefault("schemas", {})["Problem"] = SCHEMA
            for unused in ("HTTPValidationError", "ValidationError"):
                components["schemas"].pop(unused, None)
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            value["security"] = [{}, {"token": []}]
            app.openapi_schema = value
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _tagged(request: Request, value: Any, tag: str) -> Response:
    """A response with an entity tag; empty if the client has it already."""
    known = [part.strip() for part in request.headers.get("if-none-match", "").split(",")]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in known or f"W/{tag}" in known or "*" in known:
        return Response(status_code=304, headers=headers)
    response = _json(value)
    response.headers.update(headers)
    return response


def _json(value: Any) -> Response:
    return Response(_encoded(value), media_type="application/json")


def _encoded(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A malformed name may hold half a surrogate pair, which must not break the response.
    return text.encode(errors="replace")
