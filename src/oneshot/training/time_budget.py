"""Time budget: how much of its time a training has used, and how much its end will need."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]
"""Seconds from any moment on; never set back."""

# Shares of the whole budget: the most that the last validation and the final evaluation get, that
# one validation gets, and the measurement of what a query costs.
_EVALUATION = 1 / 5
_VALIDATION = 1 / 20
_PROBE = 1 / 50
# The most that all validations get of the time used so far.
_VALIDATIONS = 1 / 4
# What the end of a training takes longer than expected, and beyond its queries, in seconds.
_MARGIN = 1.1
_SAVING = 1.0
_LEAST_QUERIES = 16


@dataclass
class TimeBudget:
    """The time that a training may take, from `started` to its last file; all in seconds.

    Training has to end `reserve` seconds before the limit: the last state is validated, the best
    one is evaluated on both splits and calibrated. At most a fifth of the budget goes there.

    `minutes`: the budget; 0 for none. `clock`: what time is read from. `started`: when the command
    began by that clock, the reading of the data included; now if not given.
    `final_queries`: queries that are asked after the last validation.
    `spent_before`: time that earlier sessions of the same training have trained.
    `validation_queries`: queries of one validation. `seconds_per_query`: as measured last.
    `saving`: what writing the last files takes.
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
        """What the end of the training will need."""
        queries = self.validation_queries + self.final_queries
        wanted = _MARGIN * self.seconds_per_query * queries + self.saving
        return min(wanted, _EVALUATION * self.limit)

    @property
    def share(self) -> float:
        """Share of the time for training that is used, from 0 to 1; 0 without a limit."""
        return min(self.used / (self.limit - self.reserve), 1.0) if self.is_limited else 0.0

    def is_over(self, step: float = 0.0) -> bool:
        """Whether a further step of that length would end rather after the time than within it."""
        return self.used + step / 2 >= self.limit - self.reserve

    @property
    def probe_seconds(self) -> float:
        """How long it may take to measure what a query costs."""
        return _PROBE * self.limit

    def learn(self, queries: int, seconds: float) -> None:
        """Take note of how long a validation took."""
        self.seconds_per_query = seconds / queries
        self._validated += seconds

    def valid_limit(self, queries: int) -> int:
        """How many of the queries that a validation could ask it should ask."""
        if not (self.is_limited and self.seconds_per_query):
            return queries
        affordable = int(_VALIDATION * self.limit / self.seconds_per_query)
        return min(queries, max(affordable, _LEAST_QUERIES))

    @property
    def affords_validation(self) -> bool:
        """Whether a validation now leaves most of the time to training."""
        expected = self.seconds_per_query * self.validation_queries
        return self._validated + expected <= _VALIDATIONS * (self.used - self.spent_before)

    def is_validation_due(self, is_first: bool) -> bool:
        """Whether an epoch that has ended is to be validated; the first validation always is."""
        return is_first or self.affords_validation
