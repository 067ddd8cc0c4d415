"""Proposing: which configuration is tried next, given the trials so far.

A proposal depends only on the space, the trials and the seed: nothing is kept between two of
them. SMAC is made anew each time and told what the store holds, so that a search that was killed
goes on as if it had not been.

Every second proposal is where the forest expects most improvement, anywhere in the space; those
between are variations of the best trials, the one of which the forest thinks best. In twenty
dimensions thirty trials say little about the space, but something about the place of the best.
"""

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from oneshot.epoch import mixed_seed
from oneshot.errors import require
from oneshot.search.space import Space, plain

# A forest large enough that its spread tells something; SMAC's own has 10 trees.
_TREES = 32
# Room for leaves of a tree, taken at once: SMAC's own, a million, costs 0.1 s a tree.
_LEAVES = 4096
# Share of the dimensions that a split looks at.
_FEATURES = 1.0
# Random configurations among which the expected improvement is looked for, beside local search.
_CANDIDATES = 1000
_LOCAL_STEPS = 10
# Share of proposals that are drawn at random, so that the forest cannot lock itself in.
_RANDOM_SHARE = 0.05
# Variations: of so many of the best trials, so many of each, with at most so many other values.
_PARENTS, _CHILDREN, _MUTATIONS = 3, 150, 3

FAILURE_COST = 1.0

Surrogate = Literal["forest", "gaussian"]
"""What tells how good a configuration may be: a random forest, or a Gaussian process."""


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
    with _quiet():
        require("smac", "search", "the search")
        from smac.initial_design.sobol_design import SobolInitialDesign

        with _scenario(space, _small(seed)) as scenario:
            # Some of them are forbidden: more are drawn, a power of two as Sobol's are best.
            drawn = 1 << (2 * count - 1).bit_length()
            design = SobolInitialDesign(scenario, n_configs=drawn, max_ratio=1.0, seed=_small(seed))
            found = design.select_configurations()
    return [Proposal(plain(space, c), "initial") for c in found[:count]]


def random_proposal(space: Space, seed: int, number: int) -> Proposal:
    """The configuration that a random search with this seed tries as its `number`-th."""
    with _quiet():
        drawn = space.configspace(_small(mixed_seed(seed, number, 7))).sample_configuration()
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
    if surrogate == "forest" and number % 2 == 0:
        varied = _vary(space, known, seed, number)
        if varied is not None:
            return varied
    with _quiet():
        require("smac", "search", "the search")
        from smac import BlackBoxFacade
        from smac import HyperparameterOptimizationFacade as ForestFacade
        from smac.acquisition.function import EI
        from smac.runhistory.dataclasses import TrialInfo, TrialValue
        from smac.runhistory.encoder import RunHistoryEncoder

        Facade = ForestFacade if surrogate == "forest" else BlackBoxFacade  # noqa: N806
        with _scenario(space, _small(mixed_seed(seed, number))) as scenario:
            smac = Facade(
                scenario,
                None,
                model=_forest(scenario) if surrogate == "forest" else Facade.get_model(scenario),
                # Costs as they are: SMAC's own choice for forests is to take their logarithms.
                runhistory_encoder=RunHistoryEncoder(scenario),
                acquisition_function=EI(xi=0.0, log=False),
                acquisition_maximizer=Facade.get_acquisition_maximizer(
                    scenario, challengers=_CANDIDATES, local_search_iterations=_LOCAL_STEPS
                ),
                initial_design=Facade.get_initial_design(scenario, n_configs=0),
                random_design=Facade.get_random_design(scenario, probability=_RANDOM_SHARE),
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


def _vary(space: Space, known: Sequence[Known], seed: int, number: int) -> Proposal | None:
    """The variation of one of the best trials that the forest thinks best, if there is any new."""
    with _quiet():
        require("smac", "search", "the search")
        from ConfigSpace.exceptions import ForbiddenValueError
        from ConfigSpace.util import deactivate_inactive_hyperparameters

        generator = np.random.default_rng(mixed_seed(seed, number, 11))
        with _scenario(space, _small(mixed_seed(seed, number))) as scenario:
            told = _told(space, known, scenario.configspace)
            tried = [dict(one.values) for one in known]
            model = _forest(scenario)
            model.train(np.array([c.get_array() for c in told]), np.array([[*told.values()]]).T)
            found = []
            for parent in sorted(told, key=lambda c: told[c])[:_PARENTS]:
                for other in scenario.configspace.sample_configuration(_CHILDREN):
                    both = [name for name in parent if name in other]
                    count = min(int(generator.integers(1, _MUTATIONS + 1)), len(both))
                    changed = {n: other[n] for n in generator.choice(both, count, replace=False)}
                    # What only the other has may be asked for by what is changed.
                    values = {**other, **parent, **changed}
                    try:
                        child = deactivate_inactive_hyperparameters(values, scenario.configspace)
                    except ForbiddenValueError:
                        continue
                    # As it would be tried: a configuration keeps more digits than a trial.
                    if plain(space, child) not in tried:
                        found.append(child)
            if not found:
                return None
            cost, _ = model.predict_marginalized(np.array([child.get_array() for child in found]))
            # A forest has steps: of those on the lowest one any.
            lowest = np.flatnonzero(cost[:, 0] == cost.min())
            chosen = found[int(generator.choice(lowest))]
    return Proposal(plain(space, chosen), "variation")


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


def _forest(scenario: Any) -> Any:
    from smac.model.random_forest.random_forest import RandomForest

    return RandomForest(
        scenario.configspace,
        n_trees=_TREES,
        ratio_features=_FEATURES,
        min_samples_split=2,
        min_samples_leaf=1,
        max_leaf_nodes=_LEAVES,
        log_y=False,
        seed=scenario.seed,
        n_jobs=1,  # more would wait for threads longer than the forest takes
    )


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
def _quiet() -> Iterator[None]:
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


def _small(seed: int) -> int:
    """A seed as numpy's older generators take it."""
    return seed % (2**31 - 1)
