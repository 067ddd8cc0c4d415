"""Benchmark of the predictor: fused kernels, plain operations, and the usual implementation."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from oneshot.config import Config
from oneshot.data.dataset import Dataset, both_directions
from oneshot.errors import InputError
from oneshot.evaluation.evaluate import evaluate
from oneshot.experiments.bench.measure import hardware, measure, median_seconds
from oneshot.predictor import Predictor
from oneshot.predictor.fused import why_not_fused
from oneshot.predictor.layer import ACTIVATIONS, Gate, Layer
from oneshot.predictor.messages import RedGNNMessage
from oneshot.ranking import KnownFacts, filtered_ranks
from oneshot.reasoner.build import build_reasoner, build_sampler
from oneshot.reasoner.reasoner import Reasoner
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import fast_products, takes_bfloat16
from oneshot.training.cuda_graph import Prepared, RecordedStep, can_record, sizes_of
from oneshot.training.epoch import draw_epoch
from oneshot.training.losses import find_targets, query_losses
from oneshot.training.steps import Stepper


class EdgeByEdge(nn.Module):
    """The predictor as usual message passing, with the same parameters.

    Every edge has its own copy of the vectors of its source, relation and query. They are
    multiplied and summed at the targets by an indexed addition; the gate is cuDNN's GRU. The
    official code works this way. Only for message "redgnn" with sums and products, as there.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        config = predictor.config
        usual = (config.message, config.compose, config.aggregate) == ("redgnn", "multiply", "sum")
        if not (usual and config.gate and config.gate_mask == "nonzero"):
            raise InputError(
                'only for message "redgnn", compose "multiply", aggregate "sum" and a gate with '
                'mask "nonzero"'
            )
        self.predictor = predictor
        self.activation = ACTIVATIONS[config.activation]()
        self.gru = nn.GRU(config.dim, config.dim)
        cell = cast(Gate, predictor.gate).cell
        with torch.no_grad():
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(self.gru, f"{name}_l0").copy_(getattr(cell, name))

    def forward(self, batch: SubgraphBatch) -> Tensor:
        """Scores of the sampled entities, [N]."""
        predictor = self.predictor
        config = predictor.config
        source, relation, target = batch.edges
        query = predictor.query(batch.queries[:, 1])
        state = torch.zeros(batch.num_entities, config.dim, device=batch.device)
        state[batch.source] = predictor.start(query)
        states, gated = [state], torch.zeros_like(state)[None]
        for module in predictor.layers:
            layer = cast(Layer, module)
            message = cast(RedGNNMessage, layer.message)
            from_source = state[source]
            from_relation = message.relation(relation)
            from_query = message.relation(query.relation)[batch.edge_query]
            hidden = (
                message.from_source(from_source)
                + message.from_relation(from_relation)
                + message.from_query(from_query)
            )
            attention = torch.sigmoid(message.attention(torch.relu(hidden)))
            messages = attention * (from_source * from_relation)
            collected = torch.zeros_like(state).index_add_(0, target, messages)
            new = self.activation(layer.linear(collected))
            if config.shortcut:
                new = new + state
            live = new.sum(dim=-1, keepdim=True) != 0
            out, gated = self.gru(predictor.dropout(new)[None], gated)
            state = out[0] * live
            gated = gated * live
            states.append(state)
        final = torch.cat(states, dim=-1) if config.concat else state
        if predictor.readout is not None:
            scores: Tensor = predictor.readout(final).squeeze(-1)
            return scores
        return (final * final[batch.source][batch.entity_query]).sum(dim=-1)


@dataclass(frozen=True)
class Row:
    """Times of one implementation: medians of a training step and of the inference of a batch."""

    step_milliseconds: float
    peak_megabytes: float | None
    inference_queries_per_second: float


def bench_predictor(
    data: Dataset,
    config: Config,
    queries: Tensor,
    answers: Tensor,
    device: torch.device,
    repeats: int = 10,
) -> dict[str, Any]:
    """Time a training step and inference on one batch of `queries` [n, 2] per implementation.

    Sampling is not included. On a GPU, ours is the captured step in the configured precision; it is
    also measured with kernels in float32 and without kernels.
    """
    graph = data.graph.to(device)
    sampler = build_sampler(config.sampler)
    batch = sampler.sample(graph, queries.to(device))
    seen = KnownFacts(data.train, graph.num_entities, graph.num_relations).to(device)
    targets = find_targets(config.training, batch, answers.to(device), seen, graph.num_entities)
    predictor = Predictor(config.predictor, graph.num_relations).to(device)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=1e-4, fused=device.type == "cuda")

    def step(network: nn.Module, half: bool) -> None:
        with torch.autocast(device.type, torch.bfloat16, half):
            scores = network(batch)
        losses = query_losses(config.training, scores.float(), batch, targets)
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def infer(network: nn.Module) -> None:
        with torch.inference_mode(), _products_of(network, device):
            network(batch)

    def row(work: Callable[[], None], network: nn.Module) -> Row:
        first = measure(work, device)
        work()
        step_seconds = median_seconds(work, repeats, device)
        infer(network)
        inference_seconds = median_seconds(lambda: infer(network), repeats, device)
        peak = None if first.peak_bytes is None else round(first.peak_bytes / 2**20, 1)
        return Row(
            round(1000 * step_seconds, 3),
            peak,
            round(len(queries) / inference_seconds, 1),
        )

    rows: dict[str, Row] = {}
    half = takes_bfloat16(device, config.training.precision)
    predictor.train()
    if can_record(predictor, config.training, device):
        size = sizes_of(predictor, batch, [batch])[0]
        prepared = Prepared(batch, targets, size, graph)
        for name, in_half in (("recorded", half), ("recorded, float32", False)):
            recorder = RecordedStep(predictor, config.training, len(queries), in_half)
            rows[name] = row(partial(_played, recorder, optimizer, prepared), predictor)
            del recorder
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
    if why_not_fused(config.predictor, device, torch.float32) is None:
        rows["fused"] = row(lambda: step(predictor, half), predictor)
    predictor.engine = "plain"
    rows["plain"] = row(lambda: step(predictor, False), predictor)
    network = EdgeByEdge(predictor).to(device)
    # The parameters are those of the predictor, except for copies of the gate's.
    usual = row(lambda: step(network, False), network)
    ours = next(iter(rows.values()))
    return {
        "bench": "predictor",
        "queries": len(queries),
        "entities": batch.num_entities,
        "edges": batch.num_edges,
        "dim": config.predictor.dim,
        "layers": config.predictor.num_layers,
        "precision": "bfloat16" if half else "float32",
        "ours": asdict(ours),
        "variants": {name: asdict(found) for name, found in rows.items()},
        "baseline": {"edge by edge": asdict(usual)},
        "ratio": {
            "step": round(usual.step_milliseconds / ours.step_milliseconds, 2),
            "memory": _share(ours.peak_megabytes, usual.peak_megabytes),
            "inference": round(
                ours.inference_queries_per_second / usual.inference_queries_per_second, 2
            ),
        },
        "hardware": hardware(device),
    }


def _products_of(network: nn.Module, device: torch.device) -> AbstractContextManager[None]:
    """The matrix product precision of a reasoner; edge by edge, it is PyTorch's default."""
    return nullcontext() if isinstance(network, EdgeByEdge) else fast_products(device)


def _played(recorder: RecordedStep, optimizer: torch.optim.Optimizer, prepared: Prepared) -> None:
    recorder.reserve([prepared])
    recorder.play(prepared)
    optimizer.step()


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(part / whole, 4)


def bench_end_to_end(
    data: Dataset, config: Config, device: torch.device, steps: int, limit: int
) -> dict[str, Any]:
    """Complete training and evaluation, ours against edge by edge.

    Includes sampling, forward pass, backward pass and optimizer of `steps` steps, and sampling,
    forward pass and filtered ranking of `limit` validation queries; without one-time work such as
    compilation.
    """
    rows = {}
    for name in ("ours", "edge by edge"):
        reasoner = build_reasoner(data.graph, config, device)
        usual = name != "ours"
        if usual:
            reasoner.predictor.engine = "plain"
        training = config.training
        if usual:  # as the official code, in float32
            training = dataclasses.replace(training, precision="float32")
        network: nn.Module = reasoner.predictor
        if usual:
            network = EdgeByEdge(reasoner.predictor).to(device)
        stepper = Stepper(reasoner, data, training, network=network if usual else None)
        rate = training_rate(stepper, steps)
        known = KnownFacts(data.known, data.graph.num_entities, data.graph.num_relations)
        size = config.training.valid_batch_size or config.training.batch_size
        answering = _answering_rate(reasoner, network, data, known.to(device), size, limit)
        rows[name] = {
            "training_queries_per_second": round(rate, 1),
            "evaluation_queries_per_second": round(answering, 1),
            "seconds_per_epoch": round(stepper.queries_per_epoch / rate, 2),
            "seconds_for_valid_and_test": round(
                2 * (len(data.valid) + len(data.test)) / answering, 2
            ),
        }
        del stepper, reasoner, network
        if device.type == "cuda":
            torch.cuda.empty_cache()
    ours, usual_row = rows.values()
    return {
        "bench": "end-to-end",
        "ours": ours,
        "baseline": {"edge by edge": usual_row},
        "ratio": {
            key: round(ours[key] / usual_row[key], 2) for key in ours if key.endswith("second")
        },
        "hardware": hardware(device),
    }


def training_rate(stepper: Stepper, steps: int) -> float:
    """Queries per second over so many steps of an epoch, after a warm-up."""
    epoch = draw_epoch(stepper.graph, stepper.config, 1)
    size = stepper.config.batch_size
    epoch = epoch.first(min(steps, len(epoch.queries) // size) * size)

    def work() -> int:
        stepper.predictor.train()
        return sum(done.queries for done in stepper.steps(epoch))

    # The same steps twice: the first pass compiles, and captures graphs of the needed size.
    work()
    found = measure(work, stepper.device)
    return found.result / found.seconds


def _answering_rate(
    reasoner: Reasoner,
    network: nn.Module,
    data: Dataset,
    known: KnownFacts,
    size: int,
    limit: int,
) -> float:
    """Queries per second of sampling, scoring and ranking."""
    graph = reasoner.graph
    queries, answers = both_directions(data.valid.to(graph.device), graph.num_relations)
    queries, answers = queries[:limit], answers[:limit]

    def work() -> None:
        if network is reasoner.predictor:
            evaluate(reasoner, data.valid, known, limit=limit)
            return
        for part, mine in zip(queries.split(size), answers.split(size), strict=True):
            batch = reasoner.sampler.sample(graph, part)
            with torch.inference_mode():
                scores = network(batch).float()
            filtered_ranks(batch, scores, mine, known, graph.num_entities)

    network.eval()
    work()
    return len(queries) / measure(work, graph.device).seconds
