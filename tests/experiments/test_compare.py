"""The command that compares: rows, resuming, and what it says when something is wrong."""

import json
import sys
from pathlib import Path

import pytest
from tests.support.commands import Command
from tests.support.extras import needs_pykeen

from oneshot.config import read_config
from oneshot.experiments import compare as comparing
from oneshot.experiments.baselines import checkpoint as course
from oneshot.experiments.baselines import progress as showing
from oneshot.experiments.compare import Comparison

SMALL = ["--epochs", 2, "--device", "cpu"]
for change in ("predictor.dim=8", "predictor.num_layers=2", "sampler.entity_ratio=0.5"):
    SMALL += ["--set", change]
FIGURES = {
    "model",
    "valid_mrr",
    "mrr",
    "hits@1",
    "hits@3",
    "hits@10",
    "seconds",
    "seconds_per_1000_queries",
    "peak_megabytes",
    "parameters",
    "inductive",
    "epochs",
}


def test_rows_are_complete_and_kept(run: Command, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    first = run("compare", "family:100", "--with", "drum", *SMALL, "--out", out, "--json").json
    assert [row["model"] for row in first["rows"]] == ["oneshot", "drum"]
    assert first["complete"]
    for row in first["rows"]:
        assert row.keys() >= FIGURES
        assert row["inductive"] is True
        assert 0 < row["mrr"] < 1
    assert first["rows"][0]["mrr"] != first["rows"][1]["mrr"]
    more = run(
        "compare", "family:100", "--with", "frequency,oneshot", *SMALL, "--out", out, "--json"
    ).json
    assert [row["model"] for row in more["rows"]] == ["oneshot", "frequency", "drum"]
    assert [more["rows"][0], more["rows"][2]] == first["rows"]
    assert more["rows"][1]["parameters"] == 0
    assert json.loads((out / "compare.json").read_text())["rows"][2]["model"] == "drum"


def test_other_settings_are_not_mixed_with_kept_rows(run: Command, tmp_path: Path) -> None:
    run("compare", "family:100", "--with", "frequency", *SMALL, "--out", tmp_path)
    before = (tmp_path / "compare.json").read_bytes()
    # The seed makes another world, too.
    changes = {
        "facts, seed": ["--seed", 1],
        "config": ["--set", "predictor.dim=16"],
        "dim": ["--dim", 64],
    }
    for name, change in changes.items():
        again = run("compare", "family:100", "--with", "drum", *SMALL, "--out", tmp_path, *change)
        assert again.code == 2
        assert f"other settings ({name});" in " ".join(again.err.split())
    assert (tmp_path / "compare.json").read_bytes() == before


def test_the_tables_are_for_people(run: Command) -> None:
    shown = run("compare", "family:100", "--with", "frequency", *SMALL)
    assert shown.code == 0
    assert "test MRR" in shown.out
    assert "parameters" in shown.out
    assert "Best on validation" in shown.out


def test_wrong_use_is_told_before_the_work_begins(run: Command, tmp_path: Path) -> None:
    wrong = run("compare", "family:100", "--with", "rotat")
    assert wrong.code == 2
    assert "did you mean 'rotate'" in wrong.err
    assert run("compare", "family:100", "--with", ",").code == 2
    (tmp_path / "file").write_text("mine")
    blocked = run("compare", "family:100", "--with", "frequency", "--out", tmp_path / "file")
    assert blocked.code == 2
    assert (tmp_path / "file").read_text() == "mine"
    late = run("compare", "family:100", "--with", "frequency", "--minutes", 0, "--out", tmp_path)
    assert late.code == 2
    assert "--minutes" in late.err


def test_a_data_set_without_test_facts_is_named(run: Command, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\tb\nb\tr\tc\n")
    (tmp_path / "valid.tsv").write_text("a\tr\tc\n")
    (tmp_path / "test.tsv").write_text("")
    wrong = run("compare", tmp_path, "--with", "frequency")
    assert wrong.code == 2
    assert "test" in wrong.err


def test_a_missing_package_is_named(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pykeen"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pykeen", None)
    wrong = run("compare", "family:100", "--with", "rotate")
    assert wrong.code == 2
    assert "one-shot-subgraph[baselines]" in wrong.err


@needs_pykeen
def test_embedding_models_are_rows_too(run: Command) -> None:
    found = run(
        "compare", "family:100", "--with", "TransE,complex", *SMALL, "--dim", 8, "--json"
    ).json
    rows = {row["model"]: row for row in found["rows"]}
    assert list(rows) == ["oneshot", "transe", "complex"]
    for name in ("transe", "complex"):
        assert rows[name].keys() >= FIGURES
        assert rows[name]["inductive"] is False
        assert rows[name]["stopped"] == "epochs"
    assert "more may improve the result: oneshot, TransE, ComplEx." in found["finding"]


@needs_pykeen
def test_a_killed_embedding_model_goes_on(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["compare", "family:100", "--with", "complex", *SMALL, "--dim", 8]
    asked += ["--epochs", 4, "--out", tmp_path / "out"]
    monkeypatch.setattr(course, "SECONDS_BETWEEN", 0.0)
    with monkeypatch.context() as patched:

        def kill(watcher: object, epoch: int, best_mrr: float | None) -> None:
            if epoch == 3:
                raise KeyboardInterrupt

        patched.setattr(showing._Shown, "epoch_done", kill)
        assert run(*asked).code != 0
    kept = list((tmp_path / "out" / "runs").glob("*.safetensors"))
    assert len(kept) == 1
    again = run(*asked)
    assert again.code == 0
    assert "ComplEx: resumed after epoch 2" in again.err
    assert not kept[0].exists()


def test_each_has_its_time_and_ours_is_planned_for_it(run: Command, tmp_path: Path) -> None:
    asked = ["compare", "family:100", "--with", "frequency,drum", "--device", "cpu", "--json"]
    asked += ["--out", str(tmp_path), "--set", "predictor.dim=8"]
    timed = [*asked, "--minutes-each", 0.02]
    found = run(*timed).json
    assert found["settings"]["minutes_each"] == 0.02
    ours, frequency, drum = found["rows"]
    assert ours["config"]["predictor"]["dim"] == 8
    for row in (ours, drum):
        assert row["config"]["training"]["minutes"] == 0.02
        assert row["stopped"] in ("time", "epochs")
    assert drum["config"]["predictor"]["message"] == "drum"
    assert "stopped" not in frequency
    again = run(*timed).json
    assert again["rows"] == found["rows"]
    other = run(*asked)
    assert other.code == 2
    assert "other settings (config, minutes_each);" in " ".join(other.err.split())
    wrong = run("compare", "family:100", "--with", "frequency", "--minutes-each", 0)
    assert wrong.code == 2
    assert "minutes must be above 0" in wrong.err


def test_a_plan_is_kept_so_that_its_training_can_go_on(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["compare", "family:100", "--with", "frequency", "--device", "cpu", "--json"]
    asked += ["--out", str(tmp_path), "--minutes-each", "0.02"]

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Comparison, "train", kill)
        assert run(*asked).code == 130
    plans = list((tmp_path / "runs").glob("*.toml"))
    assert len(plans) == 1
    monkeypatch.setattr(comparing, "make_plan", kill)  # which would be another one
    found = run(*asked).json
    assert found["complete"]
    assert read_config(plans[0]).predictor.dim == found["rows"][0]["config"]["predictor"]["dim"]


@needs_pykeen
def test_an_embedding_model_has_its_time(run: Command) -> None:
    asked = ["compare", "family:100", "--with", "complex", "--dim", 8, "--device", "cpu", "--json"]
    found = run(*asked, "--minutes-each", 0.02).json
    row = found["rows"][1]
    assert row["stopped"] == "time"
    assert row["queries"] <= row["of"]
    assert "Ended by the time limit, more may improve the result:" in found["finding"]


def test_the_settings_of_reports_without_a_limit_stay(run: Command) -> None:
    found = run("compare", "family:100", "--with", "frequency", *SMALL, "--json").json
    names = ["data", "facts", "seed", "device", "epochs", "dim", "config"]
    assert list(found["settings"]) == names
