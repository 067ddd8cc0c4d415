"""Plan: automatic choice of a configuration for a data set and a machine.

Planning takes seconds. The number of entities of a subgraph follows from the coverage of held-out
facts, the number of layers from the distances of their answers, and the speed of the machine from a
few timed steps. Among budgets, dimensions and depths, the most promising combination is chosen: it
covers the answers and leaves time for enough training queries.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oneshot.config import Config, TrainingConfig, as_toml, from_table
from oneshot.data.dataset import Dataset, both_directions
from oneshot.errors import InputError, is_out_of_memory
from oneshot.evaluation.coverage import components
from oneshot.factors import FactorTraining, fitting_time
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import AGGREGATES
from oneshot.reasoner.build import build_reasoner, build_sampler, sampler_config
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import SAMPLERS, BFSSampler, FittedSampler, PPRSampler, Sampler
from oneshot.samplers.fitted import FITTED_FACTS, FITTED_SHARE
from oneshot.samplers.ppr import LOCAL_LARGEST_SHARE
from oneshot.system.devices import find_device
from oneshot.training.epoch import queries_per_epoch
from oneshot.training.final_evaluation import final_queries
from oneshot.training.steps import Stepper

CPU_MINUTES, GPU_MINUTES = 10.0, 5.0
"""Default time budget of a training in minutes."""

# Held-out queries for coverage and distances: maximum and minimum number, and the time limit in
# seconds for those beyond the minimum.
_QUERIES, _LEAST_QUERIES, _FEW_QUERIES, _FEWEST_QUERIES = 1024, 256, 128, 64
_LOOK_SECONDS = 6.0
# Minutes below which a plan may take a share of the time budget: after that, nothing more is
# measured. Shares of a look, a probe and its step. Share of the budget that fitting a sampler may
# take, and its approximate seconds per query on a CPU: in all, and per fact.
_SHORT_MINUTES = 5.0
_PLAN_SHARE, _LOOK_SHARE, _PROBE_SHARE, _STEP_SHARE = 0.15, 0.02, 0.005, 0.01
_FIT_SHARE, _FIT_SECONDS, _FIT_FACT_SECONDS = 0.2, 1.5e-3, 5e-9
# Facts up to which a late plan still compares budgets of entities, by a few subgraphs of each.
_FEW_FACTS = 50_000
# Entities times queries from which on fewer queries are looked at, and facts beyond which fitting a
# sampler on a CPU takes longer than a plan may.
_MUCH, _MOST_FITTED = 10**8, 2_000_000
# Share of the time for validations and the final evaluation.
_EVALUATION_SHARE = 1 / 5
# Approximate number of validations in a training.
_VALIDATIONS = 12
_BATCH, _BATCH_GPU = 32, 64
# Approximate seconds per edge, layer and channel for forward and backward pass together, and per
# row, layer and pair of channels.
_EDGE_SECONDS, _ROW_SECONDS = 1e-9, 1e-9
_GPU_EDGE_SECONDS = 3e-11
_GUESS_QUERIES = 4
_PROBES, _GPU_PROBES, _PROBE_SECONDS = 5, 2, 1.0  # on a GPU each width compiles its own kernels
_STEP_SECONDS = 2.0  # about the most that a step of a probe takes
# Constants of `_Planner._worth`: shares of the reachable answers that may be lost, and their
# weight; queries per relation after which half is learnt, and the multiple that is enough; the
# share that is not learnt at first; the deficit of dimension 16, and the factor for one layer
# less. They were fitted to trainings on FB15k-237, NELL-995, WN18RR, UMLS and part of CoDEx-M.
_LOST = (0.002, 0.01, 0.03, 0.06, 0.1, 0.15, 0.25, 0.35)
_LOSS_POWER, _SMALL, _SMALL_LOSS_POWER = 0.3, 1000, 1.0
_HALF_QUERIES, _ENOUGH = 85, 25
_LEAST_HALF, _MOST_HALF = 500, 50_000
_UNLEARNT = 0.3
_NARROW, _FLAT = 0.06, 0.98


# Predictors of an ensemble at most: three gain about 0.004 MRR over one on FB15k-237; more were not
# tried.
_MOST_MEMBERS = 3
# Ways to fit factors, the first of which fits the time is taken: dimensions, from the most accurate
# to the fastest, number of entities that answers are compared with, and share of the time. On two
# cores, part of CoDEx-M is better off with the first, FB15k-237 with the second than with none.
_FACTOR_WAYS = (((256, 128, 64), 2000, 0.12), ((128, 64), 500, 0.3))
# The least number of epochs that the time must allow, the most that are of use, and those that the
# trials of `fit_factors` take.
_FACTOR_EPOCHS, _MOST_FACTOR_EPOCHS, _TRIED_FACTOR_EPOCHS = 10, 50, 12
# Entities up to which answers are compared with all of them, and queries per step beyond; entities
# beyond which there are no factors, because their vectors would take gigabytes.
_FEW_ENTITIES, _FACTOR_BATCH, _MOST_ENTITIES = 5000, 1000, 500_000
# Minutes below which there is no time for factors.
_LEAST_FACTOR_MINUTES = 0.2
# Operations per second that no machine exceeds here: saves probes that would take long.
_CPU_SPEED, _GPU_SPEED = 4e11, 2e14


class Choice(NamedTuple):
    """A chosen option: its name, value and reason; a detail is left out of tables for people."""

    option: str
    value: Any
    reason: str
    is_detail: bool = False


@dataclass(frozen=True)
class Plan:
    """A configuration with its expected time, coverage and memory.

    `choices`: the chosen options in order of choice, with a reason for each; those that the user
    has set are not among them. `seconds`: time of planning, training and evaluation, which may
    exceed the budget. `coverage`: share of the validation queries whose answer is sampled.
    `memory`: approximate bytes per training step. `queries`: number of training queries that fit
    the time.
    """

    config: Config
    choices: Sequence[Choice]
    seconds: float
    coverage: float
    memory: int
    queries: int

    @property
    def is_beyond_budget(self) -> bool:
        """Whether the training needs more than its time budget, by the estimate."""
        return self.seconds > 60 * self.config.training.minutes > 0


def plan(
    data: Dataset,
    minutes: float | None = None,
    *,
    device: str = "auto",
    settings: Sequence[str] = (),
    seed: int = 0,
) -> Config:
    """The configuration that `oneshot train` would choose for a data set.

    `minutes`: time budget of the whole training; default 10 on a CPU, 5 on a GPU. `settings`, such
    as `predictor.dim=32`, are kept, and the other options are chosen to suit them.
    """
    return make_plan(data, minutes, find_device(device), settings, seed).config


def plan_training(
    reasoner: Reasoner, data: Dataset, minutes: float | None = None, seed: int = 0
) -> TrainingConfig:
    """The training configuration for a reasoner whose sampler and predictor are already chosen."""
    parts: dict[str, Any] = {
        "sampler": sampler_config(reasoner.sampler),
        "predictor": reasoner.predictor.config,
    }
    settings = [
        f"{section}.{option.name}={as_toml(value)}"
        for section, part in parts.items()
        for option in dataclasses.fields(part)
        if (value := getattr(part, option.name)) is not None
    ]
    return make_plan(data, minutes, reasoner.device, settings, seed).config.training


def make_plan(
    data: Dataset,
    minutes: float | None = None,
    device: torch.device | str = "cpu",
    settings: Sequence[str] = (),
    seed: int = 0,
) -> Plan:
    """As `plan`, but with reasons for the choices and expected costs."""
    if not isinstance(data, Dataset):  # such as a name
        raise InputError(f"data must be a Dataset, as oneshot.load returns it, not {data!r}")
    return _Planner(data, minutes, torch.device(device), settings, seed).run()


def check_minutes(minutes: float | None) -> None:
    """Raise if a time budget is given and out of range."""
    if minutes is not None and not 0 < minutes <= 10**6:
        raise InputError(f"minutes must be above 0 and at most 1,000,000, not {minutes:g}")


class _Size(NamedTuple):
    """Dimension and number of layers of the predictor, and number of entities of a subgraph."""

    dim: int
    layers: int
    entities: int


class _Pace(NamedTuple):
    """Result of a probe of a few steps: seconds per query in training and in evaluation, edges and
    entities of a subgraph."""

    training: float
    evaluation: float
    edges: float
    entities: float


class _Planner:
    """Measures data and machine and chooses a configuration; an instance makes one plan."""

    def __init__(
        self,
        data: Dataset,
        minutes: float | None,
        device: torch.device,
        settings: Sequence[str],
        seed: int,
    ) -> None:
        check_minutes(minutes)
        if data.graph.num_facts < 2:
            raise InputError("training needs at least two facts")
        if not len(data.valid):
            raise InputError(
                "training needs a validation split to choose the best epoch: add a file of valid "
                "facts, or use more facts, so that some can be held out"
            )
        self.started = time.perf_counter()
        self.data, self.device, self.seed = data, device, seed
        self.graph = data.graph.to(device)
        self.is_gpu = device.type == "cuda"
        self.given = _given(settings)
        self.settings = [*settings, f"training.seed={seed}"]
        self.has_minutes = minutes is not None
        set_minutes = self.given.get("training.minutes")
        self.minutes = minutes or set_minutes or (GPU_MINUTES if self.is_gpu else CPU_MINUTES)
        self.choices: list[Choice] = []
        self.table: dict[str, dict[str, Any]] = {}
        self.has_factors, self.factor_seconds = False, 0.0
        self.unlearnt = _UNLEARNT
        self._subgraphs: dict[int, tuple[float, float]] = {}
        self._parameters: dict[str, Tensor] = {}  # of the first fit of the sampler
        # Largest budget that is considered: on a large graph, the largest one by a local method.
        self.most_entities = self.graph.num_entities

    def run(self) -> Plan:
        graph = self.data.graph
        # With a number of epochs and no time budget, the epochs determine the time.
        if "training.epochs" not in self.given or self.has_minutes:
            reason = "time budget, including evaluation"
            self._choose("training.minutes", self.minutes, reason)
        queries, answers = self._held_out()
        self._choose_shape()
        # With a score of answers, even an untrained predictor ranks by it.
        self.unlearnt = _UNLEARNT if self._scores_answers else 1.0
        deepest = self._layers(graph, queries, answers)
        places = self._places(graph, queries, answers)
        self._choose_factors()  # their time is not available to the predictor
        size, pace = self._size(deepest, places)
        self._choose_budget(size, places)
        pace = self._choose_members(pace)
        self._choose_course(pace)
        config = from_table(self.table, self.settings)
        entities = size.entities
        coverage = float((places < entities).double().mean()) if len(places) else 0.0
        seconds, asked = self._expected(config, pace)
        if "training.epochs" not in self.given:
            reason = "expected in this time; a training that falls far behind reports it"
            self._choose("training.expected_queries", asked, reason, is_detail=True)
            config = from_table(self.table, self.settings)
        return Plan(config, tuple(self.choices), seconds, coverage, _memory(config, pace), asked)

    # analysis of the data -----------------------------------------------------------------------

    def _held_out(self) -> tuple[Tensor, Tensor]:
        """A random sample of validation queries [n, 2] and their answers [n]."""
        graph = self.data.graph
        queries, answers = both_directions(self.data.valid, graph.num_relations)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(queries), generator=generator)[:_QUERIES]
        return queries[order], answers[order]

    def _layers(self, graph: KnowledgeGraph, queries: Tensor, answers: Tensor) -> int:
        """Number of layers that reach the answers, also along longer paths."""
        if "predictor.num_layers" in self.given:
            return int(self.given["predictor.num_layers"])
        few = max(min(_FEW_QUERIES, _MUCH // max(graph.num_entities, 1) // 4), 1)
        score = BFSSampler(1.0).scores(graph, queries[:few, 0])
        score = score[torch.arange(len(score)), answers[:few]]
        hops = (1 / score[score > 0] - 1).round()  # see `BFSSampler`
        hops = hops[hops > 0]
        far = float(hops.quantile(0.9)) if len(hops) else 1.0
        layers = int(min(max(far + 2, 3), 8 if self.is_gpu else 6))
        reason = f"nine of ten answers are within {far:.0f} hops; longer paths add evidence"
        self._choose("predictor.num_layers", layers, reason)
        return layers

    def _places(self, graph: KnowledgeGraph, queries: Tensor, answers: Tensor) -> Tensor:
        """Rank of the answers in the sampler's order of entities, for as many as the time allows.

        Unreachable answers have the number of entities as rank: no budget covers them.
        """
        sampler, found = self._sampler(self.most_entities), []
        begun, done = time.perf_counter(), 0
        least = min(_LEAST_QUERIES, max(2 * _MUCH // graph.num_entities, _FEWEST_QUERIES))
        for part in torch.arange(len(queries)).split(_FEWEST_QUERIES):
            asked, wanted = queries[part].to(self.device), answers[part].to(self.device)
            found.append(sampler.ranks(self.graph, asked, wanted).cpu())
            done += len(part)
            seconds = min(_LOOK_SECONDS, _LOOK_SHARE * 60 * self.minutes)
            if self._is_late or (done >= least and time.perf_counter() - begun > seconds):
                break
        places = torch.cat(found)
        if self.most_entities < graph.num_entities:  # the order of the others is unknown
            places = places.masked_fill(places >= self.most_entities, graph.num_entities)
        if sampler.scores_answers:  # including unreachable ones
            return places
        part_of = components(graph)
        count = len(places)
        apart = part_of[queries[:count, 0]] != part_of[answers[:count]]
        return places.masked_fill(apart, graph.num_entities)

    def _sampler(self, entities: int) -> Sampler:
        """The sampler chosen so far, with a budget of entities."""
        options = dict(self.table.get("sampler", {}), max_entities=entities)
        budgets = ("sampler.entity_ratio", "sampler.max_entities")
        settings = [s for s in self.settings if s.partition("=")[0].strip() not in budgets]
        config = from_table({"sampler": options}, settings)
        sampler = build_sampler(config.sampler, self.seed)
        self._fit(sampler)
        return sampler

    def _fit(self, sampler: Sampler) -> None:
        """Fit a sampler; local ones take the first fit, which differs little, as each takes long.

        Others share the scores of the first fit (see `FittedSampler.fit`).
        """
        if self._parameters and sampler.is_local(self.graph):
            sampler.take(self._parameters, self.graph.relations)
            return
        sampler.fit(self.graph, self.seed)
        self._parameters = self._parameters or sampler.parameters()

    # choices -----------------------------------------------------------------------------

    def _choose(self, option: str, value: Any, reason: str, is_detail: bool = False) -> None:
        if option in self.given:
            return
        section, key = option.split(".")
        self.table.setdefault(section, {})[key] = value
        self.choices = [choice for choice in self.choices if choice.option != option]
        self.choices.append(Choice(option, value, reason, is_detail))

    def _choose_shape(self) -> None:
        """Choose the architecture that works well on all graphs."""
        aggregate = "mean, extremes and deviation of the messages: best on all graphs tested"
        self._choose("predictor.aggregate", "pna", aggregate)
        for option, value in (("norm", True), ("shortcut", True), ("gate", False)):
            reason = "goes with this aggregate: best on all graphs tested"
            self._choose(f"predictor.{option}", value, reason, is_detail=True)
        if self.given.get("training.sample_from", "observation") == "observation":
            if self._is_tight:
                reason = "fitting another one takes too much of the time"
                self._choose("sampler.name", PPRSampler.name, reason)
            elif self.is_gpu or self.data.graph.num_facts <= _MOST_FITTED:
                reason = "half of the entities by PPR, half by likelihood of being the answer"
                self._choose("sampler.name", FittedSampler.name, reason)
            else:
                reason = f"fitting another one to {self.data.graph.num_facts:,} facts takes long"
                self._choose("sampler.name", PPRSampler.name, reason)
                self._choose_local()
        if self._scores_answers:
            self._choose("predictor.priors", True, "training starts from the sampler's score")
            reason = "the sampler's score counts fully from the first step on"
            self._choose("predictor.prior_start", 1.0, reason, is_detail=True)
        valid, train = _direct_shares(self.data, self.seed)
        if train > 0.05 and valid < 0.2 * train:
            reason = (
                f"{valid:.0%} of the validation pairs have other facts between them, {train:.0%} "
                "of those in training"
            )
            self._choose("training.hide_direct", True, reason)
        reason = "other true answers of a query do not count as wrong"
        self._choose("training.mask_known", True, reason, is_detail=True)
        self._choose("training.clip", 1.0, "no single step can undo many", is_detail=True)
        size, reason = (_BATCH, "more updates in the time of a CPU")
        if self.is_gpu:
            size, reason = _BATCH_GPU, "keeps a GPU busy"
            exact = "bfloat16 where the GPU computes with it"
            self._choose("training.precision", "auto", exact, is_detail=True)
        self._choose("training.batch_size", size, reason, is_detail=True)
        facts = self.data.graph.num_facts
        ratio = 0.95 if facts >= 50_000 else 0.9 if facts >= 10_000 else 0.8
        self._choose("training.fact_ratio", ratio, f"{facts:,} facts")

    @property
    def _is_late(self) -> bool:
        """Whether planning has taken its share of a short time budget."""
        spent = time.perf_counter() - self.started
        return self.minutes < _SHORT_MINUTES and spent > _PLAN_SHARE * 60 * self.minutes

    @property
    def _is_tight(self) -> bool:
        """Whether fitting a sampler would take too much of the time."""
        facts = self.data.graph.num_facts
        queries = 2 * min(FITTED_FACTS, int(FITTED_SHARE * facts))
        seconds = queries * (_FIT_SECONDS + facts * _FIT_FACT_SECONDS)
        return not self.is_gpu and seconds > _FIT_SHARE * 60 * self.minutes

    @property
    def _scores_answers(self) -> bool:
        """Whether the score of the sampler is the likelihood of being the answer."""
        name = from_table(self.table, self.settings).sampler.name
        return name in SAMPLERS and SAMPLERS[name].scores_answers

    def _choose_local(self) -> None:
        """Choose the local method of PPR for a large graph, and limit the budget to its range.

        Not for another sampler, and not for a budget of the user that is beyond the range.
        """
        sampler = build_sampler(from_table(self.table, self.settings).sampler, self.seed)
        if not isinstance(sampler, PPRSampler) or "sampler.method" in self.given:
            return
        most = int(LOCAL_LARGEST_SHARE * self.graph.num_entities)
        if self._has_budget:
            every = torch.arange(2 * self.graph.num_relations, device=self.graph.device)
            if int(sampler.budget.entity_counts(self.graph, every).max()) > most:
                return
        method = sampler.chosen_method(self.graph, most)
        if method in ("push", "ball"):
            # Said explicitly: it is not measured again on the observation facts of an epoch.
            reason = "PPR near the query entity alone, as the graph is large"
            self._choose("sampler.method", method, reason)
            self.most_entities = most

    @property
    def _has_budget(self) -> bool:
        """Whether the user has set the number of entities of a subgraph."""
        return any(f"sampler.{o}" in self.given for o in ("entity_ratio", "max_entities"))

    def _size(self, deepest: int, places: Tensor) -> tuple[_Size, _Pace]:
        """The most promising size by coverage and number of training queries.

        The time per query is estimated from the size of a few subgraphs. The best size by the
        estimate is timed, which corrects the estimate, until the best size is one that was timed.
        """
        sizes = self._sizes(deepest, places)
        paces: dict[_Size, _Pace] = {}
        correction = 1.0
        for _ in range(_GPU_PROBES if self.is_gpu else _PROBES):
            worth = {
                size: self._worth(size, deepest, places, paces.get(size), correction)
                for size in sizes
            }
            best = max(worth, key=lambda size: worth[size])
            if best in paces or (paces and self._is_late):
                break
            try:
                paces[best] = self._probe(best, self._guess(best) * correction)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or len(sizes) == 1:
                    raise
                sizes.remove(best)
                continue
            correction = paces[best].training / self._guess(best)
        best = max(paces, key=lambda s: self._worth(s, deepest, places, paces[s], correction))
        pace = paces[best]
        asked = min(self._asked(pace), self._most_queries)  # more are for an ensemble
        reason = f"best of {len(sizes)} sizes for the time: {asked:,} training queries"
        self._choose("predictor.dim", best.dim, reason)
        if best.layers < deepest:
            self._choose("predictor.num_layers", best.layers, "fewer than ideal, as time is short")
        return best, pace

    def _sizes(self, deepest: int, places: Tensor) -> list[_Size]:
        dims = [64, 128] if self.is_gpu else [16, 32, 64]
        if "predictor.dim" in self.given:
            dims = [int(self.given["predictor.dim"])]
        layers = {deepest}
        if "predictor.num_layers" not in self.given:
            layers |= {max(deepest - 1, 3), max(deepest - 2, 3)}
        entities = {self._entities(places, lost) for lost in _LOST}
        if self._is_late:  # no time to compare them: the fastest one
            dims, layers = dims[:1], {min(layers)}
            if self.graph.num_facts > _FEW_FACTS:
                entities = {min(entities)}
        return [
            _Size(dim, depth, count)
            for dim in dims
            for depth in sorted(layers)
            for count in sorted(entities)
        ]

    def _worth(
        self, size: _Size, deepest: int, places: Tensor, pace: _Pace | None, correction: float
    ) -> float:
        """Expected quality of a size, from 0 to 1.

        An answer that is not covered is lost. Quality grows with the number of training queries;
        more relations need more queries. A narrow or shallow predictor has a lower limit.
        """
        reachable = max(float((places < self.data.graph.num_entities).sum()), 1.0)
        covered = float((places < size.entities).sum()) / reachable
        seconds = self._guess(size) * correction if pace is None else pace.training
        evaluation = seconds / 3 if pace is None else pace.evaluation
        asked = self._asked(_Pace(seconds, evaluation, 0.0, 0.0))
        half = min(max(_HALF_QUERIES * self.data.graph.num_relations, _LEAST_HALF), _MOST_HALF)
        asked = min(asked, self._most_queries, _ENOUGH * half)
        learnt = 1 - self.unlearnt / (1 + math.pow(asked / half, 0.8))
        width = 1 - _NARROW * math.pow(16 / size.dim, 1.5)
        depth = math.pow(_FLAT, deepest - size.layers)
        return math.pow(covered, self._loss_power) * learnt * width * depth

    @property
    def _loss_power(self) -> float:
        """Weight of answers that are not covered.

        In a small graph, nearly every answer can be predicted. In a large one, those outside the
        subgraph would rarely be predicted anyway.
        """
        decades = math.log10(max(self.data.graph.num_entities / _SMALL, 1))
        return max(_SMALL_LOSS_POWER - 0.7 * decades, _LOSS_POWER)

    @property
    def _most_queries(self) -> int:
        """Number of training queries beyond which training does not improve."""
        most = 2_000_000 if self.is_gpu else 400_000
        return max(min(30 * 2 * self.data.graph.num_facts, most), 40_000)

    def _entities(self, places: Tensor, lost: float) -> int:
        """Minimum number of entities that lose at most `lost` of the reachable coverage."""
        count = self.data.graph.num_entities
        for option in ("entity_ratio", "max_entities"):
            value = self.given.get(f"sampler.{option}")
            if isinstance(value, int | float):
                return max(int(value * count) if option == "entity_ratio" else int(value), 1)
        reachable = places[places < count].sort().values
        if not len(reachable):
            return self.most_entities
        kept = min(int((1 - lost) * len(reachable)), len(reachable) - 1)
        wanted = int(reachable[kept]) + 1
        # If nearly all entities of a small graph are needed, take all.
        return count if wanted > 0.7 * count else wanted

    def _choose_budget(self, size: _Size, places: Tensor) -> None:
        count = self.data.graph.num_entities
        if self._has_budget:
            return
        covered = float((places < size.entities).double().mean())
        reachable = float((places < count).double().mean())
        reason = f"{covered:.1%} of the answers are covered, {reachable:.1%} are reachable"
        # Rounded up, as a ratio of no entity or one less would be of no use in a large graph.
        ratio = 1.0 if size.entities >= count else float(f"{(size.entities + 0.5) / count:.6g}")
        self._choose("sampler.entity_ratio", max(ratio, 1 / count), reason)

    def _choose_factors(self) -> None:
        """Choose vectors of entities beside the predictor, if the time allows enough epochs."""
        graph = self.data.graph
        given = self.given.get("factors.dim")
        is_without = graph.num_entities > _MOST_ENTITIES or self._is_late
        is_without |= self.minutes < _LEAST_FACTOR_MINUTES
        if given == 0 or (given is None and is_without):
            return
        speed = _GPU_SPEED if self.is_gpu else _CPU_SPEED
        for dims, negatives, share in _FACTOR_WAYS:
            seconds, rivals = share * 60 * self.minutes, graph.num_entities
            if rivals > _FEW_ENTITIES:
                rivals = negatives
                reason = f"answers compete with a sample of the {graph.num_entities:,} entities"
                self._choose("factors.negatives", negatives, reason, is_detail=True)
                reason = "facts that share a sample"
                self._choose("factors.batch_size", _FACTOR_BATCH, reason, is_detail=True)
            for dim in dims if given is None else (given,):
                # Two directions; three products, each of two operations; complex numbers.
                operations = 2 * graph.num_facts * rivals * 6 * 2 * dim
                if given is None and _FACTOR_EPOCHS * operations / speed > seconds:
                    continue
                if given is None and self._is_late:
                    break
                self.table.setdefault("factors", {})["dim"] = dim
                epoch = self._factor_epoch()
                if given is None and _FACTOR_EPOCHS * epoch > seconds:
                    continue
                reason = f"vectors of entities beside the predictor, {epoch:.2g} s per epoch"
                self._choose("factors.dim", dim, reason)
                fit_in = int(seconds / max(epoch, 1e-9)) - _TRIED_FACTOR_EPOCHS
                epochs = min(max(fit_in, _FACTOR_EPOCHS), _MOST_FACTOR_EPOCHS)
                reason = (
                    f"as many as fit into {share:.0%} of the time, or at least {_FACTOR_EPOCHS}"
                )
                self._choose("factors.epochs", epochs, reason, is_detail=True)
                self._limit_factors(epoch)
                return
        self.table.pop("factors", None)
        self.choices = [c for c in self.choices if not c.option.startswith("factors.")]

    def _limit_factors(self, epoch: float) -> None:
        """Set the expected time of the factors and their time limit, given that of an epoch."""
        config, budget = from_table(self.table, self.settings), 60 * self.minutes
        factors, self.has_factors = config.factors, True
        most = factors.time_share * budget if config.training.minutes else math.inf
        self.factor_seconds, limit = fitting_time(epoch, factors.epochs, most)
        if limit < most < math.inf:
            reason = "time limit of the factors, a little more than they are expected to take"
            share = max(round(limit / budget, 4), 0.001)
            self._choose("factors.time_share", share, reason, is_detail=True)

    def _choose_members(self, pace: _Pace) -> _Pace:
        """Choose an ensemble if there is time for more queries than are of use. → its pace"""
        if self.given.keys() & {"predictor.members", "predictor.network", "training.epochs"}:
            return pace
        enough = self._most_queries
        members = min(self._asked(pace) // enough, _MOST_MEMBERS)
        if members < 2:
            return pace
        reason = f"an ensemble, as {enough:,} training queries are enough for one predictor"
        self._choose("predictor.members", members, reason)
        return pace._replace(training=members * pace.training, evaluation=members * pace.evaluation)

    def _choose_course(self, pace: _Pace) -> None:
        """Choose the epochs, and the training and validation queries per epoch."""
        facts = self.data.graph.num_facts
        config = from_table(self.table, self.settings)
        fit_in = self._asked(pace)
        most = self._most_queries
        asked = max(min(fit_in, most), 2 * _BATCH)
        training = dataclasses.replace(config.training, query_share=1.0)
        per_split = queries_per_epoch(training, facts)
        share = min(asked / _VALIDATIONS / per_split, 1.0)
        if "training.epochs" in self.given:  # then they are complete epochs
            share = 1.0
        share = min(max(round(share, 4), 2 / per_split), 1.0)
        each = max(int(share * per_split), 2)
        epochs = max(round(asked / each), 1)
        if fit_in < most:  # the time budget ends the training
            # No fewer than are of use: the training can be resumed with more time.
            reason = "upper limit; the time budget ends training earlier"
            self._choose("training.epochs", max(2 * epochs, math.ceil(most / each)), reason)
            epochs = max(int(1.3 * epochs), epochs + 1)
        else:
            reason = f"{asked:,} training queries are enough for {facts:,} facts"
            self._choose("training.epochs", epochs, reason)
        self._choose(
            "training.query_share",
            share,
            f"{each:,} queries per epoch, each epoch with a new split",
        )
        every = max(round(epochs / (2 * _VALIDATIONS)), 1)
        self._choose("training.valid_every", every, f"about {epochs // every} validations")
        rate = 0.15 * 60 * self.minutes / max(epochs // every, 1) / pace.evaluation
        limit = min(max(int(rate), 200), 2 * len(self.data.valid))
        if limit < 2 * len(self.data.valid):
            self._choose("training.valid_limit", limit, "validations take a seventh of the time")
        rate = 0.003 if config.predictor.dim >= 64 else 0.005
        self._choose("training.learning_rate", rate, f"suits dimension {config.predictor.dim}")

    # measurements ---------------------------------------------------------------------------

    def _probe(self, size: _Size, guess: float) -> _Pace:
        """Time a few steps of training and evaluation at a given size.

        `guess`: estimated seconds per training query.
        """
        table = {section: dict(values) for section, values in self.table.items()}
        table.setdefault("predictor", {}).update(dim=size.dim, num_layers=size.layers)
        if not self._has_budget:
            table.setdefault("sampler", {})["max_entities"] = size.entities
        settings = [s for s in self.settings if not s.strip().startswith("training.minutes")]
        config = from_table(table, settings)
        # A step of a slow size has fewer queries, as one of a whole batch would take minutes.
        affordable = int(min(_STEP_SECONDS, _STEP_SHARE * 60 * self.minutes) / max(guess, 1e-9))
        batch = max(min(config.training.batch_size, affordable), 1)
        training = dataclasses.replace(config.training, minutes=0.0, batch_size=batch, workers=0)
        reasoner = build_reasoner(self.data.graph, config, self.device)
        self._fit(reasoner.sampler)
        stepper = Stepper(reasoner, self.data, training)
        epoch = stepper.draw_epoch(1)
        steps = stepper.steps(epoch)
        next(steps, None)  # warm-up: compilation, allocation
        self._wait()
        begun, asked = time.perf_counter(), 0
        for done in itertools.islice(steps, 12):
            asked += done.queries
            self._wait()
            if time.perf_counter() - begun > self._probe_seconds:
                break
        training_seconds = (time.perf_counter() - begun) / asked if asked else 1e-3
        evaluation, batch_edges, batch_entities = self._time_evaluation(
            reasoner, epoch.queries, batch
        )
        return _Pace(training_seconds, evaluation, batch_edges, batch_entities)

    def _factor_epoch(self) -> float:
        """Seconds per epoch of fitting factors, from a few steps."""
        config = from_table(self.table, self.settings).factors
        nothing = self.graph.facts[:0].long()
        fit = FactorTraining(self.graph, config, (0.05, 0.25), nothing, None, self.seed)
        return fit.seconds_per_epoch(self._probe_seconds)

    @property
    def _probe_seconds(self) -> float:
        return min(_PROBE_SECONDS, _PROBE_SHARE * 60 * self.minutes)

    def _time_evaluation(
        self, reasoner: Reasoner, queries: Tensor, count: int
    ) -> tuple[float, float, float]:
        """Time an evaluation of at most `count` queries. → (seconds, edges, entities) per query"""
        some = queries[: 256 if self.is_gpu else min(count, 16)]
        reasoner.reason(some if self.is_gpu else some[:2])  # a GPU compiles for larger batches
        self._wait()
        begun = time.perf_counter()
        batch, _ = reasoner.reason(some)
        self._wait()
        seconds = (time.perf_counter() - begun) / len(some)
        return seconds, batch.num_edges / len(some), batch.num_entities / len(some)

    def _wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def _asked(self, pace: _Pace) -> int:
        """Number of training queries that fit the time."""
        return int(self._training_seconds(pace) / pace.training)

    def _training_seconds(self, pace: _Pace) -> float:
        budget = 60 * self.minutes
        spent = time.perf_counter() - self.started
        spent += self.factor_seconds
        return max(0.97 * budget - spent - self._evaluation_seconds(pace), 0.1 * budget)

    def _evaluation_seconds(self, pace: _Pace) -> float:
        """Seconds for validations and the final evaluation, limited to their share."""
        budget = 60 * self.minutes
        final = final_queries(self.data, self.has_factors) * pace.evaluation
        return min(final, _EVALUATION_SHARE * budget) + 0.12 * budget

    def _guess(self, size: _Size) -> float:
        """Estimated seconds per training query, from the size of a few subgraphs alone."""
        edges, rows = self._subgraph(size.entities)
        if self.is_gpu:
            return edges * size.layers * size.dim * _GPU_EDGE_SECONDS
        work = edges * size.layers * size.dim * _EDGE_SECONDS
        work += rows * size.layers * size.dim**2 * _ROW_SECONDS
        return work / torch.get_num_threads()

    def _subgraph(self, entities: int) -> tuple[float, float]:
        """Mean edges and entities of a subgraph with a budget, from a small sample."""
        if entities not in self._subgraphs:
            graph = self.data.graph
            queries, _ = both_directions(graph.facts[:_GUESS_QUERIES].long(), graph.num_relations)
            asked = queries[:_GUESS_QUERIES].to(self.device)
            batch = self._sampler(entities).sample(self.graph, asked)
            self._subgraphs[entities] = (
                batch.num_edges / batch.num_queries,
                batch.num_entities / batch.num_queries,
            )
        return self._subgraphs[entities]

    def _expected(self, config: Config, pace: _Pace) -> tuple[float, int]:
        """→ (seconds of the whole training, training queries)"""
        training = config.training
        facts = self.data.graph.num_facts
        per_split = queries_per_epoch(dataclasses.replace(training, query_share=1.0), facts)
        wanted = training.epochs * max(int(training.query_share * per_split), 2)
        if training.minutes:
            asked, evaluation = min(wanted, self._asked(pace)), self._evaluation_seconds(pace)
        else:
            valid = training.valid_limit or 2 * len(self.data.valid)
            queries = final_queries(self.data, self.has_factors)
            queries += valid * (training.epochs // training.valid_every)
            asked, evaluation = wanted, queries * pace.evaluation
        seconds = asked * pace.training + evaluation
        return seconds + time.perf_counter() - self.started + self.factor_seconds, asked


def _given(settings: Sequence[str]) -> dict[str, Any]:
    """The values of settings `section.key=value` by "section.key"; raises for wrong settings."""
    whole = from_table({}, settings)
    found = {}
    for setting in settings:
        name = setting.partition("=")[0].strip()
        section, _, key = name.partition(".")
        found[name] = getattr(getattr(whole, section), key)
    return found


def _direct_shares(data: Dataset, seed: int, most: int = 5000) -> tuple[float, float]:
    """Shares of validation and training facts whose entities are also connected by other facts."""
    graph = data.graph
    generator = torch.Generator().manual_seed(seed)

    def share(facts: Tensor, own: int) -> float:
        chosen = torch.randperm(len(facts), generator=generator)[:most]
        some = facts[chosen].long()
        low, high = some[:, [0, 2]].amin(1), some[:, [0, 2]].amax(1)
        key = low * graph.num_entities + high
        place = torch.searchsorted(pairs, key).clamp(max=len(pairs) - 1)
        between = torch.where(pairs[place] == key, counts[place], 0)
        return float((between > own).double().mean())

    head, tail = graph.facts[:, 0].long().cpu(), graph.facts[:, 2].long().cpu()
    ends = torch.minimum(head, tail) * graph.num_entities + torch.maximum(head, tail)
    pairs, counts = ends.unique(return_counts=True)
    return share(data.valid.cpu(), 0), share(graph.facts.cpu(), 1)


def _memory(config: Config, pace: _Pace) -> int:
    """Approximate bytes per training step: states and aggregates of all layers, and edges."""
    width = 5 + AGGREGATES[config.predictor.aggregate].training_rows
    rows = pace.entities * config.predictor.dim * width * config.predictor.num_layers
    rows *= config.predictor.members
    return int(config.training.batch_size * 4 * (rows + 20 * pace.edges))
