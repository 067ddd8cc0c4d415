"""Facts written and read again."""

from pathlib import Path

import pytest

from oneshot.data.formats import read_facts, write_facts
from oneshot.errors import InputError

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
    kept = [fact for fact in ODD if fact[2] != " blank "]
    assert write_facts(path, kept) == len(kept)
    assert read(path) == kept


@pytest.mark.parametrize("fact", ODD)
def test_a_tsv_holds_a_fact_or_says_that_it_cannot(
    tmp_path: Path, fact: tuple[str, str, str]
) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("before")
    plain = [("first", "r", "second")]
    if fact in (ODD[0], ODD[6], ODD[7]):
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
