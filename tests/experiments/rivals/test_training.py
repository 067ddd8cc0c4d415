"""Training of couplings: our trainer, resumed, and behind the interface of a reasoner."""

from pathlib import Path
from typing import Any

import pytest
import torch

from oneshot.config import PredictorConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.errors import InputError
from oneshot.evaluation.evaluate import evaluate
from oneshot.experiments.rivals.adaprop import AdaPropCoupling
from oneshot.experiments.rivals.astarnet import AStarNetCoupling
from oneshot.experiments.rivals.coupling import CoupledReasoner, Coupling
from oneshot.experiments.rivals.grail import GraILCoupling
from oneshot.experiments.rivals.measure import inference_cost, layer_coverage
from oneshot.experiments.rivals.training import train_coupling
from oneshot.predictor import Predictor
from oneshot.ranking import KnownFacts
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.training.interrupt import StopTraining

LAYERWISE = PredictorConfig(num_layers=2, dim=8, attention_dim=3)
NBFNET = PredictorConfig(num_layers=2, dim=8, message="nbfnet", gate=False, norm=True)
TRAINING = TrainingConfig(epochs=2, batch_size=32, learning_rate=0.02, valid_limit=20)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("family:100")


def _coupling(name: str, data: Dataset) -> Coupling:
    torch.manual_seed(0)
    relations = data.graph.num_relations
    if name == "adaprop":
        return AdaPropCoupling(LAYERWISE, relations, per_layer=8)
    if name == "astarnet":
        return AStarNetCoupling(NBFNET, relations, entity_ratio=0.3)
    retriever = Reasoner(data.graph, PPRSampler(entity_ratio=0.5), Predictor(LAYERWISE, relations))
    return GraILCoupling(LAYERWISE, relations, retriever, candidates=3, negatives=2, hops=1)


@pytest.mark.parametrize("name", ["adaprop", "astarnet", "grail"])
def test_it_learns_and_answers_as_a_reasoner(name: str, data: Dataset) -> None:
    reasoner = CoupledReasoner(data.graph, _coupling(name, data))
    state = train_coupling(reasoner, data, TRAINING)
    losses = [record["loss"] for record in state.history]
    assert losses[1] < losses[0]
    assert state.best_epoch in (1, 2)
    report = evaluate(reasoner, data.valid, data.known, limit=20)
    assert report.mrr == pytest.approx(state.best_mrr, abs=1e-6)
    entity, relation = data.entities[0], data.relations[0]
    prediction = reasoner.predict(entity, relation, top=3)
    assert len(prediction) == 3
    assert prediction[0].score >= prediction[1].score
    (streamed,) = reasoner.predict_stream([(entity, relation)], top=3)
    assert [answer.entity for answer in streamed] == [answer.entity for answer in prediction]
    assert isinstance(reasoner.score(entity, relation, data.entities[1]), float)
    with pytest.raises(InputError, match="has no subgraph sampled beforehand"):
        reasoner.explain(entity, relation, data.entities[1])


@pytest.mark.parametrize("name", ["adaprop", "grail"])
def test_a_resumed_training_ends_as_an_uninterrupted_one(
    name: str, data: Dataset, tmp_path: Path
) -> None:
    def trained(path: Path | None, stops: int) -> dict[str, Any]:
        reasoner = CoupledReasoner(data.graph, _coupling(name, data))
        calls = iter(range(1000))
        while True:
            try:
                train_coupling(
                    reasoner, data, TRAINING, path, should_stop=lambda: next(calls) == stops
                )
            except StopTraining:
                reasoner = CoupledReasoner(data.graph, _coupling(name, data))
                continue
            return dict(reasoner.coupling.state_dict())

    whole, resumed = trained(None, -1), trained(tmp_path / "run", 3)
    assert (tmp_path / "run" / "checkpoint").is_dir()
    for key, value in whole.items():
        torch.testing.assert_close(resumed[key], value, msg=key)
    # A training that has ended is loaded.
    again = CoupledReasoner(data.graph, _coupling(name, data))
    state = train_coupling(again, data, TRAINING, tmp_path / "run")
    assert state.finished
    for key, value in whole.items():
        torch.testing.assert_close(again.coupling.state_dict()[key], value, msg=key)


@pytest.mark.parametrize(
    "changes", [{"hide_direct": True}, {"fact_dropout": 0.1}, {"sample_from": "train"}]
)
def test_options_of_a_sampled_subgraph_are_refused(changes: dict[str, Any], data: Dataset) -> None:
    reasoner = CoupledReasoner(data.graph, _coupling("adaprop", data))
    with pytest.raises(InputError, match="no subgraph sampled beforehand"):
        train_coupling(reasoner, data, TrainingConfig(**changes))
    with pytest.raises(InputError, match="budget of its own"):
        train_coupling(reasoner, data, TrainingConfig(entity_ratio=0.1))
    with pytest.raises(InputError, match="relations"):
        CoupledReasoner(data.graph, AdaPropCoupling(LAYERWISE, 99))


def test_coverage_of_the_layers_ends_with_that_of_the_evaluation(data: Dataset) -> None:
    for name in ("adaprop", "astarnet"):
        reasoner = CoupledReasoner(data.graph, _coupling(name, data))
        found = layer_coverage(reasoner, data.test, batch_size=7)
        report = evaluate(reasoner, data.test, data.known)
        assert len(found.coverage) == len(found.entities) == 2
        assert found.coverage == sorted(found.coverage)
        assert found.entities == sorted(found.entities)
        assert found.coverage[-1] == pytest.approx(report.coverage)
    ours = Reasoner(
        data.graph, PPRSampler(entity_ratio=0.2), Predictor(LAYERWISE, data.graph.num_relations)
    )
    found = layer_coverage(ours, data.test)
    assert found.coverage == [pytest.approx(evaluate(ours, data.test, data.known).coverage)]
    assert found.entities == [data.graph.num_entities // 5]


def test_the_cost_of_a_query_is_measured(data: Dataset) -> None:
    reasoner = CoupledReasoner(data.graph, _coupling("adaprop", data))
    known = KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)
    cost = inference_cost(reasoner, data, known, batch_size=4, limit=8)
    assert cost["ms_per_query"] > 0
    assert cost.keys() == {"ms_per_query", "inference_megabytes"}
