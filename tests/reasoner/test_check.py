"""Tests of the check of one fact: judged without itself, also by predictors without relations."""

import pytest
import torch
from tests.support.samples import chain_world

import oneshot
from oneshot.config import PredictorConfig
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.reasoner.check import check_fact
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler


def relative_reasoner() -> Reasoner:
    data = chain_world(20)
    torch.manual_seed(0)
    shape = PredictorConfig(
        message="nbfnet", relations="relative", num_layers=3, dim=16, gate=False, relation_layers=1
    )
    return Reasoner(data.graph, PPRSampler(1.0), Predictor(shape, data.graph.num_relations))


def test_a_fact_is_judged_without_itself() -> None:
    reasoner = relative_reasoner()
    known = reasoner.graph.facts[0]
    head, label, tail = known.tolist()
    found = check_fact(reasoner, head, label, tail)
    assert found.known
    names = reasoner.graph.entities
    fact = (names[head], reasoner.graph.relations[label], names[tail])
    assert (found.fact.head, found.fact.relation, found.fact.tail) == fact
    assert fact not in found.evidence
    mask = (reasoner.graph.facts != known).any(1)
    without = Reasoner(reasoner.graph.subset(mask), reasoner.sampler, reasoner.predictor)
    unknown = check_fact(without, head, label, tail)
    assert not unknown.known
    assert unknown.fact.rank == found.fact.rank
    (audited,) = (one for one in reasoner.audit() if (one.head, one.relation, one.tail) == fact)
    assert found.fact.rank == audited.rank
    assert found.fact.score == pytest.approx(audited.score, abs=1e-4)


def test_a_reasoner_checks_facts() -> None:
    reasoner = relative_reasoner()
    found = reasoner.check("link 2", "next", "link 3", paths=2)
    assert isinstance(found, oneshot.CheckedFact)
    expected = check_fact(reasoner, "link 2", "next", "link 3", paths=2)
    assert (found.fact, found.known, found.others) == (expected.fact, True, expected.others)
    assert found.evidence == expected.evidence
    assert 0 < len(found.explanation.paths) <= 2
    with pytest.raises(oneshot.UnknownNameError, match="unknown entity 'link 99'"):
        reasoner.check("link 2", "next", "link 99")


def test_an_entity_with_itself_is_unlikely_unless_another_fact_relates_it_to_itself() -> None:
    reasoner = relative_reasoner()
    size = reasoner.graph.num_entities
    found = check_fact(reasoner, 3, 0, 3)
    assert not found.is_candidate
    assert (found.known, found.fact.rank) == (False, size)
    assert found.fact.score < -40
    assert found.message == "no other fact relates 'link 3' to itself, so it is no candidate"
    # The fact itself is hidden, and says nothing.
    own = torch.tensor([[3, 0, 3]])
    names = reasoner.graph.entities, reasoner.graph.relations
    parts = reasoner.sampler, reasoner.predictor
    facts = torch.cat([reasoner.graph.facts, own])
    alone = Reasoner(KnowledgeGraph.from_facts(facts, *names), *parts)
    found = check_fact(alone, 3, 0, 3)
    assert (found.known, found.is_candidate, found.fact.rank) == (True, False, size)
    facts = torch.cat([facts, torch.tensor([[3, 1, 3]])])
    two = Reasoner(KnowledgeGraph.from_facts(facts, *names), *parts)
    found = check_fact(two, 3, 0, 3)
    assert found.is_candidate
    assert found.fact.score > -40
    assert found.message == found.explanation.message


def test_the_predictor_keeps_its_relation_graph() -> None:
    reasoner = relative_reasoner()
    graph = reasoner.predictor.relation_graph
    before = reasoner.predict(0, 0, top=5)
    check_fact(reasoner, *reasoner.graph.facts[0].tolist())
    # Another thread that uses the predictor now has the relations of the whole graph.
    assert reasoner.predictor.relation_graph is graph
    assert reasoner.predict(0, 0, top=5) == before
