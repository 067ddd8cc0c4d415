"""How often the first path of an explanation is a true rule, on family worlds.

Each reasoner is trained on a world of its own; of the held-out facts that it answers correctly
(rank 1, filtered, both directions) some are drawn and explained.
`oneshot.experiments.bench.rules` says what counts as a true rule.
"""

import time
from typing import Any

import torch
from benchmarks.common import write_result

from oneshot.config import PredictorConfig, TrainingConfig
from oneshot.data.load import family
from oneshot.experiments.bench.rules import RELIABLE, RuleBook, Truth, right_answers
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
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


def main() -> None:
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    rows = [
        {"predictor": name, **measure(options, seed)}
        for name, options in PREDICTORS.items()
        for seed in SEEDS
    ]
    value = {
        "data": f"family:{PEOPLE}",
        "max_entities": MAX_ENTITIES,
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "reliable": RELIABLE,
        "rows": rows,
    }
    write_result("explanations", value)


def measure(options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train one reasoner and judge its explanations."""
    started = time.perf_counter()
    data = family(PEOPLE, seed=seed)
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
    trained = time.perf_counter()
    queries, answers, right = right_answers(reasoner, data)
    rows = right.nonzero().squeeze(1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    chosen = rows[order[:EXPLAINED]]
    book = RuleBook(data)
    truths = []
    for (entity, relation), answer in zip(
        queries[chosen].tolist(), answers[chosen].tolist(), strict=True
    ):
        truths.append(book.truth_of(reasoner.explain(entity, relation, answer), relation))
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
        "training_seconds": round(trained - started, 1),
        "explaining_seconds": round(time.perf_counter() - trained, 1),
    }
    print(result, flush=True)
    return result


if __name__ == "__main__":
    main()
