"""The example of the page about MCP: its calls work, and what it tells about the graph is true.

Scores and probabilities are those of a trained run, which the test does not have.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from oneshot.config import Config, PredictorConfig, SamplerConfig
from oneshot.data.load import load
from oneshot.reasoner.answers import Calibration
from oneshot.reasoner.build import build_reasoner
from oneshot.serve.mcp.tools import Tools
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mcp.md").read_text()
EXAMPLE = PAGE[PAGE.index("\n## Example\n") : PAGE.index("\n## Retriever")]
CALL = re.compile(r"^`(\w+) (\{[^\n]*\})`\n\n```json\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
FACT = re.compile(r"^(.*) —(.*)→ (.*)$")
MADE_BY_MODEL = {"probability", "score", "rank", "paths", "evidence", "message"}


def calls() -> list[tuple[str, dict[str, Any], Any]]:
    return [
        (name, json.loads(given), json.loads(out)) for name, given, out in CALL.findall(EXAMPLE)
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What a server with an untrained predictor answers to the calls."""
    run = tmp_path_factory.mktemp("example") / "run"
    shape = PredictorConfig(num_layers=2, dim=4, attention_dim=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = build_reasoner(load("world").graph, Config(SamplerConfig(entity_ratio=0.05), shape))
    made.calibration = Calibration(1.0, 0.0, 9)
    made.save(run)
    service = Service(run, ServeSettings())
    service.start()
    tools = Tools(service).by_name

    async def ask() -> list[Any]:
        return [
            (await tools[name].function(tools[name].arguments(**given))).model_dump(mode="json")
            for name, given, _ in calls()
        ]

    try:
        return asyncio.run(ask())
    finally:
        service.stop()


def test_every_tool_of_a_conversation_is_called() -> None:
    names = [name for name, _, _ in calls()]
    assert len(names) >= 8
    assert {"find_entity", "predict", "check_fact", "relations_between", "add_fact"} <= set(names)


def test_the_results_are_those_of_the_server(results: list[Any]) -> None:
    for (name, given, shown), found in zip(calls(), results, strict=True):
        assert shown.keys() == found.keys(), name
        if name == "predict":
            continue
        if name == "relations_between":
            shown, found = shown["relations"][0], found["relations"][0]
            assert shown.keys() == found.keys()
            continue
        for key, value in found.items():
            if key in MADE_BY_MODEL:
                assert type(shown[key]) is type(value)
            elif key == "entities" and name == "neighbourhood":
                assert [one["entity"] for one in shown[key]] == [one["entity"] for one in value]
            else:
                assert shown[key] == value, (name, given, key)


def test_known_facts_and_evidence_are_facts_of_the_graph() -> None:
    graph = load("world").graph
    facts = {
        (graph.entities[h], graph.relations[r], graph.entities[t])
        for h, r, t in graph.facts.tolist()
    }
    checked = 0
    for name, given, shown in calls():
        if name == "add_fact":
            facts.add((given["head"], given["relation"], given["tail"]))
        if name == "predict":
            for answer in shown["answers"]:
                fact = (given["entity"], given["relation"], answer["entity"])
                assert (fact in facts) == answer["known"]
                checked += 1
        elif name == "relations_between":
            for answer in shown["relations"]:
                assert (as_fact(answer["fact"]) in facts) == answer["known"]
                checked += 1
        elif name == "check_fact":
            for text in shown["evidence"]:
                assert as_fact(text) in facts
                assert text != shown["fact"]
                checked += 1
    assert checked >= 8


def as_fact(text: str) -> tuple[str | Any, ...]:
    found = FACT.match(text)
    assert found is not None
    return found.groups()


def test_replies_quote_the_results() -> None:
    """Each decimal number of a reply is a probability of a result, rounded."""
    quoted = re.findall(
        r"\b\d\.\d+\b", "".join(re.split(r"```json.*?```|`.*?`", EXAMPLE, flags=re.S))
    )
    chances = [float(text) for text in re.findall(r'"probability": ([\d.e-]+)', EXAMPLE)]
    assert quoted
    for number in quoted:
        digits = len(number) - 2
        assert float(number) in {round(chance, digits) for chance in chances}, number
