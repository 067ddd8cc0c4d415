"""Time budget: time used by a training, and time needed for its end."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]
"""A monotonic clock in seconds."""

# Maximum shares of the whole budget: last validation and final evaluation, one validation, and
# the measurement of the cost per query.
_EVALUATION = 1 / 5
_VALIDATION = 1 / 20
_PROBE = 1 / 50
# Maximum share of all validations in the time used so far.
_VALIDATIONS = 1 / 4
# Safety factor for the end of a training, and its time beyond the queries in seconds.
_MARGIN = 1.1
_SAVING = 1.0
_LEAST_QUERIES = 16


@dataclass
class TimeBudget:
    """The time that a training may take, from `started` to its last file; all in seconds.

    Training must end `reserve` seconds before the limit: the last state is validated, and the best
    one is evaluated on both splits and calibrated. The reserve is at most a fifth of the budget.

    `minutes`: the budget; 0 for none. `clock`: the clock. `started`: start of the command by that
    clock, including the reading of the data; default now.
    `final_queries`: number of queries after the last validation.
    `spent_before`: training time of earlier sessions of the same training.
    `validation_queries`: number of queries per validation. `seconds_per_query`: last measurement.
    `saving`: time for writing the last files.
    """

    minutes: float = 0.0
    clock: Clock = time.perf_counter
    started: float = math.nan
    final_queries: int = 0
    spent_before: float = 0.0
    validation_queries: int = 0
    seconds_per_query: float = 0.0
    saving: float = _SAVING
    _validated: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        if math.isnan(self.started):
            self.started = self.clock()

    @property
    def is_limited(self) -> bool:
        return self.minutes > 0

    @property
    def limit(self) -> float:
        return 60 * self.minutes if self.is_limited else math.inf

    @property
    def used(self) -> float:
        return self.spent_before + self.clock() - self.started

    @property
    def left(self) -> float:
        return self.limit - self.used

    @property
    def reserve(self) -> float:
        """Expected time for the end of the training."""
        queries = self.validation_queries + self.final_queries
        wanted = _MARGIN * self.seconds_per_query * queries + self.saving
        return min(wanted, _EVALUATION * self.limit)

    @property
    def share(self) -> float:
        """Used share of the time for training, from 0 to 1; 0 without a limit."""
        return min(self.used / (self.limit - self.reserve), 1.0) if self.is_limited else 0.0

    def is_over(self, step: float = 0.0) -> bool:
        """Whether most of a further step of that length would be after the limit."""
        return self.used + step / 2 >= self.limit - self.reserve

    @property
    def probe_seconds(self) -> float:
        """Time limit for measuring the cost per query."""
        return _PROBE * self.limit

    def learn(self, queries: int, seconds: float) -> None:
        """Record the duration of a validation."""
        self.seconds_per_query = seconds / queries
        self._validated += seconds

    def valid_limit(self, queries: int) -> int:
        """How many of the validation queries to use, given the time."""
        if not (self.is_limited and self.seconds_per_query):
            return queries
        affordable = int(_VALIDATION * self.limit / self.seconds_per_query)
        return min(queries, max(affordable, _LEAST_QUERIES))

    @property
    def affords_validation(self) -> bool:
        """Whether a validation now leaves most of the time for training."""
        expected = self.seconds_per_query * self.validation_queries
        return self._validated + expected <= _VALIDATIONS * (self.used - self.spent_before)

    def is_validation_due(self, is_first: bool) -> bool:
        """Whether to validate after the finished epoch; always true for the first validation."""
        return is_first or self.affords_validation
