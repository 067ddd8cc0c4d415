"""Classify sets of entities by one subgraph each: how three cities belong together.

python examples/entity_sets.py [--epochs 8]

The subgraph of a set is that of one Personalized PageRank which restarts at each of its members.
"""

import argparse

import numpy as np

import oneshot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--sets", type=int, default=400)
    options = parser.parse_args()

    data = oneshot.load("world")
    located = data.train[data.train[:, 1] == data.relations.index("located_in")].numpy()
    cities, country = located[:, 0], dict(located[:, [0, 2]].tolist())
    draw = np.random.default_rng(0)
    sets, labels = [], []
    while len(sets) < options.sets:
        first = draw.choice(cities)
        together = len(sets) % 2 == 0
        others = [city for city in cities if (country[city] == country[first]) == together]
        if len(others) > 2:
            sets.append([first, *draw.choice(others, 2, replace=False)])
            labels.append("one country" if together else "several countries")
    half = options.sets // 2
    classifier = oneshot.SubgraphClassifier(
        data.graph, oneshot.PPRSampler(max_entities=60), epochs=options.epochs
    )
    classifier.fit(np.array(sets[:half]), labels[:half])
    accuracy = classifier.score(np.array(sets[half:]), labels[half:])
    print(f"accuracy {accuracy:.3f}, most frequent class 0.500")
    print(classifier.predict([["Paris", "Lyon", "Marseille"], ["Paris", "Cairo", "Lima"]]))


if __name__ == "__main__":
    main()
