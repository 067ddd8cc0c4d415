"""Tests of saved graphs: they open by memory map and equal what was saved."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.commands import Command
from tests.support.samples import assert_equal_data

from oneshot.config import PredictorConfig
from oneshot.data.load import Dataset, load
from oneshot.data.synthetic.generators import family
from oneshot.errors import InputError
from oneshot.graph import memory_map as mapping
from oneshot.graph import relation_graph, storage
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.host import HostGraph
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.storage import (
    MARKER,
    check_destination,
    is_saved_graph,
    open_graph,
    save_graph,
    verify_graph,
    write_marker,
)
from oneshot.graph.vocabulary import Vocabulary
from oneshot.predictor import Predictor
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler


def small(names: tuple[str, ...] = ("ann", "bob", "Zoë Ünïcode")) -> Dataset:
    entities = Vocabulary.from_names(names, "entity")
    relations = Vocabulary.from_names(["knows", "likes"], "relation")
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 1, 2], [2, 0, 2]], entities, relations)
    valid, test = torch.tensor([[0, 1, 2]]), torch.empty(0, 3, dtype=torch.long)
    return Dataset("small", graph, valid, test, duplicates=4, notes=["a note: 日本"])


def test_a_saved_graph_equals_the_original(tmp_path: Path) -> None:
    for data in (small(), family(150)):
        data.save(tmp_path / "saved")
        assert_equal_data(data, load(tmp_path / "saved"))
        # Saved from its own memory map, over itself.
        load(tmp_path / "saved").save(tmp_path / "saved")
        again = load(tmp_path / "saved")
        assert_equal_data(data, again)
        assert again.entities.index(data.entities[2]) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


facts = st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1)))


@settings(max_examples=40, deadline=None)
@given(rows=facts.filter(bool))
def test_any_names_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-names"
    entities = Vocabulary.from_names({x for h, _, t in rows for x in (h, t)}, "entity")
    relations = Vocabulary.from_names({r for _, r, _ in rows}, "relation")
    ids = [[entities.index(h), relations.index(r), entities.index(t)] for h, r, t in rows]
    graph = KnowledgeGraph.from_facts(ids, entities, relations)
    Dataset("any", graph, graph.facts.long(), graph.facts.long()[:0]).save(path)
    data = load(path)
    named = [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in data.train]
    assert named == list(dict.fromkeys(rows))
    assert torch.equal(data.valid, data.train)


def test_a_saved_graph_is_mapped_not_read(tmp_path: Path) -> None:
    small().save(tmp_path)
    data = load(tmp_path)
    data.graph.facts[0, 0] = 2  # a private copy of the page
    assert isinstance(data.entities.blob, np.memmap)
    assert load(tmp_path).graph.facts[0, 0] == 0


def test_a_graph_larger_than_the_memory_can_be_opened(tmp_path: Path) -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = pages * 3 // 2 // 4
    # A file with a hole takes no place on the disk.
    np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.dtype("<i4"), (count,))
    array = mapping.map_array(tmp_path / "large.npy")
    array[count - 1] = 7
    assert array[[0, count // 2, count - 1]].tolist() == [0, 0, 7]


def test_degrees_of_a_mapped_graph_are_counted_where_they_are_asked_for(tmp_path: Path) -> None:
    data = family(300)
    data.save(tmp_path)
    graph = load(tmp_path).graph
    some = torch.tensor([0, 299, 17])
    assert torch.equal(graph.degree_of(some), data.graph.degree[some])
    assert torch.equal(graph.neighbours.degree_of(some), data.graph.neighbours.degree[some])
    assert graph.neighbours.largest_degree == int(data.graph.neighbours.degree.max())
    queries = torch.tensor([[5, 0], [250, 13]])
    for method in ("push", "chebyshev"):
        sampler = PPRSampler(max_entities=50, method=method)  # type: ignore[arg-type]
        here, there = (sampler.sample(g, queries) for g in (graph, data.graph))
        for name, tensor in vars(there).items():
            assert torch.equal(getattr(here, name), tensor), name
        # Neither the degrees of all entities nor the adjacency matrix were made for a push.
        made = {"degree"} & (set(vars(graph)) | set(vars(graph.neighbours)))
        assert bool(made) == (method == "chebyshev")
    fresh = load(tmp_path).graph
    PPRSampler(max_entities=50).chosen_method(fresh, 50)
    predictor = Predictor(PredictorConfig(num_layers=2, dim=8), fresh.num_relations)
    for transition in ("walk", "paper"):
        push = PPRSampler(max_entities=50, method="push", transition=transition)  # type: ignore[arg-type]
        Reasoner(fresh, push, predictor).predict(5, 0, exclude_known=True)
    assert "degree" not in vars(fresh)
    assert "degree" not in vars(fresh.neighbours)
    assert not fresh._normalized


def test_only_a_directory_with_the_marker_is_a_saved_graph(tmp_path: Path) -> None:
    assert not is_saved_graph(tmp_path)
    (tmp_path / "graph.json").write_text("{}")
    assert not is_saved_graph(tmp_path)
    small().save(tmp_path / "saved")
    assert is_saved_graph(tmp_path / "saved")
    check_destination(tmp_path / "saved")
    with pytest.raises(InputError, match="was not written by oneshot"):
        check_destination(tmp_path)


def test_arrays_of_others_are_not_deleted(tmp_path: Path) -> None:
    small().save(tmp_path / "saved")
    np.save(tmp_path / "saved" / "embeddings.npy", np.arange(3))
    with pytest.raises(InputError, match=r"contains 'embeddings\.npy', which was not written"):
        small().save(tmp_path / "saved")
    assert np.load(tmp_path / "saved" / "embeddings.npy").tolist() == [0, 1, 2]


def test_a_name_that_is_not_text_can_be_saved(tmp_path: Path) -> None:
    data = small()
    Dataset("bad\udcff.tsv", data.graph, data.valid, data.test).save(tmp_path)
    assert load(tmp_path).name == "bad\udcff.tsv"


def sealed_again(path: Path) -> Path:
    """A saved graph whose checksums fit its files: what is wrong is noticed by looking at it."""
    meta = json.loads((path / MARKER).read_text())
    names = ("fingerprint", "largest_degree", "splits", "about")
    write_marker(path, *(meta[name] for name in names))
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    small().save(tmp_path / "saved")
    return tmp_path / "saved"


ARRAYS = sorted(
    ["facts", "valid", "test"]
    + [f"edges_{name}" for name in ("indptr", "source", "relation", "fact")]
    + [f"neighbours_{name}" for name in ("indptr", "index", "pair")]
    + [f"components_{name}" for name in ("component", "order", "first", "volume")]
    + [f"answers_{name}" for name in ("first", "relation", "count", "start", "entity")]
    + ["answers_entity_count"]
    + [f"relations_{name}" for name in relation_graph.ARRAYS]
    + [
        f"{kind}_{name}"
        for kind in ("entity", "relation")
        for name in ("blob", "offsets", "hashes", "hash_ids")
    ]
)


def test_a_graph_saved_without_components_opens_and_finds_them(tmp_path: Path) -> None:
    data = family(150)
    data.save(tmp_path)
    indexed = load(tmp_path).graph.components
    for file in tmp_path.glob("components_*.npy"):
        file.unlink()
    older = load(sealed_again(tmp_path))
    assert "components" not in vars(older.graph)
    for name in ("component", "order", "first", "volume"):
        assert torch.equal(getattr(older.graph.components, name), getattr(indexed, name))
        assert torch.equal(getattr(data.graph.components, name), getattr(indexed, name))
    verify_graph(tmp_path)
    assert_equal_data(data, older)


def test_the_measured_recall_of_the_push_is_kept(tmp_path: Path) -> None:
    small().save(tmp_path)
    assert load(tmp_path).graph.push_recall is None
    storage.note_push_recall(tmp_path, 0.96)
    assert load(tmp_path).graph.push_recall == 0.96
    verify_graph(tmp_path)


@pytest.mark.parametrize("kind", ["hiding", "live", "host"])
def test_a_view_is_saved_with_its_own_facts(kind: str, tmp_path: Path) -> None:
    graph = family(100).graph
    if kind == "live":
        live = LiveGraph(graph)
        live.add([("somebody new", graph.relations[0], graph.entities[3])])
        view: KnowledgeGraph = live.graph()
    elif kind == "hiding":
        view = graph.hiding(torch.arange(40))
    else:
        view = HostGraph(graph.hiding(torch.arange(40)), torch.device("cpu"))
    save_graph(tmp_path / "graph", view, {}, {})
    verify_graph(tmp_path / "graph")
    found = open_graph(tmp_path / "graph")[0]
    assert found.fingerprint == view.fingerprint
    assert (found.num_facts, found.num_entities) == (view.num_facts, view.num_entities)
    every = torch.arange(2 * view.num_relations)
    assert torch.equal(found.relation_graph.rows(every), view.relation_graph.rows(every))


def npy(array: np.ndarray, **options: bool) -> bytes:
    target = io.BytesIO()
    np.save(target, array, **options)
    return target.getvalue()


def test_the_files_are_those_that_are_broken_below(saved: Path) -> None:
    assert sorted(file.stem for file in saved.glob("*.npy")) == ARRAYS


@pytest.mark.parametrize("name", ARRAYS)
def test_a_broken_array_is_an_error(saved: Path, name: str) -> None:
    file = saved / f"{name}.npy"
    whole = file.read_bytes()
    zipped = io.BytesIO()
    np.savez(zipped, np.arange(3))
    broken = {
        "empty": b"",
        "cut": whole[:-1] if name != "test" else whole[:-40],
        "header cut": whole[:50],
        "garbage": b"\0\xff" * 100,
        "floats": npy(np.zeros(3)),
        "number": npy(np.array(3)),
        "cube": npy(np.zeros((2, 2, 2), int)),
        "pickle": npy(np.array([None]), allow_pickle=True),
        "archive": zipped.getvalue(),
        "header": whole.replace(b"descr", b"des(r"),
        "dtype": whole.replace(b"'<", b"'?", 1) if b"'<" in whole else b"x",
    }
    for content in broken.values():
        file.write_bytes(content)
        with pytest.raises(InputError, match="not a whole saved graph"):
            load(sealed_again(saved))
    file.unlink()
    with pytest.raises(InputError, match=rf"not a whole saved graph.*{name}"):
        load(sealed_again(saved))


@pytest.mark.parametrize("name", ARRAYS)
def test_one_changed_bit_is_noticed(
    saved: Path, name: str, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved / f"{name}.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match=rf"{name}\.npy was changed or damaged: wrong checksum"):
        load(saved)
    # A large graph is not read as a whole when it is opened: only when that is asked for.
    monkeypatch.setattr(storage, "CHECKED_BYTES", 0)
    if name == "edges_source":
        load(saved)
    with pytest.raises(InputError, match=rf"{name}\.npy was changed or damaged"):
        verify_graph(saved)
    refused = run("data", saved, "--verify")
    assert refused.code == 2
    assert f"{name}.npy was changed or damaged" in refused.err
    file.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=rf"{name}\.npy has .* bytes instead of"):
        load(saved)
    file.write_bytes(whole)
    assert run("data", saved, "--verify", "--json").json["verified"]


def test_every_file_has_a_checksum_and_the_marker_too(saved: Path, run: Command) -> None:
    meta = json.loads((saved / MARKER).read_text())
    assert set(meta["files"]) == {f"{name}.npy" for name in ARRAYS}
    (saved / MARKER).write_text(json.dumps(meta | {"fingerprint": "0" * 32}))
    with pytest.raises(InputError, match=f"{MARKER} was changed or damaged"):
        load(saved)
    (saved / MARKER).write_text(json.dumps(meta))
    verify_graph(saved)
    (saved / MARKER).write_text(json.dumps({k: meta[k] for k in meta if k != "files"}))
    with pytest.raises(InputError, match="not a whole saved graph"):
        load(saved)
    none = run("data", "world", "--verify")
    assert none.code == 2
    assert "--verify needs one" in none.err


@pytest.mark.parametrize("name", [name for name in ARRAYS if name not in ("valid", "test")])
def test_arrays_of_another_graph_are_noticed(saved: Path, tmp_path: Path, name: str) -> None:
    family(150).save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / f"{name}.npy", saved)
    with pytest.raises(InputError, match="do not fit each other"):
        load(sealed_again(saved))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a whole saved graph"),
        ("{", "not a whole saved graph"),
        ("[]", "not a whole saved graph"),
        ("3", "not a whole saved graph"),
        ('"format"', "not a whole saved graph"),
        ("{}", "not a whole saved graph"),
        ('{"format": 99}', "saved in format 99, this version reads up to 2; save it again"),
    ],
)
def test_a_broken_marker_is_an_error(saved: Path, content: str, message: str) -> None:
    (saved / MARKER).write_text(content)
    with pytest.raises(InputError, match=message):
        load(saved)


@pytest.mark.parametrize("key", ["name", "duplicates", "notes", "rules"])
def test_missing_remarks_are_an_error(saved: Path, key: str) -> None:
    meta = json.loads((saved / MARKER).read_text())
    del meta["about"][key]
    (saved / MARKER).write_text(json.dumps(meta))
    with pytest.raises(InputError, match=f"incomplete or damaged saved data set .*{key}"):
        load(sealed_again(saved))


def test_a_changed_header_is_read_or_refused(saved: Path) -> None:
    outcomes = set()

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(ARRAYS), st.integers(0, 127), st.integers(0, 255))
    def check(name: str, place: int, byte: int) -> None:
        file = saved / f"{name}.npy"
        whole = file.read_bytes()
        file.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        try:
            outcomes.add(type(load(sealed_again(saved))))
        except InputError:
            outcomes.add(InputError)
        finally:
            file.write_bytes(whole)

    check()
    assert InputError in outcomes
    assert outcomes <= {Dataset, InputError}
