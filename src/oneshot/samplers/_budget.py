"""Budget: maximum numbers of entities and edges of a subgraph."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import INVERSE_MARK

Ratio = float | Mapping[str, float]
Count = int | Mapping[str, int]

DEFAULT_ENTITY_RATIO = 0.1
DEFAULT_EDGE_RATIO = 1.0


@dataclass(frozen=True)
class Budget:
    """The size of a subgraph, as shares of the graph or as counts.

    Each field is one number, or a table from relation name to number with the key "default"
    for all other relations. A name applies to both directions of its relation; `name⁻¹`
    overrides the inverse direction.

    `entity_ratio`: share of the entities; 0.1 unless `max_entities` is given.
    `edge_ratio`: share of the graph's edges (two per fact); 1.0 unless `max_edges` is given.
    `max_entities`, `max_edges`: counts. If a ratio is also given, the smaller number applies.
    `mass`: share of the score (for PPR: of the probability). Entities are added, highest first,
        until they have that share, so that a query whose answer is near gets a small subgraph. The
        budget above remains the maximum. 1 is no limit.
    """

    entity_ratio: Ratio | None = None
    edge_ratio: Ratio | None = None
    max_entities: Count | None = None
    max_edges: Count | None = None
    mass: Ratio | None = None

    def __post_init__(self) -> None:
        for field in ("entity_ratio", "edge_ratio", "mass"):
            for value in numbers_of(getattr(self, field), field):
                if not 0 < value <= 1:
                    raise InputError(f"{field} must be above 0 and at most 1, not {value}")
        for field, least in (("max_entities", 1), ("max_edges", 0)):
            for value in numbers_of(getattr(self, field), field):
                if not value >= least or value == float("inf") or value != int(value):
                    raise InputError(f"{field} must be an integer of at least {least}, not {value}")

    def check_names(self, graph: AdjacencyGraph) -> None:
        """Raise if a table names a relation that the graph does not have."""
        settings = self.entity_ratio, self.edge_ratio, self.max_entities, self.max_edges, self.mass
        for setting in settings:
            by_relation(graph, setting or 0, 0)

    def entity_counts(self, graph: AdjacencyGraph, relations: Tensor) -> Tensor:
        """The number of entities `K` for each query relation: [n] ids → int64 [n]."""
        counts = _counts(
            graph, self.entity_ratio, self.max_entities, DEFAULT_ENTITY_RATIO, graph.num_entities
        )
        return counts.clamp(min=1, max=graph.num_entities)[relations]

    def edge_counts(self, graph: AdjacencyGraph, relations: Tensor) -> Tensor:
        """Maximum number of edges per query relation, without identity edges: [n] → int64 [n]."""
        counts = _counts(
            graph, self.edge_ratio, self.max_edges, DEFAULT_EDGE_RATIO, 2 * graph.num_facts
        )
        return counts[relations]

    @property
    def limits_edges(self) -> bool:
        """Whether the budget may exclude facts between the entities of a subgraph."""
        return self.edge_ratio not in (None, 1.0) or self.max_edges is not None

    def masses(self, graph: AdjacencyGraph, relations: Tensor) -> Tensor | None:
        """The share of the score for each query relation: [n] → float64 [n]; None without."""
        if self.mass is None:
            return None
        shares = by_relation(graph, self.mass, 1.0)
        return torch.tensor(shares, dtype=torch.float64, device=graph.device)[relations]


def _counts(
    graph: AdjacencyGraph,
    ratio: Ratio | None,
    most: Count | None,
    default_ratio: float,
    whole: int,
) -> Tensor:
    """The count for every relation and inverse, int64 [2R]."""
    limits = []
    if most is not None:
        limits.append([min(int(value), whole) for value in by_relation(graph, most, whole)])
    if ratio is not None or most is None:
        shares = by_relation(graph, default_ratio if ratio is None else ratio, default_ratio)
        # Rounded as in Python: 0.1 · 40,943 gives 4,094.
        limits.append([int(share * whole) for share in shares])
    return torch.tensor(limits, device=graph.device).amin(dim=0)


def by_relation(
    graph: AdjacencyGraph, setting: float | Mapping[str, float], default: float
) -> list[float]:
    """The setting for every relation and inverse, `2R` of them."""
    count = graph.num_relations
    if not isinstance(setting, Mapping):
        return [setting] * (2 * count)
    values = [setting.get("default", default)] * (2 * count)
    # Plain names first, so that a name with the inverse mark overrides them.
    for name in sorted(setting, key=lambda name: name.endswith(INVERSE_MARK)):
        relation = graph.relations.get(name)
        if relation is not None:
            values[relation] = values[relation + count] = setting[name]
        elif name.endswith(INVERSE_MARK) and name.removesuffix(INVERSE_MARK) in graph.relations:
            relation = graph.relations.index(name.removesuffix(INVERSE_MARK))
            values[relation + count] = setting[name]
        elif name != "default":
            raise UnknownNameError(
                "relation", name, graph.relations.nearest(name), where="subgraph budget"
            )
    return values


def numbers_of(setting: float | Mapping[str, float] | None, field: str) -> list[float]:
    """The numbers in a setting; raises for other values."""
    if setting is None:
        return []
    values = list(setting.values()) if isinstance(setting, Mapping) else [setting]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InputError(f"{field} must be a number or a table of numbers, not {value!r}")
    return values
