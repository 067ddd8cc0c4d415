"""Errors of the service as problem details (RFC 9457), without anything about its inside."""

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

log = logging.getLogger("oneshot.serve")

MEDIA_TYPE = "application/problem+json"
# What is said where nothing more is known. The titles are those of HTTP, as RFC 9457 has it for
# problems without a type of their own.
_DETAILS = {
    400: "the request cannot be read",
    404: "there is nothing at this address; see /reference",
    405: "this method is not served here",
    408: "the request did not arrive in time",
    413: "the request is too large",
    415: "the body must be JSON: send the header Content-Type: application/json",
    422: "the request does not fit its description; see /reference",
    500: "a fault of the service, which has noted what happened",
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "nearest": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Known names that look like an unknown one.",
        },
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
            "description": "Where a request does not fit its description.",
        },
    },
    "required": ["type", "title", "status"],
}


class Problem(Exception):  # noqa: N818  (its name in RFC 9457)
    """A refusal, with what the asker needs to know."""

    def __init__(
        self, status: int, detail: str = "", headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers, self.more = headers or {}, more


def problem_body(status: int, detail: str = "", **more: Any) -> bytes:
    """A problem as JSON."""
    value = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    told = detail or _DETAILS.get(status)
    if told:
        value["detail"] = told
    return json.dumps({**value, **more}).encode()


def raw_problem(status: int) -> bytes:
    """A whole response, for who has not even sent a request."""
    body = problem_body(status)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def response(problem: Problem) -> Response:
    body = problem_body(problem.status, problem.detail, **problem.more)
    return Response(body, problem.status, problem.headers, media_type=MEDIA_TYPE)


def _methods(app: FastAPI, path: str) -> list[str]:
    """All methods that any route serves at a path."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    found = (route.methods or () for route in routes if route.path_regex.fullmatch(path))
    return sorted({method for methods in found for method in methods})


def handle_errors(app: FastAPI) -> None:
    """Have every error of an app end as a problem."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return response(error)

    async def misfit(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = error.errors()
        if any(part["type"] == "json_invalid" for part in found):
            return response(Problem(400, "the body is not JSON"))
        errors = [
            # What was given is not repeated: it may be long, or a secret in the wrong place.
            {"pointer": "/" + "/".join(map(str, part["loc"])), "detail": part["msg"]}
            for part in found[:20]
        ]
        return response(Problem(422, errors=errors))

    async def plain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, request.url.path))
        return response(Problem(error.status_code, headers=headers))

    async def fault(_: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return response(Problem(500))

    app.add_exception_handler(Problem, refused)
    app.add_exception_handler(RequestValidationError, misfit)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(Exception, fault)
