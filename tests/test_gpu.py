"""The same subgraphs on a GPU as on a processor; needs a CUDA device."""

import pytest
import torch

from oneshot.datasets import family
from oneshot.samplers import SAMPLERS, PPRSampler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def data():
    return family(3000)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("edge_ratio", [1.0, 0.05])
def test_subgraphs_equal_those_of_the_processor(data, name, edge_ratio):
    queries = data.queries("test")[0][:200]
    sampler = SAMPLERS[name](0.1, edge_ratio)
    ours = sampler.sample(data.graph.to("cuda"), queries.cuda()).to("cpu")
    expected = sampler.sample(data.graph, queries)
    assert torch.equal(ours.entities[ours.source], queries[:, 0])
    assert ours.entity_query.bincount().tolist() == expected.entity_query.bincount().tolist()
    # Rounding may decide between entities of (nearly) equal score, and so change few of them.
    span = data.graph.num_entities
    left = ours.entity_query * span + ours.entities
    right = expected.entity_query * span + expected.entities
    common = torch.isin(left, right)
    assert common.float().mean() > 0.995
    both = torch.isin(right, left)
    assert torch.allclose(ours.score[common], expected.score[both], rtol=1e-4, atol=1e-9)
    if name in ("bfs", "random", "random_walk"):  # no rounding here
        assert torch.equal(left, right)
        if edge_ratio == 1.0:
            assert torch.equal(ours.edges, expected.edges)


def test_push_works_on_the_gpu(data):
    queries = data.queries("test")[0][:20]
    sampler = PPRSampler(max_entities=100, method="push")
    ours = sampler.select(data.graph.to("cuda"), queries.cuda())
    expected = sampler.select(data.graph, queries)
    common = torch.isin(
        ours.query.cpu() * 3000 + ours.entities.cpu(), expected.query * 3000 + expected.entities
    )
    assert common.float().mean() > 0.99


def test_a_subset_on_the_gpu_equals_that_of_the_processor(data):
    mask = torch.rand(data.graph.num_facts, generator=torch.Generator().manual_seed(0)) < 0.9
    ours = data.graph.to("cuda").subset(mask.cuda()).to("cpu")
    expected = data.graph.subset(mask)
    assert ours.fingerprint == expected.fingerprint
    assert torch.equal(ours.neighbours.index, expected.neighbours.index)
