"""The tables of the paper: measured whole on a small world, resumed, and judged."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from commands import Run

from oneshot.config import PredictorConfig
from oneshot.datasets import load
from oneshot.errors import DivergedError, InputError
from oneshot.graph import KnowledgeGraph
from oneshot.paper import TABLES, Workbench, main_table, make_report, workbench
from oneshot.paper.cases import hops_from
from oneshot.paper.claims import CLAIMS
from oneshot.paper.cost import by_formula, counted
from oneshot.paper.reporting import as_markdown
from oneshot.paper.structure import within_hops
from oneshot.paper.table import Column, Figures, Row, Table
from oneshot.paper.trained import noisy, thinned
from oneshot.predictor import Predictor
from oneshot.runs import METRICS
from oneshot.samplers import SAMPLERS, PPRSampler

pytest.importorskip("matplotlib", reason="the tables draw pictures (extra plot)")
pytest.importorskip("smac", reason="one of the tables searches (extra search)")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Figures]]:
    """All tables, quickly."""
    out = tmp_path_factory.mktemp("reports")
    bench = Workbench(out, torch.device("cpu"), quick=True)
    return out, {name: make_report(table, bench) for name, table in TABLES.items()}


def test_every_table_is_measured_written_and_drawn(
    reports: tuple[Path, dict[str, Figures]],
) -> None:
    out, _ = reports
    for table in TABLES.values():
        report = json.loads((out / f"{table.name}.json").read_text())
        assert report["complete"]
        assert report["rows"]
        assert report["rows"][0]["hardware"]["versions"]["torch"]
        text = (out / f"{table.name}.md").read_text()
        assert table.title in text
        assert text.count("\n|") == len(report["rows"]) + 2
        if table.draw is not None:
            assert (out / f"{table.name}.png").stat().st_size > 5000
    assert list((out / "cases").glob("*.png"))


def test_a_quick_run_judges_nothing(reports: tuple[Path, dict[str, Figures]]) -> None:
    report = reports[1]["claims"]
    assert report["finding"].startswith("0 confirmed, 0 refuted, 10 without")
    assert {row["verdict"] for row in report["rows"]} == {
        "quick run, no verdict",
        "these rows say nothing about it",
    }


def test_claims_wait_for_their_tables(tmp_path: Path) -> None:
    report = make_report(TABLES["claims"], Workbench(tmp_path, torch.device("cpu")))
    assert all(row["verdict"].startswith("needs the table") for row in report["rows"])


def test_accuracies_are_figures_of_real_trainings(reports: tuple[Path, dict[str, Figures]]) -> None:
    rows = [row for report in reports[1].values() for row in report["rows"] if "valid_mrr" in row]
    assert len(rows) > 15
    assert all(0 < row["mrr"] < 1 and row["parameters"] > 100 for row in rows)
    assert len({row["mrr"] for row in rows}) > 10


def test_the_command_measures_nothing_again(
    reports: tuple[Path, dict[str, Figures]], run: Run
) -> None:
    out, made = reports
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}
    again = run("paper", "budget", "--quick", "--out", out, "--json", "--device", "cpu").json
    assert again == made["budget"]
    every = run("paper", "all", "--quick", "--out", out, "--json", "--device", "cpu").json
    assert [report["name"] for report in every["tables"]] == list(TABLES)
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")} == before


def test_the_command_speaks(run: Run, tmp_path: Path) -> None:
    shown = run("paper", "datasets", "--quick", "--out", tmp_path / "new")
    assert shown.code == 0
    assert "The data sets" in shown.out
    assert set(run("paper", "list", "--json").json["tables"]) == set(TABLES)
    wrong = run("paper", "coverge")
    assert wrong.code == 2
    assert "coverage" in wrong.err
    nowhere = run("paper", "hops", "--data", "no-such-data", "--out", tmp_path)
    assert nowhere.code == 2
    assert "no-such-data" in nowhere.err


def test_other_settings_do_not_mix(reports: tuple[Path, dict[str, Figures]]) -> None:
    bench = Workbench(reports[0], torch.device("cpu"), seed=5, quick=True)
    with pytest.raises(InputError, match="other settings"):
        make_report(TABLES["datasets"], bench)


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
    with pytest.raises(InputError, match="more --minutes"):
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

    with pytest.raises(InputError, match="another process is measuring this"):
        make_report(Table("asking", "Squares", (), plan), bench)


def test_what_is_not_ours_is_left_alone(tmp_path: Path, run: Run) -> None:
    for name in ("datasets.md", "datasets.png"):
        (tmp_path / name).write_text("mine")
        refused = run("paper", "datasets", "--quick", "--out", tmp_path)
        assert refused.code == 2
        assert "was not written by this command" in refused.err
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


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


@pytest.mark.parametrize("table", ["hops", "complexity", "cases", "coverage"])
def test_too_little_data_is_told(tmp_path: Path, run: Run, table: str) -> None:
    three = tmp_path / "three.tsv"
    three.write_text("a\tr\tb\nb\tr\tc\nc\tr\ta\n")
    refused = run("paper", table, "--data", three, "--out", tmp_path / "out")
    assert refused.code == 2
    assert "facts to" in refused.err.splitlines()[-1]


def test_odd_names_stay_in_their_place(tmp_path: Path, run: Run) -> None:
    data = world(tmp_path / "own" / "$k^$", ["$x^$\tr0\te9", "e|4\tr0\te1"])
    before = sorted(data.parent.rglob("*"))
    out = tmp_path / "out" / "deep"
    for table in ("cases", "hops"):
        assert run("paper", table, "--data", data, "--out", out).code == 0
    assert sorted(data.parent.rglob("*")) == before
    assert len(list((out / "cases").glob("*.png"))) == 6
    assert "e\\|4" in (out / "cases.md").read_text()


def test_what_a_table_varies_wins_over_what_is_set(tmp_path: Path) -> None:
    bench = Workbench(
        tmp_path,
        torch.device("cpu"),
        quick=True,
        changes=["predictor.num_layers=1", "predictor.dim=8"],
    )
    config = bench.config("umls", {"predictor.num_layers": 3, "sampler.entity_ratio": 0.3})
    assert (config.predictor.num_layers, config.predictor.dim) == (3, 8)
    assert config.sampler.entity_ratio == 0.3
    assert bench.config("umls").predictor.num_layers == 1


def test_several_data_sets_have_a_finding_each() -> None:
    rows = [
        {"data": data, "share": share, "mrr": mrr}
        for data, mrrs in (("a", (0.5, 0.4)), ("b", (0.5, 0.1)))
        for share, mrr in zip((0.0, 0.5), mrrs, strict=True)
    ]
    assert TABLES["deletion"].finding(rows) == (
        "a: 50% of the training facts removed cost 20% of the MRR (0.500 to 0.400). "
        "b: 50% of the training facts removed cost 80% of the MRR (0.500 to 0.100)."
    )
    assert TABLES["deletion"].finding(rows[2:]).startswith("50% of the")


def test_all_tables_that_cannot_be_measured_are_an_error(run: Run, tmp_path: Path) -> None:
    none = run("paper", "all", "--quick", "--minutes", "0", "--out", tmp_path / "a")
    assert none.code == 2
    assert "no table could be measured" in none.err
    wrong = run("paper", "all", "--quick", "--set", "predictor.dmi=3", "--out", tmp_path / "b")
    assert wrong.code == 2
    assert "dim" in wrong.err
    assert not (tmp_path / "b").exists()
    both = run("paper", "layers", "--quick", "--data", "umls", "--out", tmp_path / "b")
    assert (both.code, "leave out" in both.err) == (2, True)


def test_a_quick_report_is_not_judged_by_another_run(
    reports: tuple[Path, dict[str, Figures]], run: Run, tmp_path: Path
) -> None:
    for name in ("layers", "deletion"):
        shutil.copy(reports[0] / f"{name}.json", tmp_path)
    found = run("paper", "claims", "--out", tmp_path, "--json").json["rows"]
    assert {row["verdict"] for row in found if row["table"] in ("layers", "deletion")} == {
        "quick run, no verdict"
    }


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
        make_report(TABLES["budget"], bench)


def test_a_table_told_to_stop_goes_on_within_the_training(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []

    @contextmanager
    def stop_later() -> Iterator[Callable[[], bool]]:
        yield lambda: asked.append(None) or len(asked) == 12

    monkeypatch.setattr(workbench, "told_to_stop", stop_later)
    command = ["paper", "heuristics", "--quick", "--set", "training.epochs=3", "--out", tmp_path]
    stopped = run(*command)
    assert stopped.code == 143
    assert "the same command goes on" in stopped.err
    (path,) = (tmp_path / "runs").iterdir()
    assert not (path / "result.json").exists()
    assert run(*command).code == 0
    rows = json.loads((tmp_path / "heuristics.json").read_text())["rows"]
    assert [row["sampler"] for row in rows] == list(SAMPLERS)
    fresh = Workbench(tmp_path / "fresh", torch.device("cpu"), quick=True, changes=command[4:5])
    assert rows[0]["mrr"] == make_report(TABLES["heuristics"], fresh)["rows"][0]["mrr"]


def test_an_epochs_time_is_that_of_training_alone(tmp_path: Path) -> None:
    seconds = {1: 90.0, 2: 40.0, 3: 2.0, 4: 50.0, 5: 4.0, 7: 3.0}
    records: list[Figures] = [{"epoch": epoch, "seconds": took} for epoch, took in seconds.items()]
    for record in records[1:4:2]:
        record["valid"] = {"mrr": 0.5}
    (tmp_path / METRICS).write_text("\n".join(map(json.dumps, records)))
    assert workbench._seconds_per_epoch(tmp_path, 7.0) == 3.0
    (tmp_path / METRICS).write_text(json.dumps(records[0]))
    assert workbench._seconds_per_epoch(tmp_path, 7.0) == 7.0


def test_the_main_table_begins_with_what_the_result_files_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"gpu": "G", "versions": {"torch": "1"}, "date": "d", "revision": "abc"}
    report: Figures = {"mrr": 0.5, "hits@1": 0.4, "hits@3": 0.5, "hits@10": 0.6, "coverage": 0.9}
    recorded = {
        "seed": 7,
        "valid": report,
        "test": {**report, "mrr": 0.53},
        "epochs": 4,
        "best_epoch": 3,
        "training_seconds": 12.5,
        "parameters": 1000,
        "peak_gpu_megabytes": None,
        "hardware": machine,
    }
    monkeypatch.setattr(main_table, "RESULTS", tmp_path)
    (tmp_path / "recipe-umls.json").write_text(json.dumps({"rows": [recorded]}))
    bench = Workbench(tmp_path, torch.device("cpu"), names=["umls"], minutes=0)
    found = make_report(TABLES["main"], bench)
    assert not found["complete"]
    (row,) = found["rows"]
    assert (row["seed"], row["source"]) == (7, "recipe-umls.json")
    assert (row["mrr"], row["valid_mrr"], row["seconds"]) == (0.53, 0.5, 12.5)
    assert row["hardware"] == machine
    # A new result file counts at once.
    recorded["test"]["mrr"] = 0.54
    (tmp_path / "recipe-umls.json").write_text(json.dumps({"rows": [recorded]}))
    assert make_report(TABLES["main"], bench)["rows"][0]["mrr"] == 0.54


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 3}'])
def test_a_damaged_report_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "datasets.json").write_text(content)
    with pytest.raises(InputError, match=r"datasets\.json: is no whole report"):
        make_report(TABLES["datasets"], Workbench(tmp_path, torch.device("cpu"), quick=True))


def test_formulas_count_every_parameter() -> None:
    config = PredictorConfig(num_layers=3, dim=24, attention_dim=5)
    predictor = Predictor(config, num_relations=7)
    assert counted(predictor) == by_formula(config, 7)
    assert sum(counted(predictor).values()) == predictor.num_parameters


def test_products_are_as_the_formula_says(reports: tuple[Path, dict[str, Figures]]) -> None:
    rows = reports[1]["complexity"]["rows"]
    question = next(row for row in rows if row["part"] == "a question")
    assert question["measured"] == pytest.approx(question["formula"], rel=0.01)


def test_hops_of_a_chain() -> None:
    graph = KnowledgeGraph.from_facts([[i, 0, i + 1] for i in range(4)], 5, 1)
    assert within_hops(graph, torch.tensor([0]), 1) == pytest.approx((2 / 5, 1 / 4))
    assert within_hops(graph, torch.tensor([0, 2]), 2) == pytest.approx((4 / 5, 3 / 4))
    batch = PPRSampler(entity_ratio=1.0).sample(graph, torch.tensor([[1, 0]]))
    assert hops_from(batch) == [1, 0, 1, 2, 3]


def test_noise_and_deletion_change_the_training_facts_only() -> None:
    data = load("family:100")
    more, fewer = noisy(data, 0.5, 0), thinned(data, 0.25, 0)
    facts = {tuple(fact) for fact in data.train.tolist()}
    assert facts < {tuple(fact) for fact in more.train.tolist()}
    assert 1.4 * len(facts) < more.graph.num_facts <= 1.5 * len(facts) + 1
    assert {tuple(fact) for fact in fewer.train.tolist()} < facts
    assert fewer.graph.num_facts == round(0.75 * len(facts))
    for changed in (more, fewer):
        assert changed.test.equal(data.test)
        assert changed.valid.equal(data.valid)


CONFIRMED: dict[str, list[Figures]] = {
    "efficiency": [
        {"entities": 0.1, "edges": 0.1, "training_ms": 1, "inference_ms": 1},
        {"entities": 1.0, "edges": 1.0, "training_ms": 20, "inference_ms": 20},
    ],
    "main": [{"data": "WN18RR", "mrr": 0.6}],
    "messages": [
        {"message": "redgnn", "entities": 0.1, "seconds_per_epoch": 1},
        {"message": "redgnn", "entities": 1.0, "seconds_per_epoch": 20},
    ],
    "split": [{"fact_ratio": 0.7, "mrr": 0.5}, {"fact_ratio": 0.9, "mrr": 0.505}],
    "extrapolation": [
        {"entities": 0.1, "edges": 1.0, "mrr": 0.5},
        {"entities": 1.0, "edges": 1.0, "mrr": 0.4},
    ],
    "budget": [
        {"entities": 0.1, "edges": 1.0, "mrr": 0.5},
        {"entities": 1.0, "edges": 1.0, "mrr": 0.4},
    ],
    "layers": [
        {"entities": 0.1, "layers": 4, "mrr": 0.4},
        {"entities": 0.1, "layers": 8, "mrr": 0.5},
    ],
    "heuristics": [{"sampler": "ppr", "mrr": 0.5}, {"sampler": "bfs", "mrr": 0.4}],
    "noise": [{"share": 0.0, "mrr": 0.5}, {"share": 0.5, "mrr": 0.45}],
    "deletion": [{"share": 0.0, "mrr": 0.5}, {"share": 0.5, "mrr": 0.3}],
}
WORSE = {"training_ms": 19, "inference_ms": 19, "seconds_per_epoch": 19}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.table)
def test_claims_are_confirmed_and_refuted_by_figures(claim: object) -> None:
    assert isinstance(claim, type(CLAIMS[0]))
    rows = CONFIRMED[claim.table]
    verdict = claim.judge(rows)
    assert verdict is not None
    assert verdict.holds
    if claim.table in ("efficiency", "messages"):
        against = [{**rows[0], **WORSE}, rows[1]]
    elif claim.table == "main":
        against = [{**rows[0], "mrr": 0.56}]
    elif claim.table == "deletion":
        against = [rows[0], {**rows[1], "mrr": 0.49}]
    elif claim.table in ("noise", "split"):
        against = [rows[0], {**rows[1], "mrr": 0.2}]
    elif claim.table == "layers":
        against = [rows[0], {**rows[1], "mrr": 0.3}]
    else:
        against = [{**rows[0], "mrr": 0.3}, rows[1]]
    refuted = claim.judge(against)
    assert refuted is not None
    assert not refuted.holds
    assert claim.judge([]) is None
