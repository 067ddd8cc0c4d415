"""Reports of the paper's tables: what is kept, what is measured anew, what is left alone."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.support.commands import Command

from oneshot.errors import DivergedError, InputError
from oneshot.experiments.bench.measure import sources
from oneshot.experiments.paper import TABLES, Workbench, literature, make_report
from oneshot.experiments.tables import workbench
from oneshot.experiments.tables.report import as_markdown
from oneshot.experiments.tables.table import Column, Figures, Row, Table, mean_of
from oneshot.system.checksums import read_sealed_json, write_sealed_json

pytest.importorskip("matplotlib", reason="the tables draw pictures (extra plot)")
pytest.importorskip("smac", reason="one of the tables searches (extra search)")


def counting(calls: list[int]) -> Table:
    """A table of four rows that notes down which were measured."""

    def plan(bench: Workbench) -> Iterator[Row]:
        for number in range(4):

            def measure(number: int = number) -> Figures:
                calls.append(number)
                if len(calls) == 3:
                    raise KeyboardInterrupt
                return {"square": number**2}

            yield Row({"number": number}, measure, {"square": 7.0} if number == 2 else {})

    columns = (Column("n", "number"), Column("square", "square", ".1f"), Column("empty", "none"))
    return Table("counting", "Squares", columns, plan, lambda rows: f"{len(rows)} squares.")


def test_an_interrupted_table_goes_on_with_the_row_it_was_at(tmp_path: Path) -> None:
    calls: list[int] = []
    table, bench = counting(calls), Workbench(tmp_path, torch.device("cpu"))
    with pytest.raises(KeyboardInterrupt):
        make_report(table, bench)
    saved = json.loads((tmp_path / "counting.json").read_text())
    assert not saved["complete"]
    assert "Not all rows are measured yet." in (tmp_path / "counting.md").read_text()
    report = make_report(table, bench)
    assert calls == [0, 1, 2, 2, 3]
    assert report["complete"]
    text = as_markdown(table, report)
    assert "| 2 | 4.0 (7.0) |" in text
    assert "empty" not in text
    assert "4 squares." in text


def test_no_row_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    calls: list[int] = []
    bench = Workbench(tmp_path, torch.device("cpu"), minutes=0)
    with pytest.raises(InputError, match="increase --minutes"):
        make_report(counting(calls), bench)
    assert not calls
    told: list[str] = []
    timely = dataclasses.replace(bench, minutes=None)
    with pytest.raises(KeyboardInterrupt):
        make_report(counting(calls), timely)
    report = make_report(counting([]), bench, told.append)
    assert len(report["rows"]) == 2
    assert "2 rows are left" in told[-1]


def asking(numbers: list[int], fail: bool = False) -> Table:
    """A table of some rows, of which the first missing one may be interrupted."""

    def plan(bench: Workbench) -> Iterator[Row]:
        for number in numbers:

            def measure(number: int = number) -> Figures:
                if fail:
                    raise KeyboardInterrupt
                return {"square": number**2}

            yield Row({"number": number}, measure)

    return Table("asking", "Squares", (Column("n", "number"), Column("square", "square")), plan)


def test_rows_stay_that_are_not_asked_for_today(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, torch.device("cpu"))
    make_report(asking([1, 2, 3]), bench)
    with pytest.raises(KeyboardInterrupt):
        make_report(asking([4, 2], fail=True), bench)
    report = make_report(asking([4, 2]), bench)
    assert [row["number"] for row in report["rows"]] == [4, 2, 1, 3]
    assert report["complete"]
    assert [row["square"] for row in make_report(asking([1], fail=True), bench)["rows"]] == [
        1,
        16,
        4,
        9,
    ]


def test_one_process_measures_a_table(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, torch.device("cpu"))

    def plan(_: Workbench) -> Iterator[Row]:
        yield Row({"number": 1}, lambda: make_report(asking([2]), bench))

    with pytest.raises(InputError, match="another process is measuring this table"):
        make_report(Table("asking", "Squares", (), plan), bench)


def test_what_is_not_ours_is_left_alone(tmp_path: Path, run: Command) -> None:
    for name in ("datasets.md", "datasets.png"):
        (tmp_path / name).write_text("mine")
        refused = run("paper", "datasets", "--quick", "--out", tmp_path)
        assert refused.code == 2
        assert "was not written by this command" in refused.err
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


def test_what_a_row_needs_is_kept_until_it_is_in_the_report(tmp_path: Path) -> None:
    seen: list[int] = []

    def plan(_: Workbench) -> Iterator[Row]:
        def written() -> None:
            seen.append(len(json.loads((tmp_path / "rows.json").read_text())["rows"]))

        for number in (1, 2):
            yield Row({"number": number}, lambda: {"square": 1}, written=written)

    make_report(Table("rows", "Rows", (), plan), Workbench(tmp_path, torch.device("cpu")))
    assert seen == [1, 2]


def test_a_report_that_was_removed_is_measured_anew(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, torch.device("cpu"))
    first = make_report(asking([2]), bench)
    (tmp_path / "asking.json").unlink()
    assert (tmp_path / "asking.md").exists()
    assert make_report(asking([2]), bench)["rows"][0]["number"] == first["rows"][0]["number"]


def world(path: Path, test: list[str]) -> Path:
    """A small data set with these test facts."""
    path.mkdir(parents=True)
    facts = [f"e{i}\tr{i % 2}\te{(i * 7 + 3) % 12}" for i in range(40)]
    (path / "train.txt").write_text("\n".join(facts))
    (path / "valid.txt").write_text("e1\tr0\te5\ne2\tr1\te6")
    (path / "test.txt").write_text("\n".join(test))
    return path


def test_other_facts_under_the_same_name_are_measured_anew(tmp_path: Path) -> None:
    one = world(tmp_path / "a" / "kg", ["e3\tr0\te9", "e4\tr0\te1"])
    other = world(tmp_path / "b" / "kg", ["e5\tr0\te2", "e6\tr1\te8", "e7\tr1\te8"])
    changes = ["training.epochs=1", "predictor.dim=4", "predictor.num_layers=1"]

    def rows(table: str, out: str, *names: Path) -> list[Figures]:
        bench = Workbench(
            tmp_path / out, torch.device("cpu"), names=list(map(str, names)), changes=changes
        )
        found: list[Figures] = make_report(TABLES[table], bench)["rows"]
        return found

    both = rows("deletion", "both", one, other)
    alone = rows("deletion", "alone", other)
    assert [row["mrr"] for row in both[len(alone) :]] == [row["mrr"] for row in alone]
    assert rows("datasets", "same", one)[0]["test"] == 2
    (one / "test.txt").write_text("e3\tr0\te9")
    assert [row["test"] for row in rows("datasets", "same", one)] == [1]


def test_odd_names_stay_in_their_place(tmp_path: Path, run: Command) -> None:
    data = world(tmp_path / "own" / "$k^$", ["$x^$\tr0\te9", "e|4\tr0\te1"])
    before = sorted(data.parent.rglob("*"))
    out = tmp_path / "out" / "deep"
    for table in ("cases", "hops"):
        assert run("paper", table, "--data", data, "--out", out).code == 0
    assert sorted(data.parent.rglob("*")) == before
    assert len(list((out / "cases").glob("*.png"))) == 4  # two questions, each drawn once a ratio
    assert "e\\|4" in (out / "cases.md").read_text()


def test_data_of_the_same_name_have_drawings_of_their_own(tmp_path: Path, run: Command) -> None:
    one = world(tmp_path / "a" / "kg", ["e3\tr0\te9"])
    other = world(tmp_path / "b" / "kg", ["e5\tr0\te2"])
    out = tmp_path / "out"
    found = run("paper", "cases", "--data", f"{one},{other}", "--out", out, "--json").json["rows"]
    drawings = {row["drawing"] for row in found}
    assert len(drawings) == len(found) == 4
    assert all((out / drawing).is_file() for drawing in drawings)


def test_no_verdicts_without_a_table(tmp_path: Path, run: Command) -> None:
    late = run("paper", "all", "--quick", "--minutes", 0, "--out", tmp_path)
    assert late.code == 2
    assert not (tmp_path / "claims.json").exists()
    assert late.out == ""


def test_a_diverging_training_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise DivergedError("no numbers")

    monkeypatch.setattr(workbench, "train_run", diverge)
    bench = Workbench(tmp_path / "memory", torch.device("cpu"), quick=True)
    rows = make_report(TABLES["layers"], bench)["rows"]
    assert {row["failure"] for row in rows} == {"not finite"}

    def fail(*_: object, **__: object) -> None:
        raise InputError("memory/config.toml: was damaged")

    monkeypatch.setattr(workbench, "train_run", fail)
    with pytest.raises(InputError, match="damaged"):
        make_report(TABLES["budget-training"], bench)


def test_a_stopped_table_resumes_within_the_training(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []

    @contextmanager
    def stop_later() -> Iterator[Callable[[], bool]]:
        yield lambda: asked.append(None) or len(asked) == 12

    monkeypatch.setattr(workbench, "stop_request", stop_later)
    command = ["paper", "heuristics", "--quick", "--set", "training.epochs=3", "--out", tmp_path]
    stopped = run(*command)
    assert stopped.code == 143
    assert "run the same command again to resume" in stopped.err
    (path,) = (tmp_path / "runs").iterdir()
    assert not (path / "result.json").exists()
    assert run(*command).code == 0
    rows = json.loads((tmp_path / "heuristics.json").read_text())["rows"]
    assert [row["sampler"] for row in rows] == list(literature.SAMPLERS)
    fresh = Workbench(tmp_path / "fresh", torch.device("cpu"), quick=True, changes=command[4:5])
    assert rows[0]["mrr"] == make_report(TABLES["heuristics"], fresh)["rows"][0]["mrr"]


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 3}'])
def test_a_damaged_report_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "datasets.json").write_text(content)
    with pytest.raises(InputError, match=r"datasets\.json: incomplete report"):
        make_report(TABLES["datasets"], Workbench(tmp_path, torch.device("cpu"), quick=True))


def test_all_machines_are_named_once() -> None:
    gpu = {"gpu": "H200", "versions": {"torch": "2.11"}, "date": "2026-11-15"}
    processor = {"cores": 2, "processor": "EPYC", "versions": {"torch": "2.13"}, "date": "today"}
    machines = [
        {**gpu, "revision": "abcdef1+"},
        {**processor, "revision": None},
        {**gpu, "revision": "0123456" + "a" * 33},
        {**gpu, "revision": "abcdef1+"},
    ]
    assert sources(machines) == [
        "H200, torch 2.11, 2026-11-15, revisions abcdef1+, 0123456",
        "2 cores of EPYC, torch 2.13, today, revision unknown",
    ]


def trainings(calls: list[tuple[str, int, bool]]) -> Table:
    """A table of trainings on two data sets, which notes down those that were measured."""

    def plan(bench: Workbench) -> Iterator[Row]:
        for seed in range(bench.seed, bench.seed + bench.seeds):
            for data in ("a", "b"):

                def measure(data: str = data, seed: int = seed) -> Figures:
                    calls.append((data, seed, bench.converged))
                    return {"mrr": 0.5 + 0.01 * seed + 0.1 * bench.converged}

                key = {"data": data, "seed": seed, "converged": bench.converged}
                yield Row(key, measure, {"mrr": 0.6} if data == "a" else {})

    columns = (
        Column("data", "data"),
        Column("MRR", "mrr", ".3f"),
        Column("training", "training"),
        Column("seeds", "seeds"),
    )
    return Table(
        "trainings",
        "Trainings",
        columns,
        plan,
        lambda rows: " ".join(f"{row['data']} {row['mrr']:.3f}" for row in rows),
        by_name=False,
        keys=("data",),
    )


def test_rows_of_earlier_versions_are_short_trainings_of_the_first_seed(tmp_path: Path) -> None:
    calls: list[tuple[str, int, bool]] = []
    table, bench = trainings(calls), Workbench(tmp_path, torch.device("cpu"))
    make_report(table, bench)
    report = read_sealed_json(tmp_path / "trainings.json")
    for row in report["rows"]:
        del row["seed"], row["converged"]
    write_sealed_json(tmp_path / "trainings.json", report)
    calls.clear()
    again = make_report(table, bench)
    assert not calls
    assert [(row["data"], row["seed"], row["converged"]) for row in again["rows"]] == [
        ("a", 0, False),
        ("b", 0, False),
    ]
    make_report(table, dataclasses.replace(bench, seeds=2))
    assert calls == [("a", 1, False), ("b", 1, False)]


def test_several_seeds_are_one_line_with_their_spread(tmp_path: Path) -> None:
    table = trainings([])
    report = make_report(table, Workbench(tmp_path, torch.device("cpu"), seeds=3))
    assert len(report["rows"]) == 6
    assert report["finding"] == "a 0.510 b 0.510"
    text = as_markdown(table, report)
    assert "| a | 0.510 ± 0.010 (0.600) | 3 |" in text
    assert "| b | 0.510 ± 0.010 | 3 |" in text
    assert "the mean ± the standard deviation" in text
    # One seed has no spread.
    alone = as_markdown(table, {**report, "rows": report["rows"][:2]})
    assert "±" not in alone


def test_a_failed_seed_leaves_the_mean_of_the_others() -> None:
    rows = [{"data": "a", "mrr": 0.5}, {"data": "a", "failure": "out of memory"}]
    assert mean_of(rows)["mrr"] == 0.5
    assert mean_of(rows[::-1])["mrr"] == 0.5
    assert mean_of(rows)["spread"] == {}


def test_trainings_to_convergence_stand_beside_short_ones(tmp_path: Path) -> None:
    calls: list[tuple[str, int, bool]] = []
    table = trainings(calls)
    bench = Workbench(tmp_path, torch.device("cpu"))
    make_report(table, bench)
    report = make_report(table, dataclasses.replace(bench, converged=True))
    assert calls == [("a", 0, False), ("b", 0, False), ("a", 0, True), ("b", 0, True)]
    text = as_markdown(table, report)
    assert "| a | 0.600 (0.600) | to convergence |" in text
    assert "| a | 0.500 (0.600) | short |" in text
    # Findings do not mix the two; a data set with too few of them is judged by the short ones.
    assert report["finding"] == "a 0.600 b 0.600"
    rows = [row for row in report["rows"] if not (row["data"] == "b" and row["converged"])]
    assert [row["mrr"] for row in table.judged(rows)] == pytest.approx([0.6, 0.5])


def test_the_time_of_missing_rows_is_announced(tmp_path: Path) -> None:
    def plan(_: Workbench) -> Iterator[Row]:
        for number in range(3):
            seconds = None if number == 2 else 5400.0
            yield Row({"number": number}, lambda: {"square": 1}, seconds=seconds)

    table = Table("long", "Long", (Column("n", "number"),), plan)
    told: list[str] = []
    report = make_report(table, Workbench(tmp_path, torch.device("cpu")), told.append)
    assert "the 3 missing rows take about 3.0 hours" in told[0]
    assert all(row["row_seconds"] >= 0 for row in report["rows"])
    told.clear()
    make_report(table, Workbench(tmp_path, torch.device("cpu")), told.append)
    assert not told


def test_a_published_row_has_no_machine(tmp_path: Path) -> None:
    def plan(_: Workbench) -> Iterator[Row]:
        yield Row({"system": "A"}, lambda: {"mrr": 0.5}, {"mrr": 0.4})
        yield Row({"system": "B"}, lambda: {"hardware": {}}, {"mrr": 0.3}, derived=True)

    table = Table("two", "Two", (Column("system", "system"), Column("MRR", "mrr", ".1f")), plan)
    report = make_report(table, Workbench(tmp_path, torch.device("cpu")))
    assert "| B | – (0.3) |" in as_markdown(table, report)
    assert make_report(table, Workbench(tmp_path, torch.device("cpu")))["complete"]


def test_a_training_to_convergence_stops_early(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, torch.device("cpu"), quick=True, converged=True)
    training = bench.config("umls", {"training.epochs": 3}).training
    assert (training.epochs, training.patience, training.schedule) == (18, 6, "plateau")
    asked = dataclasses.replace(bench, changes=["training.epochs=4", "training.patience=1"])
    training = asked.config("umls").training
    assert (training.epochs, training.patience, training.schedule) == (4, 1, "plateau")
    assert bench.epochs("umls", 1.0) == 1  # of the short training, which a table shortens


@pytest.mark.parametrize("options", [("--seeds", 2), ("--converged",)])
def test_tables_without_trainings_have_no_seeds(
    tmp_path: Path, run: Command, options: tuple[object, ...]
) -> None:
    refused = run("paper", "datasets", "--quick", *options, "--out", tmp_path / "out")
    assert refused.code == 2
    assert "--seeds and --converged" in refused.err
    assert not (tmp_path / "out").exists()
