"""Judgement: how likely given facts hold, by the scores of their queries in both directions."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor

from oneshot.errors import require
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.ranking import check_finite, filtered_ranks
from oneshot.reasoner.answers import MOST_EVIDENCE, Calibration
from oneshot.reasoner.batch_size import BatchSize, in_batches
from oneshot.system.notebook import html_table, titled

if TYPE_CHECKING:
    from oneshot.reasoner.reasoner import Reasoner

# A relation is functional if it has one answer for this share of at least so many queries.
_FUNCTIONAL_SHARE, _LEAST_QUERIES = 0.95, 10
NUM_FEATURES = 4
"""Number of features of a fact; see `fact_features`."""
SHOWN = 100
"""Maximum number of facts or relations in the table of a notebook."""
# Weight of the direction in which a fact looks less likely.
_WEAKER = 0.75


@dataclass(frozen=True)
class ScoredFact:
    """A fact with the reasoner's judgement.

    `score`: logit of the probability, or the evidence if the reasoner is not calibrated.
    `probability`: that the fact holds; None if the reasoner is not calibrated. `rank`: mean
    filtered rank of its two queries; None if it was not determined. `conflicts`: number of judged
    facts and facts of the graph that cannot hold as well, because the relation has almost always
    only one answer.
    """

    head: str
    relation: str
    tail: str
    score: float
    probability: float | None
    rank: float | None = None
    conflicts: int = 0

    def as_dict(self) -> dict[str, Any]:
        """All values, with the keys of the command line's JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class ScoredFacts(Sequence[ScoredFact]):
    """Facts with their judgements, in an order that `title` names."""

    facts: tuple[ScoredFact, ...]
    title: str = "facts"

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per fact and the fields of `ScoredFact` as columns."""
        pandas = require("pandas", "", "to_pandas")
        frame = pandas.DataFrame([fact.as_dict() for fact in self], columns=_COLUMNS)
        numbers = dict.fromkeys(("score", "probability", "rank"), "float64")
        # A column of nothing, or of None alone, has no type of its own.
        return frame.astype({**numbers, "conflicts": "int64"})

    def _repr_html_(self) -> str:
        """The first facts as a table, for notebooks."""
        columns = [
            name
            for name in _COLUMNS
            if name not in ("rank", "conflicts") or any(fact.rank is not None for fact in self)
        ]
        rows = [[getattr(fact, name) for name in columns] for fact in self[:SHOWN]]
        more = len(self) - len(rows)
        notes = [f"and {more:,} more"] if more else []
        return titled(self.title, html_table(columns, rows) if rows else "none", notes=notes)

    def __len__(self) -> int:
        return len(self.facts)

    @overload
    def __getitem__(self, index: int) -> ScoredFact: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ScoredFact, ...]: ...
    def __getitem__(self, index: int | slice) -> ScoredFact | tuple[ScoredFact, ...]:
        return self.facts[index]


_COLUMNS = [field.name for field in fields(ScoredFact)]


class Judged(NamedTuple):
    """The judgement of the answers of n queries, on the CPU; each column is float64 [n].

    `logit`: of the probability, if the query has an answer that is missing from the graph; the
    evidence if the reasoner is not calibrated. `evidence`: the score of the answer compared with
    those of the entities that are not known answers. `mass`: the logarithm of the sum of `exp` of
    the latter scores, which is low if the predictor finds no answer. `known`: number of other known
    answers of the query. `rank`: filtered.
    """

    logit: Tensor
    evidence: Tensor
    mass: Tensor
    known: Tensor
    rank: Tensor

    @classmethod
    def joined(cls, parts: Iterable["Judged"]) -> "Judged":
        """One judgement of all queries of several ones."""
        columns = list(zip(*parts, strict=True))
        return cls(*map(torch.cat, columns)) if columns else cls(*[torch.zeros(0).double()] * 5)

    def halves(self) -> tuple["Judged", "Judged"]:
        """The judgements of the first and the second half of the queries."""
        size = len(self.logit) // 2
        return Judged(*(c[:size] for c in self)), Judged(*(c[size:] for c in self))


def judge(
    reasoner: "Reasoner",
    queries: Tensor,
    answers: Tensor,
    known: KnownFacts,
    size: BatchSize,
) -> Iterator[Judged]:
    """The judgement of `answers` [n] to `queries` [n, 2], batch by batch.

    Other answers of a query that are `known` do not compete. Answers that are not sampled are added
    to the subgraph.
    """
    for step, batch, scores in in_batches(reasoner, queries, size, answers[:, None]):
        asked, wanted = queries[step], answers[step]
        check_finite(scores)
        place = batch.find(wanted)
        row, entity = known.answers(asked)
        at = batch.find_pairs(row, entity)
        rivals = scores.clone()
        if reasoner.calibration is None or reasoner.calibration.rivals == "unknown":
            rivals[at[at >= 0]] = -torch.inf
            rivals[place] = scores[place]
        mass = query_logsumexp(rivals, batch.entity_query, len(asked))
        evidence = (scores[place] - mass).clamp(-MOST_EVIDENCE, MOST_EVIDENCE)
        ranks = filtered_ranks(batch, scores, wanted, known, reasoner.graph.num_entities)
        others = torch.bincount(row[entity != wanted[row]], minlength=len(asked))
        logits = logits_of(reasoner, evidence, asked[:, 1])
        columns = (logits, evidence, mass, others, ranks.realistic)
        yield Judged(*(column.double().cpu() for column in columns))


def fact_features(forward: Judged, backward: Judged, relations: Tensor, several: Tensor) -> Tensor:
    """Features of facts that were judged in both directions, float64 [n, 4].

    Mean evidence; mean mass; how unusual it is that the queries have further answers (see
    `rarity`); mean logarithm of the number of known answers. `relations` int64 [n];
    `several` [2R]: see `several_answers`.
    """
    return torch.stack(
        [
            (forward.evidence + backward.evidence) / 2,
            (forward.mass + backward.mass) / 2,
            rarity(forward, relations, several)
            + rarity(backward, relations + len(several) // 2, several),
            (forward.known.log1p() + backward.known.log1p()) / 2,
        ],
        dim=1,
    )


def query_features(judged: Judged, relations: Tensor, several: Tensor) -> Tensor:
    """As `fact_features`, of answers that were judged in one direction, float64 [n, 4]."""
    columns = (judged.evidence, judged.mass, rarity(judged, relations, several))
    return torch.stack([*columns, judged.known.log1p()], dim=1)


def rarity(judged: Judged, relations: Tensor, several: Tensor) -> Tensor:
    """The logarithm of the share of queries with several answers, 0 for the only answer, [n].

    A second answer speaks against both if the relation has almost always only one.
    """
    return several[relations % len(several)].log().where(judged.known > 0, 0.0)


def support(forward: Judged, backward: Judged, relations: Tensor, several: Tensor) -> Tensor:
    """How well the rest of a graph supports facts that were hidden, float64 [n].

    A wrong fact may look likely from one end, if it has the type of an answer there. So the weaker
    direction counts three times as much.
    """
    evidence = torch.stack([forward.evidence, backward.evidence])
    mixed = _WEAKER * evidence.amin(0) + (1 - _WEAKER) * evidence.amax(0)
    back = relations + len(several) // 2
    return mixed + rarity(forward, relations, several) + rarity(backward, back, several)


def missing_logits(
    reasoner: "Reasoner",
    forward: Judged,
    backward: Judged,
    relations: Tensor,
    several: Tensor | None = None,
) -> Tensor:
    """The logits of facts of `relations` [n] that the graph lacks, judged both ways, float64 [n].

    The mean evidence if the reasoner is not calibrated. `several`: of the graph; default that of
    the calibration.
    """
    calibration = reasoner.calibration
    line = None if calibration is None else calibration.missing
    if calibration is None or line is None:
        return (forward.logit + backward.logit) / 2
    if several is None:
        several = _several_of(reasoner, calibration)
    names = [reasoner.graph.relations[relation] for relation in relations.tolist()]
    return line.logits(fact_features(forward, backward, relations, several), names)


def present_logits(
    reasoner: "Reasoner",
    forward: Judged,
    backward: Judged,
    relations: Tensor,
    several: Tensor | None = None,
) -> Tensor:
    """As `missing_logits`, for facts of the graph that were hidden; the support if not calibrated.

    With a calibration of an earlier version, the mean of the two logits.
    """
    calibration = reasoner.calibration
    if calibration is not None and calibration.present is None:
        return (forward.logit + backward.logit) / 2
    if several is None:
        several = _several_of(reasoner, calibration)
    found = support(forward, backward, relations, several)
    if calibration is None or calibration.present is None:
        return found
    slope, offset = calibration.present
    return slope * found + offset


def several_answers(facts: Tensor, num_relations: int) -> Tensor:
    """The share of queries of each relation, inverse ones after them, with several answers, [2R].

    `facts` [n, 3]. Half a query is added to both groups, so that no share is 0.
    """
    shares = []
    for column in (0, 2):
        distinct, count = (facts[:, column] * num_relations + facts[:, 1]).unique(
            return_counts=True
        )
        relation = distinct % num_relations
        every = torch.bincount(relation, minlength=num_relations)
        many = torch.bincount(relation[count > 1], minlength=num_relations)
        shares.append((many + 0.5) / (every + 1))
    return torch.cat(shares).double().cpu()


def several_in(graph: KnowledgeGraph) -> Tensor:
    """`several_answers` of the facts of a graph; those of a mapped graph are not copied."""
    near = graph.host or graph
    if not near.is_mapped:
        return several_answers(near.facts.long(), graph.num_relations)
    pairs, shares = near.answer_pairs, []
    for relation in range(2 * graph.num_relations):
        # The entities that ask a query are the answers of the inverse relation.
        count = pairs.counts_of((relation + graph.num_relations) % (2 * graph.num_relations))
        shares.append((int((count > 1).sum()) + 0.5) / (len(count) + 1))
    return torch.tensor(shares, dtype=torch.float64)


def _several_of(reasoner: "Reasoner", calibration: Calibration | None) -> Tensor:
    """The shares of `several_answers`, as the calibration has them; 1 if they are unknown."""
    graph, found = reasoner.graph, calibration.several if calibration is not None else {}
    names = map(graph.relation_name, range(2 * graph.num_relations))
    return torch.tensor([found.get(name, 1.0) for name in names], dtype=torch.float64)


def probability_of(reasoner: "Reasoner", logit: float) -> float | None:
    """The probability of a logit; None if the reasoner is not calibrated."""
    if reasoner.calibration is None:
        return None
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def relates_to_itself(graph: KnowledgeGraph, entity: int) -> bool:
    """Whether any fact of the graph leads from an entity to itself."""
    source, _ = graph.edges_into(entity)
    return bool((source == entity).any())


def functional_conflicts(facts: Tensor, num_relations: int) -> Tensor:
    """For each of `facts` [n, 3], how many others contradict it: int64 [n].

    In a relation that almost always has one answer, in one direction or the other, several answers
    contradict each other.
    """
    conflicts = torch.zeros(len(facts), dtype=torch.long, device=facts.device)
    relation = facts[:, 1]
    for column in (0, 2):
        key = facts[:, column] * num_relations + relation
        distinct, place, count = key.unique(return_inverse=True, return_counts=True)
        queries = torch.bincount(distinct % num_relations, minlength=num_relations)
        single = torch.bincount(distinct[count == 1] % num_relations, minlength=num_relations)
        is_functional = (queries >= _LEAST_QUERIES) & (single >= _FUNCTIONAL_SHARE * queries)
        conflicts += torch.where(is_functional[relation], count[place] - 1, 0)
    return conflicts


def logits_of(reasoner: "Reasoner", evidence: Tensor, relations: Tensor) -> Tensor:
    """The logits of evidence [n] for answers of `relations` [n]; the evidence if not calibrated."""
    calibration = reasoner.calibration
    if calibration is None:
        return evidence
    names = [reasoner.graph.relation_name(relation) for relation in relations.tolist()]
    own = [calibration.offset + calibration.offsets.get(name, 0.0) for name in names]
    return calibration.slope * evidence + torch.tensor(own, device=evidence.device)


def query_logsumexp(scores: Tensor, query: Tensor, count: int) -> Tensor:
    """`log Σ exp` of the scores [N] of each query [N], [count]."""
    highest = scores.new_full((count,), -torch.inf).scatter_reduce(0, query, scores, "amax")
    total = torch.zeros_like(highest).scatter_add(0, query, (scores - highest[query]).exp())
    return total.log() + highest


def best_of_each(scores: Tensor, query: Tensor, count: int, most: int) -> Tensor:
    """The places of the highest finite scores [N] of each query [N], in descending order.

    At most `most` for each of the `count` queries, one query after the other.
    """
    place = scores.isfinite().nonzero().squeeze(1)
    place = place[scores[place].argsort(descending=True, stable=True)]
    place = place[query[place].argsort(stable=True)]
    number = query[place]
    before = torch.bincount(number, minlength=count).cumsum(0).roll(1)
    before[:1] = 0
    rank = torch.arange(len(place), device=place.device) - before[number]
    return place[rank < most]
