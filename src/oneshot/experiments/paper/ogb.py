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
from numpy.typing import NDArray
from torch import Tensor

from oneshot.config import Config
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.data.public.archives import unpack_ogb
from oneshot.data.public.ogb_negatives import read_candidates
from oneshot.evaluation.evaluate import candidate_metrics, evaluate_candidates
from oneshot.experiments.paper import literature
from oneshot.experiments.paper.main import config_digest, full_config, has_full_config
from oneshot.experiments.tables.table import Column, Figures, Row, Table
from oneshot.experiments.tables.workbench import QUICK_DATA, Workbench
from oneshot.graph.known_facts import KnownFacts

NAMES = ("ogbl-biokg", "ogbl-wikikg2")


def _plan(bench: Workbench) -> Iterator[Row]:
    for name in bench.data_names(*NAMES):
        for split in ("valid", "test"):
            known = literature.OGB.get(name, {}).get(literature.PAPER_SYSTEM)
            paper = {"mrr": known[split], "parameters": known["parameters"]} if known else {}
            digest = config_digest(_config(bench, name))
            key = {"data": name, "split": split}
            yield Row(key, partial(_ranked, bench, name, split), paper, config=digest)


def _ranked(bench: Workbench, name: str, split: str) -> Figures:
    data = _small(bench) if bench.quick else bench.dataset(name)
    asked = read_candidates(data, split)  # before the long work, because there may be none
    reasoner = bench.reasoner(data, _config(bench, name))
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


def _config(bench: Workbench, name: str) -> Config:
    """The configuration in `configs/`, if there is one for this data."""
    return full_config(bench, name) if has_full_config(name) else bench.config(name)


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


def write_ogb(
    data: Dataset, path: Path, seed: int, negatives: int = 20, kinds: Sequence[str] | None = None
) -> None:
    """A data set in the format of OGB's knowledge graphs: a zip file with arrays of each split.

    `negatives`: entities per query that are not among its known answers, drawn at random. `kinds`:
    the type of each entity; then ids count within a type and negatives have the type of the answer,
    as in ogbl-biokg. Without types, the file is like that of ogbl-wikikg2.
    """
    import io
    import zipfile

    ids, members = _ids_by_type(kinds, len(data.entities))
    generator = np.random.default_rng(seed)
    known = KnownFacts(data.known, len(data.entities), data.graph.num_relations)
    with zipfile.ZipFile(path, "w") as archive:
        for split in ("train", "valid", "test"):
            facts = data.facts(split).numpy()
            value: Figures = {"relation": facts[:, 1].copy()}
            for side, column in (("head", 0), ("tail", 2)):
                answers = facts[:, column]
                value[side] = ids[answers]
                if kinds is not None:
                    value[f"{side}_type"] = [kinds[answer] for answer in answers.tolist()]
                if split != "train":
                    other = facts[:, 2 - column]
                    relation = facts[:, 1] + (data.graph.num_relations if side == "head" else 0)
                    queries = torch.from_numpy(np.stack([other, relation], axis=1))
                    groups = None if kinds is None else value[f"{side}_type"]
                    drawn = _drawn_negatives(queries, groups, members, known, negatives, generator)
                    value[f"{side}_neg"] = ids[drawn]
            target = io.BytesIO()
            torch.save(value, target, pickle_protocol=4)
            archive.writestr(f"kg/split/random/{split}.pt", target.getvalue())


def _ids_by_type(
    kinds: Sequence[str] | None, count: int
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The id of each entity within its type, and the entities of each type."""
    if kinds is None:
        return np.arange(count), {"": np.arange(count)}
    names = np.asarray(kinds)
    members = {str(kind): np.flatnonzero(names == kind) for kind in np.unique(names)}
    ids = np.empty(count, np.int64)
    for some in members.values():
        ids[some] = np.arange(len(some))
    return ids, members


def _drawn_negatives(
    queries: Tensor,
    groups: Sequence[str] | None,
    members: dict[str, NDArray[np.int64]],
    known: KnownFacts,
    count: int,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Entities [n, count] of the type of each query's answer that are not known answers.

    If almost all entities of a type are answers, some may be left after a few rounds.
    """
    found = np.empty((len(queries), count), np.int64)
    rows_of = {"": np.arange(len(queries))}
    if groups is not None:
        names = np.asarray(groups)
        rows_of = {str(kind): np.flatnonzero(names == kind) for kind in np.unique(names)}
    for kind, rows in rows_of.items():
        found[rows] = generator.choice(members[kind], (len(rows), count))
        for _ in range(10):
            is_known = known.holds(queries[rows], torch.from_numpy(found[rows])).numpy()
            if not is_known.any():
                break
            again = found[rows]
            again[is_known] = generator.choice(members[kind], int(is_known.sum()))
            found[rows] = again
    return found


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
