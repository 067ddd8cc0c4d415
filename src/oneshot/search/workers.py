"""Workers of a search: what runs a trial of either phase, one at a time on each."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oneshot.system import workers
from oneshot.system.workers import Outcome, Task, ThisProcess, Workers
from oneshot.training.time_budget import Clock

__all__ = ["Outcome", "Task", "ThisProcess", "Workers", "open_workers", "run_task"]

# A worker may have several threads, but torch has one generator, and phase 2 one reasoner.
_ONE_AT_A_TIME = threading.Lock()


def run_task(task: Task, clock: Clock = time.perf_counter) -> Outcome:
    """Run a trial of either phase, whose time is read from `clock`."""
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
    # A trial that brings its worker down is not tried on the next one.
    with workers.open_workers(count, address, run, "a search with several workers") as crew:
        yield crew
