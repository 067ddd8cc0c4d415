"""A training of an embedding model that is ended goes on, and never with what does not fit."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.extras import needs_pykeen
from tests.support.graphs import random_graph

from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.experiments.baselines import checkpoint as course
from oneshot.experiments.baselines import embedding, pykeen_models
from oneshot.experiments.baselines.pykeen_models import RECIPES
from oneshot.runs.tensors import load_tensors

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data() -> Dataset:
    graph = random_graph(5, entities=40, facts=260, relations=3)
    return Dataset("small", graph, graph.facts[:30].long(), graph.facts[30:60].long())


class Killed(BaseException):
    """What ends a training in the middle."""


class KillsAfter:
    """A watcher that ends the training after some epochs."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.begun_after = 0
        self.lines: list[str] = []

    def told(self, line: str) -> None:
        self.lines.append(line)

    def resumed(self, epoch: int, best_mrr: float) -> None:
        self.begun_after = epoch

    def stepped(self) -> None: ...

    def epoch_done(self, epoch: int, best_mrr: float | None) -> None:
        if epoch >= self.epochs:
            raise Killed


@needs_pykeen
@pytest.mark.parametrize("name", ["transe", "conve", "nodepiece"])
@pytest.mark.parametrize("against", ["all", "negatives"])
def test_a_killed_training_goes_on_as_if_nothing_had_happened(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, against: str
) -> None:
    monkeypatch.setattr(course, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setitem(pykeen_models.SMALL, "cpu", 1000 if against == "all" else 0)
    recipe, kept = replace(RECIPES[name], every=2), tmp_path / "kept.safetensors"

    def train(watcher: KillsAfter, kept: Path | None) -> embedding.Trained:
        return embedding.train_embedding(
            recipe, data, CPU, dim=8, epochs=8, watcher=watcher, kept=kept
        )

    other = tmp_path / "whole.safetensors"
    whole = train(KillsAfter(99), other)
    with pytest.raises(Killed):
        train(KillsAfter(5), kept)
    second = KillsAfter(99)
    resumed = train(second, kept)
    assert second.begun_after == 4
    assert (resumed.resumed_after, whole.resumed_after) == (4, None)
    assert (resumed.epochs, resumed.best_epoch) == (whole.epochs, whole.best_epoch)
    assert resumed.valid_mrr == whole.valid_mrr
    for key, value in whole.model.state_dict().items():
        assert resumed.model.state_dict()[key].equal(value), key
    # Not only the best epoch, which may be an early one, but also the last.
    found, wanted = load_tensors(kept)[0], load_tensors(other)[0]
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].equal(value), key
    # At its end it has nothing left to do.
    done = train(KillsAfter(1), kept)
    assert (done.epochs, done.valid_mrr) == (whole.epochs, whole.valid_mrr)
    before = load_tensors(kept)[1]["figures"]["seconds"]
    assert done.seconds > before > 0


@needs_pykeen
def test_what_fits_into_memory_is_tried_out_again(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "SECONDS_BETWEEN", 0.0)
    kept, sizes = tmp_path / "kept.safetensors", []

    def run(recipe: object, loop: Any, *given: Any) -> None:
        sizes.append(given[3])
        raise Killed

    train: Any = partial(embedding.train_embedding, RECIPES["transe"], data, CPU, dim=8, kept=kept)
    with pytest.raises(Killed):
        train(watcher=KillsAfter(6))
    monkeypatch.setattr(embedding, "_run", run)
    with pytest.raises(Killed):
        train()
    assert sizes[0].keys() == {"batch_size", "sub_batch_size", "slice_size"}
    assert sizes[0]["sub_batch_size"] <= sizes[0]["batch_size"]
    kept.unlink()
    with pytest.raises(Killed):
        train()
    assert sizes[1].keys() == {"batch_size"}  # it is PyKEEN that does it then


def damage(kept: Path, how: str) -> None:
    """Make a file of a training something that does not fit."""
    content = bytearray(kept.read_bytes())
    if how == "half":
        del content[len(content) // 2 :]
    elif how == "a changed byte":
        content[-20] ^= 1
    elif how == "text":
        content = bytearray(b"no tensors")
    kept.write_bytes(content)


@needs_pykeen
@pytest.mark.parametrize("how", ["half", "a changed byte", "text", "another model", "recipe"])
def test_a_file_that_does_not_fit_is_as_good_as_none(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(course, "SECONDS_BETWEEN", 0.0)
    kept, mine = tmp_path / "kept.safetensors", RECIPES["complex"]
    other = {"another model": RECIPES["rotate"], "recipe": replace(mine, learning_rate=0.001)}
    options: dict[str, Any] = {"dim": 4, "epochs": 2}
    embedding.train_embedding(other.get(how, mine), data, CPU, **options, kept=kept)
    damage(kept, how)
    (tmp_path / ".kept.safetensors.abcd1234.safetensors").write_text("of a killed process")
    fresh = embedding.train_embedding(mine, data, CPU, **options)
    watcher = KillsAfter(99)
    found = embedding.train_embedding(mine, data, CPU, **options, kept=kept, watcher=watcher)
    assert found.resumed_after is None
    assert found.valid_mrr == fresh.valid_mrr
    (line,) = watcher.lines
    # A changed byte may be one of the checksum, of the header or of the numbers.
    assert line.startswith((f"starts from scratch: {kept}: ", f"starts from scratch: {kept} was "))
    assert list(tmp_path.iterdir()) == [kept]


@needs_pykeen
def test_a_training_goes_on_where_its_file_cannot_be_written(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "SECONDS_BETWEEN", 0.0)
    watcher, options = KillsAfter(99), {"dim": 4, "epochs": 2}

    def fail(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(course, "save_tensors", fail)
    kept = tmp_path / "kept.safetensors"
    train: Any = partial(embedding.train_embedding, RECIPES["complex"], data, CPU, **options)
    assert train(kept=kept, watcher=watcher).epochs == 2
    assert watcher.lines == [f"cannot be resumed later: {kept}: No space left on device"]
    # A place that can never be a file is told before the training.
    kept.mkdir()
    with pytest.raises(InputError, match="is not a file; remove it"):
        train(kept=kept)
