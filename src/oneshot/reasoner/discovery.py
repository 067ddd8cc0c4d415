"""Discovery: the most likely facts that a graph lacks.

Scoring all triples is impossible: a graph with 10,000 entities and 100 relations has 10^10 of them.
Instead, each relation is asked about the entities that can be its heads: those that are, and those
that occur with the same other relations. Of the answers that are not facts of the graph, the best
are asked in the other direction as well, and the two judgements are combined.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.answers import check_list
from oneshot.reasoner.batch_size import BatchSize, in_batches
from oneshot.reasoner.judgement import (
    Judged,
    ScoredFact,
    ScoredFacts,
    best_of_each,
    judge,
    logits_of,
    missing_logits,
    probability_of,
    query_features,
    query_logsumexp,
    several_answers,
)
from oneshot.samplers._answer_counts import AnswerCounts

if TYPE_CHECKING:
    from oneshot.reasoner.reasoner import Reasoner

LEAST_SHARE = 0.5
"""An entity can be a head if, for a relation that it occurs with, at least this share of the
entities that occur with it are heads."""
# Facts that are asked in the other direction, as a multiple of those that are returned, and at
# least: one direction alone may prefer others.
_CHECKED, _LEAST_CHECKED = 4, 400
# Answers per query that are considered, at least.
_ANSWERS = 10
# A relation is symmetric, or reflexive, if at least this share of its facts is.
_SYMMETRIC = 0.9


@dataclass(frozen=True)
class Search:
    """What to discover.

    `relations`, `entities`, `heads`: ids; None for all. The entities are heads or tails of the
    facts. `min_probability`: of the returned facts.
    """

    relations: Sequence[int] | None = None
    entities: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    top: int = 100
    min_probability: float = 0.0

    def __post_init__(self) -> None:
        if self.top < 1:
            raise InputError(f"top must be at least 1, not {self.top}")
        if not 0 <= self.min_probability <= 1:
            raise InputError(f"min_probability must be from 0 to 1, not {self.min_probability}")

    @classmethod
    def named(
        cls,
        reasoner: "Reasoner",
        relations: Sequence[str | int] | None,
        entities: Sequence[str | int] | None,
        types: Sequence[str | tuple[str | int, str | int]],
        top: int,
        min_probability: float,
    ) -> Self:
        """A search for facts of relations and entities that are given by name or id."""
        for name, value in (("relations", relations), ("entities", entities), ("types", types)):
            check_list(name, value)
        count = reasoner.graph.num_relations
        labels = None
        if relations is not None:
            # A fact of an inverse relation is one of the relation itself.
            labels = [reasoner.relation_id(relation) % count for relation in relations]
        ends = None if entities is None else [reasoner.entity_id(entity) for entity in entities]
        heads = reasoner.entities_of_types(types).tolist() if types else None
        return cls(labels, ends, heads, top, min_probability)


Fact = tuple[int, int, int]


class Facts(NamedTuple):
    """The facts that are no discoveries.

    `graph`: those of the graph; `further`: known ones that it lacks. `several` [2R]: see
    `several_answers`.
    """

    graph: KnownFacts
    further: KnownFacts
    several: Tensor


@dataclass
class Discovery:
    """The progress of a discovery, from which it can resume.

    `asked`: number of queries done in the first direction, in the order of relations and heads.
    `best`: the facts of highest score so far, a heap of (score, fact). `judged`: the judgements of
    these facts in both directions, as far as they are known, in the order of `facts`; each a row
    with the columns of `Judged`.
    """

    asked: int = 0
    best: list[tuple[float, Fact]] = field(default_factory=list)
    judged: tuple[list[list[float]], list[list[float]]] = field(default_factory=lambda: ([], []))

    @property
    def queries(self) -> int:
        """Number of queries done in both directions."""
        return self.asked + sum(map(len, self.judged))

    def add(self, score: float, fact: Fact, most: int) -> None:
        """Keep a fact if it is among the `most` best."""
        if len(self.best) < most:
            heapq.heappush(self.best, (score, fact))
        elif score > self.best[0][0]:
            heapq.heapreplace(self.best, (score, fact))

    def facts(self) -> list[Fact]:
        """The distinct facts, best first."""
        ordered = sorted(self.best, key=lambda pair: (-pair[0], pair[1]))
        return list(dict.fromkeys(fact for _, fact in ordered))


def num_queries(reasoner: "Reasoner", search: Search) -> int:
    """Number of queries that `discover` asks at most, in both directions."""
    asked = sum(len(ends) for _, ends in _candidates(reasoner.graph, search))
    return asked + 2 * min(_num_checked(search), _answers_per_query(search, asked) * asked)


def _num_checked(search: Search) -> int:
    """Maximum number of facts that are asked in the other direction."""
    return max(_CHECKED * search.top, _LEAST_CHECKED)


def _answers_per_query(search: Search, queries: int) -> int:
    """Answers per query that are considered: of few queries more, so that there is a choice."""
    return max(_ANSWERS, -(-_CHECKED * search.top // max(queries, 1)))


def discover(
    reasoner: "Reasoner",
    search: Search,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
    begun: Discovery | None = None,
    keep: Callable[[Discovery], None] = lambda _: None,
    known: Tensor | None = None,
) -> ScoredFacts:
    """See `Reasoner.discover`.

    `begun`: the progress of an interrupted discovery with the same reasoner, search and known
    facts, which is resumed. `keep` is called with the progress after each batch.
    """
    graph = reasoner.graph
    sizes = graph.num_entities, graph.num_relations
    if search.min_probability > 0 and reasoner.calibration is None:
        raise InputError(
            "min_probability needs a calibrated reasoner: train it with a validation split"
        )
    near = graph.host or graph
    further = near.facts[:0] if known is None else reasoner.checked_facts(known).to(near.facts)
    facts = Facts(
        KnownFacts(near.facts, *sizes).to(reasoner.device),
        KnownFacts(further, *sizes).to(reasoner.device),
        several_answers(near.facts.long(), graph.num_relations),
    )
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    state = Discovery() if begun is None else begun

    def advance(queries: int) -> None:
        keep(state)
        if progress is not None:
            progress(queries)

    if progress is not None and state.queries:
        progress(state.queries)
    every = list(_candidates(graph, search))
    count = _answers_per_query(search, sum(len(ends) for _, ends in every))
    done = 0  # queries of the relations so far
    for label, ends in every:
        rest = ends[max(state.asked - done, 0) :]
        done += len(ends)
        if not len(rest):
            continue
        relation, is_inverse = label % graph.num_relations, label >= graph.num_relations
        is_symmetric = _is_symmetric(graph, relation)
        pairs = _pairs(torch.cat([near.facts, further]), relation) if is_symmetric else set()
        may_loop = _share_loops(graph, relation) > 0
        wanted = search.heads if is_inverse else None
        for asked, answers in _answers(reasoner, label, rest, facts, count, size, wanted):
            for head, tail, logit in answers:
                if is_inverse:
                    head, tail = tail, head
                if head == tail and not may_loop:
                    continue
                if is_symmetric and head > tail and (tail, head) not in pairs:
                    head, tail = tail, head  # the same fact, asked from its other end
                state.add(logit, (head, relation, tail), _num_checked(search))
            state.asked += asked
            advance(asked)
    return ScoredFacts(
        tuple(_checked(reasoner, search, state, facts, size, advance)),
        "most likely missing facts",
    )


def _candidates(graph: KnowledgeGraph, search: Search) -> Iterator[tuple[int, Tensor]]:
    """The relations that are asked with the entities that they are asked about, int64 [k].

    Relations are asked about the entities that can be their heads. If only facts of some entities
    are searched, their inverses are asked about those that can be tails, too. No list is empty.
    """
    # A GPU would count the many answers of a relation one after the other.
    counts = AnswerCounts((graph.host or graph).to("cpu"))
    every = range(graph.num_relations) if search.relations is None else search.relations
    for relation in dict.fromkeys(every):
        inverse = relation + graph.num_relations
        # The heads of a relation are the answers of its inverse.
        heads = _among(counts.likely_answers(inverse, LEAST_SHARE), search.entities, search.heads)
        if len(heads):
            yield relation, heads
        # A fact of a symmetric relation is found from either end, but its head may have to be of a
        # type.
        if search.entities is None or (search.heads is None and _is_symmetric(graph, relation)):
            continue
        tails = _among(counts.likely_answers(relation, LEAST_SHARE), search.entities)
        if len(tails):
            yield inverse, tails


def _among(entities: Tensor, *wanted: Sequence[int] | None) -> Tensor:
    """Those of `entities` [k] that are in each list of `wanted` ids."""
    for ids in wanted:
        if ids is not None:
            entities = entities[torch.isin(entities, torch.tensor(ids, device=entities.device))]
    return entities


def _answers(
    reasoner: "Reasoner",
    relation: int,
    sources: Tensor,
    facts: Facts,
    count: int,
    size: BatchSize,
    wanted: Sequence[int] | None = None,
) -> Iterator[tuple[int, list[tuple[int, int, float]]]]:
    """The `count` best new answers of `(source, relation, ?)` for all sources [k], in batches.

    `wanted`: ids of the possible answers; None for all.
    → (number of sources, answers as (source, answer, logit))
    """
    sources = sources.to(reasoner.device)
    queries = torch.stack([sources, torch.full_like(sources, relation)], dim=1)
    for step, batch, scores in in_batches(reasoner, queries, size):
        some = sources[step]
        row, entity = facts.graph.answers(queries[step])
        at = batch.find_pairs(row, entity)
        new = scores.clone()
        new[at[at >= 0]] = -torch.inf
        mass = query_logsumexp(new, batch.entity_query, len(some))
        others = torch.bincount(row, minlength=len(some))
        # Further known facts compete, as in the calibration, but are not listed.
        at = batch.find_pairs(*facts.further.answers(queries[step]))
        new[at[at >= 0]] = -torch.inf
        if wanted is not None:
            new[~torch.isin(batch.entities, torch.tensor(wanted, device=new.device))] = -torch.inf
        best = best_of_each(new, batch.entity_query, len(some), count)
        places = batch.entity_query[best]
        columns = (new[best] - mass[places], mass[places], others[places])
        logits = _forward_logits(reasoner, relation, *columns, facts.several)
        ends = zip(some[places].tolist(), batch.entities[best].tolist(), strict=True)
        answers = [
            (source, answer, logit)
            for (source, answer), logit in zip(ends, logits.tolist(), strict=True)
        ]
        yield len(some), answers


def _forward_logits(
    reasoner: "Reasoner",
    relation: int,
    evidence: Tensor,
    mass: Tensor,
    others: Tensor,
    several: Tensor,
) -> Tensor:
    """The logits of answers [n] that are judged in one direction, [n]."""
    relations = torch.full_like(others, relation)
    logits = logits_of(reasoner, evidence, relations)
    calibration = reasoner.calibration
    if calibration is None or calibration.missing_forward is None:
        return logits
    columns = (logits, evidence, mass, others, torch.zeros_like(mass))
    judged = Judged(*(column.double().cpu() for column in columns))
    features = query_features(judged, relations.cpu(), several)
    # Of an inverse relation, too: the calibration knows how frequent facts of the relation are.
    name = reasoner.graph.relations[relation % reasoner.graph.num_relations]
    return calibration.missing_forward.logits(features, [name] * len(features))


def _checked(
    reasoner: "Reasoner",
    search: Search,
    state: Discovery,
    facts: Facts,
    size: BatchSize,
    advance: Callable[[int], None],
) -> list[ScoredFact]:
    """The facts judged in both directions, best first."""
    graph, best = reasoner.graph, state.facts()
    if not best:
        return []
    table = torch.tensor(best, device=reasoner.device)
    backward = torch.stack([table[:, 2], table[:, 1] + graph.num_relations], dim=1)
    for rows, queries, answers in (
        (state.judged[0], table[:, :2], table[:, 2]),
        (state.judged[1], backward, table[:, 0]),
    ):
        done = len(rows)
        for judged in judge(reasoner, queries[done:], answers[done:], facts.graph, size):
            rows += torch.stack(judged, dim=1).tolist()
            advance(len(judged.logit))
    ahead, back = (Judged(*torch.tensor(rows, dtype=torch.float64).T) for rows in state.judged)
    logits = missing_logits(reasoner, ahead, back, table[:, 1].cpu(), facts.several)
    found = []
    for place in logits.argsort(descending=True, stable=True).tolist():
        head, relation, tail = best[place]
        logit = float(logits[place])
        probability = probability_of(reasoner, logit)
        if probability is not None and probability < search.min_probability:
            continue
        names = graph.entities[head], graph.relations[relation], graph.entities[tail]
        found.append(ScoredFact(*names, logit, probability))
    return found[: search.top]


def _is_symmetric(graph: KnowledgeGraph, relation: int) -> bool:
    return _share_reversed(graph, relation) >= _SYMMETRIC


def _share_reversed(graph: KnowledgeGraph, relation: int) -> float:
    """Share of the facts (h, r, t), h ≠ t, of a relation for which (t, r, h) is a fact, too."""
    head, tail = _ends((graph.host or graph).facts, relation)
    apart = head != tail
    head, tail = head[apart], tail[apart]
    if not len(head):
        return 0.0
    size = graph.num_entities
    return float(torch.isin(tail * size + head, head * size + tail).double().mean())


def _share_loops(graph: KnowledgeGraph, relation: int) -> float:
    """Share of the facts of a relation that lead from an entity to itself."""
    head, tail = _ends((graph.host or graph).facts, relation)
    return float((head == tail).double().mean()) if len(head) else 0.0


def _pairs(facts: Tensor, relation: int) -> set[tuple[int, int]]:
    """Head and tail of each of `facts` [n, 3] of a relation."""
    head, tail = _ends(facts, relation)
    return set(zip(head.tolist(), tail.tolist(), strict=True))


def _ends(facts: Tensor, relation: int) -> tuple[Tensor, Tensor]:
    mine = facts[facts[:, 1] == relation].long()
    return mine[:, 0], mine[:, 2]
