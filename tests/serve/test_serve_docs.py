"""The curl examples of the docs, run as they stand against a service on the bundled graph."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from oneshot.cli import app
from oneshot.cli.options import TOKEN, WRITE_TOKEN
from oneshot.config import PredictorConfig
from oneshot.data.load import load
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.serve.server import serving
from oneshot.serve.service import Service

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "serve.md").read_text(), re.M | re.S)
EXAMPLES = [example for block in BLOCKS for example in re.split(r"\n(?=curl )", block.strip())]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    graph = load("world").graph
    torch.manual_seed(0)
    predictor = Predictor(PredictorConfig(num_layers=2, dim=8), graph.num_relations)
    run = tmp_path_factory.mktemp("docs") / "run"
    Reasoner(graph, PPRSampler(max_entities=100), predictor).save(run)
    with serving(Service(run)) as address:
        yield address


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_of_the_docs(url: str) -> None:
    assert len(EXAMPLES) >= 10
    outputs = {}
    for example in EXAMPLES:
        command = example.replace("http://127.0.0.1:8000", url)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (example, done.stderr)
        outputs[example] = done.stdout
        if "/metrics" not in example and "Bolivai" not in example:
            for line in done.stdout.splitlines():
                assert "status" not in json.loads(line) or "z" in example, done.stdout
    text = "\n".join(outputs.values())
    for expected in ('"added":2', '"removed":1', '"entities":["Bolivia"', '"paths"', "Bolivia"):
        assert expected in text
    (asked,) = (out for ex, out in outputs.items() if "Atlantis" in ex and "predict" in ex)
    assert json.loads(asked)["results"][0]["answers"]
    (refused,) = (out for ex, out in outputs.items() if "Bolivai" in ex)
    assert "Bolivia" in json.loads(refused)["nearest"]


def options_of(words: list[str]) -> dict[str, Any]:
    """What the command line makes of the words after `oneshot`."""
    assert words[0] == "serve"
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    command = group.commands["serve"]
    with command.make_context("serve", words[1:]) as context:
        return dict(context.params)


def test_the_unit_runs_a_command_that_there_is() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / "oneshot.service")
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "oneshot"
    options = options_of(words)
    assert options["host"] == "127.0.0.1"
    # Changed facts are written beside the run.
    assert Path(options["run"]).is_relative_to(unit["Service"]["ReadWritePaths"])


def test_the_container_runs_a_command_that_there_is() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    lines = text.replace("\\\n", " ").splitlines()
    steps = dict(line.split(" ", 1) for line in lines if line[:1].isupper())
    program, *words = json.loads(steps["ENTRYPOINT"]) + json.loads(steps["CMD"])
    assert program == "oneshot"
    options = options_of(words)
    assert (options["host"], str(options["port"])) == ("0.0.0.0", steps["EXPOSE"])
    assert f":{steps['EXPOSE']}/v1/readyz" in steps["HEALTHCHECK"]
    # All that an installation is made of is copied, and nothing that is not there or ignored.
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    copied = {word for words in copies if "--from" not in words[0] for word in words}
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {"pyproject.toml", "setup.py", "src", project["readme"], *project["license-files"]}
    assert needed <= copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied


def test_the_compose_file_runs_a_command_that_there_is() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    service = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["oneshot"]
    lines = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = dict(line.split(" ", 1) for line in lines if line[:1].isupper())
    options = options_of([*json.loads(steps["ENTRYPOINT"])[1:], *service["command"]])
    assert any(volume.endswith(f":{options['run']}") for volume in service["volumes"])
    (port,) = service["ports"]
    assert port.startswith("127.0.0.1:")
    assert port.endswith(f":{steps['EXPOSE']}")
    assert (ROOT / "deploy" / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert set(service["environment"]) == {TOKEN, WRITE_TOKEN}
    # The service has time to finish open requests.
    assert int(service["stop_grace_period"].removesuffix("s")) > options["grace_period"]
