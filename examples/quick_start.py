"""From triples to an answer with its explanation, in a minute on a CPU.

    python examples/quick_start.py [--epochs 12]

The graph of this example is a generated family. Some facts, such as grandmothers, are held out;
they follow from the visible ones.
"""

import argparse

import torch

import oneshot
from oneshot.data.load import family


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    torch.manual_seed(0)  # the predictor starts from random parameters

    data = family(options.people)
    print(f"{data.graph}; {len(data.test)} facts are held out for the test")

    reasoner = oneshot.Reasoner(
        data.graph,
        oneshot.PPRSampler(max_entities=60, keep_unreachable=False),
        oneshot.Predictor(oneshot.PredictorConfig(num_layers=3, dim=16), data.graph.num_relations),
    )
    training = oneshot.TrainingConfig(
        epochs=options.epochs, learning_rate=0.01, mask_known=True, valid_limit=200
    )
    oneshot.fit(reasoner, data, training)
    print(oneshot.evaluate(reasoner, data.test, known=data.known, limit=300))

    head, relation, tail = data.test[0].tolist()
    person, label = data.entities[head], data.relations[relation]
    print(f"\nWho is the {label} of {person}? (held out: {data.entities[tail]})")
    for answer in reasoner.predict(person, label, top=3, exclude_known=True):
        print(f"  {answer.entity}  {answer.score:.2f}")
    print("\nWhy?")
    print(reasoner.explain(person, label, data.entities[tail]))


if __name__ == "__main__":
    main()
