"""The drawings of the paper's cases: which queries, which colours, and where entities are put."""

import json
import math
from pathlib import Path

import pytest
import torch

import oneshot
from oneshot.experiments.paper import TABLES, literature
from oneshot.experiments.paper.cases import (
    _around,
    _parents,
    answers_in_test,
    colour_relations,
    hops_from,
)

pytest.importorskip("matplotlib", reason="the cases are drawn (extra plot)")

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "paper"


@pytest.fixture(scope="module")
def data() -> oneshot.Dataset:
    return oneshot.load("family:100")


def test_all_cases_of_the_paper_are_measured_with_the_answers_of_the_test_files() -> None:
    rows = json.loads((RESULTS / "cases.json").read_text())["rows"]
    found = {
        (row["data"].removesuffix("-partial"), row["entity"], row["relation"], row["ratio"])
        for row in rows
    }
    assert found == {
        (data, entity, relation, ratio)
        for data, cases in literature.CASES.items()
        for entity, relation, _ in cases
        for ratio in (0.001, 0.01)
    }
    assert len(found) == 70
    assert all(row["as_in_test"] for row in rows)
    images = RESULTS.parents[2] / "docs" / "images" / "paper"
    assert all((images / row["drawing"]).is_file() for row in rows)


def test_answers_in_test_are_those_of_both_directions(data: oneshot.Dataset) -> None:
    head, relation, tail = data.test[0].tolist()
    facts = data.test.tolist()
    forward = {o for x, r, o in facts if (x, r) == (head, relation)}
    assert answers_in_test(data, head, relation) == forward
    inverse = {x for x, r, o in facts if (r, o) == (relation, tail)}
    assert answers_in_test(data, tail, relation + data.graph.num_relations) == inverse


def test_colours_go_to_the_relations_near_the_query_first(data: oneshot.Dataset) -> None:
    queries = torch.tensor([[5, 0]])
    near, far = (
        oneshot.PPRSampler(max_entities=count).sample(data.graph, queries) for count in (3, 80)
    )
    found = colour_relations([near, far], data)
    inside = {relation for relation in near.edges[1].tolist() if relation < 10}
    assert inside
    assert set(list(found)[: len(inside)]) == inside
    assert len({colour for _, colour in found.values()}) == len(found)
    assert all(data.relations[relation] == name for relation, (name, _) in found.items())


def test_entities_are_on_rings_and_children_beside_their_parents(data: oneshot.Dataset) -> None:
    batch = oneshot.PPRSampler(max_entities=60).sample(data.graph, torch.tensor([[5, 0]]))
    distance = hops_from(batch)
    parent = _parents(batch, distance)
    assert set(parent) == {entity for entity, hops in enumerate(distance) if hops > 0}
    assert all(distance[parent[entity]] == distance[entity] - 1 for entity in parent)
    places = _around(distance, parent)
    for entity, hops in enumerate(distance):
        radius = math.hypot(*places[entity]) ** (1 / 0.75)
        assert radius == pytest.approx(hops if hops >= 0 else max(distance) + 0.7, abs=0.25)
    assert len(set(places)) == len(places)


def test_the_finding_counts_queries_once() -> None:
    row = {"data": "a", "entity": 1, "relation": 2, "held": 1, "answers": 1}
    row |= {"neighbours": 2, "neighbours_held": 1, "as_in_test": True}
    rows = [row | {"ratio": ratio} for ratio in (0.001, 0.01)]
    rows += [other | {"entity": 3, "as_in_test": False} for other in rows]
    assert "1 of 2 queries have the answers of the test split" in TABLES["cases"].finding(rows)
