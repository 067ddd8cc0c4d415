"""Steps of an epoch: plain ones or, on a GPU, replayed as a CUDA graph.

A step samples the subgraphs of a batch of queries, computes scores and losses with the predictor,
and updates the parameters.
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
from oneshot.errors import InputError, OneshotError, is_out_of_memory
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.relation_graph import RelationGraph
from oneshot.reasoner.reasoner import Reasoner
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import takes_bfloat16
from oneshot.system.distributed import Team
from oneshot.training.average import ParameterAverage
from oneshot.training.cuda_graph import Prepared, RecordedStep, ahead, can_record, sizes_of
from oneshot.training.diagnosis import diverged
from oneshot.training.epoch import (
    Epoch,
    Part,
    QueryBatch,
    draw_epoch,
    hides_facts,
    mixed_seed,
    queries_per_epoch,
    sampled_for,
)
from oneshot.training.losses import Targets, find_targets, query_losses
from oneshot.training.sampler_workers import SamplerWorkers
from oneshot.training.schedule import Schedule

# Queries sampled together for several captured steps: enough to keep a GPU busy.
_SAMPLED_QUERIES = 1024
_SAMPLED_EDGES = 40_000_000

warn = logging.getLogger(__name__).warning
"""Default receiver of the messages of a training."""


class StepResult(NamedTuple):
    """The result of a step, or of several steps that were launched together.

    `queries`: number of queries of all processes. The rest is of this process: `own_queries`, the
    sum of their losses, and the number of sampled answers.
    """

    queries: int
    own_queries: int
    loss: float
    covered: float

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.own_queries, 1)


class Stepper:
    """Performs the steps of a training.

    `schedule`: gives the learning rate before each step. `messages`: called with a line when memory
    runs out. `network`: computes the scores instead of the predictor whose parameters are trained,
    for comparison; then no step is captured. `optimizer`: that of several steppers which train the
    same predictor; by default Adam with the options of the configuration.

    `workers`: processes that sample ahead, or None. `sampler`: that of the reasoner, with the
    training budget. `recorder`: replays steps on whole
    batches as a CUDA graph; None if that is not possible. `micro_batch`: number of queries
    computed together in a plain step; halved when memory runs out. `average`: the moving average of
    the parameters; None if the configuration asks for none.
    """

    def __init__(
        self,
        reasoner: Reasoner,
        data: Dataset,
        config: TrainingConfig,
        schedule: Schedule | None = None,
        messages: Callable[[str], None] = warn,
        network: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.config = config
        self.device = reasoner.device
        self._half = takes_bfloat16(self.device, config.precision)
        self.schedule = schedule or Schedule(config)
        self.messages = messages
        self.team = Team(self.device)
        self.graph = data.graph.to(self.device)
        self.seen = data.train_facts.to(self.device)
        self.sampler = reasoner.sampler
        if not self.sampler.parameters():
            self.sampler.fit(self.graph, config.seed)
        if config.sample_from == "train" and self.sampler.parameters():
            raise InputError(
                'training.sample_from = "train" would reveal the answers to the fitted sampler; '
                'use "observation"'
            )
        if config.entity_ratio is not None:
            self.sampler = self.sampler.with_entity_ratio(config.entity_ratio)
        self._hides = hides_facts(self.graph, self.sampler)
        self.workers = self._new_workers()
        self.predictor = reasoner.predictor
        self.network = self.predictor if network is None else network
        if self.team.size > 1:
            self.network = DistributedDataParallel(self.network)
        self.optimizer = optimizer or torch.optim.Adam(
            self.predictor.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.average = ParameterAverage(self.predictor, config.average) if config.average else None
        self.recorder: RecordedStep | None = None
        is_alone = self.team.size == 1 and network is None
        is_weighted = self.graph.weights is not None
        if is_alone and can_record(self.predictor, config, self.device, is_weighted):
            self.recorder = self.new_recorder()
        self.micro_batch = -(-config.batch_size // config.accumulate)
        self._relations: RelationGraph | None = None
        self._related: KnowledgeGraph | None = None

    def _new_workers(self) -> SamplerWorkers | None:
        """The processes that sample ahead, if the configuration asks for them."""
        if not self.config.workers:
            return None
        if self.team.size > 1:
            raise InputError("training.workers needs a training in a single process; set it to 0")
        near = self.graph.host or self.graph
        if near.device.type != "cpu":
            self.messages("training.workers has no effect: the graph is on the GPU, which samples")
            return None
        return SamplerWorkers(self.graph, self.sampler, self.config, self.step_size, self.messages)

    def close(self) -> None:
        """End the processes that sample ahead, and free the memory of recorded steps."""
        if self.workers is not None:
            self.workers.close()
        if self.recorder is not None:
            self.recorder.release()

    def new_recorder(self) -> RecordedStep:
        """A recorder of steps on whole batches."""
        return RecordedStep(self.predictor, self.config, self.config.batch_size, self._half)

    @property
    def step_size(self) -> int:
        """Number of queries per step, over all processes."""
        return self.config.batch_size * self.team.size

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.queries_per_epoch // self.step_size)

    @property
    def queries_per_epoch(self) -> int:
        return queries_per_epoch(self.config, self.graph.num_facts)

    def draw_epoch(self, number: int) -> Epoch:
        """The split of epoch `number`, counted from 1, for the steps of this training."""
        return draw_epoch(self.graph, self.config, number, self.step_size, self._hides)

    def steps(self, epoch: Epoch, asked: int = 0) -> Iterator[StepResult]:
        """Perform the steps of an epoch after its first `asked` queries, one or more at a time."""
        if self.recorder is not None:
            for result in self._replayed_steps(epoch, asked):
                asked += result.queries
                yield result
            # The captured gradients keep their memory; the steps below have their own.
            self.optimizer.zero_grad(set_to_none=True)
        for batch in epoch.batches(self.step_size, asked):
            yield self._step(epoch, batch)

    def set_learning_rate(self, epoch: int, step: int) -> None:
        """Set the optimizer to the learning rate of a step; epochs count from 1, steps from 0."""
        # At the middle of the step, so that no step has a factor of 0.
        factor = self.schedule.factor(epoch - 1 + (step + 0.5) / self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor

    def check_parameters(self, epoch: int) -> None:
        """Raise if a parameter is NaN or infinite, so that such parameters are never saved."""
        finite = [parameter.isfinite().all() for parameter in self.predictor.parameters()]
        if not bool(torch.stack(finite).all()):
            raise diverged(epoch, None)

    def _relate(self, observed: KnowledgeGraph) -> None:
        """Give the predictor the relations of the facts that the next queries may see."""
        if not self.predictor.is_relative:
            return
        counts = observed.relation_graph
        if self.recorder is not None:
            # Captured steps read the counts from the same memory in every epoch.
            if self._relations is None:
                self._relations = counts.copy()  # dense: see `can_record`
            elif observed is not self._related:
                self._relations.overwrite(counts)
            counts, self._related = self._relations, observed
        # Also if nothing has changed here: other trainings may share the predictor.
        self.predictor.relate(counts)

    # A plain step --------------------------------------------------------------------------------

    def _step(self, epoch: Epoch, batch: QueryBatch) -> StepResult:
        """One step of the optimizer on a batch, which is split among the processes."""
        self.set_learning_rate(epoch.number, batch.step)
        seed = self._seed(epoch, batch.step)
        _, observed, queries, answers = batch.share(self.team.rank, self.team.size)
        begin = batch.step * self.step_size
        numbers = torch.arange(begin, begin + len(batch.queries), device=queries.device)
        numbers = numbers[self.team.rank :: self.team.size]
        self._relate(observed)
        scale = self.team.size / len(batch.queries)  # DDP averages over the processes
        loss = covered = 0.0
        start = 0
        ready = self._ahead(epoch, begin, len(queries))
        torch.manual_seed(seed)
        while start < max(len(queries), 1):
            part = slice(start, start + self.micro_batch)
            more = start + self.micro_batch < len(queries)
            try:
                asked = QueryBatch(batch.step, observed, queries[part], answers[part])
                sampled = None
                if ready is not None:
                    sampled = ready.split(self.micro_batch)[start // self.micro_batch]
                one, hits = self._learn(epoch, asked, numbers[part], scale, more, sampled)
            except RuntimeError as error:
                self._shrink(error)
                self.optimizer.zero_grad(set_to_none=True)
                loss = covered = 0.0
                start = 0
                torch.manual_seed(seed)
                continue
            if not math.isfinite(one):
                raise diverged(epoch.number, batch.step)
            loss, covered = loss + one, covered + hits
            start += self.micro_batch
        self._optimize()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(len(batch.queries), len(queries), loss, covered)

    def _learn(
        self,
        epoch: Epoch,
        asked: QueryBatch,
        numbers: Tensor,
        scale: float,
        more: bool,
        ready: SubgraphBatch | None = None,
    ) -> tuple[float, float]:
        """Gradients of `scale` times the sum of the losses of some queries.

        `numbers` int64 [n]: those of the queries in the epoch. `ready`: their subgraphs, on any
        device, if they have been sampled. `more`: further queries of the same
        step follow. → (sum of the losses, covered queries)
        """
        _, observed, queries, answers = asked
        if ready is None:
            batch = self._sample(epoch, observed, queries, answers, numbers)
        else:
            batch = ready.to(self.device)
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
        """Halve the micro-batch after running out of memory, for the rest of the run."""
        if not is_out_of_memory(error):
            raise error
        if self.micro_batch == 1 or self.team.size > 1:
            more = ", set training.accumulate" if self.micro_batch > 1 else ""
            raise OneshotError(
                f"out of memory with a micro-batch of {self.micro_batch} queries: lower "
                f"sampler.entity_ratio or predictor.dim{more}"
            ) from error
        self.messages(
            f"out of memory with a micro-batch of {self.micro_batch} queries; training continues "
            f"with {-(-self.micro_batch // 2)}, with the same result"
        )
        self.micro_batch = -(-self.micro_batch // 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # Replayed steps ------------------------------------------------------------------------------

    def _replayed_steps(self, epoch: Epoch, asked: int) -> Iterator[StepResult]:
        """The steps on whole batches, replayed by the recorder; fewer if memory runs out."""
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
                self._relate(block[0].observed)
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
        """The result of several steps; `step`: the step after them."""
        losses, covered = (torch.stack(column).double() for column in zip(*launched, strict=True))
        loss, hits = torch.stack([losses.sum(), covered.sum()]).tolist()
        if not math.isfinite(loss):
            first = int((~losses.isfinite()).nonzero()[0])
            raise diverged(epoch.number, step - len(launched) + first)
        queries = len(launched) * self.config.batch_size
        return StepResult(queries, queries, loss, hits)

    def _stop_recording(self) -> None:
        """After running out of memory, continue with plain steps, which can be split."""
        self.recorder = None
        torch.cuda.empty_cache()
        self.messages("out of GPU memory; training continues without CUDA graphs")

    def _blocks(self, epoch: Epoch, asked: int) -> Iterator[list[Prepared]]:
        """The whole batches of an epoch, several sampled together, as many as fit into memory."""
        size, at_once = self.config.batch_size, 1
        for part in epoch.parts(asked):
            steps, done = len(part.queries) // size, 0
            while done < steps:
                rows = slice(done * size, min(done + at_once, steps) * size)
                asked_now, answers_now = part.queries[rows], part.answers[rows]
                begin = part.begin + rows.start
                numbers = torch.arange(begin, begin + len(asked_now), device=asked_now.device)
                ready = self._ahead(epoch, begin, len(asked_now))
                if ready is None:
                    whole = self._sample(epoch, part.observed, asked_now, answers_now, numbers)
                else:
                    whole = ready.to(self.device)
                batches = whole.split(size)
                answers = answers_now.split(size)
                yield [
                    Prepared(batch, self._targets(batch, mine), needed, part.observed)
                    for batch, mine, needed in zip(
                        batches, answers, sizes_of(self.predictor, whole, batches), strict=True
                    )
                ]
                done += len(batches)
                most = max(_SAMPLED_EDGES * len(batches) // max(whole.num_edges, 1), 1)
                at_once = min(most, max(_SAMPLED_QUERIES // size, 1))

    # Parts of both types of steps --------------------------------------------------------

    def _seed(self, epoch: Epoch, step: int) -> int:
        return mixed_seed(self.config.seed, epoch.number, step, self.team.rank)

    def _sample(
        self,
        epoch: Epoch,
        observed: KnowledgeGraph,
        queries: Tensor,
        answers: Tensor,
        numbers: Tensor,
    ) -> SubgraphBatch:
        """The subgraphs of some queries, `numbers` int64 [n] of the epoch."""
        part = Part(0, observed, queries, answers)
        return sampled_for(self.sampler, self.graph, self.config, epoch.number, part, numbers)

    def _ahead(self, epoch: Epoch, begin: int, count: int) -> SubgraphBatch | None:
        """The subgraphs of `count` queries from `begin` on that workers have sampled; or None."""
        if self.workers is None or not count:
            return None
        batches = []
        for first in range(begin, begin + count, self.step_size):
            batch = self.workers.take(epoch, first, min(first + self.step_size, begin + count))
            if batch is None:
                self.workers = None
                return None
            batches.append(batch)
        return SubgraphBatch.concatenate(batches)

    def _targets(self, batch: SubgraphBatch, answers: Tensor) -> Targets:
        return find_targets(self.config, batch, answers, self.seen, self.graph.num_entities)

    def _optimize(self) -> None:
        if self.config.clip:
            for part in self.predictor.parts():
                torch.nn.utils.clip_grad_norm_(part.parameters(), self.config.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
