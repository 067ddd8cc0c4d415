"""Tests of the vocabulary: it behaves as a list and a dictionary of names would."""

import difflib
import random
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneshot.errors import InputError, UnknownNameError
from oneshot.graph import vocabulary as module
from oneshot.graph.vocabulary import Vocabulary

distinct_names = st.lists(st.text(), unique=True, max_size=30)
# Also what cannot be written in UTF-8, as file names and arguments may hold.
any_text = st.text(st.characters())


def entities(*names: str) -> Vocabulary:
    return Vocabulary.from_names(names, "entity")


@settings(max_examples=150, deadline=None)
@given(distinct_names, st.lists(any_text, max_size=10))
def test_lookups_are_those_of_a_dictionary(names: list[str], others: list[str]) -> None:
    vocabulary = entities(*names)
    ids = {name: i for i, name in enumerate(names)}
    for name in [*names, *others, "", "?"]:
        assert vocabulary.get(name) == ids.get(name)
        assert (name in vocabulary) == (name in ids)
        if name in ids:
            assert vocabulary.index(name) == ids[name]
        else:
            with pytest.raises(UnknownNameError):
                vocabulary.index(name)


@settings(max_examples=50, deadline=None)
@given(distinct_names)
def test_it_is_a_sequence_of_its_names(names: list[str]) -> None:
    vocabulary = entities(*names)
    assert len(vocabulary) == len(names)
    assert list(vocabulary) == names
    assert [vocabulary[i] for i in range(-len(names), len(names))] == names + names
    assert vocabulary[1:-1] == names[1:-1]
    assert vocabulary[::-2] == names[::-2]
    for outside in (len(names), -len(names) - 1):
        with pytest.raises(IndexError, match="entity number"):
            vocabulary[outside]


def test_what_is_not_text_is_never_found() -> None:
    vocabulary = entities("?", "\ufffd", "\\udcff")
    assert vocabulary.get("\udcff") is None
    assert "\ud800" not in vocabulary


def test_numpy_numbers_are_indices_and_other_things_are_not_names() -> None:
    vocabulary = entities("a", "b")
    assert vocabulary[np.int32(1)] == "b"  # type: ignore[call-overload]
    assert 1 not in vocabulary


@settings(max_examples=30, deadline=None)
@given(names=st.lists(st.text(max_size=6), unique=True, min_size=5, max_size=30))
def test_chunks_join_seamlessly(names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", 4)
        patch.setattr(module, "_COMPARED", 4)
        vocabulary = entities(*names)
        assert list(vocabulary) == names
        assert [vocabulary.get(name) for name in names] == list(range(len(names)))
        assert set(vocabulary.nearest(names[0])) <= set(names)


@pytest.mark.parametrize("size", [0, 1, 24, 25, 300, 1 << 14, (1 << 14) + 1, 40_000])
def test_a_name_is_hashed_as_among_others(size: int) -> None:
    """However long it is: short and long ones are hashed in different ways."""
    name = bytes(np.random.default_rng(size).integers(0, 256, size, np.uint8))
    blob = np.frombuffer(b"ab" + name + b"cd", np.uint8)
    ends = np.array([0, 2, 2 + size, 4 + size])
    assert module._hash(name) == int(module.hash_names(blob, ends)[1])


def test_names_with_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_hash", lambda name: 7)
    monkeypatch.setattr(module, "hash_names", lambda blob, ends: np.full(len(ends) - 1, 7, "u8"))
    vocabulary = entities("ann", "bob", "eve")
    assert [vocabulary.get(name) for name in ("eve", "bob", "ann", "joe")] == [2, 1, 0, None]
    with pytest.raises(InputError, match="'bob' occurs twice, as number 1 and 3"):
        entities("ann", "bob", "eve", "bob")


def test_a_repeated_name_is_refused() -> None:
    with pytest.raises(InputError, match="relation 'knows' occurs twice, as number 0 and 2"):
        Vocabulary.from_names(["knows", "likes", "knows"], "relation")


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"'a\\udcff' cannot be written in UTF-8"):
        entities("a\udcff")


def test_equality_is_that_of_the_names_in_order() -> None:
    assert entities("ab", "c") == entities("ab", "c")
    assert entities("ab", "c") != entities("c", "ab")
    assert entities("ab", "c") != entities("a", "bc")
    assert entities("ab") != ["ab"]


def test_numbers_are_names_where_there_are_none() -> None:
    assert list(Vocabulary.numbered(11, "entity")) == [str(i) for i in range(11)]
    assert len(Vocabulary.numbered(0, "entity")) == 0


def test_an_unknown_name_suggests_the_nearest() -> None:
    vocabulary = entities("disease_or_syndrome", "virus", "Fungus", "bacterium")
    with pytest.raises(UnknownNameError) as caught:
        vocabulary.index("viruss")
    assert str(caught.value) == "unknown entity 'viruss'; did you mean 'virus'?"
    assert vocabulary.nearest("FUNGUS") == ["Fungus"]
    assert vocabulary.nearest("disease or syndrom")[0] == "disease_or_syndrome"
    assert vocabulary.nearest("xyz") == []


@pytest.fixture(scope="module")
def many_names() -> Vocabulary:
    letters = random.Random(0)
    words = ("".join(letters.choices("abcdefghijklmnop", k=9)) for _ in range(200_000))
    names = [f"{word.title()} {number}" for number, word in enumerate(words)]
    names[123_456] = "Quizzical Zebra Ünïcode"
    names[7] = "plain old walrus"
    return Vocabulary.from_names(names, "entity")


@pytest.mark.parametrize(
    "typo",
    [
        "Xuizzical Zebra Ünïcode",
        "uizzical Zebra Ünïcode",
        "Quizical Zebra Ünïcode",
        "Quizzical Zerba Ünïcode",
        "quizzical_zebra_Ünïcode",
        "QUIZZICAL ZEBRA ÜNÏCODE",
        "Quizzical Zebra Unicode",
        "Zebra Quizzical Ünïcode",
    ],
)
def test_few_names_of_a_large_vocabulary_are_compared_letter_by_letter(
    many_names: Vocabulary, typo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing all of them would take minutes."""
    compared: list[int] = []
    compare = difflib.get_close_matches

    def counting(word: str, names: Collection[str], n: int, cutoff: float) -> list[str]:
        compared.append(len(names))
        return compare(word, names, n, cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    assert many_names.nearest(typo)[0] == "Quizzical Zebra Ünïcode"
    assert 0 < sum(compared) <= len(many_names) // 50


def test_suggestions_do_not_depend_on_case(many_names: Vocabulary) -> None:
    assert many_names.nearest("PLAIN OLD WALRUS") == ["plain old walrus"]


@pytest.mark.parametrize("name", ["", "a", "é", "🦓", "\udcff\udcff", "zzzz", "x" * 10_000])
def test_any_name_can_be_asked_in_large_vocabularies(many_names: Vocabulary, name: str) -> None:
    assert len(many_names.nearest(name)) <= 3


def test_lookups_work_on_memory_mapped_names(tmp_path: Path) -> None:
    original = entities("ann", "bob", "Zoë")
    np.save(tmp_path / "blob.npy", original.blob)
    np.save(tmp_path / "offsets.npy", original.offsets)
    blob, offsets = (np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ("blob", "offsets"))
    mapped = Vocabulary(blob, offsets, "entity")
    assert mapped == original
    assert mapped.index("Zoë") == 2


def colliding_names(count: int) -> list[str]:
    """Names with equal hashes, whatever the odd multiplier: made of a Thue-Morse word of 2^11
    letters and its complement."""
    word = "a"
    while len(word) < 2048:
        word += word.translate(str.maketrans("ab", "ba"))
    other = word.translate(str.maketrans("ab", "ba"))
    digits = count.bit_length()
    return [
        "".join(other if number >> digit & 1 else word for digit in range(digits))
        for number in range(count)
    ]


def test_names_made_to_collide_cost_no_more_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = colliding_names(64)
    read = Vocabulary._bytes
    reads: list[int] = []

    def counting(self: Vocabulary, index: int) -> bytes:
        reads.append(index)
        return read(self, index)

    monkeypatch.setattr(Vocabulary, "_bytes", counting)
    vocabulary = entities("first", *names, "last")
    assert len(set(vocabulary.hash_index[0].tolist())) == 3
    assert [vocabulary.get(name) for name in names] == list(range(1, 65))
    assert vocabulary.get(colliding_names(65)[64]) is None
    assert len(reads) <= 4 * len(names)
    more = vocabulary.extended(colliding_names(128)[64:])
    assert more.get(names[0]) == 1
    with pytest.raises(InputError, match="occurs twice, as number 2 and 65"):
        entities("first", *names, names[1])


def test_colliding_names_in_any_order() -> None:
    """The index of a saved graph may list equal hashes in any order."""
    names = colliding_names(8)
    vocabulary = entities(*names)
    hashes, ids = vocabulary.hash_index
    opened = Vocabulary(vocabulary.blob, vocabulary.offsets, "entity", (hashes, ids[::-1].copy()))
    assert [opened.get(name) for name in names] == list(range(8))
