"""A seeded sample of `benchmarks/fuzz.py`: broken inputs and runs are read or refused."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fuzz import Bench, Watch, check_sound, make_bench, run_case

ROOT = Path(__file__).parents[1]
WATCH = Watch(Path("/"))  # installed once: an audit hook stays as long as the process


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    for package in ("pyoxigraph", "fastapi"):
        pytest.importorskip(package, reason="an extra is not installed")
    bench = make_bench(tmp_path_factory.mktemp("fuzz") / "bench")
    check_sound(bench)
    if WATCH.allowed == Path("/"):
        WATCH.install()
    WATCH.allowed = bench.home
    return bench


@pytest.mark.parametrize(("part", "cases"), [("inputs", 12), ("runs", 25)])
def test_a_sample_of_broken_files_is_read_or_refused(bench: Bench, part: str, cases: int) -> None:
    outcomes = set()
    for target in getattr(bench, part):
        for seed in range(cases):
            result = run_case(bench, target, seed, WATCH)
            assert result["outcome"] in ("read", "refused"), result
            outcomes.add(result["outcome"])
    assert outcomes == {"read", "refused"}


def test_the_watch_sees_code_that_is_run(bench: Bench) -> None:
    """A reader that unpickles would be found out."""
    import pickle
    from dataclasses import replace

    def careless(path: Path) -> None:
        # Not pipes, which it would wait for, nor bytes at random, which may end the process.
        content = path.read_bytes() if path.is_file() else b""
        if not content.startswith(pickle.PROTO):
            raise OSError("not a pickle")
        pickle.loads(content)

    target = replace(bench.inputs[0], name="careless", use=careless)
    found = {run_case(bench, target, seed, WATCH)["outcome"] for seed in range(60)}
    assert "code executed" in found


@pytest.mark.slow
@pytest.mark.parametrize("commands", ["train", "data", "facts", "predict", "import", "coverage"])
def test_a_few_kills_leave_what_was_there(commands: str) -> None:
    """A part of `benchmarks/kills.py`."""
    command = [sys.executable, "-m", "benchmarks.kills", "--moments", "6", "--only", commands]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_few_hundred_broken_files_in_watched_processes() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz", "--inputs", "300", "--runs", "60"]
    command += ["--only", "run", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
