"""Check: whether one fact is likely, judged while it is hidden, with the paths that support it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oneshot.data.dataset import both_directions
from oneshot.graph.graph import INVERSE_MARK
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.explanation import Explanation, explain
from oneshot.reasoner.judgement import ScoredFact, judge, probability_of
from oneshot.reasoner.reasoner import Reasoner


@dataclass(frozen=True, eq=False)  # as explanations
class CheckedFact:
    """A fact with its judgement and its explanation, neither of which has seen the fact itself.

    `known`: whether the graph contains the fact. `others`: other tails of the same head and
    relation in the graph, at most as many as requested.
    """

    fact: ScoredFact
    known: bool
    others: tuple[str, ...]
    explanation: Explanation

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
    """Judge the fact `(head, relation, tail)` in both directions, as `Reasoner.audit` does.

    A fact of the graph is hidden first. `paths`: of the explanation. `proceed`: called between the
    steps; what it raises ends the work.
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
    blind = _without(reasoner, fact) if is_known else reasoner
    proceed()
    known = KnownFacts(
        torch.cat([_with_tails(fact, tails), _with_heads(fact, heads)]),
        graph.num_entities,
        graph.num_relations,
    )
    queries, answers = both_directions(fact, graph.num_relations)
    size = BatchSize(None, reasoner.predictor.config, reasoner.device)
    judged = list(judge(blind, queries, answers, known, size))
    logit = float(torch.cat([part.logit for part in judged]).double().mean())
    rank = float(torch.cat([part.rank for part in judged]).mean())
    proceed()
    batch = blind.sampler.sample(blind.graph, queries[:1], answers[:1, None])
    (explanation,) = explain(blind, batch, [last], paths, proceed=proceed)
    names = graph.entities
    return CheckedFact(
        ScoredFact(
            names[first],
            graph.relations[label],
            names[last],
            logit,
            probability_of(reasoner, logit),
            rank,
        ),
        is_known,
        tuple(names[other] for other in tails[tails != last].tolist()[:others]),
        explanation,
    )


def _without(reasoner: Reasoner, fact: Tensor) -> Reasoner:
    """The reasoner on the graph without a fact [1, 3]."""
    graph = reasoner.graph.host or reasoner.graph
    facts = graph.facts
    mask = (facts != fact.to(facts)).any(1)
    # What it knows about relations must not come from this fact either. The copy has the same
    # parameters; other threads may use the original at the same time.
    predictor = copy.copy(reasoner.predictor)
    # Without factors, which know the fact.
    parts = (reasoner.sampler, predictor, reasoner.calibration_alone)
    return Reasoner(graph.subset(mask), *parts)


def _with_tails(fact: Tensor, tails: Tensor) -> Tensor:
    """The facts of head and relation of a fact [1, 3] with other tails [m]: [m, 3]."""
    return torch.cat([fact[:, :2].expand(len(tails), 2), tails[:, None]], dim=1)


def _with_heads(fact: Tensor, heads: Tensor) -> Tensor:
    """The facts of relation and tail of a fact [1, 3] with other heads [m]: [m, 3]."""
    return torch.cat([heads[:, None], fact[:, 1:].expand(len(heads), 2)], dim=1)
