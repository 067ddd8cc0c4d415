"""Tables of the Open Graph Benchmark, with its splits, negatives and evaluator."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.data.public.archives import unpack_ogb
from oneshot.data.public.ogb_negatives import read_candidates
from oneshot.evaluation.evaluate import candidate_metrics, evaluate_candidates
from oneshot.experiments.paper import literature
from oneshot.experiments.tables.table import Column, Figures, Row, Table
from oneshot.experiments.tables.workbench import QUICK_DATA, Workbench

NAMES = ("ogbl-biokg", "ogbl-wikikg2")


def _plan(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names(*NAMES):
        for split in ("valid", "test"):
            known = literature.OGB.get(name, {}).get(literature.PAPER_SYSTEM)
            paper = {"mrr": known[split], "parameters": known["parameters"]} if known else {}
            yield Row({"data": name, "split": split}, partial(_ranked, bench, name, split), paper)


def _ranked(bench: Workbench, name: str, split: str) -> Figures:
    data = _small(bench) if bench.quick else bench.dataset(name)
    asked = read_candidates(data, split)  # before the long work, because there may be none
    reasoner = bench.reasoner(data, bench.config(name))
    positive, negative = evaluate_candidates(
        reasoner, asked.queries, asked.answers, asked.negatives
    )
    evaluator = "ogbl-wikikg2" if bench.quick else name
    return {
        **judged(positive, negative, evaluator),
        "candidates": asked.negatives.shape[1],
        "queries": len(asked.queries),
        "parameters": reasoner.predictor.num_parameters,
    }


def judged(positive: Tensor, negative: Tensor, name: str) -> Figures:
    """The metrics of OGB's evaluator; if `ogb` is not installed, ours, which agree."""
    try:
        judge = f"ogb {version('ogb')}"
    except PackageNotFoundError:
        return {**candidate_metrics(positive, negative).scores(), "evaluator": "ours"}
    lists = _evaluator(name).eval({"y_pred_pos": positive, "y_pred_neg": negative})
    figures = {key.removesuffix("_list"): float(values.mean()) for key, values in lists.items()}
    return {**figures, "evaluator": judge}


def _evaluator(name: str) -> Any:
    # On import, ogb checks the network for a newer version; without this module it does not.
    kept = sys.modules.pop("outdated", None)
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ogb.linkproppred import Evaluator

            return Evaluator(name)
    finally:
        del sys.modules["outdated"]
        if kept is not None:
            sys.modules["outdated"] = kept


def _small(bench: Workbench) -> Dataset:
    """The small world in OGB's own format, with random negatives, read like a download."""
    place = bench.out / "ogb-quick"
    if not (place / "negatives-test.npz").is_file():
        place.mkdir(parents=True, exist_ok=True)
        archive = place / "kg.zip"
        write_ogb(bench.dataset(QUICK_DATA), archive, bench.seed)
        unpack_ogb([archive], place)
        archive.unlink()
    return load(place)


def write_ogb(data: Dataset, path: Path, seed: int, negatives: int = 20) -> None:
    """A data set in the format of OGB's knowledge graphs: a zip file with arrays of each split."""
    import io
    import zipfile

    generator = np.random.default_rng(seed)
    with zipfile.ZipFile(path, "w") as archive:
        for split in ("train", "valid", "test"):
            facts = data.facts(split).numpy()
            value = dict(zip(("head", "relation", "tail"), facts.T.copy(), strict=True))
            if split != "train":
                for side in ("head_neg", "tail_neg"):
                    size = (len(facts), negatives)
                    value[side] = generator.integers(len(data.entities), size=size)
            target = io.BytesIO()
            torch.save(value, target, pickle_protocol=4)
            archive.writestr(f"kg/split/time/{split}.pt", target.getvalue())


def _finding(rows: Sequence[Figures]) -> str:
    parts = [
        f"{row['data']} {row['mrr']:.3f} on {row['split']} with {row['parameters']:,} parameters"
        for row in rows
        if row["split"] == "test"
    ]
    return "MRR: " + "; ".join(parts) + "." if parts else ""


OGB = Table(
    "ogb",
    "Open Graph Benchmark, ranked among its own negatives by its own evaluator",
    (
        Column("data", "data"),
        Column("split", "split"),
        Column("MRR", "mrr", ".4f"),
        Column("Hits@1", "hits@1", ".4f"),
        Column("Hits@10", "hits@10", ".4f"),
        Column("parameters", "parameters", ","),
        Column("candidates", "candidates", ","),
        Column("evaluator", "evaluator"),
    ),
    _plan,
    _finding,
    by_name=False,
)
