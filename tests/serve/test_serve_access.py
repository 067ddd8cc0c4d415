"""Tests of access control: which paths, hosts and origins reach the service."""

import http.client
import json
import re
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import oneshot
from oneshot.errors import InputError
from oneshot.graph.live.store import STORE
from oneshot.serve import server
from oneshot.serve.limits import Limits, RouteLimits
from oneshot.serve.rate_limit import RateLimit
from oneshot.serve.server import guarded, serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

TOKEN = {"Authorization": "Bearer s3cret"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    run = saved_run(tmp_path_factory.mktemp("access") / "run", 8)
    return Service(run, ServeSettings(token="s3cret", hosts=("KG.example",)))


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with serving(service) as address:
        yield address


@pytest.mark.parametrize("end", ["\n", "\r", "\0", "\x7f", "\u0085", "\u2028"])
@pytest.mark.parametrize("path", ["/v1/healthz", "/metrics", "/v1/relations", "/", "/page/page.js"])
def test_a_path_with_a_control_character_reaches_no_route(url: str, path: str, end: str) -> None:
    """A pattern that ends in `$` also matches before a trailing line break."""
    reply = request(url + path + urllib.parse.quote(end), headers=TOKEN)
    assert reply.status == 400
    assert "control character" in reply.json["detail"]


def test_a_page_of_another_site_cannot_change_facts(url: str, service: Service) -> None:
    facts = json.dumps({"facts": [["from elsewhere", "next", "link 1"]]}).encode()
    for path in ("/v1/facts", "/v1/facts%0A", "/v1/facts%0D", "//v1/facts", "/v1/facts/"):
        for content in ("text/plain", "application/x-www-form-urlencoded", ""):
            headers = {**TOKEN, "Content-Type": content}
            assert request(url + path, facts, headers=headers).status in (400, 404, 415)
    assert "from elsewhere" not in service.live.entities


def test_names_may_have_control_characters(url: str) -> None:
    name = "a\nb\x7f"
    facts = {"facts": [[name, "next", "link 1"]]}
    assert request(f"{url}/v1/facts", facts, headers=TOKEN).status == 200
    path = f"{url}/v1/entities/{urllib.parse.quote(name)}"
    assert request(path, headers=TOKEN).json["entity"] == name
    assert request(path).status == 401


def test_what_is_not_known_needs_the_token(url: str) -> None:
    for path in ("/unknown", "/metrics/", "/v1/nothing", "/V1/healthz"):
        assert request(url + path).status == 401
        assert request(url + path, headers=TOKEN).status == 404
    assert request(f"{url}/v1/healthz", method="PUT").status == 405
    assert request(f"{url}/v1/facts", method="PUT").status == 401


def test_limits_are_those_of_the_whole_path(service: Service) -> None:
    limits = RouteLimits(guarded(service).app.routes)  # type: ignore[attr-defined]
    assert limits.find("/v1/healthz", "GET") == Limits(token=False)
    assert limits.find("/v1/healthz\n", "GET") == Limits()
    assert limits.find("/v1/facts", "POST").json


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("192.0.2.7", 200),  # an address cannot be rebound
        ("[2001:db8::1]", 200),
        ("kg.example", 200),
        ("KG.EXAMPLE:443", 200),
        ("evil.example", 421),
        ("kg.example.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1:80@evil.example", 421),
        ("[::1]evil.example", 421),
        ("localhost:evil", 421),
        ("1.2.3", 421),
    ],
)
def test_hosts(url: str, host: str, status: int) -> None:
    """A page of another site must not reach the service through a host name of its own."""
    reply = request(f"{url}/v1/relations", headers={**TOKEN, "Host": host})
    assert reply.status == status
    if status == 421:
        assert "--allow-host" in reply.json["detail"]


def test_every_address_is_checked_for_its_host(tmp_path: Path) -> None:
    """Also a service that listens on all addresses."""
    run = saved_run(tmp_path / "run", 8)
    command = [sys.executable, "-m", "oneshot", "serve", run, "--port", "0", "--json"]
    command += ["--host", "0.0.0.0", "--allow-host", "kg.example", "--allow-host", "other.example"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["url"].rsplit(":", 1)[1]
        url = f"http://127.0.0.1:{port}/v1/relations"
        facts = {"facts": [["rebound", "next", "link 1"]]}
        for host, status in (("kg.example", 200), ("other.example", 200), ("evil.example", 421)):
            assert request(url, headers={"Host": host}).status == status
        changing = url.replace("relations", "facts")
        assert request(changing, facts, headers={"Host": "evil.example"}).status == 421
        process.terminate()
    assert b"rebound" not in (run / STORE).read_bytes()


def test_any_host_only_if_asked_for(tmp_path: Path) -> None:
    settings = ServeSettings(hosts=("*",))
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        assert request(f"{url}/v1/relations", headers={"Host": "evil.example"}).status == 200


def test_a_token_for_reading_and_one_for_changes(tmp_path: Path) -> None:
    facts = {"facts": [["a", "next", "b"]]}
    reading, writing = ({"Authorization": f"Bearer {token}"} for token in ("look", "touch"))
    settings = ServeSettings(token="look", write_token="touch")
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        for method in ("POST", "DELETE"):
            reply = request(f"{url}/v1/facts", facts, method, headers=reading)
            assert reply.status == 401
            assert "token for changes" in reply.json["detail"]
            assert request(f"{url}/v1/facts", facts, method).status == 401
            assert request(f"{url}/v1/facts", facts, method, headers=writing).status == 200
        for headers, status in ((reading, 200), (writing, 200), ({}, 401)):
            assert request(f"{url}/v1/relations", headers=headers).status == status
            assert request(f"{url}/metrics", headers=headers).status == status
    # Without a token for reading, everyone may read.
    settings = ServeSettings(write_token="touch")
    with serving(Service(saved_run(tmp_path / "other", 8), settings)) as url:
        assert request(f"{url}/v1/relations").status == 200
        assert request(f"{url}/v1/facts", facts).status == 401
        assert request(f"{url}/v1/facts", facts, headers=writing).status == 200


def test_requests_below_a_prefix(tmp_path: Path) -> None:
    settings = ServeSettings(prefix="/kg/v2", token="s3cret")
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        assert url.endswith("/kg/v2")
        root = url.removesuffix("/kg/v2")
        page = request(url)  # follows the redirection to the slash
        assert b"<title>oneshot" in page.body
        assert request(f"{url}/page/page.css").status == 200
        assert request(f"{url}/v1/relations").status == 401
        assert request(f"{url}/v1/relations", headers=TOKEN).status == 200
        assert request(f"{url}/v1/healthz").status == 200
        assert request(f"{url}/openapi.json").json["servers"] == [{"url": "/kg/v2"}]
        for outside in ("/v1/relations", "/", "/kg", "/kg/v2x/v1/relations", "/kg/v22"):
            assert request(root + outside).status == 401
            assert request(root + outside, headers=TOKEN).status == 404
        name = {"facts": [["link 1", "next", "kg/v2"]]}
        assert request(f"{url}/v1/facts", name, headers=TOKEN).status == 200
        assert request(f"{url}/v1/entities/kg/v2", headers=TOKEN).json["entity"] == "kg/v2"
        client = oneshot.Client(url, token="s3cret")
        assert client.relations() == ["next", "after", "before"]


def over(path: Path, target: str, host: str = "localhost") -> tuple[int, bytes]:
    """A request over a Unix socket."""
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("GET", target)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body


def test_a_unix_socket(tmp_path: Path) -> None:
    run, path = saved_run(tmp_path / "run", 8), tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # by a process that was killed
    command = [sys.executable, "-m", "oneshot", "serve", run, "--json", "--unix-socket", path]
    with subprocess.Popen(
        [*command, "--access-log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["url"] == f"unix:{path}"
            status, body = over(path, "/v1/relations")
            assert (status, json.loads(body)["relations"][0]) == (200, "next")
            assert over(path, "/v1/relations", "evil.example")[0] == 421
            # Another service does not take it over.
            with pytest.raises(InputError, match="cannot listen on this socket"):
                server._listen_locally(path)
        finally:
            process.terminate()
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0
    assert [json.loads(line)["status"] for line in log.splitlines()] == [200, 421]
    assert not path.exists()


def test_too_many_requests_from_one_address(tmp_path: Path) -> None:
    settings = ServeSettings(rate=0.5)
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        replies = [request(f"{url}/v1/relations") for _ in range(22)]
        assert [reply.status for reply in replies[:20]] == [200] * 20
        assert replies[-1].status == 429
        assert "fewer per second" in replies[-1].json["detail"]
        assert replies[-1].headers["retry-after"] in ("1", "2")
        for path in ("/v1/healthz", "/v1/readyz", "/", "/page/page.js"):
            assert request(url + path).status == 200
        assert oneshot.Client(url).relations()  # waits


def test_tokens_cannot_be_guessed_at_a_higher_rate(tmp_path: Path) -> None:
    settings = ServeSettings(rate=0.5, token="s3cret")
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        tries = [{"Authorization": f"Bearer {n}"} for n in range(22)]
        statuses = [request(f"{url}/v1/relations", headers=one).status for one in tries]
        assert statuses == [401] * 20 + [429] * 2
        assert request(f"{url}/v1/relations", headers=TOKEN).status == 429


def test_no_header_says_who_the_client_is(tmp_path: Path) -> None:
    """Anyone on this machine could otherwise be many clients."""
    settings = ServeSettings(rate=0.5, token="s3cret")
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        names = ("X-Forwarded-For", "Forwarded", "X-Real-Ip")
        tries = [dict.fromkeys(names, f"for=10.0.0.{n}, 10.0.0.{n}") for n in range(22)]
        statuses = [request(f"{url}/v1/relations", headers=one).status for one in tries]
        assert statuses == [401] * 20 + [429] * 2


def test_rates_are_those_of_each_client() -> None:
    now = [0.0]
    limit = RateLimit(10, clock=lambda: now[0])
    assert [limit.wait("1.2.3.4") for _ in range(20)] == [0.0] * 20
    assert limit.wait("1.2.3.4") == pytest.approx(0.1)
    assert limit.wait("1.2.3.5") == 0
    now[0] += 0.1
    assert limit.wait("1.2.3.4") == 0
    assert limit.wait("1.2.3.4") > 0
    now[0] += 1000
    assert sum(limit.wait("1.2.3.4") == 0 for _ in range(100)) == 20
    # One client has all addresses of an IPv6 network.
    assert sum(limit.wait(f"2001:db8::{n:x}") == 0 for n in range(100)) == 20
    assert limit.wait("2001:db8:0:1::1") == 0
    for number in range(20_000):
        limit.wait(f"10.0.{number // 256}.{number % 256}")
    assert len(limit._clients) <= 10_000
    assert RateLimit(0).wait("1.2.3.4") == 0
    slow = RateLimit(5e-324)
    assert [slow.wait("1.2.3.4") for _ in range(21)] == [0.0] * 20 + [3600.0]


def test_requests_have_an_id(url: str) -> None:
    given = {**TOKEN, "X-Request-Id": "from-a.proxy_1"}
    assert request(f"{url}/v1/relations", headers=given).headers["x-request-id"] == "from-a.proxy_1"
    found = set()
    for odd in ("", "a b", "x" * 65, "<script>"):
        reply = request(f"{url}/v1/nothing", headers={"X-Request-Id": odd})
        found.add(reply.headers["x-request-id"])
    # Also what is no request of HTTP.
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        answered = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answered.startswith(b"HTTP/1.1 400 ")
    found.add(re.findall(rb"X-Request-Id: (\w+)", answered)[0].decode())
    assert len(found) == 5
    assert all(len(one) == 16 for one in found)


def test_the_log_has_one_line_per_request(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", 8)
    command = [sys.executable, "-m", "oneshot", "serve", run, "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, "--access-log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        request(f"{url}/v1/entities/a%0Ab", headers={"X-Request-Id": "seven"})
        request(f"{url}/v1/healthz")
        process.terminate()
        _, log = process.communicate(timeout=120)
    first, second = (json.loads(line) for line in log.splitlines())
    assert (first["id"], first["path"], first["status"]) == ("seven", "/v1/entities/a\nb", 404)
    assert (second["method"], second["path"], second["status"]) == ("GET", "/v1/healthz", 200)
    assert second["client"] == "127.0.0.1"
