"""Ensembles: the mean of predictors that learn on their own."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch

from oneshot.config import PredictorConfig, TrainingConfig
from oneshot.data.dataset import both_directions
from oneshot.data.load import load
from oneshot.predictor import Ensemble, Predictor, make_predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.training.steps import Stepper
from oneshot.training.trainer import fit

SHAPE = PredictorConfig(num_layers=2, dim=8, aggregate="pna", gate=False, norm=True, members=3)
COURSE = TrainingConfig(epochs=1, batch_size=16, query_share=0.05, clip=1.0, seed=3)


def ensemble(engine: str = "auto", shape: PredictorConfig = SHAPE) -> Reasoner:
    torch.manual_seed(5)
    data = load("umls")
    predictor = make_predictor(shape, data.graph.num_relations)
    predictor.engine = engine  # type: ignore[assignment]
    return Reasoner(data.graph, PPRSampler(entity_ratio=0.5), predictor.eval())


@pytest.mark.parametrize("engine", ["plain", "auto"])
def test_the_score_is_the_mean_of_the_members(engine: str) -> None:
    reasoner = ensemble(engine)
    queries, _ = both_directions(load("umls").test[:8], reasoner.graph.num_relations)
    batch = reasoner.sampler.sample(reasoner.graph, queries)
    with torch.no_grad():
        each = torch.stack([member(batch) for member in reasoner.predictor.parts()])
        assert torch.allclose(reasoner.predictor(batch), each.mean(0), atol=1e-6)
        assert reasoner.predictor.train()(batch).equal(each)
    assert not each[0].equal(each[1])


def test_each_member_learns_as_if_it_were_alone() -> None:
    data, reasoner = load("umls"), ensemble()
    members = list(reasoner.predictor.parts())
    alone = []
    for member in members:
        single = Predictor(dataclasses.replace(SHAPE, members=1), data.graph.num_relations)
        single.load_state_dict(member.state_dict())
        alone.append(single)
    for single in alone:
        step_all(Reasoner(data.graph, reasoner.sampler, single))
    step_all(reasoner)
    for member, single in zip(members, alone, strict=True):
        for ours, theirs in zip(member.parameters(), single.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=2e-5)


def step_all(reasoner: Reasoner) -> None:
    stepper = Stepper(reasoner, load("umls"), COURSE)
    reasoner.predictor.train()
    for _ in stepper.steps(stepper.draw_epoch(1)):
        pass


def test_an_ensemble_is_trained_saved_and_explained(tmp_path: Path) -> None:
    data, reasoner = load("umls"), ensemble()
    state = fit(reasoner, data, dataclasses.replace(COURSE, valid_limit=20))
    assert state.best_mrr > 0
    reasoner.save(tmp_path / "run")
    again = Reasoner.load(tmp_path / "run")
    assert isinstance(again.predictor, Ensemble)
    before = reasoner.predict("virus", "causes", top=5)
    after = again.predict("virus", "causes", top=5)
    assert [a.entity for a in before] == [a.entity for a in after]
    assert [a.score for a in before] == [a.score for a in after]
    assert reasoner.explain("virus", "causes", before[0].entity).paths


def test_a_copy_has_relations_of_its_own() -> None:
    data = load("umls")
    shape = PredictorConfig(
        num_layers=2, dim=8, message="nbfnet", relations="relative", gate=False, members=2
    )
    predictor = make_predictor(shape, data.graph.num_relations)
    predictor.relate(data.graph.relation_graph)
    copied = copy.copy(predictor)
    some = torch.zeros(data.graph.num_facts, dtype=torch.bool)
    some[:100] = True
    copied.relate(data.graph.subset(some).relation_graph)
    for ours, theirs in zip(predictor.parts(), copied.parts(), strict=True):
        assert ours.relation_graph is not theirs.relation_graph
        assert next(ours.parameters()) is next(theirs.parameters())
