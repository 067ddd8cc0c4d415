"""Tests of downloads, against a server on loopback that fails in many ways."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from oneshot.data.public import download as downloads
from oneshot.data.public.download import download
from oneshot.errors import InputError

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; a connection ends after `cut` bytes of an answer, `failures` answers are 503.

    `asked`: (path, Range) of each request.
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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append((self.path, wanted))
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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(downloads, "PAUSE", 0.001)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_is_whole_and_leaves_nothing_else(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    target = tmp_path / "deep" / "file"
    download(f"{server.url}/file", target, SHA256, lambda *now: seen.append(now))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [entry.name for entry in target.parent.iterdir()] == ["file"]


def test_a_broken_connection_goes_on_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.cut = 300_000
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    ranges = [wanted for _, wanted in server.asked]
    assert ranges == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_an_interrupted_download_goes_on_in_the_next_call(server: Server, tmp_path: Path) -> None:
    server.cut = 100_000
    with pytest.raises(InputError, match=r"not reached in 5 attempts .* goes on from there"):
        download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert not (tmp_path / "file").exists()
    server.cut = None
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert server.asked[-1] == ("/file", "bytes=500000-")
    assert (tmp_path / "file").read_bytes() == CONTENT


def stop(*_: int) -> None:
    raise KeyboardInterrupt


def test_a_download_that_was_whole_when_it_was_interrupted(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT[:1000]
    with pytest.raises(KeyboardInterrupt):
        download(f"{server.url}/file", tmp_path / "file", progress=stop)
    download(f"{server.url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT[:1000]
    assert server.asked[-1] == ("/file", "bytes=1000-")


@pytest.mark.parametrize("change", ["tag", "no ranges", "shorter", "other url", "lost note"])
def test_what_has_changed_is_downloaded_anew(server: Server, tmp_path: Path, change: str) -> None:
    url = f"{server.url}/file"
    server.cut = 50_000
    with pytest.raises(InputError):
        download(url, tmp_path / "file")
    server.cut = None
    new = bytes(reversed(CONTENT)) if change != "no ranges" else CONTENT
    server.files["/file"] = new
    if change == "tag":
        server.tag = '"2"'
    elif change == "no ranges":
        server.ranges = False
    elif change == "shorter":  # under the same tag, which a server should not do
        server.files["/file"] = new = new[:1000]
    elif change == "other url":
        url = f"{server.url}/other"
        server.files["/other"] = new
    else:
        (tmp_path / "file.part.json").write_text("{")
    download(url, tmp_path / "file", hashlib.sha256(new).hexdigest())
    assert (tmp_path / "file").read_bytes() == new


def test_a_wrong_checksum_is_an_error_and_the_file_is_removed(
    server: Server, tmp_path: Path
) -> None:
    server.files["/file"] = CONTENT[:-1] + b"!"
    with pytest.raises(InputError, match=f"wrong checksum: SHA-256 .* instead of {SHA256}"):
        download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_recovers_and_one_that_does_not(server: Server, tmp_path: Path) -> None:
    server.failures = 2
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    server.failures = 100
    with pytest.raises(InputError, match=r"not reached in 5 attempts \(.*503"):
        download(f"{server.url}/file", tmp_path / "again")
    with pytest.raises(InputError, match=r"/none: the server says 404 Not Found; put the data set"):
        download(f"{server.url}/none", tmp_path / "none")
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match=r"not reached in 5 attempts \(.*refused.*by hand"):
        download(f"{server.url}/file", tmp_path / "gone")
    with pytest.raises(InputError, match="only http and https"):
        download("file:///etc/passwd", tmp_path / "passwd")


def test_a_fault_of_our_disk_is_not_blamed_on_the_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").mkdir()
    with pytest.raises(IsADirectoryError):
        download(f"{server.url}/file", tmp_path / "file")
    assert len(server.asked) <= 1
