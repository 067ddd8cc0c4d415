"""Middleware: checks of every request before a route gets it, and headers of every response.

It checks the token, the host name, the size of the body and the rate of requests, and it cancels a
request whose client has disconnected. It is plain ASGI, so that nothing is buffered.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException

from oneshot.serve.engine import Engine
from oneshot.serve.limits import LARGE_BODY, MAX_BODIES, MAX_BODY, Limits, RouteLimits
from oneshot.serve.metrics import Metrics
from oneshot.serve.problems import MEDIA_TYPE, new_request_id, problem_body
from oneshot.serve.rate_limit import RateLimit
from oneshot.serve.settings import ServeSettings
from oneshot.system.process import return_freed_memory

access = logging.getLogger("oneshot.access")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOGGED_PATH = 500  # characters
_CLOSE = (b"connection", b"close")
_DISCARD_SECONDS = 1.0  # time for the rest of a body that is not used
_RETURN_SECONDS = 2.0  # after a large body, until freed memory is returned
_PATIENCE = 1.0  # seconds after the time limit of a request, in which its route answers
_GONE = 499  # in the metrics: the client disconnected before the response
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


_SINGLE = (b"authorization", b"content-type", b"host")  # headers
# Followed by a name, which may contain any character.
_NAMES = ("/v1/entities/", "/v1/relations/")
_OUTSIDE = "/outside"  # of the prefix: a path without a route
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:[0-9]*)?", re.IGNORECASE)


class Guard:
    """Wraps an ASGI app whose routes have these limits."""

    def __init__(
        self,
        app: App,
        limits: RouteLimits,
        settings: ServeSettings,
        metrics: Metrics,
        engine: Engine,
    ) -> None:
        self.app, self.limits, self.settings = app, limits, settings
        self.metrics, self.engine = metrics, engine
        self._rate_limit = RateLimit(settings.rate)
        self._bodies = _Bodies()

    def refuse(self) -> None:
        """Refuse requests whose bodies are not complete; called in the event loop."""
        self._bodies.refuse()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        status = 500
        begun = False
        body = _Body(scope, receive)
        number = _request_id(scope)

        async def sending(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                headers = list(message.get("headers", ()))
                given = {name for name, _ in headers}
                headers += [header for header in _HEADERS if header[0] not in given]
                headers.append((b"x-request-id", number.encode()))
                # The rest of a body could come slowly, or never.
                if not body.is_complete and _CLOSE not in headers:
                    headers.append(_CLOSE)
                message["headers"] = headers
            await send(message)

        asked = scope
        try:
            scope = self._inside(asked)
            refusal = self._refusal(scope)
            if refusal is not None:
                await body.discard()
                await answer_problem(sending, *refusal)
            elif scope["path"] == "":  # the prefix without the slash after it
                await _redirect(sending, f"{self.settings.prefix}/")
            else:
                in_time = await self._passed(scope, body, sending, lambda: begun)
                if not in_time:
                    await answer_problem(sending, 504, "")
                elif not begun:
                    status = _GONE
        except Exception:
            if not begun:  # otherwise it is answered and counted already
                raise
        finally:
            self._bodies.release(body)
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - started
            self.metrics.request(route, _method(scope), status, seconds)
            if self.settings.access_log:
                access.info(_log_line(asked, number, status, seconds))

    def _inside(self, scope: Message) -> Message:
        """The request with its path below the prefix; other paths are those of no route."""
        prefix, path = self.settings.prefix, scope["path"]
        if not prefix:
            return scope
        is_inside = path == prefix or path.startswith(f"{prefix}/")
        return {**scope, "path": path.removeprefix(prefix) if is_inside else _OUTSIDE}

    def _refusal(self, scope: Message) -> tuple[int, str, int] | None:
        """The problem for which a request is refused, with seconds until a retry, or None."""
        if self.limits.find(scope["path"] or "/", scope["method"]).token:
            # Before the token is checked, so that tokens cannot be guessed at a higher rate.
            wait = self._rate_limit.wait((scope.get("client") or ("",))[0])
            if wait > 0:
                return 429, "", math.ceil(wait)
        refusal = self._invalid(scope)
        return None if refusal is None else (*refusal, self.engine.patience)

    def _invalid(self, scope: Message) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        # A proxy could go by another one of them than this service.
        if any([name for name, _ in scope["headers"]].count(name) > 1 for name in _SINGLE):
            return 400, "the request has a header twice that it may have once"
        if not _is_accepted(headers.get(b"host", b"").decode("latin-1"), self.settings.hosts):
            return (
                421,
                "unknown host name; if the service is meant to have this name, start it with "
                "--allow-host NAME",
            )
        path = scope["path"]
        if not path.startswith(_NAMES) and not path.isprintable():
            return 400, "the path contains a control character"
        limits = self.limits.find(path or "/", scope["method"])
        tokens = self._tokens(limits)
        if tokens:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            # All of them are compared, so that the time does not depend on which one it is.
            matches = [hmac.compare_digest(given, token.encode()) for token in tokens]
            if scheme.lower() != b"bearer" or not any(matches):
                if limits.write and self.settings.write_token is not None:
                    return 401, "send the token for changes: Authorization: Bearer TOKEN"
                return 401, "send the header Authorization: Bearer TOKEN"
        length = headers.get(b"content-length", b"0")
        # A proxy that goes by the other one would see another request than this service.
        if b"content-length" in headers and b"transfer-encoding" in headers:
            return 400, "the request has both Content-Length and Transfer-Encoding"
        if not length.isdigit() or len(length) > 18:
            return 400, "the header Content-Length is not a number"
        if int(length) > MAX_BODY:
            return 413, f"the body is too large; at most {MAX_BODY:,} bytes are accepted"
        # Browsers let a page of another site send anything but JSON without a preflight request.
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if limits.json and media_type != b"application/json":
            return 415, ""
        # Checked before anything is read: under heavy load, refusals must be cheap.
        if limits.queued and self.engine.full:
            return 503, "too many queries are waiting; retry in a moment"
        return None

    def _tokens(self, limits: Limits) -> list[str]:
        """The tokens of which a request must carry one; none if it needs none."""
        token, write = self.settings.token, self.settings.write_token
        if limits.write and write is not None:
            return [write]
        if not limits.token or token is None:
            return []
        return [token] if write is None else [token, write]

    async def _passed(
        self, scope: Message, body: "_Body", send: Send, has_begun: Callable[[], bool]
    ) -> bool:
        """Run the app; after the body is read, a disconnected client cancels it.

        False if the time is over and the response has not begun.
        """
        until = asyncio.get_running_loop().time() + self.settings.timeout
        complete = asyncio.Event()

        async def receiving() -> Message:
            if complete.is_set():
                # Only a waiter for the end gets here; the watcher below sees it first.
                await asyncio.Event().wait()
            message = await self._bodies.receive(body, until)
            if body.read > MAX_BODY:
                await body.discard()
                # An exception type that readers of bodies do not catch.
                raise HTTPException(413)
            if body.is_complete:
                complete.set()
            return message

        work = asyncio.ensure_future(self.app(scope, receiving, send))

        async def watch() -> None:
            await complete.wait()
            while (await body.receive())["type"] != "http.disconnect":
                pass

        watcher = asyncio.ensure_future(watch())
        both = {work, watcher}
        try:
            # Most routes have a time limit themselves, and more to say about it.
            left = until + _PATIENCE - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(both, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                if not has_begun():
                    return False
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            await work
        except asyncio.CancelledError:
            if not work.cancelled() or not watcher.done():
                raise
        finally:
            watcher.cancel()
            work.cancel()
        return True


def _request_id(scope: Message) -> str:
    """The id of a request: the one that it has, for example from a proxy, or a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else new_request_id()


def _log_line(scope: Message, number: str, status: int, seconds: float) -> str:
    """A request as one line of JSON, in which nothing of it can start another line."""
    value = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": number,
        "client": (scope.get("client") or ("",))[0],
        "method": _method(scope),
        "path": scope["path"][:_LOGGED_PATH],
        "status": status,
        "milliseconds": round(1e3 * seconds, 1),
    }
    return json.dumps(value)


def _is_accepted(host: str, names: tuple[str, ...]) -> bool:
    """Whether a Host header has an accepted name: an IP address, `localhost` or one of `names`.

    Addresses are safe: the page of another site has a name, or its own address.
    """
    if "*" in names:
        return True
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].lower()
    if name == "localhost" or name in (one.lower() for one in names):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class _Body:
    """The body of a request as it is received. `read`: its bytes so far."""

    def __init__(self, scope: Message, receive: Receive) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        self.is_complete = b"transfer-encoding" not in headers and length.strip(b"0") == b""
        self.read = 0
        self._receive = receive
        self._is_announced = b"expect" in headers

    async def receive(self) -> Message:
        message = await self._receive()
        self.read += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.is_complete = True
        return message

    async def discard(self) -> None:
        """Read on for a moment: a client that still sends would miss the response.

        A client that waits for permission to send (Expect: 100-continue) does not get it.
        """
        if self.is_complete or self._is_announced:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.is_complete and self.read < 8 * MAX_BODY:
                    await self.receive()


def _stopping() -> HTTPException:
    return HTTPException(503, "the service is stopping", {"Retry-After": "5"})


class _Bodies:
    """The bodies of all requests that are not answered yet, limited in their sum.

    If they become too large, the one that has waited longest for its client is refused (408), so
    that clients that stop sending cannot lock others out.
    """

    def __init__(self) -> None:
        self._sizes: dict[_Body, int] = {}
        self._size = 0  # their sum
        self._waiting: dict[_Body, asyncio.Timeout] = {}  # for their clients, the longest first
        self._given_up: dict[_Body, int] = {}  # sizes of those refused, but not released yet
        self._is_refusing = False
        self._returning: asyncio.TimerHandle | None = None

    async def receive(self, body: _Body, until: float) -> Message:
        """The next part of a body, at the latest at a time of the event loop."""
        if self._is_refusing:
            raise _stopping()
        try:
            async with asyncio.timeout_at(until) as limit:
                self._waiting[body] = limit
                message = await body.receive()
        except TimeoutError:
            raise _stopping() if self._is_refusing else HTTPException(408) from None
        finally:
            self._waiting.pop(body, None)
        size = len(message.get("body", b""))
        self._sizes[body] = self._sizes.get(body, 0) + size
        self._size += size
        while self._size - sum(self._given_up.values()) > MAX_BODIES:
            if not self._waiting:
                detail = "too many large requests; retry in a moment"
                raise HTTPException(503, detail, {"Retry-After": "1"})
            longest = next(iter(self._waiting))
            self._given_up[longest] = self._sizes.get(longest, 0)
            self._end(longest)
        return message

    def release(self, body: _Body) -> None:
        """Forget a body that is no longer needed; the memory of large ones is returned later."""
        size = self._sizes.pop(body, 0)
        self._size -= size
        self._given_up.pop(body, None)
        if size > LARGE_BODY and self._returning is None:
            loop = asyncio.get_running_loop()
            self._returning = loop.call_later(_RETURN_SECONDS, self._return_memory)

    def _return_memory(self) -> None:
        self._returning = None
        asyncio.get_running_loop().run_in_executor(None, return_freed_memory)

    def refuse(self) -> None:
        """Receive no more (503)."""
        self._is_refusing = True
        for body in list(self._waiting):
            self._end(body)

    def _end(self, body: _Body) -> None:
        self._waiting.pop(body).reschedule(asyncio.get_running_loop().time())


async def _redirect(send: Send, address: str) -> None:
    headers = [(b"location", address.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 308, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def answer_problem(send: Send, status: int, detail: str, patience: int = 1) -> None:
    """Send a problem as the response; `patience`: seconds after which to retry, if busy."""
    body = problem_body(status, detail)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 400:
        headers.append(_CLOSE)  # where the next request begins may be unclear
    if status in (429, 503):
        headers.append((b"retry-after", b"%d" % patience))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _method(scope: Message) -> str:
    """The method as a label, with unknown methods as one: the number of labels must be bounded."""
    known = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"
