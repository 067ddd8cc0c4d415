"""A stand-in of the Hugging Face Hub: the requests of uploads and downloads of small files."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secretsecretsecret"


class Hub(ThreadingHTTPServer):
    """`repositories`: content by path, by name; `private`: of each; `authorizations`: as sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.authorizations: set[str] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, name: str) -> str:
        """The number of the state of a repository."""
        digest = hashlib.sha1()
        for path, content in sorted(self.repositories[name].items()):
            digest.update(path.encode() + b"\0" + content)
        return digest.hexdigest()


@contextmanager
def hub_server() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *values: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b"")

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        sent = self.headers.get("Authorization", "")
        hub.authorizations.add(sent)
        if path == "/api/repos/create":
            if sent != f"Bearer {TOKEN}":
                return self._send(401, {"error": "Invalid credentials"})
            asked = json.loads(body)
            owner = asked.get("organization") or "someone"
            name = f"{owner}/{asked['name']}"
            # Earlier versions of the client send `private`.
            hub.private[name] = asked.get("private", asked.get("visibility") == "private")
            hub.repositories.setdefault(name, {".gitattributes": b""})
            return self._send(200, {"url": f"{hub.address}/{name}", "name": name, "id": name})
        if path == "/api/validate-yaml":
            return self._send(200, {"errors": [], "warnings": []})
        found = re.match(r"(?:/api/models)?/([^/]+/[^/]+)(?:/(\w+)/([^/]+)(?:/(.+))?)?$", path)
        if found is None or found[1] not in hub.repositories:
            return self._send(404, {"error": "Repository not found"}, "RepoNotFound")
        name, action, revision, rest = found.groups()
        files = hub.repositories[name]
        if revision not in (None, "main", hub.commit(name)):
            return self._send(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        if action == "preupload":
            listed = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in listed
            ]
            return self._send(200, {"files": modes})
        if action == "commit":
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            commit = hub.commit(name)
            url = f"{hub.address}/{name}/commit/{commit}"
            return self._send(200, {"success": True, "commitOid": commit, "commitUrl": url})
        if action == "tree":
            listing = [
                {"type": "file", "path": p, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                for p, c in files.items()
            ]
            return self._send(200, listing)
        if action == "resolve":
            if rest not in files:
                return self._send(404, {"error": "Entry not found"}, "EntryNotFound")
            return self._send(200, files[rest])
        siblings = [{"rfilename": p} for p in files]
        about = {"id": name, "sha": hub.commit(name), "siblings": siblings, "private": False}
        return self._send(200, about)

    def _send(self, status: int, value: Any, code: str = "") -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        if isinstance(value, bytes):
            name = "/".join(unquote(self.path).split("/")[1:3])
            self.send_header("ETag", f'"{hashlib.sha1(value).hexdigest()}"')
            self.send_header("X-Repo-Commit", self.server.commit(name))
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", value["error"])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
