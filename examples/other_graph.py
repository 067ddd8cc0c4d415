"""Train on one graph and predict on another one with other entities.

python examples/other_graph.py [--epochs 12]
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

    here, there = family(options.people, seed=1), family(options.people, seed=2)
    sampler = oneshot.PPRSampler(max_entities=60, keep_unreachable=False)
    predictor = oneshot.Predictor(
        oneshot.PredictorConfig(num_layers=3, dim=16), here.graph.num_relations
    )
    reasoner = oneshot.Reasoner(here.graph, sampler, predictor)
    training = oneshot.TrainingConfig(
        epochs=options.epochs, learning_rate=0.01, mask_known=True, valid_limit=200
    )
    oneshot.fit(reasoner, here, training)

    elsewhere = oneshot.Reasoner(there.graph, sampler, predictor)
    for name, asked, data in (("trained on", reasoner, here), ("never seen", elsewhere, there)):
        print(f"{name}: {oneshot.evaluate(asked, data.test, known=data.known, limit=300)}")


if __name__ == "__main__":
    main()
