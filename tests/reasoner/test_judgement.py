"""Judging facts: relations between entities, doubtful facts, missing facts."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from tests.support.samples import tiny_predictor

from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.dataset import Dataset
from oneshot.data.load import family
from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.known_facts import KnownFacts
from oneshot.reasoner import discovery as discovery_module
from oneshot.reasoner import relations as relations_module
from oneshot.reasoner.answers import Calibration, evidence
from oneshot.reasoner.audit import judge_both_ways
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.build import build_reasoner
from oneshot.reasoner.calibration import calibrate
from oneshot.reasoner.check import check_fact, fact_logits
from oneshot.reasoner.discovery import Search, num_queries
from oneshot.reasoner.judgement import (
    Judged,
    ScoredFact,
    fact_features,
    functional_conflicts,
    judge,
    present_logits,
    probability_of,
    several_answers,
    support,
)
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler
from oneshot.samplers._answer_counts import AnswerCounts
from oneshot.training.trainer import fit


def trained_on(data: Dataset) -> Reasoner:
    shape = PredictorConfig(num_layers=3, dim=16, attention_dim=4)
    sampler = SamplerConfig(name="fitted", entity_ratio=0.4)
    reasoner = build_reasoner(data.graph, Config(sampler, shape))
    training = TrainingConfig(epochs=4, batch_size=16, learning_rate=0.01, fact_ratio=0.8)
    fit(reasoner, data, training)
    reasoner.calibration = calibrate(reasoner, data)
    return reasoner


@pytest.fixture(scope="module")
def data() -> Dataset:
    return family(150)


@pytest.fixture(scope="module")
def reasoner(data: Dataset) -> Reasoner:
    return trained_on(data)


def as_ids(data: Dataset, facts: list[tuple[str, str, str]]) -> set[tuple[int, int, int]]:
    graph = data.graph
    return {
        (graph.entities.index(h), graph.relations.index(r), graph.entities.index(t))
        for h, r, t in facts
    }


def test_a_judgement_is_that_of_each_query_alone(reasoner: Reasoner, data: Dataset) -> None:
    graph = reasoner.graph
    queries, answers = data.queries("test")
    queries, answers = queries[:9], answers[:9]
    known = KnownFacts(graph.facts, graph.num_entities, graph.num_relations)
    size = BatchSize(4, reasoner.predictor.config, reasoner.device)
    found = list(judge(reasoner, queries, answers, known, size))
    assert [len(part.logit) for part in found] == [4, 4, 1]
    logits = torch.cat([part.logit for part in found])
    calibration = reasoner.calibration
    assert calibration is not None
    for number, (query, answer) in enumerate(zip(queries, answers, strict=True)):
        batch, scores = reasoner.reason(query[None], answer[None, None])
        mine = torch.isin(batch.entities, known.answers(query[None])[1])
        place = int((batch.entities == answer).nonzero()[0])
        value = float(evidence(scores, mine & (batch.entities != answer))[place])
        name = graph.relation_name(int(query[1]))
        expected = calibration.slope * value + calibration.offset + calibration.offsets[name]
        assert float(logits[number]) == pytest.approx(expected, abs=1e-3)
        chance = probability_of(reasoner, float(logits[number]))
        assert chance == pytest.approx(calibration.probability(value, name), abs=1e-4)


def test_relations_between_two_entities(reasoner: Reasoner, data: Dataset) -> None:
    graph = reasoner.graph
    head, _, tail = (int(part) for part in data.test[0])
    found = reasoner.relations(head, tail)
    assert len(found) == 2 * graph.num_relations
    assert len({(answer.relation, answer.inverse) for answer in found}) == len(found)
    for group in (True, False):  # facts of the graph come first
        scores = [answer.score for answer in found if answer.known == group]
        assert scores == sorted(scores, reverse=True)
    assert [answer.known for answer in found] == sorted((a.known for a in found), reverse=True)
    facts = {tuple(fact) for fact in graph.facts.tolist()}
    for answer in found:
        relation = graph.relations.index(answer.relation)
        fact = (tail, relation, head) if answer.inverse else (head, relation, tail)
        assert answer.known == (fact in facts)
        if not answer.known:
            checked = check_fact(reasoner, *fact).fact
            assert answer.score <= checked.score + 1e-3
            asked = reasoner.relation_id(relation, answer.inverse)
            back = reasoner.relation_id(relation, not answer.inverse)
            ends = (reasoner.known_answers(head, asked), reasoner.known_answers(tail, back))
            if all(map(len, ends)):  # both have facts of the relation
                assert answer.score == pytest.approx(checked.score, abs=1e-3)
            assert answer.probability == pytest.approx(checked.probability, abs=1e-3)
    assert [a.relation for a in reasoner.relations(head, tail, top=3)] == [
        a.relation for a in found[:3]
    ]
    with pytest.raises(UnknownNameError):
        reasoner.relations("nobody", tail)
    with pytest.raises(InputError, match="top must be at least 1, not 0"):
        reasoner.relations(head, tail, top=0)


def test_an_entity_is_not_related_to_itself(reasoner: Reasoner, data: Dataset) -> None:
    head = int(data.test[0, 0])
    for answer in reasoner.relations(head, head):
        assert answer.probability == pytest.approx(0)
        checked = check_fact(reasoner, head, answer.relation, head).fact
        assert answer.probability == checked.probability
    # Unless the graph relates it to itself.
    facts = torch.cat([data.graph.facts.long(), torch.tensor([[head, 0, head]])])
    sizes = data.graph.num_entities, data.graph.num_relations
    looped = Reasoner(
        KnowledgeGraph.from_facts(facts, *sizes),
        reasoner.sampler,
        reasoner.predictor,
        reasoner.calibration,
    )
    assert any(answer.probability for answer in looped.relations(head, head) if not answer.known)


def test_only_likely_relations_are_asked_if_there_are_many(
    reasoner: Reasoner, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relations_module, "_MOST_ASKED", 6)
    listed = []
    for head, relation, tail in data.test[:30].tolist():
        found = reasoner.relations(head, tail)
        assert 6 <= len(found) < 2 * data.graph.num_relations
        names = [(answer.relation, answer.inverse) for answer in found]
        assert len(set(names)) == len(names)
        listed.append((data.graph.relations[relation], False) in names)
    assert sum(listed) >= 24  # by chance, less than half
    # Facts of the graph are always among them.
    head, relation, tail = data.train[0].tolist()
    found = reasoner.relations(head, tail)
    assert (data.graph.relations[relation], False, True) in [
        (answer.relation, answer.inverse, answer.known) for answer in found
    ]


def test_support_is_that_of_the_weaker_direction_and_against_second_answers() -> None:
    facts = torch.tensor([[h, 0, 20 + h] for h in range(20)] + [[h, 1, 40] for h in range(20)])
    several = several_answers(facts, 2)
    # Queries of relation 0 have one answer; (?, 1, 40) has twenty.
    assert several.tolist() == pytest.approx([0.5 / 21, 0.5 / 21, 0.5 / 21, 1.5 / 2])
    zero = torch.zeros(2).double()
    ahead = Judged(zero, torch.tensor([-1.0, -1.0]).double(), zero, zero, zero)
    back = Judged(zero, torch.tensor([-5.0, -5.0]).double(), zero, torch.tensor([0.0, 1.0]), zero)
    found = support(ahead, back, torch.tensor([0, 0]), several)
    assert found.tolist() == pytest.approx([-4.0, -4.0 + math.log(0.5 / 21)])
    features = fact_features(ahead, back, torch.tensor([0, 0]), several)
    assert features[:, 0].tolist() == [-3, -3]
    assert features[:, 2].tolist() == pytest.approx([0, math.log(0.5 / 21)])
    assert features[:, 3].tolist() == pytest.approx([0, math.log(2) / 2])


def test_probabilities_of_missing_facts_add_up(reasoner: Reasoner, data: Dataset) -> None:
    found = reasoner.discover(top=120)
    ids = as_ids(data, [(fact.head, fact.relation, fact.tail) for fact in found])
    hidden = {tuple(fact) for fact in torch.cat([data.valid, data.test]).tolist()}
    chances = [fact.probability for fact in found]
    total = sum(chance for chance in chances if chance is not None)
    assert 0.5 * len(ids & hidden) <= total <= 2 * len(ids & hidden)


def test_a_symmetric_fact_is_listed_in_the_direction_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery_module, "_ANSWERS", 30)
    pairs = [(2 * i, 0, 2 * i + 1) for i in range(12)]
    facts = [
        *pairs,
        *((t, r, h) for h, r, t in pairs[1:]),
        *((h, 1, (h + 2) % 24) for h in range(24)),
    ]
    graph = KnowledgeGraph.from_facts(torch.tensor(facts), 24, 2)
    reasoner = Reasoner(graph, PPRSampler(1.0), tiny_predictor(num_relations=2).float())
    known = {(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in facts}
    found = [(f.head, f.relation, f.tail) for f in reasoner.discover(relations=[0], top=500)]
    assert not known & set(found)
    assert ("1", "0", "0") in found


def test_the_true_relation_is_among_the_first(reasoner: Reasoner, data: Dataset) -> None:
    ranks = []
    for head, relation, tail in data.test[:40].tolist():
        found = [answer for answer in reasoner.relations(head, tail) if not answer.known]
        names = [(answer.relation, answer.inverse) for answer in found]
        ranks.append(names.index((data.graph.relations[relation], False)) + 1)
    assert sum(1 / rank for rank in ranks) / len(ranks) > 0.5


def test_wrong_facts_are_found_and_no_fact_speaks_for_itself() -> None:
    clean = family(150)
    generator = torch.Generator().manual_seed(4)
    graph = clean.graph
    count = 12
    wrong = torch.stack(
        [torch.randint(most, (count,), generator=generator) for most in
         (graph.num_entities, graph.num_relations, graph.num_entities)], dim=1
    )  # fmt: skip
    facts = torch.cat([graph.facts.long(), wrong])
    noisy = KnowledgeGraph.from_facts(facts, graph.entities, graph.relations)
    data = Dataset("noisy", noisy, clean.valid, clean.test)
    reasoner = trained_on(data)
    seen: list[tuple[int, ...]] = []
    plain = reasoner.sampler.sample

    def spying(here: KnowledgeGraph, queries: torch.Tensor, *more: torch.Tensor) -> object:
        known = {tuple(fact) for fact in here.facts.tolist()}
        hidden = {tuple(fact) for fact in noisy.facts.tolist()} - known
        assert 0 < len(hidden) <= max(noisy.num_facts // 100, 1)
        for (entity, relation), (answer,) in zip(queries.tolist(), more[0].tolist(), strict=True):
            fact = (entity, relation, answer)
            if relation >= graph.num_relations:
                fact = (answer, relation - graph.num_relations, entity)
            assert fact in hidden
            seen.append(fact)
        return plain(here, queries, *more)

    reasoner.sampler.sample = spying  # type: ignore[method-assign, assignment]
    done: list[int] = []
    found = reasoner.audit(progress=done.append)
    assert len(found) == noisy.num_facts
    assert sum(done) == len(seen) == 2 * noisy.num_facts
    assert set(Counter(seen).values()) == {2}  # each fact in both directions
    assert [fact.score for fact in found] == sorted(fact.score for fact in found)
    names = [(fact.head, fact.relation, fact.tail) for fact in found]
    injected = {
        (graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in wrong.tolist()
    }
    first = sum(name in injected for name in names[: 4 * count])
    assert first >= 0.6 * count  # by chance they would be one in forty


def test_an_audit_of_some_facts(reasoner: Reasoner, data: Dataset) -> None:
    name = data.graph.relations[0]
    some = reasoner.audit(relations=[name])
    assert {fact.relation for fact in some} == {name}
    assert len(some) == int((data.train[:, 1] == 0).sum())
    few = [reasoner.audit(limit=5, seed=seed) for seed in (0, 0, 1)]
    assert len(few[0]) == 5
    assert few[0] == few[1] != few[2]
    assert all(fact.rank is not None and fact.rank >= 1 for fact in few[0])
    with pytest.raises(UnknownNameError):
        reasoner.audit(relations=["no such relation"])
    with pytest.raises(InputError, match="limit must be at least 1, not -1"):
        reasoner.audit(limit=-1)
    with pytest.raises(InputError, match=f"relations must be a list, not '{name}'"):
        reasoner.audit(relations=name)


def test_missing_facts_are_found(reasoner: Reasoner, data: Dataset) -> None:
    done: list[int] = []
    found = reasoner.discover(top=40, progress=done.append)
    assert len(found) == 40
    scores = [fact.score for fact in found]
    assert scores == sorted(scores, reverse=True)
    names = [(fact.head, fact.relation, fact.tail) for fact in found]
    assert len(set(names)) == 40
    ids = as_ids(data, names)
    graph = {tuple(fact) for fact in data.train.tolist()}
    held_out = {tuple(fact) for fact in torch.cat([data.valid, data.test]).tolist()}
    assert not ids & graph
    assert len(ids & held_out) >= 12
    assert all(head != tail for head, _, tail in ids)
    search = Search(top=40)
    assert sum(done) <= num_queries(reasoner, search) + 4 * 40


def test_known_facts_that_the_graph_lacks_are_not_listed(reasoner: Reasoner, data: Dataset) -> None:
    def listed(facts: Sequence[ScoredFact]) -> dict[tuple[int, ...], float]:
        (number, label) = data.entities.index, data.relations.index
        return {(number(f.head), label(f.relation), number(f.tail)): f.score for f in facts}

    every = listed(reasoner.discover(top=60))
    held_out = torch.cat([data.valid, data.test])
    known = {tuple(fact) for fact in data.test.tolist()}
    assert known & set(every)
    found = listed(reasoner.discover(top=60, known=torch.cat([data.train, data.test])))
    assert len(found) == 60
    assert not known & set(found)
    # The others are the same, and are judged as before.
    rest = {fact: score for fact, score in every.items() if fact not in known}
    assert len(rest) >= 10
    assert rest == {fact: pytest.approx(found[fact], abs=1e-4) for fact in rest}
    assert listed(reasoner.discover(top=60, known=held_out[:0])) == every
    for wrong in (held_out + 10**6, held_out - 10**6):
        with pytest.raises(InputError, match=r"is not one of the graph, which has \d+ entities"):
            reasoner.discover(known=wrong)
    for wrong in (held_out[:, :2], held_out.double()):
        with pytest.raises(InputError, match=r"facts must be integers of shape \[n, 3\]"):
            reasoner.audit(held_out=wrong)


def test_facts_of_an_entity_are_found_from_either_end(reasoner: Reasoner, data: Dataset) -> None:
    graph = data.graph
    for relation in range(graph.num_relations):
        name = graph.relations[relation]
        # An entity that is a tail of the relation, but no head.
        ends = graph.facts[graph.facts[:, 1] == relation].long()
        only = ends[~torch.isin(ends[:, 2], ends[:, 0]), 2]
        if not len(only):
            continue
        entity = graph.entities[int(only[0])]
        found = reasoner.discover(relations=[name], entities=[entity], top=20)
        tails = [fact for fact in found if fact.tail == entity]
        assert tails
        assert all(entity in (fact.head, fact.tail) for fact in found)
        expected = check_fact(reasoner, tails[0].head, name, entity).fact
        assert tails[0].score == pytest.approx(expected.score, abs=1e-3)
        # The type is that of the head.
        first = int(ends[0, 0])
        kind = reasoner.relations(first, int(ends[0, 2]), top=1)[0]
        assert kind.known
        assert not kind.inverse
        having = (kind.relation, graph.entities[int(ends[0, 2])])
        allowed = {graph.entities[e] for e in reasoner.entities_of_types([having]).tolist()}
        typed = reasoner.discover(relations=[name], entities=[entity], types=[having], top=20)
        assert {fact.head for fact in typed} <= allowed
        break
    else:
        raise AssertionError("no entity is only a tail")


def test_few_queries_have_as_many_answers_as_are_asked_for(
    reasoner: Reasoner, data: Dataset
) -> None:
    relation, head = data.graph.relations[0], data.graph.entities[int(data.train[0, 0])]
    most = discovery_module._ANSWERS
    found = reasoner.discover(relations=[relation], entities=[head], top=5 * most)
    assert len([fact for fact in found if fact.head == head]) > most
    search = Search.named(reasoner, [relation], [head], (), 5 * most, 0)
    done: list[int] = []
    discovery_module.discover(reasoner, search, progress=done.append)
    assert sum(done) <= num_queries(reasoner, search)


def test_the_first_facts_do_not_depend_on_how_many_are_wanted(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "_LEAST_CHECKED", 200)
    few, many = (reasoner.discover(top=top) for top in (4, 50))
    assert [fact_of(one) for one in few] == [fact_of(one) for one in many[:4]]


def test_an_audit_can_judge_held_out_facts(reasoner: Reasoner, data: Dataset) -> None:
    held_out = torch.cat([data.valid, data.test])
    wrong = torch.tensor([[data.graph.num_entities - 1, 0, 0]])
    further = torch.cat([held_out, wrong, wrong, data.train[:3]])
    plain = {fact_of(one): one for one in reasoner.audit()}
    found = reasoner.audit(held_out=further)
    assert len(found) == len(plain) + len(held_out) + 1
    ids = as_ids(data, [fact_of(one) for one in found])
    assert ids == {tuple(fact) for fact in torch.cat([data.known, wrong]).tolist()}
    scores = [one.score for one in found]
    assert scores == sorted(scores)
    for one in found:  # those of the graph are judged as without the others
        if fact_of(one) in plain:
            before = plain[fact_of(one)]
            assert one.score == pytest.approx(before.score, abs=1e-4)
    # Nothing is hidden for the others.
    names = [fact_of(one) for one in found]
    head, relation, tail = held_out[0].tolist()
    graph = data.graph
    fact = (graph.entities[head], graph.relations[relation], graph.entities[tail])
    facts = graph.facts.long()
    several = several_answers(facts, graph.num_relations)
    known = KnownFacts(facts, graph.num_entities, graph.num_relations)
    size = BatchSize(4, reasoner.predictor.config, reasoner.device)
    judged = judge_both_ways(reasoner, held_out[:1], known, size).halves()
    expected = present_logits(reasoner, *judged, held_out[:1, 1], several)
    assert found[names.index(fact)].score == pytest.approx(float(expected), abs=1e-4)
    few = reasoner.audit(held_out=further, limit=40, seed=3)
    kept = as_ids(data, [fact_of(one) for one in few])
    assert len(kept) == 40
    assert kept & {tuple(fact) for fact in data.train.tolist()}
    assert kept & {tuple(fact) for fact in held_out.tolist()}


def fact_of(one: ScoredFact) -> tuple[str, str, str]:
    return one.head, one.relation, one.tail


def test_many_facts_are_judged_as_each_alone(reasoner: Reasoner, data: Dataset) -> None:
    last = data.graph.num_entities - 1
    facts = torch.cat([data.train[:4], data.test[:4], torch.tensor([[last, 0, last]]), data.test])
    logits = fact_logits(reasoner, facts[:9])
    for fact, logit in zip(facts[:9].tolist(), logits.tolist(), strict=True):
        # Up to 1 % of the facts of the graph are hidden together.
        assert logit == pytest.approx(check_fact(reasoner, *fact).fact.score, abs=0.2)
    assert fact_logits(reasoner, facts)[:9].tolist() == pytest.approx(logits.tolist(), abs=1e-3)
    found = {fact_of(one): one.score for one in reasoner.discover(top=30)}
    table = torch.tensor(sorted(as_ids(data, list(found))))
    names = [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in table.tolist()]
    assert fact_logits(reasoner, table).tolist() == pytest.approx(
        [found[name] for name in names], abs=1e-3
    )


def test_results_are_sequences_that_notebooks_show(reasoner: Reasoner, data: Dataset) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    head, tail = int(data.train[0, 0]), int(data.train[0, 2])
    found = reasoner.discover(top=5), reasoner.audit(limit=5), reasoner.relations(head, tail)
    for result in found:
        assert isinstance(result, Sequence)
        assert next(iter(result)) == result[0]
        assert result[1:3] == tuple(result)[1:3]
        frame = result.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert frame.to_dict("records")[0].keys() == result[0].as_dict().keys()
        assert frame["score"].tolist() == [one.score for one in result]
        html = result._repr_html_()
        assert "<table" in html
        assert result[0].relation in html
    missing, doubtful, between = found
    assert "<th" in doubtful._repr_html_()
    assert ("conflicts" in missing._repr_html_(), "conflicts" in doubtful._repr_html_()) == (
        False,
        True,
    )
    assert data.entities[head] in between._repr_html_()
    none = reasoner.discover(min_probability=1.0)
    assert (len(none), len(none.to_pandas())) == (0, 0)
    assert none._repr_html_()
    assert reasoner.audit(limit=5) == doubtful


def test_discovery_can_be_narrowed(reasoner: Reasoner, data: Dataset) -> None:
    relation, head = data.graph.relations[1], data.graph.entities[int(data.train[0, 0])]
    found = reasoner.discover(relations=[relation], top=10)
    assert {fact.relation for fact in found} == {relation}
    found = reasoner.discover(entities=[head], top=10)
    assert found
    assert head in {name for fact in found for name in (fact.head, fact.tail)}
    sure = reasoner.discover(top=30, min_probability=0.5)
    assert all(fact.probability is not None and fact.probability >= 0.5 for fact in sure)
    for changes in ({"top": 0}, {"min_probability": 1.5}, {"min_probability": math.nan}):
        with pytest.raises(InputError):
            reasoner.discover(**changes)  # type: ignore[arg-type]
    for option in ("relations", "entities", "types"):
        with pytest.raises(InputError, match=f"{option} must be a list, not 'one'"):
            reasoner.discover(**{option: "one"})  # type: ignore[arg-type]
    uncalibrated = Reasoner(reasoner.graph, reasoner.sampler, reasoner.predictor)
    assert all(fact.probability is None for fact in uncalibrated.discover(top=3))
    with pytest.raises(InputError, match="calibrated"):
        uncalibrated.discover(min_probability=0.1)


def test_a_symmetric_fact_is_found_once() -> None:
    pairs = [(2 * i, 0, 2 * i + 1) for i in range(12)]
    facts = [*pairs, *((t, r, h) for h, r, t in pairs), *((h, 1, (h + 2) % 24) for h in range(24))]
    graph = KnowledgeGraph.from_facts(torch.tensor(facts), 24, 2)
    reasoner = Reasoner(graph, PPRSampler(1.0), tiny_predictor(num_relations=2).float())
    found = reasoner.discover(relations=[0], top=500)
    ends = [frozenset((fact.head, fact.tail)) for fact in found]
    assert len(ends) == len(set(ends))
    assert all(len(pair) == 2 for pair in ends)  # no entity relates to itself in this graph


def test_conflicts_are_counted_where_one_answer_is_the_rule() -> None:
    # Relation 0 has one tail per head, but for head 3; relation 1 has several as a rule.
    facts = [(h, 0, 40 + h) for h in range(30)] + [(3, 0, 77), (3, 0, 78)]
    facts += [(h, 1, 40 + (h + k) % 20) for h in range(20) for k in (1, 2, 3)]
    table = torch.tensor(facts)
    found = functional_conflicts(table, 2).tolist()
    expected = [2 if fact[:2] == (3, 0) else 0 for fact in facts]
    assert found == expected


def test_likely_answers_keep_company_with_answers() -> None:
    facts = [(0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1, 2), (0, 1, 3), (0, 2, 4)]
    counts = AnswerCounts(KnowledgeGraph.from_facts(torch.tensor(facts), 6, 3))
    # Two of the three answers of relation 1 answer relation 0, so the third may do so, too.
    assert counts.likely_answers(0, 0.5).tolist() == [1, 2, 3]
    assert counts.likely_answers(0, 0.7).tolist() == [1, 2]
    assert counts.likely_answers(2, 0.5).tolist() == [4]


def test_earlier_calibrations_keep_their_meaning(reasoner: Reasoner, data: Dataset) -> None:
    assert reasoner.calibration is not None
    line = dataclasses.replace(reasoner.calibration, rivals="all", offsets={})
    earlier = Reasoner(reasoner.graph, reasoner.sampler, reasoner.predictor, line)
    queries, answers = data.queries("test")
    known = KnownFacts(data.train, data.graph.num_entities, data.graph.num_relations)
    size = BatchSize(4, reasoner.predictor.config, reasoner.device)
    (found,) = judge(earlier, queries[:1], answers[:1], known, size)
    batch, scores = earlier.reason(queries[:1], answers[:1, None])
    share = float(scores.log_softmax(0)[batch.entities == answers[0]])
    assert float(found.logit) == pytest.approx(line.slope * share + line.offset, abs=1e-3)
    assert isinstance(line, Calibration)
