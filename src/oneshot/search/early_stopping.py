"""Halving: what a trial must have reached by its second, fourth … validation.

Not by its first: after an eighth of a short training the order of trials is mostly chance. The
validations stand at equal shares of a trial's queries, or of its time if the search has one.
"""

from collections.abc import Sequence

import numpy as np

from oneshot.search.store import Trial

# So many trials must have come as far before any is judged by them.
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
    """What a trial reached, or would have reached had it not been stopped as hopeless.

    Told as they are, stopped trials would look worse the earlier they were stopped. So they get
    the median gain of the trials that went on from there, but no more than the median of what
    those reached: it was behind them when it was stopped.
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
