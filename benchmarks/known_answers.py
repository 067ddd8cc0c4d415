"""Zero-shot MRR by how many answers of a query the graph already holds, on validation splits.

    python -m benchmarks.known_answers [RUN] [--data inductive/nell_v1 ...] [--limit 1500]

RUN is `foundation` by default. The graph is the training split, the filter training and validation
facts; test facts are not read for anything. A query of a hub has many known answers, which are
filtered; the rest are entities that hardly differ from each other. Beside the MRR of the predictor
stands that of the sampler's score alone, and that of a random order of the candidates. Rows are
written to `results/known-answers.json`.
"""

import argparse
from typing import Any

import torch
from benchmarks.common import write_result

from oneshot.data.load import Dataset, both_directions, load
from oneshot.ranking import KnownFacts, filtered_ranks
from oneshot.runs.run import Run

DATA = ("inductive/nell_v1", "inductive/fb237_v1", "zero-shot/FB-50", "zero-shot/WK-50")
GROUPS = ((0, 1), (1, 3), (3, 10), (10, 50), (50, 10**9))
_BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", default="foundation")
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--limit", type=int, default=1500, help="queries per data set")
    options = parser.parse_args()
    rows = []
    for name in options.data:
        rows += measure(Run.open(options.run), load(name), options.limit)
        write_result("known-answers", {"run": options.run, "split": "valid", "rows": rows})


def measure(run: Run, data: Dataset, limit: int) -> list[dict[str, Any]]:
    """A row per group of queries."""
    graph, count = data.graph, data.graph.num_relations
    reasoner = run.reasoner_on(graph)
    queries, answers = both_directions(data.valid, count)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:limit]
    queries, answers = queries[order], answers[order]
    facts = torch.cat([data.train, data.valid])
    known = KnownFacts(facts, graph.num_entities, count)
    found: dict[str, list[torch.Tensor]] = {"mrr": [], "sampler_mrr": [], "random_mrr": []}
    for asked, wanted in zip(queries.split(_BATCH), answers.split(_BATCH), strict=True):
        batch, scores = reasoner.reason(asked)
        nothing = torch.zeros_like(scores)
        for name, order_by in zip(found, (scores, batch.score.float(), nothing), strict=True):
            ranks = filtered_ranks(batch, order_by, wanted, known, graph.num_entities)
            found[name].append(1 / ranks.realistic)
    values = {name: torch.cat(parts) for name, parts in found.items()}
    held = torch.tensor([len(reasoner.known_answers(*query)) for query in queries.tolist()])
    rows = []
    for least, end in GROUPS:
        mine = (held >= least) & (held < end)
        if not bool(mine.any()):
            continue
        means = {name: round(float(value[mine].mean()), 4) for name, value in values.items()}
        row = {"data": data.name, "known": [least, end - 1], "queries": int(mine.sum()), **means}
        print(row, flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
