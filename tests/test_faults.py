"""Faults of files and disks: flipped bits, truncation, links and pipes, full, read-only."""

import json
import mmap
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.commands import Command
from tests.support.damage import contents, write_base
from tests.support.official import checkpoint
from tests.support.samples import settings

from oneshot.errors import InputError
from oneshot.graph.storage import open_graph, verify_graph
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs import train as jobs
from oneshot.runs.run import Run


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("faults"))


# Damaged files.


def what_a_run_says(path: Path) -> object:
    """All that is read from a run when it is asked."""
    reasoner = Run.open(path).reasoner
    answers = [reasoner.predict(name, "next", top=5) for name in ("link 1", "link 7")]
    parameters = [tensor.tolist() for tensor in reasoner.predictor.state_dict().values()]
    return answers, parameters, Run(path).config, Run.open(path).graph.facts.tolist()


def what_a_graph_says(path: Path) -> object:
    graph, splits, about = open_graph(path)
    arrays = (graph.facts, graph.edges.source, *splits.values())
    return list(graph.entities), list(graph.relations), about, [a.tolist() for a in arrays]


RUN_FILES = ["config.toml", "relations.txt", "predictor.safetensors", "graph.json"]
RUN_FILES += ["calibration.json", "facts.sqlite"]


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_flipped_bit_in_a_run_is_found_or_means_nothing(
    base: Path, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "changed", run)
    whole, expected = (run / name).read_bytes(), what_a_run_says(run)
    generator = random.Random(name)
    found = 0
    for _ in range(40):
        place = generator.randrange(len(whole))
        bit = 1 << generator.randrange(8)
        (run / name).write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        fault = None
        try:
            assert what_a_run_says(run) == expected, place
        except InputError as error:
            fault = str(error)
        found += fault is not None
        assert fault is None or str(run) in fault
    # Some bits of JSON are but blanks, and many pages of SQLite are empty.
    assert found >= (1 if name == "facts.sqlite" else 20)


@pytest.mark.parametrize("place", ["saved", "made/graph"])
def test_a_flipped_bit_in_a_saved_graph_is_found(base: Path, tmp_path: Path, place: str) -> None:
    graph = tmp_path / "graph"
    shutil.copytree(base / place, graph)
    expected = what_a_graph_says(graph)
    generator = random.Random(place)
    for file in sorted(graph.iterdir()):
        whole = file.read_bytes()
        for _ in range(4):
            at = generator.randrange(len(whole))
            file.write_bytes(
                whole[:at] + bytes([whole[at] ^ 1 << generator.randrange(8)]) + whole[at + 1 :]
            )
            try:
                assert what_a_graph_says(graph) == expected
            except InputError:
                continue
            assert file.suffix == ".json"  # a blank, or a key that nobody looks for
        file.write_bytes(whole)
    verify_graph(graph)


@pytest.mark.parametrize("name", [*RUN_FILES, "checkpoint/state.safetensors", "result.json"])
def test_a_truncated_file_of_a_run_is_found_or_written_again(
    base: Path, tmp_path: Path, name: str
) -> None:
    """By the command that goes on with the run; it never works with half a file."""
    run = tmp_path / "run"
    shutil.copytree(base / "changed", run)
    whole, expected = (run / name).read_bytes(), what_a_run_says(run)
    data = Run.open(run).data
    for share in (0.0, 0.3, 0.6, 0.95):
        (run / name).write_bytes(whole[: int(share * len(whole))])
        before, fault = contents(run), None
        try:
            jobs.train_run(data, run, Run(run).config, torch.device("cpu"), resume=True)
            assert what_a_run_says(run) == expected
        except InputError as error:
            fault = str(error)
        # The last pages of a database may hold nothing.
        assert (fault is None) == (name in _FOLLOWING) or name == "facts.sqlite", (share, fault)
        if fault is not None:
            assert name in fault
            assert contents(run) == before


_FOLLOWING = ("relations.txt", "predictor.safetensors", "calibration.json", "result.json")


def test_a_damaged_record_of_epochs_is_written_again(
    base: Path, tmp_path: Path, run: Command
) -> None:
    out = tmp_path / "run"
    shutil.copytree(base / "run", out)
    whole = (out / "metrics.jsonl").read_bytes()
    (out / "metrics.jsonl").write_bytes(whole.replace(b"loss", b"lozz", 1))
    told = run("train", base / "data", "--out", out, "--resume")
    assert told.code == 0
    assert "metrics.jsonl was missing or damaged; restored from the checkpoint" in told.err
    assert (out / "metrics.jsonl").read_bytes() == whole


def test_a_damaged_result_is_found_out_again(base: Path, tmp_path: Path, run: Command) -> None:
    out = tmp_path / "run"
    shutil.copytree(base / "run", out)
    result = json.loads((out / "result.json").read_text())
    text = (out / "result.json").read_text()
    (out / "result.json").write_text(text.replace('"epochs": 2', '"epochs": 3'))
    again = run("train", base / "data", "--out", out, "--resume", "--json").json
    assert again["already_finished"] is False
    assert (again["epochs"], again["test"]["mrr"]) == (2, result["test"]["mrr"])


def test_a_configuration_changed_by_hand_says_how_to_keep_the_change(
    base: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "run", run)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("restart = 0.15", "restart = 0.2"))
    with pytest.raises(
        InputError, match=r"config\.toml was changed or damaged .* remove the first line"
    ):
        Reasoner.load(run)
    changed = text.replace("restart = 0.15", "restart = 0.2").splitlines(keepends=True)
    assert changed[0].startswith("# checksum: ")
    (run / "config.toml").write_text("".join(changed[1:]))
    assert Run.open(run).reasoner.sampler.restart == 0.2  # type: ignore[attr-defined]


def test_nothing_is_written_to_where_a_link_in_a_run_leads(
    base: Path, tmp_path: Path, run: Command
) -> None:
    """A run from a stranger may hold links to files of the user's."""
    for name in ("predictor.safetensors", "metrics.jsonl", "facts.sqlite", "checkpoint"):
        out, mine = tmp_path / f"run-{name}", tmp_path / f"mine-{name}"
        shutil.copytree(base / "changed", out)
        if (out / name).is_dir():
            (out / name).rename(mine)
        else:
            (out / name).unlink()
            mine.write_text("mine")
        (out / name).symlink_to(mine)
        before = contents(tmp_path)
        told = run("train", base / "data", "--out", out, "--resume")
        assert told.code == 2
        assert f"contains {name!r}, which was not written by oneshot" in told.err
        if name == "facts.sqlite":
            told = run("facts", out, "add", "x", "next", "link 1")
            assert (told.code, "is a symbolic link" in told.err) == (2, True)
        assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["predictor.safetensors", "relations.txt", "graph.json"])
def test_a_pipe_in_a_run_is_not_waited_for(base: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(base / "run", run)
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(
        InputError, match=r"is a pipe or a device|this run has no trained predictor"
    ):
        Reasoner.load(run)


def test_a_store_of_facts_notices_a_changed_row(base: Path, tmp_path: Path) -> None:
    import sqlite3

    run = tmp_path / "run"
    shutil.copytree(base / "changed", run)
    database = sqlite3.connect(run / "facts.sqlite")
    database.execute("UPDATE changes SET tail = 'link 2' WHERE tail = 'link 1'")
    database.commit()
    database.close()
    with pytest.raises(InputError, match=r"facts\.sqlite: not a whole store .* wrong checksum"):
        Reasoner.load(run)


def test_resuming_never_replaces_a_finished_run(base: Path, tmp_path: Path, run: Command) -> None:
    path = tmp_path / "run"
    shutil.copytree(base / "run", path)
    shutil.rmtree(path / "checkpoint")
    before = contents(path)
    resume = ("train", base / "data", "--out", path, "--resume", "--json")
    assert run(*resume).json["already_finished"]
    other = run(*resume, *settings("training.epochs=1"))
    assert (other.code, "another configuration" in other.err) == (2, True)
    (path / "result.json").unlink()  # as those in `pretrained/` are
    without = run(*resume)
    assert (without.code, "oneshot evaluate" in without.err) == (2, True)
    before.pop("result.json")
    assert contents(path) == before


# Disks.


def commands(base: Path, out: Path) -> dict[str, list[object]]:
    """The writing commands; all write into `out`."""
    data, run = base / "data", base / "run"
    torch.save({"model_state_dict": checkpoint(7, True, True, False)}, base / "official.pt")
    (base / "questions.tsv").write_text("link 1\tnext\nlink 2\tafter\n")
    small = settings("training.epochs=1")
    return {
        "train": ["train", data, "--out", out / "run", *small],
        "data": ["data", data, "--save", out / "saved"],
        "predict": ["predict", run, "--queries", base / "questions.tsv", "--out", out / "a.jsonl"],
        "coverage": ["coverage", data, "--ratio", "0.5", "--plot", out / "coverage.png"],
        "facts": ["facts", out / "changed", "add", "x", "next", "link 1"],
        "export": ["facts", base / "changed", "export", "--out", out / "facts.tsv"],
        "import": ["import-official", base / "official.pt", "--data", data, "--out", out / "own"],
        "paper": ["paper", "hops", "--quick", "--out", out / "reports"],
        "bench": ["bench", "sampler", data, "--queries", "4", "--with", "none", "--out", out / "b"],
    }


def mounted(path: Path, pages: int) -> None:
    """Mount a file system of so many pages, which are of 4 KiB on most machines."""
    path.mkdir(exist_ok=True)
    options = f"size={pages * mmap.PAGESIZE}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system without a free byte that holds an older file of each name."""
    path = tmp_path / "disk"
    mounted(path, 512)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    free = os.statvfs(path)
    (path / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize))


def older_files(base: Path, out: Path) -> None:
    """What the commands would replace."""
    # Whoever has looked at the facts may have left empty files of SQLite, which would come and go.
    scratch = shutil.ignore_patterns("*-shm", "*-wal")
    for name in ("run", "changed"):
        shutil.copytree(base / name, out / name, ignore=scratch)
    shutil.copytree(base / "made", out / "own")
    shutil.copytree(base / "saved", out / "saved")
    for name in ("a.jsonl", "coverage.png", "facts.tsv", "b"):
        (out / name).write_text("old")


def refused(run: Command, command: list[object], out: Path, name: str) -> str:
    """Run a command that cannot write; one line, and nothing is lost."""
    before = lasting(out)
    result = run(*command)
    assert result.code == 2, (name, result)
    last = result.err.strip().splitlines()[-1]
    assert last.startswith("error: "), (name, result.err)
    assert "Traceback" not in result.err
    assert lasting(out) == before, name
    return last


def lasting(out: Path) -> dict[str, bytes]:
    """All files but those that SQLite makes and removes as it likes."""
    found = contents(out)
    return {name: found[name] for name in found if not name.endswith(("-shm", "-wal"))}


def test_a_full_disk_is_told_by_every_command_and_loses_nothing(
    base: Path, full_disk: Path, run: Command
) -> None:
    older_files(base, full_disk)
    fill(full_disk)
    for name, command in commands(base, full_disk).items():
        told = refused(run, command, full_disk, name)
        assert "No space left" in told or "full" in told, (name, told)
    # A store that could not be begun is not left behind: the run answers as before.
    first = ["facts", full_disk / "run", "add", "x", "next", "link 1"]
    assert "disk is full" in refused(run, first, full_disk, "first fact")
    assert run("predict", full_disk / "run", "link 1", "next").code == 0


def test_a_read_only_disk_is_told_by_every_command_and_can_be_read(
    base: Path, tmp_path: Path, run: Command
) -> None:
    disk = tmp_path / "disk"
    mounted(disk, 2048)
    try:
        older_files(base, disk)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for name, command in commands(base, disk).items():
            told = refused(run, command, disk, name)
            assert "ead-only" in told or "readonly" in told, (name, told)
        assert run("predict", disk / "changed", "new", "next", "--json").json["answers"]
        assert run("evaluate", disk / "run", "--limit", 4, "--json").json["queries"] == 4
        assert run("data", disk / "saved", "--json").json["entities"] == 20
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
