"""The comparison of surrogates: its pool is trained once, and judged by more than chance."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.searches import response

from oneshot.experiments.paper import TABLES, Workbench, make_report
from oneshot.experiments.paper import search as search_table
from oneshot.experiments.tables.table import Figures
from oneshot.search import predictor_trial as trial
from oneshot.search.space import Choice

pytest.importorskip("matplotlib", reason="the tables draw pictures (extra plot)")
pytest.importorskip("smac", reason="the table is about searches (extra search)")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The configurations that were trained; what they reach is known and takes no time."""
    found: list[dict[str, Any]] = []

    def train(task: dict[str, Any], *_: object) -> dict[str, Any]:
        found.append(task["values"])
        if len(found) == 6:
            raise KeyboardInterrupt
        return {"status": "done", "value": response(task["values"]) / 2, "seconds": 1.0}

    monkeypatch.setattr(trial, "run_predictor_trial", train)
    return found


def test_every_configuration_is_trained_once(
    tmp_path: Path, trained: list[Figures], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Workbench(tmp_path, torch.device("cpu"), quick=True)
    table = TABLES["search"]
    with pytest.raises(KeyboardInterrupt):
        make_report(table, bench)
    rows = make_report(table, bench)["rows"]
    # The sixth was under way: it is trained again, the others are not.
    assert len(trained) == 9
    assert trained[5] == trained[6]
    assert [row["method"] for row in rows] == ["pool, 1 to 4", "pool, 5 to 8", *METHODS]
    members = [member for row in rows[:2] for member in row["configurations"]]
    assert [{**values, "mrr": response(values) / 2} for values in trained[:5] + trained[6:]] == [
        pytest.approx(member) for member in members
    ]
    best = max(member["mrr"] for member in members)
    for row in rows[2:]:
        assert 0 < row["lowest"] <= row["mean"] <= row["highest"] <= best
        assert row["curve"] == sorted(row["curve"])
        assert (len(row["curve"]), len(row["bests"]), row["members"]) == (5, 1, 8)
        assert (row["correlation"] is None) == (row["method"] in METHODS[3:])
    # Begun with the same trials, all have the same best of them.
    assert len({row["curve"][row["initial"] - 1] for row in rows[2:]}) == 1
    assert make_report(table, bench)["rows"] == rows
    assert len(trained) == 9
    # The pool is there for other methods, and of no use for other settings.
    (tmp_path / "search.json").unlink()
    again = make_report(table, bench)["rows"]
    assert [row["mean"] for row in again] == [row["mean"] for row in rows]
    assert len(trained) == 9
    monkeypatch.setattr(search_table, "_TINY", {"predictor.dim": Choice((2,))})
    other = make_report(table, bench)["rows"]
    assert len(other) == len(rows)
    assert len(trained) == 17
    assert {member["predictor.dim"] for member in other[0]["configurations"]} == {2}


def test_no_part_of_the_pool_is_begun_when_the_time_is_over(
    tmp_path: Path, trained: list[Figures], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Workbench(tmp_path, torch.device("cpu"), quick=True)
    monkeypatch.setattr(Workbench, "has_time", property(lambda _: len(trained) < 4))
    report = make_report(TABLES["search"], bench)
    assert (len(report["rows"]), report["complete"]) == (1, False)
    assert len(trained) == 4
    assert report["finding"] == ""


METHODS = [
    "random forest",
    "Gaussian process",
    "MLP ensemble",
    "random + variations",
    "random search",
]


def rows_of(**bests: list[float]) -> list[Figures]:
    """Rows of methods with these best values, one a seed; what they predict is as good."""
    names = dict(zip(("forest", "gaussian", "mlp", "varied", "random"), METHODS, strict=True))
    return [
        {
            "data": "umls",
            "method": names[name],
            "seeds": len(values),
            "trials": 30,
            "members": 256,
            "mean": sum(values) / len(values),
            "bests": values,
            "correlations": [] if name in ("varied", "random") else values,
        }
        for name, values in bests.items()
    ]


def test_a_difference_counts_only_beyond_the_spread_of_seeds() -> None:
    base = [0.5, 0.52, 0.48, 0.51]
    rows = rows_of(
        forest=base,
        gaussian=[value - 0.01 for value in base],
        mlp=[0.52, 0.49, 0.48, 0.5],
        varied=[value + d for value, d in zip(base, (0.1, 0.11, 0.1, 0.12), strict=True)],
    )
    finding = TABLES["search"].finding(rows)
    assert "Gaussian process +0.0100 ± 0.0000 (better)" in finding
    assert "MLP ensemble +0.0050 ± 0.0204 (within the spread of seeds)" in finding
    assert "random + variations -0.1075 ± 0.0094 (worse)" in finding
    # What has no surrogate predicts nothing.
    assert finding.count("random + variations") == 2
    assert finding.count("Gaussian process") == 3


def test_one_seed_judges_nothing() -> None:
    finding = TABLES["search"].finding(rows_of(forest=[0.5], gaussian=[0.4]))
    assert finding.endswith("One seed decides nothing.")
    assert "better" not in finding


def test_rows_of_earlier_versions_are_no_searches_on_a_pool(tmp_path: Path) -> None:
    old = {"data": "umls", "method": "random forest", "best": 0.5, "trials": 16, "curve": [0.5]}
    assert TABLES["search"].finding([old]) == ""
    search_table._draw([old], tmp_path / "old.png")
    assert (tmp_path / "old.png").exists()
