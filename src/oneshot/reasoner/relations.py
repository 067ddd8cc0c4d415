"""Relations between two entities: every relation is asked about both, and the other one judged.

In one direction alone, a relation that never joins such types looks likely if the other entity is
the best of its bad answers. In a graph with many relations, those are asked that join entities with
facts of the same relations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from oneshot.errors import InputError, require
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.answers import MOST_EVIDENCE
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.judgement import (
    SHOWN,
    Judged,
    judge,
    missing_logits,
    probability_of,
    relates_to_itself,
)
from oneshot.samplers._answer_counts import AnswerCounts
from oneshot.system.notebook import html_table, titled

if TYPE_CHECKING:
    from oneshot.reasoner.reasoner import Reasoner

# Relations, inverse ones included, that are asked about a pair; of more, the likely ones. Of the
# validation facts of FB15k-237 and UMLS, 0.2 % have another relation.
_MOST_ASKED = 32
# Weight in the score of how strange a relation is to the two entities.
_STRANGE = 0.5
# Of the graphs that were asked about; a pass over all facts each.
_counts: "WeakKeyDictionary[KnowledgeGraph, AnswerCounts]" = WeakKeyDictionary()


@dataclass(frozen=True)
class RelationAnswer:
    """A relation that may hold between two entities.

    `inverse`: it leads from the second entity to the first. `score`: by which relations are ranked:
    logit of the probability, or the evidence if the reasoner is not calibrated, reduced for an
    entity that has no other fact of the relation. `probability`: 1 for a fact of the graph; None
    if the reasoner is not calibrated. `known`: whether the graph contains the fact.
    """

    relation: str
    inverse: bool
    score: float
    probability: float | None
    known: bool

    def as_dict(self) -> dict[str, Any]:
        """All values, with the keys of the command line's JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class RelationAnswers(Sequence[RelationAnswer]):
    """The relations that may hold between two entities, `head` and `tail`.

    First those of facts of the graph, then the others; each group in the order of their scores.
    """

    head: str
    tail: str
    answers: tuple[RelationAnswer, ...]

    def to_pandas(self) -> Any:
        """A pandas DataFrame: one row per relation, with the fields of `RelationAnswer`."""
        pandas = require("pandas", "", "to_pandas")
        frame = pandas.DataFrame([answer.as_dict() for answer in self], columns=_COLUMNS)
        return frame.astype(
            {"inverse": "bool", "score": "float64", "probability": "float64", "known": "bool"}
        )

    def _repr_html_(self) -> str:
        """The first relations as a table, for notebooks."""
        rows = [list(answer.as_dict().values()) for answer in self[:SHOWN]]
        more = len(self) - len(rows)
        notes = [f"and {more:,} more"] if more else []
        title = f"relations between {self.head} and {self.tail}"
        return titled(title, html_table(_COLUMNS, rows), notes=notes)

    def __len__(self) -> int:
        return len(self.answers)

    @overload
    def __getitem__(self, index: int) -> RelationAnswer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RelationAnswer, ...]: ...
    def __getitem__(self, index: int | slice) -> RelationAnswer | tuple[RelationAnswer, ...]:
        return self.answers[index]


_COLUMNS = [field.name for field in fields(RelationAnswer)]


def relations_between(
    reasoner: "Reasoner",
    head: str | int,
    tail: str | int,
    *,
    top: int | None = None,
    batch_size: int | None = None,
    proceed: Callable[[], None] = lambda: None,
) -> RelationAnswers:
    """See `Reasoner.relations`. `proceed`: called between batches; what it raises ends the work."""
    if top is not None and top < 1:
        raise InputError(f"top must be at least 1, not {top}")
    graph, device = reasoner.graph, reasoner.device
    first, second = reasoner.entity_id(head), reasoner.entity_id(tail)
    facts = torch.cat([_facts_of(graph, entity) for entity in {first, second}])
    known = KnownFacts(facts, graph.num_entities, graph.num_relations).to(device)
    every = _likely_relations(graph, first, second, facts).to(device)
    # Each fact in both directions: asked from the first entity, then from the second.
    queries = torch.cat([_queries(first, every), _queries(second, graph.inverse(every))])
    answers = torch.full_like(every, second), torch.full_like(every, first)
    size = BatchSize(batch_size, reasoner.predictor.config, device)
    judged = []
    for part in judge(reasoner, queries, torch.cat(answers), known, size):
        judged.append(part)
        proceed()
    ahead, back = Judged.joined(judged).halves()
    is_known = known.holds(queries[: len(every)], answers[0][:, None]).squeeze(1).tolist()
    relations = every.cpu()
    inverse = relations >= graph.num_relations
    # From the head of the fact to its tail, and from its tail to its head.
    forward, backward = (
        Judged(*(one.where(~inverse, other) for one, other in zip(*pair, strict=True)))
        for pair in ((ahead, back), (back, ahead))
    )
    logits = missing_logits(reasoner, forward, backward, relations % graph.num_relations)
    if first == second and not relates_to_itself(graph, first):
        logits = torch.full_like(logits, -MOST_EVIDENCE)  # as in `check_fact`
    scores = logits - _STRANGE * (_strangeness(forward) + _strangeness(backward))
    found = [
        RelationAnswer(
            graph.relations[relation % graph.num_relations],
            relation >= graph.num_relations,
            score,
            1.0 if is_fact and reasoner.calibration else probability_of(reasoner, logit),
            is_fact,
        )
        for relation, score, logit, is_fact in zip(
            relations.tolist(), scores.tolist(), logits.tolist(), is_known, strict=True
        )
    ]
    found.sort(
        key=lambda answer: (not answer.known, -answer.score, answer.relation, answer.inverse)
    )
    names = graph.entities
    return RelationAnswers(names[first], names[second], tuple(found[:top]))


def _strangeness(judged: Judged) -> Tensor:
    """How strange a relation is to an entity: 0 if it has facts of it, [n]."""
    return -(judged.known + 0.01).log().clamp(max=0)


def _queries(entity: int, relations: Tensor) -> Tensor:
    """The queries of an entity and `relations` [m], int64 [m, 2]."""
    return torch.stack([torch.full_like(relations, entity), relations], dim=1)


def _facts_of(graph: KnowledgeGraph, entity: int) -> Tensor:
    """The facts of an entity, int64 [m, 3]."""
    other, label = (column.long().cpu() for column in graph.edges_into(entity))
    mine, relation = torch.full_like(other, entity), label % graph.num_relations
    ends = torch.stack([other, relation, mine], 1), torch.stack([mine, relation, other], 1)
    return ends[0].where((label < graph.num_relations)[:, None], ends[1])


def _likely_relations(graph: KnowledgeGraph, first: int, second: int, facts: Tensor) -> Tensor:
    """The relations from `first` to `second` that are asked, inverse ones included, int64 [m].

    All of them, or those that join entities of such types most often, and those of the `facts`
    [n, 3] of the two.
    """
    count = 2 * graph.num_relations
    if count <= _MOST_ASKED:
        return torch.arange(count)
    counts = _counts.get(graph)
    if counts is None:
        counts = _counts[graph] = AnswerCounts(graph.host or graph)
    # The first entity would be an answer of the inverse relation.
    chance = counts.chances(first).cpu().roll(graph.num_relations) * counts.chances(second).cpu()
    likely = chance.argsort(descending=True, stable=True)[:_MOST_ASKED]
    joins = facts[((facts[:, 0] == first) & (facts[:, 2] == second))]
    back = facts[((facts[:, 2] == first) & (facts[:, 0] == second))]
    found: Tensor = torch.cat([likely, joins[:, 1], back[:, 1] + graph.num_relations]).unique()
    return found
