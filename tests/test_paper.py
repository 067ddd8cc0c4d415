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

from oneshot.config import Config, PredictorConfig
from oneshot.dataset import Dataset
from oneshot.datasets import load
from oneshot.errors import InputError
from oneshot.evaluation import evaluate
from oneshot.graph import KnowledgeGraph
from oneshot.paper import TABLES, Workbench, main_table, make_report, workbench
from oneshot.paper.cases import hops_from
from oneshot.paper.claims import CLAIMS
from oneshot.paper.cost import by_formula, counted
from oneshot.paper.structure import within_hops
from oneshot.paper.table import Figures
from oneshot.paper.trained import noisy, thinned
from oneshot.predictor import Predictor
from oneshot.runs import METRICS
from oneshot.samplers import PPRSampler
from oneshot.stopping import StopTraining

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


@pytest.mark.parametrize("table", ["hops", "complexity", "cases", "coverage"])
def test_too_little_data_is_told(tmp_path: Path, run: Run, table: str) -> None:
    three = tmp_path / "three.tsv"
    three.write_text("a\tr\tb\nb\tr\tc\nc\tr\ta\n")
    refused = run("paper", table, "--data", three, "--out", tmp_path / "out")
    assert refused.code == 2
    assert "facts to" in refused.err.splitlines()[-1]


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


def test_reports_are_judged_with_their_own_settings_only(
    reports: tuple[Path, dict[str, Figures]], run: Run, tmp_path: Path
) -> None:
    shutil.copy(reports[0] / "layers.json", tmp_path)

    def verdict(*options: object) -> Figures:
        found = run("paper", "claims", "--out", tmp_path, "--json", *options).json["rows"]
        return next(row for row in found if row["table"] == "layers")

    assert verdict()["verdict"] == "measured with other settings (quick)"
    assert verdict("--quick", "--seed", 4)["verdict"] == "measured with other settings (seed)"
    judged = verdict("--quick")
    assert judged["verdict"] == "quick run, no verdict"
    assert judged["hardware"] == reports[1]["layers"]["rows"][-1]["hardware"]


def test_what_is_set_is_not_shortened(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, torch.device("cpu"), changes=["training.epochs=5"])
    assert bench.epochs("WN18RR", 0.375) == 5
    assert Workbench(tmp_path, torch.device("cpu")).epochs("WN18RR", 0.375) == 6


def test_a_row_that_was_finished_does_not_hide_that_it_is_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def told() -> Iterator[Callable[[], bool]]:
        yield lambda: True

    done = {"test": {}, "valid": {}, "epochs": 1}
    monkeypatch.setattr(workbench, "train_run", lambda *_, **__: done)
    monkeypatch.setattr(workbench, "told_to_stop", told)
    bench = Workbench(tmp_path, torch.device("cpu"), quick=True)
    with pytest.raises(StopTraining):
        bench.train(bench.dataset("umls"), bench.config("umls"))


def test_data_may_have_a_comma_in_its_name(tmp_path: Path, run: Run) -> None:
    place = tmp_path / "mine, v1.tsv"
    place.write_text("".join(f"e{i}\tr\te{(3 * i + 1) % 20}\n" for i in range(20)))
    report = run("paper", "datasets", "--data", place, "--out", tmp_path / "out", "--json").json
    assert [row["data"] for row in report["rows"]] == [str(place)]


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
    monkeypatch.setattr(main_table, "CONFIGS", tmp_path)
    with pytest.raises(InputError, match=r"umls.toml: is missing"):
        make_report(TABLES["main"], Workbench(tmp_path, torch.device("cpu"), names=["umls"]))
    (tmp_path / "umls.toml").write_text("format = 1\n")
    result = {"config": {"format": 1}, "set": [], "rows": [recorded]}
    (tmp_path / "recipe-umls.json").write_text(json.dumps(result))
    bench = Workbench(tmp_path, torch.device("cpu"), names=["umls"], minutes=0)
    found = make_report(TABLES["main"], bench)
    assert not found["complete"]
    (row,) = found["rows"]
    assert (row["seed"], row["source"]) == (7, "recipe-umls.json")
    assert (row["mrr"], row["valid_mrr"], row["seconds"]) == (0.53, 0.5, 12.5)
    assert row["hardware"] == machine
    # A new result file counts at once.
    recorded["test"]["mrr"] = 0.54
    (tmp_path / "recipe-umls.json").write_text(json.dumps(result))
    assert make_report(TABLES["main"], bench)["rows"][0]["mrr"] == 0.54
    # One of another configuration does not.
    (tmp_path / "main.json").unlink()
    changed = dataclasses.replace(bench, changes=["predictor.dim=8"])
    with pytest.raises(InputError, match="no time for a single row"):
        make_report(TABLES["main"], changed)
    (tmp_path / "umls.toml").write_text("format = 1\n[predictor]\ndim = 8\n")
    with pytest.raises(InputError, match="no time for a single row"):
        make_report(TABLES["main"], bench)


def test_a_changed_configuration_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main_table, "CONFIGS", tmp_path)
    monkeypatch.setattr(main_table, "SEEDS", 1)
    trained: list[int] = []

    def train(bench: Workbench, data: Dataset, config: Config) -> Figures:
        trained.append(config.predictor.dim)
        return {"mrr": 0.5}

    monkeypatch.setattr(Workbench, "train", train)
    bench = Workbench(tmp_path, torch.device("cpu"), names=["umls"])
    for dim, known in ((8, [8]), (8, [8]), (16, [8, 16]), (16, [8, 16])):
        (tmp_path / "umls.toml").write_text(f"format = 1\n[predictor]\ndim = {dim}\n")
        assert len(make_report(TABLES["main"], bench)["rows"]) == 1
        assert trained == known


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
        # A removed fact is true all the same, and an added one is not.
        assert changed.known.equal(data.known)


def test_rankings_after_deletion_are_filtered_by_all_true_facts(tmp_path: Path) -> None:
    """The report of a training on a thinned graph is that of the original facts as a filter."""
    bench = Workbench(tmp_path, torch.device("cpu"), quick=True)
    data = thinned(bench.dataset("family:100"), 0.5, 0)
    config = bench.config("family:100")
    found = bench.train(data, config)
    reasoner = bench.reasoner(data, config)
    original = evaluate(reasoner, data.test, bench.dataset("family:100").known)
    assert found["mrr"] == pytest.approx(original.mrr, rel=1e-6)
    thin = evaluate(reasoner, data.test, torch.cat([data.train, data.valid, data.test]))
    assert thin.mrr < original.mrr


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
    elif claim.table == "extrapolation":  # the best budget is better than the others
        against = [rows[0], {**rows[1], "mrr": 0.5}]
    else:
        against = [{**rows[0], "mrr": 0.3}, rows[1]]
    refuted = claim.judge(against)
    assert refuted is not None
    assert not refuted.holds
    assert claim.judge([]) is None
