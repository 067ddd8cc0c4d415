"""Experiment tracking: observers that log a training to MLflow or Weights & Biases.

A tracking server may fail while a training of hours runs. Wrong use is reported before the first
step; later, an epoch that cannot be logged ends the logging, with a message, and not the training.
Only settings, sizes and metrics are sent: no paths, no names of the graph, no command line.
"""

import dataclasses
import netrc
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oneshot.errors import InputError, require
from oneshot.reasoner.build import sampler_config
from oneshot.training.observer import Observer, epoch_values
from oneshot.training.trainer import Trainer

PROJECT = "oneshot"
"""Name of the experiment of MLflow."""

_LONGEST_VALUE = 250  # characters of a setting that every version of MLflow accepts
# User and password in an address, and the credentials of a query string or a header.
_SECRET = re.compile(r"(?<=//)[^/@\s]+(?=@)|(?<=[?&]token=)[^&\s]+|(?<=Bearer )\S+")
# MLflow waits for minutes by default. A server that is there answers in less than this.
_MLFLOW_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
# What Weights & Biases does not allow in the name of a project, and the modes without network.
_FORBIDDEN, _LONGEST_PROJECT = "/\\#?%:", 128
_WITHOUT_NETWORK = ("offline", "disabled", "dryrun")


class ExperimentTracker(Observer, ABC):
    """Base class: calls `begin`, `log` and `finish` in the first process, and handles their errors.

    `title`: the name of the service, for messages.
    """

    title: str

    def __init__(self) -> None:
        self._is_active = False
        self._is_finished = False

    @abstractmethod
    def begin(self, trainer: Trainer, settings: dict[str, Any]) -> None:
        """Start a run of the service with these settings; whatever it raises ends the training."""

    @abstractmethod
    def log(self, values: dict[str, float], epoch: int) -> None:
        """Log the metrics of an epoch."""

    @abstractmethod
    def finish(self, is_finished: bool) -> None:
        """End the run; `is_finished`: whether the training reached its end."""

    def on_start(self, trainer: Trainer) -> None:
        if not trainer.team.is_first:
            return
        try:
            self.begin(trainer, settings_of(trainer))
        except Exception as error:  # of its client, its network library or its store
            raise InputError(f"{self.title}: {_one_line(error)}") from error
        self._is_active = True

    def on_epoch(self, trainer: Trainer, record: dict[str, Any], is_best: bool) -> None:
        self._is_finished = trainer.state.finished
        if not self._is_active:
            return
        try:
            self.log(epoch_values(record), record["epoch"])
        except Exception as error:
            self._is_active = False
            trainer.messages(
                f"{self.title}: {_one_line(error)}; epochs are not logged there any more"
            )

    def on_end(self) -> None:
        if self._is_active:
            self._is_active = False
            # The training is over, and its result matters more than the end of a log.
            try:
                self.finish(self._is_finished)
            except Exception:
                return


class MLflow(ExperimentTracker):
    """Logs to a tracking store of MLflow (extra `mlflow`).

    `address`: of a server, a database (`sqlite:///FILE`) or a directory. `name`: of the run.
    """

    title = "MLflow"

    def __init__(self, address: str | Path, name: str | None = None) -> None:
        super().__init__()
        self.address, self.name = str(address), name
        # Fails before the long work starts, not at the first epoch.
        package = require("mlflow", "mlflow", "logging to MLflow")
        try:
            with _short_waits():
                self._client: Any = package.MlflowClient(tracking_uri=self.address)
                self._experiment = self._client.get_experiment_by_name(PROJECT)
        except Exception as error:
            if "Max retries exceeded" in str(error):
                raise InputError(
                    f"{self.title}: {_without_secrets(self.address)} cannot be reached; check the "
                    "address, and that the server is running"
                ) from error
            raise InputError(f"{self.title}: {_one_line(error)}") from error
        self._run = ""

    def begin(self, trainer: Trainer, settings: dict[str, Any]) -> None:
        with _short_waits():
            if self._experiment is None:
                number = self._client.create_experiment(PROJECT)
            else:
                number = self._experiment.experiment_id
            self._run = self._client.create_run(number, run_name=self.name).info.run_id
            for name, value in settings.items():
                self._client.log_param(self._run, name, str(value)[:_LONGEST_VALUE])

    def log(self, values: dict[str, float], epoch: int) -> None:
        with _short_waits():
            for name, value in values.items():
                self._client.log_metric(self._run, name, value, step=epoch)

    def finish(self, is_finished: bool) -> None:
        with _short_waits():
            self._client.set_terminated(self._run, "FINISHED" if is_finished else "KILLED")


class WeightsAndBiases(ExperimentTracker):
    """Logs to Weights & Biases (extra `wandb`).

    `project`: name of the project. `name`: of the run. `directory`: for local files, which with
    `$WANDB_MODE=offline` are all there is; default the current directory.
    """

    title = "Weights & Biases"

    def __init__(
        self, project: str, name: str | None = None, directory: str | Path | None = None
    ) -> None:
        super().__init__()
        self.project, self.name = project, name
        self.directory = None if directory is None else str(directory)
        self._package = require("wandb", "wandb", "logging to Weights & Biases")
        self._run: Any = None
        # Fails before the long work starts; `init` reports the same after planning.
        self._check_project()
        if os.environ.get("WANDB_MODE") not in _WITHOUT_NETWORK and not _is_logged_in():
            raise InputError(
                f"{self.title}: not logged in; run `wandb login`, or set $WANDB_API_KEY, or "
                "$WANDB_MODE=offline to log to files"
            )

    def _check_project(self) -> None:
        """Raise if the service would not accept the name of the project."""
        found = "".join(sorted(set(self.project) & set(_FORBIDDEN)))
        fault = ""
        if not self.project.strip():
            fault = "is empty"
        elif len(self.project) > _LONGEST_PROJECT:
            fault = f"has more than {_LONGEST_PROJECT} characters"
        elif found:
            fault = f"contains {found}"
        if fault:
            raise InputError(
                f"{self.title}: the name of the project {fault}; choose one of at most "
                f"{_LONGEST_PROJECT} characters without {_FORBIDDEN}"
            )

    def begin(self, trainer: Trainer, settings: dict[str, Any]) -> None:
        package = self._package
        self._run = package.init(
            project=self.project,
            name=self.name,
            dir=self.directory,
            config=settings,
            reinit="create_new",
            # No output on the terminal. The metadata contain the command line, where the address of
            # a database may have a password.
            settings=package.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )

    def log(self, values: dict[str, float], epoch: int) -> None:
        self._run.log(values, step=epoch)

    def finish(self, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)


def settings_of(trainer: Trainer) -> dict[str, Any]:
    """The configuration of a training as `section.key`, and the sizes of its graph."""
    graph = trainer.data.graph
    sections: dict[str, Any] = {
        "sampler": sampler_config(trainer.reasoner.sampler),
        "predictor": trainer.predictor.config,
        "training": trainer.config,
        "factors": trainer.factors_config,
    }
    settings = {
        f"{section}.{name}": value
        for section, options in sections.items()
        for name, value in dataclasses.asdict(options).items()
        if value is not None
    }
    sizes = {"entities": graph.num_entities, "relations": graph.num_relations}
    return settings | {f"graph.{n}": v for n, v in (sizes | {"facts": graph.num_facts}).items()}


def _one_line(error: Exception) -> str:
    """The first line of an error, without user and password of an address."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _without_secrets(lines[0])[:300]


def _without_secrets(text: str) -> str:
    return _SECRET.sub("…", text)


@contextmanager
def _short_waits() -> Iterator[None]:
    """Limit the requests of MLflow, unless the user has; it reads the limits at each request."""
    added = {name: value for name, value in _MLFLOW_LIMITS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _is_logged_in() -> bool:
    """Whether there is a key for Weights & Biases, as far as can be found without a connection."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = Path(os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb"), "settings")
    if settings.expanduser().is_file():  # may name another server, or a key
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    for name in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        file = Path(name).expanduser() if name else None
        if file is None or not file.is_file():
            continue
        try:
            return netrc.netrc(str(file)).authenticators(host) is not None
        except (OSError, netrc.NetrcParseError):
            return True  # the package reports it
    return False
