"""Proposals: the next configuration, given the trials so far.

A proposal depends only on the space, the trials and the seed; there is no other state. SMAC is
created for each proposal and gets the trials of the store, so that a killed search resumes as if it
had not been interrupted.

Every second proposal maximises the expected improvement over the whole space. The others are
variations of the best trials, of which the surrogate selects one. In twenty dimensions, thirty
trials contain little information about the whole space, but some about the region of the best.
All surrogates choose among the same variations by the same rules.
"""

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from oneshot.errors import require
from oneshot.search.settings import Surrogate
from oneshot.search.space import CONDITIONS, Choice, Range, Space, plain
from oneshot.training.epoch import mixed_seed

# Random candidates for the expected improvement, in addition to local search.
_CANDIDATES = 1000
_LOCAL_STEPS = 10
# Candidate variations per parent.
_CHILDREN = 150

RANDOM_SHARE = 0.05
"""Share of random proposals, so that the surrogate does not get stuck."""

PARENTS, MUTATIONS = 3, 3
"""Number of best trials that are varied, and maximum number of changed values."""

FAILURE_COST = 1.0


@dataclass(frozen=True)
class Known:
    """A configuration with its cost between 0 and 1, or None while it runs."""

    values: Mapping[str, Any]
    cost: float | None


@dataclass(frozen=True)
class Proposal:
    """A proposed configuration, without fixed options, and its origin."""

    values: dict[str, Any]
    origin: str


def initial_design(space: Space, count: int, seed: int) -> list[Proposal]:
    """Initial configurations, spread evenly over the space (Sobol)."""
    with quiet():
        require("smac", "search", "the search")
        from smac.initial_design.sobol_design import SobolInitialDesign

        with _scenario(space, small_seed(seed)) as scenario:
            # Some are forbidden, so more are drawn; Sobol sequences are best with powers of two.
            drawn = 1 << (2 * count - 1).bit_length()
            design = SobolInitialDesign(
                scenario, n_configs=drawn, max_ratio=1.0, seed=scenario.seed
            )
            found = design.select_configurations()
    return [Proposal(plain(space, c), "initial") for c in found[:count]]


def random_proposal(space: Space, seed: int, number: int) -> Proposal:
    """The `number`-th configuration of a random search with this seed."""
    with quiet():
        drawn = space.configspace(small_seed(mixed_seed(seed, number, 7))).sample_configuration()
    return Proposal(plain(space, drawn), "random")


def propose(
    space: Space,
    known: Sequence[Known],
    seed: int,
    number: int,
    surrogate: Surrogate = "forest",
) -> Proposal:
    """The configuration with the highest expected improvement, or a variation of the best trials.

    Running configurations count with the mean of the known costs, so that several workers do not
    all try the same region.
    """
    costs = [k.cost for k in known if k.cost is not None]
    if not costs:
        return random_proposal(space, seed, number)
    if varies(number):
        varied = _vary(space, known, seed, number, surrogate)
        if varied is not None:
            return varied
    with quiet():
        require("smac", "search", "the search")
        from smac import HyperparameterOptimizationFacade as Facade
        from smac.acquisition.function import EI
        from smac.runhistory.dataclasses import TrialInfo, TrialValue
        from smac.runhistory.encoder import RunHistoryEncoder

        from oneshot.search.surrogates import make_surrogate

        with _scenario(space, small_seed(mixed_seed(seed, number))) as scenario:
            smac = Facade(
                scenario,
                None,
                model=make_surrogate(surrogate, scenario.configspace, scenario.seed),
                # Costs without a transform: SMAC's default for forests is their logarithm.
                runhistory_encoder=RunHistoryEncoder(scenario),
                acquisition_function=EI(xi=0.0, log=False),
                acquisition_maximizer=Facade.get_acquisition_maximizer(
                    scenario, challengers=_CANDIDATES, local_search_iterations=_LOCAL_STEPS
                ),
                initial_design=Facade.get_initial_design(scenario, n_configs=0),
                random_design=Facade.get_random_design(scenario, probability=RANDOM_SHARE),
                intensifier=Facade.get_intensifier(scenario, max_config_calls=1),
                config_selector=Facade.get_config_selector(scenario, retrain_after=1),
                logging_level=False,
                overwrite=True,
            )
            for configuration, cost in _costs(space, known, scenario.configspace).items():
                value = TrialValue(cost=cost)
                smac.tell(TrialInfo(configuration, seed=0), value, save=False)
            chosen = smac.ask().config
    origin = "surrogate" if "Acquisition" in str(chosen.origin) else "random"
    return Proposal(plain(space, chosen), origin)


def varies(number: int) -> bool:
    """Whether the `number`-th proposal of a search is a variation, if a new one exists."""
    return number % 2 == 0


def variation_of(space: Space, values: Mapping[str, Any], seed: int, number: int) -> dict[str, Any]:
    """A configuration with one to three changed values, drawn as for a proposal."""
    generator = np.random.default_rng(mixed_seed(seed, number, 13))
    configspace = space.configspace(small_seed(mixed_seed(seed, number, 13)))
    with quiet():
        import ConfigSpace

        parent = ConfigSpace.Configuration(configspace, values=dict(values))
        while True:
            child = _child(parent, configspace.sample_configuration(), configspace, generator)
            if child is not None and (found := plain(space, child)) != values:
                return found


def _vary(
    space: Space, known: Sequence[Known], seed: int, number: int, surrogate: Surrogate
) -> Proposal | None:
    """The variation of the best trials with the best prediction, if there is a new one."""
    with quiet():
        require("smac", "search", "the search")
        from oneshot.search.surrogates import make_surrogate

        generator = np.random.default_rng(mixed_seed(seed, number, 11))
        with _scenario(space, small_seed(mixed_seed(seed, number))) as scenario:
            costs = _costs(space, known, scenario.configspace)
            tried = [dict(one.values) for one in known]
            model = make_surrogate(surrogate, scenario.configspace, scenario.seed)
            model.train(np.array([c.get_array() for c in costs]), np.array([[*costs.values()]]).T)
            found = []
            for parent in sorted(costs, key=lambda c: costs[c])[:PARENTS]:
                for other in scenario.configspace.sample_configuration(_CHILDREN):
                    child = _child(parent, other, scenario.configspace, generator)
                    # Rounded as in a trial: a configuration keeps more digits.
                    if child is not None and plain(space, child) not in tried:
                        found.append(child)
            if not found:
                return None
            cost, _ = model.predict_marginalized(np.array([child.get_array() for child in found]))
            # A forest is piecewise constant: take any of the lowest.
            lowest = np.flatnonzero(cost[:, 0] == cost.min())
            chosen = found[int(generator.choice(lowest))]
    return Proposal(plain(space, chosen), "variation")


def _child(parent: Any, other: Any, configspace: Any, generator: np.random.Generator) -> Any | None:
    """The parent with a few values of another configuration; None if they are incompatible."""
    from ConfigSpace.exceptions import ForbiddenValueError
    from ConfigSpace.util import deactivate_inactive_hyperparameters

    both = [name for name in parent if name in other]
    count = min(int(generator.integers(1, MUTATIONS + 1)), len(both))
    changed = {n: other[n] for n in generator.choice(both, count, replace=False)}
    # The changed values may activate dimensions that only the other one has.
    values = {**other, **parent, **changed}
    try:
        return deactivate_inactive_hyperparameters(values, configspace)
    except ForbiddenValueError:
        return None


def _costs(space: Space, known: Sequence[Known], configspace: Any) -> dict[Any, float]:
    """The distinct known configurations with their costs; running ones have the mean cost."""
    import ConfigSpace

    mean = fmean(k.cost for k in known if k.cost is not None)
    costs: dict[Any, float] = {}
    for one in known:
        values = {n: v for n, v in one.values.items() if n in space.dimensions}
        configuration = ConfigSpace.Configuration(configspace, values=values)
        costs.setdefault(configuration, mean if one.cost is None else one.cost)
    return costs


@contextlib.contextmanager
def _scenario(space: Space, seed: int) -> Iterator[Any]:
    """A scenario of SMAC with a temporary directory for its files."""
    from smac import Scenario

    with tempfile.TemporaryDirectory(prefix="oneshot-smac-") as directory:
        yield Scenario(
            space.configspace(seed),
            deterministic=True,
            n_trials=10**9,
            seed=seed,
            output_directory=Path(directory),
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the log messages of SMAC, which are about its own files and warnings."""
    logger = logging.getLogger("smac")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def small_seed(seed: int) -> int:
    """A seed in the range of numpy's legacy generators."""
    return seed % (2**31 - 1)


def nearest(space: Space, values: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a space that is closest to some values.

    A number outside its range is clipped. A missing value or one that is not among the choices
    becomes the last choice (for budgets, the largest one) or the middle of the range.
    """
    found: dict[str, Any] = {}
    for name, dimension in space.dimensions.items():
        value = values.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(dimension, Range):
            middle = (dimension.low + dimension.high) / 2
            wanted: Any = value if is_number else middle
            wanted = int(wanted) if dimension.is_whole else wanted
            found[name] = min(max(wanted, dimension.low), dimension.high)
        elif value in dimension.values:
            found[name] = value
        elif dimension.is_ordered and is_number:
            found[name] = min(dimension.values, key=lambda v: abs(v - value))  # type: ignore[operator]
        else:
            found[name] = dimension.values[-1 if dimension.is_ordered else 0]
    return _active(space, found)


def _active(space: Space, values: dict[str, Any]) -> dict[str, Any]:
    """The values without inactive dimensions."""
    kept = dict(values)
    for child, (parent, allowed) in CONDITIONS.items():
        is_open = child in kept and isinstance(space.dimensions.get(parent), Choice)
        if is_open and values[parent] not in allowed:
            del kept[child]
    return kept
