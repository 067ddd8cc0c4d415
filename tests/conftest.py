"""Settings of all tests."""

import os
import sys

import pytest
from commands import Result, Run

from oneshot import cli

# The tests run in parallel processes: threads of torch on top of that only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process."""

    def command(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["oneshot", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return command
