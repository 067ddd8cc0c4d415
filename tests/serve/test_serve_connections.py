"""Tests of connections: slow, idle and too many of them do not take the service down."""

import asyncio
import errno
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.support.services import request, saved_run, wait_for

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import uvicorn
from uvicorn.server import ServerState

from oneshot.serve import middleware, protocol
from oneshot.serve.limits import MAX_BODY
from oneshot.serve.server import AcceptErrors, serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

ASKED = {"questions": [{"entity": "link 1", "relation": "next"}]}
TOKEN = {"Authorization": "Bearer s3cret"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    run = saved_run(tmp_path_factory.mktemp("connections") / "run", 8)
    with serving(Service(run, ServeSettings(token="s3cret", connections=20))) as address:
        yield address


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of all that comes until the service closes the connection."""
    whole = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


POST = "POST /v1/facts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LARGE = f"Content-Length: {MAX_BODY + 1}\r\n"
STALLED = {
    "a large body, no token": (POST + LARGE, "", 401),
    "a large body": (POST + "Authorization: Bearer s3cret\r\n" + LARGE, "", 413),
    "half a body, no token": (POST + "Content-Length: 100\r\n", "{", 401),
    "chunks, no token": (POST + "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n", 401),
    "chunks, no route": ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n", "", 421),
    "a body of GET": (
        "GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n",
        "",
        200,
    ),
    "waits for permission": (POST + "Expect: 100-continue\r\nContent-Length: 9\r\n", "", 401),
}


@pytest.mark.parametrize("what", STALLED)
def test_a_body_that_does_not_come_is_not_waited_for(
    url: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "_DISCARD_SECONDS", 0.1)
    head, body, expected = STALLED[what]
    with connect(url) as connection:
        connection.sendall(f"{head}\r\n{body}".encode())
        status, headers, _ = answer(connection)
    assert status == expected
    assert headers["connection"] == "close"


@pytest.mark.parametrize("kind", ["length", "chunks"])
@pytest.mark.parametrize("is_allowed", [False, True], ids=["no token", "too large"])
def test_a_dripping_body_is_cut_off(
    url: str, kind: str, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that keep coming do not prolong the time for the rest of a refused body."""
    monkeypatch.setattr(middleware, "_DISCARD_SECONDS", 0.5)
    token = "Authorization: Bearer s3cret\r\n" if is_allowed else ""
    # Of the announced length, or by what has come in chunks.
    started, drip = "", b" "
    framing = LARGE
    if kind == "chunks":
        framing, drip = "Transfer-Encoding: chunked\r\n", b"1\r\n \r\n"
        monkeypatch.setattr(middleware, "MAX_BODY", 1000)
        started = "7d0\r\n" + 2000 * " " + "\r\n"
    closed = threading.Event()
    with connect(url) as connection, ThreadPoolExecutor(1) as pool:
        connection.sendall(f"{POST}{token}{framing}\r\n{started}".encode())

        def keep_dripping() -> int:
            for count in range(3000):  # 30 s, if it is not cut off
                try:
                    connection.sendall(drip)
                except OSError:
                    return count
                if closed.wait(0.01):
                    return count
            return 3000

        dripping = pool.submit(keep_dripping)
        first = connection.recv(1 << 16)
        with suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass
        closed.set()
        assert dripping.result() < 3000
    assert first.startswith(b"HTTP/1.1 413" if is_allowed else b"HTTP/1.1 401")
    assert b"connection: close" in first.lower()


CHUNKED = POST + "Authorization: Bearer s3cret\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [CHUNKED.encode() + 1000 * b"1\r\n \r\n", (CHUNKED + 40 * f"1;{'a' * 4000}\r\n \r\n").encode()],
    ids=["many chunks", "long extensions"],
)
def test_chunks_that_cost_more_than_their_bytes_are_refused(url: str, sent: bytes) -> None:
    status, headers = 400, {"connection": "close"}
    with connect(url) as connection:
        with suppress(OSError):  # it may be closed before all is sent
            connection.sendall(sent)
        with suppress(ConnectionResetError):  # then the response may be lost
            status, headers, _ = answer(connection)
    assert (status, headers["connection"]) == (400, "close")


@pytest.mark.parametrize("size", [100, 5000])
def test_a_body_in_chunks(url: str, size: int) -> None:
    fact = ["link 1", "next", "link 2"]
    body = json.dumps({"facts": [fact] * 3000}).encode()
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    with connect(url) as connection:
        connection.sendall(CHUNKED.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").encode())
        for part in [*parts, b""]:
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        assert answer(connection)[0] == 200


def test_the_sum_of_bodies_is_limited(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has waited longest is refused; a request that goes on is answered."""
    monkeypatch.setattr(middleware, "MAX_BODIES", 1500)
    started = POST + "Authorization: Bearer s3cret\r\nContent-Length: 900\r\n\r\n" + 400 * " "
    opened = [connect(url) for _ in range(3)]
    try:
        for connection in opened:
            connection.sendall(started.encode())
            assert request(f"{url}/v1/healthz").status == 200  # in this order
        body = {**ASKED, "top": 3, "types": [["next", "link 2"]] * 8}
        whole = json.dumps(body) + 300 * " "
        assert 300 < len(whole) < 700
        with connect(url) as other:
            head = POST.replace("facts", "predict") + "Authorization: Bearer s3cret\r\n"
            head += f"Connection: close\r\nContent-Length: {len(whole)}\r\n\r\n"
            other.sendall((head + whole).encode())
            assert answer(other)[0] == 200
        status, headers, _ = answer(opened[0])
        assert (status, headers["connection"]) == (408, "close")
        opened[2].sendall(500 * b" ")  # no JSON, but complete
        assert opened[2].recv(1 << 16).startswith(b"HTTP/1.1 400")
    finally:
        for connection in opened:
            connection.close()


def test_only_a_few_requests_are_pipelined(url: str) -> None:
    asked = "GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for count, answered in ((3, 3), (20, protocol._PIPELINED + 1)):
        with connect(url) as connection:
            last = asked.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
            connection.sendall((asked * (count - 1) + last).encode())
            whole = b""
            with suppress(ConnectionResetError):
                while part := connection.recv(1 << 16):
                    whole += part
        assert whole.count(b"HTTP/1.1 200") == answered


@pytest.mark.parametrize("name", ["Content-Type", "Host", "Authorization"])
def test_a_header_that_is_there_twice_is_refused(url: str, name: str) -> None:
    head = f"{POST}Authorization: Bearer s3cret\r\n{name}: application/json\r\n"
    with connect(url) as connection:
        connection.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        status, headers, _ = answer(connection)
    assert (status, headers["connection"]) == (400, "close")


def test_a_refused_request_with_a_whole_body_keeps_its_connection(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    for _ in range(3):
        connection.request("POST", "/v1/facts", json.dumps({"facts": []}))
        reply = connection.getresponse()
        assert (reply.status, reply.headers["connection"]) == (401, None)
        reply.read()
    connection.close()


def test_a_request_with_two_lengths_is_refused(url: str) -> None:
    """A proxy that goes by the other one would take its rest for the next request."""
    hidden = "GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = f"0\r\n\r\n{hidden}"
    head = f"{POST}Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n"
    with connect(url) as connection:
        connection.sendall(f"{head}Authorization: Bearer s3cret\r\n\r\n{body}".encode())
        status, headers, answered = answer(connection)
    assert (status, headers["connection"]) == (400, "close")
    assert b"HTTP/1.1" not in answered


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        f"{POST}Authorization: Bearer s3cret\r\n{LARGE[:-4]}0\r\n\r\n{{".encode(),
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_idle_connections_lock_nobody_out(url: str, sent: bytes) -> None:
    opened = []
    try:
        for _ in range(60):  # three times as many as may be open
            opened.append(connect(url))
            opened[-1].sendall(sent)
        assert request(f"{url}/v1/predict", ASKED, headers=TOKEN).status == 200
        if not sent:  # what is sent to a closed connection resets it
            status, headers, body = answer(opened[0])
            assert (status, headers["connection"]) == (408, "close")
            assert json.loads(body)["status"] == 408
    finally:
        for connection in opened:
            connection.close()


def test_connections_that_are_answered_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(connections=3))
    original, begun, go = service.reasoner.scores, threading.Event(), threading.Event()

    def held(batch: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return original(batch)

    with serving(service) as url, ThreadPoolExecutor(3) as pool:
        monkeypatch.setattr(service.reasoner, "scores", held)
        asked = [pool.submit(request, f"{url}/v1/predict", ASKED)]
        assert begun.wait(60)
        asked += [pool.submit(request, f"{url}/v1/predict", ASKED) for _ in range(2)]
        wait_for(lambda: service.engine.waiting == 2)
        with connect(url) as connection:
            status, headers, _ = answer(connection)
        assert (status, headers["retry-after"]) == (503, "1")
        go.set()
        assert [one.result().status for one in asked] == [200] * 3


def test_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_WRITE_SECONDS", 0.05)

    left = [100_000] * 2

    async def paused(resumes: bool) -> bool:
        """Whether a connection is cut off whose client does not read, or reads on."""
        cut, transport = asyncio.Event(), MagicMock()
        transport.abort = cut.set
        transport.get_write_buffer_size = lambda: left.pop() if left else 0
        server = ServerState()
        made = protocol.Protocol(uvicorn.Config(MagicMock()), server, {})
        made.connection_made(transport)
        assert made.is_waiting
        made.pause_writing()
        assert made.is_waiting
        if resumes:
            made.resume_writing()
            return made._write_timer is not None
        await asyncio.wait_for(cut.wait(), 60)
        return True

    assert asyncio.run(paused(resumes=False))
    assert not left
    assert not asyncio.run(paused(resumes=True))
    # One that reads slowly is not cut off as long as something is left.
    left[:] = [5, 5, 10, 20, 30]
    assert asyncio.run(paused(resumes=False))
    assert not left


def test_accept_errors_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    try:
        handler = AcceptErrors()
        failed = OSError(24, "Too many open files")
        with caplog.at_level(logging.ERROR):
            for _ in range(1000):
                handler(loop, {"message": "socket.accept() out of resource", "exception": failed})
            assert len(caplog.records) == 1
            assert "Too many open files" in caplog.text
            handler(loop, {"message": "other", "exception": ValueError("unexpected")})
            assert "unexpected" in caplog.text
    finally:
        loop.close()


def test_the_server_reports_accept_errors_and_accepts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, [1]
    with serving(Service(saved_run(tmp_path / "run", 8))) as url, caplog.at_level(logging.ERROR):
        port = int(url.rpartition(":")[2])

        def full(self: socket.socket) -> Any:
            if self.getsockname()[1] == port and failures:
                failures.pop()
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", full)
        # It waits in the system until the server accepts again, a second later.
        assert request(f"{url}/v1/healthz").status == 200
    assert not failures
    assert [record.name for record in caplog.records] == ["oneshot.serve"]
    assert "connections cannot be accepted ([Errno 24] Too many open files)" in caplog.text
