"""Middleware: checks of every request before a route gets it, and headers of every response.

It checks the token, the host name and the size of the body, and it cancels a request whose client
has disconnected. It is plain ASGI, so that nothing is buffered.
"""

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from oneshot.serve.engine import Engine
from oneshot.serve.limits import MAX_BODY, RouteLimits
from oneshot.serve.metrics import Metrics
from oneshot.serve.problems import MEDIA_TYPE, problem_body
from oneshot.serve.settings import ServeSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

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


_NAMES = "/v1/entities/"  # followed by a name, which may contain any character
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

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        status = 500
        begun = False

        async def sending(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                if refusal[0] == 413:
                    await _drained(receive)
                await _answer(sending, *refusal, self.engine.patience)
            else:
                await self._passed(scope, receive, sending)
                if not begun:
                    status = _GONE
        except Exception:
            if not begun:  # otherwise it is answered and counted already
                raise
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(route, _method(scope), status, time.monotonic() - started)

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        """The problem for which a request is refused, or None."""
        headers = dict(scope["headers"])
        if not _is_accepted(headers.get(b"host", b"").decode("latin-1"), self.settings.hosts):
            return (
                421,
                "unknown host name; if the service is meant to have this name, start it with "
                "--allow-host NAME",
            )
        path = scope["path"]
        if not path.startswith(_NAMES) and not path.isprintable():
            return 400, "the path contains a control character"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18:
            return 400, "the header Content-Length is not a number"
        if int(length) > MAX_BODY:
            return 413, f"the body is too large; at most {MAX_BODY:,} bytes are accepted"
        limits, token = self.limits.find(path, scope["method"]), self.settings.token
        if token is not None and limits.token:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given, token.encode()):
                return 401, "send the header Authorization: Bearer TOKEN"
        # Browsers let a page of another site send anything but JSON without a preflight request.
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if limits.json and media_type != b"application/json":
            return 415, ""
        # Checked before anything is read: under heavy load, refusals must be cheap.
        if limits.queued and self.engine.full:
            return 503, "too many queries are waiting; retry in a moment"
        return None

    async def _passed(self, scope: Message, receive: Receive, send: Send) -> None:
        """Run the app; after the body is read, a disconnected client cancels it."""
        read = 0
        until = asyncio.get_running_loop().time() + self.settings.timeout
        complete = asyncio.Event()

        async def receiving() -> Message:
            nonlocal read
            if complete.is_set():
                # Only a waiter for the end gets here; the watcher below sees it first.
                await asyncio.Event().wait()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, headers={"Connection": "close"}) from None
            read += len(message.get("body", b""))
            if read > MAX_BODY:
                if message.get("more_body", False):
                    await _drained(receive)
                # An exception type that readers of bodies do not catch.
                raise HTTPException(413, headers={"Connection": "close"})
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                complete.set()
            return message

        work = asyncio.ensure_future(self.app(scope, receiving, send))

        async def watch() -> None:
            await complete.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        watcher = asyncio.ensure_future(watch())
        try:
            await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            await work
        except asyncio.CancelledError:
            if not work.cancelled() or not watcher.done():
                raise
        finally:
            watcher.cancel()
            work.cancel()


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


async def _drained(receive: Receive) -> None:
    """Discard the body for a while: a client that still sends would miss the response."""
    read = 0
    while read < 8 * MAX_BODY:
        message = await receive()
        read += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


async def _answer(send: Send, status: int, detail: str, patience: int) -> None:
    body = problem_body(status, detail)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"%d" % patience))
    if status == 413:
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _method(scope: Message) -> str:
    """The method as a label, with unknown methods as one: the number of labels must be bounded."""
    known = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"
