"""Schedule of the training of an embedding model within its time limit."""

from dataclasses import dataclass

from oneshot.experiments.baselines.checkpoint import Course
from oneshot.training.time_budget import TimeBudget

# The share of the time after which the learning rate falls linearly to almost zero.
_DESCENT = 0.6
# A training that stops improving earlier continues from its best state with a falling rate, for
# this share of the time that it took.
_LONGER = 0.5
_LOWEST = 0.01
# Interval of validations as a share of the time: epochs may be long.
_BETWEEN = 1 / 20


@dataclass
class Timetable:
    """When a training with a time budget validates, lowers its learning rate and ends.

    With a constant rate, parameters do not converge; a falling rate gains most at the end.
    `course`: the state of the training. `is_validated`: whether no step followed the last
    validation. `has_ended`: whether the schedule ended the training.
    """

    budget: TimeBudget
    course: Course
    is_validated: bool = False
    has_ended: bool = False
    _last: float = 0.0

    @property
    def rate(self) -> float:
        """The current factor of the recipe's learning rate."""
        left = (self._end - self.budget.share) / (self._end - self._begin)
        return min(max(left, _LOWEST), 1.0)

    @property
    def is_cut(self) -> bool:
        """Whether the training will end by the time limit."""
        return self._end == 1.0

    def is_over(self, step: float) -> bool:
        """Whether to end instead of making another step of this length in seconds."""
        return self.budget.is_over(step) or self.budget.share >= self._end

    def is_due(self, epoch: int, every: int) -> bool:
        """Whether to validate after an epoch; most of the time is for training."""
        budget = self.budget
        is_late = budget.used - self._last >= _BETWEEN * budget.limit
        return (epoch % every == 0 or is_late) and budget.affords_validation

    def validated(self, patience: int) -> bool:
        """Record a validation. After `patience` of them without improvement, the descent starts.

        Returns whether it starts now.
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
