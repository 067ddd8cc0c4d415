"""Final evaluation of a trained reasoner on both splits, within the remaining time."""

import math
from collections.abc import Callable
from typing import Any

from oneshot.data.dataset import Dataset
from oneshot.evaluation.evaluate import drawn_queries, evaluate
from oneshot.evaluation.factor_weight import choose_weight
from oneshot.reasoner.answers import Calibration
from oneshot.reasoner.calibration import COST, calibrate
from oneshot.training.interrupt import check_stop
from oneshot.training.time_budget import TimeBudget
from oneshot.training.trainer import Trainer

SPLITS = ("valid", "test")

_CALIBRATION_QUERIES = 1000
_LEAST_CALIBRATION = 16
# Maximum share of the remaining time that is reserved for the steps after a split.
_KEPT = {"valid": 0.7, "test": 0.15}
# Maximum share of the remaining time for the weight of the factors.
_WEIGHING = 0.2
_MARGIN = 1.1
# Shares of the budget: minimum if training has used it all, and reserve for writing files.
_LEAST_LEFT = 0.05
_SAVING = 0.01


def final_queries(data: Dataset, has_factors: bool = False) -> int:
    """Number of queries after training: both splits, the calibration, the weight of factors."""
    valid = 2 * len(data.valid)
    final = valid + 2 * len(data.test) + _calibration_queries(data, has_factors)
    return final + (valid if has_factors else 0)


def _calibration_queries(data: Dataset, has_factors: bool) -> int:
    """Number of queries of the calibration; factors are calibrated apart."""
    return int(COST * min(2 * len(data.valid), _CALIBRATION_QUERIES)) * (1 + has_factors)


class FinalEvaluation:
    """Evaluates the reasoner of a trainer on both splits, and calibrates it.

    `budget`: the time budget; if little is left, only a seeded sample of the queries is evaluated.
    `should_stop` is called after each batch; if it returns true, `StopTraining` is raised. The
    observers of the training are notified, too.
    """

    def __init__(
        self,
        trainer: Trainer,
        budget: TimeBudget,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.trainer, self.budget, self.should_stop = trainer, budget, should_stop
        self.reports: dict[str, dict[str, Any] | None] = {}

    def run(self) -> dict[str, dict[str, Any] | None]:
        """The evaluation of each split as JSON, or None if it is empty."""
        self.weigh_factors()
        for split in SPLITS:
            self.reports[split] = self._evaluated(split)
        return self.reports

    def weigh_factors(self) -> None:
        """Choose the weight of the factors, if there are any, by the validation queries."""
        trainer, budget = self.trainer, self.budget
        if trainer.reasoner.factors is None or not len(trainer.data.valid):
            return
        # All of them, as there is a weight per relation, also if validations use fewer.
        for observer in trainer.observers:
            observer.on_evaluation("valid", 2 * len(trainer.data.valid))

        def progress(done: int) -> None:
            for observer in trainer.observers:
                observer.on_answers(done)
            check_stop(self.should_stop, trainer.team)

        choose_weight(
            trainer.reasoner,
            trainer.data.valid,
            trainer.known,
            batch_size=trainer.config.valid_batch_size or None,
            seed=trainer.config.seed,
            progress=progress,
            until=_Deadline(budget, _WEIGHING * self._left) if budget.is_limited else None,
        )

    @property
    def cut(self) -> str:
        """A text that names the splits that were not fully evaluated; empty if all were."""
        short = [
            f"{report['queries']:,} of {report['of']:,} {split} queries"
            for split, report in self.reports.items()
            if report is not None and report["queries"] < report["of"]
        ]
        return " and ".join(short)

    def baseline_mrr(self) -> float | None:
        """MRR of the frequency baseline on the evaluated test queries, else on valid."""
        split = next((name for name in reversed(SPLITS) if self.reports.get(name)), None)
        report = self.reports[split] if split else None
        if split is None or report is None:
            return None
        trainer = self.trainer
        facts, relations = trainer.data.facts(split), trainer.graph.num_relations
        asked = drawn_queries(facts, relations, report["queries"], trainer.config.seed)
        return trainer.frequency.metrics(*asked, trainer.known).mrr

    def calibrated(self) -> Calibration:
        """The calibration of scores to probabilities, on as many queries as the time allows."""
        limit, trainer = _CALIBRATION_QUERIES, self.trainer
        seed, seconds = trainer.config.seed, math.inf
        if self.budget.is_limited and self.budget.seconds_per_query:
            # Only one process calibrates; the rate is that of all processes together.
            rate = COST * self.budget.seconds_per_query * trainer.team.size
            rate *= 1 if trainer.reasoner.factors is None else 2  # with and without them
            seconds = self._left / _MARGIN
            limit = min(limit, max(int(seconds / rate), _LEAST_CALIBRATION))
        # The rate may have been measured with other batches, or on a machine that was less busy.
        clock = self.budget.clock
        return calibrate(trainer.reasoner, trainer.data, limit, seed, None, seconds, clock)

    @property
    def _left(self) -> float:
        """Remaining time in seconds."""
        limit = self.budget.limit
        return max(self.budget.left - _SAVING * limit, _LEAST_LEFT * limit)

    def _evaluated(self, split: str) -> dict[str, Any] | None:
        trainer, budget = self.trainer, self.budget
        facts, team = trainer.data.facts(split), trainer.team
        count = 2 * len(facts)
        if not count:
            return None
        until, limit, seed, expected = None, None, 0, count
        if budget.is_limited:
            seconds, seed = self._seconds(split), trainer.config.seed
            expected = min(count, max(int(seconds / (budget.seconds_per_query or math.inf)), 1))
            if team.size == 1:
                until = _Deadline(budget, seconds)
            else:  # all processes must stop at the same query
                limit = expected = int(team.from_first(expected))
        for observer in trainer.observers:
            observer.on_evaluation(split, len(team.dealt(expected)))

        def progress(done: int) -> None:
            for observer in trainer.observers:
                observer.on_answers(done)
            check_stop(self.should_stop, team)

        begun = budget.clock()
        report = evaluate(
            trainer.reasoner,
            facts,
            trainer.known,
            batch_size=trainer.config.valid_batch_size or None,
            limit=limit,
            seed=seed,
            progress=progress,
            until=until,
            team=team,
        )
        budget.learn(report.queries, budget.clock() - begun)
        return report.as_dict()

    def _seconds(self, split: str) -> float:
        """Time limit of the evaluation of a split in seconds; leaves time for later steps."""
        data, left = self.trainer.data, self._left
        following = _calibration_queries(data, self.trainer.reasoner.factors is not None)
        following += 2 * len(data.test) if split == "valid" else 0
        kept, rate = _KEPT[split] * left, self.budget.seconds_per_query
        if rate:
            kept = min(kept, _MARGIN * rate * following)
            kept = max(kept, min(rate * _LEAST_CALIBRATION, left / 2))
        return left - kept


class _Deadline:
    """Called after each batch: whether there is no time for another batch of the same length."""

    def __init__(self, budget: TimeBudget, seconds: float) -> None:
        self._budget, self._asked = budget, budget.used
        self._end = self._asked + seconds

    def __call__(self) -> bool:
        before, self._asked = self._asked, self._budget.used
        return self._asked + (self._asked - before) / 2 >= self._end
