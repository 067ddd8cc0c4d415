"""Tests of streams of queries, and of the functions that hand them to other engines."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.samples import chain_world, tiny_predictor

from oneshot.errors import InputError, UnknownNameError
from oneshot.reasoner import stream as streaming
from oneshot.reasoner.batch_size import BatchSize
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    return Reasoner(chain_world(12).graph, PPRSampler(0.5), tiny_predictor().float())


def names(found: Any) -> list[tuple[str, str]]:
    return [(one.entity, one.relation) for one in found]


def test_a_query_may_say_that_it_is_inverse(reasoner: Reasoner) -> None:
    queries = [("link 1", "next", True), ("link 1", "next", False), (1, 3), (1, 3, True)]
    found = list(reasoner.predict_stream(queries))  # type: ignore[arg-type]
    assert names(found) == [
        ("link 1", "next⁻¹"),
        ("link 1", "next"),
        ("link 1", "next⁻¹"),
        ("link 1", "next"),
    ]
    # The same question twice in a batch: its place there may change the last bits.
    for one, other in ((found[0], found[2]), (found[1], found[3])):
        assert [a.entity for a in one] == [a.entity for a in other]
        scores = [a.score for a in other]
        assert [a.score for a in one] == pytest.approx(scores, rel=1e-5, abs=1e-7)
    assert [a.score for a in found[0]] != pytest.approx([a.score for a in found[1]], rel=1e-5)


def test_rows_of_arrays_are_queries(reasoner: Reasoner) -> None:
    rows = np.array([[1, 3], [2, 0]])
    expected = list(reasoner.predict_stream([(1, 3), (2, 0)]))
    assert list(reasoner.predict_stream(rows)) == expected  # type: ignore[arg-type]
    assert list(reasoner.predict_stream(torch.from_numpy(rows))) == expected  # type: ignore[arg-type]


BROKEN: list[tuple[Any, str, tuple[str, str]]] = [
    (("lnk 1", "next"), "unknown entity 'lnk 1'; did you mean", ("lnk 1", "next")),
    (("link 1", "nxt", True), "unknown relation 'nxt'; did you mean", ("link 1", "nxt⁻¹")),
    ((99, 0), "entity id 99 is not in the graph", ("99", "0")),
    (("link 1", None), "relation must be a name or an id, not None", ("link 1", "None")),
    ((float("nan"), "next"), "entity must be a name or an id, not nan", ("nan", "next")),
    (("link 1",), "a query is (entity, relation)", ("link 1", "")),
    (("link 1", "next", "link 2"), "inverse must be true or false", ("link 1", "next")),
    (("link 1", "next", 1), "inverse must be true or false", ("link 1", "next")),
    ("link 1", "a query is (entity, relation)", ("", "")),
    (7, "a query is (entity, relation)", ("", "")),
]


@pytest.mark.parametrize(("query", "message", "shown"), BROKEN)
@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_a_query_that_cannot_be_asked_ends_the_stream_or_is_told(
    reasoner: Reasoner, query: Any, message: str, shown: tuple[str, str], batch_size: int
) -> None:
    good = [("link 1", "next"), ("link 2", "next"), ("link 3", "next")]
    queries = [*good, query, *good]
    expected = names(reasoner.predict_stream(good))
    stream = reasoner.predict_stream(queries, batch_size=batch_size)
    # All that stands before it is answered.
    assert names(next(stream) for _ in good) == expected
    with pytest.raises(InputError, match=re.escape(message)):
        next(stream)
    found = list(reasoner.predict_stream(queries, batch_size=batch_size, errors="record"))
    assert names(found) == [*expected, shown, *expected]
    assert [one.error is None for one in found] == [True] * 3 + [False] + [True] * 3
    assert message in str(found[3].error)
    assert found[3].answers == ()
    assert found[3].as_dict()["error"] == found[3].error
    assert "error" not in found[0].as_dict()


def test_what_a_query_is_told_by_name(reasoner: Reasoner) -> None:
    with pytest.raises(UnknownNameError) as told:
        list(reasoner.predict_stream([("link 1", "nxt")]))
    assert told.value.nearest == ["next"]


def test_an_endless_source(reasoner: Reasoner) -> None:
    endless = itertools.cycle([("link 1", "next"), ("link 2", "after")])
    found = list(itertools.islice(reasoner.predict_stream(endless), 40))
    assert names(found) == [("link 1", "next"), ("link 2", "after")] * 20


def test_wrong_wishes_are_told_at_once(reasoner: Reasoner) -> None:
    for wishes, message in (
        ({"top": 0}, "top must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"errors": "ignore"}, 'errors must be "raise" or "record"'),
    ):
        with pytest.raises(InputError, match=message):
            reasoner.predict_stream([], **wishes)  # type: ignore[arg-type]


def test_batches_grow_and_are_halved_when_memory_runs_out(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, which this one only plays."""

    class Growing(BatchSize):
        def __init__(self, *given: Any) -> None:
            super().__init__(None, *given[1:])
            self.is_fixed = False

        def learn(self, batch: Any) -> None:
            if not self.is_fixed:
                self.now = 40

    sizes = []
    original = reasoner.reason

    def reason(queries: Any, include: Any = None) -> Any:
        sizes.append(len(queries))
        if len(queries) > 25:
            raise torch.OutOfMemoryError("no memory for so many")
        return original(queries, include)

    monkeypatch.setattr(streaming, "BatchSize", Growing)
    monkeypatch.setattr(reasoner, "reason", reason)
    queries = [(number % 12, 0) for number in range(100)]
    found = list(reasoner.predict_stream(queries))
    assert sizes == [16, 40, 20, 20, 20, 20, 4]
    assert [one.entity for one in found] == [f"link {entity}" for entity, _ in queries]

    def too_large(queries: Any, include: Any = None) -> Any:
        raise torch.OutOfMemoryError("no memory at all")

    monkeypatch.setattr(reasoner, "reason", too_large)
    with pytest.raises(torch.OutOfMemoryError):
        list(reasoner.predict_stream(queries))


# What docs/predict.md shows for engines, which are not needed for it.


def example(heading: str) -> dict[str, Any]:
    """What the first block of code under a heading of the page defines."""
    text = (DOCS / "predict.md").read_text()
    section = text.partition(f"### {heading}\n")[2]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    found: dict[str, Any] = {}
    exec(compile(code, "docs/predict.md", "exec"), found)
    return found


QUESTIONS = [("link 1", "next"), ("nobody", "next"), ("link 5", "after⁻¹"), ("link 2", "before")]


@pytest.fixture
def saved(reasoner: Reasoner, tmp_path: Path) -> Path:
    reasoner.save(tmp_path / "run")
    return tmp_path / "run"


def test_the_function_for_spark(reasoner: Reasoner, saved: Path) -> None:
    """`mapInPandas` hands it an iterator of frames, and takes an iterator of frames."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    found = example("Spark")
    found["RUN"] = str(saved)
    taken = []

    def frames() -> Iterator[Any]:
        for start in (0, 2):
            taken.append(start)
            yield pandas.DataFrame(QUESTIONS[start : start + 2], columns=["entity", "relation"])

    answers = found["answer"](frames())
    first = next(answers)
    assert taken == [0]
    rows = [row for frame in (first, *answers) for row in frame.to_dict("records")]
    expected = list(reasoner.predict_stream(QUESTIONS, errors="record"))
    assert [(row["entity"], row["relation"]) for row in rows] == QUESTIONS
    assert [row["answers"] for row in rows] == [[one.entity for one in f] for f in expected]
    assert [row["scores"] for row in rows] == [
        pytest.approx([one.score for one in f], rel=1e-4) for f in expected
    ]
    assert "unknown entity 'nobody'" in rows[1]["error"]
    assert not any(isinstance(row["error"], str) for row in (rows[0], *rows[2:]))


def test_the_class_for_ray(reasoner: Reasoner, saved: Path) -> None:
    """`map_batches` makes one of it, and calls it with arrays by column."""
    answer = example("Ray Data")["Answer"](str(saved))
    entities, relations = map(np.array, zip(*QUESTIONS, strict=True))
    got = answer({"entity": entities, "relation": relations})
    expected = list(reasoner.predict_stream(QUESTIONS, top=1, errors="record"))
    assert got["answer"].tolist() == [one[0].entity if len(one) else "" for one in expected]
    assert got["answer"][1] == ""
    assert np.isnan(got["score"][1])
    assert got["entity"] is entities
