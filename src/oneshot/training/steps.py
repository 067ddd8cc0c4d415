"""Steps of an epoch: plain ones or, on a GPU, replayed as a CUDA graph.

A step samples the subgraphs of some queries, lets the predictor score them, and moves the
parameters down the gradient of the loss.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oneshot.config import TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.errors import DivergedError, InputError, OneshotError, is_out_of_memory
from oneshot.ranking import KnownFacts
from oneshot.reasoner.reasoner import Reasoner
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import takes_bfloat16
from oneshot.system.distributed import Team
from oneshot.training.cuda_graph import Prepared, RecordedStep, ahead, can_record, sizes_of
from oneshot.training.epoch import Epoch, QueryBatch, mixed_seed, queries_per_epoch, without_direct
from oneshot.training.losses import Targets, find_targets, query_losses
from oneshot.training.schedule import Schedule

# What is sampled at once for several recorded steps: enough to keep a GPU busy.
_SAMPLED_QUERIES = 1024
_SAMPLED_EDGES = 40_000_000

warn = logging.getLogger(__name__).warning
"""Where the messages of a training go unless somebody takes them."""


class StepResult(NamedTuple):
    """What came of a step, or of some that were launched together.

    `queries`: asked by all processes; the rest is of this process: `own_queries`, the sum of their
    losses, and how many of their answers were sampled.
    """

    queries: int
    own_queries: int
    loss: float
    covered: float

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.own_queries, 1)


class Stepper:
    """Makes the steps of a training.

    `schedule`: where the learning rate is read from, before each step. `messages`: called when the
    memory runs out, with how the training goes on. `network`: what computes the scores instead of
    the predictor whose parameters are trained, for comparison; then nothing is recorded.

    `sampler`: that of the reasoner, with the budget for training. `recorder`: what replays steps
    on whole batches as a CUDA graph, None where that cannot be. `micro_batch`: the queries that are
    computed at once in a plain step; halved when the memory runs out.
    """

    def __init__(
        self,
        reasoner: Reasoner,
        data: Dataset,
        config: TrainingConfig,
        schedule: Schedule | None = None,
        messages: Callable[[str], None] = warn,
        network: nn.Module | None = None,
    ) -> None:
        self.config = config
        self.device = reasoner.device
        self._half = takes_bfloat16(self.device, config.precision)
        self.schedule = schedule or Schedule(config)
        self.messages = messages
        self.team = Team(self.device)
        self.graph = data.graph.to(self.device)
        self.seen = KnownFacts(data.train, self.graph.num_entities, self.graph.num_relations)
        self.seen = self.seen.to(self.device)
        self.sampler = reasoner.sampler
        if not self.sampler.parameters():
            self.sampler.fit(self.graph, config.seed)
        if config.sample_from == "train" and self.sampler.parameters():
            raise InputError(
                'training.sample_from = "train" would show the fitted sampler what is asked; '
                'leave it at "observation"'
            )
        if config.entity_ratio is not None:
            self.sampler = self.sampler.with_entity_ratio(config.entity_ratio)
        self.predictor = reasoner.predictor
        self.network = self.predictor if network is None else network
        if self.team.size > 1:
            self.network = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.Adam(
            self.predictor.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.recorder: RecordedStep | None = None
        is_alone = self.team.size == 1 and network is None
        if is_alone and can_record(self.predictor, config, self.device):
            self.recorder = RecordedStep(self.predictor, config, config.batch_size, self._half)
        self.micro_batch = -(-config.batch_size // config.accumulate)

    @property
    def step_size(self) -> int:
        """Queries of a step, over all processes."""
        return self.config.batch_size * self.team.size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.queries_per_epoch // self.step_size)

    @property
    def queries_per_epoch(self) -> int:
        return queries_per_epoch(self.config, self.graph.num_facts)

    def steps(self, epoch: Epoch, asked: int = 0) -> Iterator[StepResult]:
        """Make the steps of an epoch, but for its first `asked` queries, one or some at a time."""
        if self.recorder is not None:
            for result in self._replayed_steps(epoch, asked):
                asked += result.queries
                yield result
            # The recorded gradients stay where they are; the steps below have their own.
            self.optimizer.zero_grad(set_to_none=True)
        for batch in epoch.batches(self.step_size, asked):
            yield self._step(epoch, batch)

    def set_learning_rate(self, epoch: int, step: int) -> None:
        """Set the optimizer to the learning rate of a step; epochs count from 1, steps from 0."""
        # In the middle of the step, so that no step is wasted with a factor of 0.
        factor = self.schedule.factor(epoch - 1 + (step + 0.5) / self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor

    def check_parameters(self, epoch: int) -> None:
        """Raise if a parameter is no number any more: such must not be kept."""
        finite = [parameter.isfinite().all() for parameter in self.predictor.parameters()]
        if not bool(torch.stack(finite).all()):
            raise _diverged(epoch, None)

    # A plain step --------------------------------------------------------------------------------

    def _step(self, epoch: Epoch, batch: QueryBatch) -> StepResult:
        """One step of the optimizer on a batch, of which each process has its share."""
        self.set_learning_rate(epoch.number, batch.step)
        seed = self._seed(epoch, batch.step)
        _, queries, answers = batch.share(self.team.rank, self.team.size)
        scale = self.team.size / len(batch.queries)  # DDP takes the mean over the processes
        loss = covered = 0.0
        start = 0
        torch.manual_seed(seed)
        while start < max(len(queries), 1):
            part = slice(start, start + self.micro_batch)
            more = start + self.micro_batch < len(queries)
            try:
                one, hits = self._backward(epoch, queries[part], answers[part], scale, more)
            except RuntimeError as error:
                self._shrink(error)
                self.optimizer.zero_grad(set_to_none=True)
                loss = covered = 0.0
                start = 0
                torch.manual_seed(seed)
                continue
            if not math.isfinite(one):
                raise _diverged(epoch.number, batch.step)
            loss, covered = loss + one, covered + hits
            start += self.micro_batch
        self._optimize()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(len(batch.queries), len(queries), loss, covered)

    def _backward(
        self, epoch: Epoch, queries: Tensor, answers: Tensor, scale: float, more: bool
    ) -> tuple[float, float]:
        """Gradients of `scale` times the sum of the losses of some queries.

        `more`: the step goes on with further queries. → (sum of the losses, how many are covered)
        """
        batch = self._sample(epoch, queries, answers)
        targets = self._targets(batch, answers)
        sync: AbstractContextManager[None] = nullcontext()
        if more and isinstance(self.network, DistributedDataParallel):
            sync = self.network.no_sync()
        with sync:
            with torch.autocast(self.device.type, torch.bfloat16, self._half):
                scores = self.network(batch)
            losses = query_losses(self.config, scores.float(), batch, targets)
            (losses.sum() * scale).backward()
        return float(losses.detach().sum()), float((targets.place >= 0).sum())

    def _shrink(self, error: RuntimeError) -> None:
        """After running out of memory: half as many queries at once, for the rest of the run."""
        if not is_out_of_memory(error):
            raise error
        if self.micro_batch == 1 or self.team.size > 1:
            more = ", set training.accumulate" if self.micro_batch > 1 else ""
            raise OneshotError(
                f"the memory is too small for {self.micro_batch} queries at once: lower "
                f"sampler.entity_ratio or predictor.dim{more}"
            ) from error
        self.messages(
            f"the memory ran out with {self.micro_batch} queries at once; training goes on with "
            f"{-(-self.micro_batch // 2)} at once, to the same result"
        )
        self.micro_batch = -(-self.micro_batch // 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # Replayed steps ------------------------------------------------------------------------------

    def _replayed_steps(self, epoch: Epoch, asked: int) -> Iterator[StepResult]:
        """The steps on whole batches, by the recorder; fewer if the memory runs out."""
        launched: list[tuple[Tensor, Tensor]] = []
        step = asked // self.config.batch_size
        blocks = ahead(self._blocks(epoch, asked), self.device)
        while self.recorder is not None:
            try:
                block = next(blocks, None)
            except torch.OutOfMemoryError:
                block = None
                self._stop_recording()
            if launched:
                yield self._results(launched, epoch, step)
                launched = []
            if block is None:
                break
            try:
                self.recorder.reserve(block)
                for prepared in block:
                    self.set_learning_rate(epoch.number, step)
                    torch.manual_seed(self._seed(epoch, step))
                    loss = self.recorder.play(prepared).clone()
                    self._optimize()
                    launched.append((loss, (prepared.targets.place >= 0).sum()))
                    step += 1
            except torch.OutOfMemoryError:
                self._stop_recording()
        if launched:
            yield self._results(launched, epoch, step)

    def _results(
        self, launched: list[tuple[Tensor, Tensor]], epoch: Epoch, step: int
    ) -> StepResult:
        """What came of some steps, `step` being the one after them."""
        losses, covered = (torch.stack(column).double() for column in zip(*launched, strict=True))
        loss, hits = torch.stack([losses.sum(), covered.sum()]).tolist()
        if not math.isfinite(loss):
            first = int((~losses.isfinite()).nonzero()[0])
            raise _diverged(epoch.number, step - len(launched) + first)
        queries = len(launched) * self.config.batch_size
        return StepResult(queries, queries, loss, hits)

    def _stop_recording(self) -> None:
        """After running out of memory: go on with steps that can be made smaller."""
        self.recorder = None
        torch.cuda.empty_cache()
        self.messages("the memory of the GPU ran out; training goes on with steps one by one")

    def _blocks(self, epoch: Epoch, asked: int) -> Iterator[list[Prepared]]:
        """The whole batches of an epoch, some sampled at once, as many as memory is good for."""
        size = self.config.batch_size
        steps = (len(epoch.queries) - asked) // size
        at_once, done = 1, 0
        while done < steps:
            part = slice(asked + done * size, asked + min(done + at_once, steps) * size)
            whole = self._sample(epoch, epoch.queries[part], epoch.answers[part])
            parts = whole.split(size)
            answers = epoch.answers[part].split(size)
            yield [
                Prepared(batch, self._targets(batch, mine), needed)
                for batch, mine, needed in zip(
                    parts, answers, sizes_of(self.predictor, whole, parts), strict=True
                )
            ]
            done += len(parts)
            most = max(_SAMPLED_EDGES * len(parts) // max(whole.num_edges, 1), 1)
            at_once = min(most, max(_SAMPLED_QUERIES // size, 1))

    # What both kinds of steps are made of --------------------------------------------------------

    def _seed(self, epoch: Epoch, step: int) -> int:
        return mixed_seed(self.config.seed, epoch.number, step, self.team.rank)

    def _sample(self, epoch: Epoch, queries: Tensor, answers: Tensor) -> SubgraphBatch:
        sampled = self.graph if self.config.sample_from == "train" else epoch.observed
        batch = self.sampler.sample(sampled, queries, edges_from=epoch.observed)
        if self.config.hide_direct:
            batch = without_direct(batch, answers, self.graph.num_relations)
        return batch

    def _targets(self, batch: SubgraphBatch, answers: Tensor) -> Targets:
        return find_targets(self.config, batch, answers, self.seen, self.graph.num_entities)

    def _optimize(self) -> None:
        if self.config.clip:
            torch.nn.utils.clip_grad_norm_(self.predictor.parameters(), self.config.clip)
        self.optimizer.step()


def _diverged(epoch: int, step: int | None) -> DivergedError:
    """What is said of a training whose loss is no number any more; steps are counted from 0."""
    place = f"epoch {epoch}" + ("" if step is None else f", step {step + 1}")
    what = "the predictor" if step is None else "the loss"
    return DivergedError(
        f"{what} is not finite any more ({place}): lower training.learning_rate, or set "
        "training.clip (for example 1.0)"
    )
