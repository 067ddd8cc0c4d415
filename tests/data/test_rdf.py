"""Tests of N-Triples and Turtle."""

import gzip
from pathlib import Path

import pytest

from oneshot.data.formats import read_facts
from oneshot.errors import InputError, MissingPackageError

FACT = "<http://x/a> <http://x/r> <http://x/b> .\n"


@pytest.fixture
def _oxigraph() -> None:
    pytest.importorskip("pyoxigraph", reason="needs the extra rdf")


def rows_in(path: Path) -> list[tuple[str, str, str]]:
    columns = [column.to_pylist() for column in read_facts(path).columns]
    return list(zip(*columns, strict=True))


@pytest.mark.usefixtures("_oxigraph")
def test_resources_become_facts_and_literals_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "facts.nt"
    path.write_text(f'{FACT}\n# c\n_:n <http://x/r> "text" .\n_:n <http://x/r> <http://x/a> .')
    assert rows_in(path) == [
        ("http://x/a", "http://x/r", "http://x/b"),
        ("_:n", "http://x/r", "http://x/a"),
    ]
    assert read_facts(path).notes == ["facts.nt: skipped 1 facts with a literal value"]


@pytest.mark.usefixtures("_oxigraph")
def test_turtle_nodes_without_a_label_have_the_same_name_each_time(tmp_path: Path) -> None:
    path = tmp_path / "facts.ttl.gz"
    labelled = "_:" + "c" * 32
    text = f"@prefix x: <http://x/> .\nx:a x:r [ x:r x:b ] , {labelled} .\n"
    path.write_bytes(gzip.compress(text.encode()))
    tails = {tail for _, _, tail in rows_in(path)}
    assert tails == {"_:facts.ttl.gz:1", "http://x/b", labelled}
    assert rows_in(path) == rows_in(path)


@pytest.mark.usefixtures("_oxigraph")
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.nt", f"{FACT}<a> b c\n", r"f\.nt, line 2: "),
        ("f.ttl", f"{FACT}\nx:a x:b x:c .\n", r"f\.ttl, line 3: "),
        ("f.ttl", "# nothing\n", r"f\.ttl: the file has no facts between resources"),
        ("f.nt", '<http://x/a> <http://x/r> "text" .\n', r"f\.nt: the file has no facts between"),
    ],
)
def test_bad_rdf_names_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_facts(tmp_path / name)


def test_without_its_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("oneshot.errors.importlib.import_module", absent)
    (tmp_path / "f.nt").write_text(FACT)
    with pytest.raises(MissingPackageError, match=r"reading f\.nt needs .*\[rdf\]"):
        read_facts(tmp_path / "f.nt")
