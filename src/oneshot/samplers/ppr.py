"""PPRSampler: the entities of highest Personalized PageRank, the sampler of the paper."""

import warnings
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.samplers._ball import BallWorkspace, ppr_ball
from oneshot.samplers._budget import Count, Ratio
from oneshot.samplers._extract import EdgeScore
from oneshot.samplers._pagerank import Transition, ppr, ppr_chebyshev
from oneshot.samplers._push import hub_index_for, ppr_push
from oneshot.samplers._select import choose_highest, counts_of_mass
from oneshot.samplers.base import Sampler, Selection, joined

Method = Literal["auto", "chebyshev", "power", "push", "ball"]

POWER_STEPS = 30

# When `method="auto"` uses a local method. Its cost grows with the budget, that of the block
# methods with the graph; on family graphs they are equal at a hundredth (`benchmarks/push.py`).
LOCAL_LARGEST_SHARE = 0.01
LOCAL_LEAST_GRAPH = 50_000
BALL_LARGEST_HUB = 1_000
# Facts from which on the push is used unmeasured: scores over the whole graph take seconds per
# query there, and two minutes for 10^8 facts.
PUSH_LEAST_FACTS = 20_000_000
# Share of the exact selection that the push must have found on sampled queries.
PUSH_LEAST_RECALL = 0.95


class PPRSampler(Sampler):
    """Personalized PageRank from `u`: how often a walk that restarts at `u` visits each entity.

    `restart`: probability of jumping back to `u` before a step. The official results use 0.15
        (the paper prints 0.85, which there is the probability of following a link).
    `method`: how the scores are computed; always on demand, nothing is precomputed.
        "chebyshev": a block of queries at once, 20 matrix products.
        "power": plain power iteration, 30 products; its errors are usually larger.
        "push": forward push with a degree tail, query by query, at a cost that hardly grows with
            the graph, with and without hubs. Uses the hub index of a saved graph if there is one.
            With `transition="paper"` as "ball".
        "ball": exact scores within a ball around `u`, query by query; slow and inaccurate on
            graphs with large hubs.
        "auto": on a CPU, for facts without weights, budgets of at most a hundredth of the entities
            and graphs of at least 50,000 entities: ball if no entity has more than 1,000
            neighbours; push if it was measured on the saved graph, with its hub index if there is
            one, and finds 0.95 of the exact selection (see `push_recall`), or if it was not
            measured and there are at least 20,000,000 facts. Otherwise chebyshev. The two local
            methods do not support weights.
    `steps`: number of matrix products; default 30 for power, otherwise at least 20, as `restart`
    needs. `ball_factor`: entities in the ball, as a multiple of `K`; more is slower and more
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
        edge_limit: int | None = None,
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
            edge_limit=edge_limit,
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
        self._workspace: BallWorkspace | None = None

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        if self.method == "power":
            steps = POWER_STEPS if self.steps is None else self.steps
            return ppr(graph, entities, self.restart, 0.0, steps, self.transition)
        return ppr_chebyshev(graph, entities, self.restart, self.steps, self.transition)

    def chosen_method(self, graph: AdjacencyGraph, most_entities: int) -> Method:
        """The method that "auto" selects for this graph and budget."""
        if self.method != "auto":
            return self.method
        is_local = (
            graph.device.type == "cpu"
            and graph.weights is None
            and most_entities <= LOCAL_LARGEST_SHARE * graph.num_entities
            and graph.num_entities >= LOCAL_LEAST_GRAPH
        )
        if not is_local:
            return "chebyshev"
        if graph.neighbours.largest_degree <= BALL_LARGEST_HUB:
            return "ball"
        index = hub_index_for(graph, self.restart)
        measured = graph.push_recall if index is None else graph.hub_recall
        if measured is None:
            if graph.num_facts < PUSH_LEAST_FACTS:
                return "chebyshev"
            warnings.warn(
                f'PPR uses method="push" on this graph of {graph.num_facts:,} facts, where its '
                "recall was not measured; `oneshot data DATA --save DIR` measures it and builds a "
                "hub index if one is needed",
                stacklevel=2,
            )
            return "push"
        return "chebyshev" if measured < PUSH_LEAST_RECALL else "push"

    def is_local(self, graph: AdjacencyGraph) -> bool:
        every = torch.arange(2 * graph.num_relations, device=graph.device)
        counts = self.budget.entity_counts(graph, every)
        return len(counts) > 0 and self._local_method(graph, counts) is not None

    def _local_method(self, graph: AdjacencyGraph, counts: Tensor) -> Method | None:
        """ "push" or "ball" if a local method is used for these numbers of entities, or None."""
        method = self.chosen_method(graph, int(counts.max()))
        if method == "push" and self.transition == "paper":
            return "ball"
        return method if method in ("push", "ball") else None

    def select(
        self, graph: AdjacencyGraph, queries: Tensor, include: Tensor | None = None
    ) -> Selection:
        if not self._may_be_local(graph, queries):
            return super().select(graph, queries, include)
        counts = self.budget.entity_counts(graph, queries[:, 1])
        method = self._local_method(graph, counts)
        if method is None:
            return super().select(graph, queries, include)
        if method == "push":
            return self._select_by_push(graph, queries, counts, include)
        return self._select_by_ball(graph, queries, counts, include)

    def _ranks(self, graph: AdjacencyGraph, queries: Tensor, targets: Tensor) -> Tensor:
        if not self._may_be_local(graph, queries):
            return super()._ranks(graph, queries, targets)
        counts = self.budget.entity_counts(graph, queries[:, 1])
        method = self._local_method(graph, counts)
        if method is None:
            return super()._ranks(graph, queries, targets)
        places = torch.empty(len(queries), dtype=torch.long, device=graph.device)
        for row, ((entity, _), target) in enumerate(
            zip(queries.tolist(), targets.tolist(), strict=True)
        ):
            if method == "push":
                found, scores = self._pushed(graph, queries[row, :1], counts[row : row + 1])
            else:
                found, scores = self._ball(graph, entity, int(counts[row]))
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

    def _may_be_local(self, graph: AdjacencyGraph, queries: Tensor) -> bool:
        """Whether a local method is possible, before reading the budget (which waits for a GPU)."""
        on_processor = graph.device.type == "cpu"
        return len(queries) > 0 and (
            self.method in ("push", "ball") or (self.method == "auto" and on_processor)
        )

    def _select_by_push(
        self, graph: AdjacencyGraph, queries: Tensor, counts: Tensor, include: Tensor | None
    ) -> Selection:
        """Entities of all queries by the local push."""
        masses = self.budget.masses(graph, queries[:, 1])
        entities = queries[:, 0]
        index = hub_index_for(graph, self.restart)
        pushed = ppr_push(graph, entities, counts, self.restart, include, hub_index=index)
        is_whole = not self.keep_unreachable or bool((pushed.counts == counts).all())
        columns = torch.arange(pushed.entities.shape[1], device=graph.device)
        row, column = (columns < pushed.counts[:, None]).nonzero().unbind(1)
        found, score = pushed.entities[row, column], pushed.score[row, column]
        order = (row * graph.num_entities + found).argsort()
        row, found, score = row[order], found[order], score[order]
        if include is None and masses is None and is_whole:
            return Selection(found, row, score)
        parts = []
        ends = pushed.counts.cumsum(0).tolist()
        for number, end in enumerate(ends):
            part = slice(end - int(pushed.counts[number]), end)
            near, near_score = found[part], score[part]
            if include is not None:
                wanted = include[number]
                more = wanted[(wanted >= 0) & ~torch.isin(wanted, near)].unique()
                places = (wanted == more[:, None]).int().argmax(1)
                near, order = torch.cat([near, more]).sort()
                near_score = torch.cat([near_score, pushed.probed[number, places]])[order]
            forced = None if include is None else include[number]
            limit = counts[number : number + 1]
            if masses is not None:
                first = torch.searchsorted(near, entities[number : number + 1])
                one = near_score.new_ones(1)  # the scores of all entities add up to 1
                limit = counts_of_mass(
                    near_score[None], first, limit, masses[number : number + 1], one
                )
            parts.append(self._choose_near(graph, queries, number, near, near_score, limit, forced))
        return joined(parts, queries)

    def _pushed(
        self, graph: AdjacencyGraph, entity: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The `count` [1] entities of highest score around `entity` [1], sorted by id."""
        index = hub_index_for(graph, self.restart)
        pushed = ppr_push(graph, entity, count, self.restart, hub_index=index)
        size = int(pushed.counts)
        found, order = pushed.entities[0, :size].sort()
        return found, pushed.score[0, order]

    def _select_by_ball(
        self, graph: AdjacencyGraph, queries: Tensor, counts: Tensor, include: Tensor | None
    ) -> Selection:
        parts = []
        masses = self.budget.masses(graph, queries[:, 1])
        for row, (entity, _) in enumerate(queries.tolist()):
            limit = counts[row : row + 1]
            found, scores = self._ball(graph, entity, int(limit))
            if masses is not None:
                # Share of the score in the ball; there is almost none outside.
                first = torch.searchsorted(found, queries[row, :1])
                limit = counts_of_mass(scores[None], first, limit, masses[row : row + 1])
            forced = None if include is None else include[row]
            parts.append(self._choose_near(graph, queries, row, found, scores, limit, forced))
        return joined(parts, queries)

    def _choose_near(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        row: int,
        found: Tensor,
        scores: Tensor,
        limit: Tensor,
        include: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The `limit` [1] entities of one query from the found ones [m], sorted, with scores [m].

        → (entities, query, score). The rest of the graph has score 0: only forced entities and, to
        fill up the number, the lowest ids can be chosen from it.
        """
        forced = queries[row, :1]
        if include is not None:
            forced = torch.cat([forced, include])
            forced = forced[forced >= 0].unique()
        most = min(int(limit) + len(found), graph.num_entities)
        others = torch.arange(most, device=graph.device)
        candidates = torch.cat([found, forced, others]).unique()
        dense = torch.zeros(len(candidates), device=graph.device)
        dense[torch.searchsorted(candidates, found)] = scores
        chosen, _, score = choose_highest(
            dense[None],
            limit,
            torch.searchsorted(candidates, forced)[None],
            self.keep_unreachable,
        )
        return candidates[chosen], torch.full_like(chosen, row), score

    def _ball(self, graph: AdjacencyGraph, entity: int, count: int) -> tuple[Tensor, Tensor]:
        """Scores in a ball around one entity, enough to choose `count` entities."""
        # Removed while in use: an interrupted push leaves it dirty, and it is not put back.
        workspace, self._workspace = self._workspace, None
        if workspace is None or not workspace.fits(graph):
            workspace = BallWorkspace(graph)
        size = min(max(int(self.ball_factor * count), 100), graph.num_entities)
        found, scores = ppr_ball(graph, entity, self.restart, size, workspace, self.steps)
        self._workspace = workspace
        if self.transition == "paper":
            places = torch.cat([found, found.new_tensor([entity])])
            degree = graph.neighbours.degree_of(places).clamp(min=1)
            scores = scores / degree[:-1] * degree[-1]
        return found, scores
