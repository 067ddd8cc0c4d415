"""Tests of random numbers by hash: what they depend on, and samples without repetitions."""

import pytest
import torch

from oneshot.system.hashed_random import permuted


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 4097])
def test_all_places_give_a_permutation(size: int) -> None:
    order = permuted(torch.arange(size), size, seed=5)
    assert torch.equal(order.sort().values, torch.arange(size))
    some = torch.tensor([size - 1, 0])
    assert torch.equal(permuted(some, size, seed=5), order[some])


def test_orders_differ_by_seed_and_look_random() -> None:
    size = 10_000
    orders = torch.stack([permuted(torch.arange(size), size, seed) for seed in range(8)])
    assert len(orders.unique(dim=0)) == 8
    # The first tenth of each order is spread over the range.
    parts = torch.bincount(orders[:, : size // 10].flatten() // (size // 10), minlength=10)
    assert int(parts.min()) > 650
    assert int(parts.max()) < 950
    correlation = torch.corrcoef(torch.stack([torch.arange(size).double(), orders[0].double()]))
    assert abs(float(correlation[0, 1])) < 0.05


def test_a_sample_of_a_huge_range_needs_no_memory_for_it() -> None:
    sample = permuted(torch.arange(1000), 10**12, seed=2**62)
    assert len(sample.unique()) == 1000
    assert int(sample.max()) < 10**12
    assert float(sample.double().mean()) == pytest.approx(5e11, rel=0.1)
