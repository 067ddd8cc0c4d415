"""The HTTP protocol of uvicorn, with handling of invalid and slow requests."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from oneshot.serve.problems import raw_problem

_HEAD_SECONDS = 10.0  # time limit for the head of a request


class Protocol(H11Protocol):
    """One connection, closed with a problem response if it sends no valid, complete request.

    The guard limits the time of a request after its head. Between two requests, uvicorn itself
    closes idle connections.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400)

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_HEAD_SECONDS, self._refuse, 408)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(raw_problem(status))
            self.transport.close()
