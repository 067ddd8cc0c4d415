"""The claims of the paper, each judged by the tables that were measured here.

A claim is one row, in our words, with the paper's values. It is judged only on the data sets that
it is about, by one rule for all claims (`Comparison.verdict`): each compares two numbers `a` and
`b` on a data set and states that `a` is larger, or that `a` is not smaller.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean, mean, stdev
from typing import NamedTuple

from oneshot.experiments.baselines.peers import OURS
from oneshot.experiments.paper import literature
from oneshot.experiments.paper.ablations import (
    DELETION,
    HEURISTICS,
    LAYERS,
    MESSAGES,
    NOISE,
    SPLIT,
)
from oneshot.experiments.paper.cases import CASES
from oneshot.experiments.paper.cost import EFFICIENCY
from oneshot.experiments.paper.embeddings import NODEPIECE
from oneshot.experiments.paper.extrapolation import EXTRAPOLATION
from oneshot.experiments.paper.graphs import COVERAGE
from oneshot.experiments.paper.main import MAIN
from oneshot.experiments.paper.ogb import OGB
from oneshot.experiments.paper.search import SEARCH
from oneshot.experiments.tables.report import read_report
from oneshot.experiments.tables.table import (
    LEAST_DIFFERENCE,
    Column,
    Figures,
    Row,
    Table,
    figures_by,
)
from oneshot.experiments.tables.workbench import Workbench

Rows = Sequence[Figures]

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
NOT_TESTED = "not tested here"

TIME_SPREAD = 0.06
"""Relative error of a time: the difference between rows of `efficiency` with equal work."""

AVERAGE_GAIN = 0.069
"""The paper's claim of its average gain in accuracy."""

# Settings that the reports must share with the command that judges them.
_COMMON = ("quick", "seed", "data", "changes")

_THREE = ("WN18RR", "NELL-995", "YAGO3-10")
_TWO = ("WN18RR", "YAGO3-10")
_FIVE = (*_THREE, "ogbl-biokg", "ogbl-wikikg2")
_HEURISTICS = ("bfs", "random_walk", "pagerank", "random")
"""The other heuristics of the paper, without our own samplers."""


class Comparison(NamedTuple):
    """Two numbers; the claim is that the first is larger.

    `claimed`: the difference in the paper; 0 for a claim that `a` is not smaller; None if the paper
    gives no values. `spread`: the difference that is expected from noise.
    """

    label: str
    a: float
    b: float
    spread: float = LEAST_DIFFERENCE
    claimed: float | None = 0.0

    @property
    def verdict(self) -> str:
        difference = self.a - self.b
        if difference > self.spread:
            return REPRODUCED
        if difference < -self.spread:
            return NOT_REPRODUCED
        # No difference was measured: the claim may be just that, or a difference that is too small.
        if self.claimed == 0:
            return REPRODUCED
        is_large = self.claimed is not None and self.claimed > 2 * self.spread
        return NOT_REPRODUCED if is_large else UNDECIDED


class Evidence(NamedTuple):
    """The measurements for a claim on a data set; without comparisons they decide nothing."""

    text: str
    comparisons: Sequence[Comparison] = ()


class Claim(NamedTuple):
    """A claim, its data sets (none = any), its tables, and the function that judges their rows.

    `judge` returns None if the rows contain no evidence. `on_average`: the claim is about the mean
    over all its data sets and cannot be judged on a part of them.
    """

    section: str
    text: str
    data: Sequence[str]
    tables: Sequence[str]
    judge: Callable[[str, Rows], Evidence | None]
    on_average: bool = False


# the whole graph against a part -------------------------------------------------------------------


def _enough(data: str, rows: Rows) -> Evidence | None:
    """10 % of the entities against all, with the most layers that both were trained with."""
    shares = [figures_by(rows, "layers", entities=share) for share in (0.1, 1.0)]
    if not (common := shares[0].keys() & shares[1].keys()):
        return None
    small, whole = (found[max(common)] for found in shares)
    text = f"{max(common)} layers: {small:.3f} on 10 % of the entities, {whole:.3f} on all"
    return Evidence(text, [Comparison(data, small, whole)])


def _all_worse(data: str, rows: Rows) -> Evidence | None:
    """The same with 6 layers, for which the paper reports that all entities are worse."""
    small, whole = (figures_by(rows, "layers", entities=share).get(6, None) for share in (0.1, 1.0))
    if small is None or whole is None:
        return None
    papers = [literature.LAYERS[data, share, 6]["mrr"] for share in (0.1, 1.0)]
    text = f"6 layers: {small:.3f} on 10 % of the entities, {whole:.3f} on all"
    return Evidence(text, [Comparison(data, small, whole, claimed=papers[0] - papers[1])])


def _deeper(data: str, rows: Rows) -> Evidence | None:
    """The claim is "always", so the smallest step from fewer to more layers counts."""
    steps = []
    for share in (0.1, 1.0):
        found = sorted(figures_by(rows, "layers", entities=share).items())
        for (fewer, low), (more, high) in pairwise(found):
            papers = [literature.LAYERS.get((data, share, layers)) for layers in (more, fewer)]
            claimed = papers[0]["mrr"] - papers[1]["mrr"] if papers[0] and papers[1] else None
            step = Comparison(data, high, low, claimed=claimed)
            steps.append((step, f"{fewer} to {more} layers on {share:.0%} of the entities"))
    if not steps:
        return None
    smallest, where = min(steps, key=lambda step: step[0].a - step[0].b)
    text = f"smallest of {len(steps)} steps, {where}: {smallest.b:.3f} to {smallest.a:.3f}"
    return Evidence(text, [smallest])


# budgets of a trained predictor -------------------------------------------------------------------


def _by_budget(rows: Rows) -> dict[tuple[float, float], float]:
    return {(row["entities"], row["edges"]): row["mrr"] for row in rows if "mrr" in row}


def _grown(data: str, rows: Rows, claims_loss: bool) -> Evidence | None:
    """A predictor tested on all entities, against the share of its training."""
    found = _by_budget(rows)
    share = next((row["trained_with"] for row in rows if "trained_with" in row), None)
    if share is None or not {(share, 1.0), (1.0, 1.0)} <= found.keys():
        return None
    same, whole = found[share, 1.0], found[1.0, 1.0]
    text = f"trained on {share:.0%} of the entities: {same:.3f} there, {whole:.3f} on all (valid)"
    papers = [literature.BUDGET[data, size, size]["mrr"] for size in (0.1, 1.0)]
    claimed = papers[0] - papers[1] if claims_loss else 0.0
    return Evidence(text, [Comparison(data, same, whole, claimed=claimed)])


def _corner(data: str, rows: Rows) -> Evidence | None:
    """Few entities with many edges against all other budgets, the best of each."""
    found = _by_budget(rows)
    inside = [mrr for (entities, edges), mrr in found.items() if entities <= 0.2 and edges >= 0.5]
    if not inside or len(inside) == len(found):
        return None
    outside = [mrr for (entities, edges), mrr in found.items() if entities > 0.2 or edges < 0.5]
    text = (
        f"at most 20 % of the entities with at least half of the edges: {max(inside):.3f}; other "
        f"budgets: {max(outside):.3f} (valid)"
    )
    return Evidence(text, [Comparison(data, max(inside), max(outside), claimed=None)])


# accuracy beside peers and heuristics -------------------------------------------------------------


def _own_and_best(data: str, rows: Rows) -> tuple[list[float], float, float] | None:
    """Our test MRRs, the paper's own, and that of the best peer in its table."""
    ours = [
        row["mrr"]
        for row in rows
        if row.get("mrr") is not None
        and row.get("split", "test") == "test"
        and row.get("system", OURS) == OURS
    ]
    known = {
        **{name: figures["mrr"] for name, figures in literature.MAIN.get(data, {}).items()},
        **{name: figures["test"] for name, figures in literature.OGB.get(data, {}).items()},
    }
    if not ours or not known:
        return None
    own = known.pop(literature.PAPER_SYSTEM)
    return ours, own, max(known.values())


def _first(data: str, rows: Rows) -> Evidence | None:
    found = _own_and_best(data, rows)
    if found is None:
        return None
    ours, own, best = found
    # The usual spread, or that of the available trainings.
    spread = max(LEAST_DIFFERENCE, max(ours) - min(ours))
    text = f"{mean(ours):.3f}, the best peer in the paper {best:.3f}"
    return Evidence(text, [Comparison(data, mean(ours), best, spread, own - best)])


def _gain(data: str, rows: Rows) -> Evidence | None:
    """The relative gain of ours over the best peer."""
    found = _own_and_best(data, rows)
    if found is None:
        return None
    ours, own, best = found
    gain = mean(ours) / best - 1
    text = (
        f"{gain:.1%} over the best peer in the paper (by the paper's figures {own / best - 1:.1%})"
    )
    return Evidence(text, [Comparison(data, gain, AVERAGE_GAIN, LEAST_DIFFERENCE / best)])


def _best_heuristic(data: str, rows: Rows, figure: str, name: str) -> Evidence | None:
    found = figures_by(rows, "sampler", figure)
    others = {sampler: found[sampler] for sampler in _HEURISTICS if sampler in found}
    if "ppr" not in found or not others:
        return None
    best = max(others, key=lambda sampler: others[sampler])
    printed = literature.COVERAGE if figure == "0.1" else literature.HEURISTICS
    papers = {sampler: printed[data, sampler][figure] for sampler in ("ppr", *_HEURISTICS)}
    claimed = papers.pop("ppr") - max(papers.values())
    spread = LEAST_DIFFERENCE
    if figure == "0.1":  # at most two standard errors of a share of so many queries
        spread = 1 / math.sqrt(min(row["queries"] for row in rows))
    text = f"{name} {found['ppr']:.3f}, {best.replace('_', ' ')} {others[best]:.3f}"
    return Evidence(text, [Comparison(data, found["ppr"], others[best], spread, claimed)])


def _surrogates(data: str, rows: Rows) -> Evidence | None:
    """The rank correlation of each surrogate on unseen configurations, over the seeds."""
    found = {row["method"]: row["correlations"] for row in rows if row.get("correlations")}
    forest = found.pop("random forest", None)
    if forest is None or not found:
        return None
    shown = ", ".join(f"{method} {fmean(mine):.3f}" for method, mine in found.items())
    text = f"rank correlation of its predictions {fmean(forest):.3f}, {shown}"
    if len(forest) < 2:
        return Evidence(f"{text}; one seed decides nothing")
    comparisons = []
    for method, others in found.items():
        # With the same seed, surrogates know the same configurations: use paired differences.
        differences = [one - other for one, other in zip(forest, others, strict=True)]
        spread = 1.96 * stdev(differences) / math.sqrt(len(differences))
        label = f"{data}, {method}"
        comparisons.append(Comparison(label, fmean(forest), fmean(others), spread, None))
    return Evidence(f"{text} ({len(forest)} seeds)", comparisons)


# time ---------------------------------------------------------------------------------------------


def _saving(label: str, small: float, whole: float, papers: float) -> Comparison:
    """The share of saved time; the claim is that it is at least that of the paper."""
    share = small / whole
    return Comparison(label, 1 - share, papers, 2 * TIME_SPREAD * share)


def _epoch_saved(data: str, rows: Rows) -> Evidence | None:
    texts, comparisons = [], []
    for message, name in (("nbfnet", "NBFNet"), ("redgnn", "RED-GNN")):
        seconds = figures_by(rows, "entities", "seconds_per_epoch", message=message)
        if {0.1, 1.0} <= seconds.keys():
            times = [literature.MESSAGES[data, message, s]["seconds_per_epoch"] for s in (0.1, 1.0)]
            papers = 1 - times[0] / times[1]
            found = _saving(f"{data}, {name}", seconds[0.1], seconds[1.0], papers)
            comparisons.append(found)
            texts.append(f"{name} {found.a:.1%} (the paper: {papers:.1%})")
    if not comparisons:
        return None
    return Evidence(f"{', '.join(texts)} of an epoch's time saved", comparisons)


def _inference_saved(data: str, rows: Rows) -> Evidence | None:
    found = {(row["entities"], row["edges"]): row.get("inference_ms") for row in rows}
    small, whole = found.get((0.1, 0.1)), found.get((1.0, 1.0))
    if small is None or whole is None:
        return None
    times = [literature.EFFICIENCY[data, size, size]["inference_seconds"] for size in (0.1, 1.0)]
    compared = _saving(data, small, whole, 1 - times[0] / times[1])
    text = f"{compared.a:.1%} of the time saved (the paper: {compared.b:.1%})"
    return Evidence(text, [compared])


# the rest -----------------------------------------------------------------------------------------


def _cases(data: str, rows: Rows) -> Evidence | None:
    """The answers in small subgraphs, against all answers."""
    wanted = {(entity, relation) for entity, relation, _ in literature.CASES.get(data, ())}
    mine = [row for row in rows if (row.get("entity"), row.get("relation")) in wanted]
    ratios = sorted({row["ratio"] for row in mine})
    if not ratios:
        return None
    texts, comparisons = [], []
    for ratio in ratios:
        counted = [row for row in mine if row["ratio"] == ratio]
        held, answers, near, neighbours = (
            sum(row[figure] for row in counted)
            for figure in ("held", "answers", "neighbours_held", "neighbours")
        )
        spread = 1 / answers  # one answer
        comparisons.append(Comparison(f"{data} {ratio:.1%}", held / answers, 1.0, spread))
        texts.append(
            f"{ratio:.1%} of the entities contain {held} of {answers} answers and "
            f"{near / max(neighbours, 1):.0%} of the neighbours"
        )
    return Evidence(f"{len(counted)} of {len(wanted)} queries: {', '.join(texts)}", comparisons)


def _nodepiece(data: str, rows: Rows) -> Evidence | None:
    found = figures_by(rows, "model")
    if "rotate" not in found:
        return None
    if "nodepiece" not in found:
        return Evidence(f"RotatE {found['rotate']:.3f}; NodePiece is not measured yet")
    papers = [literature.NODEPIECE[data, model]["mrr"] for model in ("rotate", "nodepiece")]
    text = f"RotatE {found['rotate']:.3f}, with NodePiece {found['nodepiece']:.3f}"
    compared = Comparison(data, found["rotate"], found["nodepiece"], claimed=papers[0] - papers[1])
    return Evidence(text, [compared])


def _split(data: str, rows: Rows) -> Evidence | None:
    """The worst fact ratio against the best, once trainings have converged."""
    found = figures_by(rows, "fact_ratio")
    if len(found) < 2:
        return None
    worst, best = (choose(found, key=lambda ratio: found[ratio]) for choose in (min, max))
    text = f"{found[worst]:.3f} (at {worst:g}) to {found[best]:.3f} (at {best:g})"
    rising = sum(row["best_epoch"] == row["epochs"] for row in rows if "mrr" in row)
    if rising:
        return Evidence(f"{text}, but {rising} of {len(found)} trainings had not converged")
    return Evidence(text, [Comparison(data, found[worst], found[best])])


def _changed(data: str, rows: Rows, hurts: bool) -> Evidence | None:
    """Half of the facts added at random or removed, against the original facts."""
    found = figures_by(rows, "share")
    if not {0.0, 0.5} <= found.keys():
        return None
    before, after = found[0.0], found[0.5]
    text = f"{before:.3f} without, {after:.3f} with"
    if not hurts:
        return Evidence(text, [Comparison(data, after, before)])
    papers = [literature.DELETION[data, share]["mrr"] for share in (0.0, 0.5)]
    return Evidence(text, [Comparison(data, before, after, claimed=papers[0] - papers[1])])


CLAIMS = (
    Claim("1", "10 % of the entities are enough", _FIVE, ("layers",), _enough),
    Claim(
        "1",
        "Prediction is 94.4 % more efficient on average: likely the mean of 94.3 and 94.5 % of an "
        "epoch's time",
        ("YAGO3-10",),
        ("messages",),
        _epoch_saved,
    ),
    Claim(
        "1",
        "6.9 % more accurate on average (its tables give 5.9 % over the best peer)",
        _FIVE,
        ("main", "ogb"),
        _gain,
        on_average=True,
    ),
    Claim(
        "4.2",
        "A larger subgraph is not better by itself",
        _THREE,
        ("extrapolation",),
        partial(_grown, claims_loss=False),
    ),
    Claim(
        "4.2",
        "A random forest models the search better than a Gaussian process or a perceptron (no "
        "figures)",
        (),
        ("search",),
        _surrogates,
    ),
    Claim(
        "4.3",
        "Predictions become unreliable when the subgraph grows beyond that of the training (in its "
        "table of budgets: 0.567 to 0.549, 0.539 to 0.507 and 0.599 to 0.598)",
        _THREE,
        ("extrapolation",),
        partial(_grown, claims_loss=True),
    ),
    Claim("5", "First on all five benchmarks", _FIVE, ("main", "ogb"), _first),
    Claim(
        "5",
        "PPR covers far more answers than other heuristics (10 % of the entities: 0.876, 0.965 and "
        "0.943 against 0.818, 0.872 and 0.728 of BFS)",
        _THREE,
        ("coverage",),
        partial(_best_heuristic, figure="0.1", name="PPR"),
    ),
    Claim(
        "5",
        "All entities make prediction worse than 10 % of them (6 layers: by 0.023, 0.021 and "
        "0.061)",
        _THREE,
        ("layers",),
        _all_worse,
    ),
    Claim(
        "5",
        "Deeper is better, always (10 % of the entities of WN18RR, 4, 6 and 8 layers: 0.523, "
        "0.566, 0.567)",
        _THREE,
        ("layers",),
        _deeper,
    ),
    Claim(
        "5",
        "PPR is the most accurate of the heuristics (0.567 and 0.606 against 0.543 and 0.562 of "
        "BFS)",
        _TWO,
        ("heuristics",),
        partial(_best_heuristic, figure="mrr", name="PPR"),
    ),
    Claim(
        "5",
        "When budgets change after training, few entities with many edges are the good ones (no "
        "figures)",
        _THREE,
        ("extrapolation",),
        _corner,
    ),
    Claim(
        "5",
        "10 % of the entities save most of an epoch's time (YAGO3-10: NBFNet 94.3 %, RED-GNN "
        "94.5 %; WN18RR: 92.0 and 93.4 %)",
        _TWO,
        ("messages",),
        _epoch_saved,
    ),
    Claim(
        "5",
        "10 % of entities and edges save 68 % of the time in inference (7.3 to 2.3 minutes)",
        ("WN18RR",),
        ("efficiency",),
        _inference_saved,
    ),
    Claim(
        "5, E",
        "Subgraphs of 0.1 and 1 % of the entities keep the neighbourhood of the question's entity "
        "and hold the answers (35 questions)",
        _THREE,
        ("cases",),
        _cases,
    ),
    Claim(
        "C.2",
        "NodePiece costs RotatE much accuracy (0.476 to 0.403, YAGO3-10 0.495 to 0.247)",
        _TWO,
        ("nodepiece",),
        _nodepiece,
    ),
    Claim(
        "C.3",
        "The share of facts shown changes the converged result little (WN18RR 0.561 to 0.567, "
        "YAGO3-10 0.552 to 0.598) and the speed much",
        _TWO,
        ("split",),
        _split,
    ),
    Claim(
        "C.4",
        "Half as many random facts added change hardly anything (0.567 to 0.564, 0.547 to 0.547, "
        "0.606 to 0.601)",
        _THREE,
        ("noise",),
        partial(_changed, hurts=False),
    ),
    Claim(
        "C.4",
        "Half of the facts removed cost much (0.567 to 0.278, 0.547 to 0.365, 0.606 to 0.329)",
        _THREE,
        ("deletion",),
        partial(_changed, hurts=True),
    ),
)


# What a report of several seeds or lengths comes to is known to its table.
_TABLES = {
    table.name: table
    for table in (
        MAIN,
        OGB,
        LAYERS,
        MESSAGES,
        EXTRAPOLATION,
        SEARCH,
        COVERAGE,
        HEURISTICS,
        EFFICIENCY,
        CASES,
        NODEPIECE,
        SPLIT,
        NOISE,
        DELETION,
    )
}


def _plan(bench: Workbench) -> Iterator[Row]:
    for claim in CLAIMS:
        key = {
            "section": claim.section,
            "claim": claim.text,
            "about": ", ".join(claim.data) or None,
            "table": ", ".join(claim.tables),
        }
        yield Row(key, partial(_judged, bench, claim), derived=True)


def _judged(bench: Workbench, claim: Claim) -> Figures:
    """The verdict on a claim from the reports in the workbench's directory."""
    rows: list[Figures] = []
    for table in claim.tables:
        report = read_report(bench.out / f"{table}.json")
        if report is None:
            continue
        settings = report.get("settings", {})
        differ = [name for name in _COMMON if settings.get(name) != bench.settings[name]]
        if differ:
            found = f"{table} was measured with other settings ({', '.join(differ)})"
            return {
                "found": found,
                "verdict": NOT_TESTED,
                "untested": ", ".join(claim.data) or None,
            }
        rows += _TABLES[table].judged(report["rows"])
    if not rows:
        found = f"needs the table {' or '.join(claim.tables)}"
        return {"found": found, "verdict": NOT_TESTED, "untested": ", ".join(claim.data) or None}
    if bench.quick:  # one epoch on a tiny world proves nothing
        return {"found": "quick run", "verdict": NOT_TESTED, "hardware": rows[-1]["hardware"]}
    names = claim.data or list(dict.fromkeys(row["data"] for row in rows))
    return weighed(
        claim, {name: [row for row in rows if row.get("data") == name] for name in names}
    )


def weighed(claim: Claim, rows: Mapping[str, Rows]) -> Figures:
    """The evidence of rows by data set for a claim: `found`, `verdict`, and their numbers."""
    evidence = {data: claim.judge(data, rows.get(data, ())) for data in claim.data or rows}
    known = {data: one for data, one in evidence.items() if one is not None}
    untested = [data for data in claim.data if data not in known]
    compared = [comparison for one in known.values() for comparison in one.comparisons]
    if claim.on_average:
        compared = [] if untested else [_mean_of(compared)]
    figures: Figures = {
        "found": "; ".join(f"{data}: {one.text}" for data, one in known.items()) or None,
        "verdict": _said(compared),
        "untested": ", ".join(untested) or None,
        "comparisons": [{**one._asdict(), "verdict": one.verdict} for one in compared],
    }
    if known:
        # The machine of the measurement, not the one that judges.
        machines = [row["hardware"] for row in rows[list(known)[-1]]]
        figures["hardware"] = next(filter(None, reversed(machines)), {})
    return figures


def _mean_of(compared: Sequence[Comparison]) -> Comparison:
    a, b, spread = (mean(numbers) for numbers in list(zip(*compared, strict=True))[1:4])
    return Comparison("mean", a, b, spread)


def _said(compared: Sequence[Comparison]) -> str:
    labels: dict[str, list[str]] = {}
    for comparison in compared:
        labels.setdefault(comparison.verdict, []).append(comparison.label)
    if len(labels) <= 1:
        return next(iter(labels), NOT_TESTED)
    return "; ".join(f"{word}: {', '.join(mine)}" for word, mine in labels.items())


def _finding(rows: Rows) -> str:
    words = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, NOT_TESTED)
    counts = {word: sum(row["verdict"] == word for row in rows) for word in words}
    counts["in part"] = len(rows) - sum(counts.values())
    shown = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"Of {len(rows)} claims: {shown}."


TABLE = Table(
    "claims",
    "What the paper claims, and what these tables say to it",
    (
        Column("section", "section"),
        Column("the paper claims", "claim"),
        Column("measured here", "found"),
        Column("verdict", "verdict"),
        Column("not tested on", "untested"),
    ),
    _plan,
    _finding,
    note=(
        "One rule for all rows. A claim comes down to two numbers on a data set that it is about: "
        "it states that the first is larger, or that the first is not smaller (nothing is lost). "
        "*Reproduced*: the first is larger by more than the spread, or, if nothing is to be "
        "lost, not smaller by more than it. *Not reproduced*: the first is smaller by more than "
        "the spread, or the two are equal within it although the paper's differ by more than twice "
        "as much. *Undecided*: the two are equal within the spread, and the paper's differ little "
        f"or are not printed. The spread is {LEAST_DIFFERENCE} of MRR (trainings with equal "
        "settings and seeds differ by almost as much), or that of the available trainings if it is "
        "larger; 1/√n for the coverage of n queries; one answer in the cases; the 95 % interval "
        "of the mean difference between surrogates; and, for a share of time, its change "
        f"if each of the two times has an error of {TIME_SPREAD:.0%}. Time "
        "saved counts as reproduced if it is at least the paper's less the spread. The paper "
        "measured times on an RTX 3090, we on an H200 with kernels of our own: only shares "
        "are comparable. The trainings are the short ones of the tables above, except in `main`, "
        "whose configuration for WN18RR is outside the paper's design space."
    ),
)
