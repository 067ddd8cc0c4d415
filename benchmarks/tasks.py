"""Classes of entities, of sets of entities and of small graphs, from one subgraph each.

    python -m benchmarks.tasks [TASK ...] [--seeds 3]

Each task is measured beside the most frequent class and beside GCN and GraphSAGE of PyTorch
Geometric on the whole graph (extra `peers`). All choose their best epoch on the validation part;
accuracy on the test part, with one random split per seed.

- `continents`: the continent of the countries of the bundled graph `world`, whose facts about
  continents are removed. The baselines learn a vector per entity; ours sees the continents of the
  training countries in the subgraph.
- `roles`: BA-Shapes of PyTorch Geometric, a random graph of 300 nodes with 80 houses of five nodes:
  whether a node is at the top, middle or bottom of a house, or in none. The input of the baselines
  is the degree.
- `cities`: sets of three cities of `world`, without facts about continents: in one country, in
  different countries of one continent, or on different continents. The baselines learn a vector per
  entity and read the mean and the maximum over the set.
- `shapes`: small graphs of eight families by networkx, such as stars, cycles and grids. The input
  of the baselines is the degree, and they read the mean and the maximum over the graph.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from benchmarks.common import write_result
from numpy.typing import NDArray
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.data.load import load
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.samplers import PPRSampler
from oneshot.training.classifier import SubgraphClassifier

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Sources with classes, and how ours is shaped.

    `sources` int64 [n, s], -1 for none; `labels` [n]; `shares`: of the training and validation
    parts. `has_names`: whether entities can be recognized, so that baselines learn a vector each.
    """

    graph: KnowledgeGraph
    sources: Tensor
    labels: Labels
    shares: tuple[float, float] = (0.6, 0.2)
    has_names: bool = True
    max_entities: int = 100
    use_labels: bool = False
    layers: int = 3
    epochs: int = 30

    def split(self, seed: int) -> list[NDArray[np.int64]]:
        """Rows of training, validation and test."""
        order = np.random.default_rng(seed).permutation(len(self.labels))
        ends = np.cumsum([int(share * len(order)) for share in self.shares])
        return np.split(order, ends)


# tasks -------------------------------------------------------------------------------------------


def _without_continents() -> tuple[KnowledgeGraph, dict[int, int], Tensor]:
    """The graph `world` without continents; the continent of each country; all facts."""
    data = load("world")
    facts = torch.cat([data.train, data.valid, data.test])
    on_continent = data.relations.index("on_continent")
    removed = facts[:, 1] == on_continent
    continent = {int(country): int(where) for country, _, where in facts[removed]}
    graph = KnowledgeGraph.from_facts(facts[~removed], data.entities, data.relations)
    return graph, continent, facts


def continents(seed: int) -> Task:
    graph, continent, _ = _without_continents()
    sources, labels = torch.tensor(list(continent)), np.array(list(continent.values()))
    return Task(graph, sources[:, None], labels, use_labels=True, max_entities=300)


def roles(seed: int) -> Task:
    from torch_geometric.datasets import ExplainerDataset
    from torch_geometric.datasets.graph_generator import BAGraph

    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (what PyTorch Geometric draws from)
    graph = ExplainerDataset(BAGraph(300, 5), "house", num_motifs=80)[0]
    found = _graph_of(graph.edge_index.numpy().T, graph.num_nodes)
    sources = torch.arange(graph.num_nodes)[:, None]
    return Task(found, sources, graph.y.numpy(), has_names=False, max_entities=40)


def cities(seed: int, per_class: int = 400) -> Task:
    graph, continent, facts = _without_continents()
    located = facts[facts[:, 1] == graph.relations.index("located_in")]
    home = {int(city): int(country) for city, _, country in located if int(country) in continent}
    draw = np.random.default_rng(seed)
    names = np.array(list(home))
    by_country: dict[int, list[int]] = {}
    for city, country in home.items():
        by_country.setdefault(country, []).append(city)
    large = [country for country, inside in by_country.items() if len(inside) >= 3]
    found: list[tuple[list[int], int]] = []
    counts = [0, 0, 0]
    while min(counts) < per_class:
        one_country = draw.random() < 0.2
        drawn = by_country[large[draw.integers(len(large))]] if one_country else names
        some = draw.choice(drawn, 3, replace=False).tolist()
        countries = {home[city] for city in some}
        parts = {continent[country] for country in countries}
        if len(countries) == 1:
            label = 0
        elif len(countries) == 3 and len(parts) == 1:
            label = 1
        elif len(parts) == 3:
            label = 2
        else:
            continue
        if counts[label] < per_class:
            counts[label] += 1
            found.append((some, label))
    sources, labels = zip(*found, strict=True)
    return Task(graph, torch.tensor(sources), np.array(labels), max_entities=200, epochs=15)


def shapes(seed: int, per_class: int = 60) -> Task:
    import networkx as nx

    draw = np.random.default_rng(seed)
    families: list[Callable[[int], Any]] = [
        nx.cycle_graph,
        lambda n: nx.star_graph(n - 1),
        nx.wheel_graph,
        lambda n: nx.lollipop_graph(n // 2, n - n // 2),
        lambda n: nx.hypercube_graph(3 if n < 15 else 4),
        lambda n: nx.grid_graph([n // 4, 4]),
        nx.complete_graph,
        lambda n: nx.circular_ladder_graph(n // 2),
    ]
    edges, sources, labels, size = [], [], [], 0
    for label, family in enumerate(families):
        for _ in range(per_class):
            graph = nx.convert_node_labels_to_integers(family(int(draw.integers(8, 20))), size)
            edges += list(graph.edges)
            sources.append(list(graph.nodes))
            labels.append(label)
            size += len(graph)
    widest = max(map(len, sources))
    rows = [some + [-1] * (widest - len(some)) for some in sources]
    found = _graph_of(np.array(edges), size)
    return Task(found, torch.tensor(rows), np.array(labels), has_names=False, max_entities=widest)


def _graph_of(edges: NDArray[np.int64], size: int) -> KnowledgeGraph:
    """A graph with one relation; edges in both directions are one fact."""
    pairs = np.unique(np.sort(edges, axis=1), axis=0)
    facts = np.stack([pairs[:, 0], np.zeros(len(pairs), np.int64), pairs[:, 1]], axis=1)
    relations = Vocabulary.from_names(["linked"], "relation")
    return KnowledgeGraph.from_distinct(facts, Vocabulary.numbered(size, "entity"), relations)


TASKS = {task.__name__: task for task in (continents, roles, cities, shapes)}


# predictors --------------------------------------------------------------------------------------


def ours(task: Task, seed: int) -> tuple[float, float]:
    """Accuracy of the subgraph classifier on validation and test."""
    train, valid, test = task.split(seed)
    classifier = SubgraphClassifier(
        task.graph,
        PPRSampler(max_entities=task.max_entities, keep_unreachable=False),
        PredictorConfig(
            dim=32, num_layers=task.layers, gate=False, shortcut=True, initial="binary", concat=True
        ),
        use_labels=task.use_labels,
        epochs=task.epochs,
        seed=seed,
    )
    checked = (task.sources[valid], task.labels[valid])
    classifier.fit(task.sources[train], task.labels[train], checked)
    return classifier.score(*checked), classifier.score(task.sources[test], task.labels[test])


def majority(task: Task, seed: int) -> tuple[float, float]:
    """Accuracy of the most frequent class of the training part."""
    train, valid, test = task.split(seed)
    most = np.bincount(task.labels[train]).argmax()
    right = task.labels == most
    return float(right[valid].mean()), float(right[test].mean())


class _Whole(nn.Module):
    """GCN or GraphSAGE on the whole graph, and a readout of the sources."""

    def __init__(self, task: Task, layer: str, classes: int, dim: int = 64) -> None:
        import torch_geometric.nn as pyg

        super().__init__()
        head, _, tail = task.graph.facts.long().T
        self.edges = torch.stack([torch.cat([head, tail]), torch.cat([tail, head])])
        degree = self.edges[1].bincount(minlength=task.graph.num_entities).float()
        self.degree = (degree + 1).log()[:, None]
        self.names = nn.Embedding(task.graph.num_entities, dim) if task.has_names else None
        kind = {"GCN": pyg.GCNConv, "GraphSAGE": pyg.SAGEConv}[layer]
        first = dim if task.has_names else 1
        widths = [first] + [dim] * task.layers
        self.layers = nn.ModuleList(kind(a, b) for a, b in pairwise(widths))
        self.read = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, classes))
        self.dropout = nn.Dropout(0.3)

    def forward(self, sources: Tensor) -> Tensor:
        state = self.degree if self.names is None else self.names.weight
        for number, layer in enumerate(self.layers):
            if number or self.names is not None:  # not of the degree, a single number
                state = self.dropout(state)
            state = torch.relu(layer(state, self.edges))
        held = (sources >= 0)[..., None]
        some = state[sources.clamp(min=0)] * held
        mean = some.sum(1) / held.sum(1)
        scores: Tensor = self.read(torch.cat([mean, some.amax(1)], dim=1))
        return scores


def whole(task: Task, seed: int, layer: str, epochs: int | None = None) -> tuple[float, float]:
    """Accuracy of GCN or GraphSAGE on validation and test, at the best epoch of validation."""
    # With a vector per entity they overfit earlier.
    epochs = epochs or (200 if task.has_names else 400)
    parts = task.split(seed)
    labels = torch.from_numpy(np.unique(task.labels, return_inverse=True)[1])
    torch.manual_seed(seed)
    network = _Whole(task, layer, int(labels.max()) + 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=5e-4)
    best = (-1.0, 0.0)
    for _ in range(epochs):
        network.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(task.sources[parts[0]]), labels[parts[0]]).backward()
        optimizer.step()
        network.eval()
        with torch.no_grad():
            right = (network(task.sources).argmax(1) == labels).double()
        valid, test = (float(right[part].mean()) for part in parts[1:])
        if valid > best[0]:
            best = (valid, test)
    return best


MEASURES: dict[str, Callable[[Task, int], tuple[float, float]]] = {
    "majority": majority,
    "GCN": lambda task, seed: whole(task, seed, "GCN"),
    "GraphSAGE": lambda task, seed: whole(task, seed, "GraphSAGE"),
    "oneshot": ours,
}


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean and the spread over the seeds, for each task and predictor."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["predictor"]), []).append(row)
    return [
        {
            "task": task,
            "predictor": name,
            "seeds": len(some),
            "accuracy": statistics.mean(row["accuracy"] for row in some),
            "lowest": min(row["accuracy"] for row in some),
            "highest": max(row["accuracy"] for row in some),
            "valid_accuracy": statistics.mean(row["valid_accuracy"] for row in some),
            "cpu_seconds": statistics.mean(row["cpu_seconds"] for row in some),
        }
        for (task, name), some in groups.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="TASK")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    rows: list[dict[str, Any]] = []
    for name in options.tasks:
        for seed in range(options.seeds):
            task = TASKS[name](seed)
            sizes = {"sources": len(task.labels), "classes": len(np.unique(task.labels))}
            for predictor, measure in MEASURES.items():
                start = time.process_time()
                valid, test = measure(task, seed)
                row = {"task": name, "predictor": predictor, "seed": seed, **sizes}
                spent = time.process_time() - start
                row |= {"valid_accuracy": valid, "accuracy": test, "cpu_seconds": spent}
                rows.append(row)
                print(row, flush=True)
    write_result("tasks", {"means": means(rows), "rows": rows})


if __name__ == "__main__":
    main()
