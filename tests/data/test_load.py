"""Tests of data sets: what a user has is found, read, split and described."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oneshot.data.load import SPLITS, Dataset, both_directions, bundled_names, load, split_facts
from oneshot.data.synthetic.generators import uniform
from oneshot.errors import InputError, UnknownNameError

TRAIN = "ann\tknows\tbob\nbob\tknows\teve\neve\tlikes\teve\n"
VALID = "ann\tknows\teve\n"
TEST = "joe\tlikes\tann\n"


def facts_by_name(data: Dataset, split: str) -> list[tuple[str, str, str]]:
    entities, relations = data.entities, data.relations
    return [(entities[h], relations[r], entities[t]) for h, r, t in data.facts(split).tolist()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the three splits."""
    for split, text in zip(SPLITS, (TRAIN, VALID, TEST), strict=True):
        (tmp_path / f"{split}.tsv").write_text(text)
    return tmp_path


def test_a_directory_of_splits(folder: Path) -> None:
    data = load(folder)
    assert data.name == folder.name
    assert list(data.entities) == ["ann", "bob", "eve", "joe"]
    assert list(data.relations) == ["knows", "likes"]
    for split, text in zip(SPLITS, (TRAIN, VALID, TEST), strict=True):
        assert facts_by_name(data, split) == [tuple(row.split("\t")) for row in text.splitlines()]
        assert data.facts(split).dtype == torch.int64
    assert data.graph.num_facts == 3
    assert len(data.known) == 5
    assert (data.duplicates, data.unseen_entities, list(data.notes)) == (0, 1, [])


def test_splits_may_differ_in_format(folder: Path) -> None:
    plain = load(folder)
    (folder / "train.tsv").unlink()
    (folder / "train.txt.gz").write_bytes(gzip.compress(TRAIN.encode()))
    (folder / "valid.tsv").unlink()
    columns = list(zip(*(row.split("\t") for row in VALID.splitlines()), strict=True))
    pq.write_table(pa.table(columns, names=["h", "r", "t"]), folder / "valid.parquet")
    (folder / "test.tsv").rename(folder / "test.txt")
    assert load(folder).graph.fingerprint == plain.graph.fingerprint
    assert torch.equal(load(folder).known, plain.known)


def test_repeated_facts_count_once_and_facts_in_two_splits_are_reported(folder: Path) -> None:
    (folder / "train.tsv").write_text(TRAIN + TRAIN + "ann\tknows\tbob\n")
    (folder / "valid.tsv").write_text(VALID + "ann\tknows\tbob\n" + TEST)
    data = load(folder)
    assert data.duplicates == 4
    assert facts_by_name(data, "train") == [tuple(row.split("\t")) for row in TRAIN.splitlines()]
    assert data.overlaps == {"train-valid": 1, "train-test": 0, "valid-test": 1}
    assert len(data.valid) == 3


def test_ids_with_and_without_names(tmp_path: Path) -> None:
    for split in SPLITS:
        np.savez(tmp_path / f"{split}.npz", h=[0, 2], r=[0, 1], t=[1, 1])
    assert facts_by_name(load(tmp_path), "test") == [("0", "0", "1"), ("2", "1", "1")]
    (tmp_path / "entities.txt").write_text("ann\nbob\neve\nunused\n")
    (tmp_path / "relations.txt.gz").write_bytes(gzip.compress(b"knows\r\nlikes\r\n", mtime=0))
    data = load(tmp_path)
    assert facts_by_name(data, "test") == [("ann", "knows", "bob"), ("eve", "likes", "bob")]
    assert len(data.entities) == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"valid.tsv": None}, "no valid split .* pass the file itself"),
        ({"train.tsv": None}, "no train split"),
        ({"test.csv": "a,r,b\n"}, r"more than one test split: test\.csv, test\.tsv"),
        ({"test.tsv": "joe\tlikes\n"}, r"test\.tsv, line 1: expected 3"),
        ({"valid.tsv": ""}, r"valid\.tsv: the file is empty"),
        (
            {"entities.txt": "ann\nbob\neve\njoey\n"},
            r"test\.tsv, line 1: unknown entity 'joe'; did you mean 'joey'\?",
        ),
        (
            {"relations.txt": "knows\nlike\n"},
            r"train\.tsv, line 3: unknown relation 'likes'; did you mean 'like'\?",
        ),
        ({"entities.txt": "a\n", "entities.txt.gz": "a\n"}, r"both entities\.txt and"),
        ({"oneshot-graph.json": "{}"}, "not a whole saved graph"),
    ],
)
def test_bad_directories_are_refused(
    folder: Path, files: dict[str, str | None], message: str
) -> None:
    for name, text in files.items():
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)
    with pytest.raises(InputError, match=message):
        load(folder)


def test_one_file_is_split_under_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("".join(f"{i % 17}\tr{i % 3}\t{i * i % 19}\n" for i in range(300)))
    data, again, other = load(path), load(path, seed=0), load(path, seed=1)
    distinct = len(set(path.read_text().splitlines()))
    assert data.duplicates == 300 - distinct
    assert len(data.known) == distinct
    assert len(data.valid) == len(data.test) == int(0.1 * distinct)
    assert data.unseen_entities == 0
    assert torch.equal(data.known, again.known)
    assert not torch.equal(data.known, other.known)
    assert "seed 0" in data.notes[0]
    assert len(load(path, valid_share=0.0, test_share=0.2).valid) == 0


def test_a_file_too_sparse_to_split_says_so(tmp_path: Path) -> None:
    path = tmp_path / "chain.tsv"
    path.write_text("".join(f"{i}\tr\t{i + 1}\n" for i in range(0, 60, 2)))
    data = load(path)
    assert (len(data.train), len(data.valid), len(data.test)) == (30, 0, 0)
    assert "none of the 30 facts are held out" in data.notes[1]


distinct_facts = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 8)), unique=True, max_size=60
)


@settings(max_examples=150, deadline=None)
@given(distinct_facts, st.integers(0, 2**70), st.floats(0, 0.6), st.floats(0, 0.39))
def test_splits_are_a_partition_that_keeps_everything_in_train(
    rows: list[tuple[int, int, int]], seed: int, valid_share: float, test_share: float
) -> None:
    facts = np.array(rows, np.int64).reshape(-1, 3)
    parts = split_facts(facts, seed, valid_share, test_share)
    train, valid, test = (list(map(tuple, part.tolist())) for part in parts)
    assert sorted(train + valid + test) == sorted(rows)
    assert all(part == [row for row in rows if row in part] for part in (train, valid, test))
    assert {x for h, _, t in train for x in (h, t)} == {x for h, _, t in rows for x in (h, t)}
    assert {r for _, r, _ in train} == {r for _, r, _ in rows}
    assert len(valid) <= valid_share * len(rows)
    assert len(test) <= test_share * len(rows)
    for part, again in zip(parts, split_facts(facts, seed, valid_share, test_share), strict=True):
        assert np.array_equal(part, again)


def test_a_dense_graph_gives_the_shares_asked_for() -> None:
    facts = np.array([(h, 0, t) for h in range(20) for t in range(20)])
    train, valid, test = split_facts(facts, 5, 0.2, 0.1)
    assert (len(train), len(valid), len(test)) == (280, 80, 40)


@pytest.mark.parametrize("shares", [(-0.1, 0.1), (0.5, 0.5), (0.1, float("nan")), (2, -1)])
def test_impossible_shares_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="held-out shares"):
        split_facts(np.zeros((1, 3), np.int64), 0, *shares)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(InputError, match="seed must not be negative"):
        split_facts(np.zeros((1, 3), np.int64), -1)


def test_queries_go_in_both_directions(folder: Path) -> None:
    facts = torch.tensor([[0, 0, 1], [2, 1, 0]])
    queries, answers = both_directions(facts, 2)
    assert queries.tolist() == [[0, 0], [2, 1], [1, 2], [0, 3]]
    assert answers.tolist() == [1, 0, 0, 2]
    assert load(folder).queries("train")[0].shape == (6, 2)
    with pytest.raises(UnknownNameError, match="unknown split 'tset'; did you mean 'test'"):
        load(folder).queries("tset")


def test_names_are_looked_for_in_the_data_directories(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, cache = tmp_path_factory.mktemp("chosen"), tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ONESHOT_DATA", str(chosen))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (cache / "oneshot").mkdir()
    (cache / "oneshot" / "friends").symlink_to(folder)
    assert len(load("friends").train) == 3
    (chosen / "friends").mkdir()
    with pytest.raises(InputError, match=r"chosen.*friends: no train split"):
        load("friends")
    with pytest.raises(InputError, match=r"unknown data set 'frends'.* did you mean 'friends'\?"):
        load("frends")
    monkeypatch.delenv("ONESHOT_DATA")
    assert len(load("friends").train) == 3


def test_a_user_without_a_home_is_told_where_data_sets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is but a number."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert len(load("umls").train) > 0
    with pytest.raises(InputError, match=r"unknown data set 'nothing': .* not in \$ONESHOT_DATA$"):
        load("nothing")
    with pytest.raises(InputError, match="set HOME or XDG_CACHE_HOME"):
        load("WN18RR")


@pytest.mark.parametrize("name", ["no/such/place", "~no_such_user/x", "x" * 5000, "a\0b", "nö"])
def test_what_is_not_there_is_named(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load(name)
    assert f"unknown data set {name!r}" in str(caught.value)


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_data_sets_are_whole(name: str) -> None:
    data = load(name)
    assert data.name == name
    assert min(len(data.train), len(data.valid), len(data.test)) > 0
    assert set(data.overlaps.values()) == {0}


def test_generated_data_sets() -> None:
    data = load("family:200")
    assert len(data.entities) == 200
    assert data.unseen_entities == 0
    assert "grandmother" in data.relations
    assert len({rule.head for rule in data.rules}) == 4
    data = load("random:50:1e3")
    assert (len(data.entities), len(data.relations)) == (50, 10)
    assert len(data.known) + data.duplicates == 1000
    assert len(data.test) == len(data.known) // 100
    assert torch.equal(data.known, load("random:50:1000").known)
    assert not torch.equal(data.known, uniform(50, 1000, seed=1).known)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("family:99", "people must be"),
        ("family:x", "expected whole numbers"),
        ("family:inf", "expected whole numbers"),
        ("family:100:3", "of the form family:PEOPLE"),
        ("random:50", "of the form random:ENTITIES:FACTS"),
        ("random:1:1000", "a random graph needs"),
        ("random:1e12:1000", "a random graph needs"),
        ("random:50:1e13", "a random graph needs"),
    ],
)
def test_impossible_generated_data_sets_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(name)
