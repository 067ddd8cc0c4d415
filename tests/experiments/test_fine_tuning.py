"""Tests of the benchmark that compares fine-tuning with training from scratch."""

from typing import Any

import pytest
from benchmarks import fine_tuning
from benchmarks.fine_tuning import FOUNDATION, SCRATCH, Job, inductive_figures, measure, table
from benchmarks.first_training import core_sets, run_all

REPORT = {"mrr": 0.5, "hits@1": 0.4, "hits@10": 0.8, "coverage": 0.9, "queries": 10}


def test_jobs_are_measured_and_added_until_the_time_is_over() -> None:
    jobs = [Job(name, minutes, SCRATCH, 0, "cpu") for name, minutes in (("a", 0.1), ("b", 60.0))]
    rows: list[dict[str, Any]] = []

    def fake(job: Job, cores: int) -> dict[str, Any]:
        return {**job._asdict(), "mrr": 0.5, "wall_seconds": 1.0, "cores": cores}

    run_all(jobs, core_sets(1, 1), fake, rows.append, until=100.0)
    assert [row["data"] for row in rows] == ["a"]
    assert rows[0]["cores"] == 1
    assert jobs[0].is_of(rows[0])
    assert not jobs[0]._replace(start=FOUNDATION).is_of(rows[0])


def test_inductive_sets_are_asked_about_new_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def fake(command: list[str], cores: int, title: str) -> tuple[dict[str, Any], float]:
        commands.append(command)
        is_test = command[-5:-3] == ["--split", "test"]
        return ({**REPORT, "mrr": 0.8} if is_test else {**REPORT, "queries": 30}), 1.0

    monkeypatch.setattr(fine_tuning, "timed", fake)
    found = inductive_figures(Job("inductive/x", 1.0, SCRATCH, 0, "cpu"), "run", 2)
    assert found is not None
    assert found["mrr"] == 0.8
    assert found["merged_mrr"] == pytest.approx((30 * 0.5 + 10 * 0.8) / 40)
    assert all("inductive/x_ind" in command for command in commands)


@pytest.mark.parametrize("start", [FOUNDATION, SCRATCH])
def test_only_fine_tuning_starts_from_a_run(monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    commands = []

    def fake(command: list[str], cores: int, title: str) -> None:
        commands.append(command)

    monkeypatch.setattr(fine_tuning, "timed", fake)
    assert measure(Job("UMLS", 1.0, start, 0, "cpu"), 2) is None  # the training failed
    assert ("--from" in commands[0]) == (start == FOUNDATION)


def test_the_table_has_both_starts_for_each_budget() -> None:
    rows = [
        {"data": "UMLS", "minutes": 1.0, "start": FOUNDATION, "mrr": 0.9},
        {"data": "UMLS", "minutes": 1.0, "start": SCRATCH, "mrr": 0.7},
        {"data": "UMLS", "minutes": 1.0, "start": SCRATCH, "mrr": 0.8},
        {"data": "UMLS", "minutes": 3.0, "start": SCRATCH, "mrr": 0.85},
    ]
    head, line = table(rows)
    assert head.split() == ["data", "1", "min", "3", "min"]
    assert line.split() == ["UMLS", "0.9000", "/", "0.7500", "–", "/", "0.8500"]
