"""Captured steps: forward and backward pass of a step as one CUDA graph, replayed per batch.

A step launches about a thousand small kernels. Launching them takes the CPU longer than running
them takes the GPU. Therefore the step is captured on buffers of a fixed capacity and then replayed
with a single launch. The queries of several steps are sampled together, on a separate stream, while
the GPU computes the previous steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.config import TrainingConfig
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.relation_graph import MAX_DENSE
from oneshot.predictor import Predictor
from oneshot.predictor.fused import can_prune, fused_plan, why_not_fused
from oneshot.subgraph import SubgraphBatch
from oneshot.training.losses import Targets, query_losses
from oneshot.training.padding import Capacity, PaddedBatch


@dataclass(frozen=True)
class Prepared:
    """A batch with the targets of its loss, its size, and the graph that it was sampled from."""

    batch: SubgraphBatch
    targets: Targets
    size: Capacity
    observed: KnowledgeGraph


def can_record(
    predictor: Predictor,
    config: TrainingConfig,
    device: torch.device,
    is_weighted: bool = False,
) -> bool:
    """Whether steps can be captured: on a GPU with fused kernels, whole batches and softmax.

    `is_weighted`: whether the facts have weights, for which there are no kernels.
    """
    some = next(predictor.parameters())
    return (
        device.type == "cuda"
        and config.accumulate == 1
        and not (predictor.is_relative and 2 * predictor.num_relations > MAX_DENSE)
        and config.loss == "softmax"
        and predictor.engine != "plain"
        and why_not_fused(predictor.config, device, some.dtype, is_weighted) is None
    )


class RecordedStep:
    """Losses and gradients of batches of `num_queries` queries, by a captured CUDA graph."""

    def __init__(
        self, predictor: Predictor, config: TrainingConfig, num_queries: int, half: bool
    ) -> None:
        self.predictor, self.config = predictor, config
        self.num_queries, self.half = num_queries, half
        self.device = next(predictor.parameters()).device
        self.capacity = self._nothing()
        self._gradients: list[Tensor | None] = []

    def reserve(self, block: list[Prepared]) -> None:
        """Capture the step again if one of these batches does not fit."""
        sizes = [prepared.size for prepared in block]
        if not all(map(self.capacity.holds, sizes)):
            self._record(self.capacity.grown(sizes), block[0])

    def play(self, prepared: Prepared) -> Tensor:
        """Set the gradients of the parameters for the mean loss. → the sum of the losses, float []

        The result is overwritten by the next step.
        """
        if not self.capacity.holds(prepared.size):
            self.reserve([prepared])
        self._fill(prepared)
        self._graph.replay()
        for parameter, gradient in zip(self.predictor.parameters(), self._gradients, strict=True):
            parameter.grad = gradient
        return self._loss

    def release(self) -> None:
        """Free the captured step and its memory; another step is captured again."""
        self.capacity = self._nothing()
        self._gradients = []
        for parameter in self.predictor.parameters():
            parameter.grad = None
        for name in ("_graph", "_padded", "_targets", "_loss"):
            self.__dict__.pop(name, None)
        torch.cuda.empty_cache()  # each capture has its own memory pool

    def _record(self, capacity: Capacity, example: Prepared) -> None:
        """Capture the step for batches up to a capacity."""
        self.release()
        self._graph = torch.cuda.CUDAGraph()
        self._padded = PaddedBatch(capacity, self.num_queries, self.device)
        zeros = torch.zeros(capacity.entities, dtype=torch.bool, device=self.device)
        self._targets = Targets(
            torch.zeros(self.num_queries, dtype=torch.long, device=self.device),
            zeros if example.targets.skip is not None else None,
            torch.zeros(self.num_queries, dtype=torch.long, device=self.device),
        )
        self._fill(example)
        # Warm-up on another stream: kernels are compiled, libraries allocate their workspaces.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._compute(capacity)
        torch.cuda.current_stream().wait_stream(stream)
        for parameter in self.predictor.parameters():
            parameter.grad = None
        try:
            with torch.cuda.graph(self._graph):
                self._loss = self._compute(capacity)
        except RuntimeError as error:
            # After an out-of-memory error, ending the capture may fail with another error.
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise error.__context__ from error
            raise
        self._gradients = [parameter.grad for parameter in self.predictor.parameters()]
        self.capacity = capacity

    def _nothing(self) -> Capacity:
        return Capacity(0, 0, (0,) * (self.predictor.config.num_layers + 1))

    def _fill(self, prepared: Prepared) -> None:
        self._padded.fill(prepared.batch)
        ours, theirs = self._targets, prepared.targets
        ours.place.copy_(theirs.place)
        ours.unsampled.copy_(theirs.unsampled)
        if ours.skip is not None and theirs.skip is not None:
            ours.skip[: len(theirs.skip)].copy_(theirs.skip)

    def _compute(self, capacity: Capacity) -> Tensor:
        batch = self._padded.batch
        plan = fused_plan(self.predictor, batch, True, capacity.reach)
        with torch.autocast("cuda", torch.bfloat16, self.half, cache_enabled=False):
            scores = self.predictor(batch, plan=plan)
        losses = query_losses(self.config, scores.float(), batch, self._targets)
        (losses.sum() / self.num_queries).backward()
        return losses.detach().sum()


def sizes_of(
    predictor: Predictor, whole: SubgraphBatch, parts: list[SubgraphBatch]
) -> list[Capacity]:
    """The sizes of the parts of a batch."""
    layers = predictor.config.num_layers
    if not can_prune(predictor.config):
        return [
            Capacity(part.num_entities, part.num_edges, (part.num_entities,) * (layers + 1))
            for part in parts
        ]
    from oneshot.predictor.kernels.plan import distances

    levels = layers + 2
    lengths = torch.tensor([part.num_entities for part in parts], device=whole.device)
    number = torch.arange(len(parts), device=whole.device).repeat_interleave(
        lengths, output_size=whole.num_entities
    )
    counts = torch.bincount(
        number * levels + distances(whole, layers).long(), minlength=len(parts) * levels
    )
    reach = counts.reshape(-1, levels).cumsum(1)[:, :-1].tolist()
    return [
        Capacity(part.num_entities, part.num_edges, tuple(rows))
        for part, rows in zip(parts, reach, strict=True)
    ]


def ahead(blocks: Iterator[list[Prepared]], device: torch.device) -> Iterator[list[Prepared]]:
    """The blocks, each prepared on a separate stream while the previous one is processed.

    When a block is yielded, the previous one has been processed.
    """
    stream = torch.cuda.Stream(device, priority=-1)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        block = next(blocks, None)
    while block is not None:
        torch.cuda.current_stream(device).wait_stream(stream)
        yield block
        with torch.cuda.stream(stream):
            following = next(blocks, None)
        # The memory of a block returns to its own stream, so the work on it must be finished.
        torch.cuda.current_stream(device).synchronize()
        block = following
