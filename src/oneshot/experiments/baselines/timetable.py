"""Timetable: how the training of an embedding model uses the time it is given."""

from dataclasses import dataclass

from oneshot.experiments.baselines.checkpoint import Course
from oneshot.training.time_budget import TimeBudget

# The share of the time after which the learning rate falls, evenly, to nearly nothing.
_DESCENT = 0.6
# A training that has stopped improving before goes on, from its best state, for so much of the time
# it took while the rate falls.
_LONGER = 0.5
_LOWEST = 0.01
# Between two validations, in shares of the time: epochs may be long.
_BETWEEN = 1 / 20


@dataclass
class Timetable:
    """When a training with a time budget validates, lowers its learning rate and ends.

    A constant rate leaves the parameters unsettled; a falling one gains most at the end, wherever
    that is. `course`: where the training stands. `is_validated`: whether no step was made since the
    last validation. `has_ended`: whether the training was ended by it.
    """

    budget: TimeBudget
    course: Course
    is_validated: bool = False
    has_ended: bool = False
    _last: float = 0.0

    @property
    def rate(self) -> float:
        """What of the recipe's learning rate to train with now."""
        left = (self._end - self.budget.share) / (self._end - self._begin)
        return min(max(left, _LOWEST), 1.0)

    @property
    def is_cut(self) -> bool:
        """Whether the end that is in sight is that of the time."""
        return self._end == 1.0

    def is_over(self, step: float) -> bool:
        """Whether to end rather than make a further step of that length, in seconds."""
        return self.budget.is_over(step) or self.budget.share >= self._end

    def is_due(self, epoch: int, every: int) -> bool:
        """Whether to validate after an epoch: often enough, and most of the time is training's."""
        budget = self.budget
        is_late = budget.used - self._last >= _BETWEEN * budget.limit
        return (epoch % every == 0 or is_late) and budget.affords_validation

    def validated(self, patience: int) -> bool:
        """Take note of a validation. After `patience` that were no better the end begins.

        → whether it begins now
        """
        self.is_validated, self._last = True, self.budget.used
        course, share = self.course, self.budget.share
        if course.bad < patience or course.descent or share >= _DESCENT:
            return False
        course.descent = share
        return True

    @property
    def _begin(self) -> float:
        return self.course.descent or _DESCENT

    @property
    def _end(self) -> float:
        return min((1 + _LONGER) * self.course.descent or 1.0, 1.0)
