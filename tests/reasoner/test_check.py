"""Tests of the check of one fact: judged without itself, also by predictors without relations."""

import torch
from tests.support.samples import chain_world

from oneshot.config import PredictorConfig
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
    assert unknown.fact.score == found.fact.score
    assert unknown.fact.rank == found.fact.rank


def test_the_predictor_keeps_its_relation_graph() -> None:
    reasoner = relative_reasoner()
    graph = reasoner.predictor.relation_graph
    before = reasoner.predict(0, 0, top=5)
    check_fact(reasoner, *reasoner.graph.facts[0].tolist())
    # Another thread that uses the predictor now has the relations of the whole graph.
    assert reasoner.predictor.relation_graph is graph
    assert reasoner.predict(0, 0, top=5) == before
