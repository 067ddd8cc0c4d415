"""The examples run as they stand, and what they show is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.samples import chain_world, trained_run, write_world

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
RETRIEVER = "retriever.py"  # uses a service
CLASSIFIERS = {
    "entity_classes.py": ("--epochs", "3"),
    "entity_sets.py": ("--sets", "80", "--epochs", "6"),
}


@pytest.mark.parametrize(
    "script",
    sorted({path.name for path in EXAMPLES.glob("*.py")} - {RETRIEVER, *CLASSIFIERS}),
)
def test_an_example_runs_and_learns(script):
    command = [sys.executable, EXAMPLES / script, "--people", "400", "--epochs", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = [float(value) for value in re.findall(r"MRR (0\.\d+)", done.stdout)]
    assert found
    assert min(found) > 0.1  # chance is about 0.02


@pytest.mark.parametrize("script", CLASSIFIERS)
def test_a_classifier_is_better_than_the_most_frequent_class(script):
    command = [sys.executable, EXAMPLES / script, *CLASSIFIERS[script]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"accuracy (\d\.\d+), most frequent class (\d\.\d+)", done.stdout)
    assert found
    assert float(found[1]) > float(found[2]) + 0.2


def test_the_retriever_finds_facts_and_predictions(tmp_path):
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    from oneshot.serve.server import serving
    from oneshot.serve.service import Service

    run = trained_run(write_world(tmp_path / "data", chain_world(30)), tmp_path / "run")
    with serving(Service(run)) as url:
        command = [sys.executable, EXAMPLES / RETRIEVER, url, "What comes AFTER link 4?"]
        done = subprocess.run(
            [*command, "--top", "2"], capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stderr
    facts, *predictions = done.stdout.strip().split("\n\n")
    assert facts.startswith("Facts about link 4:\n")
    assert "link 4 —next→ link 5" in facts
    assert len(predictions) == 2
    assert all("not in the graph: link 4 —after→ link " in text for text in predictions)
    assert "\nbecause link 4 —" in predictions[0]
