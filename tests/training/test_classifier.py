"""Classes of entities and of sets of entities, from the subgraph around them."""

import networkx as nx
import numpy as np
import pytest
import torch

import oneshot
from oneshot.errors import InputError, UnknownNameError
from oneshot.training.classifier import SubgraphClassifier


def graph_of(*parts: nx.Graph) -> tuple[oneshot.KnowledgeGraph, list[list[int]]]:
    """The union of some graphs with one relation, and the entities of each."""
    facts, members, size = [], [], 0
    for part in parts:
        part = nx.convert_node_labels_to_integers(part, size)
        facts += [(x, 0, o) for x, o in part.edges]
        members.append(list(part.nodes))
        size += len(part)
    names = [f"e{number}" for number in range(size)]
    return oneshot.KnowledgeGraph.from_facts(torch.tensor(facts), names, ["linked"]), members


def test_graphs_are_classified_by_their_shape() -> None:
    sizes = [5, 6, 7, 8] * 5
    parts = [make(size) for size in sizes for make in (nx.cycle_graph, nx.star_graph)]
    graph, members = graph_of(*parts)
    labels = np.array(["cycle", "star"] * len(sizes))
    widest = max(map(len, members))
    sets = np.array([some + [-1] * (widest - len(some)) for some in members])
    classifier = SubgraphClassifier(graph, epochs=6, batch_size=5, learning_rate=0.01, device="cpu")
    assert classifier.fit(sets[:20], labels[:20], (sets[20:28], labels[20:28])) is classifier
    assert classifier.classes_.tolist() == ["cycle", "star"]
    assert classifier.score(sets[28:], labels[28:]) == 1.0
    assert classifier.predict_proba(sets[28:]).sum(1) == pytest.approx(1)
    assert [set(record) for record in classifier.history_] == [{"loss", "valid_accuracy"}] * 6
    # By name, and in any order.
    names = [[f"e{number}" for number in reversed(some)] for some in members[28:32]]
    assert classifier.predict(names).tolist() == ["cycle", "star"] * 2


def test_the_classes_of_other_entities_in_the_subgraph_are_an_input_and_the_own_is_not() -> None:
    # Paths whose entities have one class each: nothing else than the labels shows it.
    graph, members = graph_of(*(nx.path_graph(6) for _ in range(20)))
    labels = np.repeat(np.random.default_rng(0).integers(2, size=20), 6)
    ends = np.array([some[0] for some in members])
    rest = np.setdiff1d(np.arange(len(labels)), ends)

    def accuracy(use_labels: bool) -> float:
        classifier = SubgraphClassifier(
            graph,
            oneshot.PPRSampler(max_entities=6),
            use_labels=use_labels,
            epochs=3,
            batch_size=100,
            device="cpu",
        )
        classifier.fit(rest, labels[rest])
        # An entity alone in its subgraph has no other input than its own class.
        classifier.sampler = oneshot.PPRSampler(max_entities=1)
        alone = classifier.predict_proba(rest)
        assert np.ptp(alone, axis=0) == pytest.approx(0, abs=1e-5)
        classifier.sampler = oneshot.PPRSampler(max_entities=6)
        return classifier.score(ends, labels[ends])

    assert accuracy(use_labels=True) == 1.0
    assert accuracy(use_labels=False) < 0.9


def test_wrong_use_is_reported() -> None:
    graph, members = graph_of(nx.path_graph(4), nx.path_graph(4))
    classifier = SubgraphClassifier(graph, epochs=1, device="cpu")
    with pytest.raises(InputError, match="call `fit` first"):
        classifier.predict([0])
    with pytest.raises(InputError, match="one class per source"):
        classifier.fit([0, 1], ["a"])
    with pytest.raises(InputError, match="at least two classes"):
        classifier.fit([0, 1], ["a", "a"])
    with pytest.raises(UnknownNameError, match="e99"):
        classifier.fit(["e99", "e1"], ["a", "b"])
    for options in ({"members": 2}, {"relations": "relative", "message": "nbfnet"}):
        with pytest.raises(InputError, match="one member"):
            SubgraphClassifier(graph, predictor=oneshot.PredictorConfig(**options))
    labelled = SubgraphClassifier(graph, use_labels=True, epochs=1, device="cpu")
    with pytest.raises(InputError, match="single entities"):
        labelled.fit(members, ["a", "b"])
