"""Random facts survive every format and the saved form: the same facts by name."""

import csv
import gzip
import io
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneshot.data.formats import FORMATS
from oneshot.data.load import Dataset, load

Fact = tuple[str, str, str]


def facts_in(data: Dataset) -> set[Fact]:
    entities, relations = data.entities, data.relations
    return {(entities[h], relations[r], entities[t]) for h, r, t in data.known.tolist()}


# Names that every format can hold; what only some can is tested with the readers.
names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
spaced = st.tuples(names, names).map(" ".join)
facts = st.lists(st.tuples(spaced, spaced, spaced), min_size=1, max_size=12).filter(
    lambda rows: not any(head.startswith("#") for head, _, _ in rows)
)


def written(suffix: str, rows: list[Fact]) -> tuple[bytes, set[Fact]]:
    """The content of a file with these facts, and the names that they have there."""
    if suffix in (".tsv", ".txt"):
        return "".join("\t".join(row) + "\n" for row in rows).encode(), set(rows)
    if suffix == ".csv":
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        return text.getvalue().encode(), set(rows)
    if suffix in (".nt", ".ttl"):
        iris = [tuple("http://x/" + quote(name, safe="") for name in row) for row in rows]
        return "".join(f"<{h}> <{r}> <{t}> .\n" for h, r, t in iris).encode(), set(iris)
    target = io.BytesIO()
    if suffix == ".parquet":
        columns = list(zip(*rows, strict=True))
        pq.write_table(pa.table(columns, names=["head", "relation", "tail"]), target)
        return target.getvalue(), set(rows)
    ids = {name: number for number, name in enumerate(sorted({x for row in rows for x in row}))}
    h, r, t = np.array([[ids[name] for name in row] for row in rows]).T
    np.savez(target, h=h, r=r, t=t)
    return target.getvalue(), {tuple(str(ids[name]) for name in row) for row in rows}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_facts_survive_a_file_and_the_saved_form(tmp_path: Path, suffix: str, ending: str) -> None:
    if suffix in (".nt", ".ttl"):
        pytest.importorskip("pyoxigraph", reason="needs the extra rdf")
    path = tmp_path / f"facts{suffix}{ending}"

    @settings(max_examples=20, deadline=None)
    @given(facts)
    def check(rows: list[Fact]) -> None:
        content, expected = written(suffix, rows)
        path.write_bytes(gzip.compress(content, mtime=0) if ending else content)
        data = load(path)
        assert facts_in(data) == expected
        assert data.duplicates == len(rows) - len(expected)
        data.save(tmp_path / "saved")
        opened = load(tmp_path / "saved")
        assert facts_in(opened) == expected
        assert opened.graph.fingerprint == data.graph.fingerprint
        assert opened.known.equal(data.known)

    check()


@settings(max_examples=40, deadline=None)
@given(facts, st.lists(st.sampled_from(list(FORMATS)[:4]), min_size=3, max_size=3))
def test_facts_survive_a_directory_of_splits(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Fact], suffixes: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("splits")
    for split, suffix in zip(("train", "valid", "test"), suffixes, strict=True):
        (folder / f"{split}{suffix}").write_bytes(written(suffix, rows)[0])
    data = load(folder)
    assert facts_in(data) == set(rows)
    assert data.overlaps == dict.fromkeys(
        ("train-valid", "train-test", "valid-test"), len(set(rows))
    )
    assert data.unseen_entities == 0
    # The same with the names given, in an order of their own.
    entities = sorted({x for h, _, t in rows for x in (h, t)}, reverse=True)
    (folder / "entities.txt").write_text("\n".join(entities), encoding="utf-8")
    again = load(folder)
    assert list(again.entities) == entities
    assert facts_in(again) == set(rows)
