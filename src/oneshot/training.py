"""Training: the loop that makes a predictor out of facts.

Each epoch splits the training facts afresh into observation facts, which are seen, and query
facts, which are asked in both directions on the graph of the former. Everything random is drawn
from generators seeded by (seed, epoch, step), so that a run which was killed and resumed ends with
the same parameters as one that was not.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from oneshot.config import TrainingConfig
from oneshot.datasets import Dataset, both_directions
from oneshot.distributed import Team
from oneshot.errors import InputError, OneshotError
from oneshot.evaluation import evaluate
from oneshot.graph import KnowledgeGraph
from oneshot.losses import bce_loss, softmax_loss
from oneshot.ranking import KnownFacts
from oneshot.reasoner import Reasoner
from oneshot.schedule import Schedule
from oneshot.subgraph import SubgraphBatch


@dataclass
class TrainingState:
    """Where a training stands; what a checkpoint holds beside tensors."""

    epoch: int = 0
    best_mrr: float = -1.0
    best_epoch: int = 0
    bad_validations: int = 0
    seconds: float = 0.0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


class Observer(Protocol):
    """What watches a training: the progress display, the run directory."""

    def started(self, trainer: "Trainer") -> None: ...
    def stepped(self, queries: int, loss: float) -> None: ...
    def validating(self, queries: int) -> None: ...
    def epoch_done(self, trainer: "Trainer", record: dict[str, Any], is_best: bool) -> None: ...


def fit(
    reasoner: Reasoner,
    data: Dataset,
    config: TrainingConfig | None = None,
    observers: "list[Observer] | None" = None,
    state: TrainingState | None = None,
    restore: Callable[["Trainer"], None] | None = None,
) -> TrainingState:
    """Train the reasoner's predictor on `data.train`; it ends with the best epoch's parameters.

    The best epoch is chosen by MRR on `data.valid`; the test split is never looked at. The
    history has one record an epoch.
    """
    trainer = Trainer(reasoner, data, config or TrainingConfig(), observers or [], state)
    if restore is not None:
        restore(trainer)
    return trainer.run()


class Trainer:
    """One training, epoch by epoch."""

    def __init__(
        self,
        reasoner: Reasoner,
        data: Dataset,
        config: TrainingConfig,
        observers: list[Observer],
        state: TrainingState | None = None,
    ) -> None:
        if data.graph.num_facts < 2:
            raise InputError("training needs at least two facts")
        if not len(data.valid):
            raise InputError("training needs a validation split, to choose the best epoch by")
        self.reasoner, self.data, self.config, self.observers = reasoner, data, config, observers
        self.state = state or TrainingState()
        self.team = Team()
        self.graph = data.graph.to(reasoner.device)
        self.known = KnownFacts(data.known, self.graph.num_entities, self.graph.num_relations)
        self.seen = KnownFacts(data.train, self.graph.num_entities, self.graph.num_relations)
        self.seen = self.seen.to(reasoner.device)
        self.predictor = reasoner.predictor
        self.network: torch.nn.Module = self.predictor
        if self.team.size > 1:
            self.network = DistributedDataParallel(self.predictor)
        self.optimizer = torch.optim.Adam(
            self.predictor.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.schedule = Schedule(config)
        self.micro_batch = -(-config.batch_size // config.accumulate)
        self.best = self._parameters()

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.queries_per_epoch // (self.config.batch_size * self.team.size))

    @property
    def queries_per_epoch(self) -> int:
        facts = self.graph.num_facts - self._num_observed
        return 2 * max(1, int(self.config.query_share * facts))

    @property
    def _num_observed(self) -> int:
        share = int(self.config.fact_ratio * self.graph.num_facts)
        return min(max(share, 1), self.graph.num_facts - 1)

    def run(self) -> TrainingState:
        """Train until all epochs are done or patience has run out."""
        for observer in self.observers:
            observer.started(self)
        while not self.state.finished:
            self.run_epoch()
        self.predictor.load_state_dict(self.best)
        return self.state

    def run_epoch(self) -> None:
        """Train one epoch, validate, and tell the observers."""
        state, config = self.state, self.config
        started = time.perf_counter()
        state.epoch += 1
        loss, covered, asked = self._train_epoch(state.epoch)
        trained = time.perf_counter()
        last = state.epoch >= config.epochs
        record: dict[str, Any] = {
            "epoch": state.epoch,
            "loss": loss,
            "covered": covered,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "queries_per_second": asked / (trained - started),
        }
        is_best = False
        if last or state.epoch % config.valid_every == 0:
            mrr = self._validate(record)
            is_best = mrr > state.best_mrr
            state.bad_validations = 0 if is_best else state.bad_validations + 1
            self.schedule.validated(is_best)
            if is_best:
                state.best_mrr, state.best_epoch = mrr, state.epoch
                self.best = self._parameters()
        state.finished = last or 0 < config.patience <= state.bad_validations
        state.seconds += time.perf_counter() - started
        record["seconds"] = time.perf_counter() - started
        state.history.append(record)
        for observer in self.observers:
            observer.epoch_done(self, record, is_best)

    def _train_epoch(self, epoch: int) -> tuple[float, float, int]:
        """→ (mean loss of a query, share of queries whose answer was sampled, queries asked)"""
        observed, queries, answers = self._split(epoch)
        size = self.config.batch_size * self.team.size
        total = torch.zeros(2, dtype=torch.float64)
        self.predictor.train()
        steps = self.steps_per_epoch
        for step in range(steps):
            torch.manual_seed(mixed_seed(self.config.seed, epoch, step, self.team.rank))
            factor = self.schedule.factor(epoch - 1 + (step + 1) / steps)
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.learning_rate * factor
            part = slice(step * size, (step + 1) * size)
            loss, covered = self._step(observed, queries[part], answers[part], step + 1 == steps)
            total += torch.tensor([loss, covered], dtype=torch.float64)
            for observer in self.observers:
                observer.stepped(len(queries[part]), loss / max(len(queries[part]), 1))
        total = self.team.sum(total)
        return float(total[0]) / len(queries), float(total[1]) / len(queries), len(queries)

    def _split(self, epoch: int) -> tuple[KnowledgeGraph, Tensor, Tensor]:
        """The observation graph, and the queries [m, 2] and answers [m] of an epoch."""
        generator = torch.Generator().manual_seed(mixed_seed(self.config.seed, epoch))
        order = torch.randperm(self.graph.num_facts, generator=generator)
        mask = torch.zeros(self.graph.num_facts, dtype=torch.bool)
        mask[order[: self._num_observed]] = True
        asked = order[self._num_observed :][: self.queries_per_epoch // 2]
        facts = self.graph.facts[asked.to(self.graph.device)].long()
        queries, answers = both_directions(facts, self.graph.num_relations)
        mixed = torch.randperm(len(queries), generator=generator).to(self.graph.device)
        return self.graph.subset(mask), queries[mixed], answers[mixed]

    def _step(
        self, observed: KnowledgeGraph, queries: Tensor, answers: Tensor, is_last: bool
    ) -> tuple[float, float]:
        """One step of the optimizer. → (sum of the losses, number of covered queries), ours"""
        asked = len(queries)  # by all processes together
        rank, size = self.team.rank, self.team.size
        queries, answers = queries[rank::size], answers[rank::size]
        loss = covered = 0.0
        start = 0
        while start < max(len(queries), 1):
            part = slice(start, start + self.micro_batch)
            try:
                more = start + self.micro_batch < len(queries)
                one, hits = self._backward(observed, queries[part], answers[part], asked, more)
            except RuntimeError as error:
                self._shrink(error)
                self.optimizer.zero_grad(set_to_none=True)
                loss = covered = 0.0
                start = 0
                continue
            loss, covered = loss + one, covered + hits
            start += self.micro_batch
        if self.config.clip:
            torch.nn.utils.clip_grad_norm_(self.predictor.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, covered

    def _backward(
        self, observed: KnowledgeGraph, queries: Tensor, answers: Tensor, asked: int, more: bool
    ) -> tuple[float, float]:
        """Gradients of some queries. → (sum of their losses, how many are covered)"""
        sampled = self.graph if self.config.sample_from == "train" else observed
        batch = self.reasoner.sampler.sample(sampled, queries, edges_from=observed)
        sync: AbstractContextManager[None] = nullcontext()
        if more and isinstance(self.network, DistributedDataParallel):
            sync = self.network.no_sync()
        with sync:
            with torch.autocast(self.reasoner.device.type, torch.bfloat16, self._half):
                scores = self.network(batch)
            losses, covered = self._losses(scores.float(), batch, answers)
            # The mean over all queries of the step; DDP averages over the processes.
            (losses.sum() * (self.team.size / asked)).backward()
        loss = float(losses.detach().sum())
        if not torch.isfinite(losses.detach()).all():
            raise OneshotError(
                "the loss is not finite any more: lower training.learning_rate, or set "
                "training.clip (for example 1.0)"
            )
        return loss, covered

    def _losses(
        self, scores: Tensor, batch: SubgraphBatch, answers: Tensor
    ) -> tuple[Tensor, float]:
        """The loss of each query [n], and the number of those whose answer was sampled."""
        place = batch.find(answers)
        skip = None
        if self.config.mask_known:
            row, entity = self.seen.answers(batch.queries)
            other = entity != answers[row]
            at = batch.find_pairs(row[other], entity[other])
            skip = torch.zeros(batch.num_entities, dtype=torch.bool, device=batch.device)
            skip[at[at >= 0]] = True
        covered = float((place >= 0).sum())
        if self.config.loss == "bce":
            return bce_loss(scores, batch, place, skip), covered
        unsampled = None
        if self.config.softmax_over == "all":
            sampled = torch.bincount(batch.entity_query, minlength=batch.num_queries)
            unsampled = self.graph.num_entities - sampled
        return softmax_loss(scores, batch, place, skip, unsampled), covered

    @property
    def _half(self) -> bool:
        wanted = self.config.precision
        cuda = self.reasoner.device.type == "cuda"
        return wanted == "bfloat16" or (
            wanted == "auto" and cuda and torch.cuda.is_bf16_supported()
        )

    def _shrink(self, error: RuntimeError) -> None:
        """After running out of memory: half as many queries at once, for the rest of the run."""
        no_memory = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not no_memory or self.micro_batch == 1 or self.team.size > 1:
            raise error
        self.micro_batch = -(-self.micro_batch // 2)
        if self.reasoner.device.type == "cuda":
            torch.cuda.empty_cache()

    def _validate(self, record: dict[str, Any]) -> float:
        """MRR on the validation split, with the whole training graph to look at."""
        limit = self.config.valid_limit or None
        asked = min(2 * len(self.data.valid), limit or 2 * len(self.data.valid))
        for observer in self.observers:
            observer.validating(asked)
        report = None
        if self.team.rank == 0:
            report = evaluate(
                self.reasoner,
                self.data.valid,
                self.known,
                batch_size=self.config.valid_batch_size or self.config.batch_size,
                limit=limit,
                seed=self.config.seed,
            )
            record["valid"] = report.metrics.as_dict() | {"coverage": report.coverage}
        return self.team.share(0.0 if report is None else report.mrr)

    def _parameters(self) -> dict[str, Tensor]:
        return {name: t.detach().clone() for name, t in self.predictor.state_dict().items()}


def mixed_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers, so that (1, 2) and (2, 1) differ."""
    value = 0x9E3779B97F4A7C15
    for part in parts:
        value = (value ^ (part + 0x2545F4914F6CDD1D)) * 0xBF58476D1CE4E5B9 % (1 << 64)
        value ^= value >> 29
    return value >> 1
