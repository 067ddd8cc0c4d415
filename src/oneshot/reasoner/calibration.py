"""Calibration: from scores, which are comparable only within a query, to probabilities."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from oneshot.data.dataset import Dataset, both_directions
from oneshot.graph.graph import KnowledgeGraph
from oneshot.ranking import KnownFacts
from oneshot.reasoner.answers import MOST_EVIDENCE, Calibration, FactCalibration, Rivals
from oneshot.reasoner.batch_size import BatchSize, in_batches
from oneshot.reasoner.discovery import LEAST_SHARE
from oneshot.reasoner.judgement import (
    Judged,
    best_of_each,
    fact_features,
    judge,
    query_features,
    query_logsumexp,
    several_in,
    support,
)
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers._answer_counts import AnswerCounts
from oneshot.system.devices import one_thread

_CANDIDATES = 10  # answers per query used in the fit
_PRIOR = 0.01  # weight of the squared slope
_RELATION_PRIOR = 1.0  # weight of the squared offset of a relation, half of it
_STEPS, _RELATION_STEPS = 100, 20
_BINS = 10
# Minimum number of queries for measuring the error on those left out.
_LEAST_QUERIES = 20
# Minimum number of true facts for fitting facts, and of wrong ones.
_LEAST_TRUE = 10
# Per validation query: other queries; answers asked in the other direction; facts and wrong facts.
_OTHERS, _CHECKED, _PRESENT = 0.3, 0.5, 0.125
COST = 1 + _OTHERS + _CHECKED + 4 * _PRESENT
"""Number of queries that a calibration asks per validation query."""
_LEAST_CHANCE = 0.02  # so that unlikely answers are drawn, too
_EXPECTATIONS, _CONVERGED = 30, 1e-4


class CalibrationBin(NamedTuple):
    """Answers with similar probabilities: their mean, the share of true ones, and their number."""

    probability: float
    true: float
    answers: int


class JudgedAnswers(NamedTuple):
    """The best answers of some queries that are not facts of the graph, and whether they hold.

    `evidence` float64 [m]; `holds` bool [m]; `relation` int64 [m], inverse = relation + R; `query`
    int64 [m]: number of the query; `entity`, `answer` int64 [m]; `mass`, `known` float64 [m]: see
    `Judged`.
    """

    evidence: Tensor
    holds: Tensor
    relation: Tensor
    query: Tensor
    entity: Tensor
    answer: Tensor
    mass: Tensor
    known: Tensor

    def some(self, mask: Tensor) -> "JudgedAnswers":
        """The answers where `mask` bool [m] is true."""
        return JudgedAnswers(*(column[mask] for column in self))


def calibrate(
    reasoner: Reasoner,
    data: Dataset,
    limit: int = 1000,
    seed: int = 0,
    batch_size: int | None = None,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Fit probabilities to the best answers of validation queries.

    Facts of the graph are excluded. Among the ten best answers of each query, the facts of the
    validation split count as true. The probability is a logistic function of the evidence for an
    answer (see `Calibration`), fitted by maximum likelihood, with an offset per relation that is
    pulled towards 0. Facts of the test split are not looked at, but counted (`labelled_shares`).
    True facts that no split contains count as false, so the probabilities are rather too low. A
    reasoner with factors gets a second calibration, of its predictor alone.

    Facts are calibrated apart, see `Calibration`. Facts that the graph lacks: on the answers of the
    validation queries, and of as many others of the same relations as stand for all the queries
    that have no answer in the validation split. Facts of the graph: on validation facts, and wrong
    ones. `limit` queries of the validation split, and `COST - 1` times as many others, are asked;
    fewer, but at least a batch, if they would take more than `seconds` by `clock`. `batch_size`:
    default 16, on a GPU chosen to fill it.
    """
    graph = reasoner.graph
    has_factors = reasoner.factors is not None and bool(reasoner.factors.weight)
    if has_factors:
        seconds /= 2  # the rest is for the predictor alone
    end = clock() + seconds / COST
    until = None if math.isinf(end) else lambda: clock() >= end
    judged, count = _judged_validation(reasoner, data, limit, seed, batch_size, until)
    error: float | None = None
    curve: tuple[tuple[float, float, int], ...] = ()
    labelled = labelled_shares(data)
    if count >= _LEAST_QUERIES:
        first = judged.query < count // 2
        found = []
        for half in (first, ~first):
            rest, fit = judged.some(~half), _fitted(judged.some(half), labelled)
            # An answer has a label if it is true and in the validation split.
            found.append((_probabilities(rest, *fit) * labelled[rest.relation], rest.holds))
        left_out = [torch.cat(column) for column in zip(*found, strict=True)]
        error, curve = calibration_error(*left_out), tuple(reliability(*left_out))
    slope, offset, offsets = _fitted(judged, labelled)
    named = {graph.relation_name(relation): value for relation, value in offsets.items()}
    alone = None
    if has_factors:
        without = Reasoner(graph, reasoner.sampler, reasoner.predictor)
        alone = calibrate(without, data, limit, seed, batch_size, seconds, clock)
    several = several_in(graph)
    calibration = Calibration(
        slope,
        offset,
        count,
        named,
        error,
        alone=alone,
        several={graph.relation_name(r): share for r, share in enumerate(several.tolist())},
        curve=curve,
    )
    if not count:
        return calibration
    # Reasoners with factors do not judge facts of the graph.
    present = None if alone else _fitted_present(reasoner, data, count, seed, several, batch_size)
    lines = _fitted_missing(reasoner, data, judged, calibration, count, seed, several, batch_size)
    return replace(calibration, missing=lines[0], missing_forward=lines[1], present=present)


def _fitted_missing(
    reasoner: Reasoner,
    data: Dataset,
    judged: JudgedAnswers,
    asked: Calibration,
    count: int,
    seed: int,
    several: Tensor,
    batch_size: int | None,
) -> tuple[FactCalibration | None, FactCalibration | None]:
    """The calibrations of facts that the graph lacks, judged in both directions and in one.

    `judged`: the best answers of `count` validation queries; `asked`: their calibration.
    """
    graph = reasoner.graph
    judged = judged.some(judged.relation < graph.num_relations)  # as `discover` asks
    valid = data.valid[:, :2].unique(dim=0)
    others, total = _other_queries(graph, valid, int(_OTHERS * count), seed)
    if int(judged.holds.sum()) < _LEAST_TRUE or not len(others):
        return None, None
    nothing = judge_answers(
        reasoner, others.to(graph.device), data.valid, data.train_facts, batch_size=batch_size
    )
    size = len(nothing.holds)
    # Each answer stands for those of the queries that were not asked.
    weights = torch.cat(
        [
            torch.full((len(judged.holds),), len(valid) / len(judged.query.unique())),
            torch.full((size,), total / len(others)),
        ]
    ).double()
    both = JudgedAnswers(*map(torch.cat, zip(judged, nothing, strict=True)))
    labelled = len(data.valid) / max(len(data.valid) + len(data.test), 1)
    ahead = Judged(both.evidence, both.evidence, both.mass, both.known, both.mass)
    features = query_features(ahead, both.relation, several)
    names = [graph.relation_name(relation) for relation in range(graph.num_relations)]
    forward = _fitted_line(features, both.holds, both.relation, weights, labelled, names)
    # The other direction is asked of some, of the likely ones rather than of the others.
    chances = _probabilities(both, asked.slope, asked.offset, {}) + _LEAST_CHANCE
    drawn = (chances * (_CHECKED * count / chances.sum())).clamp(max=1).where(~both.holds, 1.0)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(len(drawn), generator=generator, dtype=torch.float64) < drawn
    both, weights, ahead = both.some(chosen), (weights / drawn)[chosen], _some(ahead, chosen)
    queries = torch.stack([both.answer, both.relation + graph.num_relations], dim=1)
    known = data.train_facts.to(graph.device)
    size_of = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    there, answers = queries.to(graph.device), both.entity.to(graph.device)
    back = Judged.joined(judge(reasoner, there, answers, known, size_of))
    features = fact_features(ahead, back, both.relation, several)
    return _fitted_line(features, both.holds, both.relation, weights, labelled, names), forward


def _some(judged: Judged, mask: Tensor) -> Judged:
    return Judged(*(column[mask] for column in judged))


def _other_queries(
    graph: KnowledgeGraph, valid: Tensor, count: int, seed: int
) -> tuple[Tensor, int]:
    """Some of the queries (head, relation) that `discover` asks, without those of `valid` [n, 2].

    → (queries [m, 2] with m ≤ `count`, the number of such queries)
    """
    # A GPU would count the many answers of a relation one after the other.
    counts = AnswerCounts((graph.host or graph).to("cpu"))
    key = valid[:, 0] * graph.num_relations + valid[:, 1]
    generator = torch.Generator().manual_seed(seed)
    found, total = torch.zeros(0, 2, dtype=torch.long), 0
    rank = torch.zeros(0)
    for relation in range(graph.num_relations):
        heads = counts.likely_answers(relation + graph.num_relations, LEAST_SHARE).cpu()
        heads = heads[~torch.isin(heads * graph.num_relations + relation, key)]
        total += len(heads)
        # The queries of lowest random rank; no more than `count` are in memory besides.
        drawn = torch.rand(len(heads), generator=generator)
        rank, order = torch.cat([rank, drawn]).sort(stable=True)
        queries = torch.stack([heads, torch.full_like(heads, relation)], dim=1)
        found, rank = torch.cat([found, queries])[order[:count]], rank[:count]
    return found, total


def _fitted_present(
    reasoner: Reasoner,
    data: Dataset,
    count: int,
    seed: int,
    several: Tensor,
    batch_size: int | None,
) -> tuple[float, float] | None:
    """Slope and offset of the support for validation facts and as many wrong ones."""
    graph = reasoner.graph
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.valid), generator=generator)
    right = data.valid[order[: max(int(_PRESENT * count), 1)]]
    known = data.known_facts
    wrong = _wrong_facts(right, data.graph, known, generator)
    if len(wrong) < _LEAST_TRUE:
        return None
    facts = torch.cat([right, wrong])
    seen = data.train_facts.to(graph.device)
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    queries, answers = both_directions(facts.to(graph.device), graph.num_relations)
    both = Judged.joined(judge(reasoner, queries, answers, seen, size)).halves()
    holds = torch.arange(len(facts)) < len(right)
    return _fit_logistic(support(*both, facts[:, 1], several), holds)


def _wrong_facts(
    facts: Tensor, graph: KnowledgeGraph, known: KnownFacts, generator: torch.Generator
) -> Tensor:
    """`facts` [n, 3] with another head or tail: a random entity, or one of a fact of the relation.

    Those that are `known` facts are left out. → [m, 3], m ≤ n
    """
    wrong = facts.clone()
    for row, (relation, draw) in enumerate(
        zip(facts[:, 1].tolist(), torch.rand(len(facts), generator=generator), strict=True)
    ):
        column = 2 * int(draw * 4 >= 2)
        ends = _ends_of(graph, relation, column)
        if draw * 4 % 2 < 1 or not len(ends):
            ends = torch.arange(graph.num_entities)
        wrong[row, column] = ends[int(torch.randint(len(ends), (), generator=generator))]
    is_new = ~known.holds(wrong[:, :2], wrong[:, 2:]).squeeze(1) & (wrong[:, 0] != wrong[:, 2])
    return wrong[is_new]


def _ends_of(graph: KnowledgeGraph, relation: int, column: int) -> Tensor:
    """The heads (column 0) or tails (column 2) of the facts of a relation, int64 [n]."""
    if not graph.is_mapped:
        facts = graph.facts
        return facts[facts[:, 1] == relation, column].long()
    label = relation if column == 2 else relation + graph.num_relations
    pairs = graph.answer_pairs
    return pairs.entities_of(label).repeat_interleave(pairs.counts_of(label))


@one_thread()
def _fitted_line(
    features: Tensor,
    holds: Tensor,
    relations: Tensor,
    weights: Tensor,
    labelled: float,
    names: Sequence[str],
) -> FactCalibration | None:
    """A logistic regression of `holds` bool [m] on `features` [m, k], with offsets of relations.

    `weights` [m]: how many answers each stands for. `labelled`: the share of the facts to be found
    that are in the validation split. The rest, as many as the test split has, count as false, and
    nobody may look which ones they are; so each answer without a label is true with the probability
    that follows from the fit (expectation and maximization). None if the scores mislead.
    """
    mean, scale = features.mean(0), features.std(0, correction=0).clamp(min=1e-9)
    count, size = features.shape
    rows = torch.cat([(features - mean) / scale, torch.ones(count, 1).double()], dim=1)
    prior = torch.full((size + 1,), _PRIOR, dtype=torch.float64)
    prior[size] = 1e-6
    weights = weights / weights.mean()
    found, place = relations.unique(return_inverse=True)
    line = torch.zeros(size + 1 + len(found), dtype=torch.float64)
    labels = holds.double()
    for _ in range(_EXPECTATIONS):
        line = _newton(rows, place, labels, weights, prior, line)
        chance = torch.sigmoid(_values(rows, place, line))
        hidden = (1 - labelled) * chance / (1 - labelled * chance)
        expected = holds.double() + (~holds).double() * hidden
        if float((expected - labels).abs().max()) < _CONVERGED:
            break
        labels = expected
    slopes = line[:size] / scale
    if float(slopes[0]) <= 0:
        return None
    offset = float(line[size] - slopes @ mean)
    own = line[size + 1 :].tolist()
    offsets = {names[r]: value for r, value in zip(found.tolist(), own, strict=True)}
    return FactCalibration(tuple(slopes.tolist()), offset, offsets)


def _values(rows: Tensor, place: Tensor, line: Tensor) -> Tensor:
    """The values of a line [k + r]: slopes for `rows` [m, k], and an offset at each `place` [m]."""
    slopes, offsets = line.tensor_split([rows.shape[1]])
    return rows @ slopes + offsets[place]


def _newton(
    rows: Tensor, place: Tensor, labels: Tensor, weights: Tensor, prior: Tensor, line: Tensor
) -> Tensor:
    """The line [k + r] of highest likelihood of `labels` [m], from a line; see `_values`.

    `prior` [k]: weights of the squared slopes. Each row has one offset, so the curvature is
    diagonal among the offsets: the slopes are solved for first, then each offset by itself.
    """
    size = rows.shape[1]
    all_priors = torch.cat([prior, prior.new_full((len(line) - size,), _RELATION_PRIOR)])

    def summed(values: Tensor) -> Tensor:
        """The sum of the rows of `values` [m, …] at each place, [r, …]."""
        zeros = values.new_zeros(len(line) - size, *values.shape[1:])
        return zeros.index_add_(0, place, values)

    def loss(at: Tensor) -> float:
        value = _values(rows, place, at)
        likelihood = weights * (torch.nn.functional.softplus(value) - labels * value)
        return float(likelihood.sum() + 0.5 * (all_priors * at * at).sum())

    lowest = loss(line)
    for _ in range(_STEPS):
        chance = torch.sigmoid(_values(rows, place, line))
        slopes, offsets = line.tensor_split([size])
        error = weights * (chance - labels)
        spread = (weights * chance * (1 - chance))[:, None]
        slope = rows.T @ error + prior * slopes
        lift = summed(error) + _RELATION_PRIOR * offsets
        among = (rows * spread).T @ rows + torch.diag(prior + 1e-9)
        between = summed(rows * spread)
        own = summed(spread) + _RELATION_PRIOR
        first = torch.linalg.solve(
            among - between.T @ (between / own), slope - between.T @ (lift / own[:, 0])
        )
        step = torch.cat([first, (lift - between @ first) / own[:, 0]])
        while (found := loss(line - step)) > lowest and float(step.abs().max()) >= 1e-9:
            step = step / 2
        if found <= lowest:
            line, lowest = line - step, found
        if float(step.abs().max()) < 1e-6:
            break
    return line


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
    reasoner: Reasoner,
    data: Dataset,
    limit: int,
    seed: int,
    batch_size: int | None = None,
    until: Callable[[], bool] | None = None,
) -> tuple[JudgedAnswers, int]:
    """The best answers of some queries of the validation split. → (answers, number of queries)

    No further batch is asked once `until` returns true.
    """
    graph = reasoner.graph
    queries, _ = both_directions(data.valid.to(graph.device), graph.num_relations)
    queries = queries.unique(dim=0)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    queries = queries[order[:limit].to(graph.device)]
    asked = 0

    def is_over(done: int) -> bool:
        nonlocal asked
        asked = done
        return until is not None and until()

    judged = judge_answers(
        reasoner, queries, data.valid, data.train_facts, batch_size=batch_size, is_over=is_over
    )
    return judged, asked


def judge_answers(
    reasoner: Reasoner,
    queries: Tensor,
    facts: Tensor,
    known: Tensor | KnownFacts,
    rivals: Rivals = "unknown",
    batch_size: int | None = None,
    is_over: Callable[[int], bool] | None = None,
) -> JudgedAnswers:
    """The ten best answers of each of `queries` [n, 2], and whether they are among `facts` [m, 3].

    Answers that are `known` facts, [k, 3] or their known answers, are left out. `is_over` is called
    after each batch with the number of queries asked so far, and ends the work by returning true.
    """
    graph = reasoner.graph
    true = KnownFacts(facts, graph.num_entities, graph.num_relations).to(graph.device)
    seen = known
    if not isinstance(seen, KnownFacts):
        seen = KnownFacts(seen, graph.num_entities, graph.num_relations)
    seen = seen.to(graph.device)
    size = BatchSize(batch_size, reasoner.predictor.config, reasoner.device)
    parts: list[tuple[Tensor, ...]] = []
    for step, batch, scores in in_batches(reasoner, queries, size):
        asked, total, query = queries[step], batch.num_entities, batch.entity_query
        row_of_known, entities = seen.answers(asked)
        is_known = _marked(batch.find_pairs(row_of_known, entities), total)
        holds = _marked(batch.find_pairs(*true.answers(asked)), total)
        own = scores.double()
        unknown = own.masked_fill(is_known, -torch.inf)
        mass = query_logsumexp(unknown, query, len(asked))
        against = mass if rivals == "unknown" else query_logsumexp(own, query, len(asked))
        found = own - against[query]
        if rivals == "unknown":
            found = found.clamp(-MOST_EVIDENCE, MOST_EVIDENCE)
        best = best_of_each(unknown, query, len(asked), _CANDIDATES)
        which = query[best]
        others = torch.bincount(row_of_known, minlength=len(asked)).double()
        entity, relation = asked[which].unbind(1)
        columns = (found[best], holds[best], relation, which + step.start, entity)
        parts.append((*columns, batch.entities[best], mass[which], others[which]))
        if is_over is not None and is_over(step.stop):
            break
    if not parts:
        none, ids = torch.zeros(0).double(), torch.zeros(0).long()
        return JudgedAnswers(none, none.bool(), ids, ids, ids, ids, none, none)
    return JudgedAnswers(*(torch.cat(column).cpu() for column in zip(*parts, strict=True)))


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


def labelled_shares(data: Dataset) -> Tensor:
    """The share of missing answers of validation queries that are in the validation split, [2R].

    A query is asked because it has one answer there. Of its other missing answers, some are in the
    test split, in proportion to the size of the splits; nobody looks which. So if the queries of a
    relation have `n` validation answers besides the first one on average, and `c` is the share of
    the validation split among the facts of both, then `1 + n / c` answers are missing on average.
    """
    relations = data.graph.num_relations
    queries, _ = both_directions(data.valid.cpu(), relations)
    distinct, answers = queries.unique(dim=0, return_counts=True)
    others = torch.zeros(2 * relations, dtype=torch.float64)
    others.index_add_(0, distinct[:, 1], (answers - 1).double())
    asked = torch.bincount(distinct[:, 1], minlength=2 * relations)
    mean = float(others.sum()) / max(len(distinct), 1)
    besides = (others + mean) / (asked + 1)  # that of a rare relation is near the mean
    share = len(data.valid) / max(len(data.valid) + len(data.test), 1)
    return (1 + besides) / (1 + besides / max(share, 1e-9))


@one_thread()
def _fitted(
    judged: JudgedAnswers, labelled: Tensor | None = None
) -> tuple[float, float, dict[int, float]]:
    """Slope, offset, and the offset of each relation.

    `labelled` [2R]: see `labelled_shares`; an answer without a label is true with the probability
    that follows from the fit (expectation and maximization). Default: all are labelled.
    """
    relations, place = judged.relation.unique(return_inverse=True)
    labels = judged.holds.double()
    shares = torch.ones_like(labels) if labelled is None else labelled[judged.relation]
    for _ in range(_EXPECTATIONS):
        slope, offset = _fit_logistic(judged.evidence, labels)
        base = slope * judged.evidence + offset
        own = torch.zeros(len(relations), dtype=torch.float64)
        for _ in range(_RELATION_STEPS):  # Newton's method for each relation
            p = torch.sigmoid(base + own[place])
            gradient = torch.zeros_like(own).index_add(0, place, p - labels)
            curvature = torch.zeros_like(own).index_add(0, place, p * (1 - p))
            own = own - (gradient + _RELATION_PRIOR * own) / (curvature + _RELATION_PRIOR)
        p = torch.sigmoid(base + own[place])
        expected = ((1 - shares) * p / (1 - shares * p)).where(~judged.holds, 1.0)
        if not len(labels) or float((expected - labels).abs().max()) < _CONVERGED:
            break
        labels = expected
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


@one_thread()
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
