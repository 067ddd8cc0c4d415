"""The REST API: routes that validate requests, call the service and respond with JSON."""

import json
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Body, FastAPI, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor

from oneshot._version import __version__
from oneshot.graph.graph import INVERSE_MARK
from oneshot.reasoner.answers import AnswerOptions
from oneshot.serve import schemas
from oneshot.serve.engine import Question
from oneshot.serve.limits import LARGE_BODY, MAX_FOUND, MAX_NAME, limited
from oneshot.serve.pages import PAGE, page_file, reference_page
from oneshot.serve.problems import MEDIA_TYPE, SCHEMA, Problem, handle_errors
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


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for its description."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {s: {"description": "refused", "content": content} for s in (400, 401, *statuses)}


class _LargeRequest(Request):
    """A request whose body, if it is large, is parsed in another thread."""

    async def json(self) -> Any:
        body = await self.body()
        if len(body) < LARGE_BODY:
            return await super().json()
        return await run_in_threadpool(json.loads, body)


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
    )
    app.router.route_class = _LargeRoute
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
        def asked() -> list[Question | Problem]:
            options = AnswerOptions.among(dict(body))
            service.check_options(options)
            return [
                service.question_or_problem(one.entity, one.relation, one.inverse, options)
                for one in body.questions
            ]

        service.check_version(body.min_version)
        # The fuzzy search for an unknown name is slow.
        names = [one.entity for one in body.questions] + [entity for _, entity in body.types]
        is_quick = all(service.knows(name) for name in names)
        questions = asked() if is_quick else await run_in_threadpool(asked)
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
        "/v1/explain",
        response_model=schemas.ExplainOut,
        responses=_problems(404, 409, *_BODY, 503, 504),
        summary="Explain one answer",
    )
    @limited(json=True, queued=True)
    async def explain(body: Annotated[schemas.ExplainIn, Body()]) -> Response:
        service.check_version(body.min_version)
        question, answer = await run_in_threadpool(
            lambda: (
                service.question(body.entity, body.relation, body.inverse),
                service.entity(body.answer),
            )
        )
        started = time.monotonic()
        reason, version = await service.explain(question, answer, body.paths, service.deadline())
        value = {**reason.as_dict(), "version": version}
        clock = [started, time.monotonic()]
        if body.drawing:
            from oneshot.plots.explanation.figure import page_svg

            value["drawing"], value["charts"] = await run_in_threadpool(page_svg, reason)
            clock.append(time.monotonic())
        steps = zip(("explaining", "drawing"), clock, clock[1:], strict=False)
        value["milliseconds"] = {name: round(1e3 * (b - a), 3) for name, a, b in steps}
        return _json(value)


def _refused(query: schemas.QuestionIn, problem: Problem) -> dict[str, Any]:
    """The result of a query that cannot be answered, among others that can."""
    mark = INVERSE_MARK if query.inverse else ""
    return {
        "query": {"entity": query.entity, "relation": query.relation + mark},
        "answers": [],
        "subgraph": {"entities": 0, "edges": 0},
        "milliseconds": {},
        "error": problem.as_dict(),
    }


def _add_names(app: FastAPI, service: Service) -> None:
    @app.get(
        "/v1/entities",
        response_model=schemas.EntitiesOut,
        responses=_problems(422),
        summary="Find entities",
    )
    @limited()
    async def search_entities(
        search: Annotated[
            str, Query(max_length=MAX_NAME, description="prefix of the name; similar names follow")
        ] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_FOUND)] = 10,
    ) -> Response:
        return _json({"entities": await run_in_threadpool(service.search, search, limit)})

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
        limit: Annotated[int, Query(ge=1, le=10 * MAX_FOUND)] = 100,
        offset: Annotated[
            int, Query(ge=0, le=2**53, description="number of facts to skip, for further pages")
        ] = 0,
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
        # Relations never change.
        return _tagged(request, {"relations": list(service.live.relations)}, service.tag(0))


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


_READ = ["GET", "HEAD"]


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/v1/healthz", response_model=schemas.HealthOut, summary="Is the process alive?")
    @limited(token=False)  # for monitoring
    async def healthz() -> Response:
        return _json({"status": "ok"})

    @app.get(
        "/v1/readyz",
        response_model=schemas.ReadyOut,
        responses=_problems(503),
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
        return JSONResponse(app.openapi())

    @app.api_route("/reference", methods=_READ, include_in_schema=False)
    @limited(token=False)
    async def reference(_: Request) -> Response:
        return HTMLResponse(reference_page(app.openapi()))


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
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A malformed name may hold half a surrogate pair, which must not break the response.
    return Response(text.encode(errors="replace"), media_type="application/json")
