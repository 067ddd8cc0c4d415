"""The paper's printed values: as in the paper, and counted beside our rows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oneshot.experiments.paper import TABLES, literature
from oneshot.experiments.paper.cells import count_cells, gpu_seconds, printed_rows

ROOT = Path(__file__).parents[2]
_PLACES = [parent / "shared" / "paper" / "figures.json" for parent in ROOT.parents]
FIGURES = next((place for place in _PLACES if place.is_file()), None)

NAMES = {
    "MRR": "mrr",
    "H@1": "hits@1",
    "H@10": "hits@10",
    "Time": "seconds_per_epoch",
    "#Params": "parameters",
    "Test MRR": "test",
    "Valid MRR": "valid",
}
DATA = {
    "WN18RR": "WN18RR",
    "NELL-995": "NELL-995",
    "YAGO3-10": "YAGO3-10",
    "OGBL-BIOKG": "ogbl-biokg",
    "OGBL-WIKIKG2": "ogbl-wikikg2",
}
SAMPLERS = {"RAND": "random", "PR": "pagerank", "RW": "random_walk", "BFS": "bfs", "PPR": "ppr"}
SYSTEMS = {"one-shot-subgraph": literature.PAPER_SYSTEM}
MODELS = {
    "RotatE (100% entities)": "rotate",
    "RotatE + NodePiece (10% entities)": "nodepiece",
    "RED-GNN (100% entities)": "redgnn",
    "RED-GNN + one-shot-subgraph (10% entities)": "oneshot",
}


def printed(table: dict[str, Any]) -> Iterator[tuple[list[str], list[Any], str, str, float]]:
    """The cells of a table with a column for each data set and metric: labels, numbers, cell."""
    for texts, values in zip(table["rows"], table["values"], strict=True):
        for column, value in zip(table["columns"], values, strict=True):
            data, _, metric = column.partition(" ")
            if data in DATA and value is not None:
                share = round(value / 100, 3) if metric in ("H@1", "H@10") else value
                yield texts, values, DATA[data], metric, share


def _message(label: str) -> tuple[str, float]:
    name = "nbfnet" if label.startswith("NBFNet") else "redgnn"
    return name, 1.0 if "100%" in label else 0.1


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    if FIGURES is None:
        pytest.skip("shared/paper/figures.json, the paper's values, is not beside the repository")
    found: dict[str, Any] = json.loads(FIGURES.read_text("utf-8"))
    return found


def test_values_of_systems_and_models_are_the_papers(figures: dict[str, Any]) -> None:
    for texts, _, data, metric, value in printed(figures["tab:main-result"]):
        system = SYSTEMS.get(texts[1], texts[1])
        assert literature.MAIN[data][system][NAMES[metric]] == value
    for texts, _, data, metric, value in printed(figures["tab:result-ogb"]):
        system = SYSTEMS.get(texts[1], texts[1])
        assert literature.OGB[data][system][NAMES[metric]] == value
    for texts, _, data, metric, value in printed(figures["tab:nodepiece (unlabelled table)"]):
        assert literature.NODEPIECE[data, MODELS[texts[0]]][NAMES[metric]] == value


def test_values_of_graphs_and_samplers_are_the_papers(figures: dict[str, Any]) -> None:
    columns = ("entities", "relations", "facts", "train", "valid", "test")
    for texts, values in zip(
        figures["tab:dataset"]["rows"], figures["tab:dataset"]["values"], strict=True
    ):
        known = literature.DATASETS[DATA[texts[0]]]
        assert [known[name] for name in columns] == values[1:]
    for texts, _, data, metric, value in printed(figures["tab:cover-ratio"]):
        sampler = SAMPLERS[texts[0].split("(")[1].rstrip(")")]
        assert literature.COVERAGE[data, sampler][metric.removeprefix("r_V=")] == value
    for texts, _, data, metric, value in printed(figures["tab:ablation-sampling-methods"]):
        sampler = SAMPLERS[texts[0].split("(")[1].rstrip(")")]
        assert literature.HEURISTICS[data, sampler][NAMES[metric]] == value
    hops = [row for row in figures["in-text"]["rows"] if "-hop" in row[1]]
    assert len(hops) == 6
    for _, what, _, value in hops:
        data, rest = what.split(", full ")
        name = "facts" if what.endswith("edges") else "entities"
        assert literature.HOPS[data, int(rest[0])][name] == value


def test_values_of_ablations_are_the_papers(figures: dict[str, Any]) -> None:
    for _, values, data, metric, value in printed(figures["tab:ablation-layer"]):
        assert literature.LAYERS[data, values[1], values[0]][NAMES[metric]] == value
    for _, values, data, metric, value in printed(figures["tab:ablation-num-entity-edge"]):
        assert literature.BUDGET[data, values[0], values[1]][NAMES[metric]] == value
    for texts, _, data, metric, value in printed(figures["tab:efficiency-two-GNNs"]):
        assert literature.MESSAGES[(data, *_message(texts[0]))][NAMES[metric]] == value
    for texts, _, data, metric, value in printed(figures["tab:split-ratio (unlabelled table)"]):
        ratio = float(texts[0].split("=")[1])
        assert literature.SPLIT[data, ratio][NAMES[metric]] == value
    for texts, values, data, metric, value in printed(figures["tab:efficiency"]):
        unit = {"Time": "seconds", "Memory": "gb"}[metric]
        known = literature.EFFICIENCY[data, values[1], values[2]]
        assert known[f"{texts[0].lower()}_{unit}"] == value
    for name, known in (
        ("tab:added-noise", literature.NOISE),
        ("tab:delete-noise", literature.DELETION),
    ):
        table = figures[name]
        for texts, values in zip(table["rows"], table["values"], strict=True):
            for share, value in zip((0.0, 0.1, 0.2, 0.3, 0.4, 0.5), values[1:], strict=True):
                assert known[texts[0], share] == {"mrr": value}


def test_every_printed_row_belongs_to_a_table_that_can_measure_it() -> None:
    rows = list(printed_rows())
    assert {row.table for row in rows} <= TABLES.keys()
    counts = count_cells({})
    assert sum(count.cells for count in counts) == 297
    assert all(count.measured == 0 for count in counts)
    assert sum(count.published for count in counts) == 18  # three systems, two data sets


def test_cells_are_counted_by_what_rows_have() -> None:
    rows = [
        {"data": "WN18RR", "sampler": "ppr", "mrr": 0.5, "hits@1": 0.4},
        {"data": "WN18RR", "sampler": "bfs", "mrr": None},
        {"data": "NELL-995", "sampler": "ppr", "mrr": 0.5},  # the paper has no such row
    ]
    (count,) = (one for one in count_cells({"heuristics": rows}) if one.table == "heuristics")
    assert (count.cells, count.measured, count.missing) == (15, 2, {"WN18RR": 13})
    assert count.elsewhere == 15


def test_gpu_time_is_that_of_rows_measured_on_a_gpu() -> None:
    gpu = {"gpu": "H200"}
    rows = [
        {"hardware": gpu, "seconds": 10.0, "row_seconds": 12.0},
        {"hardware": gpu, "seconds": 5.0},
        {"hardware": gpu, "seconds": 70.0, "source": "messages.json"},
        {"hardware": {"cores": 2}, "seconds": 100.0},
        {"hardware": {}},
    ]
    assert gpu_seconds(rows) == 17.0
