"""Discovery: the most likely facts that a graph lacks.

Scoring all triples is impossible: a graph with 10,000 entities and 100 relations has 10^10 of them.
Instead, each relation is asked about the entities that can be its heads: those that are, and those
that occur with the same other relations. Of the answers that are not facts of the graph, the best
are asked in the other direction as well, and the two judgements are combined.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

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
# Facts that are asked in the other direction, as a multiple of those that are returned.
_CHECKED = 4
# Answers per query that are considered.
_ANSWERS = 10
# A relation is symmetric, or reflexive, if at least this share of its facts is.
_SYMMETRIC = 0.9


@dataclass(frozen=True)
class Search:
    """What to discover.

    `relations`, `entities`: ids; None for all. The entities are the heads of the facts.
    `min_probability`: of the returned facts.
    """

    relations: Sequence[int] | None = None
    entities: Sequence[int] | None = None
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
        heads = None if entities is None else [reasoner.entity_id(entity) for entity in entities]
        if types:
            having = reasoner.entities_of_types(types).tolist()
            heads = having if heads is None else sorted(set(heads) & set(having))
        return cls(labels, heads, top, min_probability)


Fact = tuple[int, int, int]


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
    asked = sum(len(heads) for _, heads in _candidates(reasoner.graph, search))
    return asked + 2 * min(_CHECKED * search.top, _ANSWERS * asked)


def discover(
    reasoner: "Reasoner",
    search: Search,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
    begun: Discovery | None = None,
    keep: Callable[[Discovery], None] = lambda _: None,
) -> list[ScoredFact]:
    """See `Reasoner.discover`.

    `begun`: the progress of an interrupted discovery with the same reasoner and search, which is
    resumed. `keep` is called with the progress after each batch.
    """
    graph = reasoner.graph
    if search.min_probability > 0 and reasoner.calibration is None:
        raise InputError(
            "min_probability needs a calibrated reasoner: train it with a validation split"
        )
    near = graph.host or graph
    known = KnownFacts(near.facts, graph.num_entities, graph.num_relations).to(reasoner.device)
    several = several_answers(near.facts.long(), graph.num_relations)
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    state = Discovery() if begun is None else begun

    def advance(queries: int) -> None:
        keep(state)
        if progress is not None:
            progress(queries)

    if progress is not None and state.queries:
        progress(state.queries)
    done = 0  # queries of the relations so far
    for relation, heads in _candidates(graph, search):
        rest = heads[max(state.asked - done, 0) :]
        done += len(heads)
        if not len(rest):
            continue
        is_symmetric = _share_reversed(graph, relation) >= _SYMMETRIC
        pairs = _pairs(graph, relation) if is_symmetric else set()
        may_loop = _share_loops(graph, relation) > 0
        for count, answers in _answers(reasoner, relation, rest, known, several, size):
            for head, tail, logit in answers:
                if head == tail and not may_loop:
                    continue
                if is_symmetric and head > tail and (tail, head) not in pairs:
                    head, tail = tail, head  # the same fact, asked from its other end
                state.add(logit, (head, relation, tail), _CHECKED * search.top)
            state.asked += count
            advance(count)
    return _checked(reasoner, search, state, known, several, size, advance)


def _candidates(graph: KnowledgeGraph, search: Search) -> Iterator[tuple[int, Tensor]]:
    """The relations with the entities that can be their heads, int64 [k]; none are left out."""
    counts = AnswerCounts(graph.host or graph)
    every = range(graph.num_relations) if search.relations is None else search.relations
    for relation in dict.fromkeys(every):
        # The heads of a relation are the answers of its inverse.
        heads = counts.likely_answers(relation + graph.num_relations, LEAST_SHARE)
        if search.entities is not None:
            wanted = torch.tensor(sorted(set(search.entities)), device=heads.device)
            heads = heads[torch.isin(heads, wanted)]
        if len(heads):
            yield relation, heads


def _answers(
    reasoner: "Reasoner",
    relation: int,
    heads: Tensor,
    known: KnownFacts,
    several: Tensor,
    size: BatchSize,
) -> Iterator[tuple[int, list[tuple[int, int, float]]]]:
    """New answers of `(head, relation, ?)` for all heads [k], batch by batch.

    → (number of heads, answers as (head, tail, logit))
    """
    heads = heads.to(reasoner.device)
    queries = torch.stack([heads, torch.full_like(heads, relation)], dim=1)
    for step, batch, scores in in_batches(reasoner, queries, size):
        some = heads[step]
        row, entity = known.answers(queries[step])
        at = batch.find_pairs(row, entity)
        new = scores.clone()
        new[at[at >= 0]] = -torch.inf
        mass = query_logsumexp(new, batch.entity_query, len(some))
        others = torch.bincount(row, minlength=len(some))
        asked, tails, evidence = [], [], []
        for number in range(len(some)):
            mine = batch.entity_query == number
            own, entities = new[mine], batch.entities[mine]
            found = own.topk(min(_ANSWERS, int(own.isfinite().sum())))
            asked.append(torch.full_like(found.indices, number))
            tails.append(entities[found.indices])
            evidence.append(found.values - mass[number])
        places = torch.cat(asked)
        columns = (torch.cat(evidence), mass[places], others[places])
        logits = _forward_logits(reasoner, relation, *columns, several)
        ends = zip(some[places].tolist(), torch.cat(tails).tolist(), strict=True)
        answers = [
            (head, tail, logit) for (head, tail), logit in zip(ends, logits.tolist(), strict=True)
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
    name = reasoner.graph.relation_name(relation)
    return calibration.missing_forward.logits(features, [name] * len(features))


def _checked(
    reasoner: "Reasoner",
    search: Search,
    state: Discovery,
    known: KnownFacts,
    several: Tensor,
    size: BatchSize,
    advance: Callable[[int], None],
) -> list[ScoredFact]:
    """The facts judged in both directions, best first."""
    graph, facts = reasoner.graph, state.facts()
    if not facts:
        return []
    table = torch.tensor(facts, device=reasoner.device)
    backward = torch.stack([table[:, 2], table[:, 1] + graph.num_relations], dim=1)
    for rows, queries, answers in (
        (state.judged[0], table[:, :2], table[:, 2]),
        (state.judged[1], backward, table[:, 0]),
    ):
        done = len(rows)
        for judged in judge(reasoner, queries[done:], answers[done:], known, size):
            rows += torch.stack(judged, dim=1).tolist()
            advance(len(judged.logit))
    ahead, back = (Judged(*torch.tensor(rows, dtype=torch.float64).T) for rows in state.judged)
    logits = missing_logits(reasoner, ahead, back, table[:, 1].cpu(), several)
    found = []
    for place in logits.argsort(descending=True, stable=True).tolist():
        head, relation, tail = facts[place]
        logit = float(logits[place])
        probability = probability_of(reasoner, logit)
        if probability is not None and probability < search.min_probability:
            continue
        names = graph.entities[head], graph.relations[relation], graph.entities[tail]
        found.append(ScoredFact(*names, logit, probability))
    return found[: search.top]


def _share_reversed(graph: KnowledgeGraph, relation: int) -> float:
    """Share of the facts (h, r, t), h ≠ t, of a relation for which (t, r, h) is a fact, too."""
    head, tail = _ends(graph, relation)
    apart = head != tail
    head, tail = head[apart], tail[apart]
    if not len(head):
        return 0.0
    size = graph.num_entities
    return float(torch.isin(tail * size + head, head * size + tail).double().mean())


def _share_loops(graph: KnowledgeGraph, relation: int) -> float:
    """Share of the facts of a relation that lead from an entity to itself."""
    head, tail = _ends(graph, relation)
    return float((head == tail).double().mean()) if len(head) else 0.0


def _pairs(graph: KnowledgeGraph, relation: int) -> set[tuple[int, int]]:
    """Head and tail of each fact of a relation."""
    head, tail = _ends(graph, relation)
    return set(zip(head.tolist(), tail.tolist(), strict=True))


def _ends(graph: KnowledgeGraph, relation: int) -> tuple[Tensor, Tensor]:
    facts = (graph.host or graph).facts
    mine = facts[facts[:, 1] == relation].long()
    return mine[:, 0], mine[:, 2]
