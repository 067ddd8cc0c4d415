"""Settings of all tests, and the same surroundings for them on every machine."""

import gc
import os
import random
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.commands import Command, Result

from oneshot import cli
from oneshot.system.process import prepare_process

# The tests run in parallel processes: threads of torch on top of that only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Once for all: otherwise it would depend on the order of the tests what torch finds when it loads.
prepare_process()
# What a user may have set: where data sets are, what goes over the network, how output looks.
for variable in list(os.environ):
    if variable.startswith("ONESHOT_") or variable.lower().endswith("_proxy"):
        del os.environ[variable]
for variable in (
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "MPLBACKEND",
):
    os.environ.pop(variable, None)

# A slow machine is no fault: no example of hypothesis has to be done in a given time.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="Run the files, and the tests in each, in a random order that the seed decides.",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files stay together: what their tests share would else be made again for each of them."""
    seed: int | None = config.getoption("--shuffle")
    if seed is None:
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    generator = random.Random(seed)
    order = list(files)
    generator.shuffle(order)
    for path in order:
        generator.shuffle(files[path])
    items[:] = [item for path in order for item in files[path]]


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: no collection of garbage has to look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests that are not about a GPU run as on a machine without one, which commands would take."""
    import torch

    is_about_gpu = item.get_closest_marker("gpu") is not None
    if isinstance(item, pytest.Function) and getattr(item.module, "DEVICE", "cpu") != "cpu":
        is_about_gpu = True
    with pytest.MonkeyPatch.context() as patch:
        if not is_about_gpu and torch.cuda.is_available():
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setenv("CUDA_VISIBLE_DEVICES", "")  # for the processes that the test starts
        return (yield)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process."""

    def command(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["oneshot", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return command
