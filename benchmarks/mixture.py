"""MRR of the mean score of several runs, on validation queries: how much do they complement each
other?

    python -m benchmarks.mixture RUN RUN ... [--most 3] [--limit 4000] [--device auto] [--out FILE]

All runs reason on the subgraphs of the first one, without factors, and their scores are added
entity by entity; they must be trained on the same data set. Each combination of up to `--most` runs
is a row. Runs that differ in more than their seed (another message, another aggregate) make other
mistakes, so their mean may gain more than that of runs that differ in the seed alone. Prints the
rows, and writes them as JSON with `--out`.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch

from oneshot.data.dataset import both_directions
from oneshot.experiments.bench.measure import hardware
from oneshot.ranking import KnownFacts, filtered_ranks
from oneshot.runs.run import Run
from oneshot.system.devices import find_device
from oneshot.system.files import write_json

_BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=3, help="runs of a combination")
    parser.add_argument("--limit", type=int, default=4000, help="validation queries")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device(options.device)
    found = mixtures(options.runs, options.most, options.limit, device)
    for row in found:
        print(f"{row['mrr']:.4f}  {' + '.join(row['runs'])}")
    if options.out is not None:
        write_json(options.out, {"rows": found, "hardware": hardware(device)})


def mixtures(
    paths: list[Path], most: int, limit: int, device: torch.device
) -> list[dict[str, Any]]:
    """A row per combination: its runs and its MRR."""
    runs = [Run.open(path) for path in paths]
    data = runs[0].data
    reasoners = [run.reasoner_on(data.graph).to(device) for run in runs]
    for reasoner in reasoners:
        reasoner.factors = None
    graph = reasoners[0].graph
    known = KnownFacts(data.known, graph.num_entities, graph.num_relations).to(device)
    queries, answers = both_directions(data.valid, graph.num_relations)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:limit]
    queries, answers = queries[order].to(device), answers[order].to(device)
    numbers = range(len(runs))
    chosen = [c for size in range(1, most + 1) for c in itertools.combinations(numbers, size)]
    total = dict.fromkeys(chosen, 0.0)
    for asked, wanted in zip(queries.split(_BATCH), answers.split(_BATCH), strict=True):
        batch = reasoners[0].sampler.sample(graph, asked)
        scores = [reasoner.scores(batch) for reasoner in reasoners]
        for members in chosen:
            mean = torch.stack([scores[member] for member in members]).mean(0)
            ranks = filtered_ranks(batch, mean, wanted, known, graph.num_entities)
            total[members] += float((1 / ranks.realistic).sum())
    return [
        {"runs": [paths[member].name for member in members], "mrr": value / len(queries)}
        for members, value in total.items()
    ]


if __name__ == "__main__":
    main()
