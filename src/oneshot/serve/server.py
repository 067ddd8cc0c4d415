"""The server of a service: load a run, listen, and serve until stopped."""

import dataclasses
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import uvicorn

from oneshot.errors import InputError
from oneshot.serve.app import create_app
from oneshot.serve.limits import RouteLimits
from oneshot.serve.middleware import Guard
from oneshot.serve.protocol import Protocol
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

_PATIENCE = 5  # seconds for open requests to finish when the server stops


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
) -> None:
    """Serve a run until the process gets a stop signal; `tell` is called with the address."""
    settings = dataclasses.replace(settings, hosts=(*settings.hosts, host))
    listener = _listen(host, port)
    try:
        service = Service(run, settings, device, changes)
        service.start()
    except BaseException:
        listener.close()
        raise
    try:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}"
        server = _Server(_config(guarded(service)), lambda: tell(address))
        server.run(sockets=[listener])
    finally:
        service.stop()
        listener.close()


@contextmanager
def serving(service: Service, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Run a service in the background while the block runs; yields its address."""
    listener = _listen(host, port)
    ready = threading.Event()
    server = _Server(_config(guarded(service)), ready.set)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    service.start()
    thread.start()
    try:
        while not ready.wait(0.1) and thread.is_alive():
            pass
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        service.stop()
        listener.close()


class _Server(uvicorn.Server):
    """A server that signals when it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()


def _config(app: Any) -> uvicorn.Config:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    # The warnings of uvicorn are about invalid requests, which are answered with a problem.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        http=Protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_PATIENCE,
        backlog=2048,
        lifespan="off",
        ws="none",
    )


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; opened before the run is loaded, which may take long."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
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
