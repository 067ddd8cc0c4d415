"""Tests of numbering: names and ids become ids under common vocabularies."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from oneshot.data import encode as numbering
from oneshot.data.encode import numbered
from oneshot.data.formats import RawFacts, read_facts
from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.vocabulary import Vocabulary


def named(*facts: tuple[str, str, str], path: str = "train.parquet") -> RawFacts:
    columns = [pa.chunked_array([pa.array(c, pa.string())]) for c in zip(*facts, strict=True)]
    return RawFacts(Path(path), columns)


def ids(heads: list[int], relations: list[int], tails: list[int]) -> RawFacts:
    columns = [np.array(column) for column in (heads, relations, tails)]
    return RawFacts(Path("train.npz"), columns, are_ids=True)


def test_names_are_numbered_in_sorted_order_over_all_splits() -> None:
    train = named(("b", "r", "a"), ("é", "q", "b"))
    test = named(("Z", "r", "zz"), ("b", "p", "a"))
    facts, entities, relations = numbered([train, test], None, None)
    assert list(entities) == ["Z", "a", "b", "zz", "é"]
    assert list(relations) == ["p", "q", "r"]
    assert [part.tolist() for part in facts] == [[[2, 2, 1], [4, 1, 2]], [[0, 2, 3], [2, 0, 1]]]
    assert all(part.dtype == np.int64 for part in facts)


def test_given_vocabularies_keep_their_order_and_unused_names() -> None:
    entities = Vocabulary.from_names(["z", "unused", "a"], "entity")
    relations = Vocabulary.from_names(["s", "r"], "relation")
    facts, same, _ = numbered([named(("a", "r", "z"))], entities, relations)
    assert facts[0].tolist() == [[2, 1, 0]]
    assert same is entities


def test_an_unknown_name_is_found_by_file_line_and_column(tmp_path: Path) -> None:
    train, test = tmp_path / "train.tsv", tmp_path / "test.csv"
    train.write_text("# c\nhead\trelation\ttail\n\nann\tknows\tbob\nann\tknows\tbobb\n")
    test.write_text('"ann",knows,bob\n\nann,knws,bob\n')
    entities = Vocabulary.from_names(["ann", "bob"], "entity")
    with pytest.raises(UnknownNameError) as caught:
        numbered([read_facts(train)], entities, None)
    assert str(caught.value) == f"{train}, line 5: unknown entity 'bobb'; did you mean 'bob'?"
    relations = Vocabulary.from_names(["knows"], "relation")
    with pytest.raises(UnknownNameError) as caught:
        numbered([read_facts(test)], entities, relations)
    assert str(caught.value) == f"{test}, line 3: unknown relation 'knws'; did you mean 'knows'?"


def test_an_unknown_name_is_looked_for_in_all_splits() -> None:
    splits = [named(("a", "r", "b"), path=f"{name}.parquet") for name in ("train", "valid", "test")]
    splits[1] = named(("a", "r", "b"), ("a", "r", "b"), ("b", "r", "c"), path="valid.parquet")
    entities = Vocabulary.from_names(["a", "b"], "entity")
    with pytest.raises(UnknownNameError, match=r"valid\.parquet, fact 3: unknown entity 'c'"):
        numbered(splits, entities, None)


def test_ids_keep_their_numbers() -> None:
    splits = [ids([0, 5], [1, 0], [3, 3]), ids([2], [0], [6])]
    facts, entities, relations = numbered(splits, None, None)
    assert [part.tolist() for part in facts] == [[[0, 1, 3], [5, 0, 3]], [[2, 0, 6]]]
    assert list(entities) == [str(i) for i in range(7)]
    assert list(relations) == ["0", "1"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (ids([0, 7], [0, 0], [1, 1]), "fact 2 has entity id 7, but ids range from 0 to 2"),
        (ids([0, 0], [0, 0], [1, -1]), "fact 2 has entity id -1"),
        (ids([0, 0], [4, 0], [1, 1]), "fact 1 has relation id 4, but ids range from 0 to 1"),
    ],
)
def test_ids_outside_the_given_names_are_refused(facts: RawFacts, message: str) -> None:
    entities = Vocabulary.from_names(["a", "b", "c"], "entity")
    relations = Vocabulary.from_names(["r", "s"], "relation")
    with pytest.raises(InputError, match=rf"train\.npz: {message}"):
        numbered([facts], entities, relations)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (ids([-3], [0], [-2]), "entity id -3"),
        (ids([0], [-1], [1]), "relation id -1"),
        (ids([0], [0], [10**12]), r"entity id 1000000000000 .* entities\.txt"),
        (ids([0], [10**12], [1]), r"relation id 1000000000000 .* relations\.txt"),
        (ids([0], [0], [2**63]), "entity id 9223372036854775808"),
    ],
)
def test_absurd_ids_are_refused_at_once(
    facts: RawFacts, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Vocabulary.numbered

    def small(count: int, kind: str) -> Vocabulary:
        assert count <= 10, "names were made for absurd ids"
        return make(count, kind)

    monkeypatch.setattr(Vocabulary, "numbered", small)
    with pytest.raises(InputError, match=rf"train\.npz: .*{message}"):
        numbered([facts], None, None)


def test_gaps_between_ids_may_grow_with_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "_SPARSE_IDS", 50)
    _, entities, _ = numbered([ids([50], [0], [1])], None, None)
    assert len(entities) == 51
    _, entities, _ = numbered([ids([200, 0], [0, 0], [1, 2])], None, None)
    assert len(entities) == 201
    with pytest.raises(InputError, match="entity id 201 is too large for 2 facts"):
        numbered([ids([201, 0], [0, 0], [1, 2])], None, None)


def test_names_and_ids_do_not_mix() -> None:
    with pytest.raises(InputError, match="cannot be combined with files of names"):
        numbered([named(("a", "r", "b")), ids([0], [0], [1])], None, None)
