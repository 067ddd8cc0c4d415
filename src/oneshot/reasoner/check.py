"""Check: whether one fact is likely, judged while it is hidden, with the paths that support it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.data.dataset import both_directions
from oneshot.graph.graph import INVERSE_MARK
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.answers import MOST_EVIDENCE
from oneshot.reasoner.audit import hidden_together, judge_both_ways, places_in, without_facts
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.explanation import Explanation, explain
from oneshot.reasoner.judgement import (
    Judged,
    ScoredFact,
    judge,
    missing_logits,
    present_logits,
    probability_of,
    relates_to_itself,
    several_answers,
)
from oneshot.reasoner.reasoner import Reasoner
from oneshot.subgraph import SubgraphBatch


@dataclass(frozen=True, eq=False)  # as explanations
class CheckedFact:
    """A fact with its judgement and its explanation, neither of which has seen the fact itself.

    `known`: whether the graph contains the fact. `others`: other tails of the same head and
    relation in the graph, at most as many as requested. `is_candidate`: False for a fact of an
    entity with itself that no other fact relates to itself. Such a fact has the least score and the
    last rank: the entity would be no answer either (`Reasoner.predict`).
    """

    fact: ScoredFact
    known: bool
    others: tuple[str, ...]
    is_candidate: bool
    explanation: Explanation

    @property
    def message(self) -> str:
        """A message if there are no paths, or if they do not count; otherwise empty."""
        if self.is_candidate:
            return self.explanation.message
        return f"no other fact relates {self.fact.head!r} to itself, so it is no candidate"

    @property
    def evidence(self) -> list[tuple[str, str, str]]:
        """The facts of the paths as (head, relation, tail), each once, heaviest path first."""
        found: dict[tuple[str, str, str], None] = {}
        for path in self.explanation.paths:
            for step in path.steps:
                if step.inverse:
                    name = step.relation.removesuffix(INVERSE_MARK)
                    found[step.target, name, step.source] = None
                else:
                    found[step.source, step.relation, step.target] = None
        return list(found)


@dataclass(frozen=True, eq=False)
class JudgedFact:
    """A fact with its judgement, and what its explanation is computed from.

    `known`, `others`, `is_candidate`: as in `CheckedFact`. `batch`: the subgraph of
    `(head, relation, ?)` without the fact, but with the tail, whose id is `tail`. `reasoner`:
    explains it; its predictor has not seen the fact either. `known_tails` int64 [m]: the other
    tails in the graph.
    """

    fact: ScoredFact
    known: bool
    others: tuple[str, ...]
    is_candidate: bool
    reasoner: Reasoner
    batch: SubgraphBatch
    tail: int
    known_tails: Tensor

    def explained(self, explanation: Explanation) -> CheckedFact:
        return CheckedFact(self.fact, self.known, self.others, self.is_candidate, explanation)


def check_fact(
    reasoner: Reasoner,
    head: str | int,
    relation: str | int,
    tail: str | int,
    *,
    paths: int = 5,
    others: int = 10,
    proceed: Callable[[], None] = lambda: None,
) -> CheckedFact:
    """Judge the fact `(head, relation, tail)` and explain the judgement; see `judge_fact`.

    `paths`: of the explanation. `proceed`: called between the steps; what it raises ends the work.
    """
    judged = judge_fact(reasoner, head, relation, tail, others=others, proceed=proceed)
    (explanation,) = explain(
        judged.reasoner,
        judged.batch,
        [judged.tail],
        paths,
        known=judged.known_tails,
        proceed=proceed,
    )
    return judged.explained(explanation)


def judge_fact(
    reasoner: Reasoner,
    head: str | int,
    relation: str | int,
    tail: str | int,
    *,
    others: int = 10,
    proceed: Callable[[], None] = lambda: None,
) -> JudgedFact:
    """Judge the fact `(head, relation, tail)` in both directions.

    A fact of the graph is hidden first, and judged by the support of the others; another one as
    `Reasoner.discover` does. `proceed`: as in `check_fact`.
    """
    first, last = reasoner.entity_id(head), reasoner.entity_id(tail)
    label = reasoner.relation_id(relation)
    graph = reasoner.graph
    if label >= graph.num_relations:  # asked by the name of the inverse relation
        first, label, last = last, label - graph.num_relations, first
    fact = torch.tensor([[first, label, last]], device=reasoner.device)
    tails = reasoner.known_answers(first, label).to(fact)
    heads = reasoner.known_answers(last, label + graph.num_relations).to(fact)
    is_known = bool((tails == last).any())
    blind = reasoner
    if is_known:
        own = (graph.host or graph).facts
        blind = without_facts(reasoner, (own == fact.to(own)).all(1).nonzero().squeeze(1))
    proceed()
    known = KnownFacts(
        torch.cat([_with_tails(fact, tails), _with_heads(fact, heads)]),
        graph.num_entities,
        graph.num_relations,
    )
    queries, answers = both_directions(fact, graph.num_relations)
    size = BatchSize(None, reasoner.predictor.config, reasoner.device)
    judged = Judged.joined(judge(blind, queries, answers, known, size))
    relations = torch.tensor([label])
    if is_known:
        several = several_answers(own[own[:, 1] == label].long(), graph.num_relations)
        logit = float(present_logits(blind, *judged.halves(), relations, several))
    else:
        logit = float(missing_logits(blind, *judged.halves(), relations))
    rank = float(judged.rank.mean())
    is_candidate = first != last or relates_to_itself(blind.graph, first)
    if not is_candidate:
        logit, rank = -MOST_EVIDENCE, float(graph.num_entities)
    proceed()
    batch = blind.sampler.sample(blind.graph, queries[:1], answers[:1, None])
    other_tails = tails[tails != last]
    # Not the blind one, whose graph would stay in memory.
    explaining = reasoner.snapshot()
    if is_known:
        explaining.predictor = blind.predictor
    names = graph.entities
    return JudgedFact(
        ScoredFact(
            names[first],
            graph.relations[label],
            names[last],
            logit,
            probability_of(reasoner, logit),
            rank,
        ),
        is_known,
        tuple(names[other] for other in other_tails.tolist()[:others]),
        is_candidate,
        explaining,
        batch,
        last,
        other_tails,
    )


def fact_logits(reasoner: Reasoner, facts: Tensor, batch_size: int | None = None) -> Tensor:
    """The logits of facts [n, 3], as `judge_fact` judges them, float64 [n].

    Facts of the graph are hidden in groups, as in an audit.
    """
    graph = reasoner.graph.host or reasoner.graph
    distinct, row = (
        reasoner.checked_facts(facts).to(graph.device).unique(dim=0, return_inverse=True)
    )
    places = places_in(graph, distinct)
    own = graph.facts.long()
    known = KnownFacts(own, graph.num_entities, graph.num_relations)
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    several = several_answers(own, graph.num_relations)
    logits = torch.zeros(len(distinct), dtype=torch.float64)
    missing = (places < 0).nonzero().squeeze(1)
    if len(missing):
        judged = judge_both_ways(reasoner, distinct[missing], known, size).halves()
        labels = distinct[missing, 1].cpu()
        logits[missing.cpu()] = missing_logits(reasoner, *judged, labels, several)
    present = (places >= 0).nonzero().squeeze(1)
    # In random order: facts that are hidden together have little to do with each other.
    order = torch.randperm(len(present), generator=torch.Generator().manual_seed(0))
    for part in present[order.to(present.device)].split(hidden_together(graph)):
        if len(part):
            blind = without_facts(reasoner, places[part])
            judged = judge_both_ways(blind, distinct[part], known, size).halves()
            labels = distinct[part, 1].cpu()
            logits[part.cpu()] = present_logits(blind, *judged, labels, several)
    # As in `judge_fact`: is there another fact of the entity with itself?
    loops = torch.bincount(own[own[:, 0] == own[:, 2], 0], minlength=graph.num_entities)
    alone = distinct[:, 0] == distinct[:, 2]
    alone &= loops[distinct[:, 0]] == (places >= 0).long()
    logits[alone.cpu()] = -MOST_EVIDENCE
    return logits[row.cpu()]


def _with_tails(fact: Tensor, tails: Tensor) -> Tensor:
    """The facts of head and relation of a fact [1, 3] with other tails [m]: [m, 3]."""
    return torch.cat([fact[:, :2].expand(len(tails), 2), tails[:, None]], dim=1)


def _with_heads(fact: Tensor, heads: Tensor) -> Tensor:
    """The facts of relation and tail of a fact [1, 3] with other heads [m]: [m, 3]."""
    return torch.cat([heads[:, None], fact[:, 1:].expand(len(heads), 2)], dim=1)
