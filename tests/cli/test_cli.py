"""Tests of the command line: exit codes, what goes to stdout, and messages without tracebacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.support.commands import Command, Result, listing
from tests.support.services import saved_run

import oneshot
from oneshot.cli import app
from oneshot.data.load import load
from oneshot.runs.reference import TAKING_DATA
from oneshot.runs.run import Run

FACTS = "".join(f"n {i % 13}\tr{i % 3}\tn {i * i % 11}\n" for i in range(120))


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    (tmp_path / "facts.tsv").write_text(FACTS)
    return tmp_path / "facts.tsv"


def test_the_version(run: Command) -> None:
    assert run("--version") == Result(0, f"{oneshot.__version__}\n", "")


@pytest.mark.parametrize(
    "command", [(), ("data",), ("coverage",), ("bench", "sampler"), ("bench", "predictor")]
)
def test_help(run: Command, command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.code == 0
    assert "Usage" in result.out


def test_the_commands_that_take_another_graph() -> None:
    """Errors name them, as advice that can be followed."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    taking = {
        name
        for name, command in group.commands.items()
        if {"run", "data"} <= {parameter.name for parameter in command.params}
    }
    assert set(TAKING_DATA.split(", ")) == taking


def test_data_as_json(run: Command, facts: Path) -> None:
    value = run("data", facts, "--json", "--device", "cpu").json
    distinct = len(set(FACTS.splitlines()))
    assert value["name"] == "facts.tsv"
    assert (value["entities"], value["relations"]) == (13, 3)
    assert value["train"] + value["valid"] + value["test"] == distinct
    assert value["duplicates"] == 120 - distinct
    assert value["unseen_entities"] == 0
    assert value["overlaps"] == {"train-valid": 0, "train-test": 0, "valid-test": 0}
    assert value["fingerprint"] == load(facts).graph.fingerprint
    assert run("data", facts, "--json", "--seed", 1).json["fingerprint"] != value["fingerprint"]


def test_data_as_a_table(run: Command, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text(FACTS)
    result = run("data", tmp_path)
    assert result.code == 0
    assert "unseen entities" in result.out
    assert "facts occur in both splits of train-valid" in result.err


@pytest.mark.parametrize("name", ["[bold]x.tsv", "[/b].tsv", ":bug: x.tsv", "ü 日本.tsv"])
def test_names_are_printed_as_they_are(run: Command, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(FACTS)
    assert path.name in run("data", path).out
    assert run("data", path, "--json").json["name"] == path.name
    path.write_text("x\n")
    assert str(path) in run("data", path).err


def test_json_is_in_ascii_where_the_terminal_is(
    facts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (facts.parent / "ü.tsv").write_text(FACTS)
    command = [sys.executable, "-m", "oneshot", "data", "ü.tsv", "--json"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=facts.parent, env=environment, capture_output=True)
    assert json.loads(done.stdout.decode("ascii"))["name"] == "ü.tsv"


def in_latin_1(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where terminals and pipes are not in UTF-8, nor is text in files."""
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "oneshot", *arguments]
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, encoding="latin-1"
    )


def test_letters_that_a_terminal_lacks_are_escaped(tmp_path: Path) -> None:
    saved = saved_run(tmp_path / "run", 8)
    shown = in_latin_1(tmp_path, "predict", "run", "link 1", "next", "--inverse", "--explain")
    assert (shown.returncode, shown.stderr.count("Traceback")) == (0, 0), shown.stderr
    assert "(link 1, next\\u207b¹, ?)" in shown.stdout
    # Data are never changed: they are written as they are, or not at all.
    Run(saved).live_graph().add([("ü →", "next", "link 1")])
    refused = in_latin_1(tmp_path, "facts", "run", "export")
    assert refused.returncode == 2
    assert "error: a name cannot be encoded for this output (" in refused.stderr
    assert "\\u2192" not in refused.stdout


def test_data_is_saved_and_opened_again(run: Command, facts: Path, tmp_path: Path) -> None:
    original = run("data", facts, "--json", "--save", tmp_path / "new" / "saved").json
    assert original.pop("saved") == str(tmp_path / "new" / "saved")
    assert run("data", tmp_path / "new" / "saved", "--json").json == original
    assert listing(tmp_path / "new")[0] == "saved"
    result = run("data", facts, "--save", tmp_path / "new" / "saved")
    assert (result.code, "saved: " in result.err) == (0, True)


def test_coverage_as_json(run: Command) -> None:
    names = "ppr,bfs,random_walk,pagerank,random"
    result = run("coverage", "family:150", "--sampler", names, "--ratio", "0.1, 0.5,1", "--json")
    rows = result.json["rows"]
    assert [row["sampler"] for row in rows] == names.split(",")
    data = load("family:150")
    for row in rows:
        assert list(row["coverage"]) == list(row["reachable"]) == ["0.1", "0.5", "1"]
        assert row["coverage"]["1"] == 1.0
        assert row["queries"] == 2 * len(data.test)
        assert row["seconds"] >= 0
    assert rows[0]["coverage"]["0.1"] > rows[4]["coverage"]["0.1"]


def test_coverage_options(run: Command) -> None:
    value = run(
        "coverage", "family:150", "--max-entities", "5,150", "--split", "valid", "--limit", 7,
        "--json",
    ).json  # fmt: skip
    assert value["split"] == "valid"
    assert value["rows"][0]["queries"] == 7
    assert value["rows"][0]["coverage"]["150"] == 1.0
    result = run("coverage", "family:150", "--ratio", "0.25", "--limit", 3)
    assert (result.code, "0.25" in result.out) == (0, True)


def test_coverage_with_options_of_the_sampler(run: Command) -> None:
    asked = ("coverage", "family:150", "--sampler", "fitted", "--ratio", "0.02", "--json")
    half, none = (
        run(*asked, *more).json["rows"][0]["coverage"]["0.02"]
        for more in ((), ("--set", "sampler.context=0"))
    )
    assert half != none
    for setting, word in (
        ("predictor.dim=3", "only options of the sampler"),
        ("sampler.name=ppr", "use --sampler"),
        ("sampler.context=2", "context"),
        ("sampler.contxt=0.1", "did you mean sampler.context"),
    ):
        result = run(*asked, "--set", setting)
        assert (result.code, word in result.err) == (2, True), result.err


def test_coverage_as_a_picture(run: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    picture = tmp_path / "sub" / "coverage.svg"
    value = run("coverage", "family:150", "--limit", 5, "--plot", picture, "--json").json
    assert value["picture"] == str(picture)
    assert "<svg" in picture.read_text()
    assert listing(tmp_path) == ["sub", "sub/coverage.svg"]
    # Letters that the font lacks are no reason to warn or to fail.
    (tmp_path / "東京.tsv").write_text("".join(f"a{i}\tr\ta{i + 1}\n" for i in range(30)) * 2)
    few = run("coverage", tmp_path / "東京.tsv", "--split", "train", "--plot", tmp_path / "c.png")
    assert few.code == 0, few.err
    assert "Glyph" not in few.err


def test_the_installed_command(facts: Path) -> None:
    command = [str(Path(sys.executable).with_name("oneshot")), "data", "facts.tsv", "--json"]
    done = subprocess.run(command, cwd=facts.parent, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["entities"] == 13


def test_bad_input_in_a_process_of_its_own(facts: Path) -> None:
    facts.write_text("a\tr\n")
    command = [sys.executable, "-m", "oneshot", "data", "facts.tsv", "--json"]
    done = subprocess.run(command, cwd=facts.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: facts.tsv, line 1: expected 3 tab-separated columns")


def test_a_reader_that_goes_away_is_no_traceback(facts: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "oneshot", "data", str(facts), "--json"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.stderr == ""


def test_bench_predictor(run: Command, facts: Path, tmp_path: Path) -> None:
    shape = ("--set", "predictor.dim=8", "--set", "predictor.num_layers=2")
    out = tmp_path / "out.json"
    text = run("bench", "predictor", facts, "--queries", 3, *shape, "--out", out)
    assert "edge by edge" in text.out
    value = json.loads(out.read_text())  # also the output of --json
    assert {"ours", "baseline", "ratio", "hardware"} <= value.keys()
    assert value["queries"] == 3
    assert value["ours"]["step_milliseconds"] > 0
    assert value["ratio"]["step"] == pytest.approx(
        value["baseline"]["edge by edge"]["step_milliseconds"] / value["ours"]["step_milliseconds"],
        abs=0.01,
    )
    refused = run("bench", "predictor", facts, "--set", "predictor.message=drum")
    assert refused.code == 2
    assert "redgnn" in refused.err
    (tmp_path / "few.tsv").write_text("a\tr\tb\nb\tr\tc\n")
    refused = run("bench", "predictor", tmp_path / "few.tsv")
    assert (refused.code, "no validation facts" in refused.err) == (2, True), refused.err


def test_bench_end_to_end(run: Command, facts: Path) -> None:
    command = ("bench", "end-to-end", facts, "--steps", 2, "--limit", 6)
    shape = ("--set", "predictor.dim=8", "--set", "training.batch_size=4")
    value = run(*command, *shape, "--json").json
    for row in (value["ours"], value["baseline"]["edge by edge"]):
        assert all(number > 0 for number in row.values())
    assert "training" in run(*command, *shape).out
