"""Tests of run directories: what is saved, what is loaded, and what a full disk leaves."""

import contextlib
import errno
import io
import json
import mmap
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.commands import listing
from tests.support.samples import chain_world, small_config, tiny_predictor, write_world
from tests.support.services import saved_run

from oneshot.config import Config, PredictorConfig, SamplerConfig, from_table
from oneshot.data.load import load
from oneshot.errors import InputError, OneshotError, UnknownNameError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.answers import Calibration
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs import train as jobs
from oneshot.runs import writer as recording
from oneshot.runs.reference import TAKING_DATA
from oneshot.runs.run import Run
from oneshot.runs.tensors import load_parameters, load_tensors, save_tensors
from oneshot.runs.writer import CHECKPOINT
from oneshot.samplers import PPRSampler, RandomSampler
from oneshot.system.checksums import read_sealed_json, write_sealed_json
from oneshot.system.files import replacing
from oneshot.training.observer import Observer

CPU = torch.device("cpu")
CALIBRATION = Calibration(0.5, -1.5, 7, {"after⁻¹": 0.25}, 0.04)


@pytest.fixture
def reasoner() -> Reasoner:
    sampler = PPRSampler(entity_ratio={"default": 0.4, "after⁻¹": 0.7}, steps=9, edge_score="sum")
    graph = chain_world(15).graph
    return Reasoner(graph, sampler, tiny_predictor().float(), CALIBRATION)


def answers_of(reasoner: Reasoner) -> list[Any]:
    questions = [("link 1", "next"), ("link 4", "after⁻¹"), ("link 9", "before")]
    return [reasoner.predict(*question, top=100) for question in questions]


def test_a_run_may_hold_its_relations_in_the_predictor(tmp_path: Path) -> None:
    """As those in `pretrained/`, which come without files of a data set."""
    run = saved_run(tmp_path / "run", 20)
    expected = Run.open(run).reasoner.predict("link 1", "next")
    names = list(Run(run).relations)
    (run / "relations.txt").unlink()
    with pytest.raises(InputError, match=r"relations\.txt"):
        Reasoner.load(run)
    tensors, about = load_tensors(run / "predictor.safetensors")
    save_tensors(run / "predictor.safetensors", tensors, about | {"relations": names})
    assert Run.open(run).reasoner.predict("link 1", "next") == expected


def test_what_is_saved_is_loaded_again(tmp_path: Path, reasoner: Reasoner) -> None:
    reasoner.save(tmp_path / "run")
    loaded = Reasoner.load(tmp_path / "run")
    assert answers_of(loaded) == answers_of(reasoner)
    assert loaded.calibration == reasoner.calibration
    assert loaded.graph.fingerprint == reasoner.graph.fingerprint
    assert loaded.sampler.budget == reasoner.sampler.budget
    assert (tmp_path / "run" / "graph" / "oneshot-graph.json").is_file()  # it came from no file
    with pytest.raises(InputError, match="created from a graph in memory; give a data set"):
        _ = Run.open(tmp_path / "run").data
    loaded.save(tmp_path / "again")
    assert answers_of(Reasoner.load(tmp_path / "again")) == answers_of(reasoner)
    loaded.calibration = None
    loaded.save(tmp_path / "run")  # in the place of the one it was loaded from
    assert Reasoner.load(tmp_path / "run").calibration is None


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was opened for reading, by name."""
    counts: Counter[str] = Counter()
    opening = io.open  # what `pathlib` opens files with

    def counting(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        counts[Path(file).name] += "r" in mode
        return opening(file, mode, *arguments, **options)

    monkeypatch.setattr(io, "open", counting)
    return counts


def test_a_run_is_read_once(tmp_path: Path, reads: Counter[str]) -> None:
    """For a prediction, whatever else is asked of the run."""
    data = load(write_world(tmp_path / "data", chain_world(15)))
    Reasoner(data.graph, PPRSampler(0.5), tiny_predictor().float()).save(tmp_path / "run")
    reads.clear()
    assert Reasoner.load(tmp_path / "run").predict("link 1", "next")
    assert (reads["config.toml"], reads["graph.json"], reads["train.tsv"]) == (1, 1, 1)
    reads.clear()
    run = Run.open(tmp_path / "run")
    assert run.files
    assert run.data.graph is run.base_graph is run.graph
    assert run.reasoner is run.reasoner
    run.live_graph().close()
    assert (reads["config.toml"], reads["graph.json"], reads["train.tsv"]) == (1, 1, 1)


def test_a_service_reads_its_run_once(tmp_path: Path, reads: Counter[str]) -> None:
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    from oneshot.serve.service import Service

    run = saved_run(tmp_path / "run", 12)
    reads.clear()
    service = Service(run)
    service.stop()
    assert (reads["config.toml"], reads["graph.json"]) == (1, 1)


def test_a_run_that_is_written_again_is_read_again(tmp_path: Path, reasoner: Reasoner) -> None:
    reasoner.save(tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.config.sampler.name == "ppr"
    assert run.reference.fingerprint == reasoner.graph.fingerprint
    other = chain_world(9).graph
    run.save(Reasoner(other, RandomSampler(0.5), reasoner.predictor))
    assert run.config.sampler.name == "random"
    assert run.reference.fingerprint == run.graph.fingerprint == other.fingerprint


def test_a_graph_from_a_file_is_read_from_there(tmp_path: Path) -> None:
    data = load(write_world(tmp_path / "data", chain_world(15)))
    reasoner = Reasoner(data.graph, PPRSampler(0.5), tiny_predictor().float())
    reasoner.save(tmp_path / "run")
    assert not (tmp_path / "run" / "graph").exists()
    assert answers_of(Reasoner.load(tmp_path / "run")) == answers_of(reasoner)
    assert torch.equal(Run.open(tmp_path / "run").data.test, data.test)
    with (tmp_path / "data" / "train.tsv").open("a") as file:
        file.write("link 0\tafter\tlink 7\n")
    with pytest.raises(InputError, match="the graph has changed since this run was created"):
        Reasoner.load(tmp_path / "run")
    changed = load(tmp_path / "data").graph
    with pytest.raises(InputError, match="the graph has changed"):
        Run(tmp_path / "run").reference.check_graph(changed)
    assert (
        Reasoner.load(tmp_path / "run", graph=changed).graph.num_facts == data.graph.num_facts + 1
    )


def test_another_graph_is_matched_by_the_names_of_its_relations(
    tmp_path: Path, reasoner: Reasoner
) -> None:
    reasoner.save(tmp_path / "run")
    order = [2, 0, 1]  # the relation that was number 0 is number 2 now
    names = Vocabulary.from_names(["after", "before", "next", "unused"], "relation")
    facts = reasoner.graph.facts.numpy().copy()
    facts[:, 1] = np.array(order)[facts[:, 1]]
    other = KnowledgeGraph.from_facts(facts, reasoner.graph.entities, names)
    loaded = Reasoner.load(tmp_path / "run", graph=other)
    assert answers_of(loaded) == answers_of(reasoner)
    renumbered = loaded.renumbered(other, torch.from_numpy(facts).long())
    assert torch.equal(renumbered, reasoner.graph.facts.long())
    loaded.save(tmp_path / "again")
    assert answers_of(Reasoner.load(tmp_path / "again")) == answers_of(reasoner)
    strange = Vocabulary.from_names(["next", "aftr", "before"], "relation")
    graph = KnowledgeGraph.from_facts(reasoner.graph.facts, reasoner.graph.entities, strange)
    with pytest.raises(UnknownNameError, match="unknown relation 'aftr'; did you mean 'after'"):
        Reasoner.load(tmp_path / "run", graph=graph)


def test_the_seed_of_a_random_sampler_is_kept(tmp_path: Path, reasoner: Reasoner) -> None:
    drawn = Reasoner(reasoner.graph, RandomSampler(0.5, seed=11), reasoner.predictor)
    drawn.save(tmp_path / "run")
    assert answers_of(Reasoner.load(tmp_path / "run")) == answers_of(drawn)


def test_settings_change_a_loaded_reasoner(tmp_path: Path, reasoner: Reasoner) -> None:
    reasoner.save(tmp_path / "run")
    wide = Run.open(tmp_path / "run", ["sampler.entity_ratio=1.0"]).reasoner
    assert wide.predict("link 1", "next").num_entities == 15
    other = Run.open(tmp_path / "run", ["predictor.dim=4"])
    with pytest.raises(InputError, match=r"the tensor .* belongs to another configuration"):
        _ = other.reasoner
    with pytest.raises(InputError, match=r"unknown option sampler\.ratio"):
        Run.open(tmp_path / "run", ["sampler.ratio=1.0"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.toml", "format = 1\n[predictor]\ndmi = 3\n", "did you mean predictor.dim?"),
        ("config.toml", "format = 1\n[predictor]\ndim = 'x'\n", "must be an integer"),
        ("config.toml", "format = 9\n", "format 9 is unknown"),
        ("config.toml", None, "is not a run (there is no config.toml)"),
        ("relations.txt", None, "relations.txt: No such file"),
        ("relations.txt", "next\nafter\n", "relations.txt was changed or damaged"),
        ("predictor.safetensors", None, "this run has no trained predictor yet"),
        ("predictor.safetensors", "torn", "not a readable safetensors file"),
        ("calibration.json", "{}", "not a calibration"),
        ("calibration.json", "[", "not valid JSON"),
        ("calibration.json", "[" * 100_000, "calibration.json: not valid JSON"),
        ("calibration.json", '{"slope": 1' + "0" * 5000 + "}", "calibration.json: not valid JSON"),
        ("calibration.json", '{"slope": NaN, "offset": 0, "queries": 1}', "not a calibration"),
        ("calibration.json", '{"slope": 1, "offset": -Infinity, "queries": 1}', "not a calib"),
        (
            "calibration.json",
            '{"slope": 1, "offset": 0, "queries": 1, "offsets": {"r": NaN}}',
            "not a calib",
        ),
        (
            "calibration.json",
            '{"slope": 1, "offset": 0, "queries": 1, "offsets": 3}',
            "not a calib",
        ),
        (
            "calibration.json",
            '{"slope": 1, "offset": 0, "queries": 1, "rivals": []}',
            "not a calib",
        ),
        ("config.toml", "x = " + "[" * 100_000, "config.toml: not valid TOML"),
        ("config.toml", "x = 1" + "0" * 5000, "config.toml: not valid TOML"),
        ("config.toml", "[predictor]\ndim = 0x" + "f" * 5000, "predictor.dim must be an integer"),
        ("config.toml", "format = 0x" + "f" * 5000, "is unknown; this version reads format 1"),
        ("graph.json", "3", "not written by oneshot"),
        ("graph.json", None, "graph.json: No such file"),
        ("graph.json", '{"origin": {"source": 3}}', "not written by oneshot"),
        ("graph.json", '{"origin": null}', "the graph has changed since this run was created"),
        ("graph/oneshot-graph.json", None, "its graph is missing"),
        ("graph/oneshot-graph.json", "[" * 100_000, "not a whole saved graph"),
        *(
            ("graph.json", f'{{"origin": {{"source": "world", "options": {options}}}}}', message)
            for options, message in (
                ('{"foo": 1}', "graph.json: not written by oneshot (origin.options.foo)"),
                ('{"seed": "x"}', "(origin.options.seed)"),
                ('{"seed": true}', "(origin.options.seed)"),
                ('{"valid_share": "x"}', "(origin.options.valid_share)"),
                ('{"valid_share": NaN}', "(origin.options.valid_share)"),
                ("[[1, 2, 3]]", "graph.json: not written by oneshot"),
            )
        ),
    ],
)
def test_a_damaged_run_is_told(
    tmp_path: Path, reasoner: Reasoner, name: str, content: str | None, message: str
) -> None:
    reasoner.save(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(OneshotError) as caught:
        Reasoner.load(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tensors_of_another_shape_are_named(tmp_path: Path) -> None:
    path = tmp_path / "predictor.safetensors"
    save_tensors(path, tiny_predictor().state_dict(), {"epoch": 3})
    assert load_tensors(path)[1] == {"epoch": 3}
    with pytest.raises(InputError, match=r"is \[7, 2\] in the file, but \[9"):
        load_parameters(path, tiny_predictor(num_relations=4))
    with pytest.raises(InputError, match=r"tensor layers\.2.* is missing in the file"):
        load_parameters(path, tiny_predictor(num_layers=3))
    with pytest.raises(InputError, match=r"but not expected by the configuration"):
        load_parameters(path, tiny_predictor(num_layers=1))
    save_tensors(tmp_path / "empty", {}, {})
    assert load_tensors(tmp_path / "empty") == ({}, {})


def test_a_place_that_is_no_run_is_left_alone(tmp_path: Path, reasoner: Reasoner) -> None:
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(InputError, match="was not written by oneshot; choose another"):
        reasoner.save(tmp_path)
    with pytest.raises(InputError, match="was not written by oneshot; choose another"):
        jobs.train_run(chain_world(15), tmp_path, from_table({}), CPU)
    assert listing(tmp_path) == ["thesis.doc"]


def contents(path: Path) -> dict[str, bytes]:
    """All files under a directory."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", None),  # alone, it may be the user's own
        ("graph.json", '{"nodes": []}'),
        ("checkpoint/mine.txt", "mine"),
        ("graph/mine.npy", "mine"),
        ("relations.txt/mine.txt", "mine"),
    ],
)
def test_what_lies_in_a_run_and_is_not_ours_is_left_alone(
    tmp_path: Path, reasoner: Reasoner, name: str, content: str | None
) -> None:
    if content is None:
        (tmp_path / name).write_text("[training]\nepochs = 2\n")
    else:
        if "/mine" in name or name == "graph.json":
            reasoner.save(tmp_path)
        if (tmp_path / name).parent.is_file():
            (tmp_path / name).parent.unlink()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="not written by oneshot"):
        reasoner.save(tmp_path)
    for resume in (False, True):
        with pytest.raises(InputError, match="not written by oneshot"):
            jobs.train_run(chain_world(15), tmp_path, from_table({}), CPU, resume)
    assert contents(tmp_path) == before


def test_a_run_does_not_replace_the_graph_it_is_about(tmp_path: Path, reasoner: Reasoner) -> None:
    reasoner.save(tmp_path / "run")
    chain_world(15).save(tmp_path / "run" / "graph")  # with its splits
    before = contents(tmp_path)
    data = load(tmp_path / "run" / "graph")
    with pytest.raises(InputError, match="contains the source of the graph"):
        jobs.train_run(data, tmp_path / "run", from_table({}), CPU)
    with pytest.raises(InputError, match="contains the source of the graph"):
        Reasoner(data.graph, PPRSampler(0.5), reasoner.predictor).save(tmp_path / "run")
    assert contents(tmp_path) == before


def test_a_graph_that_is_gone_is_named(tmp_path: Path) -> None:
    data = load(write_world(tmp_path / "data", chain_world(15)))
    Reasoner(data.graph, PPRSampler(0.5), tiny_predictor().float()).save(tmp_path / "run")
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(InputError) as caught:
        Reasoner.load(tmp_path / "run")
    run, gone = tmp_path / "run", tmp_path / "data"
    assert str(caught.value) == (
        f"{run}: its graph {gone} was not found; put it there, set ONESHOT_DATA to the directory "
        f"that contains it, or give it with --data ({TAKING_DATA})"
    )


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 pages: 96 KiB on most machines."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={24 * mmap.PAGESIZE}", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_leaves_the_old_files(tiny_disk: Path) -> None:
    data = chain_world(15)
    data.graph.origin = {"source": "nowhere", "options": {}}
    config = small_config("training.epochs=2")
    run = tiny_disk / "run"
    jobs.train_run(data, run, config, CPU)
    (run / "result.json").unlink()
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    free = os.statvfs(tiny_disk)
    (tiny_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize))
    with pytest.raises((OneshotError, OSError), match="No space left"):
        jobs.train_run(data, run, config, CPU, resume=True)
    with pytest.raises((OneshotError, OSError), match="No space left"):
        Reasoner(data.graph, PPRSampler(0.5), tiny_predictor(dim=20).float()).save(run)
    assert {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (tiny_disk / "ballast").unlink()
    assert jobs.train_run(data, run, config, CPU, resume=True)["epochs"] == 2


@pytest.mark.parametrize("moment", ["write", "sync"])
def test_what_cannot_be_written_is_named_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    path = tmp_path / "state.safetensors"
    save_tensors(path, {"x": torch.zeros(3)}, {})
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = (os, "fsync") if moment == "sync" else (Path, "write_bytes")
    monkeypatch.setattr(*place, full)
    with pytest.raises((OneshotError, OSError), match=r"No space left on device") as caught:
        save_tensors(path, {"x": torch.ones(3)}, {})
    assert "state.safetensors" in str(caught.value)
    assert path.read_bytes() == before
    assert listing(tmp_path) == ["state.safetensors"]


def test_errors_without_a_number_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^odd$"), replacing(tmp_path / "x"):
        raise OSError("odd")


class Stop(Observer):
    """An observer that ends a training before its first epoch."""

    def on_start(self, trainer: object) -> None:
        raise KeyboardInterrupt


def test_an_older_run_is_replaced_as_a_whole(tmp_path: Path) -> None:
    data = chain_world(15)
    data.graph.origin = {"source": "nowhere", "options": {}}
    jobs.train_run(data, tmp_path, small_config("training.epochs=2"), CPU)
    small = small_config("training.epochs=1", "predictor.dim=4")
    jobs.train_run(data, tmp_path, small, CPU)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert json.loads((tmp_path / "result.json").read_text())["epochs"] == 1
    assert load_tensors(tmp_path / CHECKPOINT)[1]["state"]["epoch"] == 1
    # It stays as it is until the first epoch of its successor is done.
    before = contents(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        jobs.train_run(data, tmp_path, small, CPU, observers=[Stop()])
    assert contents(tmp_path) == before


def test_a_run_that_cannot_be_trained_leaves_the_older_one(tmp_path: Path) -> None:
    data = chain_world(15)
    data.graph.origin = {"source": "nowhere", "options": {}}
    jobs.train_run(data, tmp_path, small_config("training.epochs=1"), CPU)
    before = contents(tmp_path)
    for setting, message in (
        ("sampler.entity_ratio={default=0.5,nope=0.2}", "unknown relation 'nope'"),
        ("sampler.max_edges={nope=2}", "unknown relation 'nope'"),
        ("training.learning_rate=1000", "the loss is not finite"),
    ):
        wild = ("predictor.activation=identity", "predictor.gate=false", "predictor.num_layers=9")
        changed = small_config(*wild, "training.batch_size=4", setting)
        with pytest.raises(OneshotError, match=message):
            jobs.train_run(data, tmp_path, changed, CPU)
        assert contents(tmp_path) == before


def test_a_run_is_never_mixed_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at any moment, a run is the old one, the new one, or has no checkpoint.

    On a system that cannot exchange two directories in one step.
    """
    monkeypatch.setattr(recording, "exchange", lambda one, other: False)
    names = ["config.toml", "graph.json", "relations.txt", "metrics.jsonl"]
    names += ["predictor.safetensors", "checkpoint/state.safetensors"]

    def write(path: Path, text: str, *more: str) -> dict[str, bytes]:
        for name in (*names, *more):
            (path / name).parent.mkdir(exist_ok=True, parents=True)
            (path / name).write_text(text)
        return contents(path)

    class StoppedError(Exception):
        pass

    def stopping(count: int, act: Any) -> Any:
        left = [count]

        def step(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise StoppedError
            return act(*arguments, **options)

        return step

    seen = set()
    for moment in range(30):
        run, staged = tmp_path / str(moment), tmp_path / f"{moment}-staged"
        old = write(run, "old", "result.json", "calibration.json", "graph/facts.npy")
        new = write(staged, "new")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", stopping(moment - 7, Path.replace))
            patch.setattr(Path, "unlink", stopping(moment, Path.unlink))
            with contextlib.suppress(StoppedError):
                recording._replace_run(Run(run), Run(staged))
        found = contents(run)
        if found not in (old, new):
            assert str(CHECKPOINT) not in found
            assert "graph.json" in found
            trained = {"predictor.safetensors", "result.json", "calibration.json", "config.toml"}
            assert len({found[name] for name in trained & found.keys()}) <= 1
        seen.add("old" if found == old else "new" if found == new else "between")
    assert seen == {"old", "new", "between"}


def test_a_data_set_without_test_facts_can_be_trained_on(tmp_path: Path) -> None:
    data = chain_world(15)
    data.graph.origin = {"source": "nowhere", "options": {}}
    object.__setattr__(data, "test", data.test[:0])
    result = jobs.train_run(data, tmp_path, small_config(), CPU)
    assert result["test"] is None
    assert result["valid"]["queries"] == 2 * len(data.valid)


def test_a_smaller_graph_has_subgraphs_of_as_many_entities(tmp_path: Path) -> None:
    big, small = chain_world(60), chain_world(30)
    shape = PredictorConfig(num_layers=2, dim=4, attention_dim=2)

    def counts(sampler: SamplerConfig, graph: KnowledgeGraph, *settings: str) -> list[int]:
        run = Run(tmp_path / "run")
        shutil.rmtree(run.path, ignore_errors=True)
        run.save(build_reasoner(big.graph, Config(sampler, shape)))
        found = Run(run.path, settings).reasoner_on(graph)
        every = torch.arange(2 * graph.num_relations)
        return found.sampler.budget.entity_counts(graph, every).tolist()

    def one(sampler: SamplerConfig, graph: KnowledgeGraph, *settings: str) -> int:
        found = set(counts(sampler, graph, *settings))
        assert len(found) == 1
        return found.pop()

    assert one(SamplerConfig(entity_ratio=0.3), big.graph) == 18
    assert one(SamplerConfig(entity_ratio=0.3), small.graph) == 18
    assert one(SamplerConfig(entity_ratio=0.9), small.graph) == 30  # all of them
    assert one(SamplerConfig(entity_ratio=0.3), chain_world(90).graph) == 27  # the same share
    assert one(SamplerConfig(), small.graph) == 6  # the default share
    assert one(SamplerConfig(max_entities=7), small.graph) == 7
    # What the user sets holds as it is.
    assert one(SamplerConfig(entity_ratio=0.3), small.graph, "sampler.entity_ratio=0.2") == 6
    assert one(SamplerConfig(entity_ratio=0.3), small.graph, "sampler.max_entities=4") == 4
    name = small.graph.relations[0]
    by_name = counts(SamplerConfig(entity_ratio={name: 0.2}), small.graph)
    assert (by_name[0], by_name[1]) == (12, 6)


def test_a_run_of_an_earlier_version_keeps_its_share(tmp_path: Path) -> None:
    shape = PredictorConfig(num_layers=2, dim=4, attention_dim=2)
    sampler = SamplerConfig(entity_ratio=0.3)
    Run(tmp_path / "run").save(build_reasoner(chain_world(60).graph, Config(sampler, shape)))
    file = tmp_path / "run/graph.json"
    graph = chain_world(30).graph
    for entities in (None, "60", True, -60, 6.5):
        about = read_sealed_json(file)
        about.pop("entities", None)
        if entities is not None:
            about["entities"] = entities
        write_sealed_json(file, about)
        budget = Run(tmp_path / "run").reasoner_on(graph).sampler.budget
        assert budget.entity_counts(graph, torch.tensor([0])).tolist() == [9]
