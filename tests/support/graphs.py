"""Random graphs for tests: small, odd, and different every time hypothesis asks."""

import networkx
import numpy as np
import torch
from hypothesis import strategies as st

from oneshot.graph.graph import KnowledgeGraph


def random_graph(
    seed: int, entities: int = 30, facts: int = 60, relations: int = 3
) -> KnowledgeGraph:
    """A graph with isolated entities, several components, a hub, self-loops and repeats."""
    generator = np.random.default_rng(seed)
    linked = max(1, entities - entities // 5)  # the last fifth stays isolated
    head = generator.integers(linked, size=facts)
    tail = np.where(
        generator.random(facts) < 0.3,
        generator.integers(min(3, linked), size=facts),  # hubs
        generator.integers(linked, size=facts),
    )
    # Two halves that no fact joins.
    half = linked // 2
    tail = np.where((head < half) == (tail < half), tail, head)
    rows = np.stack([head, generator.integers(relations, size=facts), tail], axis=1)
    return KnowledgeGraph.from_facts(rows, entities, relations)


@st.composite
def graphs(draw: st.DrawFn) -> KnowledgeGraph:
    return random_graph(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(1, 40)),
        draw(st.integers(0, 120)),
        draw(st.integers(1, 4)),
    )


def random_queries(graph: KnowledgeGraph, count: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    columns = [
        generator.integers(graph.num_entities, size=count),
        generator.integers(2 * graph.num_relations, size=count),
    ]
    return torch.from_numpy(np.stack(columns, axis=1))


def as_networkx(graph: KnowledgeGraph) -> networkx.Graph:
    whole = networkx.Graph()
    whole.add_nodes_from(range(graph.num_entities))
    whole.add_edges_from((h, t) for h, _, t in graph.facts.tolist() if h != t)
    return whole
