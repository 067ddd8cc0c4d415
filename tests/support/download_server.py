"""An HTTP server on the loopback interface that fails in the ways real servers do."""

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; a connection ends after `cut` bytes of an answer, `failures` answers are 503.

    `asked`: (path, Range) of each request. `moved`: redirections, from a path to an address.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.cut: int | None = None
        self.failures = 0
        self.ranges = True
        self.tag = '"1"'
        self.asked: list[tuple[str, str | None]] = []
        self.moved: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append((self.path, wanted))
        if self.path in server.moved:
            self.send_response(302)
            self.send_header("Location", server.moved[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = server.files.get(self.path)
        if content is None or server.failures:
            server.failures -= content is not None
            self.send_error(404 if content is None else 503)
            return
        start = 0
        if wanted and server.ranges and self.headers["If-Range"] == server.tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", server.tag)
        self.end_headers()
        rest = content[start:]
        self.wfile.write(rest if server.cut is None else rest[: server.cut])

    def log_message(self, *_: object) -> None:
        pass
