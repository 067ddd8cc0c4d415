"""Conjunction: answers that hold for several query entities at once.

"What borders both Bolivia and Peru?" asks two queries with one relation. The best candidates of
each are added to the subgraphs of all, so that every candidate has a score in every query.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oneshot.errors import InputError
from oneshot.ranking import check_finite
from oneshot.reasoner.answers import (
    Answer,
    AnswerOptions,
    Candidates,
    Prediction,
    candidates_of,
)

if TYPE_CHECKING:
    from oneshot.reasoner.reasoner import Reasoner

# Candidates that each query contributes, in multiples of the answers wanted, and at least.
_CANDIDATES, _LEAST_CANDIDATES = 10, 100
# Query entities: each has its own subgraph, in one batch.
_MOST_ENTITIES = 64


def predict_for_all(
    reasoner: "Reasoner",
    entities: list[str | int],
    relation: str | int,
    inverse: bool,
    options: AnswerOptions,
) -> Prediction:
    """The best answers to `(entity, relation, ?)` that hold for every one of the entities.

    The score of an answer is the mean, over the entities, of the logarithm of its share in the
    softmax; its probability is the product of the probabilities, 1 for facts of the graph. An
    answer is known if all of the facts are.
    """
    if not 1 <= len(entities) <= _MOST_ENTITIES:
        raise InputError(f"give 1 to {_MOST_ENTITIES} entities, not {len(entities)}")
    if options.explain:
        raise InputError("explain works for one entity; ask for each of them alone")
    asked = [reasoner.query(entity, relation, inverse) for entity in entities]
    if len(set(asked)) < len(asked):
        raise InputError("an entity is given twice")
    for head, _ in asked:
        reasoner.check_linked(head)
    queries = torch.tensor(asked, device=reasoner.device)
    allowed, include = reasoner.allowed(asked[0][1], options)
    if include is None:
        batch, scores = reasoner.reason(queries)
        check_finite(scores)
        first = candidates_of(reasoner.graph, batch, scores)
        include = _best(list(first), options, allowed).to(reasoner.device)[None]
    batch, scores = reasoner.reason(queries, include.expand(len(asked), -1))
    check_finite(scores)
    found = list(candidates_of(reasoner.graph, batch, scores))
    names = " and ".join(reasoner.graph.entities[head] for head, _ in asked)
    return Prediction(
        names,
        reasoner.graph.relation_name(asked[0][1]),
        _joined(reasoner, found, options, allowed),
        sum(len(one.entities) for one in found),
        sum(one.num_edges for one in found),
    )


def _best(found: list[Candidates], options: AnswerOptions, allowed: Tensor | None) -> Tensor:
    """The candidates of highest score of each query, int64 [m], without repetition."""
    count = max(_CANDIDATES * options.top, _LEAST_CANDIDATES)
    chosen = []
    for one in found:
        keep = torch.ones_like(one.known) if allowed is None else _is_in(one.entities, allowed)
        places = keep.nonzero().squeeze(1)
        best = one.scores[places].argsort(descending=True, stable=True)[:count]
        chosen.append(one.entities[places[best]])
    every: Tensor = torch.cat(chosen).unique()
    return every


def _joined(
    reasoner: "Reasoner", found: list[Candidates], options: AnswerOptions, allowed: Tensor | None
) -> tuple[Answer, ...]:
    """The answers that all queries have in common, best first; ties by lower id."""
    calibration = reasoner.calibration
    options.check_calibrated(calibration)
    common = found[0].entities
    for one in found[1:]:
        common = common[_is_in(common, one.entities)]
    heads = torch.tensor([one.query[0] for one in found])
    common = common[~_is_in(common, heads)]
    if allowed is not None:
        common = common[_is_in(common, allowed)]
    score = torch.zeros(len(common))
    probability = torch.ones(len(common), dtype=torch.float64)
    known = torch.ones(len(common), dtype=torch.bool)
    relation = reasoner.graph.relation_name(found[0].query[1])
    for one in found:
        # The entities of a query are sorted by id.
        place = torch.searchsorted(one.entities, common)
        score += one.scores.log_softmax(0)[place] / len(found)
        known &= one.known[place]
        if calibration is not None:
            evidence = calibration.evidence(one.scores, one.known)[place].tolist()
            each = [calibration.probability(value, relation) for value in evidence]
            judged = torch.tensor(each, dtype=torch.float64)
            probability *= judged.masked_fill(one.known[place], 1.0)  # as in other answers
    keep = probability >= options.min_probability
    if options.exclude_known:
        keep &= ~known
    places = keep.nonzero().squeeze(1)
    order = places[score[places].argsort(descending=True, stable=True)[: options.top]]
    return tuple(
        Answer(
            reasoner.graph.entities[int(common[place])],
            float(score[place]),
            None if calibration is None else float(probability[place]),
            bool(known[place]),
        )
        for place in order.tolist()
    )


def _is_in(entities: Tensor, others: Tensor) -> Tensor:
    """Whether each of some entities is among others, bool, on the CPU."""
    return torch.isin(entities, others.cpu())
