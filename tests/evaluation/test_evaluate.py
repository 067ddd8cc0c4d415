"""Tests of evaluation: against brute force, and against the definitions of the OGB benchmarks."""

import os
import statistics
import sys

import pytest
import torch
from tests.support.graphs import random_graph
from tests.support.samples import tiny_predictor
from torch import Tensor

from oneshot.data.dataset import both_directions
from oneshot.errors import InputError
from oneshot.evaluation.coverage import components
from oneshot.evaluation.evaluate import Report, candidate_metrics, evaluate, evaluate_candidates
from oneshot.graph.graph import KnowledgeGraph
from oneshot.predictor import Predictor
from oneshot.ranking import KnownFacts, Uncovered, dense_ranks
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import FittedSampler, PPRSampler
from oneshot.subgraph import SubgraphBatch

ENTITIES, RELATIONS = 25, 3
HALF_LINKS = ("entity and answer known", "entity known", "answer known", "neither known")


class FakePredictor(Predictor):
    """Scores that are known without a network, with many ties: (7 u + 5 q + 3 v) mod 6 − 2."""

    def __init__(self) -> None:
        super().__init__(tiny_predictor().config, RELATIONS)

    def forward(self, batch: SubgraphBatch, edge_weights: object = None) -> Tensor:
        head, relation = batch.queries[batch.entity_query].unbind(1)
        return ((7 * head + 5 * relation + 3 * batch.entities) % 6 - 2).double()


def score_of(head: int, relation: int, entity: int) -> int:
    return (7 * head + 5 * relation + 3 * entity) % 6 - 2


@pytest.fixture
def graph() -> KnowledgeGraph:
    return random_graph(0, ENTITIES, 60, RELATIONS)


@pytest.fixture
def reasoner(graph: KnowledgeGraph) -> Reasoner:
    return Reasoner(graph, PPRSampler(entity_ratio=0.4), FakePredictor())


@pytest.fixture
def held_out() -> Tensor:
    return random_graph(7, ENTITIES, 20, RELATIONS).facts.long()


def brute_force(
    reasoner: Reasoner, facts: Tensor, known: Tensor, uncovered: Uncovered
) -> list[dict[str, float]]:
    """One record a query: name, direction, ranks, coverage, path."""
    graph = reasoner.graph
    true = {tuple(fact) for fact in known.tolist()}
    part = components(graph).tolist()
    records = []
    for direction in ("forward", "inverse"):
        for head, relation, tail in facts.tolist():
            asked, answer, q = head, tail, relation
            if direction == "inverse":
                asked, answer, q = tail, head, relation + RELATIONS
            batch = reasoner.sampler.sample(graph, torch.tensor([[asked, q]]))
            sampled = set(batch.entities.tolist())
            lowest = {"below": -100, "zero": 0}[uncovered]
            value = {e: score_of(asked, q, e) if e in sampled else lowest for e in range(ENTITIES)}
            higher = equal = 0
            for entity in range(ENTITIES):
                fact = (asked, relation, entity)
                if direction == "inverse":
                    fact = (entity, relation, asked)
                if entity == answer or fact in true:
                    continue
                higher += value[entity] > value[answer]
                equal += value[entity] == value[answer]
            records.append(
                {
                    "name": graph.relation_name(q),
                    "direction": direction,
                    "best": 1 + higher,
                    "worst": 1 + higher + equal,
                    "rank": 1 + higher + equal / 2,
                    "covered": answer in sampled,
                    "no_path": part[asked] != part[answer],
                }
            )
    return records


def mean_of(records: list[dict[str, float]], kind: str = "rank") -> dict[str, float]:
    ranks = [record[kind] for record in records]
    return {
        "mrr": statistics.fmean(1 / rank for rank in ranks),
        **{f"hits@{k}": statistics.fmean(rank <= k for rank in ranks) for k in (1, 3, 10)},
        "mean_rank": statistics.fmean(ranks),
    }


def case_of(record: dict[str, float]) -> str:
    if record["no_path"]:
        return "unreachable"
    return "covered" if record["covered"] else "uncovered"


@pytest.mark.parametrize("uncovered", ["below", "zero"])
def test_figures_are_those_of_brute_force(
    reasoner: Reasoner, held_out: Tensor, uncovered: Uncovered
) -> None:
    known = torch.cat([reasoner.graph.facts.long(), held_out])
    done: list[int] = []
    report = evaluate(
        reasoner, held_out, known, batch_size=7, uncovered=uncovered, progress=done.append
    )
    records = brute_force(reasoner, held_out, known, uncovered)
    assert report.metrics.as_dict() == pytest.approx(mean_of(records))
    assert report.optimistic.as_dict() == pytest.approx(mean_of(records, "best"))
    assert report.pessimistic.as_dict() == pytest.approx(mean_of(records, "worst"))
    assert report.coverage == pytest.approx(statistics.fmean(r["covered"] for r in records))
    assert report.no_path == pytest.approx(statistics.fmean(r["no_path"] for r in records))
    assert 0 < report.coverage < 1
    assert 0 < report.no_path < 1
    assert report.queries == len(records) == sum(done) == 2 * len(held_out)
    assert report.optimistic.mrr > report.mrr > report.pessimistic.mrr
    for field, groups in (("name", report.per_relation), ("direction", report.per_direction)):
        assert groups.keys() == {record[field] for record in records}
        for name, group in groups.items():
            mine = [record for record in records if record[field] == name]
            coverage = statistics.fmean(record["covered"] for record in mine)
            expected = {**mean_of(mine), "coverage": coverage, "queries": len(mine)}
            assert group == pytest.approx(expected)
        # The parts make up the whole.
        whole = sum(group["mrr"] * group["queries"] for group in groups.values())
        assert whole == pytest.approx(report.mrr * report.queries)
    assert report.per_relation.keys() >= {"0", "0⁻¹"}
    for name in ("covered", "uncovered", "unreachable"):
        mine = [record for record in records if case_of(record) == name]
        assert (name in report.per_case) == bool(mine)
        if mine:
            assert report.per_case[name]["queries"] == len(mine)
            assert report.per_case[name]["mrr"] == pytest.approx(mean_of(mine)["mrr"])
    assert len(report.per_case) > 2


def test_half_links_are_counted(reasoner: Reasoner, held_out: Tensor) -> None:
    facts = {tuple(fact) for fact in reasoner.graph.facts.tolist()}
    expected = dict.fromkeys(HALF_LINKS, 0)
    for head, relation, tail in held_out.tolist():
        starts = any((head, relation, other) in facts for other in range(ENTITIES))
        ends = any((other, relation, tail) in facts for other in range(ENTITIES))
        for asked, answer in ((starts, ends), (ends, starts)):
            expected[HALF_LINKS[2 * (not asked) + (not answer)]] += 1
    report = evaluate(reasoner, held_out)
    found = {name: report.per_case[name]["queries"] for name in HALF_LINKS}
    assert found == expected
    assert min(expected.values()) > 0


def test_outside_the_subgraph_likelihood_decides(graph: KnowledgeGraph, held_out: Tensor) -> None:
    sampler = FittedSampler(max_entities=6, steps=30)
    sampler.fit(graph)
    reasoner = Reasoner(graph, sampler, FakePredictor())
    report = evaluate(reasoner, held_out)
    queries, answers = both_directions(held_out, RELATIONS)
    values = torch.empty(len(queries), ENTITIES, dtype=torch.double)
    for rows, block in sampler.likelihoods(graph, queries):
        values[rows] = block.double()
    batch, scores = reasoner.reason(queries)
    values[batch.entity_query, batch.entities] = scores.double() + 1000  # above all outside
    ranks = dense_ranks(values, queries, answers, KnownFacts(graph.facts, ENTITIES, RELATIONS))
    assert 0 < report.coverage < 1
    assert report.mrr == pytest.approx(float((1 / ranks.realistic).mean()))
    assert report.optimistic.mean_rank == pytest.approx(float(ranks.optimistic.double().mean()))
    assert report.pessimistic.mean_rank == pytest.approx(float(ranks.pessimistic.double().mean()))


def test_facts_of_the_graph_are_filtered_unless_told_otherwise(
    reasoner: Reasoner, held_out: Tensor
) -> None:
    own = evaluate(reasoner, held_out)
    assert own.mrr == evaluate(reasoner, held_out, reasoner.graph.facts).mrr
    assert own.mrr == pytest.approx(
        mean_of(brute_force(reasoner, held_out, reasoner.graph.facts.long(), "below"))["mrr"]
    )
    nothing = torch.zeros(0, 3, dtype=torch.long)
    assert evaluate(reasoner, held_out, nothing).mrr < own.mrr


def test_a_limit_counts_queries_and_is_drawn_with_the_seed(
    reasoner: Reasoner, held_out: Tensor
) -> None:
    reports = [evaluate(reasoner, held_out, limit=9, seed=seed) for seed in (1, 1, 2)]
    assert [report.queries for report in reports] == [9, 9, 9]
    assert sum(group["queries"] for group in reports[0].per_relation.values()) == 9
    assert reports[0].per_relation == reports[1].per_relation
    assert reports[0].per_relation != reports[2].per_relation
    whole = evaluate(reasoner, held_out)
    assert evaluate(reasoner, held_out, limit=10**6).mrr == whole.mrr


def test_the_interval_holds_the_mrr_and_shrinks(reasoner: Reasoner, held_out: Tensor) -> None:
    report = evaluate(reasoner, held_out)
    low, high = report.interval
    assert low < report.mrr < high
    assert report.interval == evaluate(reasoner, held_out).interval
    more = evaluate(reasoner, held_out.repeat(16, 1))
    assert (more.interval[1] - more.interval[0]) < (high - low) / 2


def test_a_report_speaks(reasoner: Reasoner, held_out: Tensor) -> None:
    report: Report = evaluate(reasoner, held_out)
    assert str(report).startswith(f"MRR {report.mrr:.4f}  Hits@1 ")
    assert {"mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "coverage", "queries", "seconds"} < (
        report.as_dict().keys()
    )
    for facts in ([(1, 2)], torch.rand(2, 3)):
        with pytest.raises(InputError, match=r"facts must be integers \[n, 3\]"):
            evaluate(reasoner, facts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no facts to evaluate on"):
        evaluate(reasoner, held_out[:0])


def test_evaluating_leaves_the_predictor_as_it_was(reasoner: Reasoner, held_out: Tensor) -> None:
    for training in (True, False):
        reasoner.predictor.train(training)
        evaluate(reasoner, held_out, limit=2)
        assert reasoner.predictor.training is training


@pytest.fixture
def candidates(reasoner: Reasoner) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """→ (answers [n], negatives [n, 8], their scores [n] and [n, 8])"""
    generator = torch.Generator().manual_seed(0)
    head, answers = torch.randint(ENTITIES, (2, 30), generator=generator)
    relation = torch.randint(2 * RELATIONS, (30,), generator=generator)
    negatives = torch.randint(ENTITIES, (30, 8), generator=generator)
    queries = torch.stack([head, relation], 1)
    found = evaluate_candidates(reasoner, queries, answers, negatives, batch_size=7)
    asked = 7 * head + 5 * relation
    assert found[0].tolist() == ((asked + 3 * answers) % 6 - 2).tolist()
    assert found[1].tolist() == ((asked[:, None] + 3 * negatives) % 6 - 2).tolist()
    return answers, negatives, *found


def test_given_candidates_are_ranked_as_the_benchmarks_define_it(
    candidates: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """ogbl-wikikg2, ogbl-biokg: the mean of the ranks before and after all equals, plus one."""
    _, _, positive, negative = candidates
    ranks = []
    for mine, others in zip(positive.tolist(), negative.tolist(), strict=True):
        before = sum(other > mine for other in others)
        until = sum(other >= mine for other in others)
        ranks.append(0.5 * (before + until) + 1)
    found = candidate_metrics(positive, negative)
    assert found.mrr == pytest.approx(statistics.fmean(1 / rank for rank in ranks))
    for hits, k in ((found.hits_at_1, 1), (found.hits_at_3, 3), (found.hits_at_10, 10)):
        assert hits == pytest.approx(statistics.fmean(rank <= k for rank in ranks))


@pytest.mark.parametrize("name", ["ogbl-wikikg2", "ogbl-biokg"])
@pytest.mark.filterwarnings("ignore")
def test_the_evaluator_of_ogb_agrees(
    candidates: tuple[Tensor, Tensor, Tensor, Tensor],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Importing ogb asks the network for a newer version, unless `outdated` keeps silent.
    monkeypatch.setitem(os.environ, "OUTDATED_IGNORE", "1")
    outdated = pytest.importorskip("outdated", reason="the extra `ogb` is not installed")
    monkeypatch.setattr(outdated, "check_outdated", lambda *_: (False, ""))
    pytest.importorskip("ogb", reason="the extra `ogb` is not installed")
    from ogb.linkproppred import Evaluator

    _, _, positive, negative = candidates
    lists = Evaluator(name).eval({"y_pred_pos": positive, "y_pred_neg": negative})
    found = candidate_metrics(positive, negative)
    assert float(lists["mrr_list"].mean()) == pytest.approx(found.mrr)
    for key, value in (("hits@1_list", found.hits_at_1), ("hits@10_list", found.hits_at_10)):
        assert float(lists[key].mean()) == pytest.approx(value)
    assert "ogb" in sys.modules
