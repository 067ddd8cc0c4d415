"""Block model: random graphs on which the theorem's constants are known, and predictors on them.

A stochastic block model with two equal blocks: each entity is in either block with probability 1/2,
and two entities are linked with probability 0.8 within a block and 0.2 across. Every entity has the
same expected number of links, so that its block shows only in relation to other entities: the case
to which the theorem applies.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oneshot.config import PredictorConfig
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.predictor import Predictor
from oneshot.samplers import PPRSampler

WITHIN, ACROSS = 0.8, 0.2
"""Probability of a link within a block and across."""

LEAST_DEGREE = (WITHIN + ACROSS) / 2
"""The smallest expected degree as a share of the entities, `d_min` of the theorem."""

FAILURE = 0.05
"""The probability with which the theorem may be wrong."""

_SOURCES, _TARGETS = 12, 8
"""Pairs that are asked per graph: entities, and others for each."""

_EDGES_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class BlockGraph:
    """A graph of the block model, and pairs of entities whose links are hidden.

    `adjacency` float [n, n] without the hidden links; `sources` int64 [s]; `targets` int64 [s, t];
    `linked` and `same` bool [s, t]: whether a pair is linked, and in one block.
    """

    adjacency: Tensor
    sources: Tensor
    targets: Tensor
    linked: Tensor
    same: Tensor

    @property
    def size(self) -> int:
        return len(self.adjacency)

    def to(self, device: torch.device) -> "BlockGraph":
        return BlockGraph(*(getattr(self, part.name).to(device) for part in fields(self)))


def draw_graph(size: int, seed: Sequence[int]) -> BlockGraph:
    """A graph with `size` entities, which must be more than 12."""
    generator = np.random.default_rng([*seed, size])
    block = generator.integers(2, size=size)
    chance = np.where(block[:, None] == block, WITHIN, ACROSS)
    upper = np.triu(generator.random((size, size)) < chance, 1)
    links = upper | upper.T
    sources = generator.choice(size, _SOURCES, replace=False)
    targets = np.stack(
        [
            generator.choice(np.delete(np.arange(size), u), min(_TARGETS, size - 1), replace=False)
            for u in sources
        ]
    )
    linked = links[sources[:, None], targets]
    links[sources[:, None], targets] = links[targets, sources[:, None]] = False
    return BlockGraph(
        torch.from_numpy(links).float(),
        torch.from_numpy(sources),
        torch.from_numpy(targets),
        torch.from_numpy(linked),
        torch.from_numpy(block[sources][:, None] == block[targets]),
    )


class NodePredictor(nn.Module):
    """Scores a pair by the states of its two entities, which do not depend on the query.

    This is the predictor of the theorem: two layers with mean aggregates. The input of an entity is
    the share of the others that it is linked with, which isomorphic entities have in common.
    """

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * width, dim) for width in (1, dim))
        self.pair = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, graph: BlockGraph) -> Tensor:
        """Logits of the pairs, [s, t]."""
        degree = graph.adjacency.sum(1, keepdim=True)
        # A fixed scale, not that of the graph: it must not depend on the number of entities.
        state = 10 * (degree / graph.size - LEAST_DEGREE)
        for layer in self.layers:
            near = graph.adjacency @ state / degree.clamp(min=1)
            state = torch.tanh(layer(torch.cat([state, near], dim=1)))
        asked, other = state[graph.sources][:, None], state[graph.targets]
        pair: Tensor = self.pair(torch.cat([asked * other, (asked - other).abs()], dim=-1))
        return pair.squeeze(-1)


class QueryPredictor(nn.Module):
    """Our predictor, whose states start at the query entity: two layers and a bias."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.predictor = Predictor(config, num_relations=1)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, graph: BlockGraph) -> Tensor:
        """Logits of the pairs, [s, t]."""
        head, tail = graph.adjacency.triu(1).nonzero().T
        facts = torch.stack([head, torch.zeros_like(head), tail], dim=1)
        whole = KnowledgeGraph.from_distinct(
            facts.cpu().numpy(),
            Vocabulary.numbered(graph.size, "entity"),
            Vocabulary.from_names(["linked"], "relation"),
        ).to(graph.adjacency.device)
        sampler = PPRSampler(entity_ratio=1.0, edge_limit=0)
        queries = torch.stack([graph.sources, torch.zeros_like(graph.sources)], dim=1)
        size = max(_EDGES_AT_ONCE // (2 * len(facts) + graph.size), 1)
        # All entities are sampled, so the scores of a query are those of the ids, in order.
        scores = torch.cat(
            [
                self.predictor(sampler.sample(whole, some)).view(len(some), graph.size)
                for some in queries.split(size)
            ]
        )
        return scores.gather(1, graph.targets) + self.bias


def _ours(**options: Any) -> QueryPredictor:
    shape: dict[str, Any] = {"num_layers": 2, "dim": 16, "gate": False, "initial": "binary"}
    return QueryPredictor(PredictorConfig(**shape, **options))


PREDICTORS: dict[str, Callable[[], nn.Module]] = {
    "entity states": NodePredictor,
    "query, sum": _ours,
    "query, mean": partial(_ours, aggregate="mean"),
}
"""The predictors by name: that of the theorem, and ours with several aggregates."""


def fit(name: str, size: int, seed: int, steps: int, device: torch.device) -> nn.Module:
    """A predictor of links, trained on graphs with `size` entities, a new one in each step."""
    torch.manual_seed(seed)
    predictor = PREDICTORS[name]().to(device)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=0.01)
    loss_of = nn.BCEWithLogitsLoss()
    for step in range(steps):
        graph = draw_graph(size, (seed, 0, step)).to(device)
        optimizer.zero_grad()
        loss_of(predictor(graph), graph.linked.float()).backward()
        optimizer.step()
    return predictor


@torch.no_grad()
def measure(
    predictor: nn.Module, size: int, seed: int, graphs: int, device: torch.device
) -> dict[str, float]:
    """Probabilities of links in new graphs with `size` entities.

    `within`, `across`: the mean of pairs in one block and in two; `gap`: their difference;
    `right`: share of the pairs that 0.5 as threshold sorts by block; `ordered`: probability that a
    pair in one block has the higher score (0.5 is a random guess).
    """
    drawn = [draw_graph(size, (seed, 1, number)).to(device) for number in range(graphs)]
    score = torch.cat([predictor(graph).flatten() for graph in drawn]).double()
    same = torch.cat([graph.same.flatten() for graph in drawn])
    chance = torch.sigmoid(score)
    one, two = chance[same], chance[~same]
    # By the scores: probabilities near 1 are equal in floating point.
    differ = score[same][:, None] - score[~same]
    return {
        "within": float(one.mean()),
        "across": float(two.mean()),
        "gap": float(one.mean() - two.mean()),
        "right": float(((chance > 0.5) == same).double().mean()),
        "ordered": float(((differ.sign() + 1) / 2).mean()),
    }


def rate(size: int) -> float:
    """The theorem's rate, sqrt(log(2n / p) / n): gaps of isomorphic entities shrink like it."""
    return math.sqrt(math.log(2 * size / FAILURE) / size)


def least_size() -> int:
    """The smallest graph to which the theorem applies: sqrt(n / log(2n / p)) ≥ 4 √2 / d_min."""
    size = 1
    while 1 / rate(size) < 4 * math.sqrt(2) / LEAST_DEGREE:
        size += 1
    return size
