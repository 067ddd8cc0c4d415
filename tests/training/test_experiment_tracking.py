"""Tests of the observers for MLflow and Weights & Biases: in their place, and the real packages."""

import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Command, listing
from tests.support.samples import SMALL, chain_world

from oneshot.config import from_table
from oneshot.errors import InputError
from oneshot.reasoner.build import build_reasoner
from oneshot.training import experiment_tracking
from oneshot.training.experiment_tracking import MLflow, WeightsAndBiases
from oneshot.training.observer import Observer
from oneshot.training.trainer import TrainingState, fit

CONFIG = from_table({}, [*SMALL, "training.epochs=2", "training.batch_size=16"])
NAMES = ["loss", "learning_rate", "covered", "valid/mrr"]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the user had logged in."""
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)


class FakeService:
    """Stands for both packages; `fails_at`: the epoch whose logging fails."""

    def __init__(self, fails_at: int = 0, fails_to_start: bool = False) -> None:
        self.fails_at, self.fails_to_start = fails_at, fails_to_start
        self.settings: dict[str, Any] = {}
        self.metrics: list[tuple[str, float, int]] = []
        self.ended: list[Any] = []
        self.started: dict[str, Any] = {}

    # as mlflow

    def MlflowClient(self, tracking_uri: str) -> "FakeService":  # noqa: N802
        if self.fails_to_start:
            raise ConnectionError(f"cannot reach {tracking_uri}\nmore")
        return self

    def get_experiment_by_name(self, name: str) -> None:
        assert name == "oneshot"

    def create_experiment(self, name: str) -> str:
        return "7"

    def create_run(self, number: str, run_name: str | None) -> Any:
        self.started = {"experiment": number, "name": run_name}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="run"))

    def log_param(self, run: str, name: str, value: str) -> None:
        assert len(value) <= 250
        self.settings[name] = value

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        self._check(step)
        self.metrics.append((name, value, step))

    def set_terminated(self, run: str, status: str) -> None:
        self.ended.append(status)

    # as wandb

    def Settings(self, **options: Any) -> dict[str, Any]:  # noqa: N802
        return options

    def init(self, **options: Any) -> "FakeService":
        if self.fails_to_start:
            raise ConnectionError("cannot reach http://me:secret@host\nmore")
        self.started, self.settings = options, options["config"]
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self._check(step)
        self.metrics += [(name, value, step) for name, value in values.items()]

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)

    def _check(self, step: int) -> None:
        if step == self.fails_at:
            raise ConnectionError("lost http://me:secret@host")


def made(name: str) -> Observer:
    if name == "mlflow":
        return MLflow("http://me:secret@host", "mine")
    return WeightsAndBiases("project", "mine")


def trained(observer: Observer, said: list[str] | None = None) -> TrainingState:
    data = chain_world(30)
    reasoner = build_reasoner(data.graph, CONFIG)
    messages = [] if said is None else said
    return fit(reasoner, data, CONFIG.training, [observer], messages=messages.append)


both = pytest.mark.parametrize("name", ["mlflow", "wandb"])


@both
def test_settings_and_every_epoch_are_logged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()
    monkeypatch.setattr(experiment_tracking, "require", lambda *_: service)
    state = trained(made(name))
    assert [(n, step) for n, _, step in service.metrics] == [
        (n, epoch) for epoch in (1, 2) for n in NAMES
    ]
    assert service.metrics[-1][1] == state.history[-1]["valid"]["mrr"]
    assert service.started["name"] == "mine"
    assert str(service.settings["predictor.dim"]) == str(CONFIG.predictor.dim)
    assert str(service.settings["factors.dim"]) == str(CONFIG.factors.dim)
    assert str(service.settings["graph.facts"]) == str(chain_world(30).graph.num_facts)
    assert service.ended == [{"mlflow": "FINISHED", "wandb": 0}[name]]


@both
def test_a_service_that_fails_later_does_not_end_the_training(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, said = FakeService(fails_at=2), list[str]()
    monkeypatch.setattr(experiment_tracking, "require", lambda *_: service)
    assert trained(made(name), said).finished
    (message,) = [line for line in said if "logged there" in line]
    assert "lost http://…@host; epochs are not logged there any more" in message
    assert "secret" not in message
    assert {step for _, _, step in service.metrics} == {1}


@both
def test_a_service_that_cannot_be_reached_is_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_tracking, "require", lambda *_: FakeService(fails_to_start=True))
    with pytest.raises(InputError, match=r"cannot reach http://…@host$"):
        trained(made(name))


@both
def test_an_interrupted_training_is_not_marked_as_finished(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Observer):
        def on_epoch(self, *_: Any) -> None:
            raise KeyboardInterrupt

    service = FakeService()
    monkeypatch.setattr(experiment_tracking, "require", lambda *_: service)
    data = chain_world(30)
    with pytest.raises(KeyboardInterrupt):
        fit(build_reasoner(data.graph, CONFIG), data, CONFIG.training, [made(name), Stop()])
    assert service.ended == [{"mlflow": "KILLED", "wandb": 1}[name]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    data = chain_world(30)
    frame = data.to_pandas()
    (tmp_path / "data").mkdir()
    for split in ("train", "valid", "test"):
        rows = frame[frame["split"] == split][["head", "relation", "tail"]]
        rows.to_csv(tmp_path / "data" / f"{split}.tsv", sep="\t", header=False, index=False)
    return tmp_path / "data"


def options() -> list[str]:
    changes = [*SMALL, "training.epochs=2"]
    return ["--no-plan", *(word for change in changes for word in ("--set", change))]


@both
def test_the_command_names_a_missing_package_before_it_reads(
    run: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = listing(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    result = run("train", tmp_path / "nothing", "--out", tmp_path / "run", f"--{name}", "x")
    assert result.code == 2
    assert f"needs the package '{name}': pip install 'one-shot-subgraph[{name}]'" in result.err
    assert listing(tmp_path) == before


@both
def test_the_options_of_the_command(
    run: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    service = FakeService()
    monkeypatch.setattr(experiment_tracking, "require", lambda *_: service)
    command = ["train", source, "--out", tmp_path / "some run", f"--{name}", "place", "--json"]
    assert run(*command, *options()).json["epochs"] == 2
    assert service.started["name"] == "some run"
    assert len(service.metrics) == 2 * len(NAMES)


@pytest.mark.parametrize("project", ["", "  ", "a/b", "x" * 129])
def test_a_project_that_is_not_possible_is_reported_before_anything_is_written(
    run: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    before = listing(tmp_path)
    monkeypatch.setattr(experiment_tracking, "require", lambda *_: FakeService())
    result = run("train", source, "--out", tmp_path / "run", "--wandb", project, *options())
    assert result.code == 2
    assert "the name of the project" in result.err
    assert listing(tmp_path) == before


def test_a_login_is_needed_only_with_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_tracking, "require", lambda *_: FakeService())
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "logins"))
    with pytest.raises(InputError, match="not logged in; run `wandb login`"):
        made("wandb")
    (tmp_path / "logins").write_text("machine api.wandb.ai login user password secret\n")
    assert made("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "https://own.example")
    with pytest.raises(InputError, match="not logged in"):
        made("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert made("wandb")


def test_a_server_that_is_not_there_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()
    seen: dict[str, str | None] = {}

    def refused(name: str) -> None:
        seen.update((name, os.environ.get(name)) for name in experiment_tracking._MLFLOW_LIMITS)
        raise ConnectionError("HTTPConnectionPool: Max retries exceeded with url: /api")

    monkeypatch.setattr(experiment_tracking, "require", lambda *_: service)
    monkeypatch.setattr(service, "get_experiment_by_name", refused)
    retries, timeout = experiment_tracking._MLFLOW_LIMITS
    monkeypatch.delenv(retries, raising=False)
    monkeypatch.setenv(timeout, "7")  # by the user
    with pytest.raises(InputError, match=r"http://…@host cannot be reached; check the address"):
        made("mlflow")
    assert (seen[retries], seen[timeout]) == ("2", "7")
    assert retries not in os.environ


# The real packages --------------------------------------------------------------------------------


def test_the_real_mlflow_takes_it(
    run: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "store"
    command = ["train", source, "--out", tmp_path / "run", "--mlflow", store, "--json"]
    result = run(*command, *options())
    assert result.code == 0, result.err
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=str(store))
    experiment = client.get_experiment_by_name("oneshot")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["predictor.message"] == CONFIG.predictor.message
    curve = client.get_metric_history(found.info.run_id, "valid/mrr")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [(m.step, m.value) for m in curve] == [
        (record["epoch"], record["valid"]["mrr"]) for record in map(json.loads, lines)
    ]
    # A second training is a second run of the same experiment.
    assert run(*command, *options()).code == 0
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_the_real_wandb_takes_it_offline(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    # A process of its own: the package starts another one, and reads the command line.
    command = [sys.executable, "-m", "oneshot", "train", str(source), "--out", "run", "--json"]
    marked = [*options(), "--wandb", "project", "--seed", "73501"]
    environment = os.environ | {
        "WANDB_MODE": "offline",
        "WANDB_API_KEY": "0123456789" * 4,
        "HOME": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
        # The package under test, also if it is found by a relative path.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path if place),  # noqa: PTH100
    }
    done = subprocess.run(
        [*command, *marked], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == 2  # nothing else on stdout
    (place,) = (tmp_path / "wandb").glob("offline-run-*")
    (log,) = place.glob("*.wandb")
    content = log.read_bytes()
    for word in (b"valid/mrr", b"predictor.dim", b"learning_rate"):
        assert word in content
    every = b"\n".join(f.read_bytes() for f in (tmp_path / "wandb").rglob("*") if f.is_file())
    assert b"0123456789" * 4 not in every
    assert str(source).encode() not in every  # neither a path nor the command line
