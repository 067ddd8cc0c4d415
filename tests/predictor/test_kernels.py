"""The kernels against the plain path, run by Triton's interpreter where there is no GPU.

Triton decides at its import whether it interprets, so that the tests run in a process of their
own: `test_kernels_in_the_interpreter` starts pytest on this very file.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.support.kernels import sampled_scored_and_lost
from torch import Tensor

from oneshot.config import PredictorConfig, TrainingConfig
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.predictor.fused import fused_plan
from oneshot.ranking import KnownFacts
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system.devices import kernels_work, override_kernels
from oneshot.training.losses import Targets, find_targets, query_losses, softmax_loss
from oneshot.training.padding import Capacity, PaddedBatch

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

needs_kernels = pytest.mark.skipif(
    not HAS_TRITON or not (INTERPRETED or torch.cuda.is_available()),
    reason="needs Triton and a CUDA device, or TRITON_INTERPRET=1 (see the first test)",
)


# The interpreter is slow: it gets half of the shapes here, and the others with the slow tests.
later_if_interpreted = [pytest.mark.slow] if INTERPRETED else []


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="this is that process")
@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
@pytest.mark.parametrize("chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_in_the_interpreter(chosen: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*command, "-m", chosen, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-5000:]
    assert " passed" in found.stdout


def graph_with_hub(seed: int = 0) -> KnowledgeGraph:
    """20 entities with few facts, one of them with 150 more, three isolated; an empty relation."""
    generator = torch.Generator().manual_seed(seed)

    def draw(most: int, count: int) -> Tensor:
        return torch.randint(most, (count,), generator=generator)

    facts = torch.stack([draw(20, 22), draw(4, 22), draw(20, 22)], dim=1)
    hub = torch.stack([torch.zeros(150, dtype=torch.long), draw(4, 150), draw(12, 150)], dim=1)
    return KnowledgeGraph.from_facts(torch.cat([facts, hub]), 23, 5).to(DEVICE)


@pytest.fixture(scope="module")
def batch() -> SubgraphBatch:
    graph = graph_with_hub()
    # The hub, another entity and an isolated one.
    queries = torch.tensor([[0, 0], [17, 4], [22, 1]], device=DEVICE)
    return PPRSampler(0.8).sample(graph, queries)


SHAPES = [
    {"message": "redgnn", "aggregate": "sum", "activation": "relu"},
    pytest.param(
        {"message": "redgnn", "aggregate": "sum", "compose": "add", "activation": "tanh"},
        marks=later_if_interpreted,
    ),
    pytest.param(
        {"message": "redgnn", "aggregate": "mean", "readout": "dot", "shortcut": True, "dim": 20},
        marks=later_if_interpreted,
    ),
    {"message": "redgnn", "aggregate": "max", "gate_mask": "reached", "activation": "tanh"},
    {"message": "redgnn", "aggregate": "pna", "gate": False, "concat": True},
    {"message": "nbfnet", "aggregate": "sum", "gate": False, "norm": True, "priors": True},
    pytest.param(
        {"message": "nbfnet", "aggregate": "mean", "concat": True, "readout": "dot"},
        marks=later_if_interpreted,
    ),
    pytest.param(
        {"message": "nbfnet", "aggregate": "max", "compose": "add", "initial": "binary"},
        marks=later_if_interpreted,
    ),
    {"message": "nbfnet", "aggregate": "pna", "gate": False, "readout": "dot"},
    {"aggregate": "pna", "gate": False, "aggregate_over": "graph", "readout": "mlp"},
    pytest.param(
        {"aggregate": "max", "aggregate_over": "graph", "reinject": True, "concat": True},
        marks=later_if_interpreted,
    ),
    {"message": "nbfnet", "relations": "relative", "gate": False, "norm": True, "priors": True},
]


def predictor_of(shape: dict[str, object]) -> Predictor:
    torch.manual_seed(3)
    config = PredictorConfig(**{"dim": 16, "num_layers": 2, "attention_dim": 5, **shape})  # type: ignore[arg-type]
    predictor = Predictor(config, 5).to(DEVICE)
    if predictor.priors is not None:
        torch.nn.init.normal_(predictor.priors.weight)
    if predictor.is_relative:
        predictor.relate(graph_with_hub().relation_graph)
    return predictor


def outcome(scores: Tensor, predictor: Predictor) -> tuple[Tensor, dict[str, Tensor]]:
    """Scores and the gradients of some function of them."""
    predictor.zero_grad(set_to_none=True)
    weight = torch.sin(torch.arange(len(scores), device=scores.device) * 0.37)
    (scores * weight).sum().backward()
    found = {n: p.grad.clone() for n, p in predictor.named_parameters() if p.grad is not None}
    return scores.detach(), found


def assert_close(ours: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]):
    """Scores to 1e-5 and gradients to 1e-4, relative to their norms."""
    assert (ours[0] - other[0]).norm() <= 1e-5 * other[0].norm()
    assert ours[1].keys() == other[1].keys()
    for name, gradient in other[1].items():
        assert (ours[1][name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-9, name


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_fused_and_plain_agree(shape: dict[str, object], batch: SubgraphBatch) -> None:
    predictor = predictor_of(shape)
    predictor.engine = "plain"
    expected = outcome(predictor(batch), predictor)
    predictor.engine = "fused"
    ours = outcome(predictor(batch), predictor)
    assert_close(ours, expected)
    if DEVICE == "cuda":  # the interpreter has no races
        again = outcome(predictor(batch), predictor)
        assert torch.equal(ours[0], again[0])
        assert all(torch.equal(ours[1][name], again[1][name]) for name in ours[1])
    with torch.inference_mode():
        if predictor.is_relative:  # the states of equal query relations are computed together
            assert torch.allclose(predictor(batch), ours[0], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(predictor(batch), ours[0])


@needs_kernels
@pytest.mark.parametrize("aggregate", ["max", "pna"])
def test_half_precision_is_near_the_plain_formulas(aggregate: str, batch: SubgraphBatch) -> None:
    """Rounded messages have more equal extremes, which share the gradient: near, not equal."""
    from oneshot.predictor.kernels.messages import collect
    from oneshot.predictor.kernels.plan import make_plan

    plan = make_plan(batch, 5, 2, True)
    rows = plan.reach[1]
    generator = torch.Generator().manual_seed(2)
    state, table = (torch.randn(n, 16, generator=generator) for n in (rows, 11))
    state, table = state.to(DEVICE), table.to(DEVICE)
    width = 4 * 16 if aggregate == "pna" else 16
    weight = torch.randn(plan.reach[2], width, generator=generator).to(DEVICE)

    def found(dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        inputs = [state.bfloat16().to(dtype).requires_grad_(), table.clone().requires_grad_()]
        out = collect(inputs[0], inputs[1], None, plan, 1, aggregate, False)
        gradients = torch.autograd.grad((out.float() * weight).sum(), inputs)
        return out.float(), [gradient.float() for gradient in gradients]

    ours, expected = found(torch.bfloat16), found(torch.float32)
    assert (ours[0] - expected[0]).norm() <= 0.01 * expected[0].norm()
    for one, other in zip(ours[1], expected[1], strict=True):
        assert (one - other).norm() <= 0.05 * other.norm()


def padded(batch: SubgraphBatch, layers: int) -> PaddedBatch:
    """The batch in buffers that held another one before."""
    count = batch.num_entities
    reach = (batch.num_queries, count - 20, *(count + 3,) * (layers - 1))
    buffers = PaddedBatch(
        Capacity(count + 7, batch.num_edges + 11, reach), batch.num_queries, batch.device
    )
    for tensor in vars(buffers.batch).values():
        tensor.fill_(2)
    buffers.fill(batch)
    return buffers


@needs_kernels
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[5], SHAPES[9]])
def test_padding_changes_nothing(shape: dict[str, object], batch: SubgraphBatch) -> None:
    predictor = predictor_of(shape)
    predictor.engine = "fused"
    expected = outcome(predictor(batch), predictor)
    buffers = padded(batch, 2)
    exact = fused_plan(predictor, batch, True).reach
    assert all(have >= need for have, need in zip(buffers.capacity.reach, exact, strict=True))
    plan = fused_plan(predictor, buffers.batch, True, buffers.capacity.reach)
    scores = predictor(buffers.batch, plan=plan)
    assert_close(outcome(scores[: batch.num_entities], predictor), expected)


@needs_kernels
@pytest.mark.parametrize("rivals", ["all", "sampled"])
def test_losses_on_a_padded_batch(rivals: str, batch: SubgraphBatch) -> None:
    from oneshot.training._triton import query_logsumexp

    config = TrainingConfig(mask_known=True, softmax_over=rivals)  # type: ignore[arg-type]
    scores = torch.linspace(-3, 4, batch.num_entities, device=DEVICE).requires_grad_()
    answers = torch.tensor([5, 19, 3], device=DEVICE)
    graph = graph_with_hub()
    seen = KnownFacts(graph.facts.long(), graph.num_entities, 5)
    targets = find_targets(config, batch, answers, seen, graph.num_entities)
    losses = query_losses(config, scores.cpu().double(), batch.to("cpu"), _on_cpu(targets))
    losses.sum().backward()
    expected, scores.grad = scores.grad, None

    buffers = padded(batch, 2)
    queries = torch.arange(4, device=DEVICE)
    ends = torch.searchsorted(buffers.batch.entity_query, queries)
    longer = torch.cat([scores, torch.full((7,), 9.0, device=DEVICE)])
    skip = torch.cat([targets.skip, torch.zeros(7, dtype=torch.bool, device=DEVICE)])
    total = query_logsumexp(longer.masked_fill(skip, -torch.inf), ends)
    if rivals == "all":
        total = torch.logaddexp(total, targets.unsampled.float().log())
    ours = torch.where(targets.place >= 0, total - longer[targets.place.clamp(min=0)], 0.0)
    assert ours.cpu().tolist() == pytest.approx(losses.tolist(), rel=1e-5, abs=1e-6)
    ours.sum().backward()
    assert torch.allclose(scores.grad.cpu(), expected.cpu().float(), rtol=1e-4, atol=1e-6)
    if DEVICE == "cuda":
        found = softmax_loss(longer, buffers.batch, targets.place, skip, targets.unsampled)
        assert found.shape == (3,)


@needs_kernels
def test_sampling_predictor_and_loss_agree_with_and_without_kernels() -> None:
    found = []
    for use in (None, False):
        with override_kernels(use):
            assert kernels_work(torch.device(DEVICE)) is (use is None)
            found.append(sampled_scored_and_lost(DEVICE))
    (ours, *numbers), (expected, *others) = found
    for name, tensor in vars(expected).items():
        if tensor.is_floating_point():  # other sums, in another order
            torch.testing.assert_close(getattr(ours, name), tensor)
        else:
            assert torch.equal(getattr(ours, name), tensor), name
    for one, other in zip(numbers, others, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


@needs_kernels
@pytest.mark.parametrize(("kind", "has_values"), [(torch.float32, True), (torch.float64, False)])
def test_the_sparse_product_has_independent_columns(
    monkeypatch: pytest.MonkeyPatch, kind: torch.dtype, has_values: bool
) -> None:
    from oneshot.graph import _triton
    from oneshot.graph._triton import FixedOrderProduct

    piece = 16  # the interpreter is slow
    monkeypatch.setattr(_triton, "_PIECE", piece)
    monkeypatch.setattr(_triton, "_MAX_COLUMNS", 8)
    generator = torch.Generator().manual_seed(3)
    # Empty rows, short ones, and one of several pieces.
    lengths = torch.tensor([0, 3, 1, 2 * piece + 5, 0, 9, piece])
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int()
    index = torch.randint(40, (int(lengths.sum()),), generator=generator).int()
    values = torch.rand(len(index), generator=generator).to(kind) if has_values else None
    block = torch.rand(40, 19, generator=generator).to(kind)
    dense = torch.zeros(len(lengths), 40, dtype=torch.float64)
    row = torch.arange(len(lengths)).repeat_interleave(lengths)
    entries = torch.ones(len(index), dtype=torch.float64) if values is None else values.double()
    dense.index_put_((row, index.long()), entries, accumulate=True)
    product = FixedOrderProduct(
        indptr.to(DEVICE), index.to(DEVICE), None if values is None else values.to(DEVICE)
    )
    whole = product(block.to(DEVICE))
    torch.testing.assert_close(whole.cpu(), (dense @ block.double()).to(kind))
    assert torch.equal(product(block[:, 5:8].to(DEVICE)), whole[:, 5:8])
    old = torch.rand(len(lengths), 19, generator=generator).to(kind)
    step = product(block.to(DEVICE), old.clone().to(DEVICE), alpha=2.0, beta=-1.0)
    torch.testing.assert_close(step.cpu(), (2 * dense @ block.double() - old.double()).to(kind))


def _on_cpu(targets: Targets) -> Targets:
    assert targets.skip is not None
    return Targets(targets.place.cpu(), targets.skip.cpu(), targets.unsampled.cpu())


def test_an_engine_that_cannot_be_used_says_why(batch: SubgraphBatch) -> None:
    from oneshot.errors import InputError

    predictor = predictor_of({"message": "drum"})
    predictor.engine = "fused"
    with pytest.raises(InputError, match=r"fused.*(drum|CUDA|Triton)"):
        predictor(batch)
