"""Interruption: clean end of a training on SIGTERM or Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneshot.system.distributed import Team


class StopTraining(BaseException):
    """Ends a training on request; like KeyboardInterrupt, it is not an error."""


def check_stop(should_stop: Callable[[], bool], team: "Team") -> None:
    """Raise `StopTraining` within an evaluation if `should_stop` returns true.

    Not in distributed training: the processes wait for each other at the end of the evaluation, so
    none may leave alone.
    """
    if team.size == 1 and should_stop():
        raise StopTraining


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `StopTraining` in the block, so that the block can clean up.

    Has no effect outside of the main thread, as only the main thread can handle signals.
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
def stop_request() -> Iterator[Callable[[], bool]]:
    """Record SIGTERM, as sent by cluster schedulers and `kill`. → whether it was received

    A second SIGTERM ends the process at once. Has no effect outside of the main thread, as only
    the main thread can handle signals.
    """
    with _noted(signal.SIGTERM, signal.SIG_DFL) as came:
        yield lambda: bool(came)


@contextmanager
def interrupted() -> Iterator[Callable[[], bool]]:
    """Record Ctrl-C (SIGINT). → whether it was received

    A second Ctrl-C raises KeyboardInterrupt. If SIGINT is ignored, as in a background job of a
    shell, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield lambda: False
        return
    with _noted(signal.SIGINT, signal.default_int_handler) as came:
        yield lambda: bool(came)


@contextmanager
def _noted(number: signal.Signals, later: Any) -> Iterator[list[int]]:
    """Record a signal; `later` handles its second occurrence. → the received signals"""
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
