"""Tests of the stream of results, one line per query."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.services import request, saved_run, wait_for

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from oneshot.serve.engine import OverloadedError
from oneshot.serve.server import serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(saved_run(tmp_path / "run", 20), ServeSettings(batch_size=4, timeout=5))


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serving(service) as address:
        yield address


def lines(url: str, questions: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    reply = request(f"{url}/v1/predict/stream", {"questions": questions, **options})
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.splitlines()]


def test_more_queries_than_fit_into_a_request(url: str) -> None:
    asked = [{"entity": f"link {n % 20}", "relation": "next"} for n in range(150)]
    asked[70] = {"entity": "nobody", "relation": "next"}
    found = lines(url, asked, top=3)
    assert [one["query"]["entity"] for one in found] == [one["entity"] for one in asked]
    assert found[70]["error"]["status"] == 404
    assert all(one["version"] == 0 for one in found)
    (alone,) = lines(url, asked[70:71])  # a batch without any answer
    assert (alone["error"]["status"], alone["version"]) == (404, 0)
    first = request(f"{url}/v1/predict", {"questions": asked[:20], "top": 3}).json["results"]
    assert [one["answers"] for one in found[:20]] == [one["answers"] for one in first]
    assert all(len(one["answers"]) == 3 for one in found if "error" not in one)


def test_a_stream_with_explanations_has_time_for_each_query(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [{"entity": f"link {n}", "relation": "next"} for n in range(20)]
    sizes, original = [], Service.predict_patiently

    async def predict(self: Service, questions: Any) -> Any:
        sizes.append(len(questions))
        return await original(self, questions)

    monkeypatch.setattr(Service, "predict_patiently", predict)
    found = lines(url, asked, top=1, explain=True)
    assert all("paths" in one["answers"][0] for one in found)
    assert sizes == [1] * len(asked)


def test_a_stream_that_cannot_begin_is_refused(url: str) -> None:
    path = f"{url}/v1/predict/stream"
    asked = [{"entity": "link 1", "relation": "next"}]
    assert request(path, {"questions": []}).status == 422
    assert request(path, {"questions": asked * 10_001}).status == 422
    assert request(path, {"questions": asked, "types": [["nxt", "link 1"]]}).status == 404
    assert request(path, {"questions": asked, "min_version": 7}).status == 409


def test_results_come_before_all_queries_are_answered(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    answers = service.engine._answers
    batches = []

    def held(batch: Any) -> Any:
        batches.append(len(batch))
        if len(batches) == 2:
            gate.wait(60)
        return answers(batch)

    monkeypatch.setattr(service.engine, "_answers", held)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    asked = [{"entity": f"link {n}", "relation": "next"} for n in range(8)]
    body = json.dumps({"questions": asked})
    head = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/predict/stream", body, head)
    reply = connection.getresponse()
    assert json.loads(reply.readline())["query"]["entity"] == "link 0"
    gate.set()
    assert len(reply.read().splitlines()) == 7
    connection.close()


def test_a_busy_service_delays_a_stream(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = service.engine.ask
    refusals = []

    def busy(questions: Any, deadline: float) -> Any:
        if len(refusals) < 2:
            refusals.append(1)
            raise OverloadedError("too many queries are waiting; retry in a moment")
        return ask(questions, deadline)

    monkeypatch.setattr(service.engine, "ask", busy)
    found = lines(url, [{"entity": "link 1", "relation": "next"}])
    assert len(refusals) == 2
    assert found[0]["answers"]


def test_the_rest_of_a_stream_of_a_stopping_service_has_errors(url: str, service: Service) -> None:
    service.engine.refuse()
    found = lines(url, [{"entity": f"link {n}", "relation": "next"} for n in range(9)])
    assert [one["error"]["status"] for one in found] == [503] * 9


def test_a_client_that_leaves_ends_its_stream(url: str, service: Service) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    body = json.dumps({"questions": [{"entity": "link 1", "relation": "next"}] * 10_000})
    head = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/predict/stream", body, head)
    reply = connection.getresponse()
    reply.readline()
    reply.close()
    connection.close()

    def answered() -> float:
        text = service.metrics.text().decode()
        return float(text.split('questions_total{outcome="answered"} ')[1].split()[0])

    seen = [-1.0]

    def is_quiet() -> bool:
        seen.append(answered())
        threading.Event().wait(0.3)
        return answered() == seen[-1]

    wait_for(is_quiet)
    assert seen[-1] < 10_000
