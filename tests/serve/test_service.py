"""Tests of the service over HTTP: what it answers, what it refuses, and how."""

import http.client
import json
import math
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Command, listing
from tests.support.samples import chain_world
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from oneshot.graph.live.store import STORE
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.run import Run
from oneshot.samplers import FittedSampler, Sampler
from oneshot.serve import app, engine, middleware, protocol
from oneshot.serve import service as service_module
from oneshot.serve.limits import LARGE_BODY, MAX_BODY, MAX_ERRORS, MAX_SUGGESTED
from oneshot.serve.pages import PAGE
from oneshot.serve.server import serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

QUESTION = {"entity": "link 1", "relation": "after"}


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("serve") / "run")


@pytest.fixture(scope="module")
def service(run_path: Path) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_BATCH_SECONDS", 1e9)  # batches are as large on a slow machine
        yield Service(run_path)


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with serving(service) as address:
        yield address


def refused(reply: Any, status: int) -> dict[str, Any]:
    """The problem of a refusal, which is whole and tells nothing of the inside."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = reply.json
    assert (problem["status"], problem["title"]) == (status, HTTPStatus(status).phrase)
    assert problem["detail"]
    assert not re.search(r"Traceback|File |\.py|/tmp|/home|site-packages", reply.body.decode())
    return problem


def test_answers_are_those_of_the_reasoner(url: str, run_path: Path) -> None:
    reasoner = Reasoner.load(run_path)
    questions = [QUESTION, {"entity": "link 4", "relation": "before", "inverse": True}]
    reply = request(f"{url}/v1/predict", {"questions": questions, "top": 7})
    assert reply.status == 200
    first, second = reply.json["results"]
    expected = [reasoner.predict("link 1", "after", top=7)]
    expected.append(reasoner.predict("link 4", "before", inverse=True, top=7))
    for result, found in zip((first, second), expected, strict=True):
        wanted = json.loads(json.dumps(found.as_dict()))
        assert result["query"] == wanted["query"]
        assert result["subgraph"] == wanted["subgraph"]
        assert [a["entity"] for a in result["answers"]] == [a.entity for a in found]
        for answer, other in zip(result["answers"], wanted["answers"], strict=True):
            assert answer["score"] == pytest.approx(other["score"], rel=1e-4, abs=1e-5)
            assert answer["known"] == other["known"]
            assert "paths" not in answer
        steps = {"waiting", "updating", "sampling", "reasoning", "ranking", "batch"}
        assert set(result["milliseconds"]) == steps
    assert first["milliseconds"]["batch"] == 2  # answered together
    less = {"questions": [QUESTION], "exclude_known": True, "top": 30}
    answers = request(f"{url}/v1/predict", less).json["results"][0]["answers"]
    assert not any(answer["known"] for answer in answers)


@pytest.mark.parametrize("path", ["predict", "predict/stream"])
def test_facts_of_the_graph_have_probability_1(url: str, path: str) -> None:
    """Also a fact that has just been added, and no other."""
    fact = ["link 3", "after", "link 9"]
    asked = [
        {"entity": "link 3", "relation": "after"},
        {"entity": "link 9", "relation": "after", "inverse": True},
    ]
    for options in ({}, {"explain": True, "min_probability": 0.0001}):
        body = {"questions": asked, "top": 30, **options}
        found: list[tuple[bool | None, bool | None]] = []
        for change in (None, "facts", "facts/remove"):
            if change is not None:
                assert request(f"{url}/v1/{change}", {"facts": [fact]}).status == 200
            content = request(f"{url}/v1/{path}", body).body
            if path == "predict":
                results = json.loads(content)["results"]
            else:
                results = [json.loads(line) for line in content.splitlines()]
            answers = [answer for result in results for answer in result["answers"]]
            assert all(answer["known"] == (answer["probability"] == 1.0) for answer in answers)
            assert any(answer["known"] for answer in answers)
            tails, heads = (
                {one["entity"]: one["known"] for one in result["answers"]} for result in results
            )
            found.append((tails.get("link 9"), heads.get("link 3")))
        assert found[1] == (True, True)
        assert True not in (*found[0], *found[2])


def test_a_run_with_a_fitted_sampler_is_served_and_counts_new_facts(tmp_path: Path) -> None:
    path = saved_run(tmp_path / "run", sampler=FittedSampler(0.2, keep_unreachable=False))
    ask = {"questions": [QUESTION], "top": 7, "explain": True}
    service = Service(path)
    with serving(service) as url:
        before = request(f"{url}/v1/predict", ask).json["results"][0]
        added = [["link 9", "after", "link 20"], ["link 12", "after", "link 20"]]
        assert request(f"{url}/v1/facts", {"facts": added}).status == 200
        after = request(f"{url}/v1/predict", ask).json["results"][0]
    expected = Reasoner.load(path).predict("link 1", "after", top=7)  # with the added facts
    assert [a["entity"] for a in after["answers"]] == [a.entity for a in expected]
    scores = [answer["score"] for answer in after["answers"]]
    assert scores == pytest.approx([a.score for a in expected], rel=1e-4, abs=1e-5)
    assert before["answers"] != after["answers"]
    assert any(answer["paths"] for answer in after["answers"])


def test_answers_by_probability_and_type(url: str, run_path: Path) -> None:
    reasoner = Reasoner.load(run_path)
    every = reasoner.predict("link 1", "after", top=30)
    ask = {"questions": [{"entity": "link 1", "relation": "after"}], "top": 30}
    least = sorted(a.probability or 0.0 for a in every)[len(every) // 2]
    few = request(f"{url}/v1/predict", {**ask, "min_probability": least}).json["results"][0]
    assert 0 < len(few["answers"]) < len(every)
    assert all(answer["probability"] >= least for answer in few["answers"])
    kind = ["next", "link 4"]
    typed = request(f"{url}/v1/predict", {**ask, "types": [kind]}).json["results"][0]
    assert {a["entity"] for a in typed["answers"]} <= {"link 3"}
    assert "message" not in typed
    for wrong, status in (
        ({"min_probability": 2}, 422),
        ({"types": [["next"]]}, 422),
        ({"types": [kind] * 9}, 422),
        ({"types": [["nxt", "link 4"]]}, 404),
        ({"types": [["next", "lnk 4"]]}, 404),
    ):
        assert request(f"{url}/v1/predict", {**ask, **wrong}).status == status, wrong


def test_answers_are_explained_on_the_subgraph_they_were_found_in(
    url: str, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasoner = Reasoner.load(run_path)
    sample, sampled = Sampler.sample, []

    def counting(self: Sampler, graph: Any, queries: Any, *arguments: Any) -> Any:
        sampled.append(len(queries))
        return sample(self, graph, queries, *arguments)

    questions = [QUESTION, {"entity": "link 4", "relation": "before", "inverse": True}]
    body = {"questions": questions, "top": 12, "explain": True}
    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "sample", counting)
        results = request(f"{url}/v1/predict", body).json["results"]
    assert sampled == [2]
    for question, result in zip(questions, results, strict=True):
        assert ["paths" in answer for answer in result["answers"]] == [True] * 10 + [False] * 2
        for answer in result["answers"][:10]:
            why = reasoner.explain(**question, answer=answer["entity"]).as_dict()
            assert len(answer["paths"]) == len(why["paths"])
            for path, expected in zip(answer["paths"], why["paths"], strict=True):
                assert path["steps"] == expected["steps"]
                assert path["weight"] == pytest.approx(expected["weight"], rel=1e-3, abs=1e-5)


def test_answers_with_their_paths(url: str) -> None:
    body = {"questions": [QUESTION], "top": 2, "explain": True}
    result = request(f"{url}/v1/predict", body).json["results"][0]
    for answer in result["answers"]:
        for path in answer["paths"]:
            assert path["steps"][0]["source"] == "link 1"
            assert path["steps"][-1]["target"] == answer["entity"]
    assert result["milliseconds"]["explaining"] > 0
    why = request(f"{url}/v1/explain", {**QUESTION, "answer": "link 3", "drawing": True}).json
    assert why["answer"] == "link 3"
    assert len(why["charts"]) == 2
    for svg in (why["drawing"], *why["charts"]):
        assert svg.startswith("<svg")
        assert "<style" not in svg
    assert 'data-entity="link 3" role="button" tabindex="0"' in why["drawing"]
    plain = request(f"{url}/v1/explain", {**QUESTION, "answer": "link 3", "paths": 1}).json
    assert "drawing" not in plain
    assert len(plain["paths"]) == 1


def test_explanations_that_would_take_too_long_are_refused_at_once(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.engine, "_explaining_pace", 8.0)  # seconds, of 30
    body = {"questions": [QUESTION] * 4, "top": 2, "explain": True}
    started = time.monotonic()
    problem = refused(request(f"{url}/v1/predict", body), 504)
    assert "the explanations of 8 answers would exceed the time limit" in problem["detail"]
    assert time.monotonic() - started < 5
    body = {"questions": [QUESTION], "top": 2, "explain": True}
    assert request(f"{url}/v1/predict", body).status == 200


def test_names_and_facts_around(url: str) -> None:
    found = request(f"{url}/v1/entities?search=LINK_2&limit=4").json["entities"]
    assert found[0] == "link 2"
    assert len(found) == 4
    assert request(f"{url}/v1/entities?search=lnik 12".replace(" ", "%20")).json["entities"]
    assert len(request(f"{url}/v1/entities").json["entities"]) == 10
    assert request(f"{url}/v1/relations").json["relations"] == ["next", "after", "before"]
    around = request(f"{url}/v1/entities/link%203").json
    assert around["entity"] == "link 3"
    assert ["link 3", "next", "link 4"] in around["facts"]
    assert around["total"] == len(around["facts"])
    few = request(f"{url}/v1/entities/link%203?limit=2").json
    assert (len(few["facts"]), few["total"]) == (2, around["total"])
    # Page by page, all of them.
    pages = [
        request(f"{url}/v1/entities/link%203?limit=2&offset={start}").json["facts"]
        for start in range(0, around["total"] + 2, 2)
    ]
    assert [fact for page in pages for fact in page] == around["facts"]
    assert pages[-1] == []


def test_a_new_entity_is_asked_about_at_once(url: str) -> None:
    name = "a/b?c#d é\n"
    facts = [[name, "next", "link 5"], ["link 4", "next", name], [name, "next", "link 5"]]
    assert request(f"{url}/v1/facts", {"facts": facts}).json["added"] == 2
    asked = {"questions": [{"entity": name, "relation": "next"}], "top": 30}
    answers = request(f"{url}/v1/predict", asked).json["results"][0]["answers"]
    assert [a["entity"] for a in answers if a["known"]] == ["link 5"]
    place = urllib.parse.quote(name, safe="")
    assert len(request(f"{url}/v1/entities/{place}").json["facts"]) == 2
    assert name in request(f"{url}/v1/entities?search=a/b").json["entities"]
    assert request(f"{url}/v1/facts", {"facts": facts}, "DELETE").json["removed"] == 2
    result = request(f"{url}/v1/predict", asked).json["results"][0]
    assert result["answers"] == []
    assert "add one first" in result["message"]
    assert request(f"{url}/v1/facts", {"facts": facts[:1]}, "DELETE").json["removed"] == 0


def test_a_problem_lists_a_few_of_many_errors(url: str) -> None:
    questions = [{"entity": 5, "relation": "next"}] * 64
    errors = refused(request(f"{url}/v1/predict", {"questions": questions}), 422)["errors"]
    assert [one["pointer"] for one in errors] == [
        f"/questions/{number}/entity" for number in range(MAX_ERRORS)
    ]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/predict", {"questions": [{"entity": "lnk 1", "relation": "next"}]}, 404),
        ("/v1/predict", {"questions": [{"entity": "link 1", "relation": "nxt"}]}, 404),
        ("/v1/predict", {"questions": []}, 422),
        ("/v1/predict", {"questions": [QUESTION] * 65}, 422),
        ("/v1/predict", {"questions": [QUESTION], "top": 0}, 422),
        ("/v1/predict", {"questions": [QUESTION], "top": "5"}, 422),
        ("/v1/predict", {"questions": [QUESTION], "typ": 5}, 422),
        ("/v1/predict", {"questions": [{"entity": "", "relation": "next"}]}, 422),
        ("/v1/predict", b"{", 400),
        ("/v1/predict", b"\xff", 400),
        ("/v1/explain", {**QUESTION, "answer": "nobody"}, 404),
        ("/v1/facts", {"facts": [["a", "b"]]}, 422),
        ("/v1/facts", {"facts": [["a", "nxt", "b"]]}, 404),
        ("/v1/facts", {"facts": [["a", "next", "b"]] * 10_001}, 422),
        ("/v1/facts", {"facts": [["a", "next", "x" * 5000]]}, 422),
        ("/v1/facts", b'{"facts": [["a", "next", "\\ud800"]]}', 422),
        ("/v1/entities/nobody", None, 404),
        ("/v1/entities?limit=0", None, 422),
        ("/v1/nothing", None, 404),
        ("/v1/relations/", None, 404),
        ("/v1/predict", b"[" * 1_000_000, 400),
        ("/v1/predict", b'{"questions": [], "top": ' + b"9" * 9000 + b"}", 400),
        ("/page/..%2fengine.py", None, 404),
        ("/page/engine.py", None, 404),
    ],
)
def test_what_is_refused(url: str, path: str, body: Any, status: int) -> None:
    refused(request(url + path, body), status)


@pytest.mark.parametrize("path", ["/", "/reference", "/v1/healthz", "/v1/readyz"])
def test_probes_may_ask_for_the_head_alone(url: str, path: str) -> None:
    reply = request(url + path, method="HEAD")
    assert reply.status == 200
    assert not reply.body


def test_a_bad_query_does_not_refuse_the_others(url: str) -> None:
    unknown = [{"entity": "lnik 12", "relation": "next"}, {"entity": "link 1", "relation": "nxt"}]
    asked = {"questions": [QUESTION, *unknown, QUESTION], "top": 3}
    first, second, third, last = request(f"{url}/v1/predict", asked).json["results"]
    assert len(first["answers"]) == len(last["answers"]) == 3
    for result, question in zip((second, third), unknown, strict=True):
        assert result["query"] == question
        assert (result["answers"], result["error"]["status"]) == ([], 404)
        assert "unknown" in result["error"]["detail"]
        assert result["version"] == first["version"]
    assert "link 12" in second["error"]["nearest"]
    # If all are bad, the request is.
    problem = refused(request(f"{url}/v1/predict", {"questions": unknown}), 404)
    assert "link 12" in problem["nearest"]


def test_refusals_help(url: str) -> None:
    asked = {"questions": [{"entity": "lnik 12", "relation": "next"}]}
    problem = refused(request(f"{url}/v1/predict", asked), 404)
    assert "link 12" in problem["nearest"]
    assert "did you mean" in problem["detail"]
    problem = refused(request(f"{url}/v1/predict", {"questions": [QUESTION], "top": 0}), 422)
    assert problem["errors"][0]["pointer"] == "/top"
    odd = {"questions": [{**QUESTION, "a/b~c": 1}]}
    problem = refused(request(f"{url}/v1/predict", odd), 422)
    assert problem["errors"][0]["pointer"] == "/questions/0/a~1b~0c"
    problem = refused(request(f"{url}/v1/entities?limit=0"), 422)
    assert problem["errors"][0]["parameter"] == "limit"
    reply = request(f"{url}/v1/facts", method="PUT")
    refused(reply, 405)
    assert reply.headers["allow"] == "DELETE, POST"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_taken(url: str, kind: str) -> None:
    """What a page elsewhere can send from a browser without asking changes nothing."""
    facts = {"facts": [["from elsewhere", "next", "link 1"]]}
    problem = refused(request(f"{url}/v1/facts", facts, headers={"Content-Type": kind}), 415)
    assert "application/json" in problem["detail"]
    refused(request(f"{url}/v1/entities/from%20elsewhere"), 404)
    asked = {"questions": [QUESTION]}
    given = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert request(f"{url}/v1/predict", asked, headers=given).status == 200


def test_too_large_requests_are_not_read(url: str) -> None:
    refused(request(f"{url}/v1/facts", b"x" * (MAX_BODY + 1)), 413)
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)

    def endless() -> Iterator[bytes]:
        for _ in range(MAX_BODY // 1000 + 10):
            yield b" " * 1000

    connection.request("POST", "/v1/facts", endless(), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 413
    connection.close()


def test_a_large_body_is_parsed_beside_the_event_loop(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, threads = json.loads, []

    def noting(text: Any, *arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(text, *arguments, **options)

    unknown = {f"key {number}": number for number in range(20_000)}
    body = json.dumps({"questions": [QUESTION], **unknown}).encode()
    monkeypatch.setattr("oneshot.serve.app.json.loads", noting)
    reply = request(f"{url}/v1/predict", body)
    monkeypatch.undo()
    assert len(refused(reply, 422)["errors"]) == 20
    assert len(threads) == 1
    assert "AnyIO worker thread" in threads[0]


def test_a_new_name_is_neither_too_long_nor_blank(url: str) -> None:
    facts = {"facts": [["x" * 1025, "next", "link 1"]]}
    problem = refused(request(f"{url}/v1/facts", facts), 422)
    assert "1,025 characters; at most 1,024" in problem["detail"]
    blank = {"facts": [["link 1", "next", " \t"]]}
    assert "is blank" in refused(request(f"{url}/v1/facts", blank), 422)["detail"]
    assert request(f"{url}/v1/facts", facts, "DELETE").json["removed"] == 0


def test_a_faulty_predictor_is_no_secret_told(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("/home/secret.py is broken")

    monkeypatch.setattr(service.reasoner, "scores", fail)
    refused(request(f"{url}/v1/predict", {"questions": [QUESTION]}), 500)
    monkeypatch.undo()
    assert request(f"{url}/v1/predict", {"questions": [QUESTION]}).status == 200


def test_state_and_metrics(url: str) -> None:
    assert request(f"{url}/v1/healthz").json == {"status": "ok"}
    ready = request(f"{url}/v1/readyz").json
    assert (ready["status"], ready["relations"]) == ("ready", 3)
    request(f"{url}/v1/predict", {"questions": [QUESTION]})
    reply = request(f"{url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    line = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
    lines = reply.body.decode().splitlines()
    assert all(text.startswith("# ") or line.fullmatch(text) for text in lines)
    values = dict(text.rsplit(" ", 1) for text in lines if not text.startswith("#"))
    assert float(values['oneshot_questions_total{outcome="answered"}']) > 0
    assert float(values['oneshot_step_seconds_sum{step="sampling"}']) > 0
    count = values["oneshot_batch_questions_count"]
    assert values['oneshot_batch_questions_bucket{le="+Inf"}'] == count
    assert float(values["oneshot_graph_facts"]) == ready["facts"]


class Links(HTMLParser):
    """What a page loads or leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]


@pytest.mark.parametrize("path", ["/", "/reference"])
def test_pages_need_nothing_from_elsewhere(url: str, path: str) -> None:
    reply = request(url + path)
    assert reply.status == 200
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    page = Links()
    page.feed(reply.body.decode())
    assert page.found
    for link in page.found:
        # Relative, so that they work below any prefix.
        assert not link.startswith("/")
        assert "//" not in link
        if not link.startswith("#"):
            assert request(urllib.parse.urljoin(url + path, link)).status == 200, link
    if path == "/reference":
        routes = request(f"{url}/openapi.json").json["paths"]
        assert all(route in reply.body.decode() for route in routes)
        anchors = [link[1:] for link in page.found if link.startswith("#")]
        assert all(f'id="{anchor}"' in reply.body.decode() for anchor in anchors)


def test_scripts_load_nothing_from_elsewhere(url: str) -> None:
    for name in PAGE:
        text = request(f"{url}/page/{name}").body.decode()
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_questions_that_come_together_are_answered_together(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, begun, go = service.reasoner.scores, threading.Event(), threading.Event()

    def held(batch: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return original(batch)

    monkeypatch.setattr(service.reasoner, "scores", held)

    def ask(number: int) -> int:
        asked = {"questions": [{"entity": f"link {number}", "relation": "next"}]}
        result = request(f"{url}/v1/predict", asked).json["results"][0]
        return int(result["milliseconds"]["batch"])

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, 0)
        assert begun.wait(60)
        others = pool.map(ask, range(1, 4))  # which come while the first is answered
        wait_for(lambda: service.engine.waiting == 3)
        go.set()
        assert (first.result(), *others) == (1, 3, 3, 3)


def test_a_token_a_host_and_read_only(tmp_path: Path) -> None:
    settings = ServeSettings(token="s3cret", read_only=True, hosts=("127.0.0.1",))
    with serving(Service(saved_run(tmp_path / "run", 8), settings)) as url:
        reply = request(f"{url}/v1/relations")
        refused(reply, 401)
        assert reply.headers["www-authenticate"] == "Bearer"
        for wrong in ("Bearer s3cre", "Basic s3cret", "Bearer s3crét"):
            given = {"Authorization": wrong.encode().decode("latin-1")}
            refused(request(f"{url}/v1/relations", headers=given), 401)
        refused(request(f"{url}/metrics"), 401)
        token = {"Authorization": "bearer s3cret"}
        assert request(f"{url}/v1/relations", headers=token).status == 200
        assert request(f"{url}/v1/readyz").status == request(f"{url}/").status == 200
        facts = {"facts": [["a", "next", "b"]]}
        refused(request(f"{url}/v1/facts", facts, headers=token), 403)
        refused(request(f"{url}/v1/relations", headers={**token, "Host": "evil.example"}), 421)


def test_out_of_time_and_overloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(queue=2, timeout=1.0))
    original = service.reasoner.scores

    def slow(batch: Any) -> Any:
        time.sleep(1.5)
        return original(batch)

    with serving(service) as url:
        monkeypatch.setattr(service.reasoner, "scores", slow)
        asked = {"questions": [{"entity": "link 1", "relation": "next"}]}
        with ThreadPoolExecutor(12) as pool:
            replies = list(pool.map(lambda _: request(f"{url}/v1/predict", asked), range(12)))
        assert {reply.status for reply in replies} == {503, 504}
        for reply in replies:
            refused(reply, reply.status)
            if reply.status == 503:
                assert reply.headers["retry-after"] == "1"
        monkeypatch.undo()
        deadline = time.monotonic() + 60
        while request(f"{url}/v1/predict", asked).status != 200:
            assert time.monotonic() < deadline


def test_an_asker_who_leaves_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(batch_size=1))
    original, go = service.reasoner.scores, threading.Event()
    asked_for = []

    def slow(batch: Any) -> Any:
        asked_for.append(int(batch.queries[0, 0]))
        assert go.wait(60)
        return original(batch)

    def gone() -> int:
        """How many of those in the queue have left."""
        return sum(item.future.cancelled() for item in list(service.engine._questions))

    with serving(service) as url:
        monkeypatch.setattr(service.reasoner, "scores", slow)
        host, port = url.removeprefix("http://").split(":")
        for entity in range(4):
            body = json.dumps({"questions": [{"entity": f"link {entity}", "relation": "next"}]})
            head = (
                f"POST /v1/predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            )
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                wait_for(lambda n=entity: asked_for and service.engine.waiting == n)
            wait_for(lambda n=entity: gone() == n)
        go.set()
        wait_for(lambda: service.engine.waiting == 0)
        assert request(f"{url}/v1/predict", {"questions": [QUESTION]}).status == 200
        assert asked_for == [0, 1]  # those who left before their turn cost nothing


def test_who_sends_too_slowly_is_not_waited_for(tmp_path: Path) -> None:
    with serving(Service(saved_run(tmp_path / "run", 8), ServeSettings(timeout=0.3))) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST /v1/predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99\r\n"
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
        # Nor one who always sends a little.
        with socket.create_connection((host, int(port)), timeout=0.05) as connection:
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
            started, is_closed = time.monotonic(), False
            while not is_closed and time.monotonic() < started + 60:
                try:
                    connection.sendall(b" ")
                    assert connection.recv(100).startswith(b"HTTP/1.1 408")
                    is_closed = True
                except TimeoutError:
                    pass
                except ConnectionError:  # closed just before the byte, which lost the response
                    is_closed = True
            assert is_closed


def test_who_does_not_speak_http_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_HEAD_SECONDS", 0.2)
    host, port = url.removeprefix("http://").split(":")
    sent = {b"GARBAGE\r\n\r\n": 400, b"GET / HTTP/1.1\r\nHost: loc": 408, b"": 408}
    for text, status in sent.items():
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(text)
            head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(
                b"\r\n\r\n"
            )
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"application/problem+json" in head
        assert json.loads(body)["status"] == status
    # Neither a kept connection nor a second request is taken for one that never begins.
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    for _ in range(2):
        connection.request("GET", "/v1/healthz")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        time.sleep(0.3)
    connection.close()


def test_facts_from_the_command_line_count_at_once(run: Command, tmp_path: Path) -> None:
    run_path = saved_run(tmp_path / "run", 8)
    with serving(Service(run_path)) as url:
        for name in ("first", "second", "third"):
            assert (
                run("facts", run_path, "add", name, "next", "link 1", "--json").json["added"] == 1
            )
            if name == "first":
                asked = {"questions": [{"entity": name, "relation": "next"}]}
                result = request(f"{url}/v1/predict", asked).json["results"][0]
                assert [a["known"] for a in result["answers"] if a["entity"] == "link 1"] == [True]
            elif name == "second":
                assert request(f"{url}/v1/entities?search=sec").json["entities"] == [name]
            else:
                assert request(f"{url}/v1/readyz").json["version"] == 3


def test_another_graph_is_served_in_memory(tmp_path: Path) -> None:
    run_path = saved_run(tmp_path / "run", 8)
    before = listing(run_path)
    with serving(Service(run_path, graph=chain_world(20).graph)) as url:
        assert request(f"{url}/v1/readyz").json["entities"] == 20
        asked = {"questions": [{"entity": "link 15", "relation": "next"}]}
        assert request(f"{url}/v1/predict", asked).json["results"][0]["answers"]
        added = {"facts": [["new", "next", "link 15"]]}
        assert request(f"{url}/v1/facts", added).status == 200
        assert request(f"{url}/v1/readyz").json["entities"] == 21
    assert listing(run_path) == before


def test_facts_that_cannot_be_kept(tmp_path: Path) -> None:
    run_path = saved_run(tmp_path / "run", 8)
    facts = {"facts": [["a", "next", "link 1"]]}
    asked = {"questions": [{"entity": "link 1", "relation": "next"}]}
    with serving(Service(run_path, ServeSettings(timeout=3.0))) as url:
        # While another process writes, changes wait, and nobody else does.
        with sqlite3.connect(run_path / STORE, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            refused(request(f"{url}/v1/facts", facts), 504)
            assert request(f"{url}/v1/predict", asked).status == 200
            assert request(f"{url}/v1/entities/link%201").status == 200
            other.execute("ROLLBACK")
        other.close()
        deadline = time.monotonic() + 60
        while request(f"{url}/v1/entities/a").status != 200:
            assert time.monotonic() < deadline
        (run_path / STORE).rename(run_path / "moved")
        reply = request(f"{url}/v1/facts", {"facts": [["b", "next", "link 1"]]})
        refused(reply, 503)
        assert reply.headers["retry-after"]
        refused(request(f"{url}/v1/entities/b"), 404)


def test_a_read_only_service_writes_nothing(tmp_path: Path) -> None:
    run_path = saved_run(tmp_path / "run", 8)

    def files() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in run_path.iterdir() if file.is_file()}

    before = files()
    with serving(Service(run_path, ServeSettings(read_only=True))) as url:
        assert request(f"{url}/v1/predict", {"questions": [QUESTION]}).status == 200
        assert request(f"{url}/v1/readyz").json["read_only"]
        assert files() == before
        # Changes of other processes count, in a store that was not there before.
        live = Run(run_path).live_graph()
        live.add([("a", "next", "b")])
        assert request(f"{url}/v1/entities/a").json["facts"] == [["a", "next", "b"]]
        live.close()
    # A process that may write has put away what SQLite shares between processes.
    Run(run_path).live_graph().close()
    before = files()
    assert [name for name in before if name.startswith(STORE)] == [STORE]
    with serving(Service(run_path, ServeSettings(read_only=True))) as url:
        assert request(f"{url}/v1/entities/a").json["facts"] == [["a", "next", "b"]]
        assert request(f"{url}/v1/predict", {"questions": [QUESTION]}).status == 200
        assert files() == before  # not even a file for shared memory (-shm)
    assert files() == before
    with serving(Service(run_path, ServeSettings(read_only=True))) as url:
        live = Run(run_path).live_graph()
        live.add([("c", "next", "b")])
        assert request(f"{url}/v1/entities/c").json["facts"] == [["c", "next", "b"]]
        live.close()
        assert request(f"{url}/v1/readyz").json["version"] == 2


def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    run_path = saved_run(tmp_path / "run", 8)
    token = tmp_path / "token"
    token.write_text("abc\n")
    command = [sys.executable, "-m", "oneshot", "serve", run_path, "--port", "0", "--json"]
    command += ["--token-file", token]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert request(f"{url}/v1/relations").status == 401
        given = {"Authorization": "Bearer abc"}
        assert request(f"{url}/v1/relations", headers=given).status == 200
        facts = {"facts": [["stopped", "next", "link 1"]]}
        assert request(f"{url}/v1/facts", facts, headers=given).status == 200
        process.terminate()
        assert process.wait(timeout=120) == 0
    # The store was closed: all is in one file.
    assert [file.name for file in run_path.glob(f"{STORE}*")] == [STORE]


@pytest.mark.parametrize("what", ["query", "explanation", "change"])
def test_what_is_not_done_when_the_service_stops_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(grace=0.1))
    begun, go = threading.Event(), threading.Event()

    def held(*_: Any, **__: Any) -> Any:
        begun.set()
        assert go.wait(60)
        raise ValueError("too late")

    bodies = {
        "query": ("predict", {"questions": [QUESTION] * 30}),
        "explanation": ("explain", {**QUESTION, "answer": "link 2"}),
        "change": ("facts", {"facts": [["a", "next", "b"]]}),
    }
    path, body = bodies[what]
    with ThreadPoolExecutor(2) as pool, serving(service) as url:
        monkeypatch.setattr(service.reasoner, "scores", held)
        monkeypatch.setattr(engine, "explain", held)
        monkeypatch.setattr(service.live, "change", held)
        reply = pool.submit(request, f"{url}/v1/{path}", body)
        assert begun.wait(60)
        # The rest of the block waits for what is computed.
        pool.submit(lambda: reply.result() and go.set())
    problem = refused(reply.result(), 503)
    assert "stopping" in problem["detail"]
    assert reply.result().headers["retry-after"]


def test_a_body_that_is_not_complete_when_the_service_stops_is_refused(tmp_path: Path) -> None:
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(grace=0.1))
    head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving(service) as url:
        port = int(url.rpartition(":")[2])
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert request(f"{url}/v1/healthz").status == 200  # it has been received
    with connection:
        whole = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert whole.startswith(b"HTTP/1.1 503")
    assert b"stopping" in whole


def test_a_route_without_a_time_limit_of_its_own_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "_PATIENCE", 0.0)
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(timeout=0.2))
    go = threading.Event()
    monkeypatch.setattr(service, "facts_of", lambda *_: go.wait(60))
    with serving(service) as url:
        refused(request(f"{url}/v1/entities/link%201"), 504)
        go.set()


def test_large_bodies_are_parsed_one_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most, now, lock = [0], [0], threading.Lock()
    plain = json.loads

    def counted(body: Any) -> Any:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        try:
            return plain(body)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(app.json, "loads", counted)
    large = {"questions": [QUESTION], "padding": "x" * LARGE_BODY}
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: request(f"{url}/v1/predict", large), range(8)))
    assert {reply.status for reply in replies} == {422}
    monkeypatch.undo()
    assert most == [1]
    monkeypatch.setattr(app, "MAX_PARSED", 0)
    problem = refused(request(f"{url}/v1/predict", large), 503)
    assert "large requests" in problem["detail"]
    assert request(f"{url}/v1/predict", {"questions": [QUESTION]}).status == 200


def test_only_a_few_unknown_names_are_searched(
    url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"questions": [QUESTION, *({**QUESTION, "entity": f"lnk {n}"} for n in range(5))]}
    for route in ("predict", "predict/stream"):
        reply = request(f"{url}/v1/{route}", asked)
        lines = reply.body.decode().splitlines()
        results = reply.json["results"] if route == "predict" else [json.loads(x) for x in lines]
        found = [bool(one["error"]["nearest"]) for one in results[1:]]
        assert found == [True] * MAX_SUGGESTED + [False] * (5 - MAX_SUGGESTED)
    monkeypatch.setattr(service_module, "MAX_SEARCHES", 0)
    assert refused(request(f"{url}/v1/entities?search=link"), 503)["detail"]
    unknown = {"questions": [{**QUESTION, "entity": "lnk 1"}]}
    assert refused(request(f"{url}/v1/predict", unknown), 404)["nearest"] == []


def test_a_service_may_wait_without_end_for_open_requests(tmp_path: Path) -> None:
    service = Service(saved_run(tmp_path / "run", 8), ServeSettings(grace=math.inf))
    with serving(service) as url:
        assert request(f"{url}/v1/readyz").status == 200


def test_wrong_use_of_serve(
    run: Command, run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = run("serve", run_path, "--port", taken.getsockname()[1])
    assert told.code == 2
    assert "cannot listen on this address" in told.err
    told = run("serve", tmp_path, "--port", 0)
    assert told.code == 2
    assert "is not a run" in told.err
    (tmp_path / "token").write_text("")
    told = run("serve", run_path, "--token-file", tmp_path / "token")
    assert told.code == 2
    assert "must contain one token" in told.err
    told = run("serve", run_path, "--token-file", tmp_path / "nothing")
    assert told.code == 2
    assert "nothing: No such file" in told.err
    for prefix in ("kg", "/a b", "//kg", "/kg?x", "/../kg", "/kg/."):
        told = run("serve", run_path, "--prefix", prefix)
        assert told.code == 2
        assert "is not a path such as /kg" in told.err
    for name in ("", "https://kg.example", "kg.example:443", "kg.example/", "a b"):
        told = run("serve", run_path, "--allow-host", name)
        assert told.code == 2
        assert "is not a host name" in told.err
    told = run("serve", run_path, "--host", "")
    assert told.code == 2
    assert "--host: must be an address or a name" in told.err
    told = run("serve", run_path, "--unix-socket", tmp_path / "token")
    assert told.code == 2
    assert "token: cannot listen on this socket" in told.err
    told = run("serve", run_path, "--unix-socket", tmp_path / ("x" * 200))
    assert told.code == 2
    assert "see --unix-socket" in told.err
    monkeypatch.setenv("ONESHOT_TOKEN", "two words")
    told = run("serve", run_path)
    assert told.code == 2
    assert "$ONESHOT_TOKEN: must contain one token" in told.err
