"""The fitted sampler: what it chooses, what it learns, and that it never sees what is asked."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import graphs, random_queries
from tests.support.samples import chain_world

import oneshot
from oneshot.config import from_table
from oneshot.data.dataset import Dataset, both_directions
from oneshot.data.synthetic.generators import power_law
from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.storage import open_graph, save_graph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.predictor.priors import prior_features
from oneshot.runs.layout import SAMPLER
from oneshot.runs.run import Run
from oneshot.runs.tensors import save_tensors
from oneshot.runs.train import train_run
from oneshot.samplers import FittedSampler, PPRSampler, fitted
from oneshot.subgraph import SubgraphBatch
from oneshot.training.trainer import Trainer

CPU = torch.device("cpu")


def typed_facts(people: int = 120, cities: int = 12, trades: int = 6) -> torch.Tensor:
    """People who know each other at random, live in a city and have a trade: where one lives and
    what one does is near nobody in particular, but always a city, always a trade."""
    generator = torch.Generator().manual_seed(3)
    person = torch.arange(people)
    knows = torch.randint(people, (people * 4, 2), generator=generator)
    columns = [
        torch.stack([knows[:, 0], torch.zeros(len(knows), dtype=torch.long), knows[:, 1]], 1),
    ]
    for relation, (first, count) in enumerate(((people, cities), (people + cities, trades)), 1):
        place = first + torch.randint(count, (people,), generator=generator)
        columns.append(torch.stack([person, torch.full_like(person, relation), place], 1))
    return torch.cat(columns).unique(dim=0)


def typed_graph() -> KnowledgeGraph:
    return KnowledgeGraph.from_facts(typed_facts())


@given(graph=graphs(), seed=st.integers(0, 1000), ratio=st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=25)
def test_entities_equal_brute_force(graph: KnowledgeGraph, seed: int, ratio: float) -> None:
    sampler = FittedSampler(ratio, context=0.4)
    queries = random_queries(graph, 5, seed)
    near = sampler.scores(graph, queries[:, 0])
    likely = sampler._likelihood(graph, queries[:, 1], near)
    batch = sampler.sample(graph, queries)
    count = max(1, int(ratio * graph.num_entities))
    every = range(graph.num_entities)
    for row, (u, _) in enumerate(queries.tolist()):
        by_path = sorted(every, key=lambda v: (v != u, -float(near[row, v]), v))
        share = max(1, -(-count * 2 // 5))
        context = {v for v in by_path[:share] if v == u or near[row, v] > 0}
        by_score = sorted(every, key=lambda v: (v not in context, -float(likely[row, v]), v))
        mine = batch.entity_query == row
        assert batch.entities[mine].tolist() == sorted(by_score[:count])
        assert torch.equal(batch.score[mine], likely[row, batch.entities[mine]])


def test_it_learns_what_kind_of_entity_an_answer_is() -> None:
    facts = typed_facts()
    held = torch.zeros(len(facts), dtype=torch.bool)
    held[torch.randperm(len(facts), generator=torch.Generator().manual_seed(0))[:40]] = True
    held &= facts[:, 1] > 0
    graph = KnowledgeGraph.from_facts(facts[~held], 138, 3)
    asked, answers = facts[held][:, :2], facts[held][:, 2]
    sampler, plain = FittedSampler(0.15), PPRSampler(0.15)
    sampler.fit(graph)
    found = [
        float((one.sample(graph, asked).find(answers) >= 0).float().mean())
        for one in (sampler, plain)
    ]
    assert found[0] > found[1] + 0.2
    # The score alone ranks the twelve cities, or the six trades, before all others.
    likely = sampler._likelihood(graph, asked[:, 1], sampler.scores(graph, asked[:, 0]))
    ahead = (likely > likely.gather(1, answers[:, None])).sum(1)
    assert float((ahead < 12).float().mean()) > 0.9


def test_a_fit_is_repeatable_and_depends_on_the_seed() -> None:
    graph = typed_graph()
    weights = []
    for seed in (0, 0, 1):
        sampler = FittedSampler(0.2)
        sampler.fit(KnowledgeGraph.from_facts(graph.facts.clone()), seed)
        weights.append(sampler.weights)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    "facts",
    [
        [[0, 0, 1]],
        [[0, 0, 1], [1, 0, 2]],
        [[0, 0, 0]],
        [[0, relation, 1] for relation in range(12)],  # all facts between one pair
        [[0, 0, tail] for tail in range(4)] * 4,
    ],
)
def test_a_graph_that_teaches_nothing_gets_weights_that_work(facts: list[list[int]]) -> None:
    graph = KnowledgeGraph.from_facts(facts, 4, 12)
    sampler = FittedSampler(0.5)
    sampler.fit(graph)
    batch = sampler.sample(graph, torch.tensor([[0, 0], [0, 11], [3, 3]]))
    assert bool(batch.score.isfinite().all())
    assert batch.num_entities == 6


def misled(
    monkeypatch: pytest.MonkeyPatch, facts: torch.Tensor, relation: int
) -> tuple[KnowledgeGraph, torch.Tensor, torch.Tensor]:
    """A graph on which the features mislead one relation: its fit ranks likely answers last.

    → (graph, queries and answers that are not in it)
    """
    held = torch.zeros(len(facts), dtype=torch.bool)
    held[torch.randperm(len(facts), generator=torch.Generator().manual_seed(0))[:150]] = True
    graph = KnowledgeGraph.from_facts(facts[~held], 138, 3)
    whole = fitted._fitted

    def spoiled(examples: fitted._Examples, num_relations: int) -> fitted._Weights | None:
        found = whole(examples, num_relations)
        assert found is not None
        found.relations[[relation, relation + 3]] *= -1
        return found

    monkeypatch.setattr(fitted, "_fitted", spoiled)
    monkeypatch.setattr(fitted, "_fits", {})
    monkeypatch.setattr(fitted, "_shares", {})
    return graph, *both_directions(facts[held], 3)


def test_a_relation_that_the_features_mislead_has_the_coverage_of_ppr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Friends of friends are friends; where one lives and what one does is as before.
    facts = typed_facts()
    ring = torch.arange(120)
    near = [torch.stack([ring, ring * 0, (ring + step) % 120], 1) for step in range(1, 6)]
    facts = torch.cat([*near, facts[facts[:, 1] > 0]])
    graph, queries, answers = misled(monkeypatch, facts, 0)
    monkeypatch.setattr(fitted, "_SHRINKAGE", 1.0)
    found = {}
    for context in (None, 0.5, 1.0):
        sampler = FittedSampler(0.2, context=context)
        sampler.fit(graph)
        found[context] = (sampler.ranks(graph, queries, answers) < 27).double()
        is_sampled = sampler.sample(graph, queries).find(answers) >= 0
        assert torch.equal(is_sampled, found[context] > 0)
    of_relation = [queries[:, 1] % 3 == relation for relation in range(3)]
    coverage = {c: [float(hits[mine].mean()) for mine in of_relation] for c, hits in found.items()}
    assert coverage[1.0][0] > coverage[0.5][0] + 0.1  # it is misled
    assert coverage[None][0] > coverage[1.0][0] - 0.02
    assert coverage[None][1:] == coverage[0.5][1:]  # the others are not


def test_the_share_of_ppr_needs_evidence_and_never_falls() -> None:
    def hits(*covered: int, of: int = 40) -> torch.Tensor:
        """The first queries are covered, so many with each share of PPR."""
        return torch.stack([(torch.arange(of) < count).double() for count in covered])

    relations = torch.zeros(40, dtype=torch.long)
    chosen = fitted._best_shares(hits(20, 25, 30, 30, 28), relations, 2)
    assert float(chosen[0]) == pytest.approx(0.5 + 0.25 * 40 / (40 + fitted._SHRINKAGE))
    assert float(chosen[1]) == 0.5  # without queries
    assert float(fitted._best_shares(hits(20, 21, 22, 22, 22), relations, 1)) == 0.5
    assert float(fitted._best_shares(hits(30, 20, 20, 20, 20), relations, 1)) == 0.5
    both = torch.cat([hits(10, 10, 10, 10, 20), hits(20, 20, 20, 20, 10)], dim=1)
    mixed = fitted._best_shares(both, torch.arange(80) // 40, 2)
    assert float(mixed[0]) > 0.8
    assert float(mixed[1]) == 0.5


def test_the_share_of_ppr_may_be_a_table(tmp_path: Path) -> None:
    graph = with_names(typed_facts(), ["knows", "lives in", "works as"])
    sampler = FittedSampler(0.3, context={"default": 0.25, "knows": 1.0, "knows⁻¹": 0.0})
    sampler.fit(graph)
    assert sampler.parameters().keys() == {"weights", "shared"}  # no share is fitted
    relations = torch.arange(6)
    shares = sampler._share(graph, relations, torch.full((6,), 40))
    assert shares.tolist() == [40, 10, 10, 1, 10, 10]
    with pytest.raises(UnknownNameError, match="did you mean 'knows'"):
        FittedSampler(0.3, context={"know": 1.0}).check_names(graph)
    with pytest.raises(InputError, match="context must be from 0 to 1, not 2"):
        FittedSampler(0.3, context={"knows": 2})
    config = oneshot.PredictorConfig(num_layers=1, dim=4)
    oneshot.Reasoner(graph, sampler, oneshot.Predictor(config, 3)).save(tmp_path / "run")
    again = oneshot.Reasoner.load(tmp_path / "run").sampler
    assert isinstance(again, FittedSampler)
    assert again.context == sampler.context


def test_a_run_keeps_the_shares_of_ppr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, *_ = misled(monkeypatch, typed_facts(), 0)
    sampler = saved_run(tmp_path / "run", graph)
    again = oneshot.Reasoner.load(tmp_path / "run").sampler
    assert isinstance(again, FittedSampler)
    assert sampler.shares is not None
    assert again.shares is not None
    assert torch.equal(again.shares, sampler.shares)
    # A number in the configuration comes before them.
    fixed = Run.open(tmp_path / "run", ["sampler.context=0.25"]).reasoner.sampler
    assert isinstance(fixed, FittedSampler)
    every = torch.arange(6)
    assert fixed._share(graph, every, torch.full((6,), 40)).tolist() == [10] * 6


def test_the_training_graph_is_refused_as_what_is_sampled_from() -> None:
    data = chain_world(20)
    config = oneshot.PredictorConfig(num_layers=1, dim=4)
    predictor = oneshot.Predictor(config, data.graph.num_relations)
    reasoner = oneshot.Reasoner(data.graph, FittedSampler(0.5), predictor)
    with pytest.raises(InputError, match="sample_from"):
        Trainer(reasoner, data, oneshot.TrainingConfig(sample_from="train"))


def test_a_run_keeps_the_weights(tmp_path: Path) -> None:
    graph = typed_graph()
    sampler = FittedSampler(0.3)
    sampler.fit(graph)
    config = oneshot.PredictorConfig(num_layers=1, dim=4, priors=True, prior_start=1.0)
    reasoner = oneshot.Reasoner(graph, sampler, oneshot.Predictor(config, graph.num_relations))
    reasoner.save(tmp_path / "run")
    again = oneshot.Reasoner.load(tmp_path / "run")
    assert torch.equal(again.sampler.parameters()["weights"], sampler.weights)
    queries = random_queries(graph, 8, 0)
    for ours, theirs in zip(reasoner.reason(queries), again.reason(queries), strict=True):
        if isinstance(ours, torch.Tensor):
            assert torch.equal(ours, theirs)
        else:
            assert torch.equal(ours.entities, theirs.entities)
    # On another graph of the same relations they count for its own entities.
    other = KnowledgeGraph.from_facts(typed_facts(60, 5, 3), None, graph.relations)
    there = oneshot.Reasoner.load(tmp_path / "run", graph=other)
    assert torch.equal(there.sampler.parameters()["weights"], sampler.weights)
    there.reason(random_queries(other, 4, 0))


def with_names(facts: torch.Tensor, names: list[str]) -> KnowledgeGraph:
    return KnowledgeGraph.from_facts(facts, None, Vocabulary.from_names(names, "relation"))


@pytest.mark.parametrize("split", ["epoch", "leave_out"])
def test_what_is_asked_is_not_seen(split: Literal["epoch", "leave_out"]) -> None:
    """Subgraphs, scores and priors are those of a data set that never had the facts asked about."""
    facts, names = typed_facts(60, 6, 4), ["knows", "lives in", "works as"]
    graph = with_names(facts, names)
    num_relations, entities = graph.num_relations, graph.entities
    data = Dataset("typed", graph, valid=facts[:4], test=facts[:4])
    sampler = FittedSampler(0.3)
    sampler.fit(graph)
    predictor = oneshot.Predictor(
        oneshot.PredictorConfig(num_layers=2, dim=4, priors=True, prior_start=1.0), num_relations
    )
    config = oneshot.TrainingConfig(epochs=1, batch_size=8, split=split, fact_ratio=0.7)
    trainer = Trainer(oneshot.Reasoner(graph, sampler, predictor), data, config)
    seen: list[SubgraphBatch] = []
    hook = predictor.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    epoch = trainer.stepper.draw_epoch(1)
    if split == "leave_out":
        epoch = epoch.first(4 * epoch.part_size)
    list(trainer.stepper.steps(epoch))
    hook.remove()
    whole = {tuple(fact) for fact in graph.facts.tolist()}
    batches = iter(seen)
    changed = 0
    for part in epoch.parts():
        asked = set()
        for (entity, relation), answer in zip(
            part.queries.tolist(), part.answers.tolist(), strict=True
        ):
            inverse = relation >= num_relations
            head, tail = (answer, entity) if inverse else (entity, answer)
            asked.add((head, relation % num_relations, tail))
        assert asked <= whole
        without = KnowledgeGraph.from_facts(sorted(whole - asked), entities, graph.relations)
        fresh = FittedSampler(0.3)
        fresh.take(sampler.parameters(), graph.relations)
        for queries in part.queries.split(config.batch_size):
            batch, expected = next(batches), fresh.sample(without, queries)
            for field in dataclasses.fields(SubgraphBatch):
                ours, theirs = (getattr(one, field.name) for one in (batch, expected))
                if isinstance(theirs, torch.Tensor):  # integers are equal
                    torch.testing.assert_close(ours, theirs, msg=field.name)
            priors = [prior_features(one, torch.float32) for one in (batch, expected)]
            torch.testing.assert_close(*priors)
            spoiled = fresh.sample(graph, queries)
            changed += not torch.equal(spoiled.score, expected.score)
    assert next(batches, None) is None
    assert changed == len(seen)  # with the facts asked about, all batches would be others


def test_relations_are_matched_by_name_and_unseen_ones_have_the_shared_weights() -> None:
    names = ["knows", "lives in", "works as"]
    sampler = FittedSampler(0.3)
    sampler.fit(with_names(typed_facts(), names))
    assert sampler.weights is not None
    assert sampler.shared is not None
    assert len(sampler.weights.unique(dim=0)) == 6
    other = with_names(typed_facts(60, 5, 3), ["works as", "something new", "knows"])
    expected = [sampler.weights[2], sampler.shared, sampler.weights[0]]
    expected += [sampler.weights[5], sampler.shared, sampler.weights[3]]
    assert torch.equal(sampler._weights(other), torch.stack(expected))
    batch = sampler.sample(other, torch.tensor([[0, 1], [0, 4]]))
    assert bool(batch.score.isfinite().all())
    # Back on its own graph, nothing has changed.
    assert torch.equal(sampler._weights(with_names(typed_facts(), names)), sampler.weights)


def test_a_relation_without_facts_has_the_shared_weights() -> None:
    graph = with_names(typed_facts(), ["knows", "lives in", "works as", "never seen"])
    sampler = FittedSampler(0.3)
    sampler.fit(graph)
    assert sampler.weights is not None
    assert sampler.shared is not None
    assert torch.allclose(sampler.weights[[3, 7]], sampler.shared.expand(2, -1), atol=1e-5)
    batch = sampler.sample(graph, torch.tensor([[0, 3], [0, 7]]))
    assert bool(batch.score.isfinite().all())


def test_a_fit_that_diverges_leaves_the_default_weights(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("oneshot.samplers.fitted._HELD", math.nan)
    graph = KnowledgeGraph.from_facts(typed_facts(50))
    sampler = FittedSampler(0.3)
    sampler.fit(graph)
    assert "diverged; it has its default weights" in caplog.text
    queries = random_queries(graph, 5, 0)
    plain = FittedSampler(0.3).sample(graph, queries)
    assert torch.equal(sampler.sample(graph, queries).score, plain.score)


@pytest.mark.parametrize("is_older", [False, True])
def test_a_run_on_a_graph_with_other_relations(tmp_path: Path, is_older: bool) -> None:
    graph = with_names(typed_facts(), ["knows", "lives in", "works as"])
    sampler = FittedSampler(0.3)
    sampler.fit(graph)
    config = oneshot.PredictorConfig(
        message="nbfnet", relations="relative", num_layers=1, dim=4, priors=True, prior_start=1.0
    )
    predictor = oneshot.Predictor(config, graph.num_relations)
    oneshot.Reasoner(graph, sampler, predictor).save(tmp_path / "run")
    shared, file = sampler.parameters()["shared"], tmp_path / "run" / SAMPLER
    if is_older:  # without the shared weights
        save_tensors(file, {"weights": sampler.parameters()["weights"]}, {})
        shared = sampler.parameters()["weights"].mean(0)
    other = with_names(typed_facts(60, 5, 3), ["works as", "something new", "knows"])
    there = oneshot.Reasoner.load(tmp_path / "run", graph=other)
    assert isinstance(there.sampler, FittedSampler)
    assert sampler.weights is not None
    expected = torch.stack([sampler.weights[2], shared, sampler.weights[0]])
    assert torch.equal(there.sampler._weights(other)[:3], expected)
    there.reason(random_queries(other, 4, 0))


def test_a_sampler_of_another_graph_is_saved_for_the_relations_of_the_run(tmp_path: Path) -> None:
    graph = with_names(typed_facts(), ["knows", "lives in", "works as"])
    sampler = FittedSampler(0.3)
    sampler.fit(graph)
    assert sampler.shares is not None
    sampler.shares[0] = 0.9
    for names in (["works as", "something new", "knows"], ["a", "works as", "b", "knows"]):
        other = with_names(typed_facts(60, 5, 3), names)
        predictor = oneshot.Predictor(oneshot.PredictorConfig(num_layers=1, dim=4), len(names))
        oneshot.Reasoner(other, sampler, predictor).save(tmp_path / "run")
        again = oneshot.Reasoner.load(tmp_path / "run").sampler
        assert isinstance(again, FittedSampler)
        assert torch.equal(again._weights(other), sampler._weights(other))
        assert torch.equal(again.contexts(other), sampler.contexts(other))


def test_weights_do_not_depend_on_ids_of_relations_or_the_order_of_facts() -> None:
    facts, names = typed_facts(), ["knows", "lives in", "works as"]
    first = FittedSampler(0.3)
    first.fit(with_names(facts, names))
    order = torch.randperm(len(facts), generator=torch.Generator().manual_seed(1))
    renumbered = facts.clone()
    renumbered[:, 1] = torch.tensor([2, 0, 1])[facts[:, 1]]
    assert first.weights is not None
    for other, rows in (
        (with_names(facts[order], names), [0, 1, 2, 3, 4, 5]),
        (with_names(renumbered[order], ["lives in", "works as", "knows"]), [1, 2, 0, 4, 5, 3]),
    ):
        second = FittedSampler(0.3)
        second.fit(other)
        assert second.weights is not None
        assert torch.allclose(second.weights, first.weights[rows], atol=1e-3)
        queries = random_queries(other, 20, 0)
        near = second.scores(other, queries[:, 0])
        found = second._likelihood(other, queries[:, 1], near.clone())
        there = torch.tensor(rows)[queries[:, 1]]
        expected = first._likelihood(with_names(facts, names), there, near)
        assert torch.allclose(found.log(), expected.log(), atol=1e-2)


def saved_run(path: Path, graph: KnowledgeGraph, is_fitted: bool = True) -> FittedSampler:
    """Save a reasoner with a fitted sampler. → its sampler"""
    sampler = FittedSampler(0.3)
    if is_fitted:
        sampler.fit(graph)
    config = oneshot.PredictorConfig(num_layers=1, dim=4, priors=True, prior_start=1.0)
    oneshot.Reasoner(graph, sampler, oneshot.Predictor(config, graph.num_relations)).save(path)
    return sampler


def test_a_run_without_the_file_of_its_sampler_fits_it_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = saved_run(tmp_path / "run", typed_graph())
    (tmp_path / "run" / SAMPLER).unlink()
    again = oneshot.Reasoner.load(tmp_path / "run")
    assert f"{SAMPLER} is missing; the sampler is fitted" in caplog.text
    assert torch.equal(again.sampler.parameters()["weights"], sampler.weights)
    with pytest.raises(InputError, match=f"{SAMPLER} is missing; `oneshot train"):
        Run(tmp_path / "run").load_sampler(FittedSampler(0.3))
    # Where a fit takes long, nobody waits for it unasked.
    monkeypatch.setattr("oneshot.runs.run._FITTED_FACTS", 10)
    with pytest.raises(InputError, match="is missing"):
        oneshot.Reasoner.load(tmp_path / "run")
    # The options of another sampler need no file.
    assert Run.open(tmp_path / "run", ["sampler.name=ppr"]).reasoner.sampler.name == "ppr"


def test_a_sampler_that_was_not_fitted_is_loaded_like_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved_run(tmp_path / "run", typed_graph(), is_fitted=False)
    assert not oneshot.Reasoner.load(tmp_path / "run").sampler.parameters()
    saved_run(tmp_path / "other", typed_graph())
    other = Run.open(tmp_path / "other", ["sampler.name=ppr"]).reasoner
    assert other.sampler.name == "ppr"
    assert not caplog.text


def test_damaged_weights_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the weights"):
        FittedSampler(0.1).take({"weights": torch.zeros(4, 3)})
    with pytest.raises(InputError, match="has no parameters"):
        PPRSampler(0.1).take({"weights": torch.zeros(4, 7)})
    sampler = FittedSampler(0.1)
    sampler.take({"weights": torch.zeros(4, 7)})
    with pytest.raises(InputError, match="fitted to 2 relations, the graph has 3"):
        sampler.sample(typed_graph(), torch.tensor([[0, 0]]))


def test_a_training_that_is_resumed_ends_the_same(tmp_path: Path) -> None:
    data = chain_world(30)
    settings_ = [
        "sampler.name=fitted",
        "sampler.entity_ratio=0.5",
        "predictor.dim=4",
        "predictor.num_layers=2",
        "predictor.priors=true",
        "predictor.prior_start=1",
        "training.epochs=2",
        "training.batch_size=16",
    ]
    config = from_table({}, settings_)
    train_run(data, tmp_path / "whole", config, CPU)
    calls = iter(range(100))
    train_run(data, tmp_path / "cut", config, CPU, should_stop=lambda: next(calls) > 1)
    assert (tmp_path / "cut" / SAMPLER).is_file()
    train_run(data, tmp_path / "cut", config, CPU, resume=True)
    for name in ("predictor.safetensors", SAMPLER):
        whole, cut = ((tmp_path / run / name).read_bytes() for run in ("whole", "cut"))
        assert whole == cut, name


def of_types() -> FittedSampler:
    """A sampler with a small budget, fitted to `typed_graph`."""
    sampler = FittedSampler(0.1, keep_unreachable=False)
    sampler.fit(typed_graph())
    return sampler


def test_changed_facts_count_at_once() -> None:
    """The same sampler, before and after facts are added to a live graph."""
    live = LiveGraph(KnowledgeGraph.from_facts(typed_facts()))
    sampler, queries = of_types(), torch.tensor([[0, 1], [5, 2]])
    assert live.entities.get("newtown") is None
    before = sampler.sample(live.graph(), queries)
    live.add([(str(person), "1", "newtown") for person in range(20, 60)])
    graph = live.graph()
    after = sampler.sample(graph, queries)
    # A new city, which is no trade.
    near = sampler.scores(graph, queries[:, 0])
    likely = sampler._likelihood(graph, queries[:, 1], near)[:, graph.entities.index("newtown")]
    assert float(likely[0]) > 5 > float(likely[1])
    assert not torch.equal(after.score, before.score)
    fresh = FittedSampler(0.1, keep_unreachable=False)
    fresh.take(sampler.parameters(), graph.relations)
    expected = fresh.sample(
        KnowledgeGraph.from_facts(graph.facts, graph.entities, graph.relations), queries
    )
    assert torch.equal(after.entities, expected.entities)
    torch.testing.assert_close(after.score, expected.score)
    live.remove([(str(person), "1", "newtown") for person in range(20, 60)])
    again = sampler.sample(live.graph(), queries)
    assert torch.equal(again.entities, before.entities)


def test_a_saved_graph_gives_the_same_subgraphs(tmp_path: Path) -> None:
    graph, sampler = typed_graph(), of_types()
    save_graph(tmp_path / "graph", graph, {}, {})
    opened, _, _ = open_graph(tmp_path / "graph")
    queries = random_queries(graph, 20, 0)
    here, there = (sampler.sample(one, queries) for one in (graph, opened))
    assert torch.equal(here.entities, there.entities)
    assert torch.equal(here.edges, there.edges)
    torch.testing.assert_close(here.score, there.score)
    own = FittedSampler(0.1, keep_unreachable=False)
    own.fit(opened)
    assert own.weights is not None
    assert sampler.weights is not None
    assert torch.allclose(own.weights, sampler.weights, atol=1e-3)


@pytest.mark.parametrize("context", [None, 0.0, 1.0])
def test_included_entities_are_in_and_take_places(context: float | None) -> None:
    graph, sampler = typed_graph(), of_types()
    sampler.context = context
    queries = random_queries(graph, 3, 0)
    include = torch.tensor([[137, 119], [136, -1], [-1, -1]])
    batch = sampler.sample(graph, queries, include)
    plain = sampler.sample(graph, queries)
    for row, wanted in enumerate(include.tolist()):
        chosen = set(batch.entities[batch.entity_query == row].tolist())
        assert chosen >= {entity for entity in wanted if entity >= 0}
        assert len(chosen) <= 13
        if row == 2:
            assert chosen == set(plain.entities[plain.entity_query == 2].tolist())


def test_mass_ends_a_subgraph_early() -> None:
    graph, sampler = typed_graph(), of_types()
    queries = random_queries(graph, 30, 0)
    sizes = []
    for mass in (0.2, 0.6, 1.0, None):
        some = FittedSampler(0.3, mass=mass, keep_unreachable=False)
        some.take(sampler.parameters())
        # As many as PPR needs for that share of it: for each query another number.
        both = [
            one.sample(graph, queries).entity_query for one in (some, PPRSampler(0.3, mass=mass))
        ]
        assert torch.equal(both[0].bincount(), both[1].bincount())
        sizes.append(both[0].bincount())
    assert int(sizes[0].sum()) < int(sizes[1].sum()) < int(sizes[2].sum())
    assert len(sizes[1].unique()) > 1
    assert torch.equal(sizes[2], sizes[3])


def test_answers_are_explained_on_the_subgraph_they_were_found_in() -> None:
    graph, sampler = typed_graph(), of_types()
    config = oneshot.PredictorConfig(num_layers=3, dim=4, priors=True, prior_start=1.0)
    torch.manual_seed(0)
    reasoner = oneshot.Reasoner(graph, sampler, oneshot.Predictor(config, graph.num_relations))
    found = reasoner.predict(0, 1, top=8, explain=True)
    batch = sampler.sample(graph, torch.tensor([[0, 1]]))
    for answer, explanation in zip(found, found.explanations, strict=True):
        assert torch.equal(explanation.batch.entities, batch.entities)
        alone = reasoner.explain(0, 1, answer.entity)
        assert explanation.as_dict() == alone.as_dict()
    assert any(explanation.paths for explanation in found.explanations)


def test_the_local_push_gives_nearly_the_same_likelihoods() -> None:
    data = power_law(3000, 30_000)
    queries, answers = data.queries("test")
    queries, answers = queries[:40], answers[:40]
    local, whole = (
        FittedSampler(max_entities=300, method=method, context=0.5)
        for method in ("push", "chebyshev")
    )
    (_, ours), *more = list(local.likelihoods(data.graph, queries[:8]))
    (_, expected), *_ = list(whole.likelihoods(data.graph, queries[:8]))
    assert not more
    assert float((ours / expected).log().abs().median()) < 0.2
    one, other = (sampler.sample(data.graph, queries) for sampler in (local, whole))
    size = data.graph.num_entities
    shared = torch.isin(
        one.entity_query * size + one.entities, other.entity_query * size + other.entities
    )
    assert len(one.entities) == len(other.entities)
    assert float(shared.float().mean()) > 0.9
    sampled = local.ranks(data.graph, queries, answers) < 300
    assert torch.equal(sampled, one.find(answers) >= 0)


def test_the_local_push_gives_no_score_to_other_components() -> None:
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 0, 2], [3, 0, 4]], 6, 1)
    scores = FittedSampler(method="push", max_entities=1).scores(graph, torch.tensor([0, 3, 5]))
    assert (scores > 0).tolist() == [
        [True, True, True, False, False, False],
        [False, False, False, True, True, False],
        [False, False, False, False, False, True],
    ]
    assert scores.sum(1).tolist() == pytest.approx([1, 1, 1], abs=0.05)


def test_another_budget_does_not_repeat_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = power_law(300, 2000, seed=3).graph
    fits = []
    for is_kept in (True, False):
        fitted._fits.clear()
        fitted._shares.clear()
        fitted._last_scored.clear()
        if not is_kept:
            monkeypatch.setattr(fitted, "_SCORED", 0)
        FittedSampler(max_entities=50).fit(graph)
        if is_kept:
            with monkeypatch.context() as patched:
                patched.setattr(FittedSampler, "scores", lambda *_: pytest.fail("scored again"))
                second = FittedSampler(max_entities=20)
                second.fit(graph)
        else:
            second = FittedSampler(max_entities=20)
            second.fit(graph)
        assert second.shares is not None
        fits.append(second.shares)
    assert fits[0].equal(fits[1])


@pytest.mark.parametrize("method", ["auto", "push"])
def test_a_fit_does_not_depend_on_earlier_ones(
    method: Literal["auto", "push"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a graph on which small budgets use the push, whose scores depend on the budget."""
    for name in ("_fits", "_shares", "_last_scored"):
        monkeypatch.setattr(fitted, name, {})
    limits = {"LOCAL_LEAST_GRAPH": 0, "BALL_LARGEST_HUB": 0, "LOCAL_LARGEST_SHARE": 0.1}
    for name, value in limits.items():
        monkeypatch.setattr(sys.modules["oneshot.samplers.ppr"], name, value)
    graph = power_law(200, 2000).graph
    graph.push_recall = 1.0

    def fit(budget: int) -> dict[str, torch.Tensor]:
        sampler = FittedSampler(max_entities=budget, method=method)
        sampler.fit(graph)
        assert sampler.is_local(graph) == (budget == 10 or method == "push")
        return sampler.parameters()

    alone = fit(10)
    fitted._fits.clear()
    fit(100)
    for name, tensor in fit(10).items():
        assert torch.equal(tensor, alone[name]), name
