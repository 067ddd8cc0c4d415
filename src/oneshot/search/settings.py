"""Settings of a search: what its trials have in common; kept in the store."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from oneshot.config import Config, from_table
from oneshot.errors import InputError
from oneshot.search.space import Space

Target = Literal["mrr", "hits@1", "hits@3", "hits@10"]
Goal = Literal["smaller", "better"]
Surrogate = Literal["forest", "gaussian", "mlp"]
"""What predicts a trial: a random forest, a Gaussian process, or an ensemble of perceptrons."""


@dataclass(frozen=True)
class Effort:
    """How much is done; kept in the store, and may differ when a search is resumed.

    `trials`: of phase 1. `sampler_trials`: of phase 2. `random_searches`: how many random
    searches of as many trials are run to compare with. `final`: train the best in full, and phase
    2 with it. A search with a time may have 0 trials of either phase: as many as fit into it.
    """

    trials: int = 30
    sampler_trials: int = 30
    random_searches: int = 0
    final: bool = True


@dataclass(frozen=True)
class SearchSettings:
    """What decides on the outcome of every trial, and so must stay when a search is resumed.

    `target`: what is made as large as possible. `goal`: phase 2 looks for smaller subgraphs with
    the same target, or for a better target. `tolerance`: how much of the target "smaller" may
    cost. `queries`: training queries of a whole trial. `final_queries`: of the training of the
    best in full; 0 for as many as `base.training.epochs` has. `validations`: how often a trial is
    validated, at equal distances. `valid_queries`: on how many queries, always the same.
    `sampler_queries`: how many validation queries a trial of phase 2 answers. `seconds`: when a
    trial is stopped, 0 for never; of the processor's own time, or on a GPU since the first step.
    `keep`: share of the trials that go on at each halving. `initial`: trials before the surrogate
    is asked. `surrogate`: by what the others are proposed, in both phases. `tries_base`: `base` is
    the first trial. `is_planned`: `base` comes from a plan, not from the user. `base`: all options
    that are not searched, and how the winner is trained. `test_space`: what the user gave for
    phase 2.

    `minutes`: the time of the whole search, 0 for none. With a time, a trial takes `seconds` by the
    clock, and its validations stand at equal shares of that (rungs); `queries` and `final_queries`
    are the most that are asked.
    """

    target: Target = "mrr"
    goal: Goal = "smaller"
    tolerance: float = 0.001
    queries: int = 8192
    final_queries: int = 0
    validations: int = 8
    valid_queries: int = 500
    sampler_queries: int = 4000
    seconds: float = 60.0
    keep: float = 0.5
    initial: int = 10
    surrogate: Surrogate = "forest"
    seed: int = 0
    tries_base: bool = False
    is_planned: bool = False
    minutes: float = 0.0
    base: Config = field(default_factory=Config)
    space: Space = field(default_factory=lambda: Space({}, {}))
    test_space: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.target not in get_args(Target):
            raise InputError(f"target must be one of {', '.join(get_args(Target))}")
        if self.goal not in get_args(Goal):
            raise InputError(f"goal must be one of {', '.join(get_args(Goal))}")
        if self.surrogate not in get_args(Surrogate):
            raise InputError(f"surrogate must be one of {', '.join(get_args(Surrogate))}")
        for name in ("queries", "validations", "valid_queries", "sampler_queries", "initial"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.keep <= 1:
            raise InputError(f"keep must be above 0 and at most 1, not {self.keep}")
        if self.minutes and not self.seconds:
            raise InputError("a search with a time needs one for its trials: seconds above 0")
        for name in ("tolerance", "seconds", "final_queries", "minutes"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0, not {getattr(self, name)}")

    def as_table(self) -> dict[str, Any]:
        """The settings as JSON."""
        table = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return table | {"base": dataclasses.asdict(self.base), "space": self.space.as_table()}

    @staticmethod
    def from_json(table: dict[str, Any]) -> "SearchSettings":
        base = {
            section: {k: v for k, v in options.items() if v is not None}
            for section, options in table["base"].items()
        }
        changes = {"base": from_table(base), "space": Space.from_table(table["space"])}
        return SearchSettings(**{**table, **changes})
