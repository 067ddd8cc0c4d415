"""Workers: run tasks in this process one after another, or through Dask."""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from oneshot.errors import InputError, OneshotError, require
from oneshot.system import console

_ARENA_MAX = -8  # parameter of glibc's mallopt
_PATIENCE = 30  # seconds without any worker before a message

Task = dict[str, Any]
Outcome = dict[str, Any]
"""The outcome of a task. A failed task has `status` "failed" and the reason in `error`."""


class Workers(Protocol):
    """Runs tasks, `slots` at a time."""

    @property
    def slots(self) -> int: ...
    def submit(self, number: int, task: Task) -> None: ...
    def wait(self) -> tuple[int, Outcome]:
        """Wait for any submitted task. Returns its number and outcome."""


class ThisProcess:
    """Runs tasks in this process, one after another."""

    slots = 1

    def __init__(self, run: Callable[[Task], Outcome]) -> None:
        self._run = run
        self._waiting: list[tuple[int, Task]] = []

    def submit(self, number: int, task: Task) -> None:
        self._waiting.append((number, task))

    def wait(self) -> tuple[int, Outcome]:
        number, task = self._waiting.pop(0)
        return number, self._run(task)


class DaskWorkers:
    """Runs tasks on a Dask cluster. `retries`: retries of a task that raises an exception."""

    def __init__(self, client: Any, run: Callable[[Task], Outcome], retries: int = 0) -> None:
        self._client = client
        self._run = run
        self._retries = retries
        self._running: dict[Any, int] = {}

    @property
    def slots(self) -> int:
        """The current number of workers; a cluster may grow and shrink."""
        return max(len(self._client.nthreads()), 1)

    def submit(self, number: int, task: Task) -> None:
        future = self._client.submit(self._run, task, pure=False, retries=self._retries)
        self._running[future] = number

    def wait(self) -> tuple[int, Outcome]:
        from distributed import CancelledError, KilledWorker

        try:
            done = self._first_done()
            number = self._running.pop(done)
            outcome: Outcome = done.result()
        except KilledWorker:
            outcome = {
                "status": "failed",
                "error": "its process was killed, probably out of memory",
            }
        except (CancelledError, OSError) as error:
            raise OneshotError(
                f"the connection to the Dask cluster was lost ({error}); continue with --resume"
            ) from error
        except OneshotError:
            raise
        except Exception as error:  # any error of a worker, possibly of another version
            outcome = {"status": "failed", "error": f"{type(error).__name__}: {error}"[:500]}
        return number, outcome

    def _first_done(self) -> Any:
        """The first future to finish; prints a message if there are no workers."""
        from distributed import wait

        waited = False
        while True:
            running = list(self._running)
            try:
                return next(iter(wait(running, _PATIENCE, return_when="FIRST_COMPLETED").done))
            except TimeoutError:
                if not waited and not self._client.nthreads():
                    console.note("the Dask cluster has no worker; waiting for one")
                    waited = True


@contextmanager
def open_workers(
    count: int,
    address: str | None,
    run: Callable[[Task], Outcome],
    purpose: str,
    retries: int = 0,
) -> Iterator[Workers]:
    """Workers of a cluster at `address`, or `count` processes here; one runs in this process.

    `purpose`: their purpose, for messages. `retries`: how often a task that raises an exception, or
    (with local processes) crashes its worker, is retried on another one.
    """
    if address is None and count == 1:
        yield ThisProcess(run)
        return
    require("distributed", "search", purpose)
    import dask
    from distributed import Client, LocalCluster

    if address is not None:
        try:
            client = Client(address, timeout=30)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"no Dask scheduler answers at {address} ({error})") from error
        with client:
            _prepare_all(client, 0)
            yield DaskWorkers(client, run, retries)
        return
    threads = max((os.cpu_count() or 1) // count, 1)
    settings = {
        "distributed.scheduler.allowed-failures": retries,
        "distributed.admin.log-length": 0,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # any free port; the default is 8787
            memory_limit=None,
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):
        _prepare_all(client, threads)
        yield DaskWorkers(client, run, retries)


def _prepare_all(client: Any, threads: int) -> None:
    """Set up the workers of a cluster, including those that join later or replace a dead one."""
    from distributed import WorkerPlugin

    class Preparation(WorkerPlugin):  # type: ignore[misc]
        name = "oneshot"

        def setup(self, worker: Any) -> None:
            prepare_worker(threads)

    try:
        client.register_plugin(Preparation())
    except Exception as error:  # any error of the workers
        raise InputError(
            f"the workers of the Dask cluster cannot run oneshot ({type(error).__name__}: "
            f"{error}); install the same version there"
        ) from error


def prepare_worker(threads: int) -> None:
    """Set up the process of a worker; `threads`: threads of torch, 0 for the default."""
    from oneshot.system.process import prepare_process

    prepare_process()
    import torch

    if threads:
        torch.set_num_threads(threads)
        # The default of the threads that run the tasks.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    # Tasks run in threads, whose own arenas would return large blocks to the system at once.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_ARENA_MAX, 1)
    # If memory runs out, the system should kill the worker and not the main process.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
