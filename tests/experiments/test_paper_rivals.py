"""The tables of the systems that couple sampling and reasoning."""

from typing import Any

import pytest

from oneshot.config import Config, PredictorConfig, TrainingConfig
from oneshot.experiments.paper.rivals import CANDIDATES, PLAIN, RIVALS, rival_config

OURS = Config(
    predictor=PredictorConfig(num_layers=8, dim=64, activation="identity"),
    training=TrainingConfig(epochs=16, batch_size=64, precision="auto", seed=3),
)


def test_rivals_are_trained_as_ours() -> None:
    adaprop = rival_config("adaprop", OURS, 1000)
    assert adaprop.predictor == OURS.predictor
    assert adaprop.training.precision == "float32"
    astarnet = rival_config("astarnet", OURS, 1000)
    shape = astarnet.predictor
    assert (shape.message, shape.aggregate, shape.gate) == ("nbfnet", "pna", False)
    assert (shape.num_layers, shape.dim) == (6, 32)
    grail = rival_config("grail", OURS, 100_000)
    assert grail.training.query_share == pytest.approx(400 / 20_000)
    assert rival_config("grail", OURS, 100).training.query_share == 1.0
    for config in (adaprop, astarnet, grail):
        assert config.sampler == OURS.sampler
        for name in ("fact_ratio", "loss", "uncovered", "schedule", "seed"):
            assert getattr(config.training, name) == getattr(OURS.training, name), name


def _row(system: str, ms: float, **others: Any) -> dict[str, Any]:
    return {"data": "WN18RR", "system": system, "title": system, "ms_per_query": ms, **others}


def test_the_finding_compares_with_ours_without_kernels() -> None:
    rows = [_row("oneshot", 0.5, mrr=0.55), _row(PLAIN, 2.0), _row("adaprop", 5.0, mrr=0.54)]
    assert RIVALS.finding(rows) == (
        "Test MRR 0.550 with one subgraph per query; adaprop 0.540 in 2.5 times the time per query "
        "of ours without kernels."
    )
    assert RIVALS.finding(rows[:2]) == ""
    assert CANDIDATES.finding([rows[0], rows[2]]) == ""
