"""Factors: vectors of entities and relations beside the predictor."""

import copy
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from oneshot.config import (
    Config,
    FactorsConfig,
    PredictorConfig,
    SamplerConfig,
    TrainingConfig,
    from_table,
)
from oneshot.data.dataset import Dataset, both_directions
from oneshot.data.load import load
from oneshot.errors import InputError
from oneshot.evaluation.evaluate import evaluate
from oneshot.evaluation.factor_weight import WEIGHTS, add_factors, choose_weight
from oneshot.factors import Factors, FactorTraining, fit_factors, name_digest
from oneshot.graph.graph import KnowledgeGraph
from oneshot.ranking import KnownFacts
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.calibration import calibrate
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.layout import FACTORS
from oneshot.runs.run import Run
from oneshot.runs.tensors import load_tensors, save_tensors
from oneshot.runs.train import train_run
from oneshot.training.observer import Observer

FEW = FactorsConfig(dim=8, epochs=3, regularization=0.01, relation_loss=0.25)
SMALL = Config(
    sampler=SamplerConfig(entity_ratio=1.0),
    predictor=PredictorConfig(num_layers=2, dim=8),
    factors=FEW,
    training=TrainingConfig(epochs=2, query_share=0.1, valid_limit=40, seed=1),
)


@functools.cache
def umls() -> Dataset:
    return load("umls")


def few_held_out() -> Dataset:
    """The same with short splits, for whole trainings."""
    data = umls()
    return dataclasses.replace(data, valid=data.valid[:80], test=data.test[:80])


def known_of(data: Dataset) -> KnownFacts:
    return KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)


@functools.cache
def fitted() -> Factors:
    data = umls()
    return fit_factors(data.graph, FEW, data.valid, known_of(data))


def untrained(data: Dataset) -> Reasoner:
    reasoner = build_reasoner(data.graph, SMALL)
    reasoner.factors = copy.deepcopy(fitted())
    return reasoner


def test_scores_are_those_of_complex_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    entities, relations = (torch.randn(n, 6, generator=generator) for n in (5, 4))
    queries = torch.tensor([[1, 0], [4, 3]])
    found = Factors(entities, relations).scores(queries)

    def complex_of(row: torch.Tensor) -> torch.Tensor:
        return torch.complex(row[:3], row[3:])

    for number, (u, q) in enumerate(queries.tolist()):
        for v in range(5):
            u_z, q_z, v_z = (
                complex_of(entities[u]),
                complex_of(relations[q]),
                complex_of(entities[v]),
            )
            assert float(found[number, v]) == pytest.approx(
                float((u_z * q_z * v_z.conj()).sum().real), abs=1e-5
            )


@pytest.mark.parametrize("negatives", [0, 60])
def test_factors_learn_and_are_the_same_for_a_seed(negatives: int) -> None:
    data = umls()
    config = dataclasses.replace(FEW, negatives=negatives)
    one, two = (fit_factors(data.graph, config, data.valid, known_of(data)) for _ in range(2))
    assert one.entities.equal(two.entities)
    other = fit_factors(data.graph, config, data.valid, known_of(data), seed=1)
    assert not one.entities.equal(other.entities)
    queries, answers = both_directions(data.test, data.graph.num_relations)
    scores = one.scores(queries)
    above = (scores < scores.gather(1, answers[:, None])).double().mean()
    assert float(above) > 0.85


def test_weights_of_the_loss_are_chosen_by_validation() -> None:
    data = umls()
    free = FactorsConfig(dim=8, epochs=3)
    chosen = fit_factors(data.graph, free, data.valid, known_of(data))
    fixed = dataclasses.replace(free, regularization=0.05, relation_loss=0.0)
    usual = fit_factors(data.graph, fixed, data.valid, known_of(data))
    assert not chosen.entities.equal(usual.entities)
    hurried = fit_factors(data.graph, free, data.valid, known_of(data), seconds=0.0)
    assert hurried.entities.isfinite().all()  # a first step is always made


def test_evidence_is_relative_to_a_random_entity_and_zero_for_new_ones() -> None:
    data = umls()
    reasoner = untrained(data)
    factors = reasoner.factors
    assert factors is not None
    queries, _ = both_directions(data.test[:7], data.graph.num_relations)
    batch = reasoner.sampler.sample(reasoner.graph, queries)
    scores = factors.scores(queries).double()
    mean = scores.exp().mean(1).log()
    expected = (scores - mean[:, None])[batch.entity_query, batch.entities]
    assert torch.allclose(factors.evidence(batch).double(), expected, atol=1e-4)
    # Without the vectors of the last entities, these count as new: their score is 0.
    short = Factors(factors.entities[:100], factors.relations)
    found = short.evidence(batch)
    for query, (u, _) in enumerate(queries.tolist()):
        own = found[(batch.entity_query == query) & (batch.entities >= 100)]
        assert len(own.unique()) <= 1
        if u >= 100:
            assert float(found[batch.entity_query == query].abs().max()) < 1e-5


def test_the_best_weight_is_chosen_and_changes_the_scores() -> None:
    data = umls()
    reasoner = untrained(data)
    by_weight = choose_weight(reasoner, data.valid, known_of(data), limit=100)
    assert tuple(by_weight) == WEIGHTS
    assert reasoner.factors is not None
    assert by_weight[reasoner.factors.weight] == max(by_weight.values())
    assert reasoner.factors.weight > 0  # the predictor is not trained
    with_factors = evaluate(reasoner, data.test[:100], data.known).mrr
    reasoner.factors = None
    assert with_factors > evaluate(reasoner, data.test[:100], data.known).mrr + 0.1
    with pytest.raises(InputError, match="no factors"):
        choose_weight(reasoner, data.valid, known_of(data))


def test_each_relation_has_the_weight_that_its_queries_support(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = umls()
    reasoner = untrained(data)
    factors, known, relations = reasoner.factors, known_of(data), data.graph.num_relations
    assert factors is not None
    # The opposite of what is true about one relation: its evidence must not count.
    wrong = int(torch.bincount(data.valid[:, 1], minlength=relations).argmax())
    factors.relations[[wrong, wrong + relations]] *= -1
    monkeypatch.setattr("oneshot.evaluation.factor_weight._SHRINKAGE", 1.0)
    choose_weight(reasoner, data.valid, known)
    weights = factors.relation_weights
    assert weights is not None
    assert float(weights[wrong]) == 0
    assert factors.weight > 0
    facts = data.valid[data.valid[:, 1] == wrong]
    own = evaluate(reasoner, facts, data.known).mrr
    factors.relation_weights = None  # the weight of all, for it as well
    assert own > evaluate(reasoner, facts, data.known).mrr
    # A few queries of its own are not enough.
    monkeypatch.setattr("oneshot.evaluation.factor_weight._SHRINKAGE", 1e4)
    choose_weight(reasoner, data.valid, known)
    assert factors.relation_weights is not None
    assert factors.relation_weights.unique().tolist() == [pytest.approx(factors.weight)]


def test_factors_are_saved_and_loaded_bit_for_bit(tmp_path: Path) -> None:
    data = umls()
    reasoner = build_reasoner(data.graph, SMALL)
    add_factors(reasoner, data, FEW)
    reasoner.save(tmp_path / "run")
    again = Reasoner.load(tmp_path / "run")
    assert reasoner.factors is not None
    assert again.factors is not None
    assert again.factors.weight == reasoner.factors.weight
    assert again.factors.entities.equal(reasoner.factors.entities)
    assert again.factors.relation_weights is not None
    assert reasoner.factors.relation_weights is not None
    assert again.factors.relation_weights.equal(reasoner.factors.relation_weights)
    assert Run.open(tmp_path / "run").config.factors.dim == FEW.dim
    # A file of an earlier version has one weight for all relations.
    tensors, about = load_tensors(tmp_path / "run" / FACTORS)
    del tensors["relation_weights"]
    earlier = Factors.from_contents(tensors, about, data.graph)
    assert earlier is not None
    assert earlier.relation_weights is None


def test_a_graph_with_other_entities_has_no_factors_and_a_larger_one_keeps_them(
    tmp_path: Path,
) -> None:
    data = umls()
    untrained(data).save(tmp_path / "run")
    names, facts = list(data.graph.entities), data.train.numpy()
    relations = data.graph.relations

    def on(entities: list[str]) -> Reasoner:
        graph = KnowledgeGraph.from_distinct(
            facts, type(data.graph.entities).from_names(entities, "entity"), relations
        )
        return Reasoner.load(tmp_path / "run", graph)

    assert on([*names, "something new"]).factors is not None
    assert on(list(reversed(names))).factors is None
    # The same relations in another order would be other vectors.
    tensors, about = load_tensors(tmp_path / "run" / FACTORS)
    renamed = type(relations).from_names(list(reversed(list(relations))), "relation")
    graph = KnowledgeGraph.from_distinct(facts, data.graph.entities, renamed)
    assert Factors.from_contents(tensors, about, data.graph) is not None
    assert Factors.from_contents(tensors, about, graph) is None
    digest = name_digest(data.graph.entities, 10)
    assert digest != name_digest(data.graph.entities, 11)


def test_a_damaged_file_of_factors_is_an_error(tmp_path: Path) -> None:
    untrained(umls()).save(tmp_path / "run")
    file = tmp_path / "run" / FACTORS
    tensors, about = load_tensors(file)
    for wrong, said in (
        ({"entities": tensors["entities"]}, about),
        ({**tensors, "entities": tensors["entities"][:, :-1]}, about),
        ({**tensors, "entities": tensors["entities"] * torch.nan}, about),
        (tensors, {**about, "weight": "much"}),
        ({**tensors, "relation_weights": torch.ones(3)}, about),
    ):
        save_tensors(file, wrong, said)
        with pytest.raises(InputError, match="not the factors of a graph"):
            Reasoner.load(tmp_path / "run")
    file.write_bytes(b"nothing")
    with pytest.raises(InputError, match=f"^{file}: not a readable") as caught:
        Reasoner.load(tmp_path / "run")
    assert str(caught.value).count(FACTORS) == 1


def test_a_training_fits_factors_and_resumes_with_the_same(tmp_path: Path) -> None:
    data = few_held_out()
    result = train_run(data, tmp_path / "run", SMALL, torch.device("cpu"))
    assert result["factor_weight"] in WEIGHTS
    whole = Reasoner.load(tmp_path / "run")
    assert whole.factors is not None
    assert whole.factors.weight == result["factor_weight"]
    mrr = evaluate(whole, data.test, data.known).mrr
    assert mrr == pytest.approx(
        json.loads((tmp_path / "run/result.json").read_text())["test"]["mrr"]
    )
    # Stopped after the first epoch and resumed, it ends with the same factors and parameters.
    stops = iter([False] * 4)
    train_run(
        data, tmp_path / "cut", SMALL, torch.device("cpu"), should_stop=lambda: next(stops, True)
    )
    train_run(data, tmp_path / "cut", SMALL, torch.device("cpu"), resume=True)
    resumed = Reasoner.load(tmp_path / "cut")
    assert resumed.factors is not None
    assert resumed.factors.entities.equal(whole.factors.entities)
    for ours, theirs in zip(
        resumed.predictor.parameters(), whole.predictor.parameters(), strict=True
    ):
        assert ours.equal(theirs)


def test_damaged_factors_of_a_finished_run_are_fitted_again(tmp_path: Path) -> None:
    data, run = few_held_out(), tmp_path / "run"
    train_run(data, run, SMALL, torch.device("cpu"))
    whole, calibration = Run(run).reasoner.factors, Run(run).calibration
    messages: list[str] = []

    def resumed() -> dict[str, Any]:
        device = torch.device("cpu")
        return train_run(data, run, SMALL, device, resume=True, messages=messages.append)

    assert resumed()["already_finished"]
    for damage in (b"torn", None):
        if damage is None:
            (run / FACTORS).unlink()
        else:
            (run / FACTORS).write_bytes(damage)
        assert not resumed()["already_finished"]
        assert messages.pop() == f"{run / FACTORS} was missing or damaged; fitted again"
        mended = Run(run).reasoner.factors
        assert whole is not None
        assert mended is not None
        assert mended.weight == whole.weight
        assert mended.entities.equal(whole.entities)
        assert Run(run).calibration == calibration
    assert resumed()["already_finished"]


def test_facts_are_judged_without_the_factors_that_know_them() -> None:
    data = umls()
    reasoner = untrained(data)
    assert reasoner.factors is not None
    before = [fact.score for fact in reasoner.audit(limit=20)]
    reasoner.factors.weight = 2.0
    assert [fact.score for fact in reasoner.audit(limit=20)] == before


def test_a_training_that_goes_on_validates_the_predictor_alone(tmp_path: Path) -> None:
    data = few_held_out()
    timed = dataclasses.replace(
        SMALL, training=dataclasses.replace(SMALL.training, epochs=1000, minutes=0.05)
    )
    train_run(data, tmp_path / "run", timed, torch.device("cpu"))
    longer = dataclasses.replace(timed, training=dataclasses.replace(timed.training, minutes=0.1))
    weights = []

    class Watch(Observer):
        def on_start(self, trainer: Any) -> None:
            weights.append(trainer.reasoner.factors.weight)

    train_run(data, tmp_path / "run", longer, torch.device("cpu"), resume=True, observers=[Watch()])
    assert weights == [0.0]


def test_without_its_factors_a_run_has_the_calibration_of_the_predictor(tmp_path: Path) -> None:
    data = umls()
    reasoner = untrained(data)
    assert reasoner.factors is not None
    reasoner.factors.weight = 1.0
    reasoner.calibration = calibrate(reasoner, data, 60)
    reasoner.save(tmp_path / "run")
    (tmp_path / "run" / FACTORS).unlink()
    assert Reasoner.load(tmp_path / "run").calibration == reasoner.calibration.alone


def test_epochs_are_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = umls(), []
    original = FactorTraining._train_epoch
    monkeypatch.setattr(
        FactorTraining, "_train_epoch", lambda self: (seen.append(1), original(self))[1]
    )
    fit_factors(data.graph, FactorsConfig(dim=4, epochs=1), data.valid, known_of(data))
    assert len(seen) == 1


def test_the_predictor_alone_has_a_calibration_of_its_own(tmp_path: Path) -> None:
    data = umls()
    reasoner = untrained(data)
    assert reasoner.factors is not None
    assert calibrate(reasoner, data, 60).alone is None  # the weight is 0
    reasoner.factors.weight = 1.0
    reasoner.calibration = calibrate(reasoner, data, 60)
    alone = reasoner.calibration.alone
    assert alone is not None
    assert alone.slope != reasoner.calibration.slope
    reasoner.save(tmp_path / "run")
    assert Reasoner.load(tmp_path / "run").calibration == reasoner.calibration
    assert reasoner.calibration_alone == alone


def test_wrong_settings_are_named() -> None:
    for setting in ("factors.dim=-1", "factors.learning_rate=0", "factors.regularization=-1"):
        with pytest.raises(InputError, match=setting.partition("=")[0].partition(".")[2]):
            from_table({}, [setting])
