"""Tests of training on saved graphs: what it hides, what it learns, and the memory it takes."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.support.samples import chain_world, tiny_predictor

from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.data.load import family, load
from oneshot.graph.hidden import HiddenFacts
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.training import epoch as epochs
from oneshot.training.epoch import draw_epoch, hides_facts, queries_per_epoch
from oneshot.training.trainer import fit

SMALL = TrainingConfig(epochs=6, batch_size=16, learning_rate=0.01, fact_ratio=0.8)
PUSH = SamplerConfig(max_entities=40, method="push")


def saved(data: Dataset, path: Path) -> Dataset:
    data.save(path)
    return load(path)


def reasoner_on(data: Dataset) -> Reasoner:
    torch.manual_seed(0)
    return build_reasoner(data.graph, Config(PUSH, PredictorConfig(num_layers=3, dim=8)))


@pytest.mark.parametrize("split", ["epoch", "leave_out"])
def test_an_epoch_hides_the_facts_that_it_asks_about(split: str, tmp_path: Path) -> None:
    data = saved(chain_world(60), tmp_path / "saved")
    graph = data.graph
    assert hides_facts(graph, PPRSampler(max_entities=10, method="push"))
    assert not hides_facts(graph, PPRSampler(max_entities=10, method="chebyshev"))
    assert not hides_facts(chain_world(60).graph, PPRSampler(max_entities=10, method="push"))
    config = dataclasses.replace(SMALL, split=split, query_share=0.5, batch_size=4)
    asked_before = []
    for number in (1, 2):
        epoch = draw_epoch(graph, config, number, hides=True)
        assert len(epoch.queries) == queries_per_epoch(config, graph.num_facts)
        facts = set()
        for part in epoch.parts():
            assert isinstance(part.observed, HiddenFacts)
            forward = part.queries[:, 1] < graph.num_relations
            asked = torch.cat([part.queries[forward], part.answers[forward, None]], dim=1)
            hidden = graph.facts[part.observed.rows].long()
            assert torch.equal(asked.unique(dim=0), hidden.unique(dim=0))
            facts |= set(map(tuple, hidden.tolist()))
        assert len(facts) == len(epoch.queries) // 2  # none is asked twice
        again = draw_epoch(graph, config, number, hides=True)
        assert torch.equal(again.queries, epoch.queries)
        asked_before.append(facts)
    assert asked_before[0] != asked_before[1]


def test_a_large_graph_in_memory_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "_LEAST_HIDING", 100)
    sampler = PPRSampler(max_entities=10, method="push")
    assert hides_facts(family(120).graph, sampler)


def test_a_saved_graph_is_learnt_like_one_in_memory(tmp_path: Path) -> None:
    data = family(300)
    config = dataclasses.replace(SMALL, epochs=4, learning_rate=0.02)
    both = data, saved(data, tmp_path / "saved")
    reached = [fit(reasoner_on(one), one, config).best_mrr for one in both]
    assert min(reached) > 0.6
    assert abs(reached[0] - reached[1]) < 0.15


def test_nothing_is_copied_for_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(family(120), tmp_path / "saved")
    reasoner = Reasoner(data.graph, PPRSampler(max_entities=40, method="push"),
                        tiny_predictor(num_relations=data.graph.num_relations).float())  # fmt: skip

    def copied(*_: object) -> None:
        raise AssertionError("the graph was copied")

    monkeypatch.setattr(type(data.graph), "subset", copied)
    monkeypatch.setattr(type(data.graph), "normalized_adjacency", copied)
    state = fit(reasoner, data, dataclasses.replace(SMALL, epochs=1))
    assert state.epoch == 1
