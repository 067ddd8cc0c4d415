"""The number of queries answered at once."""

import pytest
import torch
from tests.support.graphs import random_graph
from tests.support.samples import tiny_predictor

from oneshot.config import PredictorConfig
from oneshot.evaluation.evaluate import evaluate
from oneshot.reasoner import batch_size as batching
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.subgraph import SubgraphBatch

GPU = torch.device("cuda", 0)


@pytest.fixture
def reasoner() -> Reasoner:
    graph = random_graph(0, entities=40, facts=200)
    return Reasoner(graph, PPRSampler(entity_ratio=0.5), tiny_predictor(graph.num_relations))


@pytest.fixture
def batch(reasoner: Reasoner) -> SubgraphBatch:
    queries = torch.tensor([[entity, 0] for entity in range(16)])
    return reasoner.sampler.sample(reasoner.graph, queries)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    free = {"bytes": 10**12}
    monkeypatch.setattr(batching, "available_memory", lambda device: free["bytes"])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return free


@pytest.mark.parametrize(("wanted", "device"), [(None, torch.device("cpu")), (7, GPU)])
def test_it_stays_on_a_processor_and_where_it_was_wished(
    wanted: int | None, device: torch.device, batch: SubgraphBatch
) -> None:
    size = BatchSize(wanted, PredictorConfig(), device)
    size.learn(batch)
    assert size.now == (wanted or 16)


def test_it_grows_on_a_gpu_as_far_as_work_and_memory_allow(
    batch: SubgraphBatch, memory: dict[str, int]
) -> None:
    size = BatchSize(None, PredictorConfig(dim=64), GPU)
    size.learn(batch)
    assert size.now == 1024  # such small subgraphs keep nothing busy
    memory["bytes"] = 10_000_000
    size.learn(batch)
    narrow = size.now
    assert 1 <= narrow < 1024
    wide = BatchSize(None, PredictorConfig(dim=256, aggregate="pna"), GPU)
    wide.learn(batch)
    assert wide.now < narrow / 4
    memory["bytes"] = 0
    size.learn(batch)
    assert size.now == 1


def test_out_of_memory_halves_it_and_the_report_is_the_same(
    reasoner: Reasoner, memory: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = reasoner.graph.facts[:20].long()
    expected = evaluate(reasoner, facts)
    usual, asked = reasoner.reason, []

    def scarce(queries: torch.Tensor) -> tuple[SubgraphBatch, torch.Tensor]:
        asked.append(len(queries))
        if len(queries) > 5:
            raise torch.OutOfMemoryError
        return usual(queries)

    monkeypatch.setattr(reasoner, "reason", scarce)
    found = evaluate(reasoner, facts)
    assert found.queries == expected.queries
    # Entities that stand alike have equal scores but for rounding, which depends on the batch and
    # may so break a tie: by half a rank.
    assert found.metrics.as_dict() == pytest.approx(expected.metrics.as_dict(), rel=0.02)
    assert asked == [16, 8] + [4] * 10


def test_one_query_too_much_is_an_error(memory: dict[str, int]) -> None:
    size = BatchSize(1, PredictorConfig(), GPU)
    with pytest.raises(torch.OutOfMemoryError):
        size.shrink(torch.OutOfMemoryError("no"))
