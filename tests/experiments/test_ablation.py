"""Tests of the ablation benchmark: its configurations, its rows, and what is measured again."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import ablation
from benchmarks.ablation import VARIANTS, WHOLE, WITHOUT, Job, configured, is_possible, merged

DATA = ("FB15k-237", "NELL-995", "WN18RR")


@pytest.mark.parametrize("data", [*DATA, "Family"])
def test_every_variant_is_a_configuration(data: str) -> None:
    seen = {}
    for variant in (*VARIANTS, *WITHOUT):
        job = Job(data, variant, 3, 40_000)
        if is_possible(job):
            config = configured(job, 80_000)
            assert config.training.seed == 3
            asked = config.training.epochs * config.training.query_share
            ratio = config.training.fact_ratio
            facts = 80_000 * (1 if config.training.split == "leave_out" else 1 - ratio)
            assert 2 * asked * facts == pytest.approx(40_000, rel=0.15)
            seen[variant] = config
    whole = [name for name in seen if name in WITHOUT]
    assert (WHOLE in seen) == (data != "Family")
    assert ("without hide_direct" in seen) == (data == "FB15k-237")
    assert ("without relation_rank" in seen) == (data in ("FB15k-237", "NELL-995"))
    assert all(seen[name] != seen[WHOLE] for name in whole if name != WHOLE)


def test_rows_of_several_machines_are_merged_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(variant: str, seed: int, mrr: float) -> dict[str, Any]:
        job = Job("Family", variant, seed, 1000, ("predictor.dim=8",))
        figures = {"valid_mrr": mrr, "coverage": 0.9, "queries_per_second": 100.0}
        text = json.dumps({**job._asdict(), **figures, "hardware": {"revision": "abc"}})
        found: dict[str, Any] = json.loads(text)
        return found

    here, there = tmp_path / "ablation.json", tmp_path / "other.json"
    here.write_text(json.dumps({"rows": [row("base", 0, 0.5)]}))
    there.write_text(json.dumps({"rows": [row("base", 0, 0.4), row("three", 0, 0.6)]}))
    rows = merged([here, there])
    assert [found["valid_mrr"] for found in rows] == [0.5, 0.6]
    asked: list[Job] = []
    monkeypatch.setattr(ablation, "run_all", lambda jobs, *_: asked.extend(jobs))
    arguments = ["Family", "--variants", "base,three,mlp,without norm", "--queries", "1000"]
    arguments += ["--set", "predictor.dim=8", "--results", str(tmp_path), "--merge", str(there)]
    monkeypatch.setattr("sys.argv", ["ablation", *arguments])
    ablation.main()
    assert [job.variant for job in asked] == ["mlp"]  # there is no whole configuration of Family
    assert "three" in capsys.readouterr().out
    assert len(json.loads(here.read_text())["rows"]) == 2
