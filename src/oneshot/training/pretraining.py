"""Pre-training: one predictor with relative relations, trained on a mixture of graphs.

Training proceeds in episodes. An episode draws one graph, hides some of its facts, drops some of
its relations, draws a subgraph budget, and performs a few steps whose queries are hidden facts. The
predictor thus sees each graph in many sparser forms, with other relations and subgraph sizes each
time. It cannot see names or numbers of relations (see `RelationNetwork`), so these need no mixing.

All random numbers come from generators seeded with (seed, episode, step). A pre-training that was
killed and resumed therefore ends with the same parameters as an uninterrupted one, unless it has a
time budget, with which the learning rate follows the clock.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from oneshot.config import Config, from_table
from oneshot.data.dataset import Dataset, both_directions
from oneshot.errors import InputError
from oneshot.evaluation.evaluate import evaluate
from oneshot.graph.graph import KnowledgeGraph
from oneshot.ranking import KnownFacts
from oneshot.reasoner.answers import Calibration
from oneshot.reasoner.build import build_reasoner, build_sampler
from oneshot.reasoner.calibration import calibrate_on_graphs
from oneshot.reasoner.reasoner import Reasoner
from oneshot.training.average import ParameterAverage
from oneshot.training.cuda_graph import RecordedStep, can_record
from oneshot.training.epoch import Epoch, mixed_seed
from oneshot.training.interrupt import StopTraining
from oneshot.training.schedule import Schedule
from oneshot.training.steps import Stepper, warn
from oneshot.training.time_budget import TimeBudget

CHECKPOINT_SECONDS = 60.0
"""Time between two checkpoints, in seconds."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "sampler": {"name": "fitted", "max_entities": 1000},
    "predictor": {
        "message": "nbfnet",
        "relations": "relative",
        "relation_pairs": True,
        "aggregate": "pna",
        "norm": True,
        "shortcut": True,
        "gate": False,
        "priors": True,
        "prior_start": 1.0,
    },
    "training": {
        "learning_rate": 1e-3,
        "clip": 1.0,
        "mask_known": True,
        "uncovered": "skip",
        "precision": "auto",
        "valid_limit": 1000,
    },
}
# Decay of the averaged parameters per step, once there are many steps.
_DECAY = 0.995
# Share of the progress over which the learning rate increases from zero.
_WARMUP = 0.02


@dataclass(frozen=True)
class Mixture:
    """How episodes are drawn.

    `steps`: steps per episode. `power`: a graph is drawn in proportion to this power of its number
    of facts. `hidden`: maximum share of the facts that are hidden besides the query facts.
    `dropped`: maximum share of the relations that are dropped. `max_entities`: largest subgraph
    budget; `levels`: number of budgets, each half of the next larger one. `hide_direct`: share of
    the episodes in which all facts between query entity and answer are hidden.
    """

    steps: int = 16
    power: float = 0.5
    hidden: float = 0.2
    dropped: float = 0.1
    max_entities: int = 1000
    levels: int = 3
    hide_direct: float = 0.0

    def __post_init__(self) -> None:
        if min(self.steps, self.max_entities, self.levels) < 1:
            raise InputError("steps, max_entities and levels of a mixture must be at least 1")
        if not all(0 <= share < 1 for share in (self.hidden, self.dropped)):
            raise InputError("hidden and dropped must be at least 0 and below 1")


def pretraining_config(settings: Sequence[str] = ()) -> Config:
    """The default configuration of a pre-training, changed by settings such as `predictor.dim=32`.

    Raises unless relations are relative.
    """
    config = from_table(_DEFAULTS, settings)
    check_relative(config)
    return config


def check_relative(config: Config) -> None:
    """Raise unless a configuration suits any graph."""
    if config.predictor.relations != "relative":
        raise InputError('pre-training needs predictor.relations = "relative"')
    for name in ("entity_ratio", "edge_ratio", "max_entities", "max_edges", "mass"):
        if isinstance(getattr(config.sampler, name), dict):
            raise InputError(f"sampler.{name}: a pre-trained run cannot name relations")


@dataclass
class PretrainingState:
    """The progress of a pre-training: the contents of a checkpoint except tensors.

    `episode`, `step`, `queries`: done so far; `seconds`: used so far. `loss`, `covered`: sums over
    the `recent` queries since the last validation. `best_mrr`, `best_step`: of the best validation.
    `history`: one record per validation.
    """

    episode: int = 0
    step: int = 0
    queries: int = 0
    seconds: float = 0.0
    recent: int = 0
    loss: float = 0.0
    covered: float = 0.0
    best_mrr: float = -1.0
    best_step: int = 0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


class PretrainingObserver:
    """Base class of callbacks; a subclass overrides the methods that it needs."""

    def on_start(self, pretraining: "Pretraining") -> None:
        """Before the first episode; also when a pre-training is resumed."""

    def on_steps(self, pretraining: "Pretraining", name: str, steps: int, loss: float) -> None:
        """After an episode on the graph `name`, with its number of steps and mean loss."""

    def on_validation(
        self, pretraining: "Pretraining", record: dict[str, Any], is_best: bool
    ) -> None:
        """After a validation; `record` is its line of `metrics.jsonl`."""

    def on_checkpoint(self, pretraining: "Pretraining") -> None:
        """About once per minute, and after each validation."""

    def on_end(self) -> None:
        """At the end, also after an error."""


@dataclass
class _Progress(Schedule):
    """The learning rate by the share of the whole pre-training that is done, not by epochs."""

    share: float = 0.0

    def factor(self, epochs_done: float) -> float:
        warm = min((self.share + 1e-4) / _WARMUP, 1.0)
        if self.config.schedule != "cosine":
            return warm
        return warm * (1 + math.cos(math.pi * min(self.share, 1.0))) / 2


@dataclass
class _Source:
    """A graph of the mixture, with its reasoner, stepper, and captured steps per budget."""

    data: Dataset
    reasoner: Reasoner
    stepper: Stepper
    recorders: dict[int, RecordedStep | None] = field(default_factory=dict)


class Pretraining:
    """One pre-training, episode by episode.

    Validated and kept are exponential averages of the parameters over the steps, because the
    parameters themselves follow the graph of the latest episodes.

    `sources`: the graphs of the mixture (training facts only). `valid`: data sets whose validation
    split decides which parameters are the best, asked on their own training facts without training;
    by default the sources. `steps`: number of steps in total, 0 for no limit; `budget`: time.
    `validations`: number of validations over the whole pre-training.
    """

    def __init__(
        self,
        sources: Sequence[Dataset],
        valid: Sequence[Dataset],
        config: Config,
        device: torch.device,
        *,
        mixture: Mixture | None = None,
        steps: int = 0,
        budget: TimeBudget | None = None,
        validations: int = 10,
        observers: Sequence[PretrainingObserver] = (),
        should_stop: Callable[[], bool] = lambda: False,
        messages: Callable[[str], None] = warn,
    ) -> None:
        check_relative(config)
        self.budget = budget or TimeBudget(0)
        if not steps and not self.budget.is_limited:
            raise InputError("a pre-training needs a number of steps or a time budget")
        if not sources:
            raise InputError("a pre-training needs at least one graph")
        for data in sources:
            if data.graph.num_facts < 4:
                raise InputError(f"{data.name}: pre-training needs at least four facts")
        if not any(len(data.valid) for data in (*valid, *sources)):
            raise InputError("no data set has a validation split to choose the best parameters by")
        self.config, self.steps, self.validations = config, steps, validations
        self.mixture, self.device = mixture or Mixture(), device
        self.observers, self.should_stop = observers, should_stop
        self.schedule = _Progress(config.training)
        self.state = PretrainingState()
        self.predictor = build_reasoner(sources[0].graph, config, device).predictor
        self.optimizer = torch.optim.Adam(
            self.predictor.parameters(),
            lr=config.training.learning_rate,
            weight_decay=config.training.weight_decay,
            fused=device.type == "cuda",
        )
        self.sources = [self._source(data, messages) for data in sources]
        self.judges = [self._judge(data) for data in (valid or sources) if len(data.valid)]
        self.watched = [] if not valid else [self._judge(d) for d in sources if len(d.valid)]
        self.average = ParameterAverage(self.predictor, _DECAY)
        self.best = {name: value.clone() for name, value in self.average.named().items()}
        self._kept = self._counted = self.budget.clock()
        self._level = 0  # subgraph budget of the current episode

    @property
    def share(self) -> float:
        """Share of the pre-training that is done, by steps or by time, whichever is more."""
        share = self.state.step / self.steps if self.steps else 0.0
        return min(max(share, self.budget.share if self.budget.is_limited else 0.0), 1.0)

    def run(self) -> PretrainingState:
        """Train until the steps are done or the time is used up; sets the best parameters."""
        self.budget.spent_before = self.state.seconds
        self._kept = self._counted = self.budget.clock()
        try:
            for observer in self.observers:
                observer.on_start(self)
            devices = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices=devices):
                while not self.state.finished:
                    self._run_episode()
            self.predictor.load_state_dict(self.best)
        finally:
            for observer in self.observers:
                observer.on_end()
        return self.state

    def _run_episode(self) -> None:
        state = self.state
        self._check_stop()
        number = state.episode + 1
        generator = torch.Generator().manual_seed(mixed_seed(self.config.training.seed, number))
        source = self._drawn_source(generator)
        self._set_budget(source, generator)
        epoch = self._draw(source, number, generator)
        self.schedule.share = self.share
        self.predictor.train()
        before = state.recent, state.loss
        size = self.config.training.batch_size
        for done in source.stepper.steps(epoch):
            steps = -(-done.queries // size)
            state.step += steps
            state.queries += done.queries
            state.recent += done.queries
            state.loss += done.loss
            state.covered += done.covered
            self.average.update(steps)
            self.schedule.share = self.share
        state.episode = number
        source.recorders[self._level] = source.stepper.recorder
        asked = state.recent - before[0]
        loss = (state.loss - before[1]) / max(asked, 1)
        for observer in self.observers:
            observer.on_steps(self, source.data.name, -(-asked // size), loss)
        is_last = self.share >= 1
        if is_last or self.share * self.validations >= len(state.history) + 1:
            source.stepper.check_parameters(number)
            self._validate()
            state.finished = is_last
            self._keep()
        elif self.budget.clock() - self._kept >= CHECKPOINT_SECONDS:
            source.stepper.check_parameters(number)
            self._keep()

    # episodes -------------------------------------------------------------------------------------

    def _drawn_source(self, generator: torch.Generator) -> _Source:
        facts = torch.tensor([source.data.graph.num_facts for source in self.sources]).double()
        chosen = torch.multinomial(facts**self.mixture.power, 1, generator=generator)
        return self.sources[int(chosen)]

    def _set_budget(self, source: _Source, generator: torch.Generator) -> None:
        """Draw the subgraph budget of an episode, and whether direct facts are hidden."""
        mixture, stepper = self.mixture, source.stepper
        level = int(torch.randint(mixture.levels, (), generator=generator))
        entities = max(mixture.max_entities >> level, 2)
        self._level = entities
        ratio = min(entities / max(stepper.graph.num_entities, 1), 1.0)
        stepper.sampler = stepper.sampler.with_entity_ratio(ratio)
        is_direct = float(torch.rand((), generator=generator)) < mixture.hide_direct
        stepper.config = replace(self.config.training, hide_direct=is_direct)
        if entities not in source.recorders:
            source.recorders[entities] = None
            source.reasoner.relate()  # whether steps can be captured depends on the relations
            is_weighted = stepper.graph.weights is not None
            if can_record(self.predictor, self.config.training, self.device, is_weighted):
                source.recorders[entities] = stepper.new_recorder()
        stepper.recorder = source.recorders[entities]

    def _draw(self, source: _Source, number: int, generator: torch.Generator) -> Epoch:
        """The observed graph and the queries of an episode."""
        mixture, graph = self.mixture, source.stepper.graph
        count, size = graph.num_facts, self.config.training.batch_size
        relation = graph.facts[:, 1].long().cpu()
        shares = torch.rand(2, generator=generator)
        drops = torch.rand(graph.num_relations, generator=generator)
        kept = (drops >= mixture.dropped * shares[0])[relation]
        hides = torch.rand(count, generator=generator)
        asked = self._asked(kept, hides, mixture.steps * size // 2)
        kept &= hides >= mixture.hidden * shares[1]
        kept[asked] = False
        observed = graph.subset(kept)
        facts = graph.facts[asked.to(graph.device)].long()
        queries, answers = both_directions(facts, graph.num_relations)
        mixed = torch.randperm(len(queries), generator=generator)
        if len(mixed) > size:
            mixed = mixed[: len(mixed) // size * size]  # whole batches, which can be captured
        mixed = mixed.to(graph.device)
        return Epoch.whole(number, observed, queries[mixed], answers[mixed])

    @staticmethod
    def _asked(kept: Tensor, hides: Tensor, most: int) -> Tensor:
        """The query facts: those with the lowest random numbers, at most a quarter of the kept."""
        candidates = kept.nonzero().squeeze(1)
        if not len(candidates):
            candidates = torch.arange(len(kept))
        number = max(min(most, len(candidates) // 4), 1)
        order = hides[candidates].argsort()
        return candidates[order[:number]]

    # validation -----------------------------------------------------------------------------------

    def _validate(self) -> None:
        """Measure the parameters on all validation graphs, and record the result."""
        state = self.state
        with self.average.applied():
            scores = {judge.name: self._measured(judge) for judge in self.judges}
            mrr = sum(scores.values()) / len(scores)
            if self.share >= 1:  # for information, so only once
                scores |= {judge.name: self._measured(judge) for judge in self.watched}
        is_best = mrr > state.best_mrr
        if is_best:
            state.best_mrr, state.best_step = mrr, state.step
            self.best = {name: value.clone() for name, value in self.average.named().items()}
        self._count_seconds()
        record = {
            "step": state.step,
            "queries": state.queries,
            "loss": state.loss / max(state.recent, 1),
            "covered": state.covered / max(state.recent, 1),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "mrr": mrr,
            "valid": scores,
            "seconds": state.seconds,
        }
        state.history.append(record)
        state.recent, state.loss, state.covered = 0, 0.0, 0.0
        for observer in self.observers:
            observer.on_validation(self, record, is_best)

    def _measured(self, judge: "_Judge") -> float:
        training = self.config.training
        report = evaluate(
            judge.reasoner,
            judge.data.valid,
            judge.known,
            batch_size=training.valid_batch_size or None,
            limit=training.valid_limit or None,
            seed=training.seed,
            progress=lambda _: self._check_stop(),
        )
        return report.mrr

    def calibrated(self) -> Calibration:
        """The calibration of the current parameters, on the validation graphs."""
        judges = [(judge.reasoner, judge.data) for judge in self.judges]
        return calibrate_on_graphs(judges, seed=self.config.training.seed)

    # parts ----------------------------------------------------------------------------------------

    def _source(self, data: Dataset, messages: Callable[[str], None]) -> _Source:
        reasoner = self._reasoner(data.graph)
        stepper = Stepper(
            reasoner, data, self.config.training, self.schedule, messages, optimizer=self.optimizer
        )
        return _Source(data, reasoner, stepper)

    def _judge(self, data: Dataset) -> "_Judge":
        reasoner = self._reasoner(data.graph)
        for source in self.sources:
            if source.data is data:  # fitted already
                reasoner.sampler.take(source.stepper.sampler.parameters())
                break
        else:
            reasoner.sampler.fit(reasoner.graph, self.config.training.seed)
        known = KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)
        return _Judge(data.name, data, reasoner, known.to(self.device))

    def _reasoner(self, graph: KnowledgeGraph) -> Reasoner:
        sampler = build_sampler(self.config.sampler, self.config.training.seed)
        return Reasoner(graph.to(self.device), sampler, self.predictor)

    def _check_stop(self) -> None:
        if self.should_stop():
            self._count_seconds()
            raise StopTraining

    def _count_seconds(self) -> None:
        now = self.budget.clock()
        self.state.seconds += now - self._counted
        self._counted = now

    def _keep(self) -> None:
        self._count_seconds()
        for observer in self.observers:
            observer.on_checkpoint(self)
        self._kept = self.budget.clock()


@dataclass(frozen=True)
class _Judge:
    """A data set whose validation split is asked."""

    name: str
    data: Dataset
    reasoner: Reasoner
    known: KnownFacts
