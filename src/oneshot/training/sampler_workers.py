"""SamplerWorkers: processes that sample the subgraphs of coming steps while others are trained on.

Each worker opens the saved graph itself, so that its pages are shared by all, and draws the same
epochs from the same seed. The subgraphs of step `k` come from worker `k mod n`, in order, in files
in shared memory; a training with workers is therefore the same as one without. A worker is a
process of its own, not a fork: it reads tasks from its standard input as lines of JSON, and ends
when that is closed, also if the training was killed.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from oneshot.config import Config, TrainingConfig, from_toml, to_toml
from oneshot.errors import InputError, OneshotError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.storage import open_graph
from oneshot.reasoner.build import build_sampler, sampler_config
from oneshot.samplers import SAMPLERS, Sampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system.workers import prepare_worker
from oneshot.training.epoch import Epoch, draw_epoch, hides_facts, sampled_for

AHEAD = 2
"""Steps that each worker samples ahead."""

_RESTARTS = 3  # of all workers together, before training continues without them
_ALIGNED = 64
_PACKAGES = Path(__file__).resolve().parents[2]
_SHARED = Path("/dev/shm")
_LEAST_SHARED = 1 << 30  # free bytes for which shared memory is used instead of temporary files
_PROGRAM = "from oneshot.training.sampler_workers import serve; serve()"


@dataclass
class _Worker:
    """A process, and the tasks it has not answered yet, oldest first."""

    process: "subprocess.Popen[bytes]"
    tasks: deque[list[Any]] = field(default_factory=deque)

    def send(self, task: list[Any]) -> None:
        self.tasks.append(task)
        self.write(task)

    def write(self, message: Any) -> None:
        assert self.process.stdin is not None
        # If it has died, that is noticed when its answer is read.
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        """The answer to the oldest task; None if the process has died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not written is no longer needed
                    stream.close()


class SamplerWorkers:
    """Samples the subgraphs of a training ahead, in `config.workers` processes.

    `graph`: a saved graph, or its `HostGraph`; `step_size`: queries per step. `messages`: called
    with a line when a worker has died. The processes start with the first step, and end with
    `close` or with this object.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        sampler: Sampler,
        config: TrainingConfig,
        step_size: int,
        messages: Callable[[str], None],
    ) -> None:
        near = graph.host or graph
        if near.path is None:
            raise InputError(
                "training.workers needs a saved graph, which the workers open: write it with "
                "`oneshot data DATA --save DIR` and train on DIR, or set training.workers=0"
            )
        if SAMPLERS.get(getattr(sampler, "name", "")) is not type(sampler):
            raise InputError("training.workers needs a sampler of the library; set it to 0")
        self._near, self._sampler, self._config = near, sampler, config
        self._step_size, self._messages = step_size, messages
        self._restarts = 0
        self._workers: list[_Worker] = []
        self._expected: Iterator[list[Any]] = iter(())
        self._waiting: deque[tuple[int, list[Any]]] = deque()  # (number of its worker, task)
        self._given = 0  # tasks so far, which determine their workers
        self._place: Path | None = None
        self._end: Callable[[], object] = bool

    def take(self, epoch: Epoch, begin: int, end: int) -> SubgraphBatch | None:
        """The subgraphs of the queries `begin : end` of an epoch, on the CPU.

        None if the workers have died: the caller samples them itself.
        """
        if self._restarts > _RESTARTS:
            return None
        self._start()
        if not self._waiting or self._waiting[0][1][:3] != [epoch.number, begin, end]:
            self._follow(epoch, begin)
            if not self._waiting:  # they have died meanwhile
                return None
        number, task = self._waiting.popleft()
        answer = self._answer(number, task)
        if answer is None:
            return None
        self._fill()
        if "error" in answer:
            raise OneshotError(f"a sampler worker failed: {answer['error']}")
        return _read(Path(answer["file"]), answer["arrays"])

    def close(self) -> None:
        """End the processes and remove their files."""
        self._end()
        self._workers, self._waiting = [], deque()

    # processes -----------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._workers:
            return
        place = self._place = Path(tempfile.mkdtemp(prefix="oneshot-", dir=_shared_memory()))
        # Also if the training ends with an error, and when Python exits.
        self._end = weakref.finalize(self, _end_all, self._workers, place)
        for name, tensor in self._sampler.parameters(self._near).items():
            np.save(place / f"{name}.npy", tensor.cpu().numpy())
        self._workers.extend(self._new_worker() for _ in range(self._config.workers))

    def _new_worker(self) -> _Worker:
        assert self._place is not None
        # The same package, wherever this process has found it.
        paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        worker = _Worker(
            subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        )
        sampler = sampler_config(self._sampler)
        worker.write(
            {
                "graph": str(self._near.path),
                "hub_index": self._near.hub_index is not None,
                "fingerprint": self._near.fingerprint,
                "config": to_toml(Config(sampler=sampler, training=self._config)),
                "seed": self._sampler.seed,
                "parameters": [*self._sampler.parameters()],
                "directory": str(self._place),
                "step_size": self._step_size,
                "threads": max((os.cpu_count() or 1) // (self._config.workers + 1), 1),
            }
        )
        return worker

    def _answer(self, number: int, task: list[Any]) -> dict[str, Any] | None:
        """The answer of a worker, which is replaced if it has died."""
        while True:
            worker = self._workers[number]
            answer = worker.read()
            if answer is not None:
                worker.tasks.popleft()
                return answer
            worker.end()
            self._restarts += 1
            if self._restarts > _RESTARTS:
                self._messages(
                    "sampler workers die again and again, perhaps for lack of memory; training "
                    "continues without them"
                )
                self.close()
                return None
            self._messages("a sampler worker has died; it is replaced")
            new = self._new_worker()
            for waiting in worker.tasks:
                new.send(waiting)
            self._workers[number] = new

    # tasks ---------------------------------------------------------------------------------------

    def _follow(self, epoch: Epoch, begin: int) -> None:
        """Sample the steps from query `begin` of an epoch on, and forget all others."""
        while self._waiting:
            number, task = self._waiting.popleft()
            answer = self._answer(number, task)
            if answer is None:
                return
            Path(answer.get("file", task[3])).unlink(missing_ok=True)
        self._expected = self._tasks(epoch, begin)
        self._fill()

    def _tasks(self, epoch: Epoch, begin: int) -> Iterator[list[Any]]:
        assert self._place is not None
        total, size = len(epoch.queries), self._step_size
        while begin < total:
            # No step has queries of two parts.
            part_end = (begin // epoch.part_size + 1) * epoch.part_size
            end = min(begin + size, part_end, total)
            yield [epoch.number, begin, end, str(self._place / f"{epoch.number}-{begin}")]
            begin = end

    def _fill(self) -> None:
        while self._workers and len(self._waiting) < AHEAD * len(self._workers):
            task = next(self._expected, None)
            if task is None:
                return
            number = self._given % len(self._workers)
            self._given += 1
            self._workers[number].send(task)
            self._waiting.append((number, task))


def _end_all(workers: list[_Worker], place: Path) -> None:
    for worker in workers:
        worker.end()
    _remove_files(place)


def _remove_files(place: Path) -> None:
    """Remove the files of the workers, also those for which shared memory had no space."""
    shutil.rmtree(place, ignore_errors=True)
    for file in Path(tempfile.gettempdir()).glob(f"{place.name}-*"):
        file.unlink(missing_ok=True)


def _shared_memory() -> str | None:
    """A directory in shared memory; None for the usual one of temporary files."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_SHARED).free >= _LEAST_SHARED and os.access(_SHARED, os.W_OK):
            return str(_SHARED)
    return None


# in the worker ------------------------------------------------------------------------------------


def serve() -> None:
    """The main function of a worker: answer tasks from standard input until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may be written there
    setup = json.loads(sys.stdin.readline())
    prepare_worker(setup["threads"])
    with contextlib.suppress(BrokenPipeError):  # the training was killed during a task
        _answer_tasks(setup, answers)
    # Nobody else does it if the training was killed; the last worker to end removes all of them.
    _remove_files(Path(setup["directory"]))


def _answer_tasks(setup: dict[str, Any], answers: BinaryIO) -> None:
    prepared: _Sampling | None = None
    for line in sys.stdin:
        number, begin, end, file = json.loads(line)
        try:
            prepared = prepared or _Sampling(setup)
            batch = prepared.sample(number, begin, end)
            answer: dict[str, Any] = _write(Path(file), batch)
        except Exception as error:  # the training reports it and ends
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


class _Sampling:
    """What a worker needs to sample: graph, sampler, configuration and the current epoch."""

    def __init__(self, setup: dict[str, Any]) -> None:
        config = from_toml(setup["config"])
        self.graph = open_graph(Path(setup["graph"]), hub_index=setup["hub_index"])[0]
        if self.graph.fingerprint != setup["fingerprint"]:
            raise InputError(f"{setup['graph']} has changed since the start of the training")
        self.config, self.step_size = config.training, setup["step_size"]
        self.sampler = build_sampler(config.sampler, setup["seed"])
        place = Path(setup["directory"])
        names = setup["parameters"]
        if names:
            self.sampler.take({n: torch.from_numpy(np.load(place / f"{n}.npy")) for n in names})
        self.hides = hides_facts(self.graph, self.sampler)
        self.epoch: Epoch | None = None

    def sample(self, number: int, begin: int, end: int) -> SubgraphBatch:
        """The subgraphs of the queries `begin : end` of epoch `number`."""
        if self.epoch is None or self.epoch.number != number:
            self.epoch = draw_epoch(self.graph, self.config, number, self.step_size, self.hides)
        part = next(self.epoch.parts(begin))
        size = end - begin
        asked = part._replace(queries=part.queries[:size], answers=part.answers[:size])
        return sampled_for(
            self.sampler,
            self.graph,
            self.config,
            number,
            asked,
            torch.arange(begin, end),
        )


def _write(path: Path, batch: SubgraphBatch) -> dict[str, Any]:
    """Write a batch to a file. → its name, and the type and shape of each array"""
    tensors = [getattr(batch, each.name).contiguous() for each in fields(batch)]
    try:
        _write_tensors(path, tensors)
    except OSError:  # shared memory is full
        if not path.parent.is_dir():  # removed by another worker, as the training was killed
            raise
        path.unlink(missing_ok=True)
        path = Path(tempfile.gettempdir()) / f"{path.parent.name}-{path.name}"
        _write_tensors(path, tensors)
    arrays = [[str(one.numpy().dtype), [*one.shape]] for one in tensors]
    return {"file": str(path), "arrays": arrays}


def _write_tensors(path: Path, tensors: list[Tensor]) -> None:
    with path.open("wb") as file:
        for tensor in tensors:
            file.write(tensor.numpy().tobytes())
            file.write(bytes(-file.tell() % _ALIGNED))


def _read(path: Path, arrays: list[tuple[str, list[int]]]) -> SubgraphBatch:
    """The batch in a file, which is removed; its memory is freed with the batch."""
    content: Any
    if sys.platform == "win32":
        content = np.fromfile(path, np.uint8)
    else:
        content = np.memmap(path, np.uint8, mode="c")
    tensors, first = [], 0
    for name, shape in arrays:
        size = math.prod(shape) * np.dtype(name).itemsize
        tensors.append(torch.from_numpy(content[first : first + size].view(name).reshape(shape)))
        first += size + -size % _ALIGNED
    path.unlink()
    return SubgraphBatch(*tensors)
