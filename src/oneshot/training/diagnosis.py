"""Diagnosis: warnings about problems of a training, with advice."""

from typing import TYPE_CHECKING, Any

import torch

from oneshot.errors import DivergedError
from oneshot.samplers import Sampler
from oneshot.training.observer import Observer

if TYPE_CHECKING:
    from oneshot.training.trainer import Trainer

_LEAST_COVERED = 0.5
_ENOUGH_QUERIES = 1000  # minimum to judge the coverage within an epoch
_LEAST_GAIN = 0.01  # minimum relative decrease of the loss
# The loss must have decreased after this many epochs or this share of the time. After half of the
# time, the predictor must beat the baseline.
_EARLY_EPOCHS, _EARLY_SHARE, _HALF = 3, 1 / 4, 1 / 2
_PARTS = 12  # parts of the time budget, whose losses are compared
_LEAST_STEPS = 200  # minimum before the loss is checked
_LARGE_GRAPH = 20_000  # entities
_LEAST_SHARE = 2 / 3  # of the training queries that the plan expects


class Diagnosis(Observer):
    """An observer that reports each problem once, in one line, through `trainer.messages`."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._losses: dict[int, tuple[float, int]] = {}
        self._steps, self._is_loss_checked = 0, False
        self._samplers: dict[str, Sampler] = {}
        self._can_grow: dict[str, bool] = {}
        # Number of training queries, and used time, before this session.
        self._asked_before, self._used_before = 0, 0.0

    def on_start(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        if not trainer.team.is_first:
            return
        at_test = trainer.reasoner.sampler
        self._samplers = {"training": trainer.stepper.sampler, "validation": at_test}
        self._can_grow = {phase: self._has_more(one) for phase, one in self._samplers.items()}
        self._baseline = trainer.baseline_mrr  # computed now, not within an epoch
        self._asked_before, self._used_before = self._asked, trainer.budget.used
        self._check_size()

    def on_step(self, queries: int, loss: float) -> None:
        trainer = self._trainer
        if not trainer.team.is_first:
            return
        state = trainer.state
        if state.asked >= _ENOUGH_QUERIES:
            # In distributed training, each process counts the coverage of its own share.
            covered = state.covered * trainer.team.size / state.asked
            self._check_coverage("training", covered)
        if trainer.budget.is_limited:
            self._check_loss_in_time(queries, loss)
            self._check_pace()

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
        if trainer.state.out_of_time:
            self._check_pace()

    def _report(self, topic: str, message: str) -> None:
        if topic not in self._reported:
            self._reported.add(topic)
            self._trainer.messages(message)

    def _check_size(self) -> None:
        """Report subgraphs that contain all of a large graph."""
        trainer = self._trainer
        entities, budget = trainer.graph.num_entities, trainer.stepper.sampler.budget
        if entities <= _LARGE_GRAPH or budget.mass is not None or self._can_grow["training"]:
            return
        self._report(
            "size",
            f"the subgraphs contain all {entities:,} entities of the graph, which is unnecessarily "
            "slow: set sampler.entity_ratio, for example to 0.1 (`oneshot coverage` shows how many "
            "answers are then not covered)",
        )

    def _check_coverage(self, phase: str, covered: float) -> None:
        """Report answers that cannot be predicted because they are not in the subgraph."""
        if covered >= _LEAST_COVERED or not self._can_grow[phase]:
            return
        budget = self._samplers[phase].budget
        section, option = (
            "sampler",
            "entity_ratio" if budget.max_entities is None else "max_entities",
        )
        if phase == "training" and self._trainer.config.entity_ratio is not None:
            section, option = "training", "entity_ratio"
        advice = f"raise {section}.{option} (`oneshot coverage` shows the coverage of budgets)"
        if not covered and phase == "training":
            problem = "no answer was among the sampled entities, so nothing could be learnt"
        else:
            problem = (
                f"only {covered:.0%} of the answers in {phase} are among the sampled entities; "
                "the others cannot be predicted"
            )
        self._report("coverage", f"{problem}: {advice}")

    def _has_more(self, sampler: Sampler) -> bool:
        """Whether a subgraph could have more entities than the budget allows."""
        graph = self._trainer.graph
        relations = torch.arange(2 * graph.num_relations, device=graph.device)
        return int(sampler.budget.entity_counts(graph, relations).min()) < graph.num_entities

    def _check_loss_in_time(self, queries: int, loss: float) -> None:
        """Check the loss after a quarter of the time, which may be less than an epoch."""
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
        """Report a loss that does not decrease."""
        if now <= (1 - _LEAST_GAIN) * first:
            return
        config = self._trainer.config
        self._report(
            "loss",
            f"the loss does not decrease ({first:.4f} at first, {now:.4f} now): change "
            f"training.learning_rate ({config.learning_rate:g}), or raise predictor.dim",
        )

    def _check_baseline(self) -> None:
        """Report a validation MRR below the frequency baseline."""
        trainer = self._trainer
        state, baseline = trainer.state, self._baseline
        is_early = state.epoch < _EARLY_EPOCHS and trainer.schedule.time_share < _HALF
        if state.best_mrr >= baseline or (is_early and not state.finished):
            return
        self._report(
            "baseline",
            f"valid MRR {state.best_mrr:.4f} is below {baseline:.4f}, that of the frequency "
            "baseline, which ranks entities by how often they occur with the relation: train "
            "longer, change training.learning_rate, or raise sampler.entity_ratio",
        )

    def _check_time(self) -> None:
        """Report more epochs than fit the time budget; planned ones are an upper limit."""
        trainer = self._trainer
        budget, epochs = trainer.budget, trainer.config.epochs
        state = trainer.state
        if not budget.is_limited or state.finished or trainer.config.expected_queries:
            return
        an_epoch = state.seconds / state.epoch
        others = budget.used - state.seconds + budget.reserve
        needed = epochs * an_epoch + others
        if needed > budget.limit:
            possible = int((budget.limit - others) / an_epoch)
            self._report(
                "time",
                f"{epochs} epochs would take about {needed / 60:.1f} minutes, more than the "
                f"budget of {budget.minutes:g}: training ends after about {max(possible, 1)} "
                "(the learning rate follows the clock); for more, raise training.minutes",
            )

    @property
    def _asked(self) -> int:
        """Number of training queries so far."""
        trainer = self._trainer
        whole = trainer.queries_per_epoch  # earlier versions did not record the queries
        done: int = sum(record.get("queries", whole) for record in trainer.state.history)
        return done + trainer.state.asked

    def _check_pace(self) -> None:
        """Report far fewer training queries than the plan expected."""
        trainer = self._trainer
        budget, expected = trainer.budget, trainer.config.expected_queries
        if not expected or "pace" in self._reported:
            return
        asked = self._asked
        if not trainer.state.out_of_time:
            used = budget.used - self._used_before
            whole = max(budget.limit - budget.reserve - self._used_before, used)
            if used < _EARLY_SHARE * whole or not used:
                return
            asked = self._asked_before + int((asked - self._asked_before) * whole / used)
        if asked >= _LEAST_SHARE * expected:
            return
        self._report(
            "pace",
            f"only about {asked:,} training queries fit the time, of {expected:,} that the plan "
            "expected, because the machine is busier than it was then or the budget is smaller: "
            "raise training.minutes",
        )


def diverged(epoch: int, step: int | None) -> DivergedError:
    """The error of a training whose loss becomes NaN or infinite; steps are counted from 0."""
    position = f"epoch {epoch}" + ("" if step is None else f", step {step + 1}")
    what = "the predictor" if step is None else "the loss"
    return DivergedError(
        f"{what} is not finite ({position}): lower training.learning_rate, or set "
        "training.clip (for example 1.0)"
    )
