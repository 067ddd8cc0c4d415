"""How often the first path of an explanation is a true rule and matters, on family worlds.

    python -m benchmarks.explanations

Each reasoner is trained on a world of its own; of the held-out facts that it answers correctly
(rank 1, filtered, both directions) some are drawn and explained. The run `foundation` explains its
own correct answers on the same worlds, without training.
`oneshot.experiments.bench.rules` defines what counts as a true rule.

Deletion check: the facts of the first path are removed from the subgraph, and beside that as many
facts drawn at random from those that lie on some path to the answer. The path passes if the score
of the answer falls by more than the mean fall of the random ones.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from benchmarks.common import write_result

from oneshot.config import PredictorConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.data.load import family
from oneshot.experiments.bench.rules import RELIABLE, RuleBook, Truth, right_answers
from oneshot.predictor import Predictor
from oneshot.reasoner.explanation import Explanation, without
from oneshot.reasoner.paths import hops
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.run import Run
from oneshot.samplers import PPRSampler
from oneshot.training.trainer import fit

PEOPLE, MAX_ENTITIES, EPOCHS, EXPLAINED = 600, 80, 5, 100
SEEDS = (0, 1, 2)  # of world, parameters, training and choice of facts
PREDICTORS: dict[str, dict[str, Any]] = {
    "RED-GNN messages, 3 layers": {"num_layers": 3},
    "RED-GNN messages, 4 layers": {"num_layers": 4},
    "NBFNet messages, no gate": {"num_layers": 3, "message": "nbfnet", "gate": False},
    "DRUM messages": {"num_layers": 3, "message": "drum"},
}
FOUNDATION = "foundation"
RANDOM_DELETIONS = 5  # per explanation


def main() -> None:
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    rows = [
        {"predictor": name, **measure(options, seed)}
        for name, options in [*PREDICTORS.items(), (FOUNDATION, None)]
        for seed in SEEDS
    ]
    value = {
        "data": f"family:{PEOPLE}",
        "max_entities": MAX_ENTITIES,
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "reliable": RELIABLE,
        "random_deletions": RANDOM_DELETIONS,
        "rows": rows,
    }
    write_result("explanations", value)


def measure(options: dict[str, Any] | None, seed: int) -> dict[str, Any]:
    """Train one reasoner, or take the foundation run if there are no options, and judge it."""
    started = time.perf_counter()
    data = family(PEOPLE, seed=seed)
    reasoner = pretrained(data) if options is None else trained(data, options, seed)
    prepared = time.perf_counter()
    queries, answers, right = right_answers(reasoner, data)
    rows = right.nonzero().squeeze(1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    chosen = rows[order[:EXPLAINED]]
    book = RuleBook(data)
    truths, deletions = [], []
    generator = torch.Generator().manual_seed(seed)
    for (entity, relation), answer in zip(
        queries[chosen].tolist(), answers[chosen].tolist(), strict=True
    ):
        explanation = reasoner.explain(entity, relation, answer)
        truths.append(book.truth_of(explanation, relation))
        deletions.append(deletion(reasoner, explanation, generator))
    result = {
        "options": options,
        "seed": seed,
        "hits@1": round(float(right.double().mean()), 4),
        "right": len(rows),
        "facts": len(truths),
        **{
            f"true_{sense}": round(sum(getattr(t, sense) for t in truths) / len(truths), 4)
            for sense in Truth._fields
        },
        **{
            name: round(sum(each[name] for each in deletions) / len(deletions), 4)
            for name in deletions[0]
        },
        "training_seconds": round(prepared - started, 1),
        "explaining_seconds": round(time.perf_counter() - prepared, 1),
    }
    print(result, flush=True)
    return result


def trained(data: Dataset, options: dict[str, Any], seed: int) -> Reasoner:
    torch.manual_seed(seed)
    config = PredictorConfig(dim=16, attention_dim=4, **options)
    predictor = Predictor(config, data.graph.num_relations)
    reasoner = Reasoner(data.graph, PPRSampler(max_entities=MAX_ENTITIES), predictor)
    training = TrainingConfig(
        epochs=EPOCHS,
        learning_rate=5e-3,
        fact_ratio=0.8,
        mask_known=True,
        valid_limit=100,
        seed=seed,
    )
    fit(reasoner, data, training)
    return reasoner


def pretrained(data: Dataset) -> Reasoner:
    settings = [f"sampler.max_entities={MAX_ENTITIES}"]
    return Run.open(FOUNDATION, settings).reasoner_on(data.graph)


def deletion(
    reasoner: Reasoner, explanation: Explanation, generator: torch.Generator
) -> dict[str, float]:
    """The outcome of the deletion check, each 0 or 1.

    `deletion_falls`: the score falls without the facts of the first path. `deletion_passed`: it
    falls by more than without random facts. `deletion_rank_lost`: the answer is not first then,
    among the entities of the subgraph that are not known answers.
    """
    if not explanation.paths:
        return {"deletion_falls": 0.0, "deletion_passed": 0.0, "deletion_rank_lost": 0.0}
    path, batch = explanation.paths[0], explanation.batch
    identity = 2 * reasoner.graph.num_relations
    distance = hops(batch, explanation.source), hops(batch, explanation.target, backwards=True)
    origin, relation, goal = batch.edges
    length = distance[0][origin] + 1 + distance[1][goal]
    on_paths = (length <= explanation.num_layers) & (relation != identity)
    candidates = on_paths.nonzero().squeeze(1)

    def scores_without(edges: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            rest = without(batch, edges, reasoner.graph.num_relations)
            scores: torch.Tensor = reasoner.predictor(rest)
            return scores

    left = scores_without(path.edges)
    fall = explanation.score - float(left[explanation.target])
    falls = []
    for _ in range(RANDOM_DELETIONS):
        drawn = torch.randperm(len(candidates), generator=generator)[: len(path.edges)]
        rest = scores_without(candidates[drawn].tolist())
        falls.append(explanation.score - float(rest[explanation.target]))
    entity, asked = batch.queries[0].tolist()
    rivals = torch.ones(batch.num_entities, dtype=torch.bool)
    rivals[torch.isin(batch.entities, reasoner.known_answers(entity, asked))] = False
    rivals[[explanation.source, explanation.target]] = False
    is_lost = bool((left[rivals] >= left[explanation.target]).any())
    return {
        "deletion_falls": float(fall > 0),
        "deletion_passed": float(fall > sum(falls) / len(falls)),
        "deletion_rank_lost": float(is_lost),
    }


if __name__ == "__main__":
    main()
