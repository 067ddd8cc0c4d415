"""Tests of the recipe benchmark: a shipped run has every part that was fitted."""

import dataclasses
from pathlib import Path

import pytest
import torch
from benchmarks import recipe

from oneshot.config import from_table
from oneshot.data.load import load
from oneshot.reasoner.calibration import calibrate
from oneshot.runs.layout import FACTORS, SAMPLER
from oneshot.runs.run import Run
from oneshot.runs.train import train_run

SETTINGS = [
    "sampler.name=fitted",
    "sampler.entity_ratio=0.3",
    "predictor.num_layers=1",
    "predictor.dim=4",
    "predictor.priors=true",
    "predictor.prior_start=1",
    "factors.dim=4",
    "factors.epochs=1",
    "factors.regularization=0.01",
    "factors.relation_loss=0.1",
    "training.epochs=1",
    "training.query_share=0.05",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = load("umls")
    data = dataclasses.replace(data, valid=data.valid[:40], test=data.test[:20])
    path = tmp_path_factory.mktemp("runs") / "run"
    train_run(data, path, from_table({}, SETTINGS), torch.device("cpu"))
    run = Run(path)
    reasoner = run.reasoner
    assert reasoner.factors is not None
    reasoner.factors.weight = 1.0  # so that the predictor alone needs another calibration
    run.save_factors(reasoner)
    run.write_calibration(calibrate(reasoner, data, 20))
    return path


def test_a_shipped_run_has_its_sampler_and_its_factors(trained: Path, tmp_path: Path) -> None:
    recipe.ship("umls", trained, tmp_path / "shipped")
    ours, theirs = Run(tmp_path / "shipped"), Run(trained)
    queries = torch.tensor([[0, 0], [5, 3]])
    assert torch.equal(ours.reasoner.reason(queries)[1], theirs.reasoner.reason(queries)[1])
    assert ours.calibration == theirs.calibration
    assert ours.config == theirs.config
    weights = theirs.reasoner.sampler.parameters()["weights"]
    assert torch.equal(ours.reasoner.sampler.parameters()["weights"], weights)
    assert ours.reasoner.factors is not None


def test_large_factors_are_left_out_with_what_belongs_to_them(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    target = tmp_path / "shipped"
    recipe.ship("umls", trained, target)
    monkeypatch.setattr(recipe, "LARGEST_FACTORS", 100)
    recipe.ship("umls", trained, target)  # replaces it, including its factors
    assert "without the factors" in capsys.readouterr().err
    ours, theirs = Run(target), Run(trained)
    assert not (target / FACTORS).exists()
    assert (target / SAMPLER).is_file()
    assert ours.config.factors.dim == 0
    assert theirs.calibration is not None
    assert ours.calibration == theirs.calibration.alone
    reasoner = theirs.reasoner
    reasoner.factors = None
    queries = torch.tensor([[0, 0], [5, 3]])
    assert torch.equal(ours.reasoner.reason(queries)[1], reasoner.reason(queries)[1])
