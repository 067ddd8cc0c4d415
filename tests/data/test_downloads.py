"""Tests of downloads, against a server on loopback that fails in many ways."""

import hashlib
from pathlib import Path

import pytest
from tests.support.download_server import CONTENT, SHA256, Server

from oneshot.data.public.download import download
from oneshot.errors import InputError


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
    with pytest.raises(InputError, match=r"failed after 5 attempts .* resumes the download"):
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
    with pytest.raises(InputError, match=r"download failed after 5 attempts \(.*503"):
        download(f"{server.url}/file", tmp_path / "again")
    with pytest.raises(InputError, match=r"/none: the server responded 404 Not Found; put"):
        download(f"{server.url}/none", tmp_path / "none")
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match=r"download failed after 5 attempts \(.*refused.*manually"):
        download(f"{server.url}/file", tmp_path / "gone")
    with pytest.raises(InputError, match="only https is supported"):
        download("file:///etc/passwd", tmp_path / "passwd")


def test_plain_http_needs_a_checksum(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"http://192\.0\.2\.1/x: only https is supported"):
        download("http://192.0.2.1/x", tmp_path / "x")  # an address for documentation
    # Neither does a redirection lead there.
    server.moved = {"/moved": "http://192.0.2.1/x", "/near": "/file"}
    with pytest.raises(InputError, match=r"http://192\.0\.2\.1/x: only https is supported"):
        download(f"{server.url}/moved", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    download(f"{server.url}/near", tmp_path / "x", SHA256)


def test_a_fault_of_our_disk_is_not_blamed_on_the_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").mkdir()
    with pytest.raises(IsADirectoryError):
        download(f"{server.url}/file", tmp_path / "file")
    assert len(server.asked) <= 1
