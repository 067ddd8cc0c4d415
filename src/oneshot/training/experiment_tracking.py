"""Experiment tracking: observers that log a training to MLflow or Weights & Biases.

A tracking server may fail while a training of hours runs. Wrong use is reported before the first
step; later, an epoch that cannot be logged ends the logging, with a message, and not the training.
Only settings, sizes and metrics are sent: no paths, no names of the graph, no command line.
"""

import dataclasses
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from oneshot.errors import InputError, require
from oneshot.reasoner.build import sampler_config
from oneshot.training.observer import Observer, epoch_values
from oneshot.training.trainer import Trainer

PROJECT = "oneshot"
"""Name of the experiment of MLflow."""

_LONGEST_VALUE = 250  # characters of a setting that every version of MLflow accepts
# User and password in an address, and the credentials of a query string or a header.
_SECRET = re.compile(r"(?<=//)[^/@\s]+(?=@)|(?<=[?&]token=)[^&\s]+|(?<=Bearer )\S+")


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
            self._client: Any = package.MlflowClient(tracking_uri=self.address)
            self._experiment = self._client.get_experiment_by_name(PROJECT)
        except Exception as error:
            raise InputError(f"{self.title}: {_one_line(error)}") from error
        self._run = ""

    def begin(self, trainer: Trainer, settings: dict[str, Any]) -> None:
        if self._experiment is None:
            number = self._client.create_experiment(PROJECT)
        else:
            number = self._experiment.experiment_id
        self._run = self._client.create_run(number, run_name=self.name).info.run_id
        for name, value in settings.items():
            self._client.log_param(self._run, name, str(value)[:_LONGEST_VALUE])

    def log(self, values: dict[str, float], epoch: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=epoch)

    def finish(self, is_finished: bool) -> None:
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
    return _SECRET.sub("…", lines[0])[:300]
