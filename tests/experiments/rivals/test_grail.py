"""GraILCoupling: enclosing subgraphs as a plain search finds them, and the re-ranking."""

from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import random_graph, random_queries

from oneshot.config import PredictorConfig
from oneshot.errors import InputError
from oneshot.experiments.rivals.coupling import Chosen, CoupledReasoner
from oneshot.experiments.rivals.enclosing import enclosing_subgraphs
from oneshot.experiments.rivals.grail import GraILCoupling, known_answers, reordered
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler

CONFIG = PredictorConfig(num_layers=2, dim=6)


def _steps(graph: KnowledgeGraph, start: int, closed: int, hops: int) -> dict[int, int]:
    """The distances from an entity on paths that do not go through another one."""
    linked: dict[int, set[int]] = {}
    for head, _, tail in graph.facts.tolist():
        linked.setdefault(head, set()).add(tail)
        linked.setdefault(tail, set()).add(head)
    found, queue = {start: 0}, deque([start])
    while queue:
        entity = queue.popleft()
        if found[entity] == hops or (entity == closed and entity != start):
            continue
        for other in linked.get(entity, ()):
            if other not in found:
                found[other] = found[entity] + 1
                queue.append(other)
    return found


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_enclosing_subgraphs_are_those_of_a_plain_search(seed: int, hops: int) -> None:
    graph = random_graph(seed, entities=14, facts=30)
    queries, count = random_queries(graph, 4, seed), graph.num_relations
    heads, relations = queries.unbind(1)
    tails = random_queries(graph, 4, seed + 1)[:, 0]
    batch = enclosing_subgraphs(graph, heads, relations, tails, hops)
    for pair, (head, relation, tail) in enumerate(
        zip(heads.tolist(), relations.tolist(), tails.tolist(), strict=True)
    ):
        near, far = _steps(graph, head, tail, hops), _steps(graph, tail, head, hops)
        expected = {entity: (near[entity], far[entity]) for entity in near.keys() & far.keys()}
        expected[head] = (0, 1)
        expected[tail] = (1, 0)
        rows = (batch.pair == pair).nonzero().squeeze(1)
        steps = zip(batch.to_head[rows].tolist(), batch.to_tail[rows].tolist(), strict=True)
        found = dict(zip(batch.entities[rows].tolist(), steps, strict=True))
        assert found == expected
        assert int(batch.entities[batch.head[pair]]) == head
        assert int(batch.entities[batch.tail[pair]]) == tail
        facts = [(h, r, t) for h, r, t in graph.facts.tolist()]
        both = facts + [(t, r + count, h) for h, r, t in facts]
        hidden = {(head, relation, tail), (tail, (relation + count) % (2 * count), head)}
        wanted = sorted(e for e in both if e not in hidden and {e[0], e[2]} <= expected.keys())
        mine = batch.pair[batch.edges[2]] == pair
        source, label, target = batch.edges[:, mine]
        columns = (batch.entities[source], label, batch.entities[target])
        assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == wanted
    assert batch.edges[2].equal(batch.edges[2].sort().values)


def _coupling(graph: KnowledgeGraph, candidates: int = 4) -> GraILCoupling:
    torch.manual_seed(0)
    predictor = Predictor(CONFIG, graph.num_relations)
    retriever = Reasoner(graph, PPRSampler(entity_ratio=0.5), predictor)
    return GraILCoupling(
        CONFIG, graph.num_relations, retriever, candidates=candidates, negatives=3, hops=2
    )


def test_only_the_best_candidates_change_places() -> None:
    graph = random_graph(1, facts=120)
    queries = random_queries(graph, 5, 1)
    coupling = _coupling(graph)
    reasoner = CoupledReasoner(graph, coupling)
    seen: list[Chosen] = []
    batch, scores = reasoner.reason(queries, watch=seen.append)
    _, before = coupling.retriever.reason(queries)
    rows = batch.find_pairs(seen[0].query, seen[0].entities)
    again = coupling.pair_scores(graph, queries, seen[0].query, seen[0].entities)
    changed = torch.zeros(batch.num_entities, dtype=torch.bool)
    changed[rows] = True
    assert scores[~changed].equal(before[~changed])
    known = set(zip(*(part.tolist() for part in known_answers(graph, queries)), strict=True))
    for query in range(5):
        mine = seen[0].query == query
        assert int(mine.sum()) == 4
        assert scores[rows[mine]].argsort().equal(again[mine].argsort())
        others_of = (batch.entity_query == query) & ~changed
        assert float(scores[rows[mine]].min()) > float(scores[others_of].max())
        entities = seen[0].entities[mine].tolist()
        assert not any((query, entity) in known for entity in entities)
        # No other entity that is no fact of the graph was better.
        others = [
            float(before[row])
            for row in (batch.entity_query == query).nonzero().squeeze(1).tolist()
            if not changed[row] and (query, int(batch.entities[row])) not in known
        ]
        assert max(others) <= float(before[rows[mine]].min())


def test_known_answers_are_the_facts_of_the_graph() -> None:
    graph = random_graph(2)
    queries = random_queries(graph, 6, 2)
    count = graph.num_relations
    found = sorted(zip(*(part.tolist() for part in known_answers(graph, queries)), strict=True))
    expected = []
    for number, (entity, relation) in enumerate(queries.tolist()):
        for head, label, tail in graph.facts.tolist():
            if (head, label) == (entity, relation):
                expected.append((number, tail))
            if (tail, label + count) == (entity, relation):
                expected.append((number, head))
    assert found == sorted(expected)


def test_reordered_rows_come_first_and_equal_ones_stay_equal() -> None:
    scores = torch.tensor([5.0, 1.0, 3.0, 4.0, 7.0, 7.0])
    number, rows = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 4, 5])
    again = torch.tensor([0.0, 9.0, 2.0, 1.0, 1.0])
    found = reordered(scores, number, rows, again, 3)
    assert found.tolist() == [6.0, 8.0, 7.0, 4.0, 8.0, 8.0]
    # Of rows with the same new score, that with the higher score before is first.
    found = reordered(scores, number, rows, torch.zeros(5), 3)
    assert found.tolist() == [8.0, 6.0, 7.0, 4.0, 8.0, 8.0]


def test_training_candidates_include_the_answer_and_teach_the_network() -> None:
    graph = random_graph(3, facts=120)
    queries = random_queries(graph, 3, 3)
    answers = torch.tensor([29, 5, 28])
    coupling = _coupling(graph).train()
    batch, scores = coupling.training_scores(graph, queries, answers)
    assert batch.find(answers).min() >= 0
    assert batch.num_entities <= 3 * 4
    scores.square().sum().backward()
    assert all(p.grad is not None for p in coupling.parameters())
    # The retriever is neither trained nor saved.
    assert all(p.grad is None for p in coupling.retriever.predictor.parameters())
    assert not any("retriever" in name for name in coupling.state_dict())


def test_facts_that_an_epoch_hides_are_no_negatives() -> None:
    graph = random_graph(5, facts=120)
    coupling = _coupling(graph)
    coupling.negatives = graph.num_entities
    queries = graph.facts[:4, :2].long()
    hidden = torch.ones(graph.num_facts, dtype=torch.bool)
    hidden[::2] = False  # half of the facts are not observed
    batch, _ = coupling.training_scores(graph.subset(hidden), queries, torch.full((4,), 29))
    found = set(zip(batch.entity_query.tolist(), batch.entities.tolist(), strict=True))
    known = set(zip(*(part.tolist() for part in known_answers(graph, queries)), strict=True))
    assert len(found) > 20
    assert not found & known


def test_wrong_options() -> None:
    graph = random_graph(4)
    retriever = _coupling(graph).retriever
    with pytest.raises(InputError, match="must be at least 1"):
        GraILCoupling(CONFIG, graph.num_relations, retriever, hops=0)
    with pytest.raises(InputError, match="relations"):
        GraILCoupling(CONFIG, graph.num_relations + 1, retriever)
