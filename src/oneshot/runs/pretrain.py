"""Pre-training job: pre-trains into a run directory without a graph of its own."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from oneshot.config import Config, checked, to_toml
from oneshot.data.dataset import Dataset
from oneshot.errors import InputError
from oneshot.runs.layout import CALIBRATION, CHECKPOINT, CONFIG, CONTENTS, HISTORY, PREDICTOR
from oneshot.runs.run import Run
from oneshot.runs.tensors import (
    check_shapes,
    load_tensors,
    optimizer_tensors,
    restore_optimizer,
    save_tensors,
)
from oneshot.runs.writer import metrics_lines
from oneshot.system.checksums import write_sealed_json, write_sealed_text
from oneshot.system.files import remove_leftovers, write_text
from oneshot.training.interrupt import StopTraining
from oneshot.training.pretraining import (
    Mixture,
    Pretraining,
    PretrainingObserver,
    PretrainingState,
)
from oneshot.training.steps import warn
from oneshot.training.time_budget import Clock, TimeBudget

_PARTS = ("predictor.", "averaged.", "best.", "optimizer.")


@dataclass(frozen=True)
class PretrainingJob:
    """What to pre-train, and into which run directory.

    `sources`: the graphs of the mixture; `valid`: data sets that decide which parameters are the
    best, by default the sources. `steps`: number of steps in total, 0 for no limit except the time
    budget of the configuration. `mixture`, `validations`: see `Pretraining`; a resumed run keeps
    its mixture.
    """

    sources: Sequence[Dataset]
    valid: Sequence[Dataset]
    path: Path
    config: Config
    device: torch.device
    steps: int = 0
    mixture: Mixture = Mixture()  # noqa: RUF009 (frozen)
    validations: int = 10

    def run(
        self,
        resume: bool = False,
        observers: Sequence[PretrainingObserver] = (),
        should_stop: Callable[[], bool] = lambda: False,
        clock: Clock = time.perf_counter,
        messages: Callable[[str], None] = warn,
    ) -> dict[str, Any]:
        """Pre-train or resume. → the result

        When `should_stop` returns true, a checkpoint is written, and the result has `stopped`.
        """
        run = Run(self.path)
        run.check_no_changes()
        run.check_writable()
        with ExitStack() as held:
            if self.path.is_dir():
                held.enter_context(run.lock())
            checkpoint = self._checkpoint() if resume else None
            if checkpoint is None and run.holds_training:
                raise InputError(
                    f"{self.path} contains a run; resume it with --resume, or choose another "
                    "directory"
                )
            state = PretrainingState() if checkpoint is None else checkpoint.state
            if state.finished and not self._continues(state):
                return {**self._result(state), "already_finished": True}
            writer = _Writer(run)
            budget = TimeBudget(self.config.training.minutes, clock)
            pretraining = Pretraining(
                self.sources,
                self.valid,
                self.config,
                self.device,
                mixture=self.mixture if checkpoint is None else checkpoint.mixture,
                steps=self.steps,
                budget=budget,
                validations=self.validations,
                observers=[writer, *observers],
                should_stop=should_stop,
                messages=messages,
            )
            if checkpoint is None:
                if not self.path.is_dir():
                    self.path.mkdir(parents=True)
                    held.enter_context(run.lock())
                run.start_without_graph(self.config, self._names(self.sources))
            else:
                checkpoint.restore(pretraining)
                write_sealed_text(self.path / CONFIG, to_toml(self.config))
            remove_leftovers(self.path, CONTENTS)
            try:
                pretraining.run()
            except StopTraining:
                writer.on_checkpoint(pretraining)
                return {**self._result(pretraining.state), "stopped": True}
            write_sealed_json(self.path / CALIBRATION, asdict(pretraining.calibrated()))
            return self._result(pretraining.state, pretraining)

    def _result(
        self, state: PretrainingState, pretraining: Pretraining | None = None
    ) -> dict[str, Any]:
        best = next((r for r in state.history if r["step"] == state.best_step), None)
        result = {
            "run": str(self.path),
            "data": self._names(self.sources),
            "steps": state.step,
            "best_step": state.best_step,
            "queries": state.queries,
            "valid": None if best is None else best["valid"],
            "mrr": None if best is None else best["mrr"],
            "seconds": state.seconds,
        }
        if pretraining is not None:
            result["parameters"] = pretraining.predictor.num_parameters
        return result

    @staticmethod
    def _names(data: Sequence[Dataset]) -> list[str]:
        return [one.name for one in data]

    def _continues(self, state: PretrainingState) -> bool:
        """Whether a finished pre-training has more steps or time now."""
        return state.step < self.steps or state.seconds < 60 * self.config.training.minutes - 1

    def _checkpoint(self) -> "_Checkpoint | None":
        """The checkpoint of the run, or None; raises if graphs or configuration differ."""
        file = self.path / CHECKPOINT
        if not file.is_file():
            return None
        tensors, about = load_tensors(file)
        values = about.get("pretraining")
        if not isinstance(values, dict):
            raise InputError(f"{self.path} is not a pre-training; choose another directory")
        if about.get("sources") != [one.graph.fingerprint for one in self.sources]:
            raise InputError(f"{self.path} was pre-trained on other graphs; give the same ones")
        if _without_time(Run(self.path).config) != _without_time(self.config):
            raise InputError(
                f"{self.path} was started with another configuration; give the same one (only "
                "training.minutes may differ)"
            )
        types = {part.name: part.type for part in fields(PretrainingState)}
        if values.keys() != types.keys() or not isinstance(values["history"], list):
            raise InputError(f"{file}: damaged (state); start again in another directory")
        for name, kind in types.items():
            if name != "history":
                checked(values[name], kind, f"{file}: state.{name}")
        try:
            mixture = Mixture(**about["mixture"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{file}: damaged (mixture); start again elsewhere") from error
        return _Checkpoint(file, PretrainingState(**values), mixture, tensors)


@dataclass(frozen=True)
class _Checkpoint:
    """The state, the mixture and the tensors of an earlier pre-training."""

    file: Path
    state: PretrainingState
    mixture: Mixture
    tensors: dict[str, torch.Tensor]

    def restore(self, pretraining: Pretraining) -> None:
        predictor, averaged, best, optimizer = (
            {
                name.removeprefix(part): tensor
                for name, tensor in self.tensors.items()
                if name.startswith(part)
            }
            for part in _PARTS
        )
        wanted = pretraining.predictor.state_dict()
        check_shapes(self.file, predictor, wanted)
        check_shapes(self.file, averaged, wanted)
        check_shapes(self.file, best, wanted)
        pretraining.predictor.load_state_dict(predictor)
        restore_optimizer(self.file, pretraining.optimizer, optimizer)
        pretraining.average.load(averaged, self.state.step)
        pretraining.best = {name: tensor.to(pretraining.device) for name, tensor in best.items()}
        pretraining.state = replace(self.state, finished=False)


class _Writer(PretrainingObserver):
    """Keeps the run directory up to date."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_validation(
        self, pretraining: Pretraining, record: dict[str, Any], is_best: bool
    ) -> None:
        path, state = self.run.path, pretraining.state
        if is_best:
            save_tensors(path / PREDICTOR, pretraining.best, {"step": state.best_step})
        write_text(path / HISTORY, metrics_lines(state.history))

    def on_checkpoint(self, pretraining: Pretraining) -> None:
        path, state = self.run.path, pretraining.state
        parameters = pretraining.predictor.state_dict()
        if not state.best_step:  # before the first validation
            save_tensors(path / PREDICTOR, pretraining.average.named(), {"step": state.step})
        tensors = {f"predictor.{name}": tensor for name, tensor in parameters.items()}
        averaged = pretraining.average.named()
        tensors |= {f"averaged.{name}": tensor for name, tensor in averaged.items()}
        tensors |= {f"best.{name}": tensor for name, tensor in pretraining.best.items()}
        tensors |= optimizer_tensors(pretraining.optimizer)
        sources = [source.data.graph.fingerprint for source in pretraining.sources]
        (path / CHECKPOINT).parent.mkdir(exist_ok=True)
        about = {
            "pretraining": asdict(state),
            "mixture": asdict(pretraining.mixture),
            "sources": sources,
        }
        save_tensors(path / CHECKPOINT, tensors, about)


def _without_time(config: Config) -> str:
    return to_toml(replace(config, training=replace(config.training, minutes=0.0)))
