"""PPRSampler: the entities of highest Personalized PageRank, the sampler of the paper."""

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers._budget import Count, Ratio
from oneshot.samplers._extract import EdgeScore
from oneshot.samplers._pagerank import Transition, ppr, ppr_chebyshev
from oneshot.samplers._push import PushWorkspace, ppr_push
from oneshot.samplers._select import choose_highest, counts_of_mass
from oneshot.samplers.base import Sampler, Selection, joined

Method = Literal["auto", "chebyshev", "power", "push"]

POWER_STEPS = 30

# When `method="auto"` uses the local push. Its cost grows with the budget, that of the block
# methods with the graph; on family graphs they are equal at a hundredth (`benchmarks/push.py`).
PUSH_LARGEST_SHARE = 0.01
PUSH_LEAST_GRAPH = 50_000
PUSH_LARGEST_HUB = 1_000


class PPRSampler(Sampler):
    """Personalized PageRank from `u`: how often a walk that restarts at `u` visits each entity.

    `restart`: probability of jumping back to `u` before a step. The official results use 0.15
        (the paper prints 0.85, which there is the probability of following a link).
    `method`: how the scores are computed; always on demand, nothing is precomputed.
        "chebyshev": a block of queries at once, 20 matrix products.
        "power": plain power iteration, 30 products; its errors are about 300 times larger.
        "push": query by query, at a cost that does not grow with the graph; slow and inaccurate
            on graphs with large hubs.
        "auto": push for budgets of at most a hundredth of the entities, on graphs of at least
            50,000 entities none of which has more than 1,000 neighbours, on a CPU;
            chebyshev otherwise.
    `steps`: number of matrix products; default 30 for power, otherwise at least 20, as `restart`
    needs. `ball_factor`: entities that push visits, as a multiple of `K`; more is slower and more
    accurate. `transition`: "walk", or "paper" for scores divided by degree (see `oneshot.ppr`).
    """

    name = "ppr"
    options: ClassVar[tuple[str, ...]] = ("restart", "method", "steps", "ball_factor", "transition")

    def __init__(
        self,
        entity_ratio: Ratio | None = None,
        edge_ratio: Ratio | None = None,
        restart: float = 0.15,
        *,
        method: Method = "auto",
        steps: int | None = None,
        ball_factor: float = 3.0,
        transition: Transition = "walk",
        max_entities: Count | None = None,
        max_edges: Count | None = None,
        mass: Ratio | None = None,
        keep_unreachable: bool = True,
        edge_score: EdgeScore = "product",
        seed: int = 0,
    ) -> None:
        super().__init__(
            entity_ratio,
            edge_ratio,
            max_entities=max_entities,
            max_edges=max_edges,
            mass=mass,
            keep_unreachable=keep_unreachable,
            edge_score=edge_score,
            seed=seed,
        )
        if not 0 < restart < 1:
            raise InputError(f"restart must be between 0 and 1, not {restart}")
        if method not in get_args(Method):
            raise InputError(f"method must be one of {get_args(Method)}, not {method!r}")
        if transition not in get_args(Transition):
            raise InputError(f"transition must be one of {get_args(Transition)}")
        if steps is not None and steps < 1:
            raise InputError(f"steps must be at least 1, not {steps}")
        if not 1 <= ball_factor <= 10**6:
            raise InputError(f"ball_factor must be from 1 to 1,000,000, not {ball_factor}")
        self.restart = restart
        self.method = method
        self.steps = steps
        self.ball_factor = ball_factor
        self.transition: Transition = transition
        self._workspace: PushWorkspace | None = None

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        if self.method == "power":
            steps = POWER_STEPS if self.steps is None else self.steps
            return ppr(graph, entities, self.restart, 0.0, steps, self.transition)
        return ppr_chebyshev(graph, entities, self.restart, self.steps, self.transition)

    def chosen_method(self, graph: AdjacencyGraph, most_entities: int) -> Method:
        """The method that "auto" selects for this graph and budget."""
        if self.method != "auto":
            return self.method
        local = (
            graph.device.type == "cpu"
            and most_entities <= PUSH_LARGEST_SHARE * graph.num_entities
            and graph.num_entities >= PUSH_LEAST_GRAPH
            and graph.neighbours.largest_degree <= PUSH_LARGEST_HUB
        )
        return "push" if local else "chebyshev"

    def select(
        self, graph: AdjacencyGraph, queries: Tensor, include: Tensor | None = None
    ) -> Selection:
        if not self._may_push(graph, queries):
            return super().select(graph, queries, include)
        counts = self.budget.entity_counts(graph, queries[:, 1])
        if self.chosen_method(graph, int(counts.max())) != "push":
            return super().select(graph, queries, include)
        return self._select_by_push(graph, queries, counts, include)

    def _ranks(self, graph: AdjacencyGraph, queries: Tensor, targets: Tensor) -> Tensor:
        counts = self.budget.entity_counts(graph, queries[:, 1])
        if (
            not self._may_push(graph, queries)
            or self.chosen_method(graph, int(counts.max())) != "push"
        ):
            return super()._ranks(graph, queries, targets)
        places = torch.empty(len(queries), dtype=torch.long, device=graph.device)
        for row, ((entity, _), target) in enumerate(
            zip(queries.tolist(), targets.tolist(), strict=True)
        ):
            found, scores = self._push(graph, entity, int(counts[row]))
            place = int(torch.searchsorted(found, target))
            if entity == target:
                places[row] = 0
            elif place < len(found) and int(found[place]) == target:
                scores[torch.searchsorted(found, entity)] = torch.inf
                places[row] = (scores > scores[place]).sum() + (
                    scores[:place] == scores[place]
                ).sum()
            else:
                # After all entities that were found, in order of ids.
                places[row] = target + len(found) - place
        return places

    def _may_push(self, graph: AdjacencyGraph, queries: Tensor) -> bool:
        """Whether push is possible, before reading the budget (a synchronization on a GPU)."""
        on_processor = graph.device.type == "cpu"
        return len(queries) > 0 and (
            self.method == "push" or (self.method == "auto" and on_processor)
        )

    def _select_by_push(
        self, graph: AdjacencyGraph, queries: Tensor, counts: Tensor, include: Tensor | None
    ) -> Selection:
        parts = []
        masses = self.budget.masses(graph, queries[:, 1])
        for row, (entity, _) in enumerate(queries.tolist()):
            limit = counts[row : row + 1]
            count = int(limit)
            found, scores = self._push(graph, entity, count)
            if masses is not None:
                # Share of the score in the ball; there is almost none outside.
                first = torch.searchsorted(found, queries[row, :1])
                limit = counts_of_mass(scores[None], first, limit, masses[row : row + 1])
            forced = queries[row, :1]
            if include is not None:
                forced = torch.cat([forced, include[row]])
                forced = forced[forced >= 0].unique()
            # The rest of the graph has score 0: only forced entities and, to fill up the
            # count, the lowest ids can be chosen from it.
            others = torch.arange(min(count + len(found), graph.num_entities), device=graph.device)
            candidates = torch.cat([found, forced, others]).unique()
            dense = torch.zeros(len(candidates), device=graph.device)
            dense[torch.searchsorted(candidates, found)] = scores
            chosen, _, score = choose_highest(
                dense[None],
                limit,
                torch.searchsorted(candidates, forced)[None],
                self.keep_unreachable,
            )
            parts.append((candidates[chosen], torch.full_like(chosen, row), score))
        return joined(parts, queries)

    def _push(self, graph: AdjacencyGraph, entity: int, count: int) -> tuple[Tensor, Tensor]:
        """Scores around one entity, enough to choose `count` entities."""
        # Removed while in use: an interrupted push leaves it dirty, and it is not put back.
        workspace, self._workspace = self._workspace, None
        if workspace is None or not workspace.fits(graph):
            workspace = PushWorkspace(graph)
        size = min(max(int(self.ball_factor * count), 100), graph.num_entities)
        found, scores = ppr_push(graph, entity, self.restart, size, workspace, self.steps)
        self._workspace = workspace
        if self.transition == "paper":
            places = torch.cat([found, found.new_tensor([entity])])
            degree = graph.neighbours.degree_of(places).clamp(min=1)
            scores = scores / degree[:-1] * degree[-1]
        return found, scores
