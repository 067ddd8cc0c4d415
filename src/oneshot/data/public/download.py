"""Downloads over HTTPS that resume after an interruption and verify a checksum."""

import hashlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oneshot.errors import InputError
from oneshot.system.files import sync, write_json

ATTEMPTS = 5
PAUSE = 1.0  # seconds before the second attempt; twice as long before each further one
_TIMEOUT = 60
_CHUNK = 1 << 18

_OF_THE_NETWORK = (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError)

Progress = Callable[[int, int], None]
"""Called with the received bytes and the total bytes (0 if unknown)."""


class WrongHashError(InputError):
    """A downloaded file does not have the expected SHA-256. `found`: the one that it has."""

    def __init__(self, url: str, found: str, expected: str) -> None:
        super().__init__(
            f"{url}: wrong checksum: SHA-256 {found} instead of {expected}; the file was removed. "
            "Either the file on the server has changed, or the connection is not trustworthy"
        )
        self.found = found


class _BrokenOffError(Exception):
    """The connection ended before the file did; another attempt may resume."""


def download(
    url: str, path: Path, sha256: str | None = None, progress: Progress | None = None
) -> None:
    """Download a URL to `path`, and verify its checksum if one is given.

    An unfinished download is kept as `path` with the suffix `.part`. The next call resumes it if
    the file on the server is unchanged. Plain HTTP is accepted only from this machine or with a
    checksum, also after a redirection.
    """
    opener = urllib.request.build_opener(_Redirections(sha256 is not None))
    _check_address(url, sha256 is not None)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            _continue(opener, url, part, progress or (lambda *_: None))
            break
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise InputError(
                    f"{url}: the server responded {error.code} {error.reason}; put the data set "
                    "into $ONESHOT_DATA manually"
                ) from error
            failure: Exception = error
        except (_BrokenOffError, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and not isinstance(error, _OF_THE_NETWORK):
                raise  # an error of the local disk: another attempt would fail as well
            failure = error
    else:
        if part.exists() and part.stat().st_size:
            advice = "the received part is kept, and the same command resumes the download"
        else:
            advice = (
                "check the network and try again, or put the data set into $ONESHOT_DATA manually"
            )
        raise InputError(
            f"{url}: download failed after {ATTEMPTS} attempts ({failure}); {advice}"
        ) from failure
    found = checksum(part)
    if sha256 is not None and found != sha256:
        _forget(part)
        raise WrongHashError(url, found, sha256)
    sync(part)
    part.replace(path)
    _about(part).unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_address(url: str, has_checksum: bool) -> None:
    """Raise if what a URL sends could be replaced on the way without being noticed."""
    address = urllib.parse.urlsplit(url)
    is_near = address.hostname in ("127.0.0.1", "::1", "localhost")
    if address.scheme != "https" and not (address.scheme == "http" and (is_near or has_checksum)):
        raise InputError(
            f"{url}: only https is supported (http with a known checksum); download the file "
            "yourself and put the data set into $ONESHOT_DATA"
        )


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows redirections to addresses that a download may start from."""

    def __init__(self, has_checksum: bool) -> None:
        self.has_checksum = has_checksum

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        _check_address(newurl, self.has_checksum)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _continue(
    opener: urllib.request.OpenerDirector, url: str, part: Path, progress: Progress
) -> None:
    """Download the missing part of a file."""
    have, version = _arrived(part, url)
    headers = {"Accept-Encoding": "identity", "User-Agent": "oneshot"}
    if have:
        # With If-Range, the server sends a changed file as a whole.
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    request = urllib.request.Request(url, headers=headers)
    try:
        response = opener.open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing is missing, or the file has become shorter
            if error.headers.get("Content-Range", "").endswith(f"*/{have}"):
                return
            _forget(part)
            raise _BrokenOffError("the file on the server has changed") from error
        raise
    with response:
        is_rest = response.status == 206
        if not is_rest:
            have = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            _forget(part)
            raise _BrokenOffError("the server sent a different range than requested")
        length = int(response.headers.get("Content-Length") or 0)
        total = have + length if length else 0
        tag = response.headers.get("ETag") or ""
        # A weak tag does not guarantee the same bytes.
        version = tag if tag.startswith('"') else response.headers.get("Last-Modified") or ""
        write_json(_about(part), {"url": url, "version": version})
        with part.open("ab" if is_rest else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(have, total)
    if total and have < total:
        raise _BrokenOffError(f"{have:,} of {total:,} bytes received")


def _arrived(part: Path, url: str) -> tuple[int, str]:
    """The received bytes of a download, and the version of the file on the server."""
    try:
        about: dict[str, Any] = json.loads(_about(part).read_text(encoding="utf-8"))
        size = part.stat().st_size
        if about["url"] == url and about["version"]:
            return size, str(about["version"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    _forget(part)
    return 0, ""


def _about(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _about(part).unlink(missing_ok=True)
