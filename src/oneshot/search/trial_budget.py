"""Trial budget: the time of a trial, with rungs at equal shares of it."""

from collections.abc import Collection
from dataclasses import dataclass

from oneshot.training.time_budget import TimeBudget


@dataclass
class TrialBudget(TimeBudget):
    """The time that a trial may take, in which all trials are judged at the same moments.

    The training ends with the time and its learning rate follows it, as with any time budget. But
    validations stand at rungs, and all trials answer the same queries, however slow they are.

    `saving`: 0, as a trial writes nothing. `rungs`: how many. `judged`: those at which a trial may
    be stopped, which are always validated, the others if there is time. `reached`: the last rung
    whose validation is done.
    """

    saving: float = 0.0
    rungs: int = 8
    judged: Collection[int] = ()
    reached: int = 0

    @property
    def passed(self) -> int:
        """Rungs whose time has come."""
        return int(self.share * self.rungs)

    def is_validation_due(self, is_first: bool) -> bool:
        passed = self.passed
        if passed <= self.reached:
            return False
        must = any(self.reached < rung <= passed for rung in self.judged)
        return must or self.affords_validation

    def valid_limit(self, queries: int) -> int:
        return queries
