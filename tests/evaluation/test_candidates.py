"""Ranking among given candidates: reading negatives in OGB's format, and its evaluator."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.data.public.archives import unpack_ogb
from oneshot.data.public.ogb_negatives import candidates_file, read_candidates
from oneshot.errors import InputError
from oneshot.experiments.paper.ogb import judged, write_ogb


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """A small world that went through OGB's format."""
    write_ogb(load("family:100"), tmp_path / "kg.zip", seed=0, negatives=6)
    unpack_ogb([tmp_path / "kg.zip"], tmp_path)
    return load(tmp_path)


def test_a_graph_survives_the_format(data: Dataset) -> None:
    world = load("family:100")
    for split in ("train", "valid", "test"):
        assert data.facts(split).tolist() == world.facts(split).tolist()


def test_negatives_stand_in_the_place_of_the_answer(data: Dataset) -> None:
    found = read_candidates(data, "test")
    count = len(data.test)
    assert found.queries.shape == (2 * count, 2)
    assert found.negatives.shape == (2 * count, 6)
    with np.load(candidates_file(Path(str((data.graph.origin or {})["source"])), "test")) as saved:
        assert found.negatives[:count].numpy().tolist() == saved["tail"].tolist()
        assert found.negatives[count:].numpy().tolist() == saved["head"].tolist()
    assert found.answers[:count].equal(data.test[:, 2])
    assert found.answers[count:].equal(data.test[:, 0])


@pytest.mark.parametrize("change", ["missing", "short", "strange", "no array", "fractions"])
def test_negatives_that_do_not_fit_are_named(data: Dataset, change: str) -> None:
    path = candidates_file(Path(str((data.graph.origin or {})["source"])), "test")
    with np.load(path) as saved:
        head, tail = saved["head"], saved["tail"]
    if change == "missing":
        path.unlink()
    elif change == "no array":
        path.write_text("no array")
    else:
        changes = {"short": head[:-1], "strange": head + 1000, "fractions": head + 0.5}
        np.savez(path, head=changes[change], tail=tail[: len(changes[change])])
    with pytest.raises(InputError, match="negatives" if change == "missing" else path.name):
        read_candidates(data, "test")


def test_a_damaged_file_of_negatives_is_read_or_refused(data: Dataset) -> None:
    path = candidates_file(Path(str((data.graph.origin or {})["source"])), "test")
    whole, draw, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(200):
        damaged = bytearray(whole[: draw.randrange(len(whole)) if draw.random() < 0.3 else None])
        for _ in range(4):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            read_candidates(data, "test")
        except InputError as error:
            refused += path.name in str(error)
    assert refused > 100


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("installed", [True, False])
def test_the_judge_is_ogb_where_it_is_installed(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed:
        pytest.importorskip("ogb", reason="the extra `ogb` is not installed")
    else:
        from importlib.metadata import PackageNotFoundError

        def version(name: str) -> str:
            raise PackageNotFoundError(name)

        monkeypatch.setattr("oneshot.experiments.paper.ogb.version", version)
    generator = torch.Generator().manual_seed(0)
    positive = torch.randn(50, generator=generator)
    negative = torch.randn(50, 9, generator=generator)
    found = judged(positive, negative, "ogbl-wikikg2")
    assert found["evaluator"].startswith("ogb" if installed else "ours")
    place = 1 + (negative > positive[:, None]).sum(1).double()
    assert found["mrr"] == pytest.approx(float((1 / place).mean()))
    assert found["hits@3"] == pytest.approx(float((place <= 3).double().mean()))
