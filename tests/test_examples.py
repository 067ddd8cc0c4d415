"""The examples run as they stand, and what they show is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs_and_learns(script):
    command = [sys.executable, EXAMPLES / script, "--people", "400", "--epochs", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = [float(value) for value in re.findall(r"MRR (0\.\d+)", done.stdout)]
    assert found
    assert min(found) > 0.1  # chance is about 0.02
