"""OGB's knowledge graphs: data written in their format, negatives by type, cost predicted."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.ogb import extrapolated, in_format_of, kind_of, predicted_for, short_training

import oneshot
from oneshot.config import read_config
from oneshot.data.load import load
from oneshot.data.public.archives import unpack_ogb
from oneshot.data.public.ogb_negatives import read_candidates
from oneshot.experiments.paper.ogb import write_ogb
from oneshot.graph.known_facts import KnownFacts

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(scope="module")
def data() -> oneshot.Dataset:
    return oneshot.load("family:100")


def test_data_with_types_are_written_and_read_back(data: oneshot.Dataset, tmp_path: Path) -> None:
    kinds = [("odd", "even", "none")[number % 3] for number in range(len(data.entities))]
    write_ogb(data, tmp_path / "kg.zip", 1, 15, kinds)
    (tmp_path / "out").mkdir()
    unpack_ogb([tmp_path / "kg.zip"], tmp_path / "out")
    again = load(tmp_path / "out")
    # Entities are numbered within their type.
    place = np.array([f"{kind}:{number // 3}" for number, kind in enumerate(kinds)])
    for split in ("train", "valid", "test"):
        expected = {(place[x], r, place[o]) for x, r, o in data.facts(split).tolist()}
        read = again.facts(split).tolist()
        assert {(again.entities[x], r, again.entities[o]) for x, r, o in read} == expected
    asked = read_candidates(again, "test")
    assert asked.negatives.shape == (2 * len(data.test), 15)
    known = KnownFacts(again.known, len(again.entities), again.graph.num_relations)
    assert not known.holds(asked.queries, asked.negatives).any()
    assert known.holds(asked.queries, asked.answers[:, None]).all()
    for answer, negatives in zip(asked.answers, asked.negatives, strict=True):
        kind = again.entities[int(answer)].split(":")[0]
        assert {again.entities[int(one)].split(":")[0] for one in negatives} == {kind}


def test_data_without_types_have_negatives_among_all_entities(
    data: oneshot.Dataset, tmp_path: Path
) -> None:
    again = in_format_of("ogbl-wikikg2", data, tmp_path, facts=5, negatives=40)
    assert torch.equal(again.train.unique(dim=0), data.train.unique(dim=0))
    assert len(again.valid) == len(again.test) == 5
    asked = read_candidates(again, "valid")
    assert len(asked.negatives.unique()) > 50
    # Also facts of the test split that were not kept are no negatives.
    known = KnownFacts(data.known, len(data.entities), data.graph.num_relations)
    assert not known.holds(asked.queries, asked.negatives).any()


def test_the_type_of_an_entity_is_the_prefix_of_its_name() -> None:
    names = ("gene:7157", "disease:OMIM:1", "ENSG00000000003", "virus", "12")
    assert [kind_of(name) for name in names] == ["gene", "disease", "ENSG", "other", "other"]


def test_cost_is_extrapolated_and_predicted_for_ogb() -> None:
    points = [{"edges": 100, "s": 1.0, "m": None}, {"edges": 200, "s": 1.5, "m": None}]
    assert extrapolated(points, "s", 400) == 2.5
    assert extrapolated(points, "m", 400) is None
    assert extrapolated(points[::-1], "s", 400) == 2.5
    falling = [points[0] | {"s": 2.0}, points[1]]
    assert extrapolated(falling, "s", 400) == 1.5
    config = read_config(CONFIGS / "ogbl-biokg.toml", ["training.epochs=10"])
    measured = {"seconds_per_query": 0.01, "evaluation_seconds_per_query": 0.1}
    found = predicted_for("ogbl-biokg", config, measured)
    assert found["queries_per_epoch"] == 2 * int(0.01 * 4_762_700)
    assert found["training_hours"] == pytest.approx(10 * 95_254 * 0.01 / 3600, rel=1e-3)
    assert found["test_hours"] == pytest.approx(2 * 162_900 * 0.1 / 3600)


@pytest.mark.parametrize("name", ["ogbl-biokg", "ogbl-wikikg2"])
def test_the_configurations_bound_the_subgraph(name: str, data: oneshot.Dataset) -> None:
    config = read_config(CONFIGS / f"{name}.toml", ["predictor.dim=4", "predictor.num_layers=1"])
    assert config.sampler.max_entities
    assert config.sampler.max_edges
    config = dataclasses.replace(
        config, training=dataclasses.replace(config.training, batch_size=4, fact_ratio=0.9)
    )
    found = short_training(data, config, 0.02, torch.device("cpu"), 16)
    assert found["entities"] <= 40
    assert found["edges"] <= 0.02 * config.sampler.max_edges + 40
    assert found["step_seconds_per_query"] > 0
    assert found["seconds_per_epoch_start"] >= 0
    assert found["megabytes"] is None
