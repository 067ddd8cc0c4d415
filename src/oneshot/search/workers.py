"""Workers: where trials run. In this process one after the other, or through Dask."""

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from oneshot.errors import InputError, OneshotError, require

_ARENA_MAX = -8  # parameter of glibc's mallopt

# A worker may have several threads, but torch has one generator, and phase 2 one reasoner.
_ONE_AT_A_TIME = threading.Lock()

Task = dict[str, Any]
Outcome = dict[str, Any]


class Workers(Protocol):
    """Runs tasks, several at a time. `slots`: how many."""

    @property
    def slots(self) -> int: ...
    def submit(self, number: int, task: Task) -> None: ...
    def wait(self) -> tuple[int, Outcome]:
        """Wait for any task that was submitted. → its number and outcome"""


def run_task(task: Task) -> Outcome:
    """Run a trial of either phase."""
    from oneshot.search.answering import run_sampler_trial
    from oneshot.search.trial import run_predictor_trial

    kinds: dict[str, Callable[[Task], Outcome]] = {
        "predictor": run_predictor_trial,
        "sampler": run_sampler_trial,
    }
    with _ONE_AT_A_TIME:
        return kinds[task["kind"]](task)


class ThisProcess:
    """Trials one after the other, here."""

    slots = 1

    def __init__(self, run: Callable[[Task], Outcome] = run_task) -> None:
        self._run = run
        self._waiting: list[tuple[int, Task]] = []

    def submit(self, number: int, task: Task) -> None:
        self._waiting.append((number, task))

    def wait(self) -> tuple[int, Outcome]:
        number, task = self._waiting.pop(0)
        return number, self._run(task)


class DaskWorkers:
    """Trials on the workers of a Dask cluster, one at a time on each."""

    def __init__(self, client: Any, run: Callable[[Task], Outcome] = run_task) -> None:
        self._client = client
        self._run = run
        self._running: dict[Any, int] = {}

    @property
    def slots(self) -> int:
        """As many as there are workers now; a cluster may grow and shrink."""
        return max(len(self._client.nthreads()), 1)

    def submit(self, number: int, task: Task) -> None:
        # A trial that brings its worker down is not tried on the next one.
        future = self._client.submit(self._run, task, pure=False, retries=0)
        self._running[future] = number

    def wait(self) -> tuple[int, Outcome]:
        from distributed import CancelledError, KilledWorker, wait

        done = next(iter(wait(list(self._running), return_when="FIRST_COMPLETED").done))
        number = self._running.pop(done)
        try:
            outcome: Outcome = done.result()
        except KilledWorker:
            outcome = {"status": "failed", "error": "its process was killed; out of memory?"}
        except (CancelledError, OSError) as error:
            raise OneshotError(
                f"the connection to the Dask cluster was lost ({error}); go on with --resume"
            ) from error
        except OneshotError:
            raise
        except Exception as error:  # whatever a worker, of another version maybe, ran into
            outcome = {"status": "failed", "error": f"{type(error).__name__}: {error}"[:500]}
        return number, outcome


@contextmanager
def open_workers(
    count: int, address: str | None, run: Callable[[Task], Outcome] = run_task
) -> Iterator[Workers]:
    """Workers of a cluster at `address`, or `count` processes here; one runs in this process."""
    if address is None and count == 1:
        yield ThisProcess(run)
        return
    require("distributed", "search", "a search with several workers")
    import dask
    from distributed import Client, LocalCluster

    if address is not None:
        try:
            client = Client(address, timeout=30)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"no Dask scheduler answers at {address} ({error})") from error
        with client:
            _prepare_all(client, 0)
            yield DaskWorkers(client, run)
        return
    threads = max((os.cpu_count() or 1) // count, 1)
    quiet = {"distributed.scheduler.allowed-failures": 0, "distributed.admin.log-length": 0}
    with (
        dask.config.set(quiet),
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # any free port; without one it takes 8787
            memory_limit=None,
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):
        _prepare_all(client, threads)
        yield DaskWorkers(client, run)


def _prepare_all(client: Any, threads: int) -> None:
    """Set up the workers of a cluster, also those that come later or take a dead one's place."""
    from distributed import WorkerPlugin

    class Preparation(WorkerPlugin):  # type: ignore[misc]
        name = "oneshot"

        def setup(self, worker: Any) -> None:
            prepare_worker(threads)

    try:
        client.register_plugin(Preparation())
    except Exception as error:  # whatever is wrong over there
        raise InputError(
            f"the workers of the Dask cluster cannot run oneshot ({type(error).__name__}: "
            f"{error}); install the same version there"
        ) from error


def prepare_worker(threads: int) -> None:
    """Set up a worker's process; `threads` of torch, 0 for what it has."""
    from oneshot.process import prepare_process

    prepare_process()
    import torch

    if threads:
        torch.set_num_threads(threads)
        # What the threads that run the tasks begin with.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    # Tasks run in threads, whose own arenas would give large blocks back to the system at once.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_ARENA_MAX, 1)
    # When memory runs out, the system should take the worker and not the one who keeps the books.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
