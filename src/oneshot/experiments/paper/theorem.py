"""The theorem of the paper's section 4.3: predictions on subgraphs of another size.

Two parts. On block models, where the theorem's constants are known: how far the predictions for
pairs in one block and in two differ, as the graph grows. On data sets: the MRR of a predictor on
subgraphs of another size than in its training, beside that of one trained with that size; the
coverage of both is the same.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oneshot.errors import InputError
from oneshot.evaluation.evaluate import drawn_queries, evaluate
from oneshot.experiments.paper import block_model
from oneshot.experiments.tables.table import LEAST_DIFFERENCE, Column, Figures, Row, Table
from oneshot.experiments.tables.workbench import Workbench, facts_digest
from oneshot.plots.coverage import check_plot
from oneshot.plots.palette import SERIES
from oneshot.predictor.segments import Rows
from oneshot.reasoner.build import build_sampler
from oneshot.reasoner.reasoner import Reasoner
from oneshot.system.files import replacing

BLOCKS = "block model"

_RATIOS = (0.02, 0.1, 0.5)
_SIZES = (50, 100, 200, 400, 800, 1600)
_LARGEST_TRAINING = 400
"""Graphs up to this size are also trained on; larger ones take too long."""


_LEAST_SHOWN = 1e-4


def _plan(bench: Workbench) -> Iterator[Row]:
    ratios = (0.25, 0.5) if bench.quick else _RATIOS
    for name in _data_names(bench):
        digest = facts_digest(bench.dataset(name))
        for trained in ratios:
            for tested in ratios:
                key = {"data": name, "predictor": "reasoner", "train": trained, "test": tested}
                yield Row(key, partial(_on_data, bench, name, trained, tested), config=digest)
    fitted: dict[tuple[str, int], nn.Module] = {}
    sizes = _SIZES[:3] if bench.quick else _SIZES
    for predictor in block_model.PREDICTORS:
        for size in sizes:
            key = {"data": BLOCKS, "predictor": predictor, "train": sizes[0], "test": size}
            yield Row(key, partial(_on_blocks, bench, predictor, sizes[0], size, fitted))


def _data_names(bench: Workbench) -> list[str]:
    """The data sets; none if they are missing, because the block model needs none."""
    try:
        return bench.data_names("WN18RR", "FB15k-237")
    except InputError:
        return []


# block models ------------------------------------------------------------------------------------


def _on_blocks(
    bench: Workbench,
    name: str,
    trained: int,
    tested: int,
    fitted: dict[tuple[str, int], nn.Module],
) -> Figures:
    def measured(size: int) -> Figures:
        if (name, size) not in fitted:
            steps = 10 if bench.quick else 300
            fitted[name, size] = block_model.fit(name, size, bench.seed, steps, bench.device)
        graphs = 2 if bench.quick else 20
        return block_model.measure(fitted[name, size], tested, bench.seed, graphs, bench.device)

    found = measured(trained)
    there = measured(tested) if tested <= _LARGEST_TRAINING else {}
    return {
        "growth": tested / trained,
        "contrast": found["gap"],
        "own_contrast": there.get("gap"),
        "right": found["right"],
        "own_right": there.get("right"),
        "ordered": found["ordered"],
        "rate": block_model.rate(tested),
        "is_large_enough": tested >= block_model.least_size(),
    }


def _blocks_finding(rows: Sequence[Figures]) -> str:
    parts = []
    for predictor in dict.fromkeys(row["predictor"] for row in rows):
        mine = sorted((row for row in rows if row["predictor"] == predictor), key=_growth)
        first, last = mine[0], mine[-1]
        if last["growth"] > 1:
            parts.append(
                f"{predictor}: {first['contrast']:.3f} at the size of the training, "
                f"{last['contrast']:.3f} at {last['growth']:g} times its size, where the threshold "
                f"0.5 is right for {last['right']:.0%} of the pairs and the order for "
                f"{last['ordered']:.0%}"
            )
    if not parts:
        return ""
    return f"Difference between pairs in one block and in two. {'; '.join(parts)}."


def _growth(row: Figures) -> float:
    return float(row["growth"])


# data sets ---------------------------------------------------------------------------------------


def _on_data(bench: Workbench, name: str, trained: float, tested: float) -> Figures:
    data = bench.dataset(name)
    own = _trained(bench, name, tested, bench.seed)
    # At the same size, another training shows the difference that is due to chance.
    other = _trained(bench, name, trained, bench.seed + (trained == tested))
    other.sampler = own.sampler
    limit = 40 if bench.quick else 1000
    reports = [
        evaluate(reasoner, data.valid, data.known, limit=limit, seed=bench.seed)
        for reasoner in (own, other)
    ]
    facts, relations = data.valid, data.graph.num_relations
    queries, answers = drawn_queries(facts, relations, limit // 4, bench.seed)
    shares = [answer_shares(reasoner, queries, answers) for reasoner in (own, other)]
    return {
        "growth": tested / trained,
        "own_mrr": reports[0].mrr,
        "mrr": reports[1].mrr,
        "loss": reports[0].mrr - reports[1].mrr,
        "difference": float((shares[0] - shares[1]).abs().mean()),
        "coverage": reports[1].coverage,
        "queries": reports[1].queries,
    }


def _trained(bench: Workbench, name: str, ratio: float, seed: int) -> Reasoner:
    """The reasoner of a short training with a share of the entities."""
    changes = {
        "sampler.entity_ratio": ratio,
        "training.epochs": bench.epochs(name, 0.375),
        "training.seed": seed,
    }
    config = bench.config(name, changes)
    reasoner = bench.reasoner(bench.dataset(name), config)
    reasoner.sampler = build_sampler(config.sampler, bench.seed)
    return reasoner


@torch.no_grad()
def answer_shares(
    reasoner: Reasoner, queries: torch.Tensor, answers: torch.Tensor, batch_size: int = 16
) -> torch.Tensor:
    """The softmax of each answer among the sampled entities, [n]; 0 if it is not sampled."""
    found = []
    for some, wanted in zip(queries.split(batch_size), answers.split(batch_size), strict=True):
        batch = reasoner.sampler.sample(reasoner.graph, some)
        scores = reasoner.predictor(batch).double()
        rows = Rows(batch.entity_query, batch.num_queries, is_sorted=True)
        highest = scores.new_full((batch.num_queries,), -math.inf)
        highest = highest.scatter_reduce(0, batch.entity_query, scores, "amax")
        weight = (scores - rows.pick(highest)).exp()
        total = weight.new_zeros(batch.num_queries).index_add(0, batch.entity_query, weight)
        place = batch.find(wanted.to(batch.device))
        found.append(torch.where(place >= 0, weight[place.clamp(min=0)] / total, 0.0).cpu())
    return torch.cat(found)


def _data_finding(rows: Sequence[Figures]) -> str:
    by_chance = max((abs(row["loss"]) for row in rows if row["growth"] == 1), default=0.0)
    spread = max(by_chance, LEAST_DIFFERENCE)
    parts = [f"two trainings with the same size differ by up to {by_chance:.3f} MRR"]
    for label, grows in (("larger", True), ("smaller", False)):
        mine = [row for row in rows if row["growth"] != 1 and (row["growth"] > 1) == grows]
        if mine:
            worst = max(mine, key=lambda row: float(row["loss"]))
            verdict = "more" if worst["loss"] > spread else "not more"
            parts.append(
                f"on {label} subgraphs than in the training up to {worst['loss']:.3f} is lost "
                f"(at {worst['growth']:.3g} times the size), {verdict} than by chance"
            )
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "."


def _finding(rows: Sequence[Figures]) -> str:
    parts = []
    for name in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == name]
        text = _blocks_finding(mine) if name == BLOCKS else _data_finding(mine)
        parts.append(f"{name}: {text}" if text else "")
    return " ".join(part for part in parts if part)


# plot --------------------------------------------------------------------------------------------


def _draw(rows: Sequence[Figures], path: Path) -> None:
    check_plot(path)
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["data"] for row in rows if row["data"] != BLOCKS))
    figure = Figure(figsize=(10 if names else 6, 4.2), layout="constrained")
    left, *others = figure.subplots(1, 2 if names else 1, squeeze=False)[0]
    _draw_blocks(left, [row for row in rows if row["data"] == BLOCKS])
    for axes in others:
        for number, name in enumerate(names):
            mine = [row for row in rows if row["data"] == name]
            places, lost = [row["growth"] for row in mine], [row["loss"] for row in mine]
            axes.scatter(places, lost, color=SERIES[number], label=name)
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xlabel("entities in testing / in training")
        axes.set_ylabel("validation MRR lost")
        axes.set_title("Data sets, against training at that size", fontsize=10)
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())


def _draw_blocks(axes: Any, rows: Sequence[Figures]) -> None:
    """The differences in the block model by growth; dotted those of trainings at that size."""
    for number, name in enumerate(dict.fromkeys(row["predictor"] for row in rows)):
        mine = sorted((row for row in rows if row["predictor"] == name), key=_growth)
        colour, places = SERIES[number], [row["growth"] for row in mine]
        for figure, form in (("contrast", "o-"), ("own_contrast", "x:")):
            # A logarithmic axis has no place for zero.
            shown = [
                None if row[figure] is None else max(row[figure], _LEAST_SHOWN) for row in mine
            ]
            label = name if figure == "contrast" else None
            axes.plot(places, shown, form, color=colour, label=label)
        if number == 0:
            scale = mine[0]["contrast"] / mine[0]["rate"]
            bound = [scale * row["rate"] for row in mine]
            axes.plot(places, bound, "--", color="gray", label="rate of the theorem")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("entities in testing / in training")
    axes.set_ylabel("P(link) in one block − in two")
    axes.set_title("Block model (dotted: trained at that size)", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)


THEOREM = Table(
    "theorem",
    "Predictions on subgraphs of another size than in training",
    (
        Column("data", "data"),
        Column("predictor", "predictor"),
        Column("training", "train", ","),
        Column("testing", "test", ","),
        Column("testing / training", "growth", ".3g"),
        Column("valid MRR", "mrr", ".3f"),
        Column("trained at that size", "own_mrr", ".3f"),
        Column("lost", "loss", ".3f"),
        Column("difference of P(answer)", "difference", ".3f"),
        Column("one block − two", "contrast", ".4f"),
        Column("trained at that size", "own_contrast", ".4f"),
        Column("threshold right", "right", ".3f"),
        Column("order right", "ordered", ".3f"),
        Column("rate", "rate", ".3f"),
        Column("theorem applies", "is_large_enough"),
    ),
    _plan,
    _finding,
    _draw,
    by_name=False,
    note=(
        "Sizes are shares of the entities; of the block model, numbers of entities. *Trained at "
        "that size*: the same value for a predictor whose training had the size of the test. In "
        "rows of data sets with equal sizes the two trainings have different seeds; of the block "
        "model it is the same training. *One block − two*: "
        "difference between the mean probabilities of a link for pairs in one block and in two, "
        "0.6 for a perfect predictor. *Rate*: √(log(2n/p) / n) with p = 0.05."
    ),
)
