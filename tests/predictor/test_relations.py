"""Tests of relative relations: the formulas, invariance, unusual graphs, kernels and the cache."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.graphs import random_graph, random_queries
from tests.support.samples import tiny_predictor
from torch import Tensor

from oneshot.compiled import library
from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.graph import relation_graph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.predictor import Predictor
from oneshot.predictor.relations import RelationNetwork
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import FittedSampler, PPRSampler

SETTINGS: dict[str, Any] = {"message": "nbfnet", "relations": "relative", "priors": True}


def relative_predictor(graph: KnowledgeGraph, **settings: Any) -> Predictor:
    """A predictor in float64 on the relations of a graph."""
    predictor = tiny_predictor(num_relations=graph.num_relations, dim=4, **(SETTINGS | settings))
    predictor.relate(graph.relation_graph)
    return predictor


def scores_of(graph: KnowledgeGraph, queries: Tensor, **settings: Any) -> Tensor:
    """The scores of all entities, [n · V], by a predictor that is the same for all graphs."""
    reasoner = Reasoner(
        graph, PPRSampler(1.0, keep_unreachable=True), relative_predictor(graph, **settings)
    )
    batch = reasoner.sampler.sample(graph, queries)
    with torch.no_grad():
        return reasoner.predictor(batch)


def relabelled(graph: KnowledgeGraph, label: Tensor, count: int) -> KnowledgeGraph:
    """The graph with another id for each relation, among `count` relations."""
    facts = graph.facts.long().clone()
    facts[:, 1] = label[facts[:, 1]]
    return KnowledgeGraph.from_facts(facts, graph.num_entities, count)


def states_by_hand(network: RelationNetwork, graph: KnowledgeGraph, query: int) -> np.ndarray:
    """The states relative to one query relation, from sets of answers, pair by pair."""
    table = {name: value.double().numpy() for name, value in network.state_dict().items()}
    count, size = graph.num_relations, 2 * graph.num_relations
    answers: list[set[int]] = [set() for _ in range(size)]
    pairs: list[set[tuple[int, int]]] = [set() for _ in range(size)]
    facts = np.zeros(size)
    for head, relation, tail in graph.facts.tolist():
        answers[relation].add(tail)
        answers[relation + count].add(head)
        pairs[relation].add((head, tail))
        pairs[relation + count].add((tail, head))
        facts[[relation, relation + count]] += 1

    def inverse(relation: int) -> int:
        return (relation + count) % size

    def share(part: int, whole: int, sets: list[set[Any]] = answers) -> float:
        value = len(sets[part] & sets[whole]) / max(len(sets[whole]), 1)
        return math.log1p(value / 1e-3) / math.log1p(1 / 1e-3)

    def shape(relation: int) -> list[float]:
        values = []
        for one in (relation, inverse(relation)):
            per_answer = max(facts[one] / max(len(answers[one]), 1), 1.0)
            values.append(math.log(per_answer) / 4)
            values.append(math.log1p(len(answers[one])) / math.log1p(graph.num_entities))
        return values

    def normalized(row: np.ndarray) -> np.ndarray:
        return np.asarray(row / np.sqrt((row**2).mean() + 1e-6))

    states = []
    for relation in range(size):
        row: list[float] = []
        for asked in (query, inverse(query)):
            for one in (relation, inverse(relation)):
                row += [share(one, asked), share(asked, one)]
        row += [float(relation == query), float(relation == inverse(query))]
        row += shape(relation) + shape(query)
        if network.has_pairs:
            for asked in (query, inverse(query)):
                row += [share(relation, asked, pairs), share(asked, relation, pairs)]
        hidden = np.maximum(table["encode.0.weight"] @ row + table["encode.0.bias"], 0)
        states.append(normalized(table["encode.2.weight"] @ hidden + table["encode.2.bias"]))
    for number in range(len(network.layers)):

        def mean(
            relation: int,
            turned: bool,
            sets: list[set[Any]] = answers,
            states: list[np.ndarray] = states,
        ) -> np.ndarray:
            total, weight = np.zeros(network.dim), 0.0
            for other in range(size):
                if other != relation:
                    root = math.sqrt(len(sets[relation] & sets[other]))
                    total = total + root * states[inverse(other) if turned else other]
                    weight += root
            return np.asarray(total / max(weight, 1.0))

        following = []
        for relation in range(size):
            back = inverse(relation)
            parts = [states[relation], states[back], mean(relation, False), mean(back, False)]
            parts += [mean(relation, True), mean(back, True)]
            if network.has_pairs:
                parts.append(mean(relation, False, pairs))
            new = table[f"layers.{number}.weight"] @ np.concatenate(parts)
            new = np.maximum(new + table[f"layers.{number}.bias"], 0)
            following.append(normalized(states[relation] + new))
        states = following
    return np.stack([*states, table["identity"]])


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("query", [0, 4])
def test_states_follow_the_formulas(query: int, pairs: bool) -> None:
    graph = random_graph(4, 12, 60, 3)
    network = relative_predictor(graph, relation_pairs=pairs).relation_network
    assert network is not None
    found = network(graph.relation_graph, torch.tensor([query, 1, query])).detach()
    expected = states_by_hand(network, graph, query)
    for row in (0, 2):
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("most", [0, 10_000])
def test_the_numbering_of_relations_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, most: int, pairs: bool
) -> None:
    """Also with relations between them that have no facts; with dense and sparse counts."""
    monkeypatch.setattr(relation_graph, "MAX_DENSE", most)
    graph = random_graph(2, 25, 60, 4)
    queries = random_queries(graph, 6, 1)
    expected = scores_of(graph, queries, relation_pairs=pairs)
    label = torch.tensor([5, 2, 0, 3])
    changed = relabelled(graph, label, 6)
    moved = queries.clone()
    moved[:, 1] = label[queries[:, 1] % 4] + (queries[:, 1] >= 4) * 6
    found = scores_of(changed, moved, relation_pairs=pairs)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-6)
    assert float(expected.std()) > 1e-3


def test_copies_of_a_relation_have_the_same_scores() -> None:
    graph = random_graph(3, 25, 60, 3)
    copied = graph.facts.long()[graph.facts[:, 1] == 1].clone()
    copied[:, 1] = 3
    both = KnowledgeGraph.from_facts(torch.cat([graph.facts.long(), copied]), 25, 4)
    entities = torch.arange(5)
    for direction in (0, 4):
        one = scores_of(both, torch.stack([entities, torch.full((5,), 1 + direction)], 1))
        other = scores_of(both, torch.stack([entities, torch.full((5,), 3 + direction)], 1))
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-6)


def test_parameters_do_not_depend_on_the_relations() -> None:
    small, large = (
        {name: value.shape for name, value in Predictor(config, count).state_dict().items()}
        for config in [PredictorConfig(**SETTINGS)]
        for count in (1, 5000)
    )
    assert small == large


def test_five_thousand_relations() -> None:
    generator = np.random.default_rng(0)
    facts = generator.integers([300, 5000, 300], size=(8000, 3))
    graph = KnowledgeGraph.from_facts(facts, 300, 5000)
    assert not isinstance(graph.relation_graph.joint, Tensor)
    config = PredictorConfig(num_layers=2, dim=8, relation_pairs=True, **SETTINGS)
    predictor = Predictor(config, 5000)
    reasoner = Reasoner(graph, PPRSampler(0.5), predictor)
    queries = torch.tensor([[0, 17], [5, 9999]])
    batch, scores = reasoner.reason(queries)
    assert bool(scores.isfinite().all())
    # The same with dense counts.
    every = torch.arange(10_000)
    counts = graph.relation_graph
    tables = (counts.rows(every), counts.rows_of_pairs(every))
    dense = relation_graph.RelationGraph(*tables, counts.facts, 300)
    predictor.relate(dense)
    with torch.no_grad():
        torch.testing.assert_close(predictor(batch), scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("facts", [[], [(0, 0, 1)], [(0, 0, 1), (1, 1, 2), (2, 1, 0)]])
def test_relations_with_few_facts_or_none(facts: list[tuple[int, int, int]]) -> None:
    """Relation 2 has no facts, relation 0 at most one."""
    array = np.array(facts, np.int64).reshape(-1, 3)
    graph = KnowledgeGraph.from_facts(array, 4, 3)
    queries = torch.tensor([[0, relation] for relation in range(6)])
    assert bool(scores_of(graph, queries).isfinite().all())
    assert bool(scores_of(graph, queries, aggregate="pna", norm=True).isfinite().all())


@pytest.mark.skipif(library() is None, reason="the package was installed without a C compiler")
@pytest.mark.parametrize("aggregate", ["sum", "pna"])
def test_kernels_and_plain_operations_agree(aggregate: str) -> None:
    graph = random_graph(6, 50, 150, 3)
    shape = PredictorConfig(num_layers=3, dim=16, norm=True, aggregate=aggregate, **SETTINGS)
    torch.manual_seed(0)
    predictor = Predictor(shape, 3)
    predictor.relate(graph.relation_graph)
    batch = PPRSampler(0.8).sample(graph, random_queries(graph, 5, 2))
    found = []
    for engine in ("fused", "plain"):
        predictor.engine = engine
        predictor.zero_grad()
        scores = predictor(batch)
        scores.square().sum().backward()
        gradients = [p.grad for p in predictor.parameters() if p.grad is not None]
        found.append((scores.detach(), torch.cat([g.reshape(-1) for g in gradients])))
    (scores, gradient), (expected, wanted) = found
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
    assert float((gradient - wanted).norm()) < 1e-3 * float(wanted.norm())
    assert float(wanted.norm()) > 0


def test_cached_states_follow_parameters_and_graph() -> None:
    graph = random_graph(1, 20, 40, 3)
    network = relative_predictor(graph).relation_network
    assert network is not None
    asked = torch.tensor([2, 0, 2])

    def check(current: KnowledgeGraph) -> Tensor:
        with torch.no_grad():
            cached = network(current.relation_graph, asked)
            again = network(current.relation_graph, asked)
        expected = network.states(current.relation_graph, asked).detach()
        torch.testing.assert_close(cached, expected)
        assert torch.equal(again, cached)
        return cached

    first = check(graph)
    with torch.no_grad():
        network.identity += 1
        network.layers[0].weight.mul_(0.5)  # type: ignore[union-attr, operator]
    second = check(graph)
    assert not torch.allclose(first[:, :-1], second[:, :-1])
    third = check(random_graph(2, 20, 40, 3))
    assert not torch.allclose(second, third)


def test_a_changed_graph_changes_the_states() -> None:
    base = random_graph(4, 15, 30, 2)
    live = LiveGraph(base)
    reasoner = Reasoner(base, FittedSampler(1.0), relative_predictor(base).float())
    before = reasoner.score("0", "0", "1")
    names = base.entities
    live.add([(names[i], "1", names[i + 5]) for i in range(6)])
    reasoner.graph = live.graph()
    after = reasoner.score("0", "0", "1")
    fresh = Reasoner(live.graph().compacted, FittedSampler(1.0), relative_predictor(base).float())
    assert after == pytest.approx(fresh.score("0", "0", "1"), abs=1e-5)
    assert after != pytest.approx(before, abs=1e-6)


def test_wrong_use() -> None:
    with pytest.raises(InputError, match="nbfnet"):
        PredictorConfig(relations="relative")
    graph = random_graph(0)
    predictor = Predictor(PredictorConfig(**SETTINGS), 3)
    batch = PPRSampler(0.5).sample(graph, torch.tensor([[0, 0]]))
    with pytest.raises(InputError, match="relate"):
        predictor(batch)
