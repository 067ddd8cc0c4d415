"""Calibration: from scores, which are comparable only within a query, to probabilities."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.data.dataset import Dataset, both_directions
from oneshot.ranking import KnownFacts
from oneshot.reasoner.answers import Calibration, Rivals, evidence
from oneshot.reasoner.reasoner import Reasoner

_CANDIDATES = 10  # answers per query used in the fit
_PRIOR = 0.01  # weight of the squared slope
_RELATION_PRIOR = 1.0  # weight of the squared offset of a relation, half of it
_STEPS, _RELATION_STEPS = 100, 20
_BINS = 10
# Minimum number of queries for measuring the error on those left out.
_LEAST_QUERIES = 20


class CalibrationBin(NamedTuple):
    """Answers with similar probabilities: their mean, the share of true ones, and their number."""

    probability: float
    true: float
    answers: int


class JudgedAnswers(NamedTuple):
    """The best answers of some queries that are not facts of the graph, and whether they hold.

    `evidence` float64 [m]; `holds` bool [m]; `relation` int64 [m], inverse = relation + R; `query`
    int64 [m]: number of the query.
    """

    evidence: Tensor
    holds: Tensor
    relation: Tensor
    query: Tensor

    def some(self, mask: Tensor) -> "JudgedAnswers":
        """The answers where `mask` bool [m] is true."""
        return JudgedAnswers(*(column[mask] for column in self))


def calibrate(
    reasoner: Reasoner, data: Dataset, limit: int = 1000, seed: int = 0, batch_size: int = 16
) -> Calibration:
    """Fit probabilities to the best answers of validation queries.

    Facts of the graph are excluded. Among the ten best answers of each query, the facts of the
    validation split count as true. The probability is a logistic function of the evidence for an
    answer (see `Calibration`), fitted by maximum likelihood, with an offset per relation that is
    pulled towards 0. True facts that no split contains count as false, so the probabilities are
    rather too low. A reasoner with factors gets a second calibration, of its predictor alone.
    """
    graph = reasoner.graph
    judged, count = _judged_validation(reasoner, data, limit, seed, batch_size)
    error = None
    if count >= _LEAST_QUERIES:
        first = judged.query < count // 2
        found = [
            (_probabilities(judged.some(~half), *_fitted(judged.some(half))), judged.holds[~half])
            for half in (first, ~first)
        ]
        error = calibration_error(*(torch.cat(column) for column in zip(*found, strict=True)))
    slope, offset, offsets = _fitted(judged)
    named = {graph.relation_name(relation): value for relation, value in offsets.items()}
    alone = None
    if reasoner.factors is not None and reasoner.factors.weight:
        without = Reasoner(graph, reasoner.sampler, reasoner.predictor)
        alone = calibrate(without, data, limit, seed, batch_size)
    return Calibration(slope, offset, count, named, error, alone=alone)


def calibrate_on_graphs(
    judges: Sequence[tuple[Reasoner, Dataset]], limit: int = 500, seed: int = 0
) -> Calibration:
    """As `calibrate`, for a reasoner that is used on graphs with other relations.

    `judges`: the reasoner on several graphs, each with its data set; `limit`: number of queries per
    graph. There are no offsets per relation. The error is the mean over the graphs, each judged by
    a fit to the others; None for a single graph.
    """
    found = [_judged_validation(reasoner, data, limit, seed) for reasoner, data in judges]
    judged = [answers for answers, _ in found]
    errors = []
    for left_out, own in enumerate(judged):
        others = [one for number, one in enumerate(judged) if number != left_out]
        if others:
            line = _fit_logistic(*_joined(others))
            errors.append(calibration_error(_probabilities(own, *line, {}), own.holds))
    slope, offset = _fit_logistic(*_joined(judged))
    queries = sum(count for _, count in found)
    return Calibration(slope, offset, queries, error=sum(errors) / len(errors) if errors else None)


def _joined(judged: Sequence[JudgedAnswers]) -> tuple[Tensor, Tensor]:
    """The evidence and the truth of all answers."""
    return torch.cat([one.evidence for one in judged]), torch.cat([one.holds for one in judged])


def _judged_validation(
    reasoner: Reasoner, data: Dataset, limit: int, seed: int, batch_size: int = 16
) -> tuple[JudgedAnswers, int]:
    """The best answers of some queries of the validation split. → (answers, number of queries)"""
    graph = reasoner.graph
    queries, _ = both_directions(data.valid.to(graph.device), graph.num_relations)
    queries = queries.unique(dim=0)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    queries = queries[order[:limit].to(graph.device)]
    judged = judge_answers(reasoner, queries, data.valid, data.train, batch_size=batch_size)
    return judged, len(queries)


def judge_answers(
    reasoner: Reasoner,
    queries: Tensor,
    facts: Tensor,
    known: Tensor,
    rivals: Rivals = "unknown",
    batch_size: int = 16,
) -> JudgedAnswers:
    """The ten best answers of each of `queries` [n, 2], and whether they are among `facts` [m, 3].

    Answers that are `known` facts [k, 3] are left out.
    """
    graph = reasoner.graph
    true = KnownFacts(facts, graph.num_entities, graph.num_relations).to(graph.device)
    seen = KnownFacts(known, graph.num_entities, graph.num_relations).to(graph.device)
    columns: list[tuple[Tensor, ...]] = []
    for number, part in enumerate(queries.split(batch_size)):
        batch, scores = reasoner.reason(part)
        is_known = _marked(batch.find_pairs(*seen.answers(part)), batch.num_entities)
        holds = _marked(batch.find_pairs(*true.answers(part)), batch.num_entities)
        for row in range(len(part)):
            mine = batch.entity_query == row
            own, own_known = scores[mine], is_known[mine]
            found = own.log_softmax(0) if rivals == "all" else evidence(own, own_known)
            new = (~own_known).nonzero().squeeze(1)
            best = new[own[new].topk(min(_CANDIDATES, len(new))).indices]
            relation = part[row, 1].expand(len(best))
            query = torch.full_like(relation, number * batch_size + row)
            columns.append((found[best].double(), holds[mine][best], relation, query))
    if not columns:
        none = torch.zeros(0)
        return JudgedAnswers(none.double(), none.bool(), none.long(), none.long())
    return JudgedAnswers(*(torch.cat(column).cpu() for column in zip(*columns, strict=True)))


def reliability(probabilities: Tensor, holds: Tensor) -> list[CalibrationBin]:
    """The reliability curve: `probabilities` [m] in ten bins, `holds` bool [m]; empty bins are left
    out."""
    at = (probabilities * _BINS).long().clamp(max=_BINS - 1)
    bins = []
    for number in at.unique().tolist():
        mine = at == number
        mean, share = float(probabilities[mine].mean()), float(holds[mine].double().mean())
        bins.append(CalibrationBin(mean, share, int(mine.sum())))
    return bins


def calibration_error(probabilities: Tensor, holds: Tensor) -> float:
    """The expected calibration error: mean distance of the reliability curve from the diagonal."""
    bins = reliability(probabilities, holds)
    distance = sum(part.answers * abs(part.probability - part.true) for part in bins)
    return distance / max(len(probabilities), 1)


def _fitted(judged: JudgedAnswers) -> tuple[float, float, dict[int, float]]:
    """Slope, offset, and the offset of each relation."""
    slope, offset = _fit_logistic(judged.evidence, judged.holds)
    base = slope * judged.evidence + offset
    relations, place = judged.relation.unique(return_inverse=True)
    own = torch.zeros(len(relations), dtype=torch.float64)
    for _ in range(_RELATION_STEPS):  # Newton's method for each relation
        p = torch.sigmoid(base + own[place])
        gradient = torch.zeros_like(own).index_add(0, place, p - judged.holds.double())
        curvature = torch.zeros_like(own).index_add(0, place, p * (1 - p))
        own = own - (gradient + _RELATION_PRIOR * own) / (curvature + _RELATION_PRIOR)
    return slope, offset, dict(zip(relations.tolist(), own.tolist(), strict=True))


def _probabilities(
    judged: JudgedAnswers, slope: float, offset: float, offsets: dict[int, float]
) -> Tensor:
    """The probability of each answer [m]."""
    own = [offsets.get(relation, 0.0) for relation in judged.relation.tolist()]
    value = slope * judged.evidence + offset + torch.tensor(own, dtype=torch.float64)
    return torch.sigmoid(value)


def _marked(places: Tensor, size: int) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool, device=places.device)
    mask[places[places >= 0]] = True
    return mask


def _fit_logistic(values: Tensor, labels: Tensor) -> tuple[float, float]:
    """Slope (not below 0) and offset of a logistic regression of `labels` on `values`, both [n].

    Newton's method with halved steps on standardized values, from the share of true labels.
    """
    x, y = values.double(), labels.double()
    mean = float(x.mean()) if len(x) else 0.0
    scale = max(float(x.std(correction=0)), 1e-9) if len(x) else 1.0
    # One success and one failure keep the fit finite when all labels agree.
    x = torch.cat([(x - mean) / scale, x.new_zeros(2)])
    y = torch.cat([y, y.new_tensor([0.0, 1.0])])
    rows = torch.stack([x, torch.ones_like(x)], dim=1)
    prior = torch.diag(x.new_tensor([_PRIOR, 0.0]))  # keeps the slope finite for separable labels

    def loss(line: Tensor) -> float:
        value = rows @ line
        likelihood = (torch.nn.functional.softplus(value) - y * value).sum()
        return float(likelihood + 0.5 * line @ prior @ line)

    rate = float(y.mean())
    line = x.new_tensor([0.0, math.log(rate / (1 - rate))])
    lowest = loss(line)
    for _ in range(_STEPS):
        p = torch.sigmoid(rows @ line)
        gradient = rows.T @ (p - y) + prior @ line
        curvature = (rows * (p * (1 - p))[:, None]).T @ rows + prior
        step = torch.linalg.solve(curvature + 1e-9 * torch.eye(2, dtype=x.dtype), gradient)
        # For labels that are nearly separable, whole steps may lead farther and farther away.
        while (found := loss(line - step)) > lowest and float(step.abs().max()) >= 1e-9:
            step = step / 2
        if found <= lowest:
            line, lowest = line - step, found
        if float(step.abs().max()) < 1e-9:
            break
    slope, offset = line.tolist()
    if slope < 0:  # misleading scores: use only the share of true answers
        return 0.0, math.log(rate / (1 - rate))
    return slope / scale, offset - slope * mean / scale
