"""The benchmark of classes: its data, its parts and its baselines."""

import numpy as np
import pytest
import torch
from benchmarks.tasks import Task, cities, continents, majority, means, shapes, whole


def test_the_parts_of_a_split_are_disjoint_and_complete() -> None:
    task = shapes(0, per_class=5)
    parts = task.split(3)
    assert [len(part) for part in parts] == [24, 8, 8]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(40))
    assert not np.array_equal(parts[0], task.split(4)[0])


def test_small_graphs_are_components_and_all_their_entities_are_sources() -> None:
    task = shapes(0, per_class=3)
    assert np.bincount(task.labels).tolist() == [3] * 8
    held = task.sources[task.sources >= 0]
    assert torch.equal(held.sort().values, torch.arange(task.graph.num_entities))
    # No fact joins two of them.
    graph_of = torch.empty(task.graph.num_entities, dtype=torch.long)
    for number, some in enumerate(task.sources):
        graph_of[some[some >= 0]] = number
    head, _, tail = task.graph.facts.long().T
    assert torch.equal(graph_of[head], graph_of[tail])


def test_classes_are_not_facts_of_the_graph() -> None:
    task = continents(0)
    names = {task.graph.entities[int(label)] for label in task.labels}
    assert {"Africa", "Asia", "Europe"} < names
    on_continent = task.graph.relations.index("on_continent")
    assert not bool((task.graph.facts[:, 1] == on_continent).any())
    sets = cities(0, per_class=5)
    assert np.bincount(sets.labels).tolist() == [5, 5, 5]
    assert not bool((sets.graph.facts[:, 1] == on_continent).any())
    assert all(len(set(some)) == 3 for some in sets.sources.tolist())


def test_the_most_frequent_class_is_that_of_the_training_part() -> None:
    task = shapes(0, per_class=2)
    labels = np.zeros(16, np.int64)
    train, _, test = task.split(0)
    labels[train] = 1
    assert majority(Task(task.graph, task.sources, labels), 0) == (0.0, 0.0)
    labels[test[: len(test) // 2]] = 1
    assert majority(Task(task.graph, task.sources, labels), 0)[1] == pytest.approx(
        (len(test) // 2) / len(test)
    )


def test_baselines_learn() -> None:
    pytest.importorskip("torch_geometric", reason="baselines of PyTorch Geometric (extra peers)")
    task = shapes(0, per_class=12)
    valid, test = whole(task, 0, "GraphSAGE", epochs=60)
    assert min(valid, test) > 0.3  # a random class is right for 1/8


def test_means_are_over_the_seeds() -> None:
    rows = [
        {"task": "a", "predictor": "b", "accuracy": one, "valid_accuracy": one, "cpu_seconds": 1.0}
        for one in (0.2, 0.4)
    ]
    (found,) = means(rows)
    assert (found["accuracy"], found["lowest"], found["highest"]) == pytest.approx((0.3, 0.2, 0.4))
    assert found["seeds"] == 2
