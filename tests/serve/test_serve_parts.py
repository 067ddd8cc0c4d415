"""Tests of the parts of the service by themselves: names, metrics, the engine's queue."""

import asyncio
import gc
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.services import saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from pydantic import ValidationError

from oneshot.graph.vocabulary import GrowingVocabulary, Vocabulary
from oneshot.serve import engine, schemas, server
from oneshot.serve import entity_search as names_module
from oneshot.serve.app import create_app
from oneshot.serve.engine import OverloadedError, Question
from oneshot.serve.entity_search import NameIndex, NameSearch, fold
from oneshot.serve.limits import Limits, RouteLimits, limited
from oneshot.serve.metrics import Metrics
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

NAMES = ["Zürich", "zurich airport", "Zug", "New_York", "York", "new caledonia", "Ab", "", "ab c"]


@pytest.fixture(scope="module")
def index() -> NameSearch:
    degree = np.array([9, 1, 2, 5, 8, 3, 1, 0, 2])
    return NameSearch(GrowingVocabulary(Vocabulary.from_names(NAMES, "entity")), degree)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("zur", ["Zürich", "zurich airport"]),
        ("ZÜRICH", ["Zürich", "zurich airport"]),
        ("new", ["New_York", "new caledonia"]),
        ("new york", ["New_York", "York"]),
        ("zurihc", ["Zürich"]),
        ("airport", ["zurich airport"]),
        ("ab", ["Ab", "ab c"]),
        ("xqxqxq", []),
        ("zurich airport and much more that is not in any name", []),
    ],
)
def test_names_are_found(index: NameSearch, text: str, found: list[str]) -> None:
    assert index.search(text, 10)[: len(found)] == found
    if not found:
        assert index.search(text, 10) == []


def test_the_best_known_come_first(index: NameSearch) -> None:
    assert index.search("", 3) == ["", "Zürich", "York"]
    assert index.search("z", 2) == ["Zürich", "Zug"]
    assert fold("É_à") == "e a"


def test_new_names_are_found_at_once() -> None:
    names = GrowingVocabulary(Vocabulary.from_names(["old"], "entity"))
    index = NameSearch(names, np.array([1]))
    names.add("Brand new")
    assert index.search("brand", 5) == ["Brand new"]
    assert index.search("Brand new", 5) == ["Brand new"]
    nothing = NameSearch(Vocabulary.from_names([], "entity"), np.array([], np.int64))
    assert nothing.search("abc", 5) == []


def test_a_new_name_is_folded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = GrowingVocabulary(Vocabulary.from_names(["old"], "entity"))
    index = NameSearch(names, np.array([1]))
    lengths: list[int] = []

    def counting(text: str) -> str:
        lengths.append(len(text))
        return fold(text)

    monkeypatch.setattr(names_module, "fold", counting)
    for number in range(50):
        names.add(f"{number} " + "\ufdfa" * 4000)
    for _ in range(5):
        assert len(index.search("4", 100)) >= 11
    assert sum(length > 10 for length in lengths) == 50
    assert max(lengths) <= 256


def test_a_long_text_is_compared_by_its_beginning() -> None:
    names = Vocabulary.from_names(["a" * 300, "b" * 300], "entity")
    index = NameIndex(names, np.array([1, 1]))
    found = index.alike("a" * 4000, 5)
    assert [name for _, _, name in found] == ["a" * 300]


def test_errors_of_a_body_are_few() -> None:
    unknown = {f"key {number}": number for number in range(100_000)}
    asked = {"entity": "a", "relation": "b"}
    bodies = [
        {"questions": [asked], **unknown},
        {"questions": [{**asked, **unknown}] * 2},
        {**unknown, "questions": [asked]},
    ]
    for body, count in zip(bodies, (20, 40, 20), strict=True):
        with pytest.raises(ValidationError) as caught:
            schemas.PredictIn.model_validate(body)
        assert caught.value.error_count() == count
        assert {error["type"] for error in caught.value.errors()} == {"extra_forbidden"}


def test_what_is_loaded_is_not_searched_for_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each collection stops all threads, and would look at all of it."""
    before, frozen = gc.get_freeze_count(), []
    monkeypatch.setattr(
        server._Server, "run", lambda *_, **__: frozen.append(gc.get_freeze_count())
    )
    run = saved_run(tmp_path / "run", 8)
    server.run_server(run, "127.0.0.1", 0, ServeSettings(), torch.device("cpu"))
    assert frozen[0] - before > 10_000
    assert gc.get_freeze_count() == 0


def test_a_list_with_many_errors_ends_at_the_first_of_them() -> None:
    facts: list[Any] = [["a", "r", "b"]] * 9_000
    assert schemas.FactsIn.model_validate({"facts": facts}).facts == facts
    for item in ([1, 2, 3], ["", "", ""], [], None):
        with pytest.raises(ValidationError) as caught:
            schemas.FactsIn.model_validate({"facts": [*facts[:8_950], *[item] * 1_050]})
        places = [error["loc"][:2] for error in caught.value.errors()]
        assert places[0] == ("facts", 8_950)  # its place in the whole list
        assert len(places) <= 300
    questions = [{"entity": 1, "relation": 2, "x": 3}] * 10_000
    with pytest.raises(ValidationError) as caught:
        schemas.StreamIn.model_validate({"questions": questions})
    assert caught.value.error_count() <= 300
    for count in (0, 10_001):
        with pytest.raises(ValidationError) as caught:
            schemas.FactsIn.model_validate({"facts": facts[:1] * count})
        assert caught.value.error_count() == 1


def test_search_agrees_with_a_plain_look_at_all_names() -> None:
    generator = np.random.default_rng(0)
    letters = np.array(list("abcAB_ é"))
    names = {"".join(generator.choice(letters, size=generator.integers(1, 9))) for _ in range(500)}
    vocabulary = Vocabulary.from_names(sorted(names), "entity")
    index = NameSearch(vocabulary, np.arange(len(names)))
    for name in sorted(names)[::17]:
        text = name[:3]
        wanted = {other for other in names if fold(other).startswith(fold(text))}
        assert wanted <= set(index.search(text, len(names)))


def test_many_new_names_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "_NEW", 10)
    names = GrowingVocabulary(Vocabulary.from_names(["old 7", "early bird"], "entity"))
    names.add("there at the start")
    index = NameSearch(names, np.array([5, 1]))
    assert index.search("there", 5) == ["there at the start"]
    for number in range(200):
        names.add(f"New_{number} thing")
        index.search("new", 5)
        wait_for(lambda: not index._making.locked())
    sizes = [count for count, _ in index._new]
    assert sum(sizes) > 180
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) <= 6
    # By their beginning, by what looks like it, the first and the last; and what was there before.
    for number in (0, 57, 123, 199):
        assert index.search(f"new {number} ", 3)[0] == f"New_{number} thing"
        assert f"New_{number} thing" in index.search(f"nwe {number} thing", 5)
    assert index.search("old", 3)[0] == "old 7"
    assert len(index.search("", 8)) == 8
    assert {"old 7", "early bird"} <= set(index.search("", 8))


def test_metrics_in_the_format_of_prometheus() -> None:
    metrics = Metrics()
    metrics.request('a"b\\\n', "GET", 200, 0.1)
    metrics.step("sampling", 0.3)
    metrics.step("sampling", 99)
    metrics.watch("answer", "What else?", lambda: 42.5)
    text = metrics.text().decode()
    labels = 'method="GET",route="a\\"b\\\\\\n",status="200"'
    assert f"oneshot_requests_total{{{labels}}} 1.0\n" in text
    assert 'oneshot_step_seconds_bucket{le="0.25",step="sampling"} 0.0\n' in text
    assert 'oneshot_step_seconds_bucket{le="0.5",step="sampling"} 1.0\n' in text
    assert 'oneshot_step_seconds_bucket{le="+Inf",step="sampling"} 2.0\n' in text
    assert 'oneshot_step_seconds_sum{step="sampling"} 99.3\n' in text
    assert "# TYPE oneshot_answer gauge\noneshot_answer 42.5\n" in text


def test_every_route_declares_its_limits(service: Service) -> None:
    app = create_app(service)
    limits = RouteLimits(app.routes)
    for route in app.routes:
        takes_body = bool(route.methods & {"POST", "PUT", "PATCH", "DELETE"})
        for method in route.methods:
            found = limits.find(route.path.replace("{name:anything}", "a/b"), method)
            assert found.json == takes_body, route.path
            is_api = route.path.startswith("/v1/") or route.path == "/metrics"
            assert found.token == (is_api and not route.path.endswith("z")), route.path
    assert limits.find("/v1/predict", "POST") == Limits(json=True, queued=True)
    # What no route takes: as the others around it.
    assert limits.find("/v1/predict", "PUT") == Limits()
    assert limits.find("/v1/healthz", "PUT") == Limits(token=False)
    assert limits.find("/v1/nothing", "GET") == Limits()
    assert limits.find("/nothing", "GET") == Limits()
    # The guard refuses a path with a line end.
    assert limits.find("/v1/healthz\n", "GET") == Limits()


def test_a_route_without_limits_ends_the_start(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another(service: Service) -> Any:
        app = create_app(service)
        app.add_api_route("/v1/another", lambda: None)
        return app

    monkeypatch.setattr(server, "create_app", with_another)
    with pytest.raises(TypeError, match="/v1/another: the route declares no limits"):
        server.guarded(service)

    def declared(service: Service) -> Any:
        app = create_app(service)
        app.add_api_route("/v1/another", limited(queued=True)(lambda: None))
        return app

    monkeypatch.setattr(server, "create_app", declared)
    assert server.guarded(service).limits.find("/v1/another", "GET") == Limits(queued=True)


class Slow:
    """Holds the engine up until it is let go, and notes the batches."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.batches: list[list[int]] = []
        original = service.reasoner.sampler.sample

        def sample(graph: Any, queries: Any, *more: Any) -> Any:
            self.batches.append(queries[:, 0].tolist())
            assert self.go.wait(60)
            if 7 in self.batches[-1]:
                raise ValueError("seven")
            return original(graph, queries, *more)

        monkeypatch.setattr(service.reasoner.sampler, "sample", sample)


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def wait_for(condition: Any) -> None:
    until = soon()
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(engine, "_BATCH_SECONDS", 1e9)  # batches are as large on a slow machine
    made = Service(saved_run(tmp_path / "run", 12), ServeSettings(queue=6, batch_size=4))
    made.start()
    yield made
    made.stop()


def test_the_queue_is_bounded_and_batches_are_full(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(service, monkeypatch)
    engine = service.engine
    first = engine.ask([Question(0, 0)], soon())
    wait_for(lambda: slow.batches)
    waiting = engine.ask([Question(n, 0) for n in range(1, 7)], soon())
    with pytest.raises(OverloadedError):
        engine.ask([Question(8, 0)], soon())
    waiting[5].cancel()  # makes room
    with pytest.raises(OverloadedError):  # at the measured pace it would be too late
        engine.ask([Question(9, 0)], soon(0.0))
    engine._pace = 0.0
    late = engine.ask([Question(9, 0)], soon(0.0))
    slow.go.set()
    for future in (*first, *waiting[:5]):
        assert len(future.result(60).prediction) > 0
    with pytest.raises(OverloadedError):  # its time has passed when the first batch is done
        late[0].result(60)
    assert slow.batches == [[0], [1, 2, 3, 4], [5]]


def test_queries_that_became_too_late_are_refused_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(service, monkeypatch)
    engine = service.engine
    first = engine.ask([Question(0, 0)], soon())
    wait_for(lambda: slow.batches)
    waiting = engine.ask([Question(n, 0) for n in range(1, 5)], soon())
    engine._pace = 1e6  # as if all had become slow
    slow.go.set()
    assert len(first[0].result(60).prediction) > 0
    for future in waiting:
        with pytest.raises(OverloadedError):
            future.result(60)
    assert slow.batches == [[0]]
    engine._pace = 0.0
    assert engine.ask([Question(1, 0)], soon())[0].result(60)


def test_one_bad_question_does_not_spoil_the_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(service, monkeypatch)
    slow.go.set()
    futures = service.engine.ask([Question(n, 0) for n in (5, 6, 7, 8)], soon())
    assert len(futures[1].result(60).prediction) > 0
    assert futures[3].result(60).batch == 1
    with pytest.raises(ValueError, match="seven"):
        futures[2].result(60)
    large = service.engine.ask([Question(n % 6, 0) for n in range(20)], soon())  # beyond the queue
    assert [len(future.result(60).prediction) > 0 for future in large] == [True] * 20


def test_explanations_take_turns_with_questions(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(service, monkeypatch)
    engine = service.engine
    first = engine.ask([Question(0, 0)], soon())
    wait_for(lambda: slow.batches)
    reasons = [engine.explain(Question(1, 0), 2, 3, soon()) for _ in range(2)]
    asked = engine.ask([Question(3, 0)], soon())
    slow.go.set()
    assert reasons[0].result(60)[0].answer == "link 2"
    assert asked[0].result(60).prediction.entity == "link 3"
    assert reasons[1].result(60)[0].paths
    assert first[0].done()


def test_explanations_use_one_thread_and_return_memory_when_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, list[int]] = {"queries": [], "explanations": []}
    returned = threading.Event()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(engine, "_RETURN_MEMORY_AFTER", 0.05)
    monkeypatch.setattr(engine, "return_freed_memory", returned.set)
    original = engine.explain

    def explain(*arguments: Any, **options: Any) -> Any:
        threads["explanations"].append(torch.get_num_threads())
        return original(*arguments, **options)

    monkeypatch.setattr(engine, "explain", explain)
    service = Service(saved_run(tmp_path / "run", 12), ServeSettings())
    sample = service.reasoner.sampler.sample

    def sampled(*arguments: Any) -> Any:
        threads["queries"].append(torch.get_num_threads())
        return sample(*arguments)

    monkeypatch.setattr(service.reasoner.sampler, "sample", sampled)
    service.start()
    try:
        assert service.engine.ask([Question(0, 0)], soon())[0].result(60)
        for _ in range(2):
            assert service.engine.explain(Question(1, 0), 2, 3, soon()).result(60)
        assert returned.wait(60)
    finally:
        service.stop()
        torch.set_num_threads(before)
    assert {name: set(numbers) for name, numbers in threads.items()} == {
        "queries": {3},
        "explanations": {1},
    }


def test_what_waits_when_the_service_stops_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(saved_run(tmp_path / "run", 12))
    service.start()
    slow = Slow(service, monkeypatch)
    running = service.engine.ask([Question(0, 0)], soon())
    wait_for(lambda: slow.batches)
    waiting = service.engine.ask([Question(1, 0)], soon())
    stopper = threading.Thread(target=service.stop)
    stopper.start()
    wait_for(lambda: not service.engine.alive)
    slow.go.set()
    stopper.join(60)
    assert len(running[0].result(60).prediction) > 0
    with pytest.raises(OverloadedError):
        waiting[0].result(60)
    with pytest.raises(OverloadedError):
        service.engine.ask([Question(2, 0)], soon())


def test_a_response_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    async def is_set() -> bool:
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = writer.get_extra_info("socket")
            found.set_result(bool(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        async with await asyncio.start_server(accepted, sock=server._listen("127.0.0.1", 0)) as one:
            reader, writer = await asyncio.open_connection(*one.sockets[0].getsockname())
            await reader.read()
            writer.close()
            return await found

    assert asyncio.run(is_set())
