"""The protocol: lists and calls the tools of a service, over HTTP or over stdin and stdout."""

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.routing import Route

from oneshot._version import __version__
from oneshot.errors import OneshotError, UnknownNameError
from oneshot.serve.limits import RouteLimits, limited
from oneshot.serve.mcp.tools import Tool, Tools
from oneshot.serve.middleware import Guard, Message, Receive, Send, answer_problem
from oneshot.serve.problems import Problem
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

log = logging.getLogger("oneshot.serve")

PATH = "/mcp"
SCHEMA = "oneshot://schema"
_JSON = "application/json"
_MESSAGE_LENGTH = 500  # of an error; names in it can be long
_REPORTED = 5  # invalid arguments
_INSTRUCTIONS = (
    "A knowledge graph of facts (head, relation, tail), and a predictor of facts that it lacks. "
    "Find exact names with find_entity and list_relations first. `known` marks facts of the "
    "graph; everything else is a prediction with a probability. Cite the paths and facts of "
    "explain and check_fact as evidence."
)

Context = ServerRequestContext[Any]


def create_server(service: Service) -> Server[Any]:
    """The protocol server of a service, which must be started separately."""
    tools = Tools(service)
    listed = types.ListToolsResult(tools=[_described(tool) for tool in tools.by_name.values()])
    resource = types.Resource(
        uri=SCHEMA,
        name="schema",
        title="Schema of the graph",
        description="Sizes of the graph, its relations with counts and examples, top entities.",
        mime_type=_JSON,
    )

    async def list_tools(_: Context, __: Any) -> types.ListToolsResult:
        return listed

    async def call_tool(
        context: Context, asked: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = tools.by_name.get(asked.name)
        if tool is None:
            error = UnknownNameError.among("tool", asked.name[:_MESSAGE_LENGTH], tools.by_name)
            raise MCPError(types.INVALID_PARAMS, _cut(str(error)))
        if tool.changes and not _may_change(context, service.settings):
            return _refused("send the token for changes: Authorization: Bearer TOKEN")
        return await _called(tool, asked.arguments or {})

    async def list_resources(_: Context, __: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[resource])

    async def read_resource(
        _: Context, asked: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        if asked.uri != SCHEMA:
            raise MCPError(types.INVALID_PARAMS, _cut(f"unknown resource {asked.uri!r}"))
        try:
            text = _as_json(await tools.schema())[1]
        except Problem as problem:
            raise MCPError(types.INTERNAL_ERROR, _detail(problem)) from problem
        content = types.TextResourceContents(uri=SCHEMA, mime_type=_JSON, text=text)
        return types.ReadResourceResult(contents=[content])

    return Server(
        "oneshot",
        version=__version__,
        title="oneshot: knowledge graph reasoning",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def guarded(service: Service) -> Guard:
    """The complete ASGI app of the protocol over HTTP, with the guard of the REST API.

    There are no sessions: a client can send each request to another process.
    """
    manager = StreamableHTTPSessionManager(
        create_server(service),
        json_response=True,
        stateless=True,
        # The guard checks the host name.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    endpoint = limited(json=True)(_Endpoint(manager.handle_request))
    # No GET: it would be a stream of messages that the server starts, and it starts none.
    app = Starlette(
        routes=[Route(PATH, endpoint=endpoint, methods=["POST"])],
        lifespan=lambda _: manager.run(),
    )
    limits = RouteLimits(app.routes)
    return Guard(app, limits, service.settings, service.metrics, service.engine)


class _Endpoint:
    """Refuses the requests of web pages of other origins, as the protocol demands."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        origin, host = (headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
        if origin and origin.partition("://")[2] != host:
            await answer_problem(send, 403, "pages of other origins cannot use this server")
            return
        await self._app(scope, receive, send)


def _described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.about,
        input_schema=_without_titles(tool.arguments.model_json_schema()),
        output_schema=_without_titles(tool.result.model_json_schema()),
        annotations=types.ToolAnnotations(
            read_only_hint=not tool.changes,
            destructive_hint=tool.name == "remove_fact",
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


def _without_titles(schema: Any) -> Any:
    """A JSON schema without the titles that pydantic derives from names: each list has them all."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def _may_change(context: Context, settings: ServeSettings) -> bool:
    """Whether a request may change facts. Over stdin there are no tokens: it has one client."""
    token = settings.write_token
    if token is None or context.request is None:
        return True
    scheme, _, given = context.request.headers.get("authorization", "").partition(" ")
    matches = hmac.compare_digest(given.encode(), token.encode())
    return scheme.lower() == "bearer" and matches


async def _called(tool: Tool, arguments: dict[str, Any]) -> types.CallToolResult:
    """The result of a tool. Errors are results too, so that the language model reads them."""
    try:
        result = await tool.function(tool.arguments.model_validate(arguments))
        value, text = _as_json(result)
        return types.CallToolResult(
            content=[types.TextContent(text=text)], structured_content=value
        )
    except ValidationError as error:
        return _refused(_misfit(error))
    except Problem as problem:
        return _refused(_detail(problem))
    except OneshotError as error:
        return _refused(str(error))
    except Exception:
        log.exception("the tool %s failed", tool.name)
        return _refused("internal error; the log of the server has the details")


def _refused(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=_cut(message))], is_error=True)


def _misfit(error: ValidationError) -> str:
    """Which arguments are invalid and why, without their values."""
    found = error.errors(include_input=False, include_url=False)
    parts = []
    for part in found[:_REPORTED]:
        where = ".".join(str(key)[:100] for key in part["loc"])
        reason = part["msg"][:1].lower() + part["msg"][1:]
        parts.append(f"{where}: {reason}" if where else reason)
    return "; ".join(parts)


def _detail(problem: Problem) -> str:
    value = problem.as_dict()
    text = str(value.get("detail") or value["title"])
    # An unknown name that resembles no known one.
    is_lost = problem.status == 404 and not value.get("nearest")
    return f"{text}; find_entity and list_relations return the known names" if is_lost else text


def _cut(message: str) -> str:
    """A message of limited length, on one line and valid as UTF-8."""
    line = str(OneshotError(message)).encode(errors="replace").decode()
    return line if len(line) <= _MESSAGE_LENGTH else line[: _MESSAGE_LENGTH - 1] + "…"


def _as_json(result: BaseModel) -> tuple[dict[str, Any], str]:
    """A result as JSON values and as text."""
    text = json.dumps(result.model_dump(), ensure_ascii=False, allow_nan=False)
    # A malformed name may hold half a surrogate pair, which must not break the response.
    text = text.encode(errors="replace").decode()
    value: dict[str, Any] = json.loads(text)
    return value, text
