"""Diagnosis: tells when a training goes wrong, and what to do about it."""

from typing import TYPE_CHECKING, Any

import torch

from oneshot.samplers import Sampler
from oneshot.training.observer import Observer

if TYPE_CHECKING:
    from oneshot.training.trainer import Trainer

_LEAST_COVERED = 0.5
_ENOUGH_QUERIES = 1000  # to judge the coverage by within an epoch
_LEAST_GAIN = 0.01  # what the loss must have fallen by, as a share of what it was
# After so many epochs, or that share of the time, the loss must have moved, and after half of the
# time it must have been worth it.
_EARLY_EPOCHS, _EARLY_SHARE, _HALF = 3, 1 / 4, 1 / 2
_PARTS = 12  # of the time budget, for which losses are compared
_LEAST_STEPS = 200  # before the loss has to have moved
_LARGE_GRAPH = 20_000  # entities


class Diagnosis(Observer):
    """An observer that reports each thing once, in one line, through `trainer.messages`."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._losses: dict[int, tuple[float, int]] = {}
        self._steps, self._is_loss_checked = 0, False
        self._samplers: dict[str, Sampler] = {}
        self._can_grow: dict[str, bool] = {}

    def on_start(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        if not trainer.team.is_first:
            return
        at_test = trainer.reasoner.sampler
        self._samplers = {"training": trainer.stepper.sampler, "validation": at_test}
        self._can_grow = {phase: self._has_more(one) for phase, one in self._samplers.items()}
        self._baseline = trainer.baseline_mrr  # computed now, not within an epoch
        self._check_size()

    def on_step(self, queries: int, loss: float) -> None:
        trainer = self._trainer
        if not trainer.team.is_first:
            return
        state = trainer.state
        if state.asked >= _ENOUGH_QUERIES:
            # Of several processes each knows the coverage of its own share.
            covered = state.covered * trainer.team.size / state.asked
            self._check_coverage("training", covered)
        if trainer.budget.is_limited:
            self._check_loss_in_time(queries, loss)

    def on_epoch(self, trainer: "Trainer", record: dict[str, Any], is_best: bool) -> None:
        if not trainer.team.is_first:
            return
        self._check_coverage("training", record["covered"])
        is_whole = record["queries"] == trainer.queries_per_epoch
        if record["epoch"] == _EARLY_EPOCHS and is_whole:
            self._check_loss(trainer.state.history[0]["loss"], record["loss"])
        if "valid" in record:
            self._check_coverage("validation", record["valid"]["coverage"])
            self._check_baseline()
            self._check_time()

    def _report(self, topic: str, message: str) -> None:
        if topic not in self._reported:
            self._reported.add(topic)
            self._trainer.messages(message)

    def _check_size(self) -> None:
        """Subgraphs as large as a large graph."""
        trainer = self._trainer
        entities, budget = trainer.graph.num_entities, trainer.stepper.sampler.budget
        if entities <= _LARGE_GRAPH or budget.mass is not None or self._can_grow["training"]:
            return
        self._report(
            "size",
            f"the subgraphs hold all {entities:,} entities of the graph, which is slow without "
            "need: set sampler.entity_ratio, for example to 0.1 (`oneshot coverage` shows how many "
            "answers are then left out)",
        )

    def _check_coverage(self, phase: str, covered: float) -> None:
        """Answers that cannot be found, as they are not in the subgraph."""
        if covered >= _LEAST_COVERED or not self._can_grow[phase]:
            return
        budget = self._samplers[phase].budget
        section, option = (
            "sampler",
            "entity_ratio" if budget.max_entities is None else "max_entities",
        )
        if phase == "training" and self._trainer.config.entity_ratio is not None:
            section, option = "training", "entity_ratio"
        advice = f"raise {section}.{option} (`oneshot coverage` shows how far)"
        if not covered and phase == "training":
            problem = "no answer was among the sampled entities, so that nothing could be learnt"
        else:
            problem = (
                f"only {covered:.0%} of the answers in {phase} are among the sampled entities, and "
                "no others can be found"
            )
        self._report("coverage", f"{problem}: {advice}")

    def _has_more(self, sampler: Sampler) -> bool:
        """Whether a subgraph could have more entities than the budget allows."""
        graph = self._trainer.graph
        relations = torch.arange(2 * graph.num_relations, device=graph.device)
        return int(sampler.budget.entity_counts(graph, relations).min()) < graph.num_entities

    def _check_loss_in_time(self, queries: int, loss: float) -> None:
        """The loss after a quarter of the time, which may be less than an epoch."""
        if self._is_loss_checked:
            return
        part = int(_PARTS * self._trainer.schedule.time_share)
        total, count = self._losses.get(part, (0.0, 0))
        self._losses[part] = total + queries * loss, count + queries
        self._steps += 1
        parts = sorted(self._losses)
        is_early = parts[-1] - parts[0] < _PARTS * _EARLY_SHARE or self._steps < _LEAST_STEPS
        if not is_early and len(parts) > 2:
            first, now = (self._losses[p][0] / self._losses[p][1] for p in (parts[0], parts[-2]))
            self._check_loss(first, now)
            self._is_loss_checked = True

    def _check_loss(self, first: float, now: float) -> None:
        """A loss that does not move."""
        if now <= (1 - _LEAST_GAIN) * first:
            return
        config = self._trainer.config
        self._report(
            "loss",
            f"the loss does not move ({first:.4f} at first, {now:.4f} now): set another "
            f"training.learning_rate than {config.learning_rate:g}, or a larger predictor.dim",
        )

    def _check_baseline(self) -> None:
        """Worse than what needs no training."""
        trainer = self._trainer
        state, baseline = trainer.state, self._baseline
        is_early = state.epoch < _EARLY_EPOCHS and trainer.schedule.time_share < _HALF
        if state.best_mrr >= baseline or (is_early and not state.finished):
            return
        self._report(
            "baseline",
            f"valid MRR {state.best_mrr:.4f} is below {baseline:.4f}, that of the frequency "
            "baseline, which ranks entities by how often they occur with the relation: train "
            "longer, or set another training.learning_rate or a larger sampler.entity_ratio",
        )

    def _check_time(self) -> None:
        """More epochs than there is time for."""
        trainer = self._trainer
        budget, epochs = trainer.budget, trainer.config.epochs
        state = trainer.state
        if not budget.is_limited or state.finished:
            return
        an_epoch = state.seconds / state.epoch
        others = budget.used - state.seconds + budget.reserve
        needed = epochs * an_epoch + others
        if needed > budget.limit:
            possible = int((budget.limit - others) / an_epoch)
            self._report(
                "time",
                f"{epochs} epochs would take about {needed / 60:.1f} minutes, longer than the "
                f"{budget.minutes:g} there are: training ends after about {max(possible, 1)} "
                "(the learning rate follows the time); for more, raise training.minutes",
            )
