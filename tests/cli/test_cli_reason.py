"""Tests of train, evaluate and predict on the command line."""

import errno
import json
import os
import shutil
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.commands import Command, listing
from tests.support.samples import chain_world, settings, trained_run, write_world

from oneshot import errors
from oneshot.runs.tensors import load_tensors, save_tensors
from oneshot.samplers import Sampler
from oneshot.training import tensorboard


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a data set (entity `alone` only in test) and a run trained on it."""
    path = tmp_path_factory.mktemp("reason")
    write_world(path / "data", chain_world(20))
    with (path / "data" / "test.tsv").open("a") as file:
        file.write("alone\tnext\tlink 0\n")
    trained_run(path / "data", path / "run")
    (path / "q.tsv").write_text("link 0\tnext\n")
    (path / "link.png").symlink_to(path / "data" / "train.tsv")
    chain_world(20).save(path / "saved")
    (path / "own").mkdir()
    (path / "own" / "config.toml").write_text("[training]\nepochs = 1\n")
    return path


def test_training_reports_what_it_did(run: Command, place: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[training]\nepochs = 2\n")
    small = [s for s in settings()[2::2] if "epochs" not in s]
    changes = [part for setting in small for part in ("--set", setting)]
    command = ["train", place / "data", "--out", tmp_path / "run", "--config", config, *changes]
    result = run(*command, "--json", "--seed", 3).json
    assert {"run", "valid", "test", "epochs", "seconds", "best_epoch"} <= result.keys()
    assert (result["epochs"], result["run"]) == (2, str(tmp_path / "run"))
    assert result["valid"]["queries"] == 6
    saved = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {**saved, "already_finished": False, "plan": None} == result
    assert "seed = 3\n" in (tmp_path / "run" / "config.toml").read_text()
    told = run(*command, "--seed", 3)
    assert "data, test split" in told.out
    assert "epoch 2/2: loss " in told.err


def test_evaluating_a_run(run: Command, place: Path) -> None:
    whole = run("evaluate", place / "run", "--json").json
    keys = {"mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "coverage", "queries", "seconds"}
    assert keys | {"per_relation"} <= whole.keys()
    assert whole["queries"] == 2 * 4
    saved = json.loads((place / "run" / "result.json").read_text())["test"]
    assert whole["mrr"] == pytest.approx(saved["mrr"])
    few = run("evaluate", place / "run", "--json", "--limit", 3, "--split", "train").json
    assert (few["queries"], few["split"]) == (3, "train")
    narrow = run("evaluate", place / "run", "--json", "--set", "sampler.entity_ratio=0.1").json
    assert narrow["coverage"] < whole["coverage"]
    other = run("evaluate", place / "run", "--data", place / "data", "--json").json
    assert other["mrr"] == pytest.approx(whole["mrr"])
    assert "data, test split" in run("evaluate", place / "run").out


def test_asking_one_question(run: Command, place: Path) -> None:
    value = run("predict", place / "run", "link 3", "after", "--top", 4, "--json").json
    assert value["query"] == {"entity": "link 3", "relation": "after"}
    assert len(value["answers"]) == 4
    assert value["answers"][0].keys() >= {"entity", "score", "probability", "known"}
    assert value["subgraph"]["entities"] == 10
    inverse = run("predict", place / "run", "link 3", "after", "--inverse", "--json").json
    assert inverse["query"]["relation"] == "after⁻¹"
    new = run("predict", place / "run", "link 3", "next", "--exclude-known", "--json").json
    assert not any(answer["known"] for answer in new["answers"])
    shown = run("predict", place / "run", "link 3", "next")
    assert "(link 3, next, ?)" in shown.out
    assert "known" in shown.out


def test_answers_with_explanations_are_sampled_once(
    run: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = ("predict", place / "run", "link 3", "after")
    sample, calls = Sampler.sample, []

    def counting(self: Sampler, *arguments: Any) -> Any:
        calls.append(self)
        return sample(self, *arguments)

    monkeypatch.setattr(Sampler, "sample", counting)
    value = run(*question, "--top", 10, "--explain", "--json").json
    assert len(calls) == 1
    assert len(value["answers"]) == 9  # all entities but the one that is asked about
    assert all("paths" in answer for answer in value["answers"])
    drawn = run(*question, "--plot", tmp_path / "why.svg", "--json").json
    assert len(calls) == 2
    assert "<svg" in (tmp_path / "why.svg").read_text()
    assert not any("paths" in answer for answer in drawn["answers"])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate data", "data is not a run (there is no config.toml)"),
        ("predict data a b", "data is not a run"),
        ("evaluate run --split tst", "unknown split 'tst'"),
        ("evaluate run --set sampler.entity_ratio=x", "must be a number or a table"),
        ("evaluate run --data umls", "unknown relation"),
        (
            "predict run --data umls virus causes",
            "run knows only the relations of its training: unknown relation",
        ),
        ("predict run", "give an ENTITY and a RELATION, or a file of queries"),
        ("predict run a next --top 0", "top must be at least 1, not 0"),
        ("predict run alone next", "entity 'alone' has no facts in the graph"),
        ("predict run nobody next", "unknown entity 'nobody'"),
        ("predict run --queries q.tsv", "--queries needs --out"),
        (
            "predict run a next --queries q.tsv --out a.tsv",
            "ENTITY and RELATION cannot be combined",
        ),
        ("predict run --inverse --queries q.tsv --out a.tsv", "--inverse cannot be combined with"),
        ("predict run --explain --queries q.tsv --out a.tsv", "--explain cannot be combined with"),
        ("predict run --plot a.svg --queries q.tsv --out a.tsv", "--plot cannot be combined with"),
        ("predict run a next --out a.tsv", "--out works only with --queries"),
        # What is read is not written over.
        ("predict run --queries q.tsv --out q.tsv", "q.tsv is an input of this command"),
        ("predict run --queries q.tsv --out data/train.tsv", "train.tsv is an input of this"),
        ("predict run --queries q.tsv --out run/metrics.jsonl", "metrics.jsonl is inside the run"),
        (
            "predict run --data data/train.tsv --queries q.tsv --out data/train.tsv",
            "data/train.tsv is an input of this command",
        ),
        ("bench sampler data --out data/valid.tsv", "data/valid.tsv is an input of this command"),
        ("bench sampler data/train.tsv --out data/train.tsv", "is an input of this command"),
        ("coverage data/train.tsv --plot link.png", "link.png is an input of this command"),
        ("data saved --save saved", "saved/oneshot-graph.json is an input of this command"),
        ("train data --out own --config own/config.toml", "own exists and was not written by"),
        ("train data --out run --tensorboard run/tb", "run/tb is inside the run"),
        ("predict run --queries q.tsv --out a.xls", "unsupported suffix for answers"),
        (
            "predict run --queries q.tsv --out data",
            "data exists and contains no answers of oneshot",
        ),
        ("train data --out data", "data exists and was not written by oneshot"),
        ("train data --out run --set predictor.dim=x", "predictor.dim must be an integer"),
        ("train data --out run --set training.epoch=1", "did you mean training.epochs?"),
        ("train data --out run --config no.toml", "no.toml: No such file"),
        ("train data --out data/train.tsv", "exists and is not a directory"),
        ("train data --out data/train.tsv/run", "data/train.tsv is not a directory"),
    ],
)
def test_wrong_use_is_one_line_and_loses_nothing(
    run: Command, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    if "--plot link" in command:
        pytest.importorskip("matplotlib", reason="needs the extra plot")
    monkeypatch.chdir(place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    result = run(*command.split())
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert message in result.err
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_a_full_disk_is_told(
    run: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = run("train", place / "data", "--out", tmp_path / "run", *settings())
    assert result.code == 2
    last = result.err.splitlines()[-1]
    assert last == f"error: {tmp_path / 'run' / 'graph.json'}: No space left on device"
    assert listing(tmp_path) == ["run"]


class FakeWriter:
    """Stands for the writer of TensorBoard."""

    made: list["FakeWriter"]

    def __init__(self, path: str, purge_step: int) -> None:
        self.path, self.purge_step = path, purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.closed = False
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_curves_for_tensorboard(
    run: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeWriter.made = []
    package = types.SimpleNamespace(SummaryWriter=FakeWriter)
    monkeypatch.setattr(tensorboard, "require", lambda *_: package)
    command = ["train", place / "data", "--out", tmp_path / "run", "--tensorboard", tmp_path / "tb"]
    assert run(*command, *settings()).code == 0
    (writer,) = FakeWriter.made
    assert (writer.path, writer.purge_step, writer.closed) == (str(tmp_path / "tb"), 1, True)
    names = ["loss", "learning_rate", "covered", "valid/mrr"]
    assert [(name, step) for name, _, step in writer.scalars] == [
        (name, epoch) for epoch in (1, 2, 3) for name in names
    ]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert writer.scalars[-1][1] == json.loads(lines[-1])["valid"]["mrr"]


def test_a_missing_tensorboard_is_named_before_training(
    run: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="tensorboard")

    monkeypatch.setattr(errors.importlib, "import_module", missing)
    result = run("train", place / "data", "--out", tmp_path / "run", "--tensorboard", tmp_path)
    assert result.code == 2
    assert (
        "needs the package 'tensorboard': pip install 'one-shot-subgraph[tensorboard]'"
        in result.err
    )
    assert listing(tmp_path) == []


def test_the_real_tensorboard_takes_it(run: Command, place: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    command = ["train", place / "data", "--out", tmp_path / "run", "--tensorboard", tmp_path / "tb"]
    assert run(*command, *settings()).code == 0
    assert [name.startswith("events.out.tfevents") for name in listing(tmp_path / "tb")] == [True]


def test_scores_that_are_no_numbers_are_told(run: Command, place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    tensors, about = load_tensors(tmp_path / "run" / "predictor.safetensors")
    nothing = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}
    save_tensors(tmp_path / "run" / "predictor.safetensors", nothing, about)
    question = ("predict", tmp_path / "run", "link 3", "next")
    many = ("--queries", place / "q.tsv", "--out", tmp_path / "answers.jsonl")
    for command in (
        ("evaluate", tmp_path / "run"),
        question,
        (*question, "--json"),
        (*question, "--explain"),
        (*question[:2], *many),
    ):
        result = run(*command)
        assert (result.code, result.out) == (2, ""), result.out
        assert "the predictor gave scores that are not finite" in result.err
    assert not (tmp_path / "answers.jsonl").exists()


def test_a_training_that_learns_nothing_says_so(run: Command, tmp_path: Path) -> None:
    facts = "".join(f"a{i}\tr\tb{i}\nb{i}\tr\ta{i}\na{i}\ts\tb{i}\n" for i in range(9))
    (tmp_path / "few.tsv").write_text(facts)
    small = [*settings("training.epochs=2"), "--set", "sampler.entity_ratio=0.01"]
    result = run("train", tmp_path / "few.tsv", "--out", tmp_path / "run", *small)
    assert result.code == 0
    assert result.err.count("no answer was among the sampled entities") == 1
    assert "sampler.entity_ratio" in result.err
    assert "split at random with seed 0" in result.err  # what `oneshot data` says, too


def test_relations_named_like_inverses_are_refused(run: Command, tmp_path: Path) -> None:
    facts = tmp_path / "facts.tsv"
    facts.write_text("a\tx\tb\nb\tx⁻¹\tc\n")
    result = run("data", facts)
    assert result.code == 2
    assert f"{facts}: the relation 'x⁻¹' has the name of the inverse of 'x'" in result.err


def test_a_relation_with_the_mark_of_inverses_can_be_asked(run: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "valid", "test"):
        rows = [f"{split[0] if split != 'train' else ''}{i}\tx⁻¹\t{i + 1}\n" for i in range(9)]
        (tmp_path / "data" / f"{split}.tsv").write_text("".join(rows))
    run_path = trained_run(tmp_path / "data", tmp_path / "run", "training.epochs=1")
    for more, name in (((), "x⁻¹"), (("--inverse",), "x⁻¹⁻¹")):
        value = run("predict", run_path, "3", "x⁻¹", *more, "--explain", "--json").json
        assert value["query"]["relation"] == name
        known = next(answer for answer in value["answers"] if answer["known"])
        assert any(path["known"] for path in known["paths"])
