"""Tests of what a process sets for itself and its threads."""

import os
import sys
import threading

import pytest

from oneshot.system.process import yield_to_other_threads


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="niceness belongs to the process")
def test_a_thread_yields_alone() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    found: list[int] = []

    def work() -> None:
        found.append(niceness())
        yield_to_other_threads(3)
        found.append(niceness())

    before = niceness()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before, min(before + 3, 19)]
    assert niceness() == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="niceness belongs to the process")
def test_a_niceness_that_is_not_allowed_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    yield_to_other_threads(3)
