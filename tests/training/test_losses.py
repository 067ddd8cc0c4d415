"""Tests of losses and schedules, against naive versions."""

import math

import pytest
import torch
from tests.support.graphs import random_graph, random_queries
from torch import Tensor

from oneshot.config import TrainingConfig
from oneshot.ranking import KnownFacts
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.training.losses import bce_loss, find_targets, query_losses, softmax_loss
from oneshot.training.schedule import Schedule

NUM_ENTITIES = 30


def small(seed: int) -> tuple[SubgraphBatch, Tensor, Tensor, Tensor]:
    """→ (batch, scores [N], answers [n] of which some are not sampled, training facts [m, 3])"""
    graph = random_graph(seed, NUM_ENTITIES, 90, 3)
    # So few entities that some known answers are outside.
    batch = PPRSampler(entity_ratio=0.15).sample(graph, random_queries(graph, 12, seed))
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(batch.num_entities, generator=generator, dtype=torch.float64)
    answers = torch.randint(NUM_ENTITIES, (12,), generator=generator)
    answers[::2] = batch.entities[batch.source[::2] // 4 * 4 + seed]  # these are sampled
    return batch, scores, answers, graph.facts.long()


def naive(
    config: TrainingConfig, batch: SubgraphBatch, scores: Tensor, answers: Tensor, facts: Tensor
) -> list[float]:
    """The loss of each query, entity by entity."""
    known = {(h, r, t) for h, r, t in facts.tolist()}
    known |= {(t, r + 3, h) for h, r, t in facts.tolist()}
    losses = []
    for query, ((head, relation), answer) in enumerate(
        zip(batch.queries.tolist(), answers.tolist(), strict=True)
    ):
        mine = batch.entity_query == query
        score = dict(zip(batch.entities[mine].tolist(), scores[mine].tolist(), strict=True))
        if answer not in score and config.uncovered == "skip":
            losses.append(0.0)
            continue
        rivals = [
            entity
            for entity in range(NUM_ENTITIES)
            if entity != answer and not (config.mask_known and (head, relation, entity) in known)
        ]
        if config.loss == "bce":
            total = -math.log(1 / (1 + math.exp(-score[answer]))) if answer in score else 0.0
            total += sum(math.log(1 + math.exp(score[e])) for e in rivals if e in score)
        else:
            everything = [score.get(answer, 0.0)]
            for entity in rivals:
                if entity in score:
                    everything.append(score[entity])
                elif config.softmax_over == "all":
                    everything.append(0.0)
            total = math.log(sum(map(math.exp, everything))) - everything[0]
        losses.append(total)
    return losses


@pytest.mark.parametrize("mask_known", [False, True])
@pytest.mark.parametrize("uncovered", ["skip", "push_down"])
@pytest.mark.parametrize(
    "kind", [{"loss": "bce"}, {"softmax_over": "all"}, {"softmax_over": "sampled"}]
)
def test_losses_are_those_of_the_plain_formulas(
    kind: dict[str, str], uncovered: str, mask_known: bool
) -> None:
    kind = {**kind, "uncovered": uncovered}
    config = TrainingConfig(mask_known=mask_known, **kind)  # type: ignore[arg-type]
    other = TrainingConfig(mask_known=not mask_known, **kind)  # type: ignore[arg-type]
    for seed in range(3):
        batch, scores, answers, facts = small(seed)
        seen = KnownFacts(facts, NUM_ENTITIES, 3)
        targets = find_targets(config, batch, answers, seen, NUM_ENTITIES)
        found = query_losses(config, scores, batch, targets)
        expected = naive(config, batch, scores, answers, facts)
        assert found.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-12)
        assert 0 < int((targets.place >= 0).sum()) < len(answers)
        targets = find_targets(other, batch, answers, seen, NUM_ENTITIES)
        unmasked = query_losses(other, scores, batch, targets)
        assert not torch.equal(unmasked, found)


def test_gradients_of_the_losses_are_those_of_differences() -> None:
    batch, scores, answers, _ = small(1)
    place = batch.find(answers)
    skip = torch.arange(batch.num_entities) % 5 == 0
    skip[place[place >= 0]] = False
    unsampled = torch.full((12,), 7)
    scores.requires_grad_()
    for loss in (
        lambda s: softmax_loss(s, batch, place, skip, unsampled),
        lambda s: softmax_loss(s, batch, place, None, None),
        lambda s: bce_loss(s, batch, place, skip),
        lambda s: softmax_loss(s, batch, place, skip, unsampled, push_down=True),
        lambda s: softmax_loss(s, batch, place, None, None, push_down=True),
        lambda s: bce_loss(s, batch, place, skip, push_down=True),
    ):
        assert torch.autograd.gradcheck(loss, [scores])


@pytest.mark.parametrize("shift", [-1000.0, 0.0, 1000.0])
@pytest.mark.parametrize("others", ["none", "zero", "some"])
def test_large_scores_neither_overflow_nor_vanish(shift: float, others: str) -> None:
    """In float32, exp leaves the numbers at 88; a query may also have nothing but known answers."""
    batch, scores, answers, _ = small(2)
    values = (scores + shift).float().requires_grad_()
    place = batch.find(answers)
    skip = batch.entity_query == int((place < 0).nonzero()[0])
    skip[int((place >= 0).nonzero()[0])] = True
    skip[place[place >= 0]] = False
    unsampled = {"none": None, "zero": torch.zeros(12).long(), "some": torch.full((12,), 5)}[others]
    loss = softmax_loss(values, batch, place, skip, unsampled)
    loss.sum().backward()
    assert bool(loss.isfinite().all())
    assert values.grad is not None
    assert bool(values.grad.isfinite().all())
    assert bool((loss >= 0).all())
    assert values.grad[skip].tolist() == [0.0] * int(skip.sum())
    for query in (place >= 0).nonzero().squeeze(1).tolist():
        mine = (batch.entity_query == query) & ~skip
        rivals = values.detach().double()[mine]
        if others == "some":
            rivals = torch.cat([rivals, torch.zeros(5, dtype=torch.float64)])
        expected = rivals.logsumexp(0) - values.detach().double()[place[query]]
        assert float(loss.detach()[query]) == pytest.approx(float(expected), rel=1e-3, abs=1e-3)


def test_a_skipped_entity_far_above_the_others_passes_no_gradient() -> None:
    batch, scores, answers, _ = small(2)
    place = batch.find(answers)
    skip = torch.zeros(batch.num_entities, dtype=torch.bool)
    rival = int((~torch.isin(torch.arange(batch.num_entities), place)).nonzero()[0])
    skip[rival] = True
    values = scores.float()
    values[rival] = 500.0
    values.requires_grad_()
    softmax_loss(values, batch, place, skip, None).sum().backward()
    assert values.grad is not None
    assert bool(values.grad.isfinite().all())


def test_a_cosine_falls_from_one_to_zero_after_a_rise() -> None:
    schedule = Schedule(TrainingConfig(epochs=10, warmup_epochs=2.0, schedule="cosine"))
    assert [schedule.factor(e) for e in (0, 1, 2)] == pytest.approx([0, 0.5, 1])
    assert schedule.factor(6) == pytest.approx(0.5)
    assert schedule.factor(10) == pytest.approx(0)
    falling = [schedule.factor(2 + e / 10) for e in range(80)]
    assert falling == sorted(falling, reverse=True)
    assert Schedule(TrainingConfig(epochs=1, warmup_epochs=5.0)).factor(0.5) == pytest.approx(0.1)


def test_a_constant_stays() -> None:
    schedule = Schedule(TrainingConfig(schedule="constant"))
    for _ in range(10):
        schedule.validated(False)
    assert {schedule.factor(e) for e in (0, 0.5, 19)} == {1.0}


def test_a_plateau_halves_down_to_a_twentieth() -> None:
    schedule = Schedule(TrainingConfig(schedule="plateau", plateau_patience=3))
    factors = []
    for is_better in [True, False, False, True, False, False, False, False, False, False]:
        schedule.validated(is_better)
        factors.append(schedule.factor(1.0))
    assert factors == [1, 1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    for _ in range(30):
        schedule.validated(False)
    assert schedule.factor(1.0) == 1 / 20
