"""Tests of which answers a prediction may have: by probability, by type, for several entities."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.commands import Command
from tests.support.samples import chain_world, tiny_predictor, trained_run, write_world

from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.answers import AnswerOptions, Calibration
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler

RELATIONS = ("next", "after", "a=b")


@pytest.fixture
def reasoner() -> Reasoner:
    """A chain of 12 links whose third relation says that every third link is "odd=one"."""
    data = chain_world(12)
    names = Vocabulary.from_names([*data.entities, "odd=one", "alone"], "entity")
    relations = Vocabulary.from_names(list(RELATIONS), "relation")
    chain = data.train[data.train[:, 1] < 2]
    odd = torch.tensor([[link, 2, len(data.entities)] for link in range(0, 12, 3)])
    graph = KnowledgeGraph.from_facts(torch.cat([chain, odd]), names, relations)
    sampler = PPRSampler(entity_ratio=0.5, keep_unreachable=False)
    return Reasoner(graph, sampler, tiny_predictor().float(), Calibration(0.8, 0.5, 10))


def test_answers_below_a_probability_are_left_out(reasoner: Reasoner) -> None:
    every = reasoner.predict("link 0", "next", top=100)
    chances = sorted(a.probability or 0.0 for a in every)
    least = chances[len(chances) // 2]
    found = reasoner.predict("link 0", "next", top=100, min_probability=least)
    assert 0 < len(found) < len(every)
    assert found.answers == tuple(a for a in every if (a.probability or 0.0) >= least)
    many = reasoner.predict_stream([("link 0", "next")], top=100, min_probability=least)
    assert [p.answers for p in many] == [found.answers]
    reasoner.calibration = None
    for asked in ("link 0", ["link 0", "link 2"]):
        with pytest.raises(InputError, match="needs a calibrated reasoner"):
            reasoner.predict(asked, "next", min_probability=0.1)


@pytest.mark.parametrize("least", [-0.1, 1.5, float("nan")])
def test_a_probability_is_between_0_and_1(least: float) -> None:
    with pytest.raises(InputError, match="min_probability must be between 0 and 1"):
        AnswerOptions(min_probability=least)


def test_types_keep_the_answers_that_have_a_fact(reasoner: Reasoner) -> None:
    odd = {f"link {number}" for number in range(0, 12, 3)} - {"link 1"}
    for kind in ("a=b=odd=one", ("a=b", "odd=one"), (2, 12)):
        found = reasoner.predict("link 1", "next", top=100, types=[kind])
        assert {answer.entity for answer in found} == odd  # also those that were not sampled
    # Of the type, and among the candidates.
    some = reasoner.predict(
        "link 1", "next", types=["a=b=odd=one"], candidates=["link 3", "link 4"]
    )
    assert [answer.entity for answer in some] == ["link 3"]
    none = reasoner.predict("link 1", "next", types=["a=b=odd=one", "next=link 5"])
    assert none.answers == ()
    # In a stream only what was sampled counts.
    every = {answer.entity for answer in reasoner.predict("link 1", "next", top=100)}
    (streamed,) = reasoner.predict_stream([("link 1", "next")], top=100, types=["a=b=odd=one"])
    assert {answer.entity for answer in streamed} == odd & every


def test_wrong_types_are_told(reasoner: Reasoner) -> None:
    with pytest.raises(InputError, match="must have the form RELATION=ENTITY"):
        reasoner.predict("link 1", "next", types=["odd"])
    with pytest.raises(UnknownNameError, match="unknown relation 'nxt'; did you mean 'next'"):
        reasoner.predict("link 1", "next", types=["nxt=link 2"])
    with pytest.raises(InputError, match="types must be a list"):
        AnswerOptions(types="next=link 2")
    with pytest.raises(InputError, match="a type is a relation and an entity"):
        AnswerOptions(types=[("a", "b", "c")])  # type: ignore[list-item]
    assert AnswerOptions(types=[["a", "b"]]) == AnswerOptions(types=(("a", "b"),))  # type: ignore[list-item]


def test_answers_for_several_entities_hold_for_each(reasoner: Reasoner) -> None:
    heads = ["link 2", "link 4"]
    found = reasoner.predict(heads, "next", top=100)
    assert (found.entity, found.relation) == ("link 2 and link 4", "next")
    assert not {a.entity for a in found} & set(heads)
    included = [answer.entity for answer in found]
    alone = [
        {a.entity: a for a in reasoner.predict(head, "next", top=100, candidates=included)}
        for head in heads
    ]
    for answer in found:
        parts = [each[answer.entity] for each in alone]
        assert answer.known == all(part.known for part in parts)
        assert 0 < (answer.probability or 0.0) <= min(part.probability or 0.0 for part in parts)
    scores = [answer.score for answer in found]
    assert scores == sorted(scores, reverse=True)
    assert found[0].score <= 0
    # An entity that is likely for both is before one that is likely for neither.
    ranks = [sorted(each, key=lambda name: -each[name].score) for each in alone]
    best, last = found[0].entity, found[-1].entity
    assert any(rank.index(best) < rank.index(last) for rank in ranks)
    # Facts of the graph hold.
    (fact,) = (a for a in reasoner.predict(["link 0", "link 3"], "a=b", top=100) if a.known)
    assert (fact.entity, fact.probability) == ("odd=one", 1.0)
    odd = reasoner.predict(heads, "next", types=["a=b=odd=one"], top=100)
    assert {a.entity for a in odd} == {f"link {number}" for number in range(0, 12, 3)}
    known = [a.entity for a in found if a.known]
    new = reasoner.predict(heads, "next", top=100, exclude_known=True)
    assert not {a.entity for a in new} & set(known)


def test_an_id_may_be_a_number_of_another_package(reasoner: Reasoner) -> None:
    numbers = (np.int64(3), torch.tensor(3))
    found = [reasoner.predict(number, "after", top=5) for number in (3, *numbers)]  # type: ignore[arg-type]
    assert found[0] == found[1] == found[2]


def test_one_entity_in_a_list_is_that_entity(reasoner: Reasoner) -> None:
    single, listed = (reasoner.predict(e, "after", top=5) for e in ("link 3", ["link 3"]))
    assert [a.entity for a in single] == [a.entity for a in listed]
    for one, other in zip(single, listed, strict=True):
        assert (one.known, one.probability) == (other.known, pytest.approx(other.probability))


def test_facts_of_the_graph_are_certain_for_several_entities_as_well(reasoner: Reasoner) -> None:
    (known,) = (a for a in reasoner.predict(["link 0"], "next", top=100) if a.known)
    assert (known.entity, known.probability) == ("link 1", 1)
    sure = reasoner.predict(["link 0"], "next", top=100, min_probability=1)
    assert [answer.entity for answer in sure] == ["link 1"]
    # What is known for one entity is as likely as it is for the others.
    heads = ["link 0", "link 5"]
    found = {a.entity: a for a in reasoner.predict(heads, "next", top=100)}
    every = [*found, *heads]
    alone = {a.entity: a for a in reasoner.predict("link 5", "next", top=100, candidates=every)}
    assert not found["link 1"].known
    assert found["link 1"].probability == pytest.approx(alone["link 1"].probability, abs=1e-4)
    # Both are answers of the third relation for every third link.
    both = reasoner.predict(["link 0", "link 3"], "a=b", top=100)
    assert [(a.entity, a.probability) for a in both if a.known] == [("odd=one", 1)]


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ([], {}, "give 1 to 64 entities, not 0"),
        (["link 2"] * 65, {}, "give 1 to 64 entities, not 65"),
        (["link 2", "link 2"], {}, "an entity is given twice"),
        (["link 2", "alone"], {}, "'alone' has no facts"),
        (["link 2", "link 3"], {"explain": True}, "explain works for one entity"),
        (["link 2", "lnk 3"], {}, "unknown entity 'lnk 3'"),
    ],
)
def test_wrong_lists_of_entities_are_told(
    reasoner: Reasoner, heads: list[str], options: dict[str, bool], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        reasoner.predict(heads, "next", **options)  # type: ignore[arg-type]


def test_the_command_line_has_these_options(run: Command, tmp_path: Path) -> None:
    write_world(tmp_path / "data", chain_world(20))
    trained_run(tmp_path / "data", tmp_path / "run")
    (tmp_path / "few.txt").write_text("link 5\nlink 6\n")
    query = ("predict", tmp_path / "run", "link 3", "after", "--top", 50)

    def answers(*options: object) -> list[str]:
        return [a["entity"] for a in run(*query, *options, "--json").json["answers"]]

    every = answers()
    assert set(answers("--candidates", tmp_path / "few.txt")) == {"link 5", "link 6"}
    likely = answers("--min-probability", 0.2)
    assert likely == every[: len(likely)]
    assert len(likely) < len(every)
    typed = answers("--type", "next=link 6")
    assert typed == ["link 5"]
    both = run(*query, "--and", "link 4", "--json").json
    assert both["query"]["entity"] == "link 3 and link 4"
    for options, message in {
        ("--candidates", tmp_path / "none.txt"): "none.txt",
        ("--min-probability", 2): "min_probability must be between 0 and 1",
        ("--type", "odd"): "must have the form RELATION=ENTITY",
        ("--and", "link 3"): "an entity is given twice",
    }.items():
        wrong = run(*query, *options)
        assert (wrong.code, message in wrong.err) == (2, True), wrong.err
    (tmp_path / "q.tsv").write_text("link 0\tnext\nlink 3\tafter\n")
    many = ("predict", tmp_path / "run", "--queries", tmp_path / "q.tsv")
    for name in ("--and", "--candidates"):
        wrong = run(*many, "--out", tmp_path / "a.jsonl", name, "few.txt")
        assert (wrong.code, f"{name} cannot be combined" in wrong.err) == (2, True)
    for out in ("a.jsonl", "parts"):  # a file, and a directory of parts with a manifest
        kept = run(*many, "--out", tmp_path / out, "--type", "next=link 6", "--top", 50)
        assert kept.code == 0, kept.err
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    found = [[a["entity"] for a in line["answers"]] for line in lines]
    assert set(itertools.chain(*found)) <= {"link 5"}
    again = run(*many, "--out", tmp_path / "parts", "--resume", "--json")
    assert again.json["already_finished"]
