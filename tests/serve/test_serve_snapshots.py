"""Tests of what a request sees while others change facts or explain answers."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.samples import chain_world
from tests.support.services import request, rounded, saved_run, wait_for

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from oneshot.config import PredictorConfig
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.serve import engine
from oneshot.serve.server import serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

QUESTION = {"entity": "link 1", "relation": "next"}


class Held:
    """Holds the first forward pass of a service until `go` is set."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        original = service.reasoner.scores

        def scores(batch: Any) -> Any:
            self.begun.set()
            assert self.go.wait(60)
            return original(batch)

        monkeypatch.setattr(service.reasoner, "scores", scores)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    whole = ["sampler.entity_ratio=1.0"]  # every known answer is among the answers
    # A time limit far beyond that of the tests: it must not end what a client has left.
    settings = ServeSettings(batch_size=3, timeout=3600)
    return Service(saved_run(tmp_path / "run", 8), settings, changes=whole)


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serving(service) as address:
        yield address


def known(result: dict[str, Any]) -> int:
    return sum(answer["known"] for answer in result["answers"])


def test_the_version_is_that_of_the_graph_that_answered(
    service: Service, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"questions": [QUESTION] * 20, "top": 1000}
    before = known(request(f"{url}/v1/predict", asked).json["results"][0])
    held = Held(service, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(request, f"{url}/v1/predict", asked)
        assert held.begun.wait(60)
        # A fact is added, and further queries wait, while the first batch of three is answered.
        added = request(f"{url}/v1/facts", {"facts": [["link 1", "next", "new"]]}).json
        assert added == {"added": 1, "version": 1}
        second = pool.submit(request, f"{url}/v1/predict", asked)
        wait_for(lambda: service.engine.waiting == 37)
        held.go.set()
        old, new = first.result().json, second.result().json
    for reply, version in ((old, 0), (new, 1)):
        assert reply["version"] == version
        for result in reply["results"]:
            assert (result["version"], known(result)) == (version, before + version)


def test_explained_answers_are_of_one_version(
    service: Service, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(service, monkeypatch)
    asked = {"questions": [QUESTION] * 5, "explain": True, "top": 2}
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(request, f"{url}/v1/predict", asked)
        assert held.begun.wait(60)
        request(f"{url}/v1/facts", {"facts": [["link 1", "next", "new"]]})
        held.go.set()
        results = reply.result().json["results"]
    assert [result["version"] for result in results] == [0] * 5
    why = request(f"{url}/v1/explain", {**QUESTION, "answer": "new"}).json
    assert (why["version"], why["known"]) == (1, True)
    assert request(f"{url}/v1/entities/new").json["version"] == 1


def test_versions_under_concurrent_changes(url: str) -> None:
    """Each change adds one fact about the entity, so that its known answers tell the version."""
    stop = threading.Event()

    def add() -> int:
        number = 0
        while not stop.is_set():
            fact = [["link 1", "next", f"new {number}"]]
            assert request(f"{url}/v1/facts", {"facts": fact}).json["version"] == number + 1
            number += 1
        return number

    def ask(_: int) -> list[dict[str, Any]]:
        asked = {"questions": [QUESTION] * 4, "top": 1000}
        results: list[dict[str, Any]] = request(f"{url}/v1/predict", asked).json["results"]
        return results

    before = known(ask(0)[0])
    with ThreadPoolExecutor(3) as pool:
        adding = pool.submit(add)
        replies = list(pool.map(ask, range(60)))
        stop.set()
        assert adding.result() > 0
    for results in replies:
        assert len({result["version"] for result in results}) == 1
        assert all(known(result) == before + result["version"] for result in results)


def test_queries_do_not_wait_for_explanations(
    service: Service, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, begun, go = engine.explain, threading.Semaphore(0), threading.Event()

    def held(*arguments: Any, **options: Any) -> Any:
        begun.release()
        assert go.wait(60)
        return original(*arguments, **options)

    monkeypatch.setattr(engine, "explain", held)
    with ThreadPoolExecutor(2) as pool:
        body = {**QUESTION, "answer": "link 3"}
        whys = [pool.submit(request, f"{url}/v1/explain", body) for _ in range(2)]
        assert begun.acquire(timeout=60)
        wait_for(lambda: service.engine.waiting == 1)
        assert request(f"{url}/v1/predict", {"questions": [QUESTION]}).status == 200
        assert not begun.acquire(timeout=0.1)  # one at a time
        go.set()
        assert all(why.result().json["paths"] for why in whys)


def test_an_explanation_ends_when_its_client_leaves(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, begun, ended = engine.explain, threading.Event(), threading.Event()

    def endless(*_: Any, proceed: Any, **__: Any) -> Any:
        begun.set()
        try:
            while True:
                proceed()
        finally:
            ended.set()

    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({**QUESTION, "answer": "link 3"})
    head = f"POST /v1/explain HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    monkeypatch.setattr(engine, "explain", endless)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert begun.wait(60)
    assert ended.wait(60)
    monkeypatch.setattr(engine, "explain", original)
    assert request(f"{url}/v1/explain", {**QUESTION, "answer": "link 3"}).json["paths"]


def test_an_explanation_asks_between_its_steps(service: Service) -> None:
    steps = []
    query = service.reasoner.query("link 1", "next")
    with serving(service):
        future = service.engine.explain(engine.Question(*query), 3, 5, float("inf"))
        found, version = future.result(60)
    assert version == 0
    engine.explain(
        service.reasoner,
        found.batch,
        [3],
        known=found.batch.entities[:0],
        proceed=lambda: steps.append(1),
    )
    assert len(steps) >= 3


def test_a_version_can_be_required(url: str) -> None:
    asked = {"questions": [QUESTION], "min_version": 1}
    reply = request(f"{url}/v1/predict", asked)
    assert (reply.status, reply.headers["retry-after"]) == (409, "1")
    assert "version 0, and 1 was requested" in reply.json["detail"]
    added = request(f"{url}/v1/facts", {"facts": [["link 1", "next", "new"]]}).json
    assert request(f"{url}/v1/predict", asked).json["version"] == added["version"] == 1
    why = {**QUESTION, "answer": "new", "min_version": 2}
    assert request(f"{url}/v1/explain", why).status == 409


def test_who_waits_for_a_version_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(saved_run(tmp_path / "run", 8))
    catch_up, begun, go = service.live.catch_up, threading.Event(), threading.Event()

    def held() -> None:
        begun.set()
        assert go.wait(60)
        catch_up()

    with serving(service) as url, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(service.live, "catch_up", held)
        waiting = pool.submit(
            request, f"{url}/v1/predict", {"questions": [QUESTION], "min_version": 5}
        )
        assert begun.wait(60)
        healthy = pool.submit(request, f"{url}/v1/healthz")
        try:
            assert healthy.result(30).status == 200
        finally:
            go.set()
        assert waiting.result().status == 409


def test_what_has_not_changed_is_not_sent_again(url: str) -> None:
    first = request(f"{url}/v1/entities/link%201")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    again = request(f"{url}/v1/entities/link%201", headers={"If-None-Match": f'"x", W/{tag}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    request(f"{url}/v1/facts", {"facts": [["link 1", "next", "new"]]})
    changed = request(f"{url}/v1/entities/link%201", headers={"If-None-Match": tag})
    assert changed.status == 200
    assert changed.headers["etag"] != tag
    relations = request(f"{url}/v1/relations")
    assert (
        request(f"{url}/v1/relations", headers={"If-None-Match": relations.headers["etag"]}).status
        == 304
    )
    assert request(f"{url}/v1/healthz").headers["cache-control"] == "no-store"


def test_another_process_has_other_tags(tmp_path: Path) -> None:
    """It may have other labels, or other changes in memory."""
    run, tags = saved_run(tmp_path / "run", 8), []
    for _ in range(2):
        with serving(Service(run)) as address:
            tags.append(request(f"{address}/v1/relations").headers["etag"])
    assert tags[0] != tags[1]


def relative_run(path: Path) -> Path:
    """A run whose relations are described by the graph, so that every change affects its scores."""
    shape = PredictorConfig(
        message="nbfnet", relations="relative", num_layers=3, dim=8, gate=False, relation_layers=1
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        predictor = Predictor(shape, 3)
    Reasoner(chain_world(8).graph, PPRSampler(1.0), predictor).save(path)
    return path


@pytest.mark.parametrize("route", ["explain", "check"])
def test_an_explanation_keeps_the_relations_of_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    body: dict[str, Any] = {**QUESTION, "answer": "link 2"}
    if route == "check":
        body = {"head": "link 1", "relation": "next", "tail": "link 2"}
    original, begun, go = engine.explain, threading.Event(), threading.Event()

    def held(*arguments: Any, **options: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return original(*arguments, **options)

    with serving(Service(relative_run(tmp_path / "run"))) as url, ThreadPoolExecutor(1) as pool:

        def asked() -> dict[str, Any]:
            reply: dict[str, Any] = request(f"{url}/v1/{route}", body).json
            reply.pop("milliseconds", None)
            return reply

        expected = asked()
        assert expected["paths"]
        monkeypatch.setattr(engine, "explain", held)
        running = pool.submit(asked)
        assert begun.wait(60)
        facts = [["link 1", "after", f"new {number}"] for number in range(20)]
        assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
        # Another thread gives the predictor the relations of the changed graph.
        assert request(f"{url}/v1/predict", {"questions": [QUESTION]}).json["version"] == 1
        go.set()
        assert running.result(60) == rounded(expected)
        assert asked()["paths"] != expected["paths"]
