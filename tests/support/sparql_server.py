"""A SPARQL endpoint on the loopback interface: Oxigraph behind Python's HTTP server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Endpoint(ThreadingHTTPServer):
    """Answers queries to `store`, a store of pyoxigraph.

    `cap`: the number of results after which a response ends, as public endpoints have it.
    `failures`: the statuses of the next responses. `authorization`: the required header.
    `ignores_offset`: every page is the first. `asked`: the queries. `authorizations`: the headers.
    `moved`: the address of a redirection.
    """

    daemon_threads = True

    def __init__(self, store: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.store = store
        self.cap: int | None = None
        self.failures: list[int] = []
        self.authorization: str | None = None
        self.ignores_offset = False
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.moved: str | None = None
        self.raw: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/query"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        self._answer(urlsplit(self.path).query)

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _answer(self, text: str) -> None:
        server = self.server
        query = parse_qs(text)["query"][0]
        server.asked.append(query)
        server.authorizations.append(self.headers["Authorization"])
        if server.failures:
            self._send(server.failures.pop(0), b"busy", {"Retry-After": "0"})
        elif server.moved is not None:
            self._send(302, b"", {"Location": f"{server.moved}?{text}"})
        elif server.authorization not in (None, self.headers["Authorization"]):
            self._send(401, b"no")
        elif server.raw is not None:
            self._send(200, server.raw)
        else:
            try:
                self._send(200, self._evaluated(query))
            except SyntaxError as error:
                self._send(400, str(error).encode())

    def _evaluated(self, query: str) -> bytes:
        import pyoxigraph

        if self.server.ignores_offset:
            query = query.partition("OFFSET")[0]
        found = self.server.store.query(query)
        if isinstance(found, pyoxigraph.QueryTriples):
            return bytes(found.serialize(format=pyoxigraph.RdfFormat.N_TRIPLES))
        table = json.loads(found.serialize(format=pyoxigraph.QueryResultsFormat.JSON))
        table["results"]["bindings"] = table["results"]["bindings"][: self.server.cap]
        return json.dumps(table).encode()

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def sparql_endpoint(store: Any) -> Iterator[Endpoint]:
    """A running endpoint; stopped at the end of the block."""
    with Endpoint(store) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()
