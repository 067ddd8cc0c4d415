"""The time limit of a trial, with rungs at equal shares of it."""

from collections.abc import Collection
from dataclasses import dataclass

from oneshot.training.time_budget import TimeBudget


@dataclass
class TrialBudget(TimeBudget):
    """The time limit of a trial, with common times at which all trials are judged.

    The training ends at the time limit and the learning rate follows the time, as with any time
    budget. Validations are at rungs, and all trials answer the same queries, even slow ones.

    `saving`: 0, because a trial writes nothing. `rungs`: number of rungs. `judged`: rungs at which
    a trial may be stopped; they are always validated, the others if there is time. `reached`: the
    last validated rung.
    """

    saving: float = 0.0
    rungs: int = 8
    judged: Collection[int] = ()
    reached: int = 0

    @property
    def passed(self) -> int:
        """Number of rungs whose time has passed."""
        return int(self.share * self.rungs)

    def is_validation_due(self, is_first: bool) -> bool:
        passed = self.passed
        if passed <= self.reached:
            return False
        must = any(self.reached < rung <= passed for rung in self.judged)
        return must or self.affords_validation

    def valid_limit(self, queries: int) -> int:
        return queries
