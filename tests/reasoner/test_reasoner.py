"""Tests of the reasoner: asking, scoring, and the example of the README."""

import itertools
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.samples import chain_world, tiny_predictor

import oneshot
from oneshot.config import PredictorConfig
from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.predictor import Predictor
from oneshot.reasoner.answers import AnswerKeywords, AnswerOptions, Calibration, Prediction
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import FittedSampler, PPRSampler


@pytest.fixture
def reasoner() -> Reasoner:
    """On a chain of 12 links, with half of them in each subgraph; entity `alone` has no fact."""
    data = chain_world(12)
    names = Vocabulary.from_names([*data.entities, "alone"], "entity")
    graph = KnowledgeGraph.from_facts(data.train, names, data.relations)
    sampler = PPRSampler(entity_ratio=0.5, keep_unreachable=False)
    return Reasoner(graph, sampler, tiny_predictor().float(), Calibration(0.8, 0.5, 10))


def test_answers_are_the_highest_scores(reasoner: Reasoner) -> None:
    found = reasoner.predict("link 0", "next", top=4)
    batch, scores = reasoner.reason(torch.tensor([[0, 0]]))
    order = scores.argsort(descending=True, stable=True)
    order = order[batch.entities[order] != 0][:4]  # not the query entity itself
    assert [a.entity for a in found] == [f"link {i}" for i in batch.entities[order].tolist()]
    assert [a.score for a in found] == scores[order].tolist()
    assert (found.entity, found.relation) == ("link 0", "next")
    assert (found.num_entities, found.num_edges) == (batch.num_entities, batch.num_edges)
    assert found.num_entities == 6
    assert len(reasoner.predict("link 0", "next", top=100)) == 5
    assert found[0] is found.answers[0]
    assert found[1:3] == found.answers[1:3]


def test_known_facts_are_marked_and_may_be_left_out(reasoner: Reasoner) -> None:
    facts = {
        (reasoner.graph.entities[h], reasoner.graph.relations[r], reasoner.graph.entities[t])
        for h, r, t in reasoner.graph.facts.tolist()
    }
    known = 0
    for entity, relation in itertools.product(reasoner.graph.entities[:12], ("next", "after")):
        found = reasoner.predict(entity, relation, top=100)
        for answer in found:
            assert answer.known == ((entity, relation, answer.entity) in facts)
            known += answer.known
        new = reasoner.predict(entity, relation, top=100, exclude_known=True)
        assert new.answers == tuple(answer for answer in found if not answer.known)
        turned = reasoner.predict(entity, relation, top=100, inverse=True)
        for answer in turned:
            assert answer.known == ((answer.entity, relation, entity) in facts)
    assert known > 12


def test_an_inverse_question_may_be_asked_in_three_ways(reasoner: Reasoner) -> None:
    asked = reasoner.predict("link 3", "after", inverse=True)
    assert asked == reasoner.predict("link 3", "after⁻¹") == reasoner.predict(3, 1 + 3)
    assert asked.relation == "after⁻¹"
    assert asked != reasoner.predict("link 3", "after")
    assert reasoner.predict("link 3", "after⁻¹", inverse=True) == reasoner.predict(
        "link 3", "after"
    )


def test_a_relation_may_be_called_like_an_inverse() -> None:
    relations = Vocabulary.from_names(["t", "r⁻¹", "s"], "relation")  # but no "r" beside it
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 1, 2]], 3, relations)
    reasoner = Reasoner(graph, PPRSampler(1.0), tiny_predictor().float())
    assert reasoner.query("0", "r⁻¹") == (0, 1)
    assert reasoner.query("0", "r⁻¹⁻¹") == (0, 4)
    assert reasoner.query("0", "s⁻¹") == (0, 5)


def test_candidates_are_the_only_answers(reasoner: Reasoner) -> None:
    far = "link 6"  # not in the subgraph by itself
    assert far not in {a.entity for a in reasoner.predict("link 0", "next", top=100)}
    found = reasoner.predict("link 0", "next", candidates=[far, "link 1", 2, "link 1"])
    assert {answer.entity for answer in found} == {far, "link 1", "link 2"}
    assert reasoner.predict("link 0", "next", candidates=[]).answers == ()
    with pytest.raises(UnknownNameError, match="unknown entity 'lnk 6'"):
        reasoner.predict("link 0", "next", candidates=["lnk 6"])
    with pytest.raises(InputError, match='must be "seen" or a list'):
        reasoner.predict("link 0", "next", candidates="sen")  # type: ignore[arg-type]


def test_an_entity_is_its_own_answer_only_if_the_graph_relates_it_to_itself() -> None:
    names = Vocabulary.numbered(4, "entity"), Vocabulary.numbered(2, "relation")
    facts = torch.tensor([[0, 0, 1], [1, 0, 2], [2, 1, 3], [2, 1, 2]])
    graph = KnowledgeGraph.from_facts(facts, *names)
    predictor = Predictor(PredictorConfig(num_layers=3, dim=8), 2)
    reasoner = Reasoner(graph, PPRSampler(1.0), predictor)
    for entity, own in ((0, False), (1, False), (2, True), (3, False)):
        for options in ({}, {"candidates": "seen"}):
            found = reasoner.predict(entity, 0, inverse=True, top=9, **options)
            assert (str(entity) in [a.entity for a in found]) <= own
        assert (str(entity) in [a.entity for a in reasoner.predict(entity, 0, top=9)]) == own
        given = reasoner.predict(entity, 0, candidates=[entity])
        assert [a.entity for a in given] == [str(entity)]


def test_candidates_seen_with_the_relation(reasoner: Reasoner) -> None:
    facts = reasoner.graph.facts.tolist()
    for relation, inverse in itertools.product((0, 1, 2), (False, True)):
        seen = {reasoner.graph.entities[h if inverse else t] for h, r, t in facts if r == relation}
        for entity in (0, 5):
            every = reasoner.predict(entity, relation, inverse=inverse, top=100)
            found = reasoner.predict(entity, relation, inverse=inverse, top=100, candidates="seen")
            assert found.answers == tuple(a for a in every if a.entity in seen)
    after = {t for _, r, t in facts if r == 1}
    assert len(after) < 12  # the restriction restricts


def close(one: Prediction, other: Prediction) -> bool:
    """Equal but for rounding, which may depend on the batch."""
    assert [a.score for a in one] == pytest.approx([a.score for a in other], rel=1e-4, abs=1e-6)
    assert {a.entity: a.known for a in one} == {a.entity: a.known for a in other}
    assert (one.entity, one.relation) == (other.entity, other.relation)
    return (one.num_entities, one.num_edges) == (other.num_entities, other.num_edges)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_a_stream_of_questions_gives_the_answers_of_each(
    reasoner: Reasoner, batch_size: int
) -> None:
    names = [("link 1", "next"), ("link 5", "after⁻¹"), (3, 2), ("link 1", "next"), (0, 5)]
    taken = []

    def questions():  # type: ignore[no-untyped-def]
        for name in names:
            taken.append(name)
            yield name

    stream = reasoner.predict_stream(questions(), top=100, batch_size=batch_size)
    first = next(stream)
    assert len(taken) == min(batch_size, len(names))  # no more than a batch is read ahead
    for found, name in zip([first, *stream], names, strict=True):
        assert close(found, reasoner.predict(*name, top=100))
    new = list(reasoner.predict_stream(names, top=2, exclude_known=True, batch_size=batch_size))
    assert all(len(found) == 2 and not any(a.known for a in found) for found in new)


def test_a_stream_goes_on_after_an_entity_without_facts(reasoner: Reasoner) -> None:
    names = [("alone", "next"), ("link 1", "next")]
    alone, linked = reasoner.predict_stream(names)
    assert alone.answers == ()
    assert close(linked, reasoner.predict("link 1", "next"))


def test_a_score_is_that_of_the_answer(reasoner: Reasoner) -> None:
    for answer in reasoner.predict("link 2", "after⁻¹", top=100):
        score = reasoner.score("link 2", "after⁻¹", answer.entity)
        assert score == pytest.approx(answer.score, rel=1e-5)
    far = "link 8"
    assert far not in {a.entity for a in reasoner.predict("link 2", "next", top=100)}
    assert isinstance(reasoner.score("link 2", "next", far), float)
    assert reasoner.score(2, 0, 3) == reasoner.score("link 2", "next", "link 3")


def test_probabilities_follow_the_scores(reasoner: Reasoner) -> None:
    found = reasoner.predict("link 0", "after", top=100)
    chances = [answer.probability for answer in found if not answer.known]
    assert all(chance is not None and 0 <= chance <= 1 for chance in chances)
    assert chances == sorted(chances, reverse=True, key=lambda c: c or 0)
    # Facts of the graph are given.
    assert {answer.probability for answer in found if answer.known} == {1.0}
    assert len(set(chances)) > 3
    reasoner.calibration = None
    assert {a.probability for a in reasoner.predict("link 0", "after")} == {None}


def test_options_are_one_value_or_keywords(reasoner: Reasoner) -> None:
    assert set(AnswerKeywords.__annotations__) == {f.name for f in fields(AnswerOptions)}
    options = AnswerOptions(top=4, exclude_known=True)
    expected = reasoner.predict("link 2", "after", top=4, exclude_known=True)
    assert len(expected) == 4
    assert reasoner.predict("link 2", "after", options=options) == expected
    assert reasoner.predict("link 2", "after", options=options, top=3).answers == expected[:3]
    many = [("link 2", "after")]
    assert list(reasoner.predict_stream(many, options=options)) == [expected]
    with pytest.raises(TypeError, match="tops"):
        reasoner.predict("link 2", "after", tops=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top must be at least 1, not 0"),
        ({"top": 2.5}, r"top must be an integer, not 2\.5"),
        ({"top": True}, "top must be an integer, not True"),
        ({"candidates": "all"}, 'candidates must be "seen" or a list'),
        ({"explain": -1}, "explain must be true, false or a number, not -1"),
        ({"explain": "yes"}, "explain must be true, false or a number, not 'yes'"),
    ],
)
def test_wrong_options_are_told_by_all_who_take_them(
    reasoner: Reasoner, options: dict[str, Any], message: str
) -> None:
    for ask in (
        lambda: AnswerOptions(**options),
        lambda: reasoner.predict("link 2", "after", **options),
        lambda: reasoner.predict_stream([], **options),
    ):
        with pytest.raises(InputError, match=message):
            ask()


def test_candidates_and_explanations_are_for_one_query(reasoner: Reasoner) -> None:
    with pytest.raises(InputError, match="candidates works only for single queries"):
        reasoner.predict_stream([("link 2", "after")], candidates=["link 3"])
    with pytest.raises(InputError, match="explain works only for single queries"):
        reasoner.predict_stream([("link 2", "after")], explain=True)


def test_wrong_questions_are_told(reasoner: Reasoner) -> None:
    with pytest.raises(UnknownNameError, match="unknown entity 'link 99'"):
        reasoner.predict("link 99", "next")
    with pytest.raises(UnknownNameError, match="unknown relation 'nxt'; did you mean 'next'"):
        reasoner.predict("link 0", "nxt")
    with pytest.raises(UnknownNameError, match="unknown relation 'nxt'"):
        reasoner.predict("link 0", "nxt⁻¹")
    with pytest.raises(InputError, match="entity id 13 is not in the graph"):
        reasoner.predict(13, 0)
    with pytest.raises(InputError, match="entity id -1 is not in the graph"):
        reasoner.score(0, 0, -1)
    with pytest.raises(InputError, match="relation id 6 is not in the graph"):
        reasoner.predict(0, 6)
    with pytest.raises(InputError, match="relation id -1 is not in the graph"):
        reasoner.predict(0, -1)
    with pytest.raises(InputError, match="top must be at least 1, not 0"):
        reasoner.predict(0, 0, top=0)
    for ask in (reasoner.predict, lambda e, r: reasoner.score(e, r, "link 1")):
        with pytest.raises(InputError, match="entity 'alone' has no facts in the graph"):
            ask("alone", "next")
    with pytest.raises(InputError, match="has 2 relations, the graph has 3"):
        Reasoner(reasoner.graph, PPRSampler(), tiny_predictor(num_relations=2))


def test_an_entity_without_facts_has_likely_answers(reasoner: Reasoner) -> None:
    """The fitted sampler knows the usual answers of a relation, whoever asks."""
    sampler = FittedSampler(max_entities=5)
    sampler.fit(reasoner.graph)
    fitted = Reasoner(reasoner.graph, sampler, reasoner.predictor)
    answers = fitted.predict("alone", "next")
    assert len(answers) > 0
    (streamed,) = fitted.predict_stream([("alone", "next")])
    assert [a.entity for a in streamed] == [a.entity for a in answers]
    assert isinstance(fitted.score("alone", "next", "link 1"), float)


def test_asking_needs_no_gradients_and_leaves_training_on(reasoner: Reasoner) -> None:
    reasoner.predictor.train()
    _, scores = reasoner.reason(torch.tensor([[0, 0]]))
    assert not scores.requires_grad
    assert reasoner.predictor.training
    assert reasoner.to("cpu") is reasoner


def test_the_example_of_the_design(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Section 3, with a smaller predictor and fewer facts."""
    data = oneshot.load("umls")
    sampler = oneshot.PPRSampler(entity_ratio=0.1, edge_ratio=1.0, restart=0.15)
    queries = torch.tensor([[0, 0], [1, data.graph.num_relations]])
    assert sampler.sample(data.graph, queries).num_queries == 2
    scores = oneshot.ppr(data.graph, torch.tensor([0, 1]), restart=0.15, tolerance=1e-6)
    assert scores.shape == (2, data.graph.num_entities)
    predictor = oneshot.Predictor(
        oneshot.PredictorConfig(message="redgnn", num_layers=2, dim=4),
        num_relations=data.graph.num_relations,
    )
    reasoner = oneshot.Reasoner(data.graph, sampler, predictor)
    config = oneshot.TrainingConfig(epochs=1, query_share=0.05, valid_limit=20)
    oneshot.fit(reasoner, data, config)
    report: oneshot.Report = oneshot.evaluate(reasoner, data.test[:20], known=data.known)
    assert f"{report}".startswith("MRR 0.")
    answers: list[oneshot.Answer] = list(reasoner.predict("virus", "causes", top=10))
    assert len(answers) == 10
    assert isinstance(reasoner.score("virus", "causes", "disease_or_syndrome"), float)
    reasoner.save(tmp_path / "umls")
    loaded = oneshot.Reasoner.load(tmp_path / "umls", graph=None)
    assert loaded.predict("virus", "causes").answers == tuple(answers)
    assert oneshot.Config(oneshot.SamplerConfig(), predictor.config, config).training == config
    assert capsys.readouterr() == ("", "")  # a library is silent
