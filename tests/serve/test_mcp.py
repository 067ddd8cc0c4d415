"""Tests of the MCP server with the official client, over stdin and stdout and over HTTP."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.commands import Command
from tests.support.samples import chain_world, trained_run, write_world
from tests.support.services import request, wait_for

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from anyio.from_thread import start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from oneshot.data.dataset import both_directions
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.judgement import judge, probability_of
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers.neighbourhood import neighbourhood
from oneshot.serve.engine import ExpiredError
from oneshot.serve.mcp.schemas import MAX_SHOWN_FACTS
from oneshot.serve.mcp.server import PATH, SCHEMA, guarded
from oneshot.serve.server import serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

READING = [
    "find_entity",
    "list_relations",
    "neighbourhood",
    "predict",
    "explain",
    "relations_between",
    "check_fact",
]
WRITING = ["add_fact", "remove_fact"]
INSIDE = re.compile(r"Traceback|\.py\b|site-packages|internal error|pydantic")
TOKEN, WRITE_TOKEN = "correct-horse", "battery-staple"


class Session:
    """A client of a server, called as plain functions."""

    def __init__(self, call: Callable[..., Any], client: Client) -> None:
        self._call, self.client = call, client

    def tools(self) -> dict[str, types.Tool]:
        return {tool.name: tool for tool in self._call(self.client.list_tools).tools}

    def read(self, uri: str) -> Any:
        (content,) = self._call(self.client.read_resource, uri).contents
        assert content.mime_type == "application/json"
        return json.loads(content.text)

    def resources(self) -> list[str]:
        return [str(one.uri) for one in self._call(self.client.list_resources).resources]

    def raw(self, tool: str, arguments: Any) -> types.CallToolResult:
        """What a tool answers; the client has compared it with the schema of the tool."""
        result = self._call(self.client.call_tool, tool, arguments)
        assert isinstance(result, types.CallToolResult)
        return result

    def ask(self, tool: str, **arguments: Any) -> Any:
        """The structured result of a tool, which is its text as well."""
        result = self.raw(tool, arguments)
        (content,) = result.content
        assert isinstance(content, types.TextContent)
        assert not result.is_error, content.text
        assert json.loads(content.text) == result.structured_content
        return result.structured_content

    def error(self, tool: str, **arguments: Any) -> str:
        """The message of a tool that refuses its arguments: one line that exposes nothing."""
        result = self.raw(tool, arguments)
        (content,) = result.content
        assert isinstance(content, types.TextContent)
        assert result.is_error, content.text
        assert result.structured_content is None
        assert "\n" not in content.text
        assert not INSIDE.search(content.text), content.text
        return content.text


@contextmanager
def connected(make: Callable[[], Any], mode: str = "auto") -> Iterator[Session]:
    with start_blocking_portal() as portal:
        client = portal.call(_client, make, mode)
        with portal.wrap_async_context_manager(client):
            yield Session(portal.call, client)


async def _client(make: Callable[[], Any], mode: str) -> Client:
    return Client(make(), mode=mode, read_timeout_seconds=60)


def command(run: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "oneshot", "mcp", str(run), "--device", "cpu", *options]


@contextmanager
def over_stdio(run: Path, errors: Path, mode: str, *options: str) -> Iterator[Session]:
    program, *words = command(run, *options)
    server = StdioServerParameters(command=program, args=words, env=dict(os.environ))
    with (
        errors.open("w") as log,
        connected(lambda: stdio_client(server, errlog=log), mode) as session,
    ):
        yield session
    assert not INSIDE.search(errors.read_text()), errors.read_text()


@contextmanager
def over_http(url: str, mode: str = "auto", token: str | None = None) -> Iterator[Session]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        async with (
            create_mcp_http_client(headers) as client,
            streamable_http_client(url + PATH, http_client=client) as streams,
        ):
            yield streams

    with connected(transport, mode) as session:
        yield session


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run, which is not changed."""
    home = tmp_path_factory.mktemp("mcp")
    data = write_world(home / "data", chain_world(30))
    trained_run(data, home / "run", "predictor.num_layers=2")
    return home


@pytest.fixture(scope="module")
def reasoner(home: Path) -> Reasoner:
    return Reasoner.load(home / "run")


@pytest.fixture(scope="module")
def reading_url(home: Path) -> Iterator[str]:
    service = Service(home / "run", ServeSettings(read_only=True))
    with serving(service, app=guarded(service)) as url:
        yield url


@pytest.fixture(scope="module", params=["stdio", "http"])
def session(
    request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """A session that only reads, over each transport; each in another era of the protocol."""
    if request.param == "http":
        with over_http(request.getfixturevalue("reading_url"), "auto") as session:
            yield session
    else:
        errors = tmp_path_factory.mktemp("stdio") / "errors"
        with over_stdio(home / "run", errors, "legacy") as session:
            yield session


def test_the_tools_describe_themselves(session: Session) -> None:
    tools = session.tools()
    assert list(tools) == READING
    for tool in tools.values():
        assert tool.description
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        assert tool.output_schema["type"] == "object"
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
    top = tools["predict"].input_schema["properties"]["top"]
    assert (top["minimum"], top["maximum"], top["default"]) == (1, 100, 10)
    assert "title" not in json.dumps(tools["predict"].input_schema)
    assert session.client.server_info.name == "oneshot"


def test_entities_are_found_by_prefix_and_by_fuzzy_match(
    session: Session, reasoner: Reasoner
) -> None:
    found = session.ask("find_entity", text="link 2", top=20)["entities"]
    assert found[0]["entity"] == "link 2"
    assert {one["entity"] for one in found[1:11]} == {f"link 2{digit}" for digit in range(10)}
    facts = reasoner.graph.facts
    number = reasoner.entity_id("link 2")
    assert found[0]["facts"] == int(((facts[:, 0] == number) | (facts[:, 2] == number)).sum())
    assert session.ask("find_entity", text="lnik 12", top=1)["entities"][0]["entity"] == "link 12"
    assert session.ask("find_entity", text="qqqqqq")["entities"] == []


def test_relations_with_counts_and_examples(session: Session, reasoner: Reasoner) -> None:
    value = session.ask("list_relations")
    assert value["total"] == 3
    found = {one["relation"]: one for one in value["relations"]}
    facts = reasoner.graph.facts
    for name in ("next", "after", "before"):
        mine = facts[facts[:, 1] == reasoner.relation_id(name)]
        assert found[name]["facts"] == len(mine)
        assert len(found[name]["examples"]) == 2
        texts = {as_text(reasoner, fact) for fact in mine.tolist()}
        assert texts >= set(found[name]["examples"])
    counts = [one["facts"] for one in value["relations"]]
    assert counts == sorted(counts, reverse=True)
    (only,) = session.ask("list_relations", search="AFT")["relations"]
    assert only == found["after"]


def as_text(reasoner: Reasoner, fact: Any) -> str:
    head, relation, tail = fact
    names, graph = reasoner.graph.entities, reasoner.graph
    return f"{names[head]} —{graph.relations[relation]}→ {names[tail]}"


def test_the_schema_of_the_graph_is_a_resource(session: Session, reasoner: Reasoner) -> None:
    assert session.resources() == [SCHEMA]
    value = session.read(SCHEMA)
    assert (value["entities"], value["relations"]) == (30, 3)
    assert value["facts"] == reasoner.graph.num_facts
    assert value["top_relations"] == session.ask("list_relations")["relations"]
    assert len(value["top_entities"]) == 10
    with pytest.raises(MCPError, match="unknown resource"):
        session.read("oneshot://nothing")


def test_a_neighbourhood_is_a_small_graph(session: Session, reasoner: Reasoner) -> None:
    value = session.ask("neighbourhood", entities=["link 1", "link 5"], top=6)
    seeds = torch.tensor([reasoner.entity_id("link 1"), reasoner.entity_id("link 5")])
    expected = neighbourhood(reasoner.graph, seeds, 6)
    names = [reasoner.graph.entities[number] for number in expected.entities.tolist()]
    assert [one["entity"] for one in value["entities"]] == names
    for one, score in zip(value["entities"], expected.scores.tolist(), strict=True):
        assert one["score"] == pytest.approx(score, abs=2e-6)
    texts = sorted(as_text(reasoner, fact) for fact in expected.facts.tolist())
    assert sorted(value["facts"]) == texts
    assert value["omitted_facts"] == 0
    assert value["method"] == "exact"
    assert "link 1 —next→ link 2" in value["facts"]


def test_a_neighbourhood_shows_only_the_nearest_facts(
    session: Session, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    every = session.ask("neighbourhood", entities=["link 1"], top=30)
    assert len(every["facts"]) <= MAX_SHOWN_FACTS
    if "http" in request.node.name:  # the server runs in this process
        monkeypatch.setattr("oneshot.serve.mcp.schemas.MAX_SHOWN_FACTS", 5)
        few = session.ask("neighbourhood", entities=["link 1"], top=30)
        assert few["facts"] == every["facts"][:5]
        assert few["omitted_facts"] == len(every["facts"]) - 5
        assert all("link 1 " in f"{fact} " for fact in few["facts"])


@pytest.mark.parametrize("inverse", [False, True])
def test_answers_are_those_of_the_reasoner(
    session: Session, reasoner: Reasoner, inverse: bool
) -> None:
    value = session.ask("predict", entity="link 4", relation="after", inverse=inverse, top=5)
    expected = reasoner.predict("link 4", "after", inverse=inverse, top=5)
    assert value["query"] == ("(?, after, link 4)" if inverse else "(link 4, after, ?)")
    assert [one["entity"] for one in value["answers"]] == [one.entity for one in expected]
    for one, other in zip(value["answers"], expected, strict=True):
        assert one["known"] == other.known == (one["probability"] == 1.0)
        assert one["probability"] == pytest.approx(other.probability, abs=2e-4)
        assert one["score"] == pytest.approx(other.score, abs=1e-3)
    new = session.ask("predict", entity="link 4", relation="next", exclude_known=True)["answers"]
    assert new
    assert not any(one["known"] for one in new)


def test_explanations_are_paths_as_text(session: Session, reasoner: Reasoner) -> None:
    value = session.ask("explain", entity="link 4", relation="after", answer="link 6", paths=3)
    expected = reasoner.explain("link 4", "after", "link 6", paths=3)
    assert value["fact"] == "link 4 —after→ link 6"
    assert value["known"] == expected.known
    assert [one["path"] for one in value["paths"]] == [path.text for path in expected.paths]
    assert value["paths"][0]["path"].startswith("link 4 —")
    for one, path in zip(value["paths"], expected.paths, strict=True):
        assert one["weight"] == pytest.approx(path.weight, abs=1e-3)
    back = session.ask(
        "explain", entity="link 6", relation="after", answer="link 4", inverse=True, paths=1
    )
    assert back["fact"] == "link 4 —after→ link 6"
    assert back["paths"][0]["path"].startswith("link 6 —")


def test_relations_between_two_entities(session: Session, reasoner: Reasoner) -> None:
    value = session.ask("relations_between", head="link 4", tail="link 5", top=6)
    expected = {(one.relation, one.inverse): one for one in reasoner.relations("link 4", "link 5")}
    assert len(value["relations"]) == 6
    for one in value["relations"]:
        other = expected[one["relation"], one["inverse"]]
        assert one["known"] == other.known == (one["probability"] == 1.0)
        assert one["score"] == pytest.approx(other.score, abs=1e-3)
        assert one["probability"] == pytest.approx(other.probability, abs=2e-4)
        ends = ("link 5", "link 4") if one["inverse"] else ("link 4", "link 5")
        assert one["fact"] == f"{ends[0]} —{one['relation']}→ {ends[1]}"
    # Facts of the graph come first.
    known = {one["fact"] for one in value["relations"][:2]}
    assert known == {"link 4 —next→ link 5", "link 5 —before→ link 4"}
    chances = [one["probability"] for one in value["relations"][2:]]
    assert chances == sorted(chances, reverse=True)
    few = session.ask("relations_between", head="link 4", tail="link 5", top=1)["relations"]
    assert few == value["relations"][:1]


def test_a_known_fact_is_judged_as_in_an_audit(session: Session, reasoner: Reasoner) -> None:
    value = session.ask("check_fact", head="link 4", relation="next", tail="link 5")
    (audited,) = (
        fact
        for fact in reasoner.audit(relations=["next"])
        if (fact.head, fact.tail) == ("link 4", "link 5")
    )
    assert value["known"] is True
    assert value["probability"] == pytest.approx(audited.probability, abs=2e-4)
    assert value["score"] == pytest.approx(audited.score, abs=1e-3)
    assert value["rank"] == pytest.approx(audited.rank)
    assert value["candidates"] == 30
    assert value["other_tails"] == []
    # The fact itself is no evidence for itself; its inverse is.
    assert value["fact"] not in value["evidence"]
    assert "link 5 —before→ link 4" in value["evidence"]
    assert len(value["paths"]) <= 3
    assert value["paths"][0]["path"] == "link 4 —before⁻¹→ link 5"


def test_an_unknown_fact_is_judged_in_both_directions(session: Session, reasoner: Reasoner) -> None:
    value = session.ask("check_fact", head="link 4", relation="next", tail="link 9", paths=1)
    graph = reasoner.graph
    number = reasoner.entity_id
    fact = torch.tensor([[number("link 4"), reasoner.relation_id("next"), number("link 9")]])
    queries, answers = both_directions(fact, graph.num_relations)
    known = KnownFacts(graph.facts, graph.num_entities, graph.num_relations)
    size = BatchSize(None, reasoner.predictor.config, reasoner.device)
    (judged,) = judge(reasoner, queries, answers, known, size)
    expected = probability_of(reasoner, float(judged.logit.double().mean()))
    assert value["known"] is False
    assert value["probability"] == pytest.approx(expected, abs=2e-4)
    assert value["rank"] == pytest.approx(float(judged.rank.mean()))
    assert value["other_tails"] == ["link 5"]
    # An inverse relation by its name is the same fact, asked from its other end.
    same = session.ask("check_fact", head="link 9", relation="next⁻¹", tail="link 4", paths=1)
    assert same == value


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("predict", {"entity": "link 1", "relation": "nxt"}, "unknown relation 'nxt'; did you"),
        ("predict", {"entity": "lnik 12", "relation": "next"}, "did you mean .*'link 12'"),
        ("predict", {"entity": "link 1", "relation": "zz"}, "'zz'; find_entity and list_relations"),
        ("predict", {"entity": "", "relation": "next"}, "entity: string should have at least 1"),
        ("predict", {"entity": "link 1", "relation": "next", "top": 10**9}, "top: .* 100$"),
        ("predict", {"entity": "link 1", "relation": "next", "top": "5"}, "top: .* valid integer"),
        ("predict", {"entity": "link 1", "relation": "next", "top": 2.5}, "top: .* valid integer"),
        ("predict", {"entity": "link 1"}, "^relation: field required$"),
        ("predict", {"entity": 3, "relation": None}, "entity: .*; relation: "),
        ("predict", {"entity": "link 1", "relation": "next", "more": 1}, "more: extra inputs"),
        ("predict", {"entity": "x" * 5000, "relation": "next"}, "at most 4096"),
        ("explain", {"entity": "link 1", "relation": "next", "answer": "x"}, "unknown entity 'x'"),
        ("explain", {"entity": "link 1", "relation": "next", "answer": "link 2", "paths": 0}, "pa"),
        ("neighbourhood", {"entities": []}, "entities: list should have at least 1"),
        ("neighbourhood", {"entities": ["link 1"] * 11}, "at most 10"),
        ("neighbourhood", {"entities": "link 1"}, "entities: .* valid list"),
        ("relations_between", {"head": "link 1", "tail": "link 99"}, "unknown entity 'link 99'"),
        ("check_fact", {"head": "link 1", "relation": "r", "tail": "link 2"}, "unknown relation"),
        ("find_entity", {"text": ""}, "text: string should have at least 1"),
        ("list_relations", {"search": 1}, "search: .* valid string"),
    ],
)
def test_wrong_arguments_are_named(
    session: Session, tool: str, arguments: dict[str, Any], message: str
) -> None:
    assert re.search(message, session.error(tool, **arguments))


def test_unknown_tools_are_errors_of_the_protocol(session: Session) -> None:
    with pytest.raises(MCPError, match="unknown tool 'predcit'; did you mean 'predict'"):
        session.raw("predcit", {})
    for tool in WRITING:
        with pytest.raises(MCPError, match="unknown tool"):
            session.raw(tool, {"head": "link 1", "relation": "next", "tail": "link 9"})


def test_changes_are_durable_and_take_effect_at_once(home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    fact = {"head": "link 1", "relation": "next", "tail": "harbour"}
    service = Service(run)
    with serving(service, app=guarded(service)) as url, over_http(url, "legacy") as session:
        tools = session.tools()
        assert list(tools) == [*READING, *WRITING]
        hints = {name: tools[name].annotations for name in WRITING}
        assert all(one is not None and one.read_only_hint is False for one in hints.values())
        assert session.ask("list_relations")["version"] == 0
        value = session.ask("add_fact", **fact)
        assert value["changed"] is True
        assert value["new_entities"] == ["harbour"]
        assert Reasoner.load(run).graph.num_facts == Reasoner.load(home / "run").graph.num_facts + 1
        again = session.ask("add_fact", **fact)
        assert (again["changed"], again["new_entities"]) == (False, [])
        (found,) = session.ask("find_entity", text="harb")["entities"]
        assert found == {"entity": "harbour", "facts": 1}
        near = session.ask("neighbourhood", entities=["harbour"], top=3)
        assert "link 1 —next→ harbour" in near["facts"]
        assert near["version"] == value["version"] == again["version"]
        checked = session.ask("check_fact", **fact)
        assert checked["known"] is True
        assert checked["other_tails"] == ["link 2"]
        counts = {r["relation"]: r["facts"] for r in session.ask("list_relations")["relations"]}
        assert counts["next"] == 31
        assert session.read(SCHEMA)["entities"] == 31
        message = session.error("add_fact", head="link 1", relation="nxet", tail="harbour")
        assert "unknown relation 'nxet'; did you mean 'next'" in message
        assert "at most 1,024" in session.error("add_fact", **{**fact, "tail": "y" * 2000})
        message = session.error("remove_fact", head="link 1", relation="next", tail="HARB")
        assert "did you mean 'harbour'" in message
        assert session.ask("remove_fact", **fact)["changed"] is True
        assert session.ask("remove_fact", **fact)["changed"] is False
        # Without its only fact, an entity has no answers.
        alone = session.ask("predict", entity="harbour", relation="next")
        assert alone["answers"] == []
        assert "no facts" in alone["message"]
        session.ask("add_fact", **fact)
    names = Reasoner.load(run).predict("link 1", "next", top=30)
    assert {answer.entity for answer in names if answer.known} == {"link 2", "harbour"}


def test_changes_over_stdio(home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    fact = {"head": "link 1", "relation": "next", "tail": "harbour"}
    with over_stdio(run, tmp_path / "errors", "auto", "--allow-changes") as session:
        assert list(session.tools()) == [*READING, *WRITING]
        value = session.ask("add_fact", **fact)
        assert value == {
            "fact": "link 1 —next→ harbour",
            "changed": True,
            "new_entities": ["harbour"],
            "version": 1,
        }
        assert Reasoner.load(run).graph.num_facts == Reasoner.load(home / "run").graph.num_facts + 1
        known = session.ask("check_fact", **fact)
        assert (known["known"], known["version"]) == (True, 1)
        message = session.error("remove_fact", head="link 1", relation="next", tail="harbou")
        assert "did you mean 'harbour'" in message
        assert session.ask("remove_fact", **fact)["changed"] is True
        assert session.ask("remove_fact", **fact)["changed"] is False
        assert session.ask("check_fact", **fact)["known"] is False
        session.ask("add_fact", **{**fact, "tail": "link 9"})
    # What one session has changed, the next one finds.
    with over_stdio(run, tmp_path / "errors", "legacy") as session:
        found = session.ask("check_fact", **{**fact, "tail": "link 9"})
        assert (found["known"], found["other_tails"]) == (True, ["link 2"])


def test_reading_writes_nothing(home: Path, reading_url: str) -> None:
    with over_http(reading_url) as session:
        session.ask("check_fact", head="link 4", relation="next", tail="link 5")
    assert not list((home / "run").glob("facts.sqlite*"))


def test_tokens(home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    service = Service(run, ServeSettings(token=TOKEN, write_token=WRITE_TOKEN))
    fact = {"head": "link 1", "relation": "next", "tail": "link 7"}
    with serving(service, app=guarded(service)) as url:
        for wrong in (None, "wrong"):
            headers = {} if wrong is None else {"Authorization": f"Bearer {wrong}"}
            reply = request(url + PATH, {}, headers=headers)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        with over_http(url, "legacy", TOKEN) as session:
            assert session.ask("find_entity", text="link 3")["entities"]
            assert "token for changes" in session.error("add_fact", **fact)
        with over_http(url, "auto", WRITE_TOKEN) as session:
            assert session.ask("add_fact", **fact)["changed"] is True


def test_requests_of_other_hosts_and_origins_are_refused(reading_url: str) -> None:
    url = reading_url + PATH
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    reply = request(url, body, headers=accept)
    assert reply.status == 200
    assert len(reply.json["result"]["tools"]) == len(READING)
    assert request(url, body, headers={**accept, "Host": "evil.example"}).status == 421
    origin = {"Origin": "http://evil.example"}
    assert request(url, body, headers={**accept, **origin}).status == 403
    same = {"Origin": reading_url}
    assert request(url, body, headers={**accept, **same}).status == 200
    assert request(url, body, headers={**accept, "Content-Type": "text/plain"}).status == 415
    assert request(url).status == 405
    assert request(reading_url + "/v1/relations").status == 404
    assert request(url, b"{", headers=accept).status == 400
    assert request(url, b"x" * (3 << 20), headers=accept).status == 413


@contextmanager
def process(run: Path, *options: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    started = subprocess.Popen(
        command(run, *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def test_stdout_has_only_the_protocol_and_a_closed_stdin_ends_the_server(
    home: Path, tmp_path: Path
) -> None:
    garbage = ["", "{", "nonsense", "[1, 2]", '{"jsonrpc": "2.0"}', r'"\ud800"', "null"]
    asked = [
        INITIALIZE,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": 5}},
        {"jsonrpc": "2.0", "id": 3, "method": "nothing"},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/list"},
    ]
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    with process(run, "--json", "--allow-changes") as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for line in [*garbage, *map(json.dumps, asked)]:
            server.stdin.write(line + "\n")
        server.stdin.flush()
        replies: dict[int, Any] = {}
        while 4 not in replies:
            reply = json.loads(server.stdout.readline())
            assert reply["jsonrpc"] == "2.0"
            if reply.get("id") is not None:
                replies[reply["id"]] = reply
        assert replies[1]["result"]["serverInfo"]["name"] == "oneshot"
        tools = [tool["name"] for tool in replies[4]["result"]["tools"]]
        assert tools == [*READING, *WRITING]
        assert replies[2]["error"]["code"] == -32602
        assert replies[3]["error"]["code"] == -32601
        out, errors = server.communicate(timeout=60)  # closes stdin
        assert server.returncode == 0
        assert out == ""
        assert "is served on stdin and stdout" in errors
        assert not INSIDE.search(errors), errors


def test_an_interrupt_ends_the_server_over_stdio(home: Path) -> None:
    with process(home / "run") as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdin.write(json.dumps(INITIALIZE) + "\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        # Answers that are not read fill the pipe: the server waits in both directions.
        for number in range(2, 42):
            asked = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
            server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        assert server.stdout.read(1000)
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert not INSIDE.search(server.stderr.read())


def test_the_command_serves_over_http_until_it_is_stopped(home: Path) -> None:
    options = ("--http", "--port", "0", "--json")
    with process(home / "run", *options, ONESHOT_TOKEN=TOKEN) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        url = json.loads(server.stdout.readline())["url"]
        assert url.endswith(PATH)
        assert request(url, {}).status == 401
        with over_http(url.removesuffix(PATH), token=TOKEN) as session:
            assert list(session.tools()) == READING
            assert session.ask("find_entity", text="link 3")["entities"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        assert server.stdout.read() == ""
        assert not INSIDE.search(server.stderr.read())


def test_a_missing_package_is_named_with_its_extra(
    run: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    result = run("mcp", home / "run")
    assert (result.code, result.out) == (2, "")
    assert "an MCP server needs the package 'mcp': pip install" in result.err
    assert "one-shot-subgraph[mcp]" in result.err


def test_a_run_that_is_not_there(run: Command, tmp_path: Path) -> None:
    result = run("mcp", tmp_path / "none", "--http", "--port", "0")
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert "none" in result.err


def test_a_task_ends_when_its_time_is_over(home: Path) -> None:
    service = Service(home / "run", ServeSettings(read_only=True))
    service.start()
    try:
        steps = []

        def endless(_: Reasoner, proceed: Callable[[], None]) -> None:
            while True:
                steps.append(1)
                proceed()
                time.sleep(0.001)

        with pytest.raises(ExpiredError):
            service.engine.run(endless, time.monotonic() + 0.2).result(60)
        assert len(steps) > 1
        abandoned = service.engine.run(endless, time.monotonic() + 1e6)
        count = len(steps)
        wait_for(lambda: len(steps) > count)
        abandoned.cancel()
        found = service.engine.run(lambda one, _: one.graph.num_facts, time.monotonic() + 60)
        assert found.result(60) == (service.live.num_facts, 0)
    finally:
        service.stop()


def _value(generator: random.Random) -> Any:
    """An argument that may suit or not."""
    return generator.choice(
        [
            f"link {generator.randrange(32)}",
            f"link {generator.randrange(32)}",
            generator.choice(["next", "after", "before", "next⁻¹", "nxt"]),
            "",
            " ",
            "link",
            "x" * generator.choice([10, 1024, 5000]),
            "".join(map(chr, (generator.randrange(1, 0xD800) for _ in range(8)))),
            generator.choice([0, 1, 3, -1, 100, 101, 10**9, 2**70, 1e300, 2.0, 0.5]),
            generator.choice([None, True, False, [], {}, [[]], {"a": {"b": 1}}]),
            [f"link {generator.randrange(31)}" for _ in range(generator.randrange(13))],
        ]
    )


def _arguments(schema: dict[str, Any], generator: random.Random) -> dict[str, Any]:
    """Arguments of a tool: mostly of the right form, some of them wrong, missing or too many."""
    found: dict[str, Any] = {}
    for name, part in schema["properties"].items():
        if name not in schema.get("required", ()) and generator.random() < 0.6:
            continue
        if generator.random() < 0.15:
            found[name] = _value(generator)
        elif name == "relation":
            found[name] = generator.choice(["next", "after", "before"])
        elif part["type"] == "string":
            found[name] = f"link {generator.randrange(30)}"
        elif part["type"] == "integer":
            found[name] = generator.randint(part["minimum"], part["maximum"])
        elif part["type"] == "boolean":
            found[name] = generator.random() < 0.5
        else:
            found[name] = [f"link {generator.randrange(30)}"]
    if generator.random() < 0.05:
        found["more"] = _value(generator)
    if found and generator.random() < 0.05:
        del found[generator.choice(list(found))]
    return found


@pytest.mark.parametrize("calls", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_call_breaks_the_server(
    home: Path, tmp_path: Path, calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    generator = random.Random(calls)
    outcomes = {name: [0, 0] for name in [*READING, *WRITING]}
    service = Service(run)
    with serving(service, app=guarded(service)) as url, over_http(url, "legacy") as session:
        tools = session.tools()
        for _ in range(calls):
            if generator.random() < 0.03:
                with pytest.raises(MCPError, match="unknown tool"):
                    session.raw(generator.choice(["", "x" * 3000, "⁻¹", "Predict"]), {})
                continue
            name = generator.choice(list(tools))
            arguments = _arguments(tools[name].input_schema, generator)
            result = session.raw(name, arguments)
            (content,) = result.content
            assert isinstance(content, types.TextContent)
            outcomes[name][result.is_error] += 1
            if result.is_error:
                assert 0 < len(content.text) <= 500
                assert "\n" not in content.text
                assert not INSIDE.search(content.text), (name, arguments, content.text)
            else:
                assert len(content.text) < 200_000
        assert session.ask("predict", entity="link 1", relation="next")["answers"]
    assert all(answered and refused for answered, refused in outcomes.values()), outcomes
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
