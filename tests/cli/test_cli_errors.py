"""Tests of bad input on the command line: one line that says what and where, exit code 2."""

import gzip
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from tests.support.commands import Command, listing
from typer.models import OptionInfo

from oneshot import cli
from oneshot.cli import bench

FACTS = "a\tr\tb\nb\tr\tc\n"


@pytest.fixture
def bad_input(tmp_path: Path) -> Path:
    """A directory of things that are wrong."""
    contents = {
        "columns.tsv": b"a\tr\tb\na\tr\n",
        "latin.tsv": b"a\tr\tb\n\xe9\tr\tb\n",
        "empty.tsv": b"",
        "comments.csv": b"# nothing\n#\n",
        "cut.tsv.gz": gzip.compress(FACTS.encode(), mtime=0)[:-12],
        "cut.parquet": b"PAR1\x15\x04PAR1",
        "binary.tsv": bytes(range(256)) * 4,
        "binary.npz": bytes(range(256)) * 4,
        "table.json": b"[]",
        "strange/thesis.doc": b"mine",
        "only-train/train.tsv": FACTS.encode(),
        "twice/train.tsv": FACTS.encode(),
        "twice/train.csv": b"a,r,b\n",
        "broken/oneshot-graph.json": b"{}",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    np.savez(tmp_path / "large.npz", h=[0], r=[0], t=[10**12])
    np.savez(tmp_path / "negative.npz", h=[0], r=[0], t=[-1])
    np.savez(tmp_path / "pickle.npz", h=np.array([None]), r=[0], t=[1])
    return tmp_path


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("data columns.tsv", "columns.tsv, line 2: expected 3 tab-separated columns"),
        ("data latin.tsv", "latin.tsv, line 2: not valid UTF-8"),
        ("data empty.tsv --save out", "empty.tsv: the file is empty"),
        ("data comments.csv", "comments.csv: the file has no facts"),
        ("data cut.tsv.gz", "cut.tsv.gz: incomplete or invalid gzip file"),
        ("data cut.parquet --json", "cut.parquet: not a readable Parquet file"),
        ("data binary.tsv", "binary.tsv, line 1: expected 3"),
        ("data binary.npz", "binary.npz: not an NPZ file"),
        ("data table.json", "table.json: unknown format"),
        ("data large.npz --json", "entity id 1000000000000 "),
        ("data negative.npz", "entity id -1"),
        ("data pickle.npz", "pickle.npz: not a readable NPZ file"),
        ("data strange", "strange: no train split"),
        ("data only-train", "no valid split"),
        ("data twice", "more than one train split: train.csv, train.tsv"),
        ("data broken", "broken: not a whole saved graph"),
        ("data nowhere.tsv --json", "unknown data set 'nowhere.tsv'"),
        ("data family:3", "family:3: people must be 100 to 20,000,000, not 3"),
        ("data facts.tsv --device cuda:x", "unknown device 'cuda:x'"),
        ("data facts.tsv --device meta", "device 'meta' is not supported"),
        # The place is looked at before the data are read.
        ("data columns.tsv --save strange", "strange exists and was not written by oneshot"),
        ("data facts.tsv --save columns.tsv", "columns.tsv exists and is not a directory"),
        ("data facts.tsv --save columns.tsv/x", "columns.tsv is not a directory"),
        ("coverage facts.tsv --ratio 0", "--ratio: 0 must be above 0 and at most 1"),
        ("coverage facts.tsv --ratio 0.1,1.5", "--ratio: 1.5 must be above 0"),
        ("coverage facts.tsv --ratio nan", "--ratio: nan must be above 0"),
        ("coverage facts.tsv --ratio some", "--ratio: 'some' is not a number"),
        ("coverage facts.tsv --ratio ,", "--ratio is empty"),
        ("coverage facts.tsv --max-entities 0", "'0' is not an integer"),
        ("coverage facts.tsv --max-entities 1" + "0" * 5000, "is not an integer"),
        ("coverage facts.tsv --max-entities 3 --ratio 1", "either --ratio or --max-entities"),
        ("coverage facts.tsv --sampler ppr,prr", "unknown sampler 'prr'; did you mean 'ppr'"),
        ("coverage facts.tsv --sampler ,", "--sampler is empty"),
        ("coverage facts.tsv --split tst --json", "unknown split 'tst'; did you mean"),
        ("coverage facts.tsv --plot x.txt", "x.txt: unsupported suffix for a plot; use .png"),
        (
            "coverage facts.tsv --plot columns.tsv/x.png",
            "columns.tsv/x.png: its parent is not a directory",
        ),
        ("coverage facts.tsv", "the test split of facts.tsv is empty"),
        ("coverage columns.tsv --plot x.png", "columns.tsv, line 2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Command, bad_input: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.chdir(bad_input)
    (bad_input / "facts.tsv").write_text(FACTS)
    before = listing(bad_input)
    result = run(*command.split())
    lines = result.err.strip().splitlines()
    assert (result.code, result.out, len(lines)) == (2, "", 1), result.err
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert listing(bad_input) == before
    assert (bad_input / "columns.tsv").read_text() == "a\tr\tb\na\tr\n"


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    (tmp_path / "facts.tsv").write_text(FACTS)
    return tmp_path / "facts.tsv"


def test_a_missing_gpu_is_named(run: Command, facts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run("data", facts, "--device", "cuda")
    assert result == (
        2,
        "",
        "error: no CUDA device is available; use --device cpu or auto\n",
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert "no device 'cuda:7'" in run("data", facts, "--device", "cuda:7").err


WRONG_USE = [
    ("dota", "unknown command 'dota'; did you mean 'data'? (see `oneshot --help`)"),
    ("xyzzy", "unknown command 'xyzzy' (see `oneshot --help`)"),
    ("--no-such-option", "unknown option '--no-such-option' (see `oneshot --help`)"),
    ("data", "missing argument DATA (see `oneshot data --help`)"),
    ("train world", "missing option --out (see `oneshot train --help`)"),
    (
        "data x --sed 1",
        "unknown option '--sed'; did you mean '--seed' or '--save'? (see `oneshot data --help`)",
    ),
    ("data x --seed", "option '--seed' requires an argument (see `oneshot data --help`)"),
    ("bench preditcor", "unknown command 'preditcor'; did you mean 'predictor'? (see `oneshot be"),
    ("bench sampler x --no", "unknown option '--no'"),
    # How these go on is up to typer.
    ("data x --seed -1", "--seed: "),
    ("data x --seed one", "--seed: "),
    ("coverage x --limit 0", "--limit: "),
    ("data x y", "got unexpected extra argument"),
    # Nothing of this reaches the terminal as it is.
    ("data x --\x1b[2J", "unknown option '--\\x1b[2J'"),
    ("data x \x1b[2J", "got unexpected extra argument"),
]


@pytest.mark.parametrize("width", ["40", "200"])
@pytest.mark.parametrize(("command", "message"), WRONG_USE)
def test_wrong_use_is_one_line_and_exit_code_2(
    run: Command, monkeypatch: pytest.MonkeyPatch, command: str, message: str, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    result = run(*command.split(" "))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")
    assert result.err.endswith(" --help`)\n")
    assert result.err.count("\n") == 1
    assert result.err.strip("\n").isprintable()


@pytest.mark.parametrize("module", [True, False], ids=["module", "command"])
@pytest.mark.parametrize("number", [0, 3, 5])
def test_wrong_use_in_a_process_of_its_own(number: int, module: bool) -> None:
    script = [str(Path(sys.executable).with_name("oneshot"))]
    command, message = WRONG_USE[number]
    started = [sys.executable, "-m", "oneshot"] if module else script
    # Where typer would draw boxes and colours.
    environment = os.environ | {"COLUMNS": "40", "FORCE_COLOR": "1", "GITHUB_ACTIONS": "true"}
    done = subprocess.run([*started, *command.split()], capture_output=True, env=environment)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == [f"error: {message}"]


def test_a_bad_value_found_by_a_command_is_told_alike(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise typer.BadParameter("no good,\nfor two reasons.", param_hint="--device")

    monkeypatch.setattr("oneshot.system.devices.find_device", fail)
    message = "invalid value for --device: no good, for two reasons (see `oneshot data --help`)"
    assert run("data", "world") == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("command", [(), ("bench",)])
def test_nothing_asked_shows_the_help(run: Command, command: tuple[str, ...]) -> None:
    result = run(*command)
    assert (result.code, result.err) == (2, "")
    assert "Usage: oneshot" in result.out
    assert "--help" in result.out


def test_ctrl_c_is_exit_code_130(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("oneshot.system.devices.find_device", interrupt)
    result = run("data", "world")
    assert (result.code, result.out, result.err.strip()) == (130, "", "")


def test_an_option_named_like_its_value_is_named_in_full() -> None:
    """Some versions of typer would else call `file`, shown as FILE, `--FILE`."""
    functions = [*cli.COMMANDS, bench.sampler, bench.predictor, bench.end_to_end, bench.scale]
    seen = 0
    for function in functions:
        for name, parameter in inspect.signature(function).parameters.items():
            for info in getattr(parameter.annotation, "__metadata__", ()):
                if isinstance(info, OptionInfo) and (info.metavar or "").lower() == name:
                    seen += 1
                    assert info.default == f"--{name}", (function.__name__, name)
    assert seen


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
            ),
            "out of memory",
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (OSError(28, "No space left on device", "x.npy"), "x.npy: No space left on device"),
        (OSError("odd"), "odd"),
    ],
)
def test_faults_of_the_machine_are_told(
    run: Command, facts: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("oneshot.data.load.Dataset.save", fail)
    result = run("data", facts, "--save", facts.parent / "saved", "--json")
    assert (result.code, result.out) == (2, "")
    assert f"error: {message}" in result.err
    assert listing(facts.parent) == ["facts.tsv"]
