"""Training: the loop that makes a predictor out of facts.

Each epoch splits the training facts afresh into observation facts, which are seen, and query
facts, which are asked in both directions on the graph of the former. Everything random is drawn
from generators seeded by (seed, epoch, step), so that a run which was killed and resumed ends with
the same parameters as one that was not.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from oneshot.config import TrainingConfig
from oneshot.dataset import Dataset
from oneshot.distributed import Team
from oneshot.epoch import Epoch, draw_epoch, mixed_seed, queries_per_epoch, without_direct
from oneshot.errors import InputError, OneshotError
from oneshot.evaluation import evaluate
from oneshot.losses import Targets, find_targets, query_losses
from oneshot.ranking import KnownFacts
from oneshot.reasoner import Reasoner
from oneshot.recorded import Prepared, RecordedStep, ahead, can_record, sizes_of
from oneshot.schedule import Schedule
from oneshot.subgraph import SubgraphBatch

# What is sampled at once for several recorded steps: enough to keep a GPU busy.
_SAMPLED_QUERIES = 1024
_SAMPLED_EDGES = 40_000_000


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
    restore: Callable[["Trainer"], None] | None = None,
) -> TrainingState:
    """Train the reasoner's predictor on `data.train`; it ends with the best epoch's parameters.

    The best epoch is chosen by MRR on `data.valid`; the test split is never looked at. The
    history has one record an epoch. `restore` puts the trainer where an earlier training stood.
    """
    trainer = Trainer(reasoner, data, config or TrainingConfig(), observers or [])
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
    ) -> None:
        if data.graph.num_facts < 2:
            raise InputError("training needs at least two facts")
        if not len(data.valid):
            raise InputError("training needs a validation split, to choose the best epoch by")
        if data.graph.relations != reasoner.graph.relations:
            raise InputError("the data set has other relations than the reasoner's graph")
        self.reasoner, self.data, self.config, self.observers = reasoner, data, config, observers
        self.state = TrainingState()
        self.team = Team(reasoner.device)
        self.graph = data.graph.to(reasoner.device)
        self.known = KnownFacts(data.known, self.graph.num_entities, self.graph.num_relations)
        self.seen = KnownFacts(data.train, self.graph.num_entities, self.graph.num_relations)
        self.seen = self.seen.to(reasoner.device)
        self.sampler = reasoner.sampler
        if config.entity_ratio is not None:
            self.sampler = self.sampler.with_entity_ratio(config.entity_ratio)
        self.predictor = reasoner.predictor
        self.network: torch.nn.Module = self.predictor
        if self.team.size > 1:
            self.network = DistributedDataParallel(self.predictor)
        self.optimizer = torch.optim.Adam(
            self.predictor.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=reasoner.device.type == "cuda",
        )
        self.recorder: RecordedStep | None = None
        if self.team.size == 1 and can_record(self.predictor, config, reasoner.device):
            self.recorder = RecordedStep(self.predictor, config, config.batch_size, self._half)
        self.schedule = Schedule(config)
        self.micro_batch = -(-config.batch_size // config.accumulate)
        self.best = self._parameters()

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.queries_per_epoch // (self.config.batch_size * self.team.size))

    @property
    def queries_per_epoch(self) -> int:
        return queries_per_epoch(self.config, self.graph.num_facts)

    def run(self) -> TrainingState:
        """Train until all epochs are done or patience has run out."""
        for observer in self.observers:
            observer.started(self)
        device = self.reasoner.device
        # Dropout draws from the generator of torch, whose state is the caller's.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
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
        facts = draw_epoch(self.graph, self.config, epoch)
        asked = len(facts.queries)
        total = torch.zeros(2, dtype=torch.float64)
        self.predictor.train()
        for queries, ours, loss, covered in self.steps(facts, epoch):
            total += torch.tensor([loss, covered], dtype=torch.float64)
            for observer in self.observers:
                observer.stepped(queries, loss / max(ours, 1))
        total = self.team.sum(total)
        return float(total[0]) / asked, float(total[1]) / asked, asked

    def steps(self, facts: Epoch, epoch: int) -> Iterator[tuple[int, int, float, float]]:
        """All steps of an epoch, one or some at a time.

        → (queries of all processes, of this one, sum of its losses, number of covered ones)
        """
        size = self.config.batch_size * self.team.size
        done = 0
        if self.recorder is not None:
            for count, loss, covered in self._recorded_steps(facts, epoch):
                yield count * size, count * size, loss, covered
                done += count
            # The recorded gradients stay where they are; the steps below have their own.
            self.optimizer.zero_grad(set_to_none=True)
        for step in range(done, -(-len(facts.queries) // size)):
            self._set_rate(epoch, step)
            part = slice(step * size, (step + 1) * size)
            loss, covered, ours = self._step(facts, part, self._seed(epoch, step))
            yield len(facts.queries[part]), ours, loss, covered

    def _recorded_steps(self, facts: Epoch, epoch: int) -> Iterator[tuple[int, float, float]]:
        """The steps on whole batches, by the recorder; fewer if the memory runs out.

        → (steps, sum of their losses, number of covered queries)
        """
        assert self.recorder is not None
        launched: list[tuple[Tensor, Tensor]] = []
        step = 0
        for block in ahead(self._blocks(facts), self.reasoner.device):
            if launched:
                yield self._results(launched)
                launched = []
            try:
                self.recorder.reserve(block)
            except torch.OutOfMemoryError:
                self.recorder = None
                break
            for prepared in block:
                self._set_rate(epoch, step)
                torch.manual_seed(self._seed(epoch, step))
                loss = self.recorder.play(prepared).clone()
                self._optimize()
                launched.append((loss, (prepared.targets.place >= 0).sum()))
                step += 1
        if launched:
            yield self._results(launched)

    def _results(self, launched: list[tuple[Tensor, Tensor]]) -> tuple[int, float, float]:
        losses, covered = (torch.stack(column).double() for column in zip(*launched, strict=True))
        loss, hits = torch.stack([losses.sum(), covered.sum()]).tolist()
        _check_finite(loss)
        return len(launched), loss, hits

    def _blocks(self, facts: Epoch) -> Iterator[list[Prepared]]:
        """The whole batches of an epoch, some sampled at once, as many as memory is good for."""
        size = self.config.batch_size
        steps = len(facts.queries) // size
        at_once, done = 1, 0
        while done < steps:
            part = slice(done * size, min(done + at_once, steps) * size)
            whole = self._sample(facts, facts.queries[part], facts.answers[part])
            parts = whole.split(size)
            answers = facts.answers[part].split(size)
            yield [
                Prepared(batch, self._targets(batch, mine), needed)
                for batch, mine, needed in zip(
                    parts, answers, sizes_of(self.predictor, whole, parts), strict=True
                )
            ]
            done += len(parts)
            most = max(_SAMPLED_EDGES * len(parts) // max(whole.num_edges, 1), 1)
            at_once = min(most, max(_SAMPLED_QUERIES // size, 1))

    def _step(self, facts: Epoch, step: slice, seed: int) -> tuple[float, float, int]:
        """One step of the optimizer on some queries, of which each process has its share.

        → (sum of the losses, number of covered queries, number of queries), all of our share
        """
        asked = len(facts.queries[step])  # by all processes together
        rank, size = self.team.rank, self.team.size
        queries, answers = facts.queries[step][rank::size], facts.answers[step][rank::size]
        loss = covered = 0.0
        start = 0
        torch.manual_seed(seed)
        while start < max(len(queries), 1):
            part = slice(start, start + self.micro_batch)
            try:
                more = start + self.micro_batch < len(queries)
                scale = self.team.size / asked  # DDP takes the mean over the processes
                one, hits = self._backward(facts, queries[part], answers[part], scale, more)
            except RuntimeError as error:
                self._shrink(error)
                self.optimizer.zero_grad(set_to_none=True)
                loss = covered = 0.0
                start = 0
                torch.manual_seed(seed)
                continue
            loss, covered = loss + one, covered + hits
            start += self.micro_batch
        self._optimize()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, covered, len(queries)

    def _optimize(self) -> None:
        if self.config.clip:
            torch.nn.utils.clip_grad_norm_(self.predictor.parameters(), self.config.clip)
        self.optimizer.step()

    def _set_rate(self, epoch: int, step: int) -> None:
        # In the middle of the step, so that no step is wasted with a factor of 0.
        factor = self.schedule.factor(epoch - 1 + (step + 0.5) / self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor

    def _seed(self, epoch: int, step: int) -> int:
        return mixed_seed(self.config.seed, epoch, step, self.team.rank)

    def _sample(self, facts: Epoch, queries: Tensor, answers: Tensor) -> SubgraphBatch:
        sampled = self.graph if self.config.sample_from == "train" else facts.observed
        batch = self.sampler.sample(sampled, queries, edges_from=facts.observed)
        if self.config.hide_direct:
            batch = without_direct(batch, answers, self.graph.num_relations)
        return batch

    def _targets(self, batch: SubgraphBatch, answers: Tensor) -> Targets:
        return find_targets(self.config, batch, answers, self.seen, self.graph.num_entities)

    def _backward(
        self, facts: Epoch, queries: Tensor, answers: Tensor, scale: float, more: bool
    ) -> tuple[float, float]:
        """Gradients of `scale` times the sum of the losses of some queries.

        `more`: the step goes on with further queries. → (sum of the losses, how many are covered)
        """
        batch = self._sample(facts, queries, answers)
        targets = self._targets(batch, answers)
        sync: AbstractContextManager[None] = nullcontext()
        if more and isinstance(self.network, DistributedDataParallel):
            sync = self.network.no_sync()
        with sync:
            with torch.autocast(self.reasoner.device.type, torch.bfloat16, self._half):
                scores = self.network(batch)
            losses = query_losses(self.config, scores.float(), batch, targets)
            (losses.sum() * scale).backward()
        loss = float(losses.detach().sum())
        _check_finite(loss)
        return loss, float((targets.place >= 0).sum())

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
        if not no_memory:
            raise error
        if self.micro_batch == 1 or self.team.size > 1:
            more = ", set training.accumulate" if self.micro_batch > 1 else ""
            raise OneshotError(
                f"the memory is too small for {self.micro_batch} queries at once: lower "
                f"sampler.entity_ratio or predictor.dim{more}"
            ) from error
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


def _check_finite(loss: float) -> None:
    if not math.isfinite(loss):
        raise OneshotError(
            "the loss is not finite any more: lower training.learning_rate, or set "
            "training.clip (for example 1.0)"
        )
