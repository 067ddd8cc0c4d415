"""Stepping: the steps of an epoch, one by one or, on a GPU, recorded and played.

A step samples the subgraphs of some queries, lets the predictor score them, and moves the
parameters down the gradient of the loss.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
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
from oneshot.training.epoch import Epoch, mixed_seed, queries_per_epoch, without_direct
from oneshot.training.losses import Targets, find_targets, query_losses
from oneshot.training.schedule import Schedule

# What is sampled at once for several recorded steps: enough to keep a GPU busy.
_SAMPLED_QUERIES = 1024
_SAMPLED_EDGES = 40_000_000


log = logging.getLogger(__name__)


class Stepper:
    """Makes the steps of a training; what a trainer does within an epoch.

    `network`: the predictor, or what shares its gradients among processes. `micro_batch`: the
    queries that are computed at once; halved when the memory runs out. `messages` is told so.
    """

    def __init__(self, reasoner: Reasoner, data: Dataset, config: TrainingConfig) -> None:
        self.reasoner, self.config = reasoner, config
        self._half = takes_bfloat16(reasoner.device, config.precision)
        self.team = Team(reasoner.device)
        self.graph = data.graph.to(reasoner.device)
        self.seen = KnownFacts(data.train, self.graph.num_entities, self.graph.num_relations)
        self.seen = self.seen.to(reasoner.device)
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
        self.messages: Callable[[str], None] = log.warning
        self.micro_batch = -(-config.batch_size // config.accumulate)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.queries_per_epoch // (self.config.batch_size * self.team.size))

    @property
    def queries_per_epoch(self) -> int:
        return queries_per_epoch(self.config, self.graph.num_facts)

    def steps(
        self, facts: Epoch, epoch: int, asked: int = 0
    ) -> Iterator[tuple[int, int, float, float]]:
        """The steps of an epoch, one or some at a time, but for the first `asked` queries.

        → (queries of all processes, of this one, sum of its losses, number of covered ones)
        """
        size = self.config.batch_size * self.team.size
        if self.recorder is not None:
            for count, loss, covered in self._recorded_steps(facts, epoch, asked):
                asked += count * size
                yield count * size, count * size, loss, covered
            # The recorded gradients stay where they are; the steps below have their own.
            self.optimizer.zero_grad(set_to_none=True)
        for start in range(asked, len(facts.queries), size):
            step, part = start // size, slice(start, start + size)
            self._begin_step(epoch, step)
            loss, covered, ours = self._step(facts, part, self._seed(epoch, step))
            yield len(facts.queries[part]), ours, loss, covered

    def _recorded_steps(
        self, facts: Epoch, epoch: int, asked: int
    ) -> Iterator[tuple[int, float, float]]:
        """The steps on whole batches, by the recorder; fewer if the memory runs out.

        → (steps, sum of their losses, number of covered queries)
        """
        launched: list[tuple[Tensor, Tensor]] = []
        step = asked // self.config.batch_size
        blocks = ahead(self._blocks(facts, asked), self.reasoner.device)
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
                    self._begin_step(epoch, step)
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
        self, launched: list[tuple[Tensor, Tensor]], epoch: int, step: int
    ) -> tuple[int, float, float]:
        """What came of some steps, `step` being the one after them."""
        losses, covered = (torch.stack(column).double() for column in zip(*launched, strict=True))
        loss, hits = torch.stack([losses.sum(), covered.sum()]).tolist()
        if not math.isfinite(loss):
            first = int((~losses.isfinite()).nonzero()[0])
            raise _diverged(epoch, step - len(launched) + first)
        return len(launched), loss, hits

    def _stop_recording(self) -> None:
        """After running out of memory: go on with steps that can be made smaller."""
        self.recorder = None
        torch.cuda.empty_cache()
        self.messages("the memory of the GPU ran out; training goes on with steps one by one")

    def _blocks(self, facts: Epoch, asked: int) -> Iterator[list[Prepared]]:
        """The whole batches of an epoch, some sampled at once, as many as memory is good for."""
        size = self.config.batch_size
        steps = (len(facts.queries) - asked) // size
        at_once, done = 1, 0
        while done < steps:
            part = slice(asked + done * size, asked + min(done + at_once, steps) * size)
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

    def _begin_step(self, epoch: int, step: int) -> None:
        self._place = epoch, step
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
        if not math.isfinite(loss):
            raise _diverged(*self._place)
        return loss, float((targets.place >= 0).sum())

    def check_parameters(self, epoch: int) -> None:
        """Raise if a parameter is no number any more: such must not be kept."""
        finite = [parameter.isfinite().all() for parameter in self.predictor.parameters()]
        if not bool(torch.stack(finite).all()):
            raise _diverged(epoch, None)

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
        if self.reasoner.device.type == "cuda":
            torch.cuda.empty_cache()


def _diverged(epoch: int, step: int | None) -> DivergedError:
    """What is said of a training whose loss is no number any more; steps are counted from 0."""
    place = f"epoch {epoch}" + ("" if step is None else f", step {step + 1}")
    what = "the predictor" if step is None else "the loss"
    return DivergedError(
        f"{what} is not finite any more ({place}): lower training.learning_rate, or set "
        "training.clip (for example 1.0)"
    )
