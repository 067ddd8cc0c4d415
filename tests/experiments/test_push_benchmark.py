"""Tests of the comparison of the push with other packages, and of its tables."""

from typing import Any

import pytest
import torch
from benchmarks import push
from scripts import write_tables

from oneshot.data.synthetic.generators import power_law


def row(cpu_ms: float, recall: float, **more: Any) -> dict[str, Any]:
    return {"cpu_ms": cpu_ms, "recall": recall, "least_recall": recall, **more}


def test_packages_are_compared_at_equal_recall() -> None:
    ours = [
        row(2.0, 0.90, way=push.OUR_PUSH, precision=0.4),
        row(4.0, 0.97, way=push.OUR_PUSH, precision=0.1),
        row(3.0, 0.97, way=push.OUR_PUSH, precision=0.05),  # as a larger precision failed
        row(50.0, 1.0, way=push.WHOLE_GRAPH),
    ]
    for recall, way, cpu_ms, ratio in (
        (0.5, push.OUR_PUSH, 2.0, 30.0),
        (0.95, push.OUR_PUSH, 3.0, 20.0),
        (0.9704, push.OUR_PUSH, 3.0, 20.0),
        (0.98, push.WHOLE_GRAPH, 50.0, 1.2),
    ):
        found = push.at_equal_recall(row(60.0, recall), ours)
        assert (found["our_way"], found["our_cpu_ms"]) == (way, cpu_ms)
        assert found["ratio"] == pytest.approx(ratio)
    assert push.at_equal_recall(row(60.0, 0.99), ours[:3])["ratio"] is None


def test_the_sweep_reaches_every_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "COUNT", 200)
    monkeypatch.setattr(push, "PRECISIONS", (3.2, 0.1, 0.003))
    graph = power_law(5000, 40_000).graph
    entities = torch.tensor([3, 99, int(graph.neighbours.degree.argmax())])
    best = push.exact_selection(graph, entities)
    rows = push.sweep(graph, entities, best, [0, 1, 2])
    assert [one["precision"] for one in rows] == [3.2, 0.1, 0.003]
    recalls = [one["recall"] for one in rows]
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.97
    assert recalls[-1] > 0.995


def test_rows_have_the_provenance_of_their_own_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = write_tables.result("push")
    machine = value["hardware"]
    value["rows"] = [dict(one) for one in value["rows"][:2]]
    value["rows"][0]["hardware"] = machine | {"date": "2027-01-02", "revision": "abc1234"}
    value["rows"][0]["others"] = {
        "queries": 10,
        "ours": [],
        "scipy": row(30.0, 0.99, our_way=push.OUR_PUSH, our_cpu_ms=3.0, ratio=10.0),
        "other": row(30.0, 0.99, our_way=None, ratio=None),
    }
    value["rows"][1].pop("hardware", None)
    value["rows"][1]["others"] = {"scipy": row(30.0, 0.99)}
    monkeypatch.setattr(write_tables, "result", lambda _: value)
    text = write_tables.push()
    first, second = (one["graph"] for one in value["rows"])
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()[2:4]}
    assert "2027-01-02, abc1234" in lines[first]
    assert "2027" not in lines[second]
    assert f"| {first} | scipy | 0.990 | 30.0 ms | 3.0 ms | push | 10.0 × |" in text
    assert f"| {first} | other | 0.990 | 30.0 ms | – | – | – |" in text
    assert f"| {second} | scipy" not in text
    assert "over 10 queries" in text
    assert "abc1234" in text.splitlines()[-1]
