"""Workers of a search, each of which runs one trial of either phase at a time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oneshot.system import workers
from oneshot.system.workers import Outcome, Task, ThisProcess, Workers
from oneshot.training.time_budget import Clock

__all__ = ["Outcome", "Task", "ThisProcess", "Workers", "open_workers", "run_task"]

# A worker may have several threads, but torch has one generator, and phase 2 has one reasoner.
_ONE_AT_A_TIME = threading.Lock()


def run_task(task: Task, clock: Clock = time.perf_counter) -> Outcome:
    """Run a trial of either phase with this clock."""
    from oneshot.search.predictor_trial import run_predictor_trial
    from oneshot.search.sampler_trial import run_sampler_trial

    kinds: dict[str, Callable[[Task, Clock], Outcome]] = {
        "predictor": run_predictor_trial,
        "sampler": run_sampler_trial,
    }
    with _ONE_AT_A_TIME:
        return kinds[task["kind"]](task, clock)


@contextmanager
def open_workers(
    count: int, address: str | None, run: Callable[[Task], Outcome] = run_task
) -> Iterator[Workers]:
    """Workers of a cluster at `address`, or `count` local processes (see `system.workers`)."""
    # A trial that crashes its worker is not retried on another one.
    with workers.open_workers(count, address, run, "a search with several workers") as crew:
        yield crew
