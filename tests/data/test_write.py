"""Facts written and read again."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oneshot.batch.queries import read_queries
from oneshot.data.formats import (
    FACT_COLUMNS,
    FORMATS,
    check_names_fit,
    read_facts,
    write_facts,
    write_scored_facts,
)
from oneshot.errors import InputError
from oneshot.graph.vocabulary import Vocabulary

ODD = [
    ("a b", "r", "é"),
    ("# hash", "r", "a b"),
    ("x", "r", 'quo"te'),
    ("line\nend", "r", "tab\tstop"),
    ("x", "r", "cr\rcr"),
    ("x", "r", " blank "),
    ("x", "r", "comma,comma"),
    ("x", "r", "-1"),
]


def read(path: Path) -> list[tuple[str, ...]]:
    return list(zip(*(column.to_pylist() for column in read_facts(path).columns), strict=True))


def test_any_name_survives_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "facts.parquet"
    assert write_facts(path, ODD) == len(ODD)
    assert read(path) == ODD


def test_names_survive_in_csv_as_its_reader_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    assert write_facts(path, ODD) == len(ODD)
    assert read(path) == ODD


@pytest.mark.parametrize("fact", ODD)
def test_a_tsv_holds_a_fact_or_says_that_it_cannot(
    tmp_path: Path, fact: tuple[str, str, str]
) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("before")
    plain = [("first", "r", "second")]
    if "\t" not in fact[2] and "\r" not in fact[2] and not fact[0].startswith("#"):
        write_facts(path, [*plain, fact])
        assert read(path) == [*plain, fact]
        return
    with pytest.raises(InputError, match=r"\.parquet"):
        write_facts(path, [*plain, fact])
    assert path.read_text() == "before"


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.tsv, \.csv, \.parquet"):
        write_facts(tmp_path / "facts.xlsx", ODD)
    assert not list(tmp_path.iterdir())


PARTS = [
    '"',
    '""',
    "#",
    "# ",
    " ",
    "a",
    "é",
    ",",
    "\v",
    "\x85",
    "\u2028",
    "\ufeff",
    "\0",
    "-",
    "\\",
]
odd_names = st.one_of(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("".join),
    st.sampled_from(["head", "relation", "tail", "#head", "x\ty", "x\ny", "x\ry", "x\r\n"]),
    st.text(min_size=1, max_size=4),
).filter(lambda name: name.strip(" \t\r\n\v\f"))  # readers take the others as empty
odd_facts = st.lists(st.tuples(odd_names, odd_names, odd_names), min_size=1, max_size=4)


def fits_tsv(facts: list[tuple[str, str, str]]) -> bool:
    """Whether no name ends a value, and no row is a comment."""
    names = "".join(name for fact in facts for name in fact)
    return not set("\t\r\n") & set(names) and not any(h.startswith("# ") for h, _, _ in facts)


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
@pytest.mark.parametrize("kind", ["scored", "exported"])
def test_facts_with_odd_names_are_read_as_they_were_written(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    path = tmp_path / f"facts{suffix}"

    def write(facts: list[tuple[str, str, str]]) -> None:
        if kind == "scored":
            write_scored_facts(path, facts, {})
        else:
            write_facts(path, facts)

    @settings(max_examples=300, deadline=None)
    @given(odd_facts)
    @example([('"a" b', 'is "x" of', ' "')])
    @example([("# a", "r", "b")])
    @example([("head", "relation", "tail")])
    @example([("\ufeffa", "r", "b")])
    @example([("a", " r", "b\x85")])
    def check(facts: list[tuple[str, str, str]]) -> None:
        if suffix == ".tsv" and not fits_tsv(facts):
            with pytest.raises(InputError, match=r"choose --out FILE\.csv or FILE\.parquet"):
                write(facts)
            return
        write(facts)
        assert read(path) == facts

    check()


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_names_of_a_table_of_answers_are_read_as_the_same_queries(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"queries{suffix}"
    write = FORMATS[suffix].write_rows
    assert write is not None

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.tuples(odd_names, odd_names), min_size=1, max_size=4))
    def check(queries: list[tuple[str, str]]) -> None:
        if suffix == ".tsv" and not fits_tsv([(*query, "x") for query in queries]):
            return
        write(path, queries, {"entity": str, "relation": str})
        assert [(query.entity, query.relation) for query in read_queries(path)] == queries

    check()


def test_scores_without_a_value_are_empty(tmp_path: Path) -> None:
    for suffix, separator in ((".tsv", "\t"), (".csv", ",")):
        path = tmp_path / f"facts{suffix}"
        write_scored_facts(path, [("a", "r", "b", None, True)], {"score": float, "known": bool})
        header = separator.join([*FACT_COLUMNS, "score", "known"])
        assert path.read_text() == f"{header}\n{separator.join(['a', 'r', 'b', '', 'true'])}\n"


@pytest.mark.parametrize(
    ("name", "what"), [("a\tb", "a tab"), ("\n", "a newline"), ("b\r", "a carriage return")]
)
def test_names_that_a_tsv_cannot_hold_are_found_before_the_work(name: str, what: str) -> None:
    names = Vocabulary.from_names(["first", "", name, "last"], "entity")
    with pytest.raises(InputError) as error:
        check_names_fit(Path("x.tsv"), names)
    assert f"the name {name!r} contains {what}" in str(error.value)
    assert "--out FILE.csv" in str(error.value)
    check_names_fit(Path("x.csv"), names)
    check_names_fit(Path("x.jsonl"), names)
    check_names_fit(Path("x.tsv"), Vocabulary.from_names(["a", '"b"'], "entity"))
