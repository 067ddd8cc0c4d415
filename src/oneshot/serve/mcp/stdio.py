"""The protocol over stdin and stdout, for a client that starts the server as its child process."""

import asyncio
import contextlib
import logging
import os
import queue
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import torch
from mcp.server.stdio import stdio_server

from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.serve.mcp.server import create_server
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_CHUNK = 1 << 16  # bytes
_AHEAD = 64  # messages that are read before they are answered


def run_stdio(
    run: Path,
    settings: ServeSettings,
    device: torch.device,
    changes: Sequence[str] = (),
    tell: Callable[[], None] = lambda: None,
    graph: KnowledgeGraph | None = None,
) -> None:
    """Serve a run until stdin is closed or the process gets a stop signal.

    `tell` is called when the server is ready; `graph`: another graph than that of the run. From now
    on, whatever else this process writes to stdout goes to stderr.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        output = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
    except OSError as error:
        raise InputError("stdout or stderr is closed; serve over HTTP instead (--http)") from error
    service = Service(run, settings, device, changes, graph)
    service.start()
    try:
        tell()
        asyncio.run(_serve(service, output))
    finally:
        service.stop()
        os.close(output)


async def _serve(service: Service, output: int) -> None:
    """Answer messages until there are no more of them, or until a stop signal."""
    serving = asyncio.ensure_future(_session(service, output))
    with _stopping(serving):
        try:
            await asyncio.wait([serving])
        finally:
            service.refuse()
    error = None if serving.cancelled() else serving.exception()
    if error is not None and not _means_gone(error):
        raise error


def _means_gone(error: BaseException) -> bool:
    """Whether an error only means that the client does not read any more."""
    if isinstance(error, BaseExceptionGroup):
        return all(_means_gone(part) for part in error.exceptions)
    return isinstance(error, BrokenPipeError | anyio.BrokenResourceError)


async def _session(service: Service, output: int) -> None:
    server = create_server(service)
    lines: Any = _Lines(_STDIN)
    writer: Any = _Writer(output)
    async with stdio_server(lines, writer) as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


@contextlib.contextmanager
def _stopping(task: "asyncio.Task[None]") -> Iterator[None]:
    """Let stop signals cancel a task while the block runs."""
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(task.cancel)

    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Lines:
    """The lines of a file descriptor.

    They are read in a daemon thread: a read that waits cannot be cancelled, and must not keep the
    process from ending.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        threading.Thread(target=self._read, name="oneshot-stdin", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._queue.get()) is not None:
            self._room.release()
            yield line.decode(errors="replace")

    def _read(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            pieces: list[bytes] = []
            while chunk := self._chunk():
                *ends, rest = chunk.split(b"\n")
                for end in ends:
                    self._put(b"".join([*pieces, end]))
                    pieces = []
                pieces.append(rest)
            if any(pieces):
                self._put(b"".join(pieces))
            self._put(None)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK)
        except OSError:  # closed, or a terminal that has gone
            return b""

    def _put(self, line: bytes | None) -> None:
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._queue.put_nowait, line)


class _Writer:
    """Writes text to a file descriptor, in a daemon thread, for the same reason as `_Lines`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="oneshot-stdout", daemon=True).start()

    async def write(self, text: str) -> None:
        written = self._loop.create_future()
        self._queue.put((text.encode(errors="replace"), written))
        await written

    async def flush(self) -> None:
        """Nothing: there is no buffer."""

    def _work(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            while True:
                content, written = self._queue.get()
                error = None
                try:
                    while content:
                        content = content[os.write(self._descriptor, content) :]
                except OSError as failure:
                    error = failure
                self._loop.call_soon_threadsafe(_settle, written, error)


def _settle(future: "asyncio.Future[None]", error: Exception | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
