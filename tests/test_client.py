"""Tests of the client, against a real service and against ones that misbehave."""

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.services import saved_run

import oneshot

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from oneshot import client as client_module
from oneshot.serve import limits
from oneshot.serve.server import serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("client") / "run", 20)


@pytest.fixture(scope="module")
def client(run_path: Path) -> Iterator[oneshot.Client]:
    with serving(Service(run_path, ServeSettings(token="abc"))) as url:
        yield oneshot.Client(url + "/", token="abc")


def test_a_client_answers_like_a_reasoner(client: oneshot.Client, run_path: Path) -> None:
    reasoner = oneshot.Reasoner.load(run_path)
    found = client.predict("link 3", "after", top=4)
    expected = reasoner.predict("link 3", "after", top=4)
    assert [a.entity for a in found] == [a.entity for a in expected]
    assert [a.score for a in found] == pytest.approx([a.score for a in expected], abs=1e-5)
    assert (found.entity, found.relation) == (expected.entity, expected.relation)
    assert (found.num_entities, found.num_edges) == (expected.num_entities, expected.num_edges)
    inverse = client.predict("link 3", "after", inverse=True, exclude_known=True)
    assert inverse.relation == "after⁻¹"
    assert not any(answer.known for answer in inverse)
    questions = [(f"link {n}", "next") for n in range(10)]
    many = client.predict_many(questions, top=1, batch_size=4)
    assert [p.entity for p in many] == [entity for entity, _ in questions]
    why = client.explain("link 3", "after", "link 5", paths=2, drawing=True)
    assert len(why["paths"]) == 2
    assert why["drawing"].startswith("<svg")


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[oneshot.Client]:
    """A client of a service of its own: entities stay there, also when their facts are removed."""
    with serving(Service(saved_run(tmp_path / "run", 20))) as url:
        yield oneshot.Client(url)


def test_a_client_finds_and_changes(changing: oneshot.Client) -> None:
    client = changing
    assert client.relations() == ["next", "after", "before"]
    assert client.search("link 1", 2) == ["link 1", "link 10"]
    facts = [("we/ird ?", "next", "link 1"), ("we/ird ?", "after", "link 2")]
    assert client.add(facts) == 2
    assert sorted(client.facts("we/ird ?")) == sorted(facts)
    assert client.state()["version"] == 1
    assert client.remove(facts) == 2
    assert client.add([]) == 0
    assert "Client('http://127.0.0.1" in repr(client)


def test_a_client_keeps_its_connection(changing: oneshot.Client) -> None:
    client = changing
    client.relations()
    first = client._local.kept.connection.sock.getsockname()
    client.predict("link 3", "after")
    with pytest.raises(oneshot.ServiceError):
        client.predict("nobody", "after")
    assert client._local.kept.connection.sock.getsockname() == first
    # One that the service has closed meanwhile is opened again.
    client._local.kept.connection.sock.shutdown(socket.SHUT_RDWR)
    assert client.add([("a", "next", "b")]) == 1
    assert client._local.kept.connection.sock.getsockname() != first
    client.close()
    assert client.remove([("a", "next", "b")]) == 1


def test_facts_are_changed_all_or_not_at_all(changing: oneshot.Client) -> None:
    """As many as a service accepts: the last one of them is wrong, or all are right."""
    facts = [(f"n{n}", "next", "link 0") for n in range(client_module._MAX_FACTS - 1)]
    with pytest.raises(oneshot.ServiceError, match="1,024") as caught:
        changing.add([*facts, ("x" * 2000, "next", "b")])
    with pytest.raises(oneshot.ServiceError, match="unknown relation 'nxt'"):
        changing.add([*facts, ("a", "nxt", "b")])
    assert (changing.state()["version"], caught.value.changed) == (0, 0)
    every = [*facts, ("last", "next", "link 1")]
    assert changing.add(every) == len(every)
    assert changing.state()["version"] == 1
    assert changing.remove(every) == len(every)
    assert changing.state()["version"] == 2


def test_more_facts_than_fit_into_a_request(
    changing: oneshot.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client_module._MAX_FACTS == limits.MAX_FACTS
    assert client_module._MAX_BODY == limits.MAX_BODY
    facts = [(f"n{n}", "next", "link 0") for n in range(client_module._MAX_FACTS + 1)]
    for change in (changing.add, changing.remove):
        with pytest.raises(oneshot.ServiceError, match="10,001 facts do not fit into one request"):
            change(facts)
    long = [(f"{n}".ljust(1000, "x"), "next", f"{n}".ljust(1000, "y")) for n in range(1100)]
    with pytest.raises(oneshot.ServiceError, match=r"1,100 facts do not fit .* 2 MiB"):
        changing.add(long)
    assert changing.state()["version"] == 0
    # In parts, each of them all or not at all.
    assert changing.add(long, in_parts=True) == 1100
    assert changing.remove(long, in_parts=True) == 1100
    assert changing.state()["version"] == 4
    monkeypatch.setattr(client_module, "_MAX_FACTS", 500)
    with pytest.raises(oneshot.ServiceError, match="not a fact with a known relation") as caught:
        changing.add([*facts[:1500], ("a", "nxt", "b")], in_parts=True)
    assert (changing.state()["version"], caught.value.changed) == (4, 0)
    with pytest.raises(oneshot.ServiceError, match="1,024") as caught:
        changing.add([*facts[:1200], ("x" * 2000, "next", "b")], in_parts=True)
    assert (changing.state()["version"], caught.value.changed) == (6, 1000)


def test_queries_with_unknown_names_among_many(client: oneshot.Client) -> None:
    asked = [("link 1", "next"), ("nobody", "next"), ("link 2", "nxt"), ("nobody", "next")]
    with pytest.raises(oneshot.ServiceError, match="unknown entity 'nobody'") as caught:
        client.predict_many(asked)
    assert caught.value.status == 404
    found = client.predict_many(asked, errors="record", batch_size=2)
    assert [one.error is None for one in found] == [True, False, False, False]
    assert [len(one) > 0 for one in found] == [True, False, False, False]
    assert "unknown relation 'nxt'" in str(found[2].error)


def test_refusals_are_errors_that_help(client: oneshot.Client) -> None:
    with pytest.raises(oneshot.ServiceError, match="unknown entity 'lnik 3'; did you") as caught:
        client.predict("lnik 3", "after")
    assert (caught.value.status, "link 3" in caught.value.nearest) == (404, True)
    with pytest.raises(oneshot.ServiceError, match="greater than or equal to 1"):
        client.predict("link 3", "after", top=0)
    with pytest.raises(oneshot.ServiceError, match="have no explanations; use `explain`"):
        client.predict("link 3", "after", explain=True)
    with pytest.raises(oneshot.ServiceError, match="Authorization: Bearer"):
        oneshot.Client(client.url).relations()
    with pytest.raises(oneshot.ServiceError, match="cannot be reached") as caught:
        oneshot.Client("http://127.0.0.1:1").relations()
    assert caught.value.status is None
    with pytest.raises(oneshot.ServiceError, match="begin with http"):
        oneshot.Client("file:///etc/passwd")


def test_a_busy_service_is_asked_again() -> None:
    statuses = [503, 503, 200, 500]

    class Busy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = statuses.pop(0)
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(b'{"relations": ["r"]}' if status == 200 else b"no JSON")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert oneshot.Client(url).relations() == ["r"]
        with pytest.raises(oneshot.ServiceError, match="500") as caught:
            oneshot.Client(url).relations()
        assert caught.value.status == 500
        statuses.extend([503, 503])
        with pytest.raises(oneshot.ServiceError, match="503"):
            oneshot.Client(url, retries=1).relations()
        server.shutdown()
        thread.join()


def test_an_answer_that_breaks_off_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def half() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")

        thread = threading.Thread(target=half)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(oneshot.ServiceError, match="cannot be reached"):
            oneshot.Client(url).relations()
        thread.join()
