"""FittedSampler: entities near the query entity by PPR, and likely answers by a fitted score."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from oneshot.data.dataset import both_directions
from oneshot.errors import InputError
from oneshot.graph.adjacency import AdjacencyGraph
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.graph.vocabulary import Vocabulary
from oneshot.samplers._answer_counts import NUM_FEATURES, AnswerCounts
from oneshot.samplers._budget import Ratio, by_relation, numbers_of
from oneshot.samplers._push import push_scores
from oneshot.samplers._select import choose_highest
from oneshot.samplers.ppr import PPRSampler
from oneshot.subgraph import SubgraphBatch
from oneshot.system.hashed_random import integers, permuted, uniform

# Added to PPR scores before the logarithm; below the scores of all relevant entities.
_FLOOR = 1e-7
# Default weights if nothing was fitted: approximate values for various graphs.
_DEFAULT = (1.0, 0.4, 1.0, 0.3, 0.8, -0.8, 5.0)
# Training facts that are removed from the graph as queries: maximum number and share.
FITTED_FACTS, FITTED_SHARE = 4000, 0.1
# Negatives of an answer: the highest by PPR, the most likely of the relation, and a random sample,
# which represents all others.
_NEAR, _LIKELY, _RANDOM = 128, 128, 128
# Regularization of the weights of a relation towards the shared weights, and of these towards 0.
_HELD, _HELD_ALL = 0.3, 0.1
_ITERATIONS = 60
# Maximum number of entries of a table over relations and entities that is cached per graph.
_TABLE = 1 << 27
_BIG = 1e30
_WEIGHTS, _SHARED, _CONTEXT = "weights", "shared", "context"
# Share of the budget for PPR: the default, and larger ones that a relation may have instead.
DEFAULT_CONTEXT = 0.5
_CONTEXTS = (DEFAULT_CONTEXT, 0.625, 0.75, 0.875, 1.0)
# Maximum number of queries by which they are compared, the number of standard errors by which a
# larger share must be better, and the number of queries at which half of the change is made.
_COMPARED, _ERRORS, _SHRINKAGE = 2000, 1.64, 20
# Steps per unit of a score, in which scores are compared regardless of rounding.
_STEPS = 10_000
# Entities whose PPR is computed on large graphs, as a multiple of the budget.
_NEAREST = 4
# Instead of a share of the budget that is 0.
_LEAST_SHARE = 1e-9
# Minimum number of facts for a fit.
_LEAST_FACTS = 10
# Cache of the last fit in this process: trials and probes on one graph repeat it.
_FITS = 8
_fits: dict[tuple[Any, ...], "_Weights"] = {}
_shares: dict[tuple[Any, ...], Tensor] = {}
# Scores by which budgets are compared, of the last fit to a small graph, and the maximum number of
# their entries: only the comparison depends on the budget.
_last_scored: dict[tuple[Any, ...], list["_Scored"]] = {}
_SCORED = 1 << 22

warn = logging.getLogger(__name__).warning
"""Receiver of the messages of a fit."""


class _Weights(NamedTuple):
    """Weights of the features: per relation [2R, f], and shared ones [f] for other relations."""

    relations: Tensor
    shared: Tensor


class _Scored(NamedTuple):
    """Some of the held-out queries [n, 2] with `answers` [n], at `rows` [n] of all of them.

    `near`, `likely` [n, V]: PPR and likelihood.
    """

    rows: Tensor
    queries: Tensor
    answers: Tensor
    near: Tensor
    likely: Tensor


class _Examples(NamedTuple):
    """Queries with the features of the answer and its negatives.

    `features` [n, c, f], the answer in the first column; `offset` [n, c]: the logarithm of the
    number of entities that each one represents, -∞ for none; `relation` [n].
    """

    features: Tensor
    offset: Tensor
    relation: Tensor


class _HeldOut(NamedTuple):
    """Facts that are removed from a graph, as queries in both directions, in random order.

    `observed`: the graph without them, with `counts`; `queries` [n, 2]; `answers` [n]. The facts
    depend on the seed and their entities alone, all facts of a pair of entities or none of them; on
    graphs that are not copied, they depend on their places.
    """

    observed: KnowledgeGraph
    counts: AnswerCounts
    queries: Tensor
    answers: Tensor

    @classmethod
    def of(cls, graph: KnowledgeGraph, seed: int, is_copied: bool) -> "_HeldOut":
        number = max(min(FITTED_FACTS, int(FITTED_SHARE * graph.num_facts)), 1)
        if is_copied:
            head, _, tail = graph.facts.long().unbind(1)
            drawn = uniform(seed, head, tail)
            is_taken = drawn <= drawn.kthvalue(number).values
            taken = is_taken.nonzero().squeeze(1)
            taken = taken[drawn[taken].argsort(stable=True)]
            observed = graph.subset(~is_taken.cpu())
        else:  # by their places: not all facts are read
            taken = permuted(torch.arange(number), graph.num_facts, seed)
            observed = graph.hiding(taken)
        facts = graph.facts[taken.to(graph.device)].long()
        # Both directions of a fact one after the other, so that any first part has both.
        queries, answers = both_directions(facts, graph.num_relations)
        order = torch.arange(len(queries), device=graph.device).view(2, -1).t().flatten()
        return cls(observed, AnswerCounts(observed), queries[order], answers[order])


class FittedSampler(PPRSampler):
    """Chooses a share of the budget by PPR, and the rest by the likelihood of being the answer.

    PPR depends on the query entity but not on the relation. The fitted score is linear in features
    of query, relation and entity: log PPR, and how often the entity and similar ones are answers of
    the relation (see `AnswerCounts`). `fit` learns its weights in seconds, from facts that it
    removes from the graph and uses as queries: shared weights, and deviations per relation.

    In the subgraphs, `score` is the likelihood of an entity relative to a random one: the
    exponential of the fitted score divided by its mean.

    On large graphs on which PPR uses the local push (see `PPRSampler`), so does the likelihood: its
    cost per query is then that of a few passes over the entities, instead of passes over all facts.

    `context`: share of the budget chosen by PPR, for the paths between query entity and answer, or
    a table by relation name, as for the budgets. None: one half, and more for the relations of
    which PPR covers more of the removed facts with the budget at hand. Never less, as a subgraph of
    likely answers alone has no paths.
    Unreachable entities can be among the likely answers, regardless of `keep_unreachable`.
    `weights` [2R, 7]: per relation, in the order of the features; None before `fit`, when default
    weights are used. On another graph, relations are matched by name, and `shared` [7] are the
    weights of those that were not fitted. `shares` [2R]: the share of PPR per relation, if it was
    fitted.
    """

    name = "fitted"
    options = (*PPRSampler.options, "context")
    scores_answers = True

    def __init__(self, *arguments: Any, context: Ratio | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for value in numbers_of(context, "context"):
            if not 0 <= value <= 1:
                raise InputError(f"context must be from 0 to 1, not {value}")
        self.context = context
        self.weights: Tensor | None = None
        self.shared: Tensor | None = None
        self.shares: Tensor | None = None
        self._relations: Vocabulary | None = None  # names of the relations of `weights`
        self._matched: WeakKeyDictionary[AdjacencyGraph, Tensor] = WeakKeyDictionary()
        self._contexts: WeakKeyDictionary[AdjacencyGraph, Tensor] = WeakKeyDictionary()
        self._tables: WeakKeyDictionary[AdjacencyGraph, Tensor] = WeakKeyDictionary()
        self._counts: WeakKeyDictionary[AdjacencyGraph, AnswerCounts] = WeakKeyDictionary()

    def fit(self, graph: KnowledgeGraph, seed: int = 0) -> None:
        """Learn the weights from facts of the graph; deterministic for a graph and seed.

        The ids of the relations and the order of the facts change the weights only by rounding.
        """
        graph = graph.host or graph
        options = (self.restart, self.steps, self.method, self.transition, graph.device.type)
        # Scores over the whole graph are the same for all budgets, those by the push are not.
        key = (graph.fingerprint, seed, *options, self._nearest(graph))
        held_out: list[_HeldOut] = []  # made when it is needed, once

        def held() -> _HeldOut:
            if not held_out:
                is_copied = not (graph.is_mapped and self.is_local(graph))
                held_out.append(_HeldOut.of(graph, seed, is_copied))
            return held_out[0]

        if key not in _fits:
            _remember(_fits, key, self._fitted(graph, held, seed))
        weights = _fits[key]
        parameters = {_WEIGHTS: weights.relations, _SHARED: weights.shared}
        self.take(parameters, graph.relations)
        if self.context is not None:
            return
        every = torch.arange(2 * graph.num_relations, device=graph.device)
        counts = self.budget.entity_counts(graph, every)
        of_budget = (*key, counts.cpu().numpy().tobytes())
        if of_budget not in _shares:
            _remember(_shares, of_budget, self._fitted_shares(graph, held, counts, key))
        self.take(parameters | {_CONTEXT: _shares[of_budget]}, graph.relations)

    def parameters(self, graph: AdjacencyGraph | None = None) -> dict[str, Tensor]:
        weights, shares = self.weights, self.shares
        if weights is None or self.shared is None:
            return {}
        if graph is not None:
            weights = self._matching(graph, weights, self.shared[None])
            shares = None if shares is None else self._matching_shares(graph, shares)
        parameters = {_WEIGHTS: weights, _SHARED: self.shared}
        return parameters if shares is None else parameters | {_CONTEXT: shares}

    def check_names(self, graph: AdjacencyGraph) -> None:
        super().check_names(graph)
        by_relation(graph, self.context or 0, 0)

    def take(self, parameters: dict[str, Tensor], relations: Vocabulary | None = None) -> None:
        weights, shared = parameters.get(_WEIGHTS), parameters.get(_SHARED)
        if weights is not None and weights.dim() == 2 and shared is None and len(weights):
            shared = weights.mean(0)  # earlier versions did not save it
        size, shares = len(_DEFAULT), parameters.get(_CONTEXT)
        if (
            weights is None
            or shared is None
            or weights.dim() != 2
            or weights.shape[1] != size
            or shared.shape != (size,)
            or parameters.keys() - {_WEIGHTS, _SHARED, _CONTEXT}
            or (shares is not None and shares.shape != weights.shape[:1])
            or not (shares is None or bool(((shares >= 0) & (shares <= 1)).all()))
            or not bool(weights.isfinite().all() & shared.isfinite().all())
            or (relations is not None and len(weights) != 2 * len(relations))
        ):
            raise InputError("these are not the weights of a fitted sampler")
        self.weights, self.shared, self._relations = weights.float(), shared.float(), relations
        self.shares = None if shares is None else shares.double()
        self._tables, self._matched = WeakKeyDictionary(), WeakKeyDictionary()
        self._contexts = WeakKeyDictionary()

    def likelihoods(
        self, graph: AdjacencyGraph, queries: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        here = graph.host or graph
        queries = queries.to(here.device)
        for rows, near in self._score_blocks(here, queries[:, 0]):
            likely = self._likelihood(here, queries[rows, 1], near)
            yield rows.to(graph.device), likely.to(graph.device)

    def scores(self, graph: AdjacencyGraph, entities: Tensor) -> Tensor:
        most = self._nearest(graph)
        if most:
            # The likelihood is over all entities. Beyond the nearest, PPR adds hardly anything to
            # it, and the degree tail is accurate enough.
            return push_scores(graph, entities, most, self.restart)
        return super().scores(graph, entities)

    def is_local(self, graph: AdjacencyGraph) -> bool:
        return self._nearest(graph) > 0

    def _nearest(self, graph: AdjacencyGraph) -> int:
        """Number of entities whose PPR the local push computes; 0 if it is not used."""
        every = torch.arange(2 * graph.num_relations, device=graph.device)
        counts = self.budget.entity_counts(graph, every)
        is_local = len(counts) > 0 and self._local_method(graph, counts) == "push"
        return _NEAREST * int(counts.max()) if is_local else 0

    def _may_be_local(self, graph: AdjacencyGraph, queries: Tensor) -> bool:
        return False  # the likelihood is over all entities

    def _choose(
        self,
        graph: AdjacencyGraph,
        queries: Tensor,
        scores: Tensor,
        counts: Tensor,
        forced: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        likely = self._likelihood(graph, queries[:, 1], scores)
        # Entities chosen by PPR come before all others.
        share = self._share(graph, queries[:, 1], counts)
        context, row, _ = choose_highest(scores, share, forced[:, :1], False)
        wanted = likely.clone()
        wanted[row, context] = _BIG
        entities, query, _ = choose_highest(wanted, counts, forced, True)
        return entities, query, likely[query, entities]

    def priority(self, graph: AdjacencyGraph, batch: SubgraphBatch, rows: Tensor) -> Tensor:
        """A smaller budget keeps its share of context: likely answers alone would starve the paths.

        The negative of the budget from which on an entity is chosen, about: by PPR at its rank by
        PPR over `context`, as a likely answer at its rank by likelihood over the other share.
        """
        value = batch.score.double()
        context = self._context(graph, batch.queries[rows, 1]).tolist()
        for part, near in self._score_blocks(graph, batch.queries[rows, 0]):
            asked = zip(rows[part].tolist(), part.tolist(), strict=True)
            for place, (query, number) in enumerate(asked):
                mine = (batch.entity_query == query).nonzero().squeeze(1)
                ppr = near[place, batch.entities[mine]]
                by_ppr = _places(ppr) / max(context[number], _LEAST_SHARE)
                by_ppr[ppr == 0] = torch.inf  # never chosen by PPR
                likely = _places(batch.score[mine]) / max(1 - context[number], _LEAST_SHARE)
                value[mine] = -torch.minimum(by_ppr, likely)
        return value

    def _ranks(self, graph: AdjacencyGraph, queries: Tensor, targets: Tensor) -> Tensor:
        places = torch.empty(len(queries), dtype=torch.long, device=graph.device)
        for rows, near in self._score_blocks(graph, queries[:, 0]):
            likely = self._likelihood(graph, queries[rows, 1], near)
            places[rows] = self._places(graph, near, likely, queries[rows], targets[rows])
        return places

    def _places(
        self,
        graph: AdjacencyGraph,
        near: Tensor,
        likely: Tensor,
        queries: Tensor,
        targets: Tensor,
    ) -> Tensor:
        """The smallest budget with which each target is sampled, minus one: [b].

        `near`, `likely` [b, V]: PPR and likelihood; `queries` [b, 2], `targets` [b]. A sampled
        entity is also sampled with any larger budget, so binary search finds the smallest.
        """
        first, relations = queries.unbind(1)
        rows = torch.arange(len(near), device=near.device)
        near[rows, first] = torch.inf
        order = near.argsort(dim=1, descending=True, stable=True)
        place = torch.empty_like(order)
        place.scatter_(1, order, torch.arange(near.shape[1], device=near.device).expand_as(order))
        reachable = (near > 0).sum(1)
        place[near == 0] = near.shape[1]  # never chosen by PPR
        own = place[rows, targets]
        value = likely[rows, targets][:, None]
        ids = torch.arange(near.shape[1], device=near.device)
        better = (likely > value) | ((likely == value) & (ids < targets[:, None]))
        low, high = torch.ones_like(own), torch.full_like(own, near.shape[1])
        while bool((low < high).any()):
            budget = (low + high) // 2
            share = self._share(graph, relations, budget)
            ahead = (better & (place >= share[:, None])).sum(1) + torch.minimum(share, reachable)
            is_sampled = (own < share) | (ahead < budget)
            low = torch.where(is_sampled, low, budget + 1).clamp(max=near.shape[1])
            high = torch.where(is_sampled, budget, high)
        return low - 1

    def _share(self, graph: AdjacencyGraph, relations: Tensor, budget: Tensor) -> Tensor:
        """Number of entities chosen by PPR for query relations and budgets [b]."""
        context = self._context(graph, relations)
        return (budget.double() * context).ceil().long().clamp(min=1)

    def contexts(self, graph: AdjacencyGraph) -> Tensor:
        """The share of PPR for every relation and inverse of a graph, float64 [2R]."""
        every = torch.arange(2 * graph.num_relations, device=graph.device)
        return self._context(graph, every)

    def _context(self, graph: AdjacencyGraph, relations: Tensor) -> Tensor:
        """The share of PPR for query relations [b]: float64 [b]."""
        if graph not in self._contexts:
            self._contexts[graph] = self._contexts_of(graph)
        return self._contexts[graph][relations]

    def _contexts_of(self, graph: AdjacencyGraph) -> Tensor:
        """The share of PPR for every relation and inverse of a graph, float64 [2R]."""
        if self.context is None and self.shares is not None:
            return self._matching_shares(graph, self.shares).to(graph.device)
        context = DEFAULT_CONTEXT if self.context is None else self.context
        values = by_relation(graph, context, DEFAULT_CONTEXT)
        return torch.tensor(values, dtype=torch.float64, device=graph.device)

    def _likelihood(self, graph: AdjacencyGraph, relations: Tensor, near: Tensor) -> Tensor:
        """Likelihood of each entity relative to a random one: PPR [b, V] → [b, V]."""
        weights = self._weights(graph)[relations]
        z = (near + _FLOOR).log_().mul_(weights[:, :1])
        z += self._table(graph, relations)
        z += weights[:, -1:] * (near == 0)
        return z.softmax(1).mul_(graph.num_entities)

    def _weights(self, graph: AdjacencyGraph) -> Tensor:
        if self.weights is None or self.shared is None:
            return _default_weights(graph).relations
        if graph not in self._matched:
            matched = self._matching(graph, self.weights, self.shared[None])
            self._matched[graph] = matched.to(graph.device)
        return self._matched[graph]

    def _matching(self, graph: AdjacencyGraph, own: Tensor, shared: Tensor) -> Tensor:
        """The rows of every relation and inverse of a graph, [2R, …].

        `own`: those of the relations that were fitted; `shared` [1, …]: that of all others.
        """
        names, count = self._relations, len(own) // 2
        if names is None and count != graph.num_relations:
            raise InputError(
                f"the sampler was fitted to {count} relations, the graph has {graph.num_relations}"
            )
        if names is None or names is graph.relations or names == graph.relations:
            return own
        found = [names.get(name) for name in graph.relations]
        forward = [2 * count if place is None else place for place in found]
        inverse = [2 * count if place is None else place + count for place in found]
        return torch.cat([own, shared])[[*forward, *inverse]]

    def _matching_shares(self, graph: AdjacencyGraph, shares: Tensor) -> Tensor:
        """The fitted share of PPR for every relation and inverse of a graph, [2R]."""
        return self._matching(graph, shares, shares.new_full((1,), DEFAULT_CONTEXT))

    def _table(self, graph: AdjacencyGraph, relations: Tensor) -> Tensor:
        """The part of the score that does not depend on the query entity: [b] → [b, V]."""
        if graph not in self._counts:
            self._counts[graph] = AnswerCounts(graph)
        counts = self._counts[graph]
        if counts.num_relations * counts.num_entities > _TABLE:
            distinct, which = relations.unique(return_inverse=True)
            return self._static(graph, counts, distinct)[which]
        if graph not in self._tables:
            every = torch.arange(counts.num_relations, device=graph.device)
            self._tables[graph] = self._static(graph, counts, every)
        return self._tables[graph][relations]

    def _static(self, graph: AdjacencyGraph, counts: AnswerCounts, relations: Tensor) -> Tensor:
        weights = self._weights(graph)[relations, 1 : 1 + NUM_FEATURES]
        return counts.weighted(relations, weights)

    # fitting ------------------------------------------------------------------------------------

    def _fitted(self, graph: KnowledgeGraph, held: Callable[[], _HeldOut], seed: int) -> _Weights:
        """Weights that are fitted to a graph; the default ones if that is not possible."""
        if graph.num_facts < _LEAST_FACTS or not held().observed.num_facts:
            return _default_weights(graph)
        found = _fitted(self._examples(graph, held(), seed), 2 * graph.num_relations)
        if found is None:
            warn("the fit of the sampler diverged; it has its default weights")
            return _default_weights(graph)
        return found

    def _examples(self, graph: KnowledgeGraph, held: _HeldOut, seed: int) -> _Examples:
        # Few relations at once, because the features of an entity depend on nothing else.
        order = held.queries[:, 1].argsort(stable=True)
        known = KnownFacts.of_graph(graph)
        parts = [
            self._compared(held, held.queries[part], held.answers[part], known, seed)
            for part in order.split(_block(graph))
        ]
        # The order of the facts taken: sums are then the same whatever ids the relations have.
        back = order.argsort()
        return _Examples(*(torch.cat(column)[back] for column in zip(*parts, strict=True)))

    def _fitted_shares(
        self,
        graph: KnowledgeGraph,
        held: Callable[[], _HeldOut],
        counts: Tensor,
        key: tuple[Any, ...],
    ) -> Tensor:
        """The share of PPR per relation, with budgets of `counts` [2R] entities: [2R].

        `key`: of the fit, for what other budgets have in common.
        """
        default = torch.full(counts.shape, DEFAULT_CONTEXT, dtype=torch.float64)
        if graph.num_facts < _LEAST_FACTS or bool((counts >= graph.num_entities).all()):
            return default
        scored: Iterable[_Scored] | None = _last_scored.get(key)
        if scored is None:
            if not held().observed.num_facts:
                return default
            scored = self._scored(graph, held())
            entries = min(len(held().queries), _COMPARED) * graph.num_entities
            if entries <= _SCORED and not self.is_local(graph):
                _last_scored.clear()
                scored = _last_scored[key] = list(scored)
        found: list[Tensor] = []
        for part in scored:
            budget = counts[part.queries[:, 1]]
            hits = _covered(part.near, part.likely, part.queries[:, 0], part.answers, budget)
            asked = torch.stack([part.rows, part.queries[:, 1]])
            found.append(torch.cat([asked.double(), hits.double()]))
        table = torch.cat(found, dim=1).cpu()
        table = table[:, table[0].argsort()]
        return _best_shares(table[2:], table[1].long(), len(counts))

    def _scored(self, graph: KnowledgeGraph, held: _HeldOut) -> Iterator[_Scored]:
        """The scores of the held-out queries by which budgets are compared."""
        observed, counter, *asked = held
        queries, answers = (column[:_COMPARED] for column in asked)
        self._counts[observed] = counter
        for rows in queries[:, 1].argsort(stable=True).split(_block(graph)):
            near = self.scores(observed, queries[rows, 0])
            likely = self._likelihood(observed, queries[rows, 1], near)
            yield _Scored(rows, queries[rows], answers[rows], near, likely)

    def _compared(
        self, held: _HeldOut, queries: Tensor, answers: Tensor, known: KnownFacts, seed: int
    ) -> _Examples:
        graph = held.observed
        entities, relations = queries.unbind(1)
        near = self.scores(graph, entities)
        distinct, which = relations.unique(return_inverse=True)
        about = held.counts.features(distinct)
        size = graph.num_entities
        nearest = _highest((near + _FLOOR).log(), _NEAR)
        default = torch.tensor(_DEFAULT[1 : 1 + NUM_FEATURES], device=graph.device)
        likeliest = _highest(about @ default, _LIKELY)[which]
        columns = torch.arange(_RANDOM, device=graph.device)
        drawn = integers(seed, size, entities[:, None], columns)
        chosen = torch.cat([answers[:, None], nearest, likeliest], dim=1)
        listed = torch.cat([chosen, drawn], dim=1)
        again = _repeated(listed)
        others = (size - (~again[:, : chosen.shape[1]]).sum(1)).clamp(min=1).float()
        offset = torch.zeros(listed.shape, device=graph.device)
        offset[:, chosen.shape[1] :] = (others / _RANDOM).log()[:, None]
        offset.masked_fill_(again | known.holds(queries, listed), -math.inf)
        offset[:, 0] = 0
        at = near.gather(1, listed)
        features = [
            (at + _FLOOR).log()[..., None],
            about[which[:, None], listed],
            (at == 0).float()[..., None],
        ]
        return _Examples(torch.cat(features, dim=-1), offset, relations)


def _block(graph: AdjacencyGraph) -> int:
    """Number of queries that are scored at once in a fit."""
    return 32 if graph.device.type == "cpu" else 256


def _remember(fits: dict[tuple[Any, ...], Any], key: tuple[Any, ...], fit: Any) -> None:
    while len(fits) >= _FITS:
        del fits[next(iter(fits))]
    fits[key] = fit


def _covered(
    near: Tensor, likely: Tensor, first: Tensor, answers: Tensor, budget: Tensor
) -> Tensor:
    """Whether the answers are sampled with each share of PPR in `_CONTEXTS`: bool [c, b].

    `near`, `likely` [b, V]: PPR, which is overwritten, and likelihood; `first`, `answers`, `budget`
    [b]. Entities of equal PPR at the end of a share all belong to it.
    """
    rows = torch.arange(len(near), device=near.device)
    near[rows, first] = torch.inf
    reachable = (near > 0).sum(1)
    nearest = near.topk(int(budget.max()), dim=1).values
    own, better = near[rows, answers], likely > likely[rows, answers][:, None]
    found = []
    for context in _CONTEXTS:
        share = (budget.double() * context).ceil().long().clamp(min=1)
        least = nearest.gather(1, share[:, None] - 1)
        ahead = (better & ((near < least) | (near == 0))).sum(1) + torch.minimum(share, reachable)
        is_near = (own >= least.squeeze(1)) & (own > 0)
        found.append(is_near | (ahead < budget))
    return torch.stack(found)


def _best_shares(hits: Tensor, relations: Tensor, num_relations: int) -> Tensor:
    """The share of PPR of each relation, by the covered queries of each share: [num_relations].

    `hits` float64 [c, n] of 0 and 1; `relations` [n]. Relations with few queries stay near the
    default, and those without evidence keep it.
    """
    contexts = torch.tensor(_CONTEXTS, dtype=torch.float64)
    change = hits - hits[:1]
    gain, moved = (
        torch.zeros(len(contexts), num_relations, dtype=torch.float64).index_add_(
            1, relations, part
        )
        for part in (change, change.square())
    )
    best = (gain - _ERRORS * moved.sqrt()).argmax(0)  # 0 for the default; of equal ones, the first
    count = torch.bincount(relations, minlength=num_relations).double()
    chosen: Tensor = contexts[0] + (contexts[best] - contexts[0]) * count / (count + _SHRINKAGE)
    return chosen


def _default_weights(graph: AdjacencyGraph) -> _Weights:
    default = torch.tensor(_DEFAULT, device=graph.device)
    return _Weights(default.repeat(2 * graph.num_relations, 1), default)


def _highest(values: Tensor, count: int) -> Tensor:
    """The `count` highest columns of each row, [n, m] → int64 [n, count].

    Values that differ by rounding count as equal; of equal ones, the first.
    """
    size = values.shape[1]
    columns = torch.arange(size, device=values.device)
    keys = (values * _STEPS).round().long() * size + (size - 1 - columns)
    return keys.topk(min(count, size), dim=1).indices


def _places(values: Tensor) -> Tensor:
    """The place of each value [n] in descending order, from 1: float64 [n]."""
    places = torch.empty(len(values), dtype=torch.float64, device=values.device)
    order = values.argsort(descending=True, stable=True)
    places[order] = torch.arange(1, len(values) + 1, dtype=torch.float64, device=values.device)
    return places


def _repeated(entities: Tensor) -> Tensor:
    """Which entities of each row [n, c] also occur further left in it: bool [n, c]."""
    ordered, order = entities.sort(dim=1, stable=True)
    again = torch.zeros_like(entities, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter_(1, order, again)


class _DivergedError(Exception):
    """The loss of a fit is not finite."""


def _fitted(examples: _Examples, num_relations: int) -> _Weights | None:
    """The fitted weights of `num_relations` relations; None if the fit diverges.

    Softmax cross-entropy. Relations with few examples stay near the shared weights. In float64, as
    the steps of the optimizer would amplify rounding.
    """
    relation, features = examples.relation, examples.features.double()
    scale = features.flatten(0, 1).std(0).clamp(min=0.1)
    features /= scale
    shared = (torch.tensor(_DEFAULT).to(scale) * scale).requires_grad_()
    own = scale.new_zeros(num_relations, len(scale)).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [shared, own], max_iter=_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        z = (features @ (shared + own[relation])[..., None]).squeeze(-1) + examples.offset
        held = _HELD * own.square().sum() + _HELD_ALL * shared.square().sum()
        total = (z.logsumexp(1) - z[:, 0]).mean() + held / len(relation)
        if not bool(total.isfinite()):
            raise _DivergedError
        total.backward()
        return total

    try:
        optimizer.step(loss)
    except _DivergedError:
        return None
    weights = ((shared + own) / scale).detach().float()
    found = _Weights(weights, (shared / scale).detach().float())
    return found if all(bool(part.isfinite().all()) for part in found) else None
