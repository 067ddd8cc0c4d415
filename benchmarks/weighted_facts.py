"""Whether weights of facts help against wrong facts in the graph.

    python -m benchmarks.weighted_facts [DATA ...] [--entity-ratio 0.03] [--wrong 1.0] [--epochs 4]
        [--seeds 3]

Random wrong facts are added to the training facts. Every fact gets a confidence: of a right fact
drawn from Beta(5, 2), of a wrong one from Beta(2, 5), so that the two overlap. Three trainings with
the same settings and seed are compared: on the right facts alone, on all facts without weights, and
on all facts with their confidence as weight. Validation and test facts are those of the data set,
and ranks are filtered by the right facts only. Wrong facts are asked in training like right ones.
"""

import argparse
import statistics
from typing import Any

import torch
from benchmarks.common import write_result
from torch import Tensor

from oneshot.config import PredictorConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.data.load import load
from oneshot.evaluation.evaluate import evaluate
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.training.trainer import fit

RIGHT, WRONG = (5.0, 2.0), (2.0, 5.0)
PREDICTOR = PredictorConfig(
    dim=16,
    num_layers=4,
    attention_dim=5,
    aggregate="pna",
    activation="relu",
    initial="relational",
    shortcut=True,
    gate=False,
    norm=True,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=["world"])
    parser.add_argument("--entity-ratio", type=float, default=0.03)
    parser.add_argument("--wrong", type=float, default=1.0, help="wrong facts per right fact")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=1500, help="training queries per epoch")
    parser.add_argument("--limit", type=int, default=600, help="queries of a split, for metrics")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.data:
        for seed in range(options.seeds):
            for arm, data in arms(load(name), options.wrong, seed).items():
                rows.append(
                    {"data": name, "seed": seed, "arm": arm} | measured(data, seed, options)
                )
                print(rows[-1], flush=True)
            write_result("weighted-facts", {**vars(options), "means": means(rows), "rows": rows})


def arms(data: Dataset, wrong: float, seed: int) -> dict[str, Dataset]:
    """The data sets that are compared."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # for the distributions
    added = wrong_facts(data, int(wrong * len(data.train)), generator)
    facts = torch.cat([data.train, added])
    drawn = [
        torch.distributions.Beta(*shape).sample((len(some),))
        for shape, some in ((RIGHT, data.train), (WRONG, added))
    ]
    weights = torch.cat(drawn).clamp(min=1e-3)
    graphs = {
        "right facts": data.graph,
        "all facts": KnowledgeGraph.from_facts(facts, data.entities, data.relations),
        "all facts, weighted": KnowledgeGraph.from_facts(
            facts, data.entities, data.relations, weights
        ),
    }
    return {
        arm: Dataset(data.name, graph, data.valid, data.test, true_facts=data.known)
        for arm, graph in graphs.items()
    }


def wrong_facts(data: Dataset, count: int, generator: torch.Generator) -> Tensor:
    """Distinct random facts that no split has, [count, 3]."""
    graph = data.graph
    known = KnownFacts(data.known, graph.num_entities, graph.num_relations)
    found = data.train[:0]
    while len(found) < count:
        rows = torch.randint(len(data.train), (2 * count,), generator=generator)
        some = data.train[rows].clone()
        some[:, 2] = torch.randint(graph.num_entities, (len(some),), generator=generator)
        is_new = ~known.holds(some[:, :2], some[:, 2:]).squeeze(1) & (some[:, 0] != some[:, 2])
        found = torch.cat([found, some[is_new]]).unique(dim=0)
    order = torch.randperm(len(found), generator=generator)[:count]
    return found[order]


def measured(data: Dataset, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Metrics after a training."""
    torch.manual_seed(seed)
    predictor = Predictor(PREDICTOR, data.graph.num_relations)
    predictor.engine = "plain"  # the same operations for all of them, on every device
    reasoner = Reasoner(data.graph, PPRSampler(options.entity_ratio), predictor)
    asked = 2 * 0.25 * data.graph.num_facts
    config = TrainingConfig(
        epochs=options.epochs,
        batch_size=32,
        learning_rate=3e-3,
        fact_ratio=0.75,
        schedule="cosine",
        clip=1.0,
        query_share=min(1.0, options.queries / asked),
        valid_limit=100,
        seed=seed,
    )
    fit(reasoner, data, config)
    found: dict[str, Any] = {}
    for split in ("valid", "test"):
        report = evaluate(
            reasoner, data.facts(split), known=data.known, limit=options.limit, seed=0
        ).as_dict()
        found |= {f"{split}_{name}": report[name] for name in ("mrr", "hits@10", "coverage")}
    return found


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over the seeds, for each data set and arm."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["arm"]), []).append(row)
    return [
        {"data": name, "arm": arm}
        | {key: statistics.mean(row[key] for row in some) for key in some[0] if "_" in key}
        for (name, arm), some in groups.items()
    ]


if __name__ == "__main__":
    main()
