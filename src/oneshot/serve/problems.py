"""Errors of the service as problem details (RFC 9457), without internal details."""

import json
import logging
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from oneshot.serve.limits import MAX_ERRORS, MAX_NAME

log = logging.getLogger("oneshot.serve")

MEDIA_TYPE = "application/problem+json"
# Default details. The titles are those of HTTP, as RFC 9457 requires for problems without a type
# of their own.
_DETAILS = {
    400: "the request cannot be read",
    404: "unknown path; see /reference",
    405: "this method is not allowed for this path; see /reference",
    408: "the request was not received in time",
    413: "the request is too large",
    415: "the body must be JSON: send the header Content-Type: application/json",
    422: "the request does not match its schema; see /reference",
    429: "too many requests from this address; send fewer per second",
    503: "too many connections are open; retry in a moment",
    504: "the request exceeded its time limit",
    500: "internal error; the log of the service has the details",
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Description of an error (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "nearest": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Known names similar to an unknown one.",
        },
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "pointer": {
                        "type": "string",
                        "description": "JSON pointer (RFC 6901) to a field of the body.",
                    },
                    "parameter": {
                        "type": "string",
                        "description": "Name of a parameter of the path or the query.",
                    },
                    "detail": {"type": "string"},
                },
            },
            "description": "Fields of the request that do not match its schema.",
        },
    },
    "required": ["type", "title", "status"],
}


_ABOUT = {
    401: "the token is missing or wrong",
    403: "the service is read-only",
    404: "unknown name or path",
    409: "the facts have not reached the version of `min_version`",
    421: "unknown host name",
    503: "the service is busy or stopping, or facts cannot be saved; see Retry-After",
}


def about_status(status: int) -> str:
    """What an error status means, for the description of the API."""
    return _ABOUT.get(status) or _DETAILS[status].partition(";")[0]


class Problem(Exception):  # noqa: N818  (its name in RFC 9457)
    """An error response."""

    def __init__(
        self, status: int, detail: str = "", headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers, self.more = headers or {}, more

    def as_dict(self) -> dict[str, Any]:
        """The problem as JSON values."""
        return _problem(self.status, self.detail, **self.more)


def _problem(status: int, detail: str = "", **more: Any) -> dict[str, Any]:
    value = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    text = detail or _DETAILS.get(status)
    if text:
        value["detail"] = text
    return {**value, **more}


def problem_body(status: int, detail: str = "", **more: Any) -> bytes:
    """A problem as JSON."""
    return json.dumps(_problem(status, detail, **more)).encode()


def new_request_id() -> str:
    return secrets.token_hex(8)


def raw_problem(status: int) -> bytes:
    """A complete HTTP response, for a connection without a valid request."""
    body = problem_body(status)
    retry = "Retry-After: 1\r\n" if status == 503 else ""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n{retry}"
        f"X-Content-Type-Options: nosniff\r\nX-Request-Id: {new_request_id()}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def response(problem: Problem) -> Response:
    body = problem_body(problem.status, problem.detail, **problem.more)
    return Response(body, problem.status, problem.headers, media_type=MEDIA_TYPE)


def _place(location: Sequence[str | int]) -> dict[str, str]:
    """Where an error is: a JSON pointer into the body, or the name of a parameter."""
    origin, *parts = location
    if origin != "body":
        return {"parameter": str(parts[0])[:MAX_NAME] if parts else str(origin)}
    escaped = (str(part).replace("~", "~0").replace("/", "~1")[:MAX_NAME] for part in parts)
    return {"pointer": "".join(f"/{part}" for part in escaped)}


def _methods(app: FastAPI, path: str) -> list[str]:
    """All methods that any route serves at a path."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    found = (route.methods or () for route in routes if route.path_regex.fullmatch(path))
    return sorted({method for methods in found for method in methods})


def handle_errors(app: FastAPI) -> None:
    """Turn every error of an app into a problem response."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return response(error)

    async def misfit(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = error.errors()
        if any(part["type"] == "json_invalid" for part in found):
            return response(Problem(400, "the body is not JSON"))
        # The input is not repeated: it may be long, or a secret in the wrong field.
        errors = [{**_place(part["loc"]), "detail": part["msg"]} for part in found[:MAX_ERRORS]]
        return response(Problem(422, errors=errors))

    async def plain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, request.url.path))
        detail = error.detail if error.status_code == 503 else ""  # others are not ours
        return response(Problem(error.status_code, detail, headers))

    async def fault(_: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return response(Problem(500))

    app.add_exception_handler(Problem, refused)
    app.add_exception_handler(RequestValidationError, misfit)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(Exception, fault)
