"""Tests of mapped arrays that are read here and there."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oneshot.data.load import family, load
from oneshot.graph import memory_map as mapping
from oneshot.graph import storage
from oneshot.graph.memory_map import Scattered, map_array
from oneshot.samplers import PPRSampler

PAGE = mmap.PAGESIZE


class Pages:
    """Notes what it is advised of."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.told: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self.size

    def madvise(self, advice: int, start: int = 0, length: int = 0) -> None:
        if advice == mmap.MADV_WILLNEED:
            assert start % PAGE == 0
            assert 0 < length <= self.size - start
            self.told.append((start, start + length))


@pytest.mark.parametrize("seed", range(20))
def test_all_pages_of_the_rows_are_announced_and_no_others(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(seed)
    array = np.zeros(100_000, np.int32)
    pages = Pages(128 + array.nbytes)
    monkeypatch.setattr(mapping, "_pages_of", lambda _: pages)
    scattered = Scattered(array)
    scattered._maps = [(pages, 128, 4)]  # type: ignore[list-item]
    start = torch.from_numpy(generator.integers(0, len(array), 40))
    count = torch.from_numpy(generator.integers(0, 3000 if seed % 2 else 5, 40))
    count = torch.minimum(count, len(array) - start)
    scattered.expect(start, count)
    announced = {p for low, high in pages.told for p in range(low // PAGE, -(-high // PAGE))}
    wanted = {
        p
        for s, c in zip(start.tolist(), count.tolist(), strict=True)
        if c
        for p in range((128 + 4 * s) // PAGE, (128 + 4 * (s + c) - 1) // PAGE + 1)
    }
    assert wanted <= announced
    # A row without entries may announce the page that it would stand on.
    assert len(announced - wanted) <= int((count == 0).sum())
    scattered.expect(start[:0], count[:0])


def test_a_graph_read_page_by_page_answers_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = family(2000)
    data.save(tmp_path)
    assert load(tmp_path).graph.edges.scattered is None  # type: ignore[attr-defined]
    monkeypatch.setattr(storage, "SCATTERED_SHARE", 0)
    graph = load(tmp_path).graph
    told: list[int] = []
    expect = Scattered.expect

    def listening(self: Scattered, start: Any, count: Any) -> None:
        told.append(int(count.sum()))
        expect(self, start, count)

    monkeypatch.setattr(Scattered, "expect", listening)
    sampler = PPRSampler(max_entities=100, method="push")
    queries = torch.tensor([[5, 0], [1250, 13]])
    here, there = (sampler.sample(g, queries) for g in (graph, data.graph))
    for name, tensor in vars(there).items():
        assert torch.equal(getattr(here, name), tensor), name
    assert sum(told) > 200
    array = map_array(tmp_path / "edges_source.npy")
    assert mapping._pages_of(array) is not None
