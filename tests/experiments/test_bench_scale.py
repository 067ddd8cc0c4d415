"""Tests of `oneshot bench scale`: what it measures, how it goes on, what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.commands import Command

from oneshot.data.load import load
from oneshot.data.synthetic.generators import power_law
from oneshot.errors import InputError
from oneshot.experiments.bench import scale, scale_steps
from oneshot.experiments.bench.scale import (
    ENTITIES,
    FACTS,
    bench_scale,
    estimate,
    fitted,
    parse_size,
    run_step,
)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps run here, which is faster; their names are noted."""
    steps: list[str] = []

    def run(step: str, options: dict[str, Any]) -> dict[str, Any]:
        steps.append(step)
        return scale_steps.STEPS[step](**json.loads(json.dumps(options)))

    monkeypatch.setattr(scale, "run_step", run)
    monkeypatch.setattr(scale_steps, "_PASSES", 1)
    return steps


def test_the_command_measures_writes_draws_and_goes_on(
    run: Command, tmp_path: Path, in_this_process: list[str]
) -> None:
    out, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    asking = ("--questions", 4, "--max-entities", 60, "--directory", tmp_path, "--out", out)
    first = run("bench", "scale", "--facts", "1e4", *asking, "--json").json
    assert first == json.loads(out.read_text())
    assert [row["graph"] for row in first["rows"]] == ["family", "power-law"]
    assert first["growth"] == {"family": {}, "power-law": {}}
    assert len(in_this_process) == 10
    more = ("--facts", "10000,2e4", "--graphs", "family", "--plot", picture, "--resume")
    text = run("bench", "scale", *more, *asking)
    assert text.code == 0, text.err
    assert in_this_process[10:] == ["write", "build", "predict", "sample", "recall"]
    value = json.loads(out.read_text())
    assert f"{value['rows'][1]['facts']:,}"[:4] in text.out
    assert value["rows"][0] == first["rows"][0]
    assert [row["size"] for row in value["rows"]] == [10_000, 20_000, 10_000]
    for row in value["rows"]:
        assert row["facts"] == pytest.approx(row["size"], rel=0.05)
        assert 0 < row["recall"] <= 1
        assert row["sample_queries"] == 12
        assert row["recall_queries"] == 4
        assert row["sample_cpu_ms"] <= row["slowest"]["cpu_ms"]
        assert row["slowest"]["degree"] > 0
        assert row["slowest"]["subgraph_edges"] > 0
        is_pushed = row["local_method"] == "push"
        assert (row["slowest"]["push_edges"] is not None) == is_pushed
        assert row["hardware"]["date"] == value["hardware"]["date"]
        for key in ("build_seconds", "open_ms", "sample_ms", "predict_ms", "whole_graph_ms"):
            assert row[key] > 0, key
        for key in ("build_peak_gb", "saved_gb", "text_gb"):
            assert 0 < row[key] < 10, key
    assert value["growth"]["family"]["saved_gb"] == pytest.approx(1, abs=0.1)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["scale.json", "scale.png"]
    other = run("bench", "scale", "--facts", "1e4", *asking[2:], "--resume")
    assert other.code == 2
    assert "measured with questions 4, not 100" in other.err


def test_wrong_use_is_told(run: Command, tmp_path: Path) -> None:
    for options, message in (
        (("--facts", "many"), "'many' is not a number of facts, such as 1e6"),
        (("--facts", "10"), "the number of facts must be 10,000 to 150,000,000, not 10"),
        (("--facts", "1e5", "--graphs", "famly"), "unknown graph 'famly'; did you mean"),
        (("--directory", tmp_path / "none"), "none is not a directory"),
        (("--plot", tmp_path / "x.txt"), "unsupported suffix for a plot"),
        (("--resume",), "--resume continues the file named by --out"),
        (("--resume", "--out", tmp_path / "bad"), "was not written by `oneshot bench scale`"),
    ):
        (tmp_path / "bad").write_text("{")
        refused = run("bench", "scale", *options)
        assert refused.code == 2, options
        assert message in refused.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad"]


def test_a_full_disk_is_told_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = scale.shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(scale.shutil, "disk_usage", lambda _: free)
    with pytest.raises(InputError, match=r"need about 15\.8 GB of disk, and 0\.9 GB are free"):
        bench_scale([10**8], place=tmp_path)


def test_a_step_has_a_process_of_its_own(tmp_path: Path) -> None:
    options = {"graph": "power-law", "facts": 10_000, "directory": str(tmp_path / "new"), "seed": 1}
    assert run_step("write", options)["text_gb"] > 0
    with pytest.raises(InputError, match=r"the step 'write' failed .*: FileExistsError"):
        run_step("write", options)


def test_exponents_of_growth() -> None:
    rows = [{"facts": n, "sample_ms": 3 * n**0.25, "open_ms": 7.0} for n in (100, 1000, 50_000)]
    assert fitted(rows) == {"sample_ms": 0.25, "open_ms": 0.0}
    assert fitted(rows[:1]) == {}
    missing = [*rows, {"facts": 10**6, "sample_ms": None, "open_ms": 7.0}]
    assert fitted(missing)["sample_ms"] == 0.25


def test_sizes_as_people_write_them() -> None:
    assert [parse_size(text) for text in ("1e5", "100000", "1.5e6")] == [10**5, 10**5, 1_500_000]
    for text in ("", "nan", "-1e5", "inf", "1e5x"):
        with pytest.raises(InputError):
            parse_size(text)


def test_the_estimate_grows_from_the_largest_graph() -> None:
    small = {"facts": 10**6, "build_seconds": 1.0, "saved_gb": 0.06}
    large = {"facts": 10**8, "build_seconds": 240.0, "saved_gb": 6.0}
    large |= {"sample_ms": 20.0, "predict_ms": 90.0}
    found = estimate([large, small], {"sample_ms": 0.1})
    assert (found["facts"], found["entities"]) == (FACTS, ENTITIES)
    assert found["build_hours"] == 1.0
    assert found["saved_gb"] == pytest.approx(90 + 16 * FACTS / 2**30, abs=1)
    assert found["sample_ms"] == pytest.approx(20 * 15**0.1, abs=0.1)
    assert found["predict_ms"] == pytest.approx(found["sample_ms"] + 70, abs=0.1)
    assert "sample_ms" not in estimate([large, small], {})


def test_a_graph_with_hubs() -> None:
    data = power_law(20_000, 200_000)
    assert data.name == "power-law:20000:200000"
    assert torch.equal(load("power-law:20000:200000").graph.facts, data.graph.facts)
    degree = np.sort(data.graph.degree.numpy())[::-1]
    assert degree[0] > 3000
    # The share above d falls as d^-1.5: ten times the degree, a thirtieth of the entities.
    ratio = (degree > 30).sum() / (degree > 300).sum()
    assert 15 < ratio < 60
    assert len(data.valid) == len(data.test) == len(data.known) // 100
    # Hubs do not stand side by side.
    hubs = np.argsort(-data.graph.degree.numpy())[:20]
    assert np.diff(np.sort(hubs)).min() > 10
    with pytest.raises(InputError, match="a random graph needs 2 to 100,000,000 entities"):
        power_law(1, 1000)


def test_kept_graphs_and_steps_are_used_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[str] = []

    def run_step(step: str, options: dict[str, Any]) -> dict[str, Any]:
        steps.append(step)
        if step == "write":
            Path(options["directory"]).mkdir()
        else:
            assert options["saved"] == str(tmp_path / "power-law-10000-0" / "saved")
        sizes = {"facts": 9900, "entities": 1000, "largest_degree": 90}
        return {"sample": sizes, "build": {"build_seconds": 1.0, "saved_gb": 0.1}}.get(step, {})

    monkeypatch.setattr(scale, "run_step", run_step)
    first = bench_scale([10_000], ["power-law"], keep=tmp_path)
    assert steps == ["write", "build", "predict", "sample", "recall"]
    (tmp_path / "power-law-10000-0" / "sample.json").unlink()
    again = bench_scale([10_000], ["power-law"], keep=tmp_path)
    assert steps[5:] == ["sample"]
    assert [row["facts"] for row in again["rows"]] == [row["facts"] for row in first["rows"]]
