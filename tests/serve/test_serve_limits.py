"""Tests of the limits and defaults in the docs, and of what a page of another origin gets."""

import hmac
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer
from tests.support.prose import sentences
from tests.support.services import request, saved_run, wait_for

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from oneshot.cli import app
from oneshot.reasoner.reasoner import Reasoner
from oneshot.serve import limits, middleware, protocol, server
from oneshot.serve.server import serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(saved_run(tmp_path / "run", 8), ServeSettings(queue=2))


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serving(service) as address:
        yield address


def rows_of_limits() -> list[list[str]]:
    rows = (text.split(" | ") for text in sentences(ROOT / "docs" / "serve.md") if " | " in text)
    return [[cell.strip() for cell in row] for row in rows][1:]


def test_the_table_of_limits_is_that_of_the_code(service: Service) -> None:
    wanted = [
        (limits.MAX_QUESTIONS, limits.MAX_STREAMED, limits.MAX_TOP),
        (limits.MAX_PAGE, limits.MAX_EXPLAINED),
        (limits.MAX_FACTS, limits.MAX_NAME, limits.MAX_NEW_NAME),
        (f"{limits.MAX_BODY >> 20} MiB", f"{limits.MAX_BODIES >> 20} MiB"),
        (limits.MAX_PARSED, limits.MAX_SEARCHES),
        (ServeSettings().queue,),
        (ServeSettings().queue,),
        (f"{ServeSettings().timeout:g} s", f"{protocol._HEAD_SECONDS:g} s"),
        ("`application/json`",),
        (ServeSettings().connections,),
        ("no limit",),
    ]
    found = [row[1].partition(", and")[0].split("; ") for row in rows_of_limits()]
    texts = [[f"{one:,}" if isinstance(one, int) else one for one in row] for row in wanted]
    assert found == texts
    config = server._config(service, MagicMock(), has_lifespan=False)
    assert config.timeout_keep_alive == 30
    assert protocol._WRITE_SECONDS == 10


def test_the_options_of_the_command_are_the_settings() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    with group.commands["serve"].make_context("serve", ["run"]) as context:
        given = context.params
    settings = ServeSettings()
    names = ("read_only", "batch_size", "queue", "timeout", "connections", "access_log", "rate")
    assert [given[name] for name in names] == [getattr(settings, name) for name in names]
    assert (given["host"], given["port"]) == ("127.0.0.1", 8000)
    assert (given["batch_wait"], given["grace_period"]) == (1000 * settings.batch_wait, 10)


def test_options_of_the_command_line_have_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[ServeSettings] = []
    monkeypatch.setattr(server, "run_server", lambda *given, **_: found.append(given[3]))
    monkeypatch.setenv("ONESHOT_TOKEN", "read")
    (tmp_path / "write").write_text("write\n")
    options = {
        "--grace-period": "0.5",
        "--timeout": "7",
        "--batch-size": "3",
        "--batch-wait": "20",
        "--queue": "9",
        "--connections": "77",
        "--rate": "2.5",
        "--allow-host": "kg.example.org",
        "--prefix": "/kg/",
        "--labels": str(tmp_path / "labels"),
        "--label-relation": "name",
        "--write-token-file": str(tmp_path / "write"),
    }
    words = [word for option in options.items() for word in option]
    group = typer.main.get_command(app)
    group(["serve", str(tmp_path), *words, "--read-only", "--access-log"], standalone_mode=False)
    assert found == [
        ServeSettings(
            token="read",
            write_token="write",
            read_only=True,
            batch_size=3,
            batch_wait=0.02,
            queue=9,
            timeout=7,
            hosts=("kg.example.org",),
            connections=77,
            grace=0.5,
            access_log=True,
            rate=2.5,
            prefix="/kg",
            labels=tmp_path / "labels",
            label_relation="name",
        )
    ]


def test_too_many_changes_are_refused(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    change = service.live.change

    def held(*arguments: Any) -> Any:
        gate.wait(60)
        return change(*arguments)

    monkeypatch.setattr(service.live, "change", held)
    with ThreadPoolExecutor(2) as pool:
        facts = [{"facts": [[f"n{n}", "next", "link 1"]]} for n in range(3)]
        waiting = [pool.submit(request, f"{url}/v1/facts", one) for one in facts[:2]]
        wait_for(lambda: len(service._changes) == 2)
        refused = request(f"{url}/v1/facts", facts[2])
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "too many changes" in refused.json["detail"]
        gate.set()
        assert [one.result().status for one in waiting] == [200, 200]
    assert "n2" not in service.live.entities


def test_a_page_of_another_origin_cannot_read(url: str) -> None:
    """The browser lets it read only what has a header that permits it, which nothing here has."""
    other = {"Origin": "https://evil.example"}
    asked = {"questions": [{"entity": "link 1", "relation": "next"}]}
    for path, body in (("/v1/relations", None), ("/v1/predict", asked), ("/", None)):
        reply = request(url + path, body, headers=other)
        assert not [name for name in reply.headers if name.lower().startswith("access-control")]
    preflight = {**other, "Access-Control-Request-Method": "POST"}
    reply = request(f"{url}/v1/facts", method="OPTIONS", headers=preflight)
    assert reply.status == 405
    assert not [name for name in reply.headers if name.lower().startswith("access-control")]


def test_tokens_are_compared_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def noting(given: bytes, token: bytes) -> bool:
        compared.append(token)
        return compare(given, token)

    monkeypatch.setattr(middleware.hmac, "compare_digest", noting)
    settings = ServeSettings(token="look", write_token="touch")
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        for given, status in (("look", 200), ("touch", 200), ("x", 401)):
            compared.clear()
            reply = request(f"{url}/metrics", headers={"Authorization": f"Bearer {given}"})
            assert reply.status == status
            assert compared == [b"look", b"touch"]  # both, whichever it is


def test_without_a_calibration_there_are_no_probabilities(tmp_path: Path) -> None:
    reasoner = Reasoner.load(saved_run(tmp_path / "first", 8))
    reasoner.calibration = None
    reasoner.save(tmp_path / "run")
    with serving(Service(tmp_path / "run")) as url:
        asked = {"questions": [{"entity": "link 1", "relation": "next"}]}
        answers = request(f"{url}/v1/predict", asked).json["results"][0]["answers"]
        assert {one["probability"] for one in answers} == {None}
        fact = {"head": "link 1", "relation": "next", "tail": "link 2"}
        assert request(f"{url}/v1/check", fact).json["probability"] is None


def test_a_stream_is_answered_in_batches_on_snapshots(url: str, service: Service) -> None:
    """Facts that change meanwhile count from the next batch on, never within one."""
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            service.live.add([(f"n{number}", "next", "link 1")])
            number += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        asked = [{"entity": "link 1", "relation": "next", "inverse": True}] * 128
        body = request(f"{url}/v1/predict/stream", {"questions": asked, "top": 1000}).body
    finally:
        stop.set()
        thread.join()
    versions = [json.loads(line)["version"] for line in body.splitlines()]
    size = service.settings.batch_size
    for start in range(0, len(versions), size):
        assert len(set(versions[start : start + size])) == 1
    assert versions == sorted(versions)
