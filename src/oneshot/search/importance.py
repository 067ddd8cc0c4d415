"""Importance of each dimension of the space for the target, by a random forest."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.errors import require
from oneshot.search.space import Space
from oneshot.search.store import Trial

_TREES = 100
_SAMPLES = 1000
_LEAST_TRIALS = 4


class Surrogate:
    """A forest that predicts the target of a configuration, fitted to the trials."""

    def __init__(self, space: Space, trials: Sequence[Trial], seed: int = 0) -> None:
        require("sklearn", "search", "the importance of dimensions")
        import ConfigSpace
        from sklearn.ensemble import RandomForestRegressor

        self.space = space
        self._configspace = space.configspace(seed % (2**31))
        rows = []
        for trial in trials:
            values = {n: v for n, v in trial.values.items() if n in space.dimensions}
            rows.append(ConfigSpace.Configuration(self._configspace, values=values).get_array())
        targets = [trial.value or 0.0 for trial in trials]
        self._forest = RandomForestRegressor(
            _TREES, min_samples_leaf=2, random_state=seed % (2**31), n_jobs=1
        )
        self._forest.fit(_filled(np.array(rows)), np.array(targets))

    def drawn(self, count: int) -> NDArray[np.float64]:
        """Random configurations in the encoding of the forest, [count, dimensions]."""
        found = self._configspace.sample_configuration(count)
        return _filled(np.array([configuration.get_array() for configuration in found]))

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted: NDArray[np.float64] = self._forest.predict(rows)
        return predicted

    @property
    def names(self) -> list[str]:
        return list(self._configspace)


def importance(space: Space, trials: Sequence[Trial], seed: int = 0) -> dict[str, float]:
    """The total Sobol index of each dimension, largest first; empty with too few trials.

    The share of the forest's variance over the space that remains if all other dimensions are
    known: `E[(f(x) − f(x′))²] / 2 Var f`, where this dimension of `x′` is resampled (Jansen).
    Shares of interacting dimensions overlap, so the sum may exceed 1.
    """
    valued = [trial for trial in trials if trial.value is not None]
    if len(valued) < _LEAST_TRIALS:
        return {}
    surrogate = Surrogate(space, valued, seed)
    rows, others = surrogate.drawn(_SAMPLES), surrogate.drawn(_SAMPLES)
    predicted = surrogate.predict(rows)
    variance = float(predicted.var())
    found = {}
    for column, name in enumerate(surrogate.names):
        changed = rows.copy()
        # If the dimension is inactive in one of the two, it does not change.
        active = (rows[:, column] >= 0) & (others[:, column] >= 0)
        changed[active, column] = others[active, column]
        difference = float(((surrogate.predict(changed) - predicted) ** 2).mean())
        found[name] = difference / (2 * variance) if variance > 0 else 0.0
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def predicted_random_search(
    space: Space, trials: Sequence[Trial], count: int, seed: int = 0
) -> list[float]:
    """The expected best value of a random search after 1, 2, … trials, by the forest."""
    valued = [trial for trial in trials if trial.value is not None]
    if len(valued) < _LEAST_TRIALS:
        return []
    surrogate = Surrogate(space, valued, seed)
    repeats = max(_SAMPLES // count, 20)
    predicted = surrogate.predict(surrogate.drawn(repeats * count)).reshape(repeats, count)
    best: Any = np.maximum.accumulate(predicted, axis=1).mean(0)
    return [float(value) for value in best]


def _filled(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Replace inactive dimensions of a configuration by −1."""
    return np.nan_to_num(rows.astype(np.float64), nan=-1.0)
