"""Tests of training: what is seen, what is asked, what is learnt, and what goes wrong."""

import dataclasses
import os
from typing import Any

import pytest
import torch
from tests.support.samples import chain_world, tiny_predictor
from torch import Tensor

from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.data.load import family
from oneshot.errors import InputError, OneshotError
from oneshot.evaluation.evaluate import evaluate
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system import devices
from oneshot.system.process import ONEDNN_LIMIT, WITHOUT_AMX
from oneshot.training.epoch import draw_epoch, mixed_seed, queries_per_epoch, without_direct
from oneshot.training.observer import Observer
from oneshot.training.trainer import Trainer, fit

SMALL = TrainingConfig(epochs=3, batch_size=16, learning_rate=0.01, fact_ratio=0.7)
SHAPE = PredictorConfig(num_layers=3, dim=8, attention_dim=4)


def make(data: Dataset, **changes: Any) -> Reasoner:
    """A fresh reasoner, the same each time."""
    shape = dataclasses.replace(SHAPE, **changes)
    return build_reasoner(data.graph, Config(SamplerConfig(entity_ratio=0.5), shape))


def parameters(reasoner: Reasoner) -> Tensor:
    return torch.cat([p.detach().flatten() for p in reasoner.predictor.parameters()])


def as_set(facts: Tensor) -> set[tuple[int, ...]]:
    return {tuple(fact) for fact in facts.tolist()}


def test_an_epoch_asks_what_it_does_not_see() -> None:
    data = chain_world(30)
    whole = as_set(data.train)
    asked_before: list[set[tuple[int, ...]]] = []
    for number in (1, 2, 3):
        epoch = draw_epoch(data.graph, SMALL, number)
        seen = as_set(epoch.observed.facts)
        forward = epoch.queries[:, 1] < 3
        assert int(forward.sum()) * 2 == len(forward) == queries_per_epoch(SMALL, 80)
        columns = [epoch.queries[:, 0], epoch.queries[:, 1], epoch.answers]
        asked = as_set(torch.stack(columns, 1)[forward])
        turned = torch.stack([columns[2], columns[1] - 3, columns[0]], 1)[~forward]
        assert as_set(turned) == asked  # both directions of every fact
        assert not asked & seen
        assert asked | seen == whole
        assert (len(seen), epoch.observed.num_entities) == (int(0.7 * 80), 30)
        assert asked not in asked_before
        asked_before.append(asked)
        again = draw_epoch(data.graph, SMALL, number)
        assert torch.equal(again.queries, epoch.queries)
    other = draw_epoch(data.graph, dataclasses.replace(SMALL, seed=1), 1)
    assert as_set(other.observed.facts) != as_set(draw_epoch(data.graph, SMALL, 1).observed.facts)


def test_a_share_of_the_query_facts_is_asked() -> None:
    config = dataclasses.replace(SMALL, query_share=0.25)
    epoch = draw_epoch(chain_world(30).graph, config, 1)
    assert len(epoch.queries) == queries_per_epoch(config, 80) == 12
    assert epoch.observed.num_facts == 56
    assert queries_per_epoch(dataclasses.replace(SMALL, fact_ratio=0.9999), 80) == 2


def test_an_epoch_is_asked_in_batches_that_processes_share() -> None:
    epoch = draw_epoch(chain_world(30).graph, SMALL, 2)
    assert len(epoch.queries) == 48
    for start in (0, 20, 40):
        batches = list(epoch.batches(20, start))
        assert [batch.step for batch in batches] == [0, 1, 2][start // 20 :]
        assert [len(batch.queries) for batch in batches] == [20, 20, 8][start // 20 :]
        assert torch.equal(torch.cat([b.queries for b in batches]), epoch.queries[start:])
        assert torch.equal(torch.cat([b.answers for b in batches]), epoch.answers[start:])
    last = batches[-1]
    shares = [last.share(rank, 3) for rank in range(3)]
    assert [len(share.answers) for share in shares] == [3, 3, 2]
    assert torch.equal(
        torch.cat([s.queries for s in shares]).unique(dim=0), last.queries.unique(dim=0)
    )
    some = epoch.first(20)
    assert (some.number, len(some.queries), some.observed) == (2, 20, epoch.observed)


def test_seeds_of_different_places_differ() -> None:
    seeds = {mixed_seed(*parts) for parts in [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (12,), ()]}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


class SpySampler(PPRSampler):
    """Notes what it is shown and what it gives."""

    def __init__(self) -> None:
        super().__init__(entity_ratio=0.5)
        self.calls: list[tuple[KnowledgeGraph, KnowledgeGraph | None, SubgraphBatch]] = []

    def sample(
        self,
        graph: KnowledgeGraph,
        queries: Tensor,
        include: Tensor | None = None,
        edges_from: KnowledgeGraph | None = None,
    ) -> SubgraphBatch:
        batch = super().sample(graph, queries, include, edges_from)
        self.calls.append((graph, edges_from, batch))
        return batch


@pytest.mark.parametrize("sample_from", ["observation", "train"])
def test_the_sampler_sees_the_observation_graph_only(sample_from: Any) -> None:
    data = chain_world(30)
    config = dataclasses.replace(SMALL, epochs=1, sample_from=sample_from)
    spy = SpySampler()
    reasoner = Reasoner(data.graph, spy, make(data).predictor)
    fit(reasoner, data, config)
    observed = as_set(draw_epoch(data.graph, config, 1).observed.facts)
    training = [call for call in spy.calls if call[1] is not None]
    assert len(training) == 3
    for graph, _, batch in training:
        assert as_set(graph.facts) == (
            observed if sample_from == "observation" else as_set(data.train)
        )
        source, relation, target = batch.edges
        head, tail = batch.entities[source], batch.entities[target]
        facts = torch.stack([head, relation, tail], 1)[relation < 3]
        assert len(facts)
        assert as_set(facts) <= observed  # an edge of a fact that is asked would give it away
    # Validation looks at all training facts.
    validating = [call for call in spy.calls if call[1] is None]
    assert validating
    assert all(as_set(graph.facts) == as_set(data.train) for graph, _, _ in validating)


def test_rules_are_learnt_in_seconds() -> None:
    data = family(150)
    reasoner = make(data, dim=16)
    before = evaluate(reasoner, data.test, data.known)
    config = dataclasses.replace(SMALL, epochs=4, fact_ratio=0.8)
    state = fit(reasoner, data, config)
    after = evaluate(reasoner, data.test, data.known)
    assert before.mrr < 0.2
    assert after.mrr > 0.6
    losses = [record["loss"] for record in state.history]
    assert losses == sorted(losses, reverse=True)
    assert [record["epoch"] for record in state.history] == [1, 2, 3, 4]


def test_the_best_epoch_is_kept_and_training_stops_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data = chain_world(30)
    promised = iter([0.1, 0.4, 0.3, 0.2, 0.5])
    monkeypatch.setattr(Trainer, "_validate", lambda self, record: next(promised))
    reasoner = make(data)
    trainer = Trainer(reasoner, data, dataclasses.replace(SMALL, epochs=9, patience=2))
    kept = []
    epoch = trainer.run_epoch

    def watched() -> None:
        epoch()
        kept.append(parameters(reasoner))

    monkeypatch.setattr(trainer, "run_epoch", watched)
    state = trainer.run()
    assert (state.epoch, state.best_epoch, state.best_mrr, state.finished) == (4, 2, 0.4, True)
    assert torch.equal(parameters(reasoner), kept[1])
    assert not torch.equal(kept[1], kept[3])


def test_validation_may_be_rarer_and_smaller() -> None:
    data = chain_world(30)
    config = dataclasses.replace(SMALL, epochs=5, valid_every=2, valid_limit=4)
    state = fit(make(data), data, config)
    validated = [record["epoch"] for record in state.history if "valid" in record]
    assert validated == [2, 4, 5]  # the last one always


@pytest.mark.parametrize("loss", ["softmax", "bce"])
def test_parts_of_a_batch_add_up_to_the_batch(loss: Any) -> None:
    data = chain_world(30)
    one, many, doubled = make(data), make(data), make(data)
    config = dataclasses.replace(SMALL, epochs=1, loss=loss, clip=1.0)
    fit(one, data, config)
    fit(many, data, dataclasses.replace(config, accumulate=5))
    torch.testing.assert_close(parameters(many), parameters(one), rtol=1e-4, atol=1e-5)
    fit(doubled, data, dataclasses.replace(config, batch_size=32))
    assert not torch.allclose(parameters(doubled), parameters(one), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "message", ["CUDA out of memory", "DefaultCPUAllocator: can't allocate memory"]
)
def test_after_running_out_of_memory_the_batch_is_halved(
    monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    data = chain_world(30)
    plain, short = make(data), make(data)
    config = dataclasses.replace(SMALL, epochs=1)
    expected = fit(plain, data, config)
    sizes: list[int] = []
    forward = type(short.predictor).forward
    kind = torch.OutOfMemoryError if "CUDA" in message else RuntimeError

    def failing(self: Any, batch: SubgraphBatch, weights: Any = None) -> Tensor:
        if self.training:
            sizes.append(batch.num_queries)
            # In the second part of the second step, after gradients have been computed.
            if len(sizes) in (1, 5):
                raise kind(message)
        return forward(self, batch, weights)

    monkeypatch.setattr(type(short.predictor), "forward", failing)
    trainer = Trainer(short, data, config)
    state = trainer.run()
    assert sizes[:8] == [16, 8, 8, 8, 8, 4, 4, 4]
    assert trainer.stepper.micro_batch == 4
    torch.testing.assert_close(parameters(short), parameters(plain), rtol=1e-4, atol=1e-5)
    assert state.history[0]["loss"] == pytest.approx(expected.history[0]["loss"], rel=1e-5)
    assert state.history[0]["covered"] == expected.history[0]["covered"]


def test_memory_too_small_for_one_query_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    data = chain_world(30)
    reasoner = make(data)
    before = parameters(reasoner)
    monkeypatch.setattr(reasoner.predictor, "forward", failing)
    with pytest.raises(
        OneshotError, match=r"micro-batch of 1 queries: lower sampler\.entity_ratio"
    ):
        fit(reasoner, data, SMALL)
    assert torch.equal(parameters(reasoner), before)


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    data = chain_world(30)
    reasoner = make(data)
    monkeypatch.setattr(reasoner.predictor, "forward", failing)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        fit(reasoner, data, SMALL)


def test_a_loss_that_is_not_finite_says_what_to_do() -> None:
    data = chain_world(30)
    reasoner = make(data)
    with torch.no_grad():
        next(iter(reasoner.predictor.parameters())).fill_(torch.nan)
    with pytest.raises(OneshotError, match=r"lower training\.learning_rate, or set training\.clip"):
        fit(reasoner, data, SMALL)


def test_random_numbers_of_the_caller_are_left_alone() -> None:
    data = chain_world(30)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    config = dataclasses.replace(SMALL, epochs=1)
    fit(make(data, dropout=0.5), data, config)
    assert torch.equal(torch.rand(3), expected)
    # And the training does not depend on them.
    one, other = make(data, dropout=0.5), make(data, dropout=0.5)
    fit(one, data, config)
    torch.manual_seed(6)
    fit(other, data, config)
    assert torch.equal(parameters(one), parameters(other))


def test_a_single_step_learns_something() -> None:
    data = chain_world(30)
    reasoner = make(data)
    before = parameters(reasoner)
    fit(reasoner, data, dataclasses.replace(SMALL, epochs=1, batch_size=1000))
    assert not torch.equal(parameters(reasoner), before)


def test_half_precision_learns_too() -> None:
    data = chain_world(30)
    half, whole = make(data), make(data)
    config = dataclasses.replace(SMALL, epochs=1)
    in_half = dataclasses.replace(config, precision="bfloat16")
    if not devices._bfloat16_survives(os.environ.get(ONEDNN_LIMIT)):  # this CPU cannot do it
        with pytest.raises(InputError, match="products crash on this CPU"):
            fit(half, data, in_half)
        return
    state = fit(half, data, in_half)
    assert state.history[0]["loss"] == pytest.approx(
        fit(whole, data, config).history[0]["loss"], rel=0.1
    )
    assert not torch.equal(parameters(half), parameters(whole))
    assert parameters(half).dtype == torch.float32


@pytest.mark.parametrize("limit_helps", [True, False])
def test_a_cpu_on_which_half_precision_kills_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit_helps: bool
) -> None:
    """The probe ends as on a machine that announces AMX and does not allow it."""
    condition = f"{ONEDNN_LIMIT!r} not in os.environ" if limit_helps else "True"
    dies = f"import os, signal\nif {condition}: os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.delenv(ONEDNN_LIMIT, raising=False)
    monkeypatch.setattr(devices, "_BFLOAT16_PROBE", dies)
    monkeypatch.setattr(
        devices, "_bfloat16_survives", devices._bfloat16_survives.__wrapped__
    )  # nothing is remembered
    config = dataclasses.replace(SMALL, precision="bfloat16")
    data = chain_world(30)
    with pytest.raises(InputError, match="products crash") as caught:
        fit(make(data), data, config)
    assert ("ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in str(caught.value)) is limit_helps
    assert not devices.takes_bfloat16(torch.device("cpu"), "auto")
    if limit_helps:
        monkeypatch.setenv(ONEDNN_LIMIT, WITHOUT_AMX)
        assert devices.takes_bfloat16(torch.device("cpu"), "bfloat16")


def test_data_that_cannot_be_trained_on_are_refused() -> None:
    data = chain_world(30)
    none = torch.zeros(0, 3, dtype=torch.long)
    with pytest.raises(InputError, match="needs a validation split"):
        fit(make(data), dataclasses.replace(data, valid=none), SMALL)
    lonely = KnowledgeGraph.from_facts([[0, 0, 1]], 30, 3)
    with pytest.raises(InputError, match="at least two facts"):
        fit(make(data), dataclasses.replace(data, graph=lonely), SMALL)
    other = KnowledgeGraph.from_facts(data.train, 30, 3)
    with pytest.raises(InputError, match="other relations"):
        fit(Reasoner(other, PPRSampler(0.5), tiny_predictor().float()), data, SMALL)


def test_direct_facts_can_be_hidden() -> None:
    graph = KnowledgeGraph.from_facts(
        [[0, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 2], [2, 0, 1], [0, 1, 0]], 3, 2
    )
    batch = PPRSampler(1.0).sample(graph, torch.tensor([[0, 0], [0, 1], [0, 0]]))
    # Answered by a neighbour, by the entity itself, and by one that was not sampled.
    hidden = without_direct(batch, torch.tensor([1, 0, 9]), 2)

    def facts(found: SubgraphBatch, query: int) -> set[tuple[int, ...]]:
        source, relation, target = found.edges[:, found.edge_query == query]
        ids = found.entities[source], relation, found.entities[target]
        return set(zip(*(column.tolist() for column in ids), strict=True))

    assert facts(batch, 0) - facts(hidden, 0) == {
        (0, 0, 1), (1, 2, 0), (0, 1, 1), (1, 3, 0), (1, 1, 0), (0, 3, 1)
    }  # fmt: skip
    assert facts(batch, 1) - facts(hidden, 1) == {(0, 1, 0), (0, 3, 0)}
    assert facts(batch, 2) == facts(hidden, 2)
    assert bool((hidden.edges[2].diff() >= 0).all())


def test_a_training_may_hide_direct_facts() -> None:
    data = chain_world(30)
    losses = [
        fit(make(data), data, dataclasses.replace(SMALL, hide_direct=hide)).history[0]["loss"]
        for hide in (False, True)
    ]
    assert losses[0] != losses[1]


def test_a_training_may_use_smaller_subgraphs_than_testing() -> None:
    data = chain_world(30)
    reasoner = make(data)
    trainer = Trainer(reasoner, data, dataclasses.replace(SMALL, entity_ratio=0.2))
    queries = data.queries("valid")[0][:4]
    small = trainer.stepper.sampler.sample(data.graph, queries)
    large = reasoner.sampler.sample(data.graph, queries)
    assert small.entity_query.bincount().max() == 6
    assert large.num_entities > small.num_entities
    trainer.run_epoch()
    with pytest.raises(InputError, match="entity_ratio"):
        TrainingConfig(entity_ratio=1.5)


def test_leaving_out_asks_every_fact_and_hides_the_facts_of_a_part() -> None:
    data = chain_world(30)
    whole = as_set(data.train)
    config = dataclasses.replace(SMALL, split="leave_out", batch_size=10)
    epoch = draw_epoch(data.graph, config, 1)
    assert len(epoch.queries) == queries_per_epoch(config, 80) == 160
    asked_before: set[tuple[int, ...]] = set()
    parts = list(epoch.parts())
    assert [part.begin for part in parts] == list(range(0, 160, 10))
    for part in parts:
        forward = part.queries[:, 1] < 3
        columns = [part.queries[:, 0], part.queries[:, 1], part.answers]
        asked = as_set(torch.stack(columns, 1)[forward])
        turned = torch.stack([columns[2], columns[1] - 3, columns[0]], 1)[~forward]
        assert as_set(turned) == asked
        assert as_set(part.observed.facts) == whole - asked
        assert not asked & asked_before
        asked_before |= asked
    assert asked_before == whole
    rest = list(epoch.parts(25))
    assert [(part.begin, len(part.queries)) for part in rest][:2] == [(25, 5), (30, 10)]
    assert as_set(rest[0].observed.facts) == as_set(parts[2].observed.facts)
    batches = list(epoch.batches(10, 20))
    assert [batch.step for batch in batches] == list(range(2, 16))
    assert as_set(batches[0].observed.facts) == as_set(parts[2].observed.facts)
    some = draw_epoch(data.graph, dataclasses.replace(config, query_share=0.5), 1)
    assert len(some.queries) == 80


def test_leaving_out_trains_and_shows_the_sampler_no_fact_that_is_asked() -> None:
    data = chain_world(30)
    config = dataclasses.replace(SMALL, epochs=1, split="leave_out")
    spy = SpySampler()
    fit(Reasoner(data.graph, spy, make(data).predictor), data, config)
    training = [call for call in spy.calls if call[1] is not None]
    assert sum(len(batch.queries) for _, _, batch in training) == 160
    for graph, _, batch in training:
        seen = as_set(graph.facts)
        assert len(seen) < 80
        for entity, relation in batch.queries.tolist():
            answers = {
                fact for fact in as_set(data.train) - seen
                if (entity, relation) in ((fact[0], fact[1]), (fact[2], fact[1] + 3))
            }  # fmt: skip
            assert answers


def test_the_average_of_the_parameters_is_what_is_kept() -> None:
    data = chain_world(30)
    config = dataclasses.replace(SMALL, epochs=2, average=0.9, learning_rate=0.01)
    reasoner = make(data)
    trainer = Trainer(reasoner, data, config)
    average = trainer.stepper.average
    assert average is not None
    expected = parameters(reasoner)
    steps = 0
    for number in (1, 2):
        for _ in trainer.stepper.steps(trainer.stepper.draw_epoch(number)):
            steps += 1
            decay = min(0.9, steps / (steps + 10))
            expected = decay * expected + (1 - decay) * parameters(reasoner)
    torch.testing.assert_close(torch.cat([v.flatten() for v in average.values]), expected)
    raw = parameters(reasoner)
    with average.applied():
        torch.testing.assert_close(parameters(reasoner), expected)
    assert torch.equal(parameters(reasoner), raw)
    assert not torch.allclose(raw, expected)

    class Averages(Observer):
        """The averages after each epoch."""

        def __init__(self) -> None:
            self.found: list[Tensor] = []

        def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
            assert trainer.stepper.average is not None
            values = trainer.stepper.average.values
            self.found.append(torch.cat([value.flatten() for value in values]))

    again, averages = make(data), Averages()
    state = fit(again, data, config, [averages])
    assert torch.equal(parameters(again), averages.found[state.best_epoch - 1])
