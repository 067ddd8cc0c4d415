"""Relations between two entities: every relation is asked, and the other entity judged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from oneshot.ranking import check_finite
from oneshot.reasoner.answers import candidates_of, evidence
from oneshot.reasoner.batch_size import BatchSize

if TYPE_CHECKING:
    from oneshot.reasoner.reasoner import Reasoner


@dataclass(frozen=True)
class RelationAnswer:
    """A relation that may hold between two entities.

    `inverse`: it leads from the second entity to the first. `score`: evidence that it holds, which
    is comparable between relations. `probability`: None if the reasoner is not calibrated.
    `known`: whether the graph contains the fact.
    """

    relation: str
    inverse: bool
    score: float
    probability: float | None
    known: bool

    def as_dict(self) -> dict[str, Any]:
        """All values, with the keys of the command line's JSON."""
        return dict(vars(self))


def relations_between(
    reasoner: "Reasoner",
    head: str | int,
    tail: str | int,
    *,
    top: int | None = None,
    batch_size: int | None = None,
    proceed: Callable[[], None] = lambda: None,
) -> list[RelationAnswer]:
    """See `Reasoner.relations`. `proceed`: called between batches; what it raises ends the work."""
    graph, calibration = reasoner.graph, reasoner.calibration
    first, second = reasoner.entity_id(head), reasoner.entity_id(tail)
    every = torch.arange(2 * graph.num_relations, device=reasoner.device)
    queries = torch.stack([torch.full_like(every, first), every], dim=1)
    include = torch.full((len(every), 1), second, device=reasoner.device)
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    found, done = [], 0
    while done < len(queries):
        proceed()
        step = slice(done, done + size.now)
        try:
            batch, scores = reasoner.reason(queries[step], include[step])
        except torch.OutOfMemoryError as error:
            size.shrink(error)
            continue
        check_finite(scores)
        for candidates in candidates_of(graph, batch, scores, needs_facts=False):
            place = int((candidates.entities == second).nonzero()[0])
            relation = candidates.query[1]
            name = graph.relation_name(relation)
            value = float(evidence(candidates.scores, candidates.known)[place])
            probability = None
            if calibration is not None:
                own = calibration.evidence(candidates.scores, candidates.known)
                probability = calibration.probability(float(own[place]), name)
            inverse = relation >= graph.num_relations
            found.append(
                RelationAnswer(
                    graph.relations[relation % graph.num_relations],
                    inverse,
                    value,
                    probability,
                    bool(candidates.known[place]),
                )
            )
        size.learn(batch)
        done += batch.num_queries
    found.sort(key=lambda answer: (-_strength(answer), answer.relation, answer.inverse))
    return found[:top]


def _strength(answer: RelationAnswer) -> float:
    return answer.score if answer.probability is None else answer.probability
