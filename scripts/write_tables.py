"""Write the tables of the README and the docs from the files in `benchmarks/results`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; nothing between the marks is
written by hand. `--check` writes nothing and fails if a table is out of date.
"""

import dataclasses
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from oneshot.experiments.baselines.peers import OURS
from oneshot.experiments.bench.measure import sources
from oneshot.experiments.bench.scale import ASSUMPTIONS, estimate
from oneshot.experiments.paper import literature

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images" / "paper"
MARK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

LABELS = {
    "ppr": "Personalized PageRank",
    "bfs": "breadth-first search",
    "random_walk": "random walks",
    "pagerank": "PageRank",
    "random": "random",
}


def result(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return value


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def machine(*values: dict[str, Any]) -> str:
    """The provenance of results: one line per machine and date, with all revisions."""
    stamps = (stamp for value in values for stamp in measured_on(value))
    return "\n\n".join(f"*{line}.*" for line in sources(stamps))


def measured_on(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The machine of a result, or those of its parts if they were measured separately."""
    if "hardware" in value:
        return [value["hardware"]]
    return [part["hardware"] for part in value.values()]


def coverage() -> str:
    value = result("coverage")
    parts = []
    for data, samplers in value["rows"].items():
        rows = [
            [LABELS.get(row["sampler"], row["sampler"])]
            + [_beside(row["coverage"][r], row["paper"].get(r)) for r in row["coverage"]]
            + [f"{row['seconds']:.1f}"]
            for row in samplers
        ]
        ratios = [f"{float(r):.0%} of entities" for r in samplers[0]["coverage"]]
        parts.append(table([f"{data} (paper's value in brackets)", *ratios, "seconds"], rows))
    walks = value["random_walk"]
    parts.append(
        f"Random walks: {walks['walks']} walks of {walks['length']} steps from the query entity, "
        "without restart. Entities that no walk visits rank last. The paper does not specify its "
        "random walks."
    )
    return "\n\n".join([*parts, machine(value)])


def _beside(ours: float, papers: float | None) -> str:
    return f"{ours:.3f}" if papers is None else f"{ours:.3f} ({papers:.3f})"


def sampler() -> str:
    value = result("sampler-cpu")
    head = ["graph", "implementation", "queries/s", "recall", "speed-up of oneshot"]
    rows = []
    for row in value["rows"]:
        graph = f"{row['data']} ({row['entities']:,} entities, {row['facts']:,} facts)"
        for who, figures in {"oneshot": row["ours"], **row["baseline"]}.items():
            ratio = f"{row['ratio'][who]:,.1f} ×" if who in row["ratio"] else ""
            speed = figures["queries_per_second"]
            rows.append([graph, who, f"{speed:,.1f}", f"{figures['recall']:.4f}", ratio])
    asked = value["rows"][0]["baseline"].get("networkx", {}).get("queries", "few")
    remark = f"Recall of the exact top K, over 32 queries (networkx: {asked} queries)."
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(value)


def sampler_gpu() -> str:
    head = ["graph", "time for all entities", "recall", "subgraphs per second"]
    rows, last = [], {}
    for name in ("WN18RR", "NELL-995"):
        last = result(f"sampler-h200-{name}")
        ours = last["ours"]
        rows.append(
            [
                f"{name} ({ours['queries']:,} queries)",
                f"{ours['seconds']:.2f} s",
                f"{ours['recall']:.4f}",
                f"{ours['subgraphs_per_second']:,.0f}",
            ]
        )
    top = result("top-h200-HsGeneKG")
    ours, exact = top["sampler"], top["exact"]
    remark = (
        f"The {top['top']:,} entities of highest PPR for {top['queries']:,} queries on "
        f"{top['graph']} ({top['entities']:,} entities, {top['facts']:,} facts), half of them "
        "about the 1% of the entities with the most neighbours: "
        f"{ours['queries_per_second']:,.0f} queries per second at recall {ours['recall']:.4f} "
        f"(lowest {ours['least_recall']:.4f}) by the "
        f"sampler, {exact['queries_per_second']:,.0f} by `oneshot.ppr(exact=True)`, beside other "
        "work on the cores."
    )
    return "\n\n".join([table(head, rows), remark, machine(last, top)])


def reading() -> str:
    value = result("reading")
    read, load = value["read"], value["load_split_and_index"]
    rows = [
        [
            f"read {read['lines']:,} lines with names",
            f"{read['seconds']} s",
            f"{read['peak_gb']} GB",
        ],
        ["read, split and index", f"{load['seconds']} s", f"{load['peak_gb']} GB"],
    ]
    return (
        table([f"TSV file of {value['megabytes']:,} MB", "time", "memory"], rows)
        + "\n\n"
        + machine(value)
    )


def push() -> str:
    value = result("push")
    head = ["graph", "facts", "largest degree", "mean recall", "lowest recall", "edges read"]
    head += ["CPU time, median", "CPU time, p99", "recall of the ball", "measured", "load"]
    rows = [
        [
            row["graph"] + remark,
            f"{row['facts']:,}",
            f"{row['largest_degree']:,}",
            f"{row[way]['recall']:.3f}",
            f"{row[way]['least_recall']:.3f}",
            f"{row[way]['edges_median']:,}",
            f"{row[way]['sample_cpu_ms']:.1f} ms",
            f"{row[way]['sample_p99_cpu_ms']:.1f} ms",
            f"{row['ball']['recall']:.3f}",
            measured(row),
            f"{row['load']}",
        ]
        for row in value["rows"]
        for way, remark in (("push", ""), ("hub_index", ", hub index"))
        if way in row
    ]
    few = min(row["ball"]["queries"] for row in value["rows"])
    remark = (
        f"{value['queries']} queries per graph (at least {few} for the ball), "
        f"{value['max_entities']:,} entities each. The load of the machine is that during the "
        f"measurement, on {value['hardware']['cores']} cores."
    )
    for row in value["rows"]:
        if "hub_index" in row:
            index = row["hub_index"]
            remark += (
                f" The hub index of {row['graph']} has {index['hubs']:,} hubs with at least "
                f"{index['least_degree']:,} neighbours and {index['megabytes']:.0f} MB; building "
                f"it took {index['build_cpu_seconds']:.0f} s of the CPU."
            )
    return "\n\n".join([table(head, rows), remark, *push_peers(value), machine(*stamps(value))])


def push_peers(value: dict[str, Any]) -> list[str]:
    """Other packages beside the push at equal recall, for the rows that were measured so."""
    rows = [
        [
            row["graph"],
            name,
            f"{other['recall']:.3f}",
            f"{other['cpu_ms']:,.1f} ms",
            "–" if other["ratio"] is None else f"{other['our_cpu_ms']:,.1f} ms",
            "–" if other["ratio"] is None else OUR_WAYS[other["our_way"]],
            "–" if other["ratio"] is None else f"{other['ratio']:,.1f} ×",
        ]
        for row in value["rows"]
        for name, other in row["others"].items()
        if isinstance(other, dict) and "ratio" in other
    ]
    if not rows:
        return []
    head = ["graph", "package", "recall", "CPU time", "ours at this recall", "method", "ratio"]
    few = min(row["others"].get("queries", value["queries"]) for row in value["rows"])
    return [table(head, rows), f"Median over {few} queries, one at a time, without extraction."]


OUR_WAYS = {"this package, push": "push", "this package, whole graph": "whole graph"}


def stamps(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The machines of the rows of a result that is measured row by row.

    Rows of earlier versions have none; that of the file is then that of the newest row.
    """
    return [row for row in value["rows"] if "hardware" in row] or [value]


def measured(row: dict[str, Any]) -> str:
    """When a row was measured, and with which revision, if that was recorded."""
    stamp = row.get("hardware")
    return "–" if stamp is None else f"{stamp['date']}, {stamp['revision']}"


def scale_plan() -> str:
    value = result("scale")
    rows = [row for row in value["rows"] if row["graph"] == "power-law"]
    sizes = (1_000_000_000, 10_000_000_000)
    plans = [estimate(rows, value["growth"]["power-law"], n, n // 10) for n in sizes]
    labels = {
        "entities": ("entities", "{:,}"),
        "saved_gb": ("saved graph on disk", "{:,.0f} GB"),
        "temporary_gb": ("disk during the build", "{:,.0f} GB"),
        "build_hours": ("build on one core", "{:,.0f} h"),
        "offsets_gb": ("row offsets and components", "{:,.1f} GB"),
        "sample_ms": ("subgraph, elapsed", "{:,.0f} ms"),
        "subgraphs_per_core_second": ("subgraphs per second and core", "{:,.1f}"),
        "answers_per_core_second": ("answers per second and core", "{:,.1f}"),
    }
    lines = [
        [label, *(form.format(plan[key]) if key in plan else "–" for plan in plans)]
        for key, (label, form) in labels.items()
    ]
    largest = plans[0]["from_facts"]
    remark = f"From the power-law graph of {largest:,} facts and the exponents above."
    return table(["facts", *(f"{n:,}" for n in sizes)], lines) + "\n\n" + remark


def live_facts() -> str:
    value = result("live-facts")
    rows = [
        [
            label,
            f"{value[key]['queries']:,}",
            f"{value[key]['cpu_ms']:.0f} ms",
            f"{value[key]['p99_cpu_ms']:.0f} ms",
        ]
        for label, key in (("before", "queries_before"), ("during the changes", "queries_during"))
    ]
    remark = (
        f"{value['changes']:,} changes of {value['graph']}, {value['changes_per_second']:,} per "
        f"second. The selections of the changed and a new graph agree to "
        f"{value['same_selection']:.4f}, their scores to "
        f"{value['largest_relative_difference']:.0e}."
    )
    head = ["queries", "number", "CPU time, median", "CPU time, p99"]
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(value)


def edge_limit() -> str:
    value = result("edge-limit")
    accuracy, times = value["accuracy"], value["time"]
    rows = [
        [
            "none" if row["drops"] is None else f"{row['limit']:,}, drops {row['drops']}",
            f"{row['subgraph_entities']:,}",
            f"{row['subgraph_edges']:,}",
            f"{row['mrr']:.3f}",
        ]
        for row in accuracy["rows"]
    ]
    head = [f"edge limit, {accuracy['run']}", "entities", "edges", "validation MRR"]
    first = table(head, rows)
    head = [f"edge limit, {times['graph']}", "edges", "most edges"]
    head += ["CPU time per answer, median", "CPU time per answer, p99"]
    rows = [
        [
            f"{row['limit']:,}" if row["limit"] else "none",
            f"{row['subgraph_edges']:,}",
            f"{row['most_edges']:,}",
            f"{row['answer_cpu_ms']:.0f} ms",
            f"{row['answer_p99_cpu_ms']:.0f} ms",
        ]
        for row in times["rows"]
    ]
    most = ", ".join(f"{name} {edges:,}" for name, edges in accuracy["largest"].items())
    remark = (
        f"MRR over {accuracy['facts']} validation facts in both directions; "
        f"{times['queries']} answers with {times['max_entities']:,} entities each. Largest of 200 "
        f"subgraphs of the shipped runs, with identity edges: {most}."
    )
    return "\n\n".join([first, table(head, rows), remark, machine(value)])


def large_graph() -> str:
    value = result("large-graph")
    cover = value["coverage"]
    rows = [
        [
            "read 7.5 million facts",
            f"{value['load']['seconds']} s",
            f"{value['load']['peak_gb']} GB",
        ],
        ["open the saved graph", f"{value['open']['seconds'] * 1000:.0f} ms", ""],
        [
            f"coverage of {cover['queries']:,} queries, {cover['max_entities']:,} entities each "
            f"(recall {cover['recall']:.4f})",
            f"{cover['seconds']} s",
            f"{cover['peak_gb']} GB",
        ],
    ]
    return (
        table(["HsGeneKG, 2.3 million entities", "time", "memory"], rows) + "\n\n" + machine(value)
    )


# The highest published test MRR that we know of.
PUBLISHED_SMALL = {"UMLS": "0.970 (AdaProp)", "Family": "0.992 (RED-GNN)"}

# MRR of the inductive benchmarks, on the validation and test facts of the second graph together.
# RED-GNN: as published, trained on the same graph as ours. ULTRA and TRIX: pre-trained on other
# graphs, rerun by others (pessimistic ranks for ties).
PUBLISHED_INDUCTIVE = {
    "WN18RR_v1": {"RED-GNN": 0.701, "ULTRA": 0.593, "TRIX": 0.699},
    "WN18RR_v2": {"RED-GNN": 0.690, "ULTRA": 0.620, "TRIX": 0.680},
    "fb237_v1": {"RED-GNN": 0.369, "ULTRA": 0.486, "TRIX": 0.515},
    "fb237_v2": {"RED-GNN": 0.469, "ULTRA": 0.501, "TRIX": 0.525},
    "nell_v1": {"RED-GNN": 0.637, "ULTRA": 0.717, "TRIX": 0.806},
    "nell_v2": {"RED-GNN": 0.419, "ULTRA": 0.525, "TRIX": 0.570},
}


def small_graphs() -> str:
    value = result("small-graphs")
    rows = [
        [
            row["name"],
            *(f"{row['test'][key]:.3f}" for key in ("mrr", "hits@1", "hits@10")),
            PUBLISHED_SMALL[row["name"]],
            f"{row['seconds'] / 60:.1f} min",
        ]
        for row in value["rows"]
        if row["name"] in PUBLISHED_SMALL
    ]
    head = ["data", "test MRR", "Hits@1", "Hits@10", "best published MRR", "training time"]
    remark = (
        "Published values are those stated by the authors. The runs shared one GPU, so times "
        "include contention."
    )
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(value)


def inductive() -> str:
    """Both protocols, with the values published for the second one."""
    value = result("small-graphs")
    head = ["data", "`test`: MRR", "Hits@10", "`valid` and `test`: MRR", "Hits@10"]
    head += ["RED-GNN", "ULTRA, zero-shot", "TRIX, zero-shot", "training time"]
    rows = []
    for row in value["rows"]:
        if row["name"] not in PUBLISHED_INDUCTIVE:
            continue
        both = row.get("valid_and_test")
        rows.append(
            [
                row["name"],
                *(f"{row['test'][key]:.3f}" for key in ("mrr", "hits@10")),
                *("–" if both is None else f"{both[key]:.3f}" for key in ("mrr", "hits@10")),
                *(f"{figure:.3f}" for figure in PUBLISHED_INDUCTIVE[row["name"]].values()),
                f"{row['seconds'] / 60:.1f} min",
            ]
        )
    remark = (
        "Two protocols are in use. KnowFormer queries only the test facts of the second graph "
        "(`test`). RED-GNN, AdaProp, ULTRA and TRIX query its validation and test facts together "
        "(`valid` and `test`), and the published MRRs follow this protocol. RED-GNN: as stated by "
        "its authors, trained on the same graph as ours. ULTRA (3 graphs) and TRIX: rerun by "
        "others, pre-trained on other graphs and used zero-shot. Our runs shared one GPU, so times "
        "include contention."
    )
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(value)


class Elsewhere(NamedTuple):
    """Results of other systems on a data set.

    `verified`: the highest test MRRs that others have rerun, or that come with trained parameters.
    `claimed`: higher ones that only their authors have measured. `time`: training time in the
    paper.
    """

    verified: str = "–"
    claimed: str = "–"
    time: str = "–"


# Test MRRs of other systems that were rerun by others or published with trained parameters. The
# rerun of KnowFormer selects its epoch on the validation split.
VERIFIED = {
    "official code": {"WN18RR": 0.5637},
    "AdaProp": {"NELL-995": 0.5542, "FB15k-237": 0.417},
    "KnowFormer": {"FB15k-237": 0.4311},
}
NBFNET_FB15K = 0.415  # as published by its authors


ELSEWHERE = {
    "WN18RR": Elsewhere(
        f"{literature.MAIN['WN18RR'][literature.PAPER_SYSTEM]['mrr']:.3f} (the paper; rerun by "
        f"others: {VERIFIED['official code']['WN18RR']:.3f})",
        "0.611 (MoKGR), 0.579 (KnowFormer)",
        "4.5 to 7.2 min per epoch, after 2 h for PageRank",
    ),
    "NELL-995": Elsewhere(
        f"{VERIFIED['AdaProp']['NELL-995']:.3f} (AdaProp)",
        "0.566 (KnowFormer)",
        "0.8 h per epoch, after 8 h for PageRank",
    ),
    "FB15k-237": Elsewhere(
        f"{VERIFIED['KnowFormer']['FB15k-237']:.3f} (KnowFormer, rerun by others), "
        f"{VERIFIED['AdaProp']['FB15k-237']:.3f} (AdaProp); as published: {NBFNET_FB15K} (NBFNet)",
        "0.443 (MoKGR)",
    ),
    "YAGO3-10-partial": Elsewhere(),
}


LARGE = ("WN18RR", "NELL-995", "FB15k-237")


def own_trainings() -> list[dict[str, Any]]:
    """The rows of the paper's main table that are ours."""
    return [row for row in result("paper/main")["rows"] if row.get("system", OURS) == OURS]


def recipes() -> str:
    """The large benchmarks: means over all full runs of each."""
    head = ["data", "test MRR", "Hits@1", "Hits@10", "paper: MRR / Hits@1 / Hits@10"]
    head += ["best verified MRR", "claimed MRR", "training time, H200"]
    head += ["paper's training time, RTX 3090"]
    measured = own_trainings()
    rows: list[list[str]] = []
    measured_by: list[dict[str, Any]] = []
    for name, known in ELSEWHERE.items():
        runs = [row for row in measured if row["data"] == name]
        printed = literature.MAIN.get(name, {}).get(literature.PAPER_SYSTEM, {})
        papers = " / ".join(f"{figure:.3f}" for figure in printed.values()) or "–"
        time = _minutes([row["seconds"] for row in runs])
        beside = [papers, known.verified, known.claimed, time, known.time]
        rows.append([*_means(name, runs), *beside])
        measured_by += runs
        if name == "WN18RR":
            sums = result("recipe-WN18RR-sum")["rows"]
            time = _minutes([row["training_seconds"] for row in sums])
            figures = _means("WN18RR, sum and gate", [row["test"] for row in sums])
            rows.append([*figures, papers, "", "", time, known.time])
            measured_by += sums
    more = (
        "Verified: rerun by others, or published with trained parameters. Claimed: stated by the "
        "authors; we know of no rerun, and the released code of KnowFormer selects its epoch on "
        "the test split. The configurations for WN18RR (principal neighbourhood aggregation, norm, "
        "no gate) and FB15k-237 are outside the paper's design space. *Sum and gate* is a "
        "predictor like that of the official code for WN18RR: sum aggregation, GRU gate, 8 layers, "
        "dimension 256 (`configs/WN18RR-sum.toml`; the paper's space ends at dimension 128). "
        "YAGO3-10-partial holds 43% of the training facts of YAGO3-10, so its values are not "
        "comparable with published ones. Values are means over runs. Some runs shared a GPU with "
        "others, and some use the same seed. [The paper's tables](paper.md) list each run."
    )
    return table(head, rows) + f"\n\n{more}\n\n" + machine(*measured_by)


def _means(name: str, figures: list[dict[str, Any]]) -> list[str]:
    """The name, with the number of runs, and the means of their metrics."""
    runs = "1 run" if len(figures) == 1 else f"{len(figures)} runs"
    means = (
        f"{sum(one[key] for one in figures) / len(figures):.3f}"
        for key in ("mrr", "hits@1", "hits@10")
    )
    return [f"{name} ({runs})", *means]


def _minutes(seconds: list[float]) -> str:
    return f"{sum(seconds) / len(seconds) / 60:.1f} min"


class System(NamedTuple):
    """A row of the README's table. Values in italics are published ones."""

    name: str
    mrr: dict[str, str]
    training: str = "–"
    memory: str = "–"
    cpu: str = "–"


def overview() -> str:
    """oneshot beside other systems: accuracy, training time and memory."""
    main, small = own_trainings(), result("small-graphs")
    umls, rotate = result("compare-umls"), result("paper/nodepiece")
    step, cpu = result("predictor-h200"), result("cpu-training")
    on_cpu = next(row for row in cpu["rows"] if row["data"] == "WN18RR")
    measured = {row["model"]: f"{row['mrr']:.3f}" for row in umls["rows"]}
    pykeen = next(row for row in rotate["rows"] if row["model"] == "rotate")

    def mean(name: str, key: str) -> float:
        values = [row[key] for row in main if row["data"] == name]
        return float(sum(values) / len(values))

    def printed(system: str) -> dict[str, str]:
        return {name: f"*{literature.MAIN[name][system]['mrr']:.3f}*" for name in LARGE[:2]}

    def verified(system: str) -> dict[str, str]:
        return {name: f"*{mrr:.3f}*" for name, mrr in VERIFIED[system].items()}

    def per_epoch(message: str) -> str:
        seconds = literature.MESSAGES["WN18RR", message, 1.0]["seconds_per_epoch"]
        return f"*{seconds / 60:.1f} min per epoch*"

    def inductive_mean(system: str) -> str:
        values = [row[system] for row in PUBLISHED_INDUCTIVE.values()]
        return f"*{sum(values) / len(values):.3f}*"

    ours = [
        row["valid_and_test"]["mrr"] for row in small["rows"] if row["name"] in PUBLISHED_INDUCTIVE
    ]
    papers_memory = literature.EFFICIENCY["WN18RR", 0.1, 1.0]["training_gb"]
    systems = [
        System(
            "**oneshot**",
            {name: f"{mean(name, 'mrr'):.3f}" for name in LARGE}
            | {"`umls`": measured["oneshot"], "inductive": f"{sum(ours) / len(ours):.3f}"},
            f"{mean('WN18RR', 'seconds') / 60:.1f} min",
            f"{step['ours']['peak_megabytes'] / 1024:.1f} GB",
            f"{on_cpu['now']:,.0f}",
        ),
        System(
            "official code of the paper",
            printed(literature.PAPER_SYSTEM)
            | {
                "WN18RR": f"{printed(literature.PAPER_SYSTEM)['WN18RR']} (rerun: "
                f"{verified('official code')['WN18RR']})"
            },
            f"*{ELSEWHERE['WN18RR'].time}*",
            f"{step['baseline']['edge by edge']['peak_megabytes'] / 1024:.1f} GB "
            f"(*{papers_memory} GB*)",
        ),
        System(
            "NBFNet",
            printed("NBFNet") | {"FB15k-237": f"*{NBFNET_FB15K}*"},
            per_epoch("nbfnet"),
            cpu=f"{on_cpu['nbfnet']:,.1f}",
        ),
        System(
            "RED-GNN",
            printed("RED-GNN") | {"inductive": inductive_mean("RED-GNN")},
            per_epoch("redgnn"),
        ),
        System("AdaProp", verified("AdaProp")),
        System("KnowFormer, rerun by others", verified("KnowFormer")),
        System(
            "RotatE (PyKEEN)",
            printed("RotatE")
            | {
                "WN18RR": f"{pykeen['mrr']:.3f} ({printed('RotatE')['WN18RR']})",
                "`umls`": measured["rotate"],
                "inductive": "not supported",
            },
            f"{pykeen['seconds'] / 60:.1f} min",
        ),
        System(
            "ConvE (PyKEEN)",
            printed("ConvE") | {"`umls`": measured["conve"], "inductive": "not supported"},
        ),
        System("ULTRA, zero-shot", {"inductive": inductive_mean("ULTRA")}),
        System("TRIX, zero-shot", {"inductive": inductive_mean("TRIX")}),
    ]
    columns = (*LARGE, "`umls`", "inductive")
    head = ["system", *columns, "training time", "GPU memory", "queries/s, CPU"]
    rows = [
        [one.name, *(one.mrr.get(name, "–") for name in columns), one.training, one.memory, one.cpu]
        for one in systems
    ]
    peak = max(row["peak_megabytes"] for row in main if row["data"] == "WN18RR") / 1024
    baseline = step["baseline"]["edge by edge"]["peak_megabytes"] / 1024
    best = {"NELL-995": VERIFIED["AdaProp"], "FB15k-237": VERIFIED["KnowFormer"]}
    ahead = [name for name, system in best.items() if system[name] > mean(name, "mrr")]
    above = f"; above ours on {' and '.join(ahead)}" if ahead else ""
    notes = [
        "*Italics*: published values. All others are our own measurements.",
        "*AdaProp, KnowFormer*: the highest MRRs on NELL-995 and FB15k-237 that have been rerun by "
        f"others or come with trained parameters{above}.",
        "*inductive*: mean MRR over six benchmarks in which all test entities are unseen. ULTRA "
        "and TRIX are pre-trained on other graphs, and were rerun by others.",
        "*training time*: on WN18RR. Ours and that of RotatE are for the whole training, on an "
        "H200. Published times are from an RTX 3090.",
        "*GPU memory*: one training step on WN18RR with the configuration of the official code "
        f"({step['queries']} queries, dimension {step['dim']}, {step['layers']} layers); ours in "
        f"{step['precision']}. {baseline:.1f} GB is what we measured for the same network, "
        "computed edge by edge in float32 as in the official code. A whole training with our own "
        f"configuration needs {peak:.1f} GB.",
        "*queries/s, CPU*: training on WN18RR with two cores. NBFNet is our "
        "implementation in PyTorch Geometric, which uses the whole graph.",
    ]
    more = "[Accuracy](docs/accuracy.md) has all metrics, and higher MRRs that nobody has rerun."
    lead = (
        f"On WN18RR, oneshot reaches a test MRR of {systems[0].mrr['WN18RR']} after "
        f"{systems[0].training} of training on an H200 (the paper: "
        f"{literature.MAIN['WN18RR'][literature.PAPER_SYSTEM]['mrr']}, with "
        f"{ELSEWHERE['WN18RR'].time}, on an RTX 3090). Test MRR and cost of training:"
    )
    listed = "\n".join(f"- {note}" for note in notes)
    return "\n\n".join([lead, table(head, rows), listed, more])


def cpu_training() -> str:
    value = result("cpu-training")
    rows = [
        [
            row["data"],
            f"{row['entity_ratio']:.0%}",
            str(row["layers"]),
            f"{row['now']:,.0f}",
            f"{row['before']:,.1f}",
            f"{row['nbfnet']:,.1f}",
            f"{row['now'] / row['before']:.1f}",
            f"{row['now'] / row['nbfnet']:.1f}",
        ]
        for row in value["rows"]
    ]
    head = ["graph", "entities", "layers", "oneshot", "PyTorch operations", "NBFNet in PyG"]
    head += ["speed-up over PyTorch", "speed-up over NBFNet"]
    remark = (
        f"Training queries per second at dimension {value['rows'][0]['dim']} with PNA; medians of "
        "three interleaved rounds. PyTorch operations: the same predictor before the C kernels "
        f"(revision {value['before']}). NBFNet: its formulation in PyTorch Geometric on the whole "
        "graph, with the largest batch that fits in 4 GB."
    )
    return table(head, rows) + f"\n\n{remark}\n\n" + machine(value)


VARIANTS = {
    "recorded": "fused kernels, CUDA graph, bfloat16",
    "recorded, float32": "fused kernels, CUDA graph, float32",
    "fused": "fused kernels, bfloat16",
    "plain": "PyTorch operations, float32",
    "edge by edge": "edge by edge, float32 (baseline)",
}


def predictor_gpu() -> str:
    value = result("predictor-h200")
    head = ["implementation", "training step", "peak memory", "inference"]
    rows = [
        [
            VARIANTS[name],
            f"{row['step_milliseconds']:.1f} ms",
            f"{row['peak_megabytes'] / 1024:.1f} GB",
            f"{row['inference_queries_per_second']:,.0f} queries/s",
        ]
        for name, row in {**value["variants"], **value["baseline"]}.items()
    ]
    remark = (
        f"{value['queries']} queries on {value['data']}, {value['edges']:,} edges, dimension "
        f"{value['dim']}, {value['layers']} layers. The first row takes "
        f"1/{value['ratio']['step']:.0f} of the time and {value['ratio']['memory']:.0%} of the "
        "memory of the baseline."
    )
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(value)


def explanations() -> str:
    value = result("explanations")
    head = ["predictor", "Hits@1", "true rule, where asked", "true rule, everywhere"]
    head += ["listed rule", "deletion check"]
    keys = ("hits@1", "true_asked", "true_everywhere", "true_listed", "deletion_passed")
    rows = []
    for name in dict.fromkeys(row["predictor"] for row in value["rows"]):
        mine = [row for row in value["rows"] if row["predictor"] == name]
        shares = [", ".join(f"{row[key]:.2f}" for row in mine) for key in keys]
        rows.append([name, *shares])
    remark = (
        f"One value per seed ({', '.join(map(str, value['seeds']))}). Each seed has its own world "
        f"(`{value['data']}`) and {value['rows'][0]['facts']} correctly answered held-out facts. "
        "The first path of an explanation counts as a true rule if the query relation also holds "
        f"for at least {value['reliable']:.0%} of the pairs of people that its relations connect. "
        "*Where asked* counts only paths that start at a person for whom the query has an answer, "
        "*everywhere* counts all paths. *Listed*: the path is one of the 8 rules of the generator "
        "(grandmother ← grandfather ∘ wife is true, but not listed). *Deletion check*: the score "
        "of the answer falls by more when the facts of the first path are removed from the "
        "subgraph than when as many random facts are removed that lie on some path to the answer "
        f"(mean of {value['random_deletions']} draws). The row `foundation` is the pre-trained run "
        "in the package, without training on these worlds."
    )
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(value)


def explained_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of explanations: of trained reasoners, and of the foundation run."""
    rows = result("explanations")["rows"]
    trained = [row for row in rows if row["predictor"] != "foundation"]
    return trained, [row for row in rows if row["predictor"] == "foundation"]


def explanations_of_foundation() -> str:
    """How explanations of the foundation run compare with those of trained reasoners."""
    trained, foundation = explained_rows()

    def mean(rows: list[dict[str, Any]], key: str) -> float:
        total = sum(row["facts"] * row[key] for row in rows)
        return float(total / sum(row["facts"] for row in rows))

    passed, theirs = mean(foundation, "deletion_passed"), mean(trained, "deletion_passed")
    rank, their_rank = (mean(rows, "deletion_rank_lost") for rows in (foundation, trained))
    true, their_true = (mean(rows, "true_asked") for rows in (foundation, trained))
    return (
        "On generated family graphs, the first path of an explanation passes the deletion check "
        f"for {passed:.0%} of the correct answers of the run ({theirs:.0%} for {len(trained)} "
        "reasoners that were trained on these graphs), and the answer is no longer first without "
        f"the facts of this path for {rank:.0%} ({their_rank:.0%}). But the path follows a true "
        f"rule for only {true:.0%} ({their_true:.0%}): the run argues by similar entities, such "
        "as another niece of the same uncle, who has another uncle, too "
        "([criteria](how-it-works.md#faithfulness-of-explanations)).\n"
    )


def explanations_in_short() -> str:
    rows, _ = explained_rows()
    shares = sorted(row["true_asked"] for row in rows)
    most = sum(share >= 0.9 for share in shares)
    facts = sum(row["facts"] for row in rows)
    wide, strict, listed = (
        sum(row["facts"] * row[f"true_{sense}"] for row in rows) / facts
        for sense in ("asked", "everywhere", "listed")
    )
    return (
        "Explanations were tested on generated family graphs, for which it is known which rules "
        "hold. The first path of an explanation follows a true rule for "
        f"{wide:.0%} of {facts:,} correctly answered held-out facts ({shares[0]:.0%} to "
        f"{shares[-1]:.0%} for each of {len(rows)} trained reasoners, at least 90% for {most} of "
        f"them), or for {strict:.0%} by a stricter criterion. For {listed:.0%}, the rule is one of "
        "those that generated the graph "
        "([criteria](docs/how-it-works.md#faithfulness-of-explanations))."
    )


def shipped_rows(value: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of the shipped run under load and beside explanations."""
    for name, row in value.items():
        if not name.endswith("clients"):
            continue
        refused, late = (row["statuses"].get(status, 0) for status in ("503", "504"))
        yield [
            f"shipped run of WN18RR on 2 cores, {name} for {row['seconds']:.0f} s",
            f"{row['questions_per_second']:.1f} queries/s; p50 {row['p50_s']:.2f} s, p99 "
            f"{row['p99_s']:.2f} s; {refused} refused, {late} timed out",
        ]
    both = value["explanations"]
    yield [
        f"a query at a time beside {both['clients']} clients that ask for explanations",
        f"p50 {both['beside']['p50_s']:.2f} s, p99 {both['beside']['p99_s']:.2f} s (alone "
        f"{both['alone']['p50_s']:.2f} s and {both['alone']['p99_s']:.2f} s); memory "
        f"{both['resident_mb'][0]} MB before, {both['resident_mb'][1]} MB after "
        f"{both['beside']['explanations']} explanations",
    ]


def soak_rows(value: Any) -> list[list[str]]:
    """Rows of the tests over a long time, on small runs but for the explanations."""
    soak, fuzz, versions = value["soak"], value["fuzz"], value["versions"]
    idle, explaining = value["idle"], value["explaining"]["cpu_seconds"]
    broken = sum(fuzz["statuses"].values()) - fuzz["statuses"]["answered"]
    errors = sum(soak["statuses"].values()) - soak["statuses"]["answered"]
    memory, most = soak["memory_megabytes"], fuzz["memory_megabytes"]
    made = {"huge_bodies": "over 2 MiB", "costly": "made to cost much time"}
    kinds = [f"{fuzz[key]:,} {words}" for key, words in made.items() if key in fuzz]
    huge = f" ({', '.join(kinds)})" if kinds else ""
    return [
        [
            f"shipped run of WN18RR, {value['explaining']['explanations']} explanations, one at a "
            "time",
            f"CPU time: median {explaining['median']:.2f} s, 90% within {explaining['p90']:.2f} s, "
            f"most {explaining['most']:.2f} s",
        ],
        [
            f"{soak['minutes']:.0f} minutes of queries, explanations, searches and changes",
            f"{soak['statuses']['answered']:,} requests, {errors} errors; memory "
            f"{memory['second_third']:.0f} MB in the second third, {memory['last_third']:.0f} MB "
            "in the last",
        ],
        [
            f"{fuzz['minutes']:.0f} minutes of malformed requests",
            f"{broken:,} of them{huge}, beside {fuzz['statuses']['answered']:,} ordinary ones; "
            f"health check at most {fuzz['health_seconds']['most']:.2f} s; memory at most "
            f"{most['most']:.0f} MB; log {fuzz['log_bytes']:,} bytes",
        ],
        [
            f"queries beside {idle['connections']:,} idle connections",
            f"p50 {idle['without a token']['p50_s']:.2f} s, most "
            f"{idle['without a token']['most_s']:.2f} s; of a service with a token "
            f"{idle['with a token']['p50_s']:.2f} s and {idle['with a token']['most_s']:.2f} s",
        ],
        [
            f"{versions['requests']:,} requests during {versions['changes']:,} changes",
            f"{versions['wrong']} of {versions['results']:,} results with a wrong version",
        ],
    ]


def serve() -> str:
    value = result("serve")
    loads, flood, kill = value["load"], value["overload"], value["kill"]
    live, search = value["live"], value["search"]
    rows = []
    device = result("serve-h200") if (RESULTS / "serve-h200.json").is_file() else None
    measured = [("2 cores", loads), *([("H200", device["load"])] if device else [])]
    for place, load in measured:
        for who in ("batched", "unbatched"):
            row = load[who]
            rows.append(
                [
                    f"WN18RR on {place}, 16 clients for {load['seconds']:.0f} s, {who}",
                    f"{row['questions_per_second']:.1f} queries/s; p50 {row['p50_s']:.2f} s, p99 "
                    f"{row['p99_s']:.2f} s; {row['errors']} errors",
                ]
            )
    shipped = result("serve-shipped")
    soak = result("serve-soak")
    rows += [*shipped_rows(shipped), *soak_rows(soak)]
    refused = flood["statuses"].get("503", 0)
    rows += [
        [
            "WN18RR on 2 cores, 500 connections for 10 s",
            f"{flood['statuses'].get('200', 0)} answered, {refused:,} refused; healthy again after "
            f"{flood['healthy_again_s']:.1f} s",
        ],
        [
            f"`kill -9` while {kill['stream']:,} facts are added, {kill['rounds']} times",
            f"{kill['lost']} of {kill['acknowledged']:,} acknowledged facts lost; "
            f"{kill['ms_a_request']:.1f} ms per request",
        ],
        [
            "HsGeneKG (2.3 million entities), one fact added",
            f"acknowledged after {live['acknowledged_ms']['p50']:.0f} ms (maximum of 60: "
            f"{live['acknowledged_ms']['largest']:.0f} ms), in effect after "
            f"{live['in_effect_ms']['p50']:.0f} ms (maximum {live['in_effect_ms']['largest']:.0f} "
            f"ms); process memory {live['resident_gb']:.1f} GB",
        ],
        [
            f"name search over {search['names']:,} names",
            f"p50 {search['p50_ms']:.1f} ms, p99 {search['p99_ms']:.1f} ms; index built in "
            f"{search['build_s']:.0f} s",
        ],
    ]
    on_gpu = f" and {device['load']['ratio']:.2f} × on the GPU" if device else ""
    remark = (
        "WN18RR: 10% of the entities, dimension 64, 6 layers, random parameters; the shipped run "
        "has dimension 128 and 8 layers. Batching raises the throughput by "
        f"{loads['ratio']:.2f} × on the CPU{on_gpu}. Times include contention with other jobs."
    )
    return (
        table(["test", "result"], rows) + "\n\n" + remark + "\n\n" + machine(value, shipped, soak)
    )


def _amount(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def scale() -> str:
    value = result("scale")
    head = ["graph", "facts", "entities", "largest degree", "text", "saved graph", "build"]
    head += ["peak memory", "open", "first query", "query", "resident memory"]
    rows = [
        [
            row["graph"],
            f"{row['facts']:,}",
            f"{row['entities']:,}",
            f"{row['largest_degree']:,}",
            f"{row['text_gb']:.2f} GB",
            f"{row['saved_gb']:.2f} GB",
            f"{row['build_seconds']:,.0f} s",
            f"{row['build_peak_gb']:.2f} GB",
            f"{row['open_ms']:,.0f} ms",
            f"{row['first_question_ms']:,.0f} ms",
            f"{row['predict_ms']:,.0f} ms",
            f"{row['resident_gb']:.2f} GB",
        ]
        for row in value["rows"]
    ]
    remark = (
        f"Medians over {value['questions']} queries with batch size 1 and "
        f"{value['max_entities']:,} entities each, sampled locally. The page cache was cold: "
        "`open` and the first query wait for the disk."
    )
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(*stamps(value))


def scale_sampling() -> str:
    value = result("scale")
    head = ["graph", "facts", "warm", "cold", "CPU time, median", "CPU time, p99"]
    head += ["mean recall", "lowest recall", "queries for recall", "subgraph edges"]
    head += ["whole graph", "method of `auto`", "measured"]
    rows = [
        [
            row["graph"],
            f"{row['facts']:,}",
            f"{row['sample_ms']:.1f} ms",
            f"{row['sample_cold_ms']:.1f} ms",
            _milliseconds(row.get("sample_cpu_ms")),
            _milliseconds(row.get("sample_p99_cpu_ms")),
            _amount(row["recall"], 3),
            _amount(row["least_recall"], 3),
            str(row.get("recall_queries", 8)),
            f"{row['subgraph_edges']:,}",
            f"{_amount(row['whole_graph_ms'], 0)} ms",
            row["method_of_auto"],
            measured(row),
        ]
        for row in value["rows"]
    ]
    slowest = [
        f"{row['graph']}, {row['facts']:,} facts: {row['slowest']['cpu_ms']:.1f} ms, "
        f"{row['slowest']['degree']:,} neighbours"
        + (
            f", {row['slowest']['push_edges']:,} edges read"
            if row["slowest"]["push_edges"] is not None
            else ""
        )
        for row in value["rows"]
        if "slowest" in row
    ]
    if not slowest:
        return table(head, rows)
    return table(head, rows) + "\n\nThe slowest queries: " + "; ".join(slowest) + "."


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


GROWTH_LABELS = {
    "build_seconds": "build time",
    "build_peak_gb": "peak memory of the build",
    "saved_gb": "disk space",
    "open_ms": "time to open",
    "sample_ms": "local sampling, warm",
    "sample_cold_ms": "local sampling, cold",
    "sample_cpu_ms": "local sampling, CPU time",
    "predict_ms": "time per query",
    "predict_cpu_ms": "CPU time per query",
    "resident_gb": "resident memory",
    "whole_graph_ms": "sampling on the whole graph",
}


def scale_growth() -> str:
    growth = result("scale")["growth"]
    rows = [
        [label, *(_amount(growth[graph].get(key), 2) for graph in growth)]
        for key, label in GROWTH_LABELS.items()
    ]
    return table(["exponent", *growth], rows)


def scale_wikidata() -> str:
    estimates = result("scale")["wikidata"]
    first = next(iter(estimates.values()))
    largest = "from the graph of {from_facts:,} facts"
    labels = {
        "build_hours": ("build time", "{:,.1f} h"),
        "saved_gb": ("disk space", "{:,.0f} GB"),
        "scratch_gb": ("scratch memory of push", "{:,.1f} GB"),
        "sample_ms": ("sampling, per query", "{:,.0f} ms"),
        "predict_ms": ("time per query", "{:,.0f} ms"),
    }
    rows = [
        [label, *(form.format(e[key]) if key in e else "–" for e in estimates.values())]
        for key, (label, form) in labels.items()
    ]
    head = [f"{first['facts']:,} facts, estimated"]
    head += [f"{graph}, {largest.format(**e)}" for graph, e in estimates.items()]
    assumptions = "\n".join(f"- {text}" for text in ASSUMPTIONS)
    return table(head, rows) + "\n\nAssumptions:\n\n" + assumptions


def paper() -> str:
    """All tables of the paper that were measured, in the paper's order."""
    import oneshot.experiments.paper
    from oneshot.experiments.tables.report import as_markdown, read_report

    parts, missing = [], []
    for name, one in oneshot.experiments.paper.TABLES.items():
        report = read_report(RESULTS / "paper" / f"{name}.json")
        if report is None:
            missing.append(f"`{name}`")
        else:
            # The drawings are on a page of their own.
            shown = tuple(column for column in one.columns if column.figure != "drawing")
            one = dataclasses.replace(one, columns=shown)
            parts.append(as_markdown(one, report, f"## `{name}`:", "images/paper/"))
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def paper_cells() -> str:
    """The numeric cells of the paper's tables about the data sets at hand, by table."""
    import oneshot.experiments.paper
    from oneshot.experiments.paper.cells import count_cells, gpu_seconds
    from oneshot.experiments.tables.report import read_report

    reports = {
        name: read_report(RESULTS / "paper" / f"{name}.json")
        for name in oneshot.experiments.paper.TABLES
    }
    rows = {name: report["rows"] for name, report in reports.items() if report is not None}
    shown = {name: oneshot.experiments.paper.TABLES[name].shown(rows[name]) for name in rows}
    counts = count_cells(shown)
    lines = [
        [
            f"`{count.table}`",
            f"{count.cells}",
            f"{count.measured}",
            f"{count.published or '–'}",
            ", ".join(f"{data} {cells}" for data, cells in count.missing.items()) or "–",
            f"{count.elsewhere or '–'}",
            f"{gpu_seconds(rows.get(count.table, ())):,.0f}",
        ]
        for count in counts
    ]
    whole = [
        sum(count.cells for count in counts),
        sum(count.measured for count in counts),
        sum(count.published for count in counts),
        sum(count.elsewhere for count in counts),
    ]
    missing = whole[0] - whole[1] - whole[2]
    seconds = sum(gpu_seconds(rows.get(count.table, ())) for count in counts)
    lines.append(
        ["all", *(f"{n}" for n in whole[:3]), f"{missing}", f"{whole[3]}", f"{seconds:,.0f}"]
    )
    others = {
        name: gpu_seconds(rows[name]) for name in rows if name not in {c.table for c in counts}
    }
    more = ", ".join(f"`{name}` {took:,.0f}" for name, took in others.items() if took)
    head = ["table", "cells", "measured", "published only", "needs a GPU", "data not at hand"]
    head.append("GPU seconds")
    text = (
        f"{whole[1]} of {whole[0]} cells about WN18RR and NELL-995 ({whole[1] / whole[0]:.0%}) "
        f"have a measured counterpart; {whole[2]} are of systems that we have only as published. "
        "Cells that need a GPU are measured by `oneshot paper TABLE`. Data not at hand: YAGO3-10, "
        "whose part here is another graph, ogbl-biokg and ogbl-wikikg2."
    )
    if more:
        text += f" GPU seconds of tables without cells of the paper: {more}."
    return f"{table(head, lines)}\n\n{text}\n"


def importance() -> str:
    """How much each dimension of the search space contributed to the search on WN18RR."""
    value = result("search-WN18RR")
    found = sorted(value["importance"].items(), key=lambda item: -item[1])
    rows = [[f"`{name}`", f"{share:.1%}"] for name, share in found if share >= 0.0005]
    rest = [name for name, share in found if share < 0.0005]
    phase = value["phase_2"]
    text = (
        f"Of {value['trials']} trials; below 0.05%: {', '.join(f'`{n}`' for n in rest)}. The "
        "second phase of this search (`smaller`) needs "
        f"{phase['after']['entities']:,.0f} entities per "
        f"query instead of {phase['before']['entities']:,.0f}, at test MRR "
        f"{value['test']['mrr']:.4f} instead of {value['test_before']['mrr']:.4f}."
    )
    return f"{table(['dimension', 'importance'], rows)}\n\n{text}\n\n{machine(value)}\n"


def cases() -> str:
    """The gallery of the paper's queries: the drawings of each, side by side."""
    from oneshot.experiments.tables.report import read_report

    report = read_report(RESULTS / "paper" / "cases.json")
    if report is None:
        return "Not measured yet.\n"
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["data"], row["entity"], row["relation"]), []).append(row)
    right = sum(bool(rows[0].get("as_in_test")) for rows in groups.values())
    parts = [
        f"{right} of {len(groups)} queries have exactly the answers of the official test files."
    ]
    for data in dict.fromkeys(key[0] for key in groups):
        parts.append(f"## {data}")
        for (name, entity, relation), rows in groups.items():
            if name != data:
                continue
            rows.sort(key=lambda row: row["ratio"])
            head = [f"{row['ratio']:.1%} of the entities" for row in rows]
            text = [
                f"{row['entities']:,} entities, {row['facts']:,} facts, {row['held']} of "
                f"{row['answers']} answers"
                for row in rows
            ]
            drawn = [f"![{row['ratio']:.1%}](images/paper/{row['drawing']})" for row in rows]
            query = rows[0]["query"].replace("|", "\\|").replace("_", "\\_")
            parts.append(f"**{query}**, ids {entity} and {relation}")
            parts.append(table(head, [text, drawn]).replace("| --- | ---: |", "| --- | --- |"))
    machines = "\n\n".join(
        f"*{line}.*" for line in sources(row["hardware"] for row in report["rows"])
    )
    return "\n\n".join([*parts, machines]) + "\n"


def theorem() -> str:
    """The table, finding and plot of the theorem."""
    import oneshot.experiments.paper
    from oneshot.experiments.tables.report import as_markdown, read_report

    report = read_report(RESULTS / "paper" / "theorem.json")
    if report is None:
        return "Not measured yet.\n"
    one = oneshot.experiments.paper.TABLES["theorem"]
    lines = as_markdown(one, report, pictures="images/paper/").splitlines()
    return "\n".join(lines[2:]) + "\n"  # without the title


def ogb() -> str:
    """Predicted and measured cost on data of OGB's shape, and what follows for OGB's own."""
    values = [
        result(f"{name}-shape")
        for name in ("ogbl-biokg", "ogbl-wikikg2")
        if (RESULTS / f"{name}-shape.json").is_file()
    ]
    if not values:
        return "Not measured yet.\n"

    def cells(of: Callable[[dict[str, Any]], str]) -> list[str]:
        return [of(value) for value in values]

    def cost(value: dict[str, Any], figure: str, form: str, scale: float = 1.0) -> str:
        found, expected = value["measured"][figure], value["predicted"][figure]
        if found is None or expected is None:
            return "–"
        return f"{scale * found:{form}} ({scale * expected:{form}})"

    lines: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("data", lambda v: f"{v['data']}, {v['graph']['train']:,} facts"),
        ("edges per subgraph", lambda v: f"{v['measured']['edges']:,.0f}"),
        (
            "training, ms per query (predicted)",
            lambda v: cost(v, "seconds_per_query", ".2f", 1000),
        ),
        ("memory of the training, MB (predicted)", lambda v: cost(v, "megabytes", ",.0f")),
        (
            "evaluation, ms per query",
            lambda v: f"{1000 * v['measured']['evaluation_seconds_per_query']:.2f}",
        ),
        ("training here", lambda v: f"{v['measured']['trained_queries']:,} queries"),
        (
            "MRR among negatives, valid / test",
            lambda v: f"{v['scores']['valid']['mrr']:.3f} / {v['scores']['test']['mrr']:.3f}",
        ),
        ("MRR of a random order", lambda v: f"{v['scores']['test']['random_mrr']:.3f}"),
        ("evaluator", lambda v: v["scores"]["test"]["evaluator"]),
        ("OGB's data: training, predicted", lambda v: f"{v['ogb']['training_hours']:.1f} h"),
        ("OGB's data: test split, predicted", lambda v: f"{v['ogb']['test_hours']:.1f} h"),
    ]
    rows = [[label, *cells(of)] for label, of in lines]
    return table(["shape of", *cells(lambda v: v["name"])], rows) + "\n\n" + machine(*values) + "\n"


def tasks() -> str:
    value = result("tasks")
    head = ["task", "sources", "classes", "predictor", "accuracy", "lowest and highest"]
    head += ["validation", "CPU time"]
    rows = []
    for row in value["means"]:
        of = next(one for one in value["rows"] if one["task"] == row["task"])
        cells = [f"`{row['task']}`", f"{of['sources']:,}", f"{of['classes']}", row["predictor"]]
        cells += [f"{row['accuracy']:.3f}", f"{row['lowest']:.3f} to {row['highest']:.3f}"]
        cells += [f"{row['valid_accuracy']:.3f}", f"{row['cpu_seconds']:.1f} s"]
        rows.append(cells)
    seeds = min(row["seeds"] for row in value["means"])
    remark = f"Mean test accuracy over {seeds} seeds, each with its own split; CPU time of one."
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(value) + "\n"


def batch_prediction() -> str:
    value = result("batch-prediction")
    compared, shape = value["compared"], value["predictor"]
    rows = [
        ["queries", f"{value['questions']:,}"],
        ["queries without an answer", f"{value['unanswered']:,}"],
        ["queries with answers", f"{value['questions_with_answers']:,}"],
        ["answers written twice", f"{value['answers_twice']:,}"],
        ["parts", f"{value['parts']:,}"],
        ["parts finished before the kill", f"{value['parts_at_the_kill']:,}"],
        ["finished parts written again", f"{value['finished_parts_written_again']:,}"],
        [
            "queries with the same ranking as in a single process",
            f"{compared['same_answers_in_the_same_order']:,} of {compared['questions']:,}",
        ],
        [
            "scores that differ by more than 0.0001",
            f"{compared['different_scores']:,} of {compared['scores']:,}",
        ],
        ["time", f"{value['seconds']:,.0f} s"],
        ["memory of the main process", f"{value['peak_mb']['own']:,} MB"],
        ["memory per worker", f"{value['peak_mb']['worker']:,} MB"],
    ]
    remark = (
        f"A small predictor (dimension {shape['dim']}, {shape['num_layers']} layers, subgraphs of "
        f"{value['sampler']['max_entities']} entities). The worker was killed at "
        f"`{value['part_that_the_killed_worker_had_open']}`. The time includes contention with "
        f"other jobs (load average {value['load_15_minutes']:g})."
    )
    head = [f"{value['data']}, {value['workers']} workers, one killed halfway", "result"]
    return table(head, rows) + "\n\n" + remark + "\n\n" + machine(value)


def search() -> str:
    large, small = result("search-WN18RR"), result("search-umls")
    kills, workers = result("search-kills"), result("search-workers")
    phase, random = large["phase_2"], small["random_best"]
    minutes = [large["total_seconds"] / 60, small["wall_seconds"] / 60]
    others = ", ".join(f"{value:.4f}" for value in random)
    rows = [
        [
            f"WN18RR on a GPU, {large['trials']} trials, from the whole space",
            f"{minutes[0]:.1f} min in total; test MRR of the best after full training "
            f"{large['test_before']['mrr']:.4f}",
        ],
        [
            "phase 2 of this search",
            f"{phase['before']['entities']:,.0f} → {phase['after']['entities']:,.0f} entities per "
            f"query ({large['fewer']:.0%} fewer), test MRR {large['test']['mrr']:.4f}",
        ],
        [
            f"umls on 2 cores, {small['trials']} trials, both phases",
            f"{minutes[1]:.1f} min; best trial {small['best_value']:.4f}; best trials of "
            f"{len(random)} random searches {others} (median {small['random_median']:.4f}); test "
            f"MRR {small['test']['mrr']:.4f}",
        ],
        [
            "two Dask workers instead of one",
            f"{workers['search']['ratio']:.2f} of the time",
        ],
        [
            f"`kill -9` at {kills['kills']} points of a search of {kills['trials']} trials",
            f"{kills['finished_ones_repeated']} finished trials repeated, "
            f"{kills['finished_ones_lost']} lost",
        ],
    ]
    machines = f"{machine(large)}\n\n{machine(small)}"
    return table(["search", "result"], rows) + "\n\n" + machines


def search_goals() -> str:
    """Phase 2 with both goals, on each data set that has a result."""
    rows, machines = [], []
    for name in ("WN18RR", "umls"):
        if not (RESULTS / f"search-goals-{name}.json").is_file():
            continue
        value = result(f"search-goals-{name}")
        as_trained = {
            "after": value["smaller"]["before"],
            "valid": value["smaller"]["valid_before"],
            "test": value["smaller"]["test_before"],
        }
        goals = {"as trained": as_trained, "smaller": value["smaller"], "better": value["better"]}
        rows += [
            [
                name,
                goal,
                f"{found['after']['entities']:,.0f}",
                f"{found['valid']['mrr']:.4f}",
                f"{found['test']['mrr']:.4f}",
            ]
            for goal, found in goals.items()
        ]
        machines.append(machine(value))
    head = ["phase 2", "`--goal`", "entities per query", "valid MRR", "test MRR"]
    return table(head, rows) + "\n\n" + "\n\n".join(machines)


def surrogates() -> str:
    """The main finding of the comparison of surrogates; docs/paper.md has the table."""
    import oneshot.experiments.paper
    from oneshot.experiments.tables.report import read_report

    report = read_report(RESULTS / "paper" / "search.json")
    finding = (
        "" if report is None else oneshot.experiments.paper.TABLES["search"].finding(report["rows"])
    )
    return finding or "Not measured yet."


def compare(name: str) -> str:
    if not (RESULTS / f"compare-{name}.json").is_file():
        return "Not measured yet."
    value = result(f"compare-{name}")
    head = [
        value["data"],
        "valid MRR",
        "test MRR",
        "Hits@1",
        "Hits@3",
        "Hits@10",
        "parameters",
        "training time",
        "epochs",
        "time per 1,000 queries",
        "peak memory",
        "inductive",
    ]
    rows = []
    for row in value["rows"]:
        if "failure" in row:
            rows.append([row["title"], row["failure"], *["–"] * (len(head) - 2)])
            continue
        peak = row.get("peak_megabytes")
        rows.append(
            [
                row["title"],
                *(f"{row[key]:.3f}" for key in ("valid_mrr", "mrr", "hits@1", "hits@3", "hits@10")),
                f"{row['parameters']:,}",
                f"{row['seconds']:,.0f} s",
                str(row.get("epochs", "–")),
                f"{row['seconds_per_1000_queries']:.2f} s",
                "–" if peak is None else f"{peak:,.0f} MB",
                "yes" if row["inductive"] else "no",
            ]
        )
    settings = value["settings"]
    ours = settings["config"]
    remark = (
        f"Embedding models have {settings['dim']} numbers per entity and are trained until five "
        "validations in a row improve the MRR by less than 0.2%. "
        f"{value['finding']} oneshot uses {ours['predictor']['num_layers']} layers, dimension "
        f"{ours['predictor']['dim']}, {ours['sampler']['entity_ratio']:.0%} of the entities and "
        f"{ours['training']['epochs']} epochs."
    )
    return table(head, rows) + f"\n\n{remark}\n\n" + machine(value)


# Zero-shot test MRR of TRIX, rerun by LckyLke/sotaKGFMs with pessimistic ranks of ties.
TRIX_ZERO_SHOT = {
    "zero-shot/FB-50": 0.3368,
    "zero-shot/WK-50": 0.1657,
    "zero-shot/NL-50": 0.4053,
    "zero-shot/NL-0": 0.3859,
    "inductive/fb237_v1_ind": 0.5148,
    "inductive/fb237_v2_ind": 0.5250,
    "inductive/WN18RR_v1_ind": 0.6986,
    "inductive/WN18RR_v2_ind": 0.6804,
    "inductive/nell_v1_ind": 0.8061,
    "inductive/nell_v2_ind": 0.5704,
}


def zero_shot() -> str:
    """The run in the package, on the test splits."""
    value = result("zero-shot")["rows"]
    value = [row for row in value if row["run"] == "foundation" and row["split"] == "test"]
    order = list(TRIX_ZERO_SHOT)
    value.sort(key=lambda row: order.index(row["data"]) if row["data"] in order else len(order))
    rows = [
        [
            row["data"].split("/")[-1],
            f"{row['queries']:,}",
            f"{row['coverage']:.3f}",
            f"{row['mrr']:.4f}",
            f"{row['mrr_pessimistic']:.4f}",
            f"{row['hits@10']:.4f}",
            f"{row['baseline_mrr']:.4f}",
            f"{TRIX_ZERO_SHOT[row['data']]:.4f}" if row["data"] in TRIX_ZERO_SHOT else "–",
        ]
        for row in value
    ]
    head = ["data", "queries", "coverage", "MRR", "MRR, ties pessimistic", "Hits@10"]
    head += ["frequency baseline MRR", "TRIX MRR"]
    return table(head, rows) + "\n\n" + machine(*value)


def zero_shot_in_short() -> str:
    """The zero-shot MRR beside trained embedding models, on graphs of other sources."""
    rows = {row["data"]: row for row in result("zero-shot")["rows"] if row["split"] == "test"}
    trained = [row for row in result("first-training")["rows"] if row["model"] != "oneshot"]
    parts = []
    for name in ("UMLS", "Family", "NELL-995", "zero-shot/Hetionet-part"):
        peers = [row for row in trained if row["data"] == name]
        best = max(peers, key=lambda row: row["valid_mrr"])
        parts.append(
            f"{rows[name]['mrr']:.3f} on {name.split('/')[-1]} ({best['mrr']:.3f} {best['model']})"
        )
    return (
        "Test MRR of the pre-trained run, which has seen no facts of these graphs (in brackets, "
        "that of the best of the embedding models that we have trained on them, by validation): "
        f"{', '.join(parts)} "
        "([zero-shot use](docs/foundation.md))."
    )


def judged(job: str) -> list[dict[str, Any]]:
    """The rows of one job on facts; see `benchmarks/judged_facts.py`."""
    return [row for row in result("judged-facts")["rows"] if row["job"] == job]


def discovered() -> str:
    rows, notes = [], []
    for row in judged("discover"):
        for name, part in row["rows"].items():
            figures = [part["precision@100"], part["precision@1000"], part["share_found"]]
            rows.append([row["data"], name, *(f"{figure:.3f}" for figure in figures)])
        used = row["used"]
        notes.append(
            f"{row['data']}: {row['hidden']:,} hidden facts; {row['listed']:,} facts listed in "
            f"{used['seconds']:.0f} s ({used['cpu_seconds']:.0f} s of CPU time, "
            f"{row['threads']} thread(s)), {used['peak_gb']:.1f} GB of memory at most. The "
            f"probabilities of the listed facts add up to {row['expected']:.0f}; {row['true']:,} "
            f"of them are in the validation or test split{_peer(row)}."
        )
    head = ["data", "by", "precision of the first 100", "of the first 1,000", "hidden facts found"]
    return "\n\n".join([table(head, rows), *notes, machine(*judged("discover"))])


def _peer(row: dict[str, Any]) -> str:
    """How a peer was trained, as the end of a sentence."""
    if "peer" not in row:
        return ""
    peer = row["peer"]
    return (
        f"; {peer['model']}: {peer['epochs']} epochs in {peer['cpu_seconds']:.0f} s of CPU time, "
        f"valid MRR {peer['valid_mrr']:.3f}"
    )


def audited() -> str:
    rows = []
    for row in judged("audit"):
        for name in row["area"]["random"]:
            areas = [row["area"][kind][name] for kind in ("random", "near")]
            rows.append([f"{row['data']} ({row['facts']:,} facts)", name])
            rows[-1] += [f"{area:.3f}" for area in areas]
    notes = [
        f"{row['data']}: {row['wrong']['random']:,} wrong facts of each type, training of "
        f"{row['minutes']:g} minutes, audit {row['used']['seconds']:.0f} s "
        f"({row['used']['cpu_seconds']:.0f} s of CPU time)" + _peer(row) + "."
        for row in judged("audit")
    ]
    head = ["data", "by", "random wrong facts", "near wrong facts"]
    return "\n\n".join([table(head, rows), *notes, machine(*judged("audit"))])


def related() -> str:
    rows = [
        [
            f"{row['data']} ({row['relations']} relations)",
            f"{row['mrr']:.3f}",
            f"{row['hits@1']:.3f}",
            f"{row['frequency_mrr']:.3f}",
            f"{row['seconds_per_pair']:.2f} s",
            f"{row['cpu_seconds_per_pair']:.2f} s",
            f"{row['pairs']}",
        ]
        for row in judged("relations")
    ]
    head = ["data", "MRR", "Hits@1", "MRR by frequency", "time per pair", "CPU time", "pairs"]
    return table(head, rows) + "\n\n" + machine(*judged("relations"))


def calibrated() -> str:
    value = result("calibration")
    rows = [
        [
            row["data"],
            *(f"{row[way]['error']:.4f}" for way in ("before", "after")),
            *(_or_dash(row[way]["relation_error"]) for way in ("before", "after")),
            f"{row['relations']}",
        ]
        for row in value["rows"]
    ]
    head = ["data", "one softmax", "now", "per relation, one softmax", "per relation, now"]
    head += ["relations with 50 test facts"]
    return table(head, rows) + "\n\n" + machine(*value["rows"])


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def zero_shot_subgraphs() -> str:
    """MRR and time of the foundation run by the share of the entities in a subgraph."""
    value = [row for row in result("zero-shot-subgraphs")["rows"] if row["run"] == "foundation"]
    shares = sorted({row["share"] for row in value})
    rows = []
    for data, device in dict.fromkeys((row["data"], row["device"]) for row in value):
        here = [row for row in value if (row["data"], row["device"]) == (data, device)]
        mine = {row["share"]: row for row in here}
        # Elapsed time on a GPU; CPU time does not depend on what else the machine does.
        time = "seconds_per_query" if device == "cuda" else "cpu_per_query"
        cells = [
            f"{row['mrr']:.3f}, {row['coverage']:.3f}, {1000 * row[time]:.0f} ms"
            if (row := mine.get(share)) is not None
            else "–"
            for share in shares
        ]
        count = next(iter(mine.values()))["queries"]
        place = "GPU" if device == "cuda" else "one core"
        rows.append([data.split("/")[-1], place, f"{count:,}", *cells])
    head = ["MRR, coverage, time per query", "on", "queries"]
    head += [f"{share:.0%} of the entities" for share in shares]
    return table(head, rows) + "\n\n" + machine(*value)


def foundation_cost() -> str:
    value = result("foundation-cost")["rows"]
    rows = []
    for row in value:
        place = "GPU" if row["device"] == "cuda" else f"{row['hardware']['cores']} cores"
        size = f"{row['facts']:,} facts, {row['entities']:,} entities"
        if row["name"] == "first-answer":
            what = "command, from start to answer"
            seconds = sorted(row["seconds"])
            times = f"{seconds[0]:.1f} to {seconds[-1]:.1f} s (CPU {max(row['cpu']):.1f} s)"
            name = "TSV file"
        else:
            what = f"query, median of {row['queries']}"
            times = (
                f"{1000 * row['median_seconds']:.0f} ms (CPU {1000 * row['median_cpu']:.0f} ms, "
                f"slowest {1000 * row['max_seconds']:.0f} ms)"
            )
            ready = row["load_seconds"] + row["prepare_seconds"]
            name = f"`{row['name']}`, ready after {ready:.0f} s"
        rows.append([f"{name}: {size}", place, what, times, f"{row['peak_mb']:,} MB"])
    head = ["graph", "on", "what", "time", "peak memory"]
    return table(head, rows) + "\n\n" + machine(*value)


def fine_tuning() -> str:
    """Fine-tuned from the foundation run / trained from scratch, for each time budget."""
    if not (RESULTS / "fine-tuning.json").is_file():
        return "Not measured yet.\n"
    value = result("fine-tuning")["rows"]
    keys = sorted({(row["device"], row["minutes"]) for row in value})
    rows = []
    for data in dict.fromkeys(row["data"] for row in value):
        cells = []
        for device, minutes in keys:
            key = (data, device, minutes)
            both = []
            for start in ("foundation", "scratch"):
                found = [
                    row["mrr"]
                    for row in value
                    if (row["data"], row["device"], row["minutes"]) == key and row["start"] == start
                ]
                both.append(f"{sum(found) / len(found):.3f}" if found else "–")
            cells.append(" / ".join(both))
        name = data.split("/")[-1]
        rows.append([f"{name}, asked on {name}_ind" if "inductive" in data else name, *cells])
    places = {"cpu": "2 cores", "cuda": "GPU"}
    head = ["test MRR, fine-tuned / from scratch"]
    head += [f"{minutes:g} min on {places[device]}" for device, minutes in keys]
    return table(head, rows) + "\n\n" + machine(*value)


def first_training() -> str:
    """Trainings with nothing set but the time, beside the frequency baseline and other models."""
    rows, kept = [], []
    asked = [row for row in result("first-training")["rows"] if not row["busy"]]
    ours = [row for row in asked if row["model"] == "oneshot"]
    for data in dict.fromkeys(row["data"] for row in ours):
        mine = [row for row in ours if (row["data"], row["device"]) == (data, "cpu")]
        on_gpu = [row for row in ours if (row["data"], row["device"]) == (data, "cuda")]
        others = [row for row in asked if row["data"] == data and row["model"] != "oneshot"]
        best = max((row for row in others if "mrr" in row), key=lambda row: row["valid_mrr"])
        expected = [_mean_of(mine, name) for name in ("expected_coverage", "coverage")]
        rows.append(
            [
                data.split("/")[-1],
                f"**{_with_spread(mine)}**",
                f"{_mean_of(mine, 'frequency_mrr'):.3f}",
                f"{best['mrr']:.3f} {best['model']}",
                _with_spread(on_gpu) if on_gpu else "–",
                f"{max(row['wall_seconds'] for row in mine):.0f} s",
                " / ".join(f"{value:.3f}" for value in expected),
            ]
        )
        kept += [*mine, *on_gpu, *others]
    head = ["data", "10 minutes, 2 cores", "frequency", "best other model", "5 minutes, H200"]
    head += ["longest time, 2 cores", "coverage, expected / test"]
    remark = (
        "Test MRR; mean and standard deviation over seeds, whose number is in brackets. Best other "
        f"model: of {_peers_of(asked)}, trained by PyKEEN on a GPU "
        "until they stopped improving, the one with the highest validation MRR. Each training "
        "of ours on two cores had them to itself; some ran on a machine whose other cores trained "
        "as well, and some of those on the H200 shared it. Earlier revisions had other plans: "
        "those of 2026-11-16, and some of 2026-11-18, without factors."
    )
    return "\n\n".join([table(head, rows), remark, machine(*kept)])


def first_training_in_short() -> str:
    """How many graphs a training with nothing set is ahead on."""
    asked = [row for row in result("first-training")["rows"] if not row["busy"]]
    ahead = count = 0
    for data in {row["data"] for row in asked}:
        here = [row for row in asked if row["data"] == data]
        mine = [row for row in here if (row["model"], row["device"]) == ("oneshot", "cpu")]
        others = [row["mrr"] for row in here if row["model"] != "oneshot"]
        if mine and others:
            count += 1
            ahead += _mean_of(mine, "mrr") > max(others)
    return (
        "`oneshot train DATA`, with nothing set, reaches a higher test MRR in 10 minutes on two "
        f"cores on {ahead} of {count} graphs than embedding models in PyKEEN that were trained on "
        f"a GPU without a time limit: {_peers_of(asked)} ([table](docs/plan.md#measured))."
    )


def _peers_of(rows: list[dict[str, Any]]) -> str:
    """The other models, each with the number of graphs that it was measured on."""
    titles = {"complex": "ComplEx", "conve": "ConvE", "distmult": "DistMult", "rotate": "RotatE"}
    parts = []
    for model in sorted({row["model"] for row in rows if row["model"] != "oneshot"}):
        count = len({row["data"] for row in rows if row["model"] == model})
        parts.append(f"{titles.get(model, model)} ({count} graphs)")
    return ", ".join(parts).replace("(1 graphs)", "(1 graph)")


def _mean_of(rows: list[dict[str, Any]], name: str) -> float:
    return float(statistics.mean(row[name] for row in rows))


def _with_spread(rows: list[dict[str, Any]]) -> str:
    """Mean test MRR, and the standard deviation and the number of seeds if there are several."""
    found = [row["mrr"] for row in rows]
    if len(found) == 1:
        return f"{found[0]:.3f} (1)"
    return f"{statistics.mean(found):.3f} ± {statistics.stdev(found):.3f} ({len(found)})"


TABLES: dict[str, Callable[[], str]] = {
    "first-training": first_training,
    "first-training-in-short": first_training_in_short,
    "discover": discovered,
    "audit": audited,
    "relations": related,
    "calibration": calibrated,
    "zero-shot": zero_shot,
    "paper": paper,
    "paper-cells": paper_cells,
    "search-importance": importance,
    "theorem": theorem,
    "cases": cases,
    "tasks": tasks,
    "ogb": ogb,
    "coverage": coverage,
    "sampler": sampler,
    "sampler-gpu": sampler_gpu,
    "push": push,
    "reading": reading,
    "small-graphs": small_graphs,
    "inductive": inductive,
    "large-graph": large_graph,
    "recipes": recipes,
    "overview": overview,
    "cpu-training": cpu_training,
    "predictor-gpu": predictor_gpu,
    "explanations": explanations,
    "explanations-in-short": explanations_in_short,
    "zero-shot-in-short": zero_shot_in_short,
    "explanations-foundation": explanations_of_foundation,
    "zero-shot-subgraphs": zero_shot_subgraphs,
    "foundation-cost": foundation_cost,
    "fine-tuning": fine_tuning,
    "serve": serve,
    "edge-limit": edge_limit,
    "live-facts": live_facts,
    "scale-plan": scale_plan,
    "scale": scale,
    "scale-sampling": scale_sampling,
    "scale-growth": scale_growth,
    "scale-wikidata": scale_wikidata,
    "batch-prediction": batch_prediction,
    "search": search,
    "search-goals": search_goals,
    "surrogates": surrogates,
    "compare-umls": partial(compare, "umls"),
    "compare-Family": partial(compare, "Family"),
}


def main() -> None:
    check = "--check" in sys.argv
    stale = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        old = page.read_text()
        new = MARK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", old)
        if new != old:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(new)
    if check and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run python scripts/write_tables.py")
    print("up to date" if not stale else f"wrote {', '.join(stale)}")


if __name__ == "__main__":
    main()
