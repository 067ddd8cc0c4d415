"""Classify entities by the subgraph around them: which continent a country is on.

python examples/entity_classes.py [--epochs 20]
"""

import argparse

import numpy as np
import torch

import oneshot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    # The bundled graph, without the facts that contain the classes.
    data = oneshot.load("world")
    facts = torch.cat([data.train, data.valid, data.test])
    is_class = facts[:, 1] == data.relations.index("on_continent")
    graph = oneshot.KnowledgeGraph.from_facts(facts[~is_class], data.entities, data.relations)
    countries = [data.entities[int(country)] for country in facts[is_class][:, 0]]
    continents = np.array([data.entities[int(where)] for where in facts[is_class][:, 2]])

    order = np.random.default_rng(0).permutation(len(countries))
    train, valid, test = np.split(order, [150, 200])
    classifier = oneshot.SubgraphClassifier(
        graph,
        oneshot.PPRSampler(max_entities=300),
        use_labels=True,  # the continents of the training countries in the subgraph
        epochs=options.epochs,
    )

    def named(rows: np.ndarray) -> list[str]:
        return [countries[row] for row in rows]

    classifier.fit(named(train), continents[train], (named(valid), continents[valid]))
    names, counts = np.unique(continents[train], return_counts=True)
    frequent = (continents[test] == names[counts.argmax()]).mean()
    accuracy = classifier.score(named(test), continents[test])
    print(f"accuracy {accuracy:.3f}, most frequent class {frequent:.3f}")
    for country, continent in zip(
        named(test[:5]), classifier.predict(named(test[:5])), strict=True
    ):
        print(f"{country}: {continent}")


if __name__ == "__main__":
    main()
