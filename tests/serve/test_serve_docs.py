"""The curl examples of the docs, run as they stand against a service on the bundled graph."""

import configparser
import json
import os
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
from oneshot.serve.settings import ServeSettings

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


def unit() -> dict[str, str]:
    """The section of the service in the unit."""
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / "deploy" / "oneshot.service")
    return dict(parser["Service"])


def container_steps() -> list[tuple[str, str]]:
    """The instructions of the last stage of the container file."""
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line[:1].isupper()]
    last = max(number for number, line in enumerate(lines) if line.startswith("FROM "))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines[last:])]


def composed() -> dict[str, Any]:
    """The service in the compose file."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    value = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    assert list(value["services"]) == ["oneshot"]
    service: dict[str, Any] = value["services"]["oneshot"]
    return service


def test_the_unit_runs_a_command_that_there_is() -> None:
    program, *words = shlex.split(unit()["ExecStart"])
    assert Path(program).name == "oneshot"
    options = options_of(words)
    assert options["host"] == "127.0.0.1"


def test_the_unit_closes_what_the_service_does_not_need() -> None:
    values = unit()
    options = options_of(shlex.split(values["ExecStart"])[1:])
    # Read-only, but for the run, where changed facts are stored, and a /tmp of its own.
    assert (values["ProtectSystem"], values["PrivateTmp"]) == ("strict", "true")
    assert values["ReadWritePaths"].split() == [str(options["run"])]
    assert not values.keys() & {"StateDirectory", "CacheDirectory", "LogsDirectory", "BindPaths"}
    # Homes and devices are hidden, and there is no way to privileges.
    assert values["User"] not in ("", "root", "0")
    hidden = ("ProtectHome", "PrivateDevices", "NoNewPrivileges")
    assert [values[name] for name in hidden] == ["true"] * 3
    assert values["CapabilityBoundingSet"] == ""
    assert values["SystemCallFilter"] == "@system-service"
    assert set(values["RestrictAddressFamilies"].split()) == {"AF_INET", "AF_INET6", "AF_UNIX"}
    assert int(values["LimitNOFILE"]) > ServeSettings().connections


def test_the_container_has_no_privileges() -> None:
    users = [rest for name, rest in container_steps() if name == "USER"]
    assert users == ["1000"]
    names = [name for name, _ in container_steps()]
    # What is installed belongs to root: nothing but USER comes after it that could write.
    assert "RUN" not in names[names.index("USER") :]
    service = composed()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "devices", "user", "pid", "network_mode"}
    # Only the run and a /tmp in memory can be written to.
    assert service["tmpfs"] == ["/tmp"]
    run = options_of(["serve", *service["command"]])["run"]
    (volume,) = service["volumes"]
    assert volume.rpartition(":")[2] == str(run)


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


def test_the_container_is_built_and_used_with_every_change() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    script = "scripts/check_container.sh"
    assert [step["run"] for step in jobs["container"]["steps"] if "run" in step] == [script]
    text = (ROOT / script).read_text()
    assert os.access(ROOT / script, os.X_OK)
    assert "-f deploy/compose.yaml" in text
    # It sets what the compose file takes from the environment.
    taken = set(re.findall(r"\$\{(\w+)", (ROOT / "deploy" / "compose.yaml").read_text()))
    assert taken - {WRITE_TOKEN} <= set(re.findall(r"\b(ONESHOT_\w+)=", text))
    # It uses routes that there are.
    assert service_paths(text) <= service_paths((ROOT / "docs" / "serve.md").read_text())


def service_paths(text: str) -> set[str]:
    return set(re.findall(r"/v1/\w+", text))


def test_the_compose_file_runs_a_command_that_there_is() -> None:
    service = composed()
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
    kind, health = steps["HEALTHCHECK"].split(" ", 1)
    asked = [" ".join(word.split()) for word in json.loads(health)]
    assert service["healthcheck"]["test"] == [kind, *asked]
    # The service has time to finish open requests.
    assert int(service["stop_grace_period"].removesuffix("s")) > options["grace_period"]
