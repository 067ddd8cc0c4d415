"""Tests of resumed discoveries and audits: the same facts, no query twice, what is not resumed."""

import contextlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Command, listing
from tests.support.samples import chain_world, trained_run, write_world
from tests.support.services import saved_run

import oneshot
from oneshot.batch import job_progress as progress_module
from oneshot.batch.job_progress import AuditFile, DiscoveryFile
from oneshot.reasoner import audit as audit_module
from oneshot.reasoner import discovery as search_module
from oneshot.reasoner.audit import Audit, AuditOptions, audit
from oneshot.reasoner.discovery import Discovery, Search, discover, num_queries
from oneshot.reasoner.judgement import ScoredFact

SEARCH = Search(top=6)
IDENTITY = {"predictor": "a", "graph": "b"}


class StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("discovery") / "run")


@pytest.fixture
def reasoner(path: Path) -> oneshot.Reasoner:
    return oneshot.Reasoner.load(path)


def in_pieces(
    reasoner: oneshot.Reasoner, file: DiscoveryFile, batches: int
) -> tuple[list[ScoredFact], int]:
    """A discovery that is stopped after some batches, again and again; and how often."""
    for attempt in itertools.count():
        begun, message = file.read()
        assert message is None
        assert (begun is None) == (attempt == 0)
        left = batches

        def keep(state: Discovery) -> None:
            nonlocal left
            file.keep(state)
            left -= 1
            if not left:
                raise StoppedError

        with contextlib.suppress(StoppedError):
            return discover(reasoner, SEARCH, 4, begun=begun, keep=keep), attempt
    raise AssertionError


@pytest.mark.parametrize("batches", [1, 3, 7])
def test_an_interrupted_discovery_finds_the_same(
    reasoner: oneshot.Reasoner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    monkeypatch.setattr(progress_module, "SAVED_EVERY", 0.0)
    monkeypatch.setattr(progress_module, "_PAUSE", 0)
    whole = discover(reasoner, SEARCH, 4)
    assert len(whole) == SEARCH.top
    file = DiscoveryFile.beside(tmp_path / "facts.csv", IDENTITY, SEARCH)
    found, attempts = in_pieces(reasoner, file, batches)
    assert attempts >= 3
    assert [(f.head, f.relation, f.tail) for f in found] == [
        (f.head, f.relation, f.tail) for f in whole
    ]
    assert [f.score for f in found] == pytest.approx([f.score for f in whole], abs=1e-5)


def test_finished_queries_are_not_asked_again(
    reasoner: oneshot.Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []
    discover(reasoner, SEARCH, 4, keep=lambda state: states.append(json.dumps(vars(state))))
    seen = []
    reason = type(reasoner).reason

    def counted(self, queries, *others):  # type: ignore[no-untyped-def]
        seen.append(len(queries))
        return reason(self, queries, *others)

    monkeypatch.setattr(type(reasoner), "reason", counted)
    total = json.loads(states[-1])
    every = total["asked"] + sum(map(len, total["judged"]))
    assert every <= num_queries(reasoner, SEARCH)
    for text in (states[0], states[len(states) // 2], states[-1]):
        values = json.loads(text)
        begun = DiscoveryFile.parsed(values)
        seen.clear()
        discover(reasoner, SEARCH, 4, begun=begun)
        assert sum(seen) == every - values["asked"] - sum(map(len, values["judged"]))


def test_the_file_is_written_now_and_then(tmp_path: Path) -> None:
    now = 0.0
    file = DiscoveryFile(tmp_path / "progress", "tag", lambda: now)
    file.keep(Discovery(1))
    now = 9.0
    file.keep(Discovery(2))
    assert file.read()[0] == Discovery(1)
    now = 10.0
    state = Discovery(3, [(0.5, (1, 2, 3))], ([[0.25, 0.5, 1.0, 2.0, 3.0]], []))
    file.keep(state)
    assert file.read()[0] == state
    file.remove()
    file.remove()
    assert file.read() == (None, None)


def test_another_discovery_is_not_resumed(tmp_path: Path) -> None:
    out = tmp_path / "facts.csv"
    first = DiscoveryFile.beside(out, IDENTITY, SEARCH)
    first.keep(Discovery(5))
    for identity, search in (
        ({**IDENTITY, "graph": "c"}, SEARCH),
        (IDENTITY, Search(top=7)),
        (IDENTITY, Search(relations=[0], top=6)),
    ):
        begun, message = DiscoveryFile.beside(out, identity, search).read()
        assert begun is None
        assert message is not None
        assert message.endswith("is of another discovery; starting from scratch")
    assert DiscoveryFile.beside(out, IDENTITY, Search(top=6)).read()[0] == Discovery(5)


def test_another_set_of_held_out_facts_is_not_resumed(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_world(tmp_path / "data", chain_world(30))
    path = trained_run(data, tmp_path / "run", "predictor.num_layers=2")
    monkeypatch.setattr(progress_module, "SAVED_EVERY", 0.0)
    monkeypatch.setattr(progress_module, "_PAUSE", 0)
    keep = progress_module.JobFile.keep

    def stopped(self: Any, state: Any) -> None:
        keep(self, state)
        raise KeyboardInterrupt

    for command in ("discover", "audit"):
        line = (command, path, "--top", 5, "--out", tmp_path / "facts.csv", "--json")
        monkeypatch.setattr(progress_module.JobFile, "keep", stopped)
        assert run(*line).code == 130
        monkeypatch.setattr(progress_module.JobFile, "keep", keep)
        other = run(*line, "--held-out")
        assert (other.code, "starting from scratch" in other.err) == (0, True)
        monkeypatch.setattr(progress_module.JobFile, "keep", stopped)
        assert run(*line).code == 130
        monkeypatch.setattr(progress_module.JobFile, "keep", keep)
        again = run(*line)
        assert (again.code, "resuming" in again.err) == (0, True)


@pytest.mark.parametrize(
    "change",
    [
        {"asked": -1},
        {"asked": 1.5},
        {"best": [[math.nan, [1, 2, 3]]]},
        {"best": [[0.5, [1, 2]]]},
        {"best": 3},
        {"judged": [[0.5], []]},
        {"judged": []},
    ],
)
def test_a_damaged_file_is_not_used(tmp_path: Path, change: dict[str, object]) -> None:
    file = DiscoveryFile(tmp_path / "progress", "tag")
    file.keep(Discovery(5))
    values = json.loads(file.path.read_text())
    progress_module.write_sealed_json(file.path, {**values, **change})
    assert file.read() == (None, f"{file.path} is damaged; starting from scratch")
    file.path.write_text("{")
    assert file.read() == (None, f"{file.path} is damaged; starting from scratch")


def test_the_command_resumes(
    run: Command, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "facts.csv"
    command = ("discover", path, "--top", 5, "--batch-size", 4, "--out", out, "--json")
    expected = run(*command).json["facts"]
    before = out.read_text()
    assert listing(tmp_path) == ["facts.csv"]  # no progress is left
    monkeypatch.setattr(progress_module, "SAVED_EVERY", 0.0)
    monkeypatch.setattr(progress_module, "_PAUSE", 0)
    answers, calls = search_module._answers, []

    def stopped(*values):  # type: ignore[no-untyped-def]
        for batch in answers(*values):
            calls.append(batch)
            if len(calls) == 4:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(search_module, "_answers", stopped)
    result = run(*command)
    assert result.code == 130
    assert "stopped; run the same command again to resume" in result.err
    assert out.read_text() == before  # unchanged until the end
    assert sorted(listing(tmp_path)) == [".facts.csv.discovery", "facts.csv"]
    monkeypatch.setattr(search_module, "_answers", answers)
    other = run("discover", path, "--top", 3, "--out", tmp_path / "other.csv")
    assert "resuming" not in other.err
    again = run(*command)
    assert "resuming the interrupted discovery: 12 queries are done" in again.err
    assert [f["head"] for f in again.json["facts"]] == [f["head"] for f in expected]
    assert sorted(listing(tmp_path)) == ["facts.csv", "other.csv"]


def test_an_interrupted_audit_judges_the_rest(
    reasoner: oneshot.Reasoner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "SAVED_EVERY", 0.0)
    monkeypatch.setattr(progress_module, "_PAUSE", 0)
    monkeypatch.setattr(audit_module, "_HIDDEN", 5)
    monkeypatch.setattr(audit_module, "_HIDDEN_SHARE", 1.0)
    options = AuditOptions(limit=23, seed=3)
    whole = audit(reasoner, options)
    file = AuditFile.beside(tmp_path / "facts.csv", IDENTITY, options)

    def keep(state: Audit) -> None:
        file.keep(state)
        if len(state.logits) in (10, 20):
            raise StoppedError

    for done in (0, 20, 40):
        begun, message = file.read()
        assert message is None
        assert (0 if begun is None else begun.queries) == done
        asked: list[int] = []
        with contextlib.suppress(StoppedError):
            found = audit(reasoner, options, 4, asked.append, begun, keep)
    assert sum(asked) == 46
    assert [(f.head, f.relation, f.tail) for f in found] == [
        (f.head, f.relation, f.tail) for f in whole
    ]
    assert [f.score for f in found] == pytest.approx([f.score for f in whole], abs=1e-5)
    other = AuditFile.beside(tmp_path / "facts.csv", IDENTITY, AuditOptions(limit=23, seed=4))
    assert "is of another audit" in str(other.read()[1])
    values = json.loads(file.path.read_text())
    progress_module.write_sealed_json(file.path, {**values, "ranks": [1.0]})
    assert file.read() == (None, f"{file.path} is damaged; starting from scratch")
