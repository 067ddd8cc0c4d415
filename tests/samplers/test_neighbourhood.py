"""Tests of the entities of highest PPR, and of neighbourhoods as graphs."""

from pathlib import Path

import pytest
import torch
from tests.support.commands import Command
from tests.support.graphs import random_graph
from tests.support.samples import chain_world, trained_run, write_world

import oneshot
from oneshot.data.load import load
from oneshot.data.synthetic.generators import power_law
from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.hub_index import HubIndex
from oneshot.samplers import push_recall
from oneshot.samplers._hubs import build_hub_index
from oneshot.samplers._pagerank import ppr
from oneshot.samplers.neighbourhood import neighbourhood, top_ppr


@pytest.mark.parametrize("exact", [True, False])
def test_the_highest_scores_come_first_with_an_error_that_holds(exact: bool) -> None:
    graph = power_law(2000, 9000).graph
    entities = torch.tensor([0, 1, int(graph.neighbours.degree.argmax())])
    scores = ppr(graph, entities, tolerance=1e-12, max_steps=300, dtype=torch.float64)
    found = top_ppr(graph, entities, 50, exact=exact)
    assert found.entities.shape == found.scores.shape == found.error.shape == (3, 50)
    for row in range(3):
        valid = found.entities[row] >= 0
        best = found.entities[row, valid]
        assert (found.scores[row].diff() <= 0).all()
        error = (found.scores[row, valid] - scores[row, best]).abs()
        assert (error <= found.error[row, valid] + 1e-6).all()
        least = scores[row].topk(50).values[-1]
        assert float((scores[row, best] >= least * 0.999).float().mean()) >= 0.9


def test_top_is_an_argument_of_ppr() -> None:
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2], [3, 0, 4]], 5, 1)
    found = oneshot.ppr(graph, torch.tensor([1, 3]), top=4)
    assert found.entities.tolist() == [[1, 0, 2, -1], [3, 4, -1, -1]]
    assert oneshot.ppr(graph, torch.tensor([1])).shape == (1, 5)
    assert found.scores[:, :2].sum(1).tolist()[1] == pytest.approx(1)
    with pytest.raises(InputError, match="top must be at least 1"):
        oneshot.ppr(graph, torch.tensor([1]), top=0)
    with pytest.raises(InputError, match="entity id 9"):
        oneshot.ppr(graph, torch.tensor([9]), top=2)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seeds", [[3], [3, 17], [0, 5, 9]])
def test_a_neighbourhood_is_a_graph_around_the_seeds(exact: bool, seeds: list[int]) -> None:
    graph = random_graph(4, 60, 120)
    found = neighbourhood(graph, torch.tensor(seeds), 15, exact=exact)
    scores = ppr(graph, torch.tensor(seeds), tolerance=1e-12, max_steps=300).mean(0)
    assert set(seeds) <= set(found.entities.tolist())
    assert len(found.entities) <= 15
    assert found.scores.numpy() == pytest.approx(scores[found.entities].numpy(), abs=2e-3)
    others = [e for e in found.entities.tolist() if e not in seeds]
    rest = [e for e in range(60) if e not in found.entities.tolist()]
    assert float(scores[others].min()) >= float(scores[rest].max()) - 2e-3
    inside = torch.isin(graph.facts[:, [0, 2]].long(), found.entities).all(1)
    assert sorted(found.facts.tolist()) == sorted(graph.facts[inside].tolist())


def test_exact_scores_do_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = power_law(500, 900).graph  # some components are smaller than 40 entities
    entities = torch.arange(0, 500, 23)
    expected = ppr(graph, entities, tolerance=1e-12, max_steps=300, dtype=torch.float64)
    whole = top_ppr(graph, entities, 40, exact=True)
    monkeypatch.setattr("oneshot.samplers.neighbourhood.block_size", lambda _: 3)
    for found in (whole, top_ppr(graph, entities, 40, exact=True)):
        for row in range(len(entities)):
            size = min(int((expected[row] > 0).sum()), 40)
            assert int((found.entities[row] >= 0).sum()) == size
            assert (found.entities[row, size:] == -1).all()
            assert (found.scores[row, size:] == 0).all()
            assert (found.scores[row].diff() <= 0).all()
            best = expected[row].topk(size).values.float().numpy()
            assert found.scores[row, :size].numpy() == pytest.approx(best, abs=1e-6)
    top = neighbourhood(graph, entities, 60, exact=True)
    assert top.scores.numpy() == pytest.approx(expected.mean(0)[top.entities].numpy(), abs=1e-6)


def test_the_hub_index_and_the_precision_of_the_graph_are_used() -> None:
    graph = power_law(4000, 30_000).graph
    entities = torch.tensor([5, 77, 901])
    without = top_ppr(graph, entities, 100, exact=False)
    near = neighbourhood(graph, entities, 100, exact=False)
    assert near.method == "push"
    degree = graph.neighbours.degree
    scores = ppr(graph, entities, tolerance=1e-12, max_steps=300, dtype=torch.float64).mean(0)
    assert ((near.scores - scores[near.entities]).abs() <= near.error + 1e-6).all()
    assert near.error.numpy() == pytest.approx(
        (near.error[0] / degree[near.entities[0]] * degree[near.entities]).numpy()
    )
    graph.push_precision = 0.4
    assert float(top_ppr(graph, entities, 100, exact=False).error.sum()) > float(
        without.error.sum()
    )
    graph.push_precision, graph.hub_index = None, build_hub_index(graph, 100)
    with_index = top_ppr(graph, entities, 100, exact=False)
    assert with_index.error.isnan().all()
    assert not torch.equal(with_index.scores, without.scores)
    near = neighbourhood(graph, entities, 100, exact=False)
    assert near.method == "hub index"
    assert near.error.isnan().all()
    assert near.scores.numpy() == pytest.approx(scores[near.entities].numpy(), abs=2e-3)
    # The index is for one restart.
    other = top_ppr(graph, entities, 100, 0.3, exact=False)
    assert not other.error.isnan().any()
    assert neighbourhood(graph, entities, 100).method == "exact"  # of a small graph
    assert oneshot.ppr(graph, entities, top=100, exact=False).error.isnan().all()
    assert not oneshot.ppr(graph, entities, top=100, exact=True).error.isnan().any()
    with pytest.raises(InputError, match="exact is for top"):
        oneshot.ppr(graph, entities, exact=True)  # type: ignore[call-overload]


def test_the_command_states_the_method_and_the_errors(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "data", chain_world(20))
    trained_run(tmp_path / "data", tmp_path / "run")
    asked = ("neighbourhood", tmp_path / "run", "link 3")
    value = run(*asked, "--json").json
    assert value["method"] == "exact"
    assert all(row["error"] <= 1e-6 for row in value["entities"])
    assert "the scores are exact" in run(*asked).err
    monkeypatch.setattr("oneshot.samplers.neighbourhood._LARGE_GRAPH", 1)
    value = run(*asked, "--json").json
    assert value["method"] == "push"
    assert all(row["error"] >= 0 for row in value["entities"])
    assert "wrong by at most" in run(*asked).err
    monkeypatch.setattr("oneshot.samplers.neighbourhood.hub_index_for", with_index)
    value = run(*asked, "--json").json
    assert value["method"] == "hub index"
    assert all(row["error"] is None for row in value["entities"])
    assert "their errors are unknown" in run(*asked).err


def with_index(graph: AdjacencyGraph, restart: float) -> HubIndex | None:
    return build_hub_index(graph, restart=restart)


def test_a_neighbourhood_needs_seeds_and_room_for_them() -> None:
    graph = random_graph(4)
    with pytest.raises(InputError, match="at least one seed"):
        neighbourhood(graph, torch.tensor([], dtype=torch.long))
    with pytest.raises(InputError, match="at least the number of seeds, 3, not 2"):
        neighbourhood(graph, torch.tensor([0, 1, 2]), 2)


def test_the_command_prints_entities_and_the_facts_between_them(
    run: Command, tmp_path: Path
) -> None:
    write_world(tmp_path / "data", chain_world(20))
    trained_run(tmp_path / "data", tmp_path / "run")
    value = run("neighbourhood", tmp_path / "run", "link 3", "link 4", "--top", 6, "--json").json
    assert value["seeds"] == ["link 3", "link 4"]
    assert {"link 3", "link 4"} <= {row["entity"] for row in value["entities"]}
    assert len(value["entities"]) == 6
    ends = {row[end] for row in value["facts"] for end in ("head", "tail")}
    assert ends <= {row["entity"] for row in value["entities"]}
    assert {"head": "link 3", "relation": "next", "tail": "link 4"} in value["facts"]
    assert "around link 3" in run("neighbourhood", tmp_path / "run", "link 3").out
    wrong = run("neighbourhood", tmp_path / "run", "link 333")
    assert wrong.code == 2
    assert "link 3" in wrong.err


def test_saving_measures_the_push_where_it_may_be_used(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power_law(3000, 20_000).save(tmp_path / "source")
    assert run("data", tmp_path / "source", "--save", tmp_path / "small", "--json").json[
        "push_recall"
    ] is None  # fmt: skip
    monkeypatch.setattr(push_recall, "LOCAL_LEAST_GRAPH", 1000)
    monkeypatch.setattr(push_recall, "BALL_LARGEST_HUB", 100)
    saved = run("data", tmp_path / "source", "--save", tmp_path / "large", "--json").json
    assert 0.9 < saved["push_recall"] <= 1
    assert load(tmp_path / "large").graph.push_recall == saved["push_recall"]
    assert "the local push finds" in run("data", tmp_path / "large", "--save", tmp_path / "b").err
