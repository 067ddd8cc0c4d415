"""Peers under our ranking: PyKEEN's models on our facts, judged as PyKEEN judges them."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.extras import needs_pykeen
from tests.support.graphs import random_graph, random_queries
from torch import Tensor

from oneshot.config import Config
from oneshot.data.dataset import Dataset
from oneshot.errors import MissingPackageError, UnknownNameError
from oneshot.evaluation.frequency import frequency_scorer
from oneshot.evaluation.scorer import rank_split
from oneshot.experiments.baselines import embedding, peers, pykeen_models
from oneshot.experiments.baselines.embedding import (
    build_model,
    count_parameters,
    scorer_of,
    triples_factory,
)
from oneshot.experiments.baselines.interactions import is_fast, rotate_pairs
from oneshot.experiments.baselines.pykeen_import import guest
from oneshot.experiments.baselines.pykeen_models import RECIPES
from oneshot.graph.graph import KnowledgeGraph
from oneshot.ranking import KnownFacts, dense_ranks, filtered_ranks
from oneshot.samplers import PPRSampler

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data() -> Dataset:
    """A graph with hubs and isolated entities, and facts held out of it."""
    graph = random_graph(5, entities=40, facts=260, relations=3)
    facts = graph.facts.long()
    order = torch.randperm(len(facts), generator=torch.Generator().manual_seed(0))
    rest = KnowledgeGraph.from_facts(facts[order[60:]], graph.entities, graph.relations)
    return Dataset("small", rest, facts[order[:30]], facts[order[30:60]])


def test_scores_of_all_entities_rank_as_a_subgraph_of_all_entities() -> None:
    graph = random_graph(3)
    queries, answers = random_queries(graph, 20, 1), random_queries(graph, 20, 2)[:, 0]
    batch = PPRSampler(entity_ratio=1.0, keep_unreachable=True).sample(graph, queries)
    scores = torch.randint(4, (20, graph.num_entities), generator=torch.manual_seed(0)).float()
    known = KnownFacts(graph.facts.long(), graph.num_entities, graph.num_relations)
    dense = dense_ranks(scores, queries, answers, known)
    sampled = filtered_ranks(batch, scores.reshape(-1), answers, known, graph.num_entities)
    assert dense.optimistic.equal(sampled.optimistic)
    assert dense.pessimistic.equal(sampled.pessimistic)
    unfiltered = dense_ranks(scores, queries, answers, None)
    assert bool((unfiltered.realistic >= dense.realistic).all())


@needs_pykeen
@pytest.mark.parametrize("inverse", [False, True])
def test_facts_keep_their_numbers(data: Dataset, inverse: bool) -> None:
    factory = triples_factory(data, inverse)
    assert factory.mapped_triples.equal(data.train)
    assert factory.num_entities == data.graph.num_entities
    assert factory.real_num_relations == data.graph.num_relations


def pykeen_metrics(model: Any, data: Dataset) -> dict[str, float]:
    """What PyKEEN's own evaluator says of the test split: realistic ranks, both directions."""
    from pykeen.evaluation import RankBasedEvaluator

    with guest(0, CPU):
        result = RankBasedEvaluator(filtered=True).evaluate(
            model=model,
            mapped_triples=data.test,
            additional_filter_triples=[data.train, data.valid],
            batch_size=16,
            use_tqdm=False,
        )
    names = {
        "mrr": "inverse_harmonic_mean_rank",
        "hits@1": "hits_at_1",
        "hits@3": "hits_at_3",
        "hits@10": "hits_at_10",
        "mean_rank": "arithmetic_mean_rank",
    }
    return {
        ours: float(result.get_metric(f"both.realistic.{theirs}")) for ours, theirs in names.items()
    }


@needs_pykeen
@pytest.mark.parametrize("name", ["transe", "rotate", "complex", "conve", "quate", "rgcn"])
def test_our_ranking_agrees_with_that_of_pykeen(data: Dataset, name: str) -> None:
    trained = embedding.train_embedding(RECIPES[name], data, CPU, dim=16, epochs=2)
    ours = rank_split(trained.scorer, data, "test", step=16)
    assert ours.metrics.as_dict() == pytest.approx(pykeen_metrics(trained.model, data), abs=1e-6)
    assert ours.queries == 2 * len(data.test)


@needs_pykeen
def test_ties_are_ranked_as_pykeen_ranks_them(data: Dataset) -> None:
    with guest(0, CPU):
        model = build_model(RECIPES["distmult"], triples_factory(data, False), 16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.sign())
    ours = rank_split(scorer_of(model, 3), data, "test").metrics.as_dict()
    assert ours == pytest.approx(pykeen_metrics(model, data), abs=1e-6)


@needs_pykeen
@pytest.mark.parametrize("name", RECIPES)
def test_every_model_learns(data: Dataset, name: str) -> None:
    found = peers.measure_embedding(RECIPES[name], data, CPU, dim=16, epochs=3)
    assert "failure" not in found
    assert 0 < found["mrr"] < 1
    assert found["epochs"] == 3
    assert found["stopped"] == "epochs"
    assert found["parameters"] == count_parameters(RECIPES[name], data, 16)
    assert found["seconds_per_1000_queries"] > 0


@needs_pykeen
def test_training_stops_when_it_no_longer_improves_and_keeps_the_best(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pykeen_models.SMALL, "cpu", 0)  # or the learning rate would be lowered
    hasty = replace(RECIPES["complex"], learning_rate=0.1)
    trained = embedding.train_embedding(hasty, data, CPU, dim=16, patience=2)
    assert trained.stopped == "patience"
    # The best may be among the last two, by less than counts as better.
    assert 0 <= trained.epochs - trained.best_epoch <= 2 * hasty.every
    assert trained.epochs < 100
    again = rank_split(trained.scorer, data, "valid").metrics.mrr
    assert again == pytest.approx(trained.valid_mrr, abs=1e-9)


@needs_pykeen
@pytest.mark.parametrize(
    ("found", "best"),
    [
        ([0.5, 0.6, 0.6005, 0.601, 0.61, 0.6, 0.6, 0.6, 0.9], 5),
        ([0.5, 0.5002, 0.5004, 0.5006, 0.9], 4),
    ],
)
def test_creeping_is_not_improving(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, found: list[float], best: int
) -> None:
    given = iter(found)

    def ranked(*_: object, **__: object) -> Any:
        return SimpleNamespace(metrics=SimpleNamespace(mrr=next(given)))

    monkeypatch.setattr(embedding, "rank_split", ranked)
    often = replace(RECIPES["complex"], every=1)
    trained = embedding.train_embedding(often, data, CPU, dim=4, patience=3)
    assert trained.stopped == "patience"
    assert trained.epochs == len(found) - 1
    assert (trained.best_epoch, trained.valid_mrr) == (best, found[best - 1])


@needs_pykeen
def test_the_seed_decides_and_the_callers_generators_stay(data: Dataset) -> None:
    def train(seed: int) -> float:
        recipe = RECIPES["nodepiece"]
        return embedding.train_embedding(recipe, data, CPU, dim=8, seed=seed, epochs=2).valid_mrr

    torch.manual_seed(1)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = train(3)
    assert states[0].equal(torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    torch.manual_seed(2)
    assert train(3) == first
    assert train(4) != first


@needs_pykeen
def test_nodepiece_takes_hubs_and_entities_without_facts() -> None:
    leaves = torch.arange(2, 30_000)  # entity 1 has no facts
    facts = torch.stack([leaves, torch.zeros_like(leaves), torch.zeros_like(leaves)], dim=1)
    anchors = pykeen_models.pagerank_anchors()(num_anchors=3)
    assert anchors.rank(facts[:, [0, 2]].T.numpy())[0] == 0
    data = Dataset("star", KnowledgeGraph.from_facts(facts), facts[:2], facts[2:4])
    assert count_parameters(RECIPES["nodepiece"], data, 8) > 0


@needs_pykeen
def test_nodepieces_tokens_are_the_nearest_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pykeen_models, "_ENTITIES_AT_ONCE", 3)
    chain = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])  # and entity 6 without facts
    found = pykeen_models.nearest_anchors()(chain, np.array([5, 0, 2]), 2, num_entities=7)
    # Anchors by their number, not their entity, and the steps to them.
    nearest = [[1, 2], [1, 2], [2, 1], [2, 0], [0, 2], [0, 2]]
    steps = [[0, 2], [1, 1], [0, 2], [1, 2], [1, 2], [0, 3]]
    expected = pykeen_models.STEPS * np.array(nearest) + np.array(steps)
    assert found.tolist() == [*expected.tolist(), [-1, -1]]
    few = pykeen_models.nearest_anchors()(chain, np.array([5]), 2, num_entities=7)
    assert few.tolist() == [[away, -1] for away in (5, 4, 3, 2, 1, 0)] + [[-1, -1]]
    monkeypatch.setattr(pykeen_models, "STEPS", 3)
    few = pykeen_models.nearest_anchors()(chain, np.array([5]), 1, num_entities=6)
    assert few.tolist() == [[2], [2], [2], [2], [1], [0]]  # far ones share the last


@needs_pykeen
def test_nodepiece_tells_entities_apart_by_their_distances(data: Dataset) -> None:
    factory = triples_factory(data, True)
    with guest(0, CPU):
        model = build_model(RECIPES["nodepiece"], factory, 8)
    anchors = model.entity_representations[0].base[0]
    tokens, steps = anchors.assignment, pykeen_models.STEPS
    vectors = anchors.vocabulary(tokens[:1])
    table = anchors.vocabulary
    expected = table.anchors(tokens[:1] // steps) + table.steps(tokens[:1] % steps)
    torch.testing.assert_close(vectors, expected)
    assert len(tokens.unique(dim=0)) > len((tokens // steps).unique(dim=0))
    assert is_fast(model)


@needs_pykeen
def test_rotated_pairs_are_scored_by_a_matrix_product() -> None:
    generator = torch.Generator().manual_seed(0)
    heads, relations, tails = (
        torch.randn(shape, generator=generator) for shape in ((3, 1, 8), (3, 1, 8), (1, 5, 8))
    )
    relations = relations.unflatten(-1, (-1, 2))
    relations = (relations / relations.norm(dim=-1, keepdim=True)).flatten(-2)
    rotate = rotate_pairs()
    found = rotate(heads, relations, tails)
    one = rotate(*(part.expand(3, 5, 8) for part in (heads, relations, tails)))
    torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-5)
    back = rotate(tails.transpose(0, 1)[:3], relations, heads.transpose(0, 1))
    assert back.shape == (3, 3)


@needs_pykeen
@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (MemoryError(), "out of memory"),
    ],
)
def test_no_memory_is_a_result(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, error: Exception, failure: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(embedding, "_run", fail)
    assert peers.measure_embedding(RECIPES["transe"], data, CPU) == {"failure": failure}


@needs_pykeen
def test_a_training_that_diverges_is_a_result(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverged(model: Any, num_relations: int) -> Any:
        return lambda queries: torch.full((len(queries), data.graph.num_entities), torch.nan)

    monkeypatch.setattr(embedding, "scorer_of", diverged)
    found = peers.measure_embedding(RECIPES["transe"], data, CPU, dim=8, epochs=2)
    assert found == {"failure": "not finite"}


@needs_pykeen
def test_other_errors_are_not_hidden(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(embedding, "_run", fail)
    with pytest.raises(RuntimeError, match="something else"):
        peers.measure_embedding(RECIPES["transe"], data, CPU)


def test_what_is_small_depends_on_the_device() -> None:
    recipe = RECIPES["transe"]
    assert recipe.on(1000, CPU).negatives is None
    assert recipe.on(1001, CPU) is recipe
    assert recipe.on(10_000, torch.device("cuda")).negatives is None
    assert recipe.on(10_001, torch.device("cuda")) is recipe
    # Against all entities a sum of differences does better, against a margin it does not.
    assert recipe.arguments(8, 2000)["scoring_fct_norm"] == 2
    assert "scoring_fct_norm" not in recipe.on(100, CPU).arguments(8, 100)


@needs_pykeen
def test_the_numbers_an_entity_has_are_told(data: Dataset) -> None:
    found = peers.measure_embedding(RECIPES["complex"], data, CPU, dim=7, epochs=1)
    assert found["dim"] == 6
    assert [RECIPES["quate"].numbers(dim) for dim in (3, 4, 7, 128)] == [4, 4, 4, 128]


@needs_pykeen
def test_a_dimension_that_makes_no_image_is_a_result(data: Dataset) -> None:
    for dim in (5, 13):
        found = peers.measure_embedding(RECIPES["conve"], data, CPU, dim=dim, epochs=1)
        assert found == {"failure": f"dimension {dim} is a prime number and cannot form an image"}
    assert "mrr" in peers.measure_embedding(RECIPES["conve"], data, CPU, dim=9, epochs=1)


@needs_pykeen
def test_nothing_is_written_into_the_home(tmp_path: Path) -> None:
    module = "oneshot.experiments.baselines.pykeen_import"
    code = f"from {module} import load_pykeen; print(load_pykeen().__name__)"
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith("PYSTOW")}
    surroundings["HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=surroundings
    )
    assert done.stdout == "pykeen\n", done.stderr
    assert not (tmp_path / ".data").exists()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pykeen"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pykeen", None)
    with pytest.raises(MissingPackageError, match=r"'pykeen'.*\[baselines\]"):
        peers.check_packages(["rotate"])
    peers.check_packages(["nbfnet", "frequency"])


def test_names_are_found_however_they_are_written() -> None:
    assert [peers.find_peer(name) for name in ("RotatE", "R-GCN", "oneshot")] == [
        "rotate",
        "rgcn",
        "oneshot",
    ]
    with pytest.raises(UnknownNameError, match="did you mean 'complex'"):
        peers.find_peer("compex")
    with pytest.raises(UnknownNameError, match=r"known: oneshot, .*transe"):
        peers.find_peer("zzz")


def test_whole_graph_peers_see_the_whole_graph() -> None:
    ours = Config()
    for name in peers.WHOLE_GRAPH:
        config = peers.whole_graph_config(name, ours)
        assert config.sampler.entity_ratio == 1.0
        assert config.predictor.message == name
        assert config.predictor.dim == ours.predictor.dim
        assert config.training == ours.training


def test_frequency_has_no_parameters(data: Dataset) -> None:
    found = peers.measure_frequency(data)
    assert found["parameters"] == 0
    counts = torch.zeros(data.graph.num_entities)
    for _, relation, tail in data.train.tolist():
        counts[tail] += relation == int(data.test[0, 1])
    asked: Tensor = data.test[:1, :2]
    assert frequency_scorer(data)(asked)[0].equal(counts)
