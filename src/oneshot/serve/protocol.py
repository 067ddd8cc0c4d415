"""The HTTP protocol of uvicorn, with handling of invalid, slow and too many connections."""

import asyncio
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from oneshot.serve.problems import raw_problem

_HEAD_SECONDS = 10.0  # time limit for the head of a request
_WRITE_SECONDS = 10.0  # time limit for a client that does not read its response


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
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(_WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_writing()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400)

    @property
    def is_waiting(self) -> bool:
        """Whether the service waits for its client, not the client for the service."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

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
