"""Trainings on a GPU, with captured steps: the same seed gives the same parameters."""

from typing import Any

import pytest
import torch
from torch import Tensor

from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.load import load
from oneshot.reasoner.build import build_reasoner
from oneshot.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sum": ({}, {}),
    "pna": (
        {"aggregate": "pna", "norm": True, "gate": False, "shortcut": True, "priors": True},
        {"mask_known": True, "clip": 1.0},
    ),
    "all options": (
        {"aggregate": "pna", "aggregate_over": "graph", "readout": "mlp", "reinject": True},
        {"split": "leave_out", "average": 0.99, "precision": "auto"},
    ),
}


def trained(name: str, capture: bool = True) -> Tensor:
    """All parameters after a short training."""
    shape, options = SHAPES[name]
    data = load("umls")
    config = Config(
        SamplerConfig(name="fitted", entity_ratio=0.5),
        PredictorConfig(num_layers=3, dim=32, **shape),
        TrainingConfig(epochs=2, query_share=0.2, valid_limit=100, **options),
    )
    reasoner = build_reasoner(data.graph, config, torch.device("cuda", 0))
    trainer = Trainer(reasoner, data, config.training)
    assert trainer.stepper.recorder is not None
    if not capture:
        trainer.stepper.recorder = None
    trainer.run()
    return torch.cat([value.flatten() for value in trainer.current().values()])


@pytest.mark.parametrize("name", SHAPES)
def test_two_trainings_with_the_same_seed_are_equal_bit_for_bit(name: str) -> None:
    assert torch.equal(trained(name), trained(name))


@pytest.mark.parametrize("name", SHAPES)
def test_captured_steps_are_the_plain_steps(name: str) -> None:
    captured, plain = trained(name), trained(name, capture=False)
    assert float((captured - plain).norm() / plain.norm()) < 0.05
