"""The server of a service: load a run, listen, and serve until stopped."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import math
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import uvicorn

from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.serve.app import create_app
from oneshot.serve.limits import RouteLimits
from oneshot.serve.middleware import Guard, access
from oneshot.serve.protocol import Protocol
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

log = logging.getLogger("oneshot.serve")

_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 128  # connections that are accepted before any of them is counted
_OTHER_FILES = 128  # open files besides connections
_ACCEPT_LOG_SECONDS = 60.0  # between two messages about connections that cannot be accepted
_FAREWELL_SECONDS = 2.0  # for refusals after the grace period to be sent
_HOST_NAME = re.compile(r"[\w.-]+|\[?[\da-f]*:[\da-f]*:[\da-f:.]*\]?", re.ASCII | re.IGNORECASE)


def guarded(service: Service) -> Guard:
    """The complete ASGI app of a service, including the guard."""
    app = create_app(service)
    limits = RouteLimits(app.routes)
    return Guard(app, limits, service.settings, service.metrics, service.engine)


def run_server(
    run: Path,
    host: str,
    port: int,
    settings: ServeSettings,
    device: torch.device,
    changes: Sequence[str] = (),
    tell: Callable[[str], None] = lambda address: None,
    graph: KnowledgeGraph | None = None,
    app: Callable[[Service], Guard] | None = None,
    unix_socket: Path | None = None,
) -> None:
    """Serve a run until the process gets a stop signal; `tell` is called with the address.

    `graph`: another graph than that of the run. `app`: another app than the REST API and the page,
    with a lifespan. `unix_socket`: a socket to listen on instead of host and port.
    """
    _check_names(settings, host)
    settings = dataclasses.replace(settings, hosts=(*settings.hosts, host))
    listener = _listen(host, port) if unix_socket is None else _listen_locally(unix_socket)
    try:
        service = Service(run, settings, device, changes, graph)
        service.start()
        # What is loaded stays. Otherwise each collection of garbage would look at all of it, and no
        # thread runs meanwhile: a body of many small parts would cost ten times as much.
        gc.collect()
        gc.freeze()
    except BaseException:
        listener.close()
        if unix_socket is not None:
            unix_socket.unlink(missing_ok=True)
        raise
    try:
        if unix_socket is None:
            name = f"[{host}]" if ":" in host else host
            address = f"http://{name}:{listener.getsockname()[1]}{settings.prefix}"
        else:
            address = f"unix:{unix_socket}"
        server = _Server(service, lambda: tell(address), app and app(service))
        server.run(sockets=[listener])
    finally:
        service.stop()
        gc.unfreeze()
        listener.close()
        if unix_socket is not None:
            unix_socket.unlink(missing_ok=True)


@contextmanager
def serving(
    service: Service, host: str = "127.0.0.1", port: int = 0, app: Guard | None = None
) -> Iterator[str]:
    """Run a service in the background while the block runs; yields its address.

    `app`: as in `run_server`.
    """
    listener = _listen(host, port)
    ready = threading.Event()
    server = _Server(service, ready.set, app)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    service.start()
    thread.start()
    try:
        while not ready.wait(0.1) and thread.is_alive():
            pass
        yield f"http://{host}:{listener.getsockname()[1]}{service.settings.prefix}"
    finally:
        server.should_exit = True
        thread.join()
        service.stop()
        listener.close()


class _Server(uvicorn.Server):
    """A server that signals when it listens, and stops in order."""

    def __init__(
        self, service: Service, listening: Callable[[], None], app: Guard | None = None
    ) -> None:
        guard = guarded(service) if app is None else app
        super().__init__(_config(service, guard, has_lifespan=app is not None))
        self._service, self._listening, self._guard = service, listening, guard

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal. uvicorn would raise it again and end the process before it is done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests finish; refuse those that are not done after the grace period."""
        loop = asyncio.get_running_loop()
        refusal = loop.call_later(self._service.settings.grace, self._refuse)
        try:
            await super().shutdown(sockets)
        finally:
            refusal.cancel()

    def _refuse(self) -> None:
        self._service.refuse()
        self._guard.refuse()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        await super().startup(sockets)
        for listener in sockets or ():
            # Connections that wait in the system; asyncio has set the number it accepts at once.
            listener.listen(_BACKLOG)
        self._listening()


class AcceptErrors:
    """The exception handler of an event loop that reports failing accepts once in a while.

    Without free file descriptors, the loop would report thousands of them per second.
    """

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "accept" not in str(context.get("message", "")):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _ACCEPT_LOG_SECONDS
            log.error("connections cannot be accepted (%s)", context.get("exception"))


def _connections(wanted: int) -> int:
    """The number of connections that the limit of open files allows; raises it if possible."""
    try:
        import resource
    except ImportError:  # not on this system
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _ACCEPTED_AT_ONCE + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        wanted = max(min(wanted, soft - _ACCEPTED_AT_ONCE - _OTHER_FILES), 16)
    return wanted


def _config(service: Service, guard: Guard, has_lifespan: bool) -> uvicorn.Config:
    class Limited(Protocol):
        max_connections = _connections(service.settings.connections)

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if service.settings.access_log:
        access.setLevel(logging.INFO)
        if not access.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(message)s"))
            access.addHandler(handler)
            access.propagate = False
    grace = service.settings.grace + _FAREWELL_SECONDS
    # The warnings of uvicorn are about invalid requests, which are answered with a problem.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return uvicorn.Config(
        guard,
        http=Limited,
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        # Otherwise a header of the request would decide which client the rate limit counts.
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(grace) if math.isfinite(grace) else None,
        backlog=_ACCEPTED_AT_ONCE,
        lifespan="on" if has_lifespan else "off",
        ws="none",
    )


def _check_names(settings: ServeSettings, host: str) -> None:
    """Raise an error for names in options that no request can have."""
    for name in settings.hosts:
        if name != "*" and not _HOST_NAME.fullmatch(name):
            raise InputError(f"--allow-host: {name!r} is not a host name such as kg.example.org")
    if not host:
        raise InputError("--host: must be an address or a name; 0.0.0.0 is all addresses")
    if {".", ".."} & set(settings.prefix.split("/")):  # clients resolve them
        raise InputError(f"--prefix: {settings.prefix!r} is not a path such as /kg")


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; opened before the run is loaded, which may take long."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol, asyncio sets TCP_NODELAY: head and body of a response are two writes.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        said = getattr(error, "strerror", None) or error
        raise InputError(
            f"{host}:{port}: cannot listen on this address ({said}); see --host and --port"
        ) from error
    return listener


def _listen_locally(path: Path) -> socket.socket:
    """A listening Unix socket. One that a killed process has left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        said = error.strerror or error
        raise InputError(
            f"{path}: cannot listen on this socket ({said}); see --unix-socket"
        ) from error
    return listener


def _is_served(path: Path) -> bool:
    """Whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True
