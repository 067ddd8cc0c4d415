"""Evaluation of a reasoner on held-out facts, by filtered ranking."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from oneshot.data.load import both_directions
from oneshot.errors import InputError
from oneshot.evaluation.cases import cases
from oneshot.evaluation.coverage import components
from oneshot.ranking import (
    METRICS,
    KnownFacts,
    Metrics,
    Ranks,
    Uncovered,
    bootstrap_interval,
    candidate_ranks,
    filtered_ranks,
    metrics,
    order_outside,
)
from oneshot.reasoner.batch_size import BatchSize, in_batches
from oneshot.reasoner.reasoner import Reasoner
from oneshot.subgraph import SubgraphBatch
from oneshot.system.distributed import Team
from oneshot.system.notebook import folded, html_table, titled

_SHOWN = 10  # relations in a notebook


@dataclass(frozen=True)
class Report:
    """The result of an evaluation; ranks are realistic unless noted otherwise.

    `coverage`: share of queries whose answer was sampled. `no_path`: share whose answer cannot be
    reached by any path. `interval`: bootstrap 95% interval of the MRR. `queries`: number of
    evaluated queries, out of `of`. `per_relation`: by name, inverse relations separately (⁻¹).
    `per_case`: by what graph and subgraph know about the answer (see `oneshot.evaluation.cases`).
    """

    metrics: Metrics
    optimistic: Metrics
    pessimistic: Metrics
    coverage: float
    no_path: float
    interval: tuple[float, float]
    queries: int
    of: int
    seconds: float
    per_relation: dict[str, dict[str, float]] = field(repr=False)
    per_direction: dict[str, dict[str, float]] = field(repr=False)
    per_case: dict[str, dict[str, float]] = field(repr=False)

    @property
    def mrr(self) -> float:
        return self.metrics.mrr

    def as_dict(self) -> dict[str, Any]:
        """All values, with the keys of the command line's JSON."""
        return {
            **self.metrics.as_dict(),
            "mrr_interval": list(self.interval),
            "optimistic": self.optimistic.as_dict(),
            "pessimistic": self.pessimistic.as_dict(),
            "coverage": self.coverage,
            "no_path": self.no_path,
            "queries": self.queries,
            "of": self.of,
            "seconds": self.seconds,
            "per_direction": self.per_direction,
            "per_case": self.per_case,
            "per_relation": self.per_relation,
        }

    def __str__(self) -> str:
        return (
            f"{self.metrics}  coverage {self.coverage:.4f}  "
            f"({self.queries:,} queries, {self.seconds:.1f} s)"
        )

    def _repr_html_(self) -> str:
        """The metrics, and for the relations with most queries a plot and on a click a table."""
        from oneshot.plots.bars import bars
        from oneshot.plots.shapes import as_svg

        low, high = self.interval
        titles = [METRICS[name].title for name in self.metrics.as_dict()]
        columns = [*titles, "coverage", "queries"]
        values = [*self.metrics.as_dict().values(), self.coverage, self.queries]
        some = sorted(self.per_relation.items(), key=lambda pair: -pair[1]["queries"])[:_SHOWN]
        rows = [(name, *(part[key] for key in part)) for name, part in some]
        title = f"{len(rows)} of {len(self.per_relation)} relations"
        drawn = bars(
            "MRR of the relations with most queries",
            [(name, part["mrr"], f"{part['queries']:,} queries") for name, part in some],
        )
        plot = as_svg(drawn).replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
        return titled(
            "Evaluation",
            html_table(columns, [values]),
            plot if some else "",
            folded(title, html_table(["relation", *columns], rows)),
            notes=[f"95% interval of the MRR {low:.4f} to {high:.4f}, {self.seconds:.1f} s"],
        )


def evaluate(
    reasoner: Reasoner,
    facts: Tensor,
    known: Tensor | KnownFacts | None = None,
    *,
    batch_size: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    uncovered: Uncovered = "below",
    progress: Callable[[int], None] | None = None,
    until: Callable[[], bool] | None = None,
    team: Team | None = None,
) -> Report:
    """Filtered ranking of `facts` int64 [n, 3], each in both directions.

    `known`: the facts to filter by, [m, 3], of all splits; default those of the graph.
    `batch_size`: queries per batch; default 16, on a GPU chosen to fill it. `limit`: maximum number
    of queries, sampled with `seed`. `progress` is called with the number of queries done. `until`:
    called after each batch; the evaluation ends once it returns true. Queries are evaluated in the
    order of the sample, so the first n are the same as with a limit of n. `team`: processes that
    share the work; each gets the whole report. Cannot be combined with `until`.
    """
    graph = reasoner.graph
    facts = torch.as_tensor(facts)
    if facts.ndim != 2 or facts.shape[1] != 3 or facts.is_floating_point():
        raise InputError(f"facts must be integers [n, 3], not {facts.dtype} {list(facts.shape)}")
    facts = facts.long().to(graph.device)
    if until is None:
        queries, answers = drawn_queries(facts, graph.num_relations, limit, seed)
    else:
        queries, answers = both_directions(facts, graph.num_relations)
        order = _draw(len(queries), limit, seed).to(graph.device)
        queries, answers = queries[order], answers[order]
    if not len(queries):
        raise InputError("there are no facts to evaluate on")
    if not isinstance(known, KnownFacts):
        everything = graph.facts.long() if known is None else known
        known = KnownFacts(everything, graph.num_entities, graph.num_relations)
    known = known.to(graph.device)
    started = time.perf_counter()
    size = BatchSize(batch_size, reasoner.predictor.config, graph.device)
    total = len(queries)
    ours = torch.arange(total) if team is None else team.dealt(total)
    ours = ours.to(graph.device)
    found = torch.empty(len(ours), 3, dtype=torch.long, device=graph.device)
    wanted = answers[ours]
    for rows, batch, scores in in_batches(reasoner, queries[ours], size):
        ranks = answer_ranks(reasoner, batch, scores, wanted[rows], known, uncovered)
        columns = (ranks.optimistic, ranks.pessimistic, ranks.covered.long())
        found[rows] = torch.stack(columns, dim=1)
        if progress is not None:
            progress(batch.num_queries)
        if until is not None and until():
            done = rows.stop
            found, queries, answers = found[:done], queries[:done], answers[:done]
            break
    if team is not None:
        found = team.gathered(found, total)
    best, worst, covered = found.unbind(dim=1)
    part_of = components(graph)
    no_path = part_of[queries[:, 0]] != part_of[answers]
    return _report(
        reasoner,
        queries,
        answers,
        best,
        worst,
        covered.bool(),
        no_path,
        2 * len(facts),
        seed,
        time.perf_counter() - started,
    )


def answer_ranks(
    reasoner: Reasoner,
    batch: SubgraphBatch,
    scores: Tensor,
    answers: Tensor,
    known: KnownFacts | None,
    uncovered: Uncovered = "below",
) -> Ranks:
    """Filtered ranks of `answers` [n] among all entities, given the scores [N] of a batch.

    Entities outside the subgraphs are in the order of the sampler's likelihood, if it has one.
    """
    graph, sampler = reasoner.graph, reasoner.sampler
    ranks = filtered_ranks(batch, scores, answers, known, graph.num_entities, uncovered)
    if uncovered != "below" or not sampler.scores_answers:
        return ranks
    return order_outside(ranks, batch, answers, known, partial(sampler.likelihoods, graph))


def drawn_queries(
    facts: Tensor, num_relations: int, limit: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The queries that `evaluate` uses for `facts` [n, 3], and their answers: [m, 2], [m].

    Both directions of all facts, or a sample of `limit` of these.
    """
    queries, answers = both_directions(facts, num_relations)
    if limit is None or limit >= len(queries):
        return queries, answers
    chosen = _draw(len(queries), limit, seed).sort().values.to(facts.device)
    return queries[chosen], answers[chosen]


def _draw(count: int, limit: int | None, seed: int) -> Tensor:
    """At most `limit` of `count` rows in random order; the sample is a prefix of a larger one."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:limit]


def evaluate_candidates(
    reasoner: Reasoner,
    queries: Tensor,
    answers: Tensor,
    negatives: Tensor,
    *,
    batch_size: int = 16,
) -> tuple[Tensor, Tensor]:
    """Scores for ranking against given negatives, as in the OGB benchmarks.

    `queries` [n, 2], `answers` [n], `negatives` [n, c]: all candidates are added to the subgraph.
    → (scores of the answers [n], of the negatives [n, c]), for OGB's evaluator or
    `candidate_ranks`.
    """
    positive, negative = [], []
    for part in range(0, len(queries), batch_size):
        step = slice(part, part + batch_size)
        candidates = torch.cat([answers[step, None], negatives[step]], dim=1)
        candidates = candidates.to(reasoner.device)
        batch, scores = reasoner.reason(queries[step].to(reasoner.device), candidates)
        found = scores[_candidate_places(batch, candidates)]
        positive.append(found[:, 0])
        negative.append(found[:, 1:])
    return torch.cat(positive), torch.cat(negative)


def candidate_metrics(positive: Tensor, negative: Tensor) -> Metrics:
    """Metrics of realistic ranks against candidates: `positive` [n], `negative` [n, c]."""
    best, worst = candidate_ranks(positive, negative)
    return metrics((best + worst).double() / 2)


def _candidate_places(batch: SubgraphBatch, candidates: Tensor) -> Tensor:
    row = torch.arange(len(candidates), device=batch.device)[:, None].expand_as(candidates)
    return batch.find_pairs(row.reshape(-1), candidates.reshape(-1)).reshape(candidates.shape)


def _report(
    reasoner: Reasoner,
    queries: Tensor,
    answers: Tensor,
    best: Tensor,
    worst: Tensor,
    covered: Tensor,
    no_path: Tensor,
    of: int,
    seed: int,
    seconds: float,
) -> Report:
    graph = reasoner.graph
    parted = cases(graph, queries, answers, covered, no_path)
    # Each of the many parts below would wait for a GPU several times.
    relation, best, worst = (column.cpu() for column in (queries[:, 1], best, worst))
    covered, no_path = covered.cpu(), no_path.cpu()
    ranks = (best + worst).double() / 2

    def part(mask: Tensor) -> dict[str, float]:
        return {
            **metrics(ranks[mask]).as_dict(),
            "coverage": float(covered[mask].double().mean()),
            "queries": int(mask.sum()),
        }

    def parts(masks: dict[str, Tensor]) -> dict[str, dict[str, float]]:
        return {name: part(mask) for name, mask in masks.items() if bool(mask.any())}

    forward = relation < graph.num_relations
    directions = {"forward": forward, "inverse": ~forward}
    low, high = bootstrap_interval(ranks, seed)
    return Report(
        metrics=metrics(ranks),
        optimistic=metrics(best),
        pessimistic=metrics(worst),
        coverage=float(covered.double().mean()),
        no_path=float(no_path.double().mean()),
        interval=(low, high),
        queries=len(ranks),
        of=of,
        seconds=seconds,
        per_relation={
            graph.relation_name(r): part(relation == r) for r in relation.unique().tolist()
        },
        per_direction=parts(directions),
        per_case=parts({name: mask.cpu() for name, mask in parted.items()}),
    )
