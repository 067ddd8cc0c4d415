"""The notebook runs from its first cell to its last, and what it tells is true."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "from_triples_to_questions.ipynb"


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["metadata"]["language_info"]["name"]) == (4, "python")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)  # stored without what a machine printed
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "added 2 facts" in done.stdout
    number = re.search(r"her grandmother is answer number (\d)", done.stdout)
    assert number is not None
    assert int(number[1]) <= 3
    assert "newcomer —mother→" in done.stdout
