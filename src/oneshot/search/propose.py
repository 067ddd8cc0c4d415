"""Proposing: which configuration is tried next, given the trials so far.

A proposal depends only on the space, the trials and the seed: nothing is kept between two of
them. SMAC is made anew each time and told what the store holds, so that a search that was killed
goes on as if it had not been.

Every second proposal is where the surrogate expects most improvement, anywhere in the space; those
between are variations of the best trials, the one of which the surrogate thinks best. In twenty
dimensions thirty trials say little about the space, but something about the place of the best.
All surrogates choose among the same variations and by the same rules.
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

# Random configurations among which the expected improvement is looked for, beside local search.
_CANDIDATES = 1000
_LOCAL_STEPS = 10
# Variations of each of the best trials among which one is chosen.
_CHILDREN = 150

RANDOM_SHARE = 0.05
"""Share of proposals that are drawn at random, so that the surrogate cannot lock itself in."""

PARENTS, MUTATIONS = 3, 3
"""Variations are of so many of the best trials, with at most so many other values."""

FAILURE_COST = 1.0


@dataclass(frozen=True)
class Known:
    """What is known of a configuration: its cost between 0 and 1, or None while it runs."""

    values: Mapping[str, Any]
    cost: float | None


@dataclass(frozen=True)
class Proposal:
    """What to try, without the options that are fixed, and who thought of it."""

    values: dict[str, Any]
    origin: str


def initial_design(space: Space, count: int, seed: int) -> list[Proposal]:
    """Configurations spread evenly over the space (Sobol), to start from."""
    with quiet():
        require("smac", "search", "the search")
        from smac.initial_design.sobol_design import SobolInitialDesign

        with _scenario(space, small_seed(seed)) as scenario:
            # Some of them are forbidden: more are drawn, a power of two as Sobol's are best.
            drawn = 1 << (2 * count - 1).bit_length()
            design = SobolInitialDesign(
                scenario, n_configs=drawn, max_ratio=1.0, seed=scenario.seed
            )
            found = design.select_configurations()
    return [Proposal(plain(space, c), "initial") for c in found[:count]]


def random_proposal(space: Space, seed: int, number: int) -> Proposal:
    """The configuration that a random search with this seed tries as its `number`-th."""
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
    """Where the surrogate of the known costs expects most improvement, or near the best of them.

    Configurations that still run count with the mean of the known costs, so that several workers
    do not all try the same place.
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
                # Costs as they are: SMAC's own choice for forests is to take their logarithms.
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
            for configuration, cost in _told(space, known, scenario.configspace).items():
                value = TrialValue(cost=cost)
                smac.tell(TrialInfo(configuration, seed=0), value, save=False)
            chosen = smac.ask().config
    origin = "surrogate" if "Acquisition" in str(chosen.origin) else "random"
    return Proposal(plain(space, chosen), origin)


def varies(number: int) -> bool:
    """Whether the `number`-th proposal of a search is a variation, if there is a new one."""
    return number % 2 == 0


def variation_of(space: Space, values: Mapping[str, Any], seed: int, number: int) -> dict[str, Any]:
    """A configuration with one to three other values, drawn as for a proposal."""
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
    """The variation of one of the best trials that the surrogate thinks best, if any is new."""
    with quiet():
        require("smac", "search", "the search")
        from oneshot.search.surrogates import make_surrogate

        generator = np.random.default_rng(mixed_seed(seed, number, 11))
        with _scenario(space, small_seed(mixed_seed(seed, number))) as scenario:
            told = _told(space, known, scenario.configspace)
            tried = [dict(one.values) for one in known]
            model = make_surrogate(surrogate, scenario.configspace, scenario.seed)
            model.train(np.array([c.get_array() for c in told]), np.array([[*told.values()]]).T)
            found = []
            for parent in sorted(told, key=lambda c: told[c])[:PARENTS]:
                for other in scenario.configspace.sample_configuration(_CHILDREN):
                    child = _child(parent, other, scenario.configspace, generator)
                    # As it would be tried: a configuration keeps more digits than a trial.
                    if child is not None and plain(space, child) not in tried:
                        found.append(child)
            if not found:
                return None
            cost, _ = model.predict_marginalized(np.array([child.get_array() for child in found]))
            # A forest has steps: of those on the lowest one any.
            lowest = np.flatnonzero(cost[:, 0] == cost.min())
            chosen = found[int(generator.choice(lowest))]
    return Proposal(plain(space, chosen), "variation")


def _child(parent: Any, other: Any, configspace: Any, generator: np.random.Generator) -> Any | None:
    """The parent with a few values of another configuration; None if they do not go together."""
    from ConfigSpace.exceptions import ForbiddenValueError
    from ConfigSpace.util import deactivate_inactive_hyperparameters

    both = [name for name in parent if name in other]
    count = min(int(generator.integers(1, MUTATIONS + 1)), len(both))
    changed = {n: other[n] for n in generator.choice(both, count, replace=False)}
    # What only the other has may be asked for by what is changed.
    values = {**other, **parent, **changed}
    try:
        return deactivate_inactive_hyperparameters(values, configspace)
    except ForbiddenValueError:
        return None


def _told(space: Space, known: Sequence[Known], configspace: Any) -> dict[Any, float]:
    """Known configurations, each once, with their costs; the mean cost while they run."""
    import ConfigSpace

    mean = fmean(k.cost for k in known if k.cost is not None)
    told: dict[Any, float] = {}
    for one in known:
        values = {n: v for n, v in one.values.items() if n in space.dimensions}
        configuration = ConfigSpace.Configuration(configspace, values=values)
        told.setdefault(configuration, mean if one.cost is None else one.cost)
    return told


@contextlib.contextmanager
def _scenario(space: Space, seed: int) -> Iterator[Any]:
    """A scenario of SMAC, whose files go to a directory that is removed."""
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
    """Keep remarks of SMAC, which are about its own files and warnings, from the user."""
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
    """A seed as numpy's older generators take it."""
    return seed % (2**31 - 1)


def nearest(space: Space, values: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a space nearest to some values.

    A number outside its range becomes the end of it; what is not among the choices, or is not
    given, becomes the last choice (for budgets the one that takes most) or the middle.
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
    """Without the dimensions that play no part."""
    kept = dict(values)
    for child, (parent, allowed) in CONDITIONS.items():
        is_open = child in kept and isinstance(space.dimensions.get(parent), Choice)
        if is_open and values[parent] not in allowed:
            del kept[child]
    return kept
