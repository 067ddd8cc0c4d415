"""Allotment of the time of a search to its parts.

Each part gets its share of the time that is left when it starts, so that the search ends in time
even if earlier parts took more or less than planned.
"""

import math
from dataclasses import dataclass

RUNGS = 8
"""Number of equal shares of a trial's time, after each of which it may be validated and judged."""

# Shares of the total time. The full training gets the rest after phase 1, less the last two.
_PREDICTOR = 0.5
_SAMPLER = 0.1
_EVALUATION = 0.04
# Time for the summary and its plot in seconds, limited by a share.
_REPORT_SECONDS, _REPORT = 5.0, 0.05
# The least that the full training gets if everything before it took longer than expected.
_LEAST_TRAINING = 0.05
# Complete trials that would fit into phase 1 of a search of one minute.
_TRIALS = 7.0


@dataclass(frozen=True)
class Allotment:
    """The end times of the parts of a session, in seconds from its start.

    `limit`: the time limit of the session. `trains`: whether the best trial is trained in full.
    """

    limit: float
    trains: bool = True

    @property
    def predictor_end(self) -> float:
        """End of phase 1."""
        return _PREDICTOR * self.limit if self.trains else self.end

    @property
    def sampler_end(self) -> float:
        """End of the trials of phase 2."""
        return self.end - _EVALUATION * self.limit

    @property
    def sampler_seconds(self) -> float:
        """Total time of the trials of phase 2."""
        return _SAMPLER * self.limit

    @property
    def end(self) -> float:
        """End of everything except the summary."""
        return self.limit - min(_REPORT_SECONDS, _REPORT * self.limit)

    def training_seconds(self, spent: float) -> float:
        """Time of the full training and its evaluation, if it starts after so many seconds."""
        left = self.sampler_end - self.sampler_seconds - spent
        return max(left, _LEAST_TRAINING * self.limit)

    def trial_seconds(self, wanted: float | None = None) -> float:
        """Time of a trial of phase 1; `wanted` if it is given and several such trials fit.

        The number of trials and their length both grow with the square root of the total time.
        """
        trials = max(_TRIALS * math.sqrt(self.limit / 60), 2.0)
        found = wanted or self.predictor_end / trials
        return min(found, self.predictor_end / 2)

    @property
    def expected_trials(self) -> int:
        """Estimated number of trials of phase 1; most stop after a quarter or half of it."""
        return int(1.5 * self.predictor_end / self.trial_seconds())
