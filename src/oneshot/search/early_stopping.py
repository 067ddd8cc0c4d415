"""Successive halving: the target that a trial must reach by its second, fourth … validation.

The first validation does not count: after an eighth of a short training, the order of trials is
mostly noise. Validations are at equal shares of a trial's queries, or of its time in a search with
a time limit.
"""

from collections.abc import Sequence

import numpy as np

from oneshot.search.store import Trial

# Trials that must have reached a validation before others are judged by them.
_LEAST = 4


def limits(trials: Sequence[Trial], validations: int, keep: float) -> dict[int, float]:
    """Validation number → the target that the best share `keep` of the trials had by then."""
    found = {}
    for number in judged(validations):
        reached = [t.curve[number - 1] for t in trials if len(t.curve) >= number]
        if len(reached) >= _LEAST and keep < 1:
            found[number] = float(np.quantile(reached, 1 - keep))
    return found


def judged(validations: int) -> list[int]:
    """The validations at which a trial may be stopped: 2, 4, 8 …, but not the last one."""
    return [2**power for power in range(1, validations.bit_length()) if 2**power < validations]


def expected_value(trial: Trial, trials: Sequence[Trial]) -> float | None:
    """The target of a trial; for a stopped trial, an estimate of what it would have reached.

    Without an estimate, a trial would look worse the earlier it was stopped. It gets the median
    gain of the trials that continued from there, but at most the median of their final targets,
    because it was behind them.
    """
    if trial.value is None or not trial.is_hopeless:
        return trial.value
    number = len(trial.curve)
    others = [t for t in trials if t.status == "done" and len(t.curve) > number]
    if not others:
        return trial.value
    gain = float(np.median([t.curve[-1] - t.curve[number - 1] for t in others]))
    most = float(np.median([t.curve[-1] for t in others]))
    return max(min(trial.value + gain, most), trial.value)
