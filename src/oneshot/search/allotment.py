"""Allotment: how the time of a search is shared out among its parts.

What a part does not use, or takes beyond its share, changes what the following ones get: each asks
what is left when it begins, so that the whole ends in time.
"""

import math
from dataclasses import dataclass

RUNGS = 8
"""Equal shares of a trial's time, after which it may be validated and judged."""

# Shares of the whole. The training in full gets what phase 1 leaves, less the last two.
_PREDICTOR = 0.5
_SAMPLER = 0.1
_EVALUATION = 0.04
# What the summary and its plot take, in seconds, but no more than a share.
_REPORT_SECONDS, _REPORT = 5.0, 0.05
# The least that the training in full gets, if everything before it took longer than expected.
_LEAST_TRAINING = 0.05
# Whole trials that would fit into phase 1 of a search of one minute.
_TRIALS = 7.0


@dataclass(frozen=True)
class Allotment:
    """When the parts of a session have to end; all in seconds from its beginning.

    `limit`: the time of the session. `trains`: whether the best is trained in full.
    """

    limit: float
    trains: bool = True

    @property
    def predictor_end(self) -> float:
        """When phase 1 ends."""
        return _PREDICTOR * self.limit if self.trains else self.end

    @property
    def sampler_end(self) -> float:
        """When the trials of phase 2 end."""
        return self.end - _EVALUATION * self.limit

    @property
    def sampler_seconds(self) -> float:
        """What the trials of phase 2 take together."""
        return _SAMPLER * self.limit

    @property
    def end(self) -> float:
        """When everything but the summary is done."""
        return self.limit - min(_REPORT_SECONDS, _REPORT * self.limit)

    def training_seconds(self, spent: float) -> float:
        """What the training in full gets, its evaluation included, after so many seconds."""
        left = self.sampler_end - self.sampler_seconds - spent
        return max(left, _LEAST_TRAINING * self.limit)

    def trial_seconds(self, wanted: float | None = None) -> float:
        """The time of a trial of phase 1; `wanted` if it is given and several of them fit.

        With more time there are more trials and longer ones: both grow with its square root.
        """
        trials = max(_TRIALS * math.sqrt(self.limit / 60), 2.0)
        found = wanted or self.predictor_end / trials
        return min(found, self.predictor_end / 2)

    @property
    def expected_trials(self) -> int:
        """Trials of phase 1, about: most are stopped at a quarter or a half of their time."""
        return int(1.5 * self.predictor_end / self.trial_seconds())
