"""Tests of the routes that explore a graph: pages, counts, changes, neighbourhoods and checks."""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import oneshot
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.live.store import STORE
from oneshot.reasoner.check import check_fact
from oneshot.runs.run import Run
from oneshot.serve.server import serving
from oneshot.serve.service import Service


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(saved_run(tmp_path / "run", 20))


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serving(service) as address:
        yield address


def change(url: str, facts: list[list[str]], present: bool = True) -> int:
    path = "/v1/facts" if present else "/v1/facts/remove"
    reply = request(url + path, {"facts": facts})
    assert reply.status == 200
    return int(reply.json["version"])


def test_all_entities_in_pages(url: str) -> None:
    change(url, [["new", "next", "link 1"]])
    pages = [request(f"{url}/v1/entities?limit=8&offset={n}").json for n in range(0, 32, 8)]
    assert {page["total"] for page in pages} == {21}
    names = [name for page in pages for name in page["entities"]]
    assert sorted(names) == sorted([*(f"link {n}" for n in range(20)), "new"])
    assert pages[-1]["entities"] == []


def test_further_matches_of_a_search(url: str) -> None:
    change(url, [[f"link new {n}", "next", "link 1"] for n in range(9)])
    pages = [
        request(f"{url}/v1/entities?search=link&limit=6&offset={n}").json["entities"]
        for n in range(0, 42, 6)
    ]
    assert pages[0] == request(f"{url}/v1/entities?search=link&limit=6").json["entities"]
    names = [name for page in pages for name in page]
    assert len(names) == len(set(names)) == 29


def test_entities_without_facts_come_last(url: str) -> None:
    facts = [["link 0 alone", "next", "link 1"], ["link 0 other", "next", "link 1"]]
    change(url, facts)
    change(url, facts[:1], False)
    found = request(f"{url}/v1/entities?search=link%200&limit=100").json["entities"]
    assert found[0] == "link 0"
    assert "link 0 other" in found
    assert found[-1] == "link 0 alone"


def test_a_change_leaves_all_other_files_of_the_run(url: str, service: Service) -> None:
    def files() -> dict[str, bytes]:
        every = (path for path in _path(service).rglob("*") if path.is_file())
        return {path.name: path.read_bytes() for path in every if STORE not in path.name}

    before = files()
    change(url, [["a", "next", "b"]])
    change(url, [["link 1", "next", "link 2"]], False)
    assert files() == before
    assert len(before) >= 4


def counted(service: Service) -> dict[str, int]:
    """The facts of each relation, counted one by one."""
    graph = service.live.graph()
    names = [graph.relations[label] for label in graph.facts[:, 1].tolist()]
    return {name: Counter(names)[name] for name in graph.relations}


def test_relations_with_their_counts(url: str, service: Service) -> None:
    first = request(f"{url}/v1/relations")
    assert first.json["counts"] == counted(service)
    known = {"If-None-Match": first.headers["etag"]}
    assert request(f"{url}/v1/relations", headers=known).status == 304
    change(url, [["a", "next", "b"], ["b", "after", "c"], ["link 1", "next", "link 2"]])
    change(url, [["a", "next", "b"], ["link 1", "next", "link 2"]], False)
    changed = request(f"{url}/v1/relations", headers=known)
    assert changed.json["counts"] == counted(service)
    assert changed.json["version"] == 2


def test_counts_are_right_whenever_they_are_first_asked_for(tmp_path: Path) -> None:
    """Before and after changes, and after a restart, which compacts the graph."""
    run = saved_run(tmp_path / "run", 12)
    facts = [["link 1", "next", "link 2"], ["link 3", "next", "link 3"]]
    for _ in range(2):
        service = Service(run)
        service.live.change([["x", "next", "y"], facts[1]], True)
        service.live.change(facts[:1], False)
        assert service.relations()["counts"] == counted(service)
        service.live.change([*facts, ["x", "next", "z"]], True)
        service.live.change([["x", "next", "y"]], False)
        assert service.relations()["counts"] == counted(service)
        service.live.close()


def test_relations_of_an_entity(url: str, service: Service) -> None:
    change(url, [["link 4", "next", "link 4"], ["new", "before", "link 4"]])
    change(url, [["link 4", "next", "link 5"]], False)
    around = request(f"{url}/v1/entities/link%204").json
    wanted: Counter[tuple[str, bool]] = Counter()
    for head, relation, tail in around["facts"]:
        wanted[relation, False] += head == "link 4"
        wanted[relation, True] += tail == "link 4"
    found = {(one["relation"], one["inverse"]): one["facts"] for one in around["relations"]}
    assert found == dict(+wanted)
    numbers = [one["facts"] for one in around["relations"]]
    assert numbers == sorted(numbers, reverse=True)


def test_statistics_of_a_relation(url: str) -> None:
    change(url, [[f"n{n}", "before", "link 7"] for n in range(30)])
    found = request(f"{url}/v1/relations/before").json
    counts = request(f"{url}/v1/relations").json["counts"]
    assert found["facts"] == counts["before"]
    assert found["top_tails"][0]["entity"] == "link 7"
    assert found["top_tails"][0]["facts"] >= 30
    assert 30 <= found["heads"] <= found["facts"]
    assert len(found["top_heads"]) == 5
    assert request(f"{url}/v1/relations/nxt").json["nearest"] == ["next"]
    assert request(f"{url}/v1/relations/next%E2%81%BB%C2%B9").status == 404


def test_changes_latest_first(url: str, service: Service) -> None:
    assert request(f"{url}/v1/changes").json == {"changes": [], "total": 0, "version": 0}
    change(url, [["a", "next", "b"]])
    change(url, [["link 1", "next", "link 2"]], False)
    change(url, [["c", "next", "d"]])
    change(url, [["a", "next", "b"]], False)
    reply = request(f"{url}/v1/changes")
    wanted = [
        (["a", "next", "b"], "removed", False, 4),
        (["c", "next", "d"], "added", False, 3),
        (["link 1", "next", "link 2"], "removed", True, 2),
    ]

    def rows(value: Any) -> list[Any]:
        return [
            (one["fact"], one["change"], one["in_base"], one["version"]) for one in value["changes"]
        ]

    assert rows(reply.json) == wanted
    times = [datetime.fromisoformat(one["time"]) for one in reply.json["changes"]]
    assert times == sorted(times, reverse=True)
    assert abs(times[0] - datetime.now(UTC)) < timedelta(minutes=1)
    assert (reply.json["total"], reply.json["version"]) == (3, 4)
    assert rows(request(f"{url}/v1/changes?limit=1&offset=1").json) == wanted[1:2]
    tag = {"If-None-Match": reply.headers["etag"]}
    assert request(f"{url}/v1/changes", headers=tag).status == 304
    # The same after a restart, and for a graph that is kept in memory.
    again = Service(_path(service))
    assert again.history(10, 0)["changes"] == reply.json["changes"]
    again.live.close()


def _path(service: Service) -> Path:
    store = service.live._store
    assert store is not None
    return store.path.parent


def test_changes_in_memory_have_versions(tmp_path: Path) -> None:
    live = LiveGraph(Run.open(saved_run(tmp_path / "run", 8)).base_graph)
    live.add([("a", "next", "b")])
    live.add([("c", "next", "d"), ("e", "next", "f")])
    found, total, version = live.history(2)
    assert [(one.head, one.version) for one in found] == [("e", 2), ("c", 2)]
    assert all(one.time is not None and abs(one.time - time.time()) < 60 for one in found)
    assert (total, version) == (3, 2)


def test_removal_without_a_body_of_delete(url: str) -> None:
    change(url, [["a", "next", "b"]])
    reply = request(f"{url}/v1/facts/remove", {"facts": [["a", "next", "b"]]})
    assert reply.json == {"removed": 1, "version": 2}


def test_the_neighbourhood_of_entities(url: str, service: Service) -> None:
    found = request(f"{url}/v1/neighbourhood", {"entities": ["link 4"], "top": 5}).json
    names = [one["entity"] for one in found["entities"]]
    assert names[0] == "link 4"
    assert len(names) == 5
    scores = [one["score"] for one in found["entities"]]
    assert scores == sorted(scores, reverse=True)
    assert ["link 4", "next", "link 5"] in found["facts"]
    assert all(head in names and tail in names for head, _, tail in found["facts"])
    assert found["omitted_facts"] == 0
    assert found["method"] == "exact"
    assert request(f"{url}/v1/neighbourhood", {"entities": ["nobody"]}).status == 404


@pytest.mark.parametrize("tail", ["link 5", "link 9"])
def test_a_fact_is_checked(url: str, service: Service, tail: str) -> None:
    found = request(f"{url}/v1/check", {"head": "link 4", "relation": "next", "tail": tail}).json
    wanted = check_fact(service.reasoner, "link 4", "next", tail)
    assert found["fact"] == ["link 4", "next", tail]
    assert found["known"] == (tail == "link 5")
    assert found["probability"] == pytest.approx(wanted.fact.probability)
    assert (found["rank"], found["candidates"]) == (wanted.fact.rank, 20)
    assert [len(path["steps"]) for path in found["paths"]] == [
        len(path.steps) for path in wanted.explanation.paths
    ]
    assert found["evidence"] == [list(fact) for fact in wanted.evidence]
    wrong = {"head": "link 4", "relation": "next", "tail": "lnik 5"}
    assert "link 5" in request(f"{url}/v1/check", wrong).json["nearest"]


def test_several_answers_are_explained(url: str) -> None:
    asked = [
        {"entity": "link 3", "relation": "after", "answer": "link 5"},
        {"entity": "link 3", "relation": "after", "answer": "nobody"},
        {"entity": "link 5", "relation": "after", "answer": "link 3", "inverse": True},
    ]
    results = request(f"{url}/v1/explain/many", {"questions": asked, "paths": 2}).json["results"]
    for question, result in zip(asked, results, strict=True):
        assert result["answer"] == question["answer"]
        if question["answer"] == "nobody":
            assert (result["paths"], result["error"]["status"]) == ([], 404)
        else:
            alone = request(f"{url}/v1/explain", {**question, "paths": 2}).json
            assert result["paths"] == alone["paths"]
            assert result["version"] == 0
    assert request(f"{url}/v1/explain/many", {"questions": asked * 4}).status == 422


def test_a_client_explores(url: str) -> None:
    client = oneshot.Client(url)
    client.add([("a", "next", "link 1")])
    assert client.relation_counts()["next"] == 21
    assert client.check("link 1", "next", "link 2")["known"]
    assert client.neighbourhood(["a"], 2)["facts"] == [["a", "next", "link 1"]]
    assert client.changes()[0]["fact"] == ["a", "next", "link 1"]
