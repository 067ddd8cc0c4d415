"""The HTTP protocol of uvicorn, with handling of invalid, slow and too many connections."""

import asyncio
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from oneshot.serve.problems import raw_problem

_HEAD_SECONDS = 10.0  # time limit for the head of a request
_WRITE_SECONDS = 10.0  # time limit for a client that does not read on in its response
_PIPELINED = 4  # requests that a client may send before it has the response to the one before
_MAX_HEAD = 1 << 14  # bytes of the head of a request
# A chunk takes the time of many bytes. A body has at most so many, and one more per so many bytes.
_FREE_CHUNKS, _LEAST_CHUNK = 64, 64
# Bytes that are no content (sizes and extensions of chunks): at most so many and those of the body.
_FREE_FRAMING = 1 << 16


class _Connection(h11.Connection):
    """The state of a connection; refuses bodies that cost far more time than their bytes."""

    _received = _content = _chunks = 0

    def receive_data(self, data: bytes) -> None:
        self._received += len(data)
        super().receive_data(data)

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._received = self._content = self._chunks = 0
            if any(name.lower() == b"transfer-encoding" for name, _ in event.headers):
                self._received = len(self.trailing_data[0])  # what has come of the body
        elif isinstance(event, h11.Data):
            self._content += len(event.data)
            self._chunks += event.chunk_start
            if self._chunks > _FREE_CHUNKS + self._content // _LEAST_CHUNK:
                raise h11.RemoteProtocolError("too many small chunks")
        # Now all that was received has been looked at.
        elif event is h11.NEED_DATA and self._received > _FREE_FRAMING + 2 * self._content:
            raise h11.RemoteProtocolError("too many bytes besides the body")
        return event


class Protocol(H11Protocol):
    """One connection, closed with a problem response if it sends no valid, complete request.

    The guard limits the time of a request after its head. Between two requests, uvicorn itself
    closes idle connections. At most `max_connections` are open: a new one replaces the one that has
    waited longest for its client, so that idle connections cannot lock others out. If none waits, a
    new one is refused.
    """

    max_connections = 1000
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _waiting_since = 0.0
    _pipelined = 0  # requests in a row

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = _Connection(h11.SERVER, _MAX_HEAD)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting_since = time.monotonic()
        if len(self.connections) > self.max_connections and not self._make_room():
            self._refuse(503)
            return
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_writing()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._waiting_since = time.monotonic()
        # Otherwise one connection would have the time of many; the client sends the rest again.
        self._pipelined = self._pipelined + 1 if self.conn.trailing_data[0] else 0
        if self._pipelined > _PIPELINED:
            self.transport.close()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_writing()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400)

    @property
    def is_waiting(self) -> bool:
        """Whether the service waits for its client, not the client for the service."""
        return self.flow.write_paused or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _make_room(self) -> bool:
        """Close the other connection that has waited longest; False if none waits."""
        others = (one for one in self.connections if one is not self)
        idle = [one for one in others if isinstance(one, Protocol) and one.is_waiting]
        if not idle:
            return False
        longest = min(idle, key=lambda one: one._waiting_since)
        longest._refuse(408)
        # The transport closes later; until then it must not count, or all would be closed.
        self.connections.discard(longest)
        return True

    def _watch_reader(self, unread: int) -> None:
        """Close the connection if its client reads none of the bytes `unread` for some time."""

        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if left < unread:
                self._watch_reader(left)
            else:
                self.transport.abort()

        self._write_timer = self.loop.call_later(_WRITE_SECONDS, check)

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._refuse, 408)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _refuse(self, status: int) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            cycle = self.cycle
            if cycle is None or cycle.response_complete or not cycle.response_started:
                self.transport.write(raw_problem(status))  # otherwise another response has begun
            self.transport.close()
