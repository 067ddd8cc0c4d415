"""Cases: groups of queries by what graph and subgraph know about entity and answer."""

import torch
from torch import Tensor

from oneshot.graph.graph import KnowledgeGraph

# Edges that are read at once.
_BLOCK = 1 << 24


def cases(
    graph: KnowledgeGraph, queries: Tensor, answers: Tensor, covered: Tensor, no_path: Tensor
) -> dict[str, Tensor]:
    """The queries of each case, bool [n], by name.

    `queries` [n, 2], `answers` [n]; `covered`, `no_path` bool [n]. A query is "covered" if its
    answer was sampled and has a path, "uncovered" if it has a path and was not sampled, and
    "unreachable" without a path. The other four cases are half-links: whether the query entity has
    other answers of the relation in the graph, and whether the answer answers it for other
    entities.
    """
    relation = queries[:, 1]
    asked = answers_relation(graph, queries[:, 0], graph.inverse(relation))
    answer = answers_relation(graph, answers, relation)
    return {
        "covered": covered & ~no_path,
        "uncovered": ~covered & ~no_path,
        "unreachable": no_path,
        "entity and answer known": asked & answer,
        "entity known": asked & ~answer,
        "answer known": ~asked & answer,
        "neither known": ~asked & ~answer,
    }


def answers_relation(graph: KnowledgeGraph, entities: Tensor, relations: Tensor) -> Tensor:
    """Whether each entity [n] is an answer of the relation beside it [n] in the graph: bool [n]."""
    if graph.host is not None:
        here = graph.host.device
        return answers_relation(graph.host, entities.to(here), relations.to(here)).to(graph.device)
    kinds = 2 * graph.num_relations
    wanted, place = (entities * kinds + relations).unique(return_inverse=True)
    entity, relation = wanted // kinds, wanted % kinds
    found = torch.zeros(len(wanted), dtype=torch.bool, device=wanted.device)
    edges, degree = graph.edges, graph.degree_of(entity).long()
    block = degree.cumsum(0) // _BLOCK
    for part in range(int(block[-1]) + 1 if len(block) else 0):
        rows = (block == part).nonzero().squeeze(1)
        row, at = edges.places(entity[rows], degree[rows])
        row = rows[row]
        found[row[edges.relation[at].long() == relation[row]]] = True
    return found[place]
