"""Stopping: a training that is asked to end (SIGTERM) ends well instead of dying."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopTraining(BaseException):
    """Ends a training because somebody asked for it; as KeyboardInterrupt, it is no fault."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `StopTraining` in the block, which so cleans up behind itself.

    Outside of the main thread, which alone can listen to signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise StopTraining

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def told_to_stop() -> Iterator[Callable[[], bool]]:
    """Take note of SIGTERM, as cluster schedulers and `kill` send it. → whether it came

    A second one ends the process at once. Outside of the main thread, which alone can listen to
    signals, nothing is changed.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)
