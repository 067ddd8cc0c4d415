"""Tests of the store of a search, of the loop over its trials, and of its workers."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.searches import Sitting, Time

from oneshot.errors import InputError, OneshotError
from oneshot.search import store as module
from oneshot.search.observer import SearchObserver
from oneshot.search.propose import Proposal
from oneshot.search.scheduler import run_phase
from oneshot.search.session import OutOfTime, Timer, session_seconds
from oneshot.search.store import STORE, Store, Trial, only_one
from oneshot.search.workers import ThisProcess, open_workers


def test_a_trial_is_entered_before_it_starts_and_finished_once(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    store.start("predictor", 0, {"predictor.dim": 8}, "initial")
    assert [t.status for t in store.trials("predictor")] == ["running"]
    store.start("predictor", 0, {"predictor.dim": 9}, "again")
    (trial,) = store.trials("predictor")
    assert (trial.attempts, trial.values, trial.origin) == (2, {"predictor.dim": 8}, "initial")
    outcome = {"status": "done", "value": 0.5, "curve": [0.4, 0.5], "seconds": 2.0}
    store.finish("predictor", 0, outcome, 3.0)
    (trial,) = store.trials("predictor")
    assert (trial.status, trial.value, trial.curve, trial.at) == ("done", 0.5, [0.4, 0.5], 3.0)
    with pytest.raises(RuntimeError):
        store.finish("predictor", 0, outcome, 3.0)
    assert store.clock("predictor") == 3.0
    assert store.clock("random:0") == 0.0
    store.close()


def test_only_a_store_of_ours_is_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no search"):
        Store(tmp_path)
    (tmp_path / STORE).write_text("not a database, but long enough to be looked at" * 40)
    with pytest.raises(InputError, match="not written by oneshot, or damaged"):
        Store(tmp_path)
    (tmp_path / STORE).unlink()
    sqlite3.connect(tmp_path / STORE).close()
    with pytest.raises(InputError, match="not written by oneshot"):
        Store(tmp_path)


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, x FROM n"
CRAFTED = {
    "an endless view": f"DROP TABLE about; CREATE VIEW about (key, value) AS {ENDLESS}",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END",
    "another table": "DROP TABLE about; CREATE TABLE about (key, value)",
    "a blob as phase": "UPDATE trials SET phase = x'ff'",
    "an unknown status": "PRAGMA ignore_check_constraints = 1; UPDATE trials SET status = 'odd'",
    "a list of values": "UPDATE trials SET choice = '[]'",
    "a text as target": "UPDATE trials SET value = 'high'",
    "a text in the curve": """UPDATE trials SET curve = '["high"]'""",
    "a text as time": "UPDATE trials SET at = 'now'",
    "a blob as error": "UPDATE trials SET error = x'ff'",
    "no answers": "DELETE FROM answers",
    "half an answer": "UPDATE answers SET ranks = x'ff'",
    "a text as answer": "UPDATE answers SET ranks = 'first'",
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_store_is_refused(tmp_path: Path, what: str) -> None:
    store = Store(tmp_path, create=True)
    store.start("predictor", 0, {"predictor.dim": 8}, "initial")
    answers = [np.zeros(3, kind).tobytes() for kind in (np.float32, np.int32, np.int32)]
    outcome = {"status": "done", "value": 0.5, "answers": answers}
    store.finish("predictor", 0, outcome, 3.0)
    assert len(store.answers("predictor", 0).ranks) == 3
    store.close()
    with closing(sqlite3.connect(tmp_path / STORE)) as connection:
        connection.executescript(CRAFTED[what])

    def read() -> None:
        with closing(Store(tmp_path)) as opened:
            for phase in opened.phases():
                opened.clock(phase)
                for trial in opened.trials(phase):
                    opened.answers(phase, trial.number)

    with pytest.raises(InputError, match="not written by oneshot, or damaged"):
        read()


def test_an_earlier_and_an_incomplete_store_open(tmp_path: Path) -> None:
    (tmp_path / "earlier").mkdir()
    with closing(sqlite3.connect(tmp_path / "earlier" / STORE)) as connection:
        rest = module._EARLIER_SCHEMA.split(";", 1)[1]
        assert "infeasible" not in rest
        connection.executescript(rest)
    store = Store(tmp_path / "earlier", create=True)  # adds the first table
    store.start("predictor", 0, {}, "initial")
    store.close()
    again = Store(tmp_path / "earlier")
    assert len(again.trials("predictor")) == 1
    again.close()


def test_one_process_searches_in_a_directory(tmp_path: Path) -> None:
    with (
        only_one(tmp_path),
        pytest.raises(InputError, match="another process"),
        only_one(tmp_path),
    ):
        pass
    with only_one(tmp_path):
        pass


def test_sessions_add_up_and_end(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    assert not Timer(store, None).is_over
    assert not Timer(store, 60).is_over
    for _ in range(2):
        timer = Timer(store, 0)
        assert timer.is_over
        timer.keep()
        timer.keep()  # the same session, not another one
    assert len(session_seconds(store)) == 2
    store.close()


# The loop.


def numbered(number: int, trials: list[Trial]) -> Proposal:
    return Proposal({"number": number}, "random")


def test_failures_are_recorded_and_the_phase_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    ran: list[int] = []

    def outcome(task: dict[str, Any]) -> dict[str, Any]:
        ran.append(task["number"])
        if task["number"] % 2:
            return {"status": "failed", "error": "out of memory"}
        return {"status": "done", "value": task["number"] / 10}

    def phase(total: int) -> list[Trial]:
        session = Sitting(store, ThisProcess(outcome), Time())
        return run_phase(session, "predictor", total, numbered, lambda v, t: v, SearchObserver())

    assert [t.status for t in phase(3)] == ["done", "failed", "done"]
    assert [t.status for t in phase(5)] == ["done", "failed", "done", "failed", "done"]
    assert [t.error for t in phase(5)][1] == "out of memory"
    assert ran == [0, 1, 2, 3, 4]  # each once
    # Trials that never end although they were begun often are taken for the reason.
    for _ in range(5):
        store.start("predictor", 5, {"number": 5}, "random")
    assert [t.status for t in phase(6)][5] == "failed"
    assert "killed 5 times" in str(phase(6)[5].error)
    assert 5 not in ran


def test_a_phase_ends_when_the_time_is_over_and_goes_on_later(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)

    def phase(time: Time) -> list[Trial]:
        workers = ThisProcess(lambda task: {"status": "done", "value": 0.5})
        session = Sitting(store, workers, time)
        return run_phase(session, "predictor", 5, numbered, lambda v, t: v, SearchObserver())

    with pytest.raises(OutOfTime):
        phase(Time(2))
    assert [t.status for t in store.trials("predictor")] == ["done", "done"]
    with pytest.raises(OutOfTime):
        phase(Time(0))
    assert len(phase(Time(3))) == 5
    assert len(phase(Time(0))) == 5  # nothing is left to do


def test_a_device_that_cannot_be_used_any_more_ends_the_session(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    broken = {"status": "failed", "error": "illegal memory access", "is_fatal": True}
    session = Sitting(store, ThisProcess(lambda task: broken), Time())
    with pytest.raises(OneshotError, match=r"illegal memory access.*continue with --resume"):
        run_phase(session, "predictor", 3, numbered, lambda v, t: v, SearchObserver())
    assert [t.status for t in store.trials("predictor")] == ["failed"]


def test_a_search_in_which_everything_fails_ends(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    workers = ThisProcess(lambda task: {"status": "failed", "error": "no such thing"})
    session = Sitting(store, workers, Time())
    with pytest.raises(OneshotError, match="first 5 trials failed, the last with: no such thing"):
        run_phase(session, "predictor", 9, numbered, lambda v, t: v, SearchObserver())


# Workers.


def fragile(task: dict[str, Any]) -> dict[str, Any]:
    """A trial that may take its process down."""
    if task["number"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"status": "done", "value": 0.5, "about": {"threads": _threads()}}


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def test_a_trial_that_kills_its_worker_is_a_failure_and_others_go_on(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra `search` is not installed")
    store = Store(tmp_path, create=True)
    with open_workers(2, None, fragile) as workers:
        assert workers.slots == 2
        session = Sitting(store, workers, Time())
        trials = run_phase(session, "predictor", 4, numbered, lambda v, t: v, SearchObserver())
    assert [t.status for t in trials] == ["done", "failed", "done", "done"]
    assert "killed" in str(trials[1].error)
    # Also the worker that took the dead one's place is set up.
    assert {t.about["threads"] for t in trials if t.status == "done"} == {
        max((os.cpu_count() or 1) // 2, 1)
    }


def test_no_cluster_at_an_address_is_told() -> None:
    pytest.importorskip("distributed", reason="the extra `search` is not installed")
    with (
        pytest.raises(InputError, match="no Dask scheduler answers at"),
        open_workers(1, "no scheme at all://"),
    ):
        pass
