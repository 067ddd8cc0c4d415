"""Stopping: a training that is asked to end (SIGTERM, Ctrl-C) ends well instead of dying."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneshot.system.distributed import Team


class StopTraining(BaseException):
    """Ends a training because somebody asked for it; as KeyboardInterrupt, it is no fault."""


def check_stop(should_stop: Callable[[], bool], team: "Team") -> None:
    """Raise `StopTraining` within an evaluation if `should_stop` says so.

    Not with several processes: they wait for each other at its end, and none may leave alone.
    """
    if team.size == 1 and should_stop():
        raise StopTraining


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
    with _noted(signal.SIGTERM, signal.SIG_DFL) as came:
        yield lambda: bool(came)


@contextmanager
def interrupted() -> Iterator[Callable[[], bool]]:
    """Take note of Ctrl-C (SIGINT). → whether it came

    A second one raises KeyboardInterrupt, as the first does elsewhere. Where it is ignored, as in
    a job that a shell has put into the background, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield lambda: False
        return
    with _noted(signal.SIGINT, signal.default_int_handler) as came:
        yield lambda: bool(came)


@contextmanager
def _noted(number: signal.Signals, later: Any) -> Iterator[list[int]]:
    """Take note of a signal; `later` handles it when it comes again. → grows when it comes"""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        signal.signal(number, later)

    before = signal.signal(number, note)
    try:
        yield came
    finally:
        signal.signal(number, before)
