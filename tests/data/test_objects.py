"""Tests of objects: from the structures of other packages to a data set, and back."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.samples import chain_world, tiny_predictor

import oneshot
from oneshot.data.dataset import SPLITS, Dataset
from oneshot.data.load import load
from oneshot.data.objects import read_known
from oneshot.errors import InputError, MissingPackageError, UnknownNameError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler

PAGE = Path(__file__).resolve().parents[2] / "docs" / "objects.md"

Fact = tuple[str, str, str]
FACTS: list[Fact] = [
    ("ann", "knows", "bob"),
    ("bob", "knows", "eve"),
    ("eve", "likes", "eve"),
    ("bob", "likes", "joe"),
    ("joe", "knows", "ann"),
    ("eve", "knows", "ann"),
]
COLUMNS = [list(column) for column in zip(*FACTS, strict=True)]
TABLE = dict(zip(("head", "relation", "tail"), COLUMNS, strict=True))


def by_name(data: Dataset, facts: torch.Tensor) -> list[Fact]:
    entities, relations = data.entities, data.relations
    return [(entities[h], relations[r], entities[t]) for h, r, t in facts.tolist()]


def splits_of(data: Dataset) -> dict[str, list[Fact]]:
    return {split: sorted(by_name(data, data.facts(split))) for split in SPLITS}


def package(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


# From an object -----------------------------------------------------------------------------------


class Stream:
    """An object of an unknown package that offers its rows as an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self._table.__arrow_c_stream__(schema)


class OldRelation:
    """A relation of DuckDB before it had `__arrow_c_stream__`."""

    def to_arrow_table(self) -> pa.Table:
        return pa.table(TABLE)


def pandas_frame() -> Any:
    return package("pandas").DataFrame(TABLE)


def pandas_categories() -> Any:
    return pandas_frame().astype("category")


def pandas_other_order() -> Any:
    frame = pandas_frame()[["tail", "head", "relation"]]
    return frame.rename(columns={"tail": "Object", "head": "Subject", "relation": "predicate"})


def pandas_without_names() -> Any:
    return package("pandas").DataFrame(FACTS)


def pandas_more_columns() -> Any:
    frame = pandas_frame().rename(columns={"head": "source", "relation": "type", "tail": "target"})
    frame.insert(0, "weight", 1.5)
    return frame


def polars_frame() -> Any:
    return package("polars").DataFrame(TABLE)


def polars_lazy() -> Any:
    polars = package("polars")
    return polars.DataFrame(TABLE).lazy().with_columns(polars.col("head").cast(polars.Categorical))


def duckdb_relation() -> Any:
    duckdb = package("duckdb")
    rows = ", ".join(str(fact) for fact in FACTS)
    return duckdb.sql(f"SELECT * FROM (VALUES {rows}) AS facts(h, r, t)")


def networkx_keys() -> Any:
    graph = package("networkx").MultiDiGraph()
    for head, relation, tail in FACTS:
        graph.add_edge(head, tail, key=relation)
    return graph


def networkx_attributes() -> Any:
    graph = package("networkx").MultiDiGraph()
    for number, (head, relation, tail) in enumerate(FACTS):
        graph.add_edge(head, tail, **{"label" if number % 2 else "relation": relation})
    return graph


def networkx_simple() -> Any:
    graph = package("networkx").DiGraph()
    for head, relation, tail in FACTS:
        graph.add_edge(head, tail, relation=relation)
    return graph


def rdflib_graph() -> Any:
    rdflib = package("rdflib")
    graph = rdflib.Graph()
    for fact in FACTS:
        graph.add(tuple(rdflib.URIRef(name) for name in fact))
    graph.add((rdflib.URIRef("ann"), rdflib.URIRef("age"), rdflib.Literal(7)))
    return graph


def rdflib_dataset() -> Any:
    rdflib = package("rdflib")
    every = rdflib.Dataset()
    for number, fact in enumerate(FACTS):
        place = every.graph(rdflib.URIRef(f"graph:{number % 2}"))
        place.add(tuple(rdflib.URIRef(name) for name in fact))
    return every


def pyg_named() -> Any:
    package("torch_geometric")
    from torch_geometric.data import HeteroData

    data, people = HeteroData(), ["ann", "bob", "eve", "joe"]
    data["person"].name = people
    for relation in ("knows", "likes"):
        ends = [(people.index(h), people.index(t)) for h, r, t in FACTS if r == relation]
        data["person", relation, "person"].edge_index = torch.tensor(ends).T
    return data


NAMED: list[Callable[[], Any]] = [
    pandas_frame,
    pandas_categories,
    pandas_other_order,
    pandas_without_names,
    pandas_more_columns,
    polars_frame,
    polars_lazy,
    duckdb_relation,
    networkx_keys,
    networkx_attributes,
    networkx_simple,
    rdflib_graph,
    rdflib_dataset,
    pyg_named,
    lambda: pa.table(TABLE),
    lambda: pa.table(TABLE).to_batches()[0],
    lambda: pa.table(dict(zip("hrt", COLUMNS, strict=True))),
    lambda: Stream(pa.table(TABLE)),
    OldRelation,
    lambda: FACTS,
    lambda: (list(fact) for fact in FACTS),
    lambda: set(FACTS),
    lambda: [dict(zip(TABLE, fact, strict=True)) for fact in FACTS],
    lambda: TABLE,
    lambda: np.array(FACTS),
    lambda: np.array(FACTS, object),
]


@pytest.mark.parametrize("make", NAMED, ids=lambda make: make.__name__)
def test_from_an_object_to_a_prediction(make: Callable[[], Any]) -> None:
    data = load(make())
    assert list(data.entities) == ["ann", "bob", "eve", "joe"]
    assert list(data.relations) == ["knows", "likes"]
    assert sorted(by_name(data, data.known)) == sorted(FACTS)
    assert any("split at random with seed 0" in note for note in data.notes)
    assert data.graph.origin is None
    predictor = tiny_predictor(num_relations=2).float()
    found = Reasoner(data.graph, PPRSampler(1.0), predictor).predict("ann", "knows")
    assert {answer.entity for answer in found} <= {"bob", "eve", "joe"}
    assert len(found) > 0


def test_the_split_of_an_object_is_that_of_a_file(tmp_path: Path) -> None:
    facts = [(f"e{n % 17}", f"r{n % 3}", f"e{n * 5 % 17}") for n in range(60)]
    (tmp_path / "facts.tsv").write_text("".join("\t".join(fact) + "\n" for fact in facts))
    for seed in (0, 3):
        file = load(tmp_path / "facts.tsv", seed=seed, test_share=0.2)
        found = load(facts, seed=seed, test_share=0.2)
        assert splits_of(found) == splits_of(file)
        assert found.graph.fingerprint == file.graph.fingerprint
        assert (found.duplicates, found.notes) == (file.duplicates, file.notes)
    assert splits_of(load(facts, seed=0)) != splits_of(load(facts, seed=3))


def test_a_dict_of_splits_may_mix_objects() -> None:
    pandas = package("pandas")
    source = {
        "train": pandas.DataFrame(FACTS[:4]),
        "validation": FACTS[4:5],
        "test": pa.table({"s": ["new"], "p": ["knows"], "o": ["ann"]}),
    }
    data = load(source)
    assert (data.name, list(data.notes)) == ("dict", [])
    assert by_name(data, data.train) == FACTS[:4]
    assert by_name(data, data.valid) == FACTS[4:5]
    assert by_name(data, data.test) == [("new", "knows", "ann")]
    assert data.unseen_entities == 1
    assert sorted(by_name(load({"train": FACTS}), load({"train": FACTS}).known)) == sorted(FACTS)


def test_integers_in_tables_are_names_in_the_order_of_their_values() -> None:
    rows = [(number, number % 11, (number + 1) % 30) for number in range(30)]
    data = load(rows, valid_share=0, test_share=0)
    assert list(data.entities) == [str(number) for number in range(30)]
    assert list(data.relations) == [str(number) for number in range(11)]
    assert data.train.tolist() == [list(row) for row in rows]  # each its own id
    sparse = load([(10**12, "r", 5), (5, "r", -3)])
    assert list(sparse.entities) == ["-3", "5", "1000000000000"]
    mixed = load({"train": FACTS, "valid": [(7, "knows", 8)], "test": FACTS[:1]})
    assert "7" in mixed.entities
    large = pa.table({"h": pa.array([2**64 - 1], pa.uint64()), "r": ["r"], "t": ["x"]})
    assert f"{2**64 - 1}" in load(large).entities


def test_arrays_of_integers_are_ids() -> None:
    facts = np.array([[0, 0, 2], [2, 1, 4], [4, 0, 0]], np.int32)
    for source in (facts, torch.from_numpy(facts)):
        data = load(source, valid_share=0, test_share=0)
        assert data.train.tolist() == facts.tolist()
        assert list(data.entities) == ["0", "1", "2", "3", "4"]
    ends, label = torch.tensor([[0, 2, 4], [2, 4, 0]]), torch.tensor([0, 1, 0])
    for pair in ((ends, label), (ends.numpy(), label.numpy())):
        assert load(pair, valid_share=0, test_share=0).train.tolist() == facts.tolist()
    splits = {"train": (ends, label), "valid": facts[:1] + 5, "test": facts[1:]}
    assert len(load(splits).entities) == 8


def test_a_column_gives_the_splits() -> None:
    pandas = package("pandas")
    frame = pandas.DataFrame(TABLE)
    frame["split"] = ["train", "train", "train", "val", "Test", "test"]
    for source in (frame, frame.astype({"split": "category"}), pa.table(frame)):
        data = load(source)
        assert by_name(data, data.train) == FACTS[:3]
        assert by_name(data, data.valid) == FACTS[3:4]
        assert by_name(data, data.test) == FACTS[4:]
    frame["split"] = "train"
    assert "split at random with seed 0" in load(frame).notes[0]


# networkx, rdflib and PyG -------------------------------------------------------------------------


def test_networkx_nodes_without_edges_and_undirected_edges() -> None:
    networkx = package("networkx")
    graph = networkx.Graph()
    graph.add_edge(1, 2, relation="near")
    graph.add_edge(2, 10, relation="near")
    graph.add_node(3)
    data = load(graph, valid_share=0, test_share=0)
    assert list(data.entities) == ["1", "2", "3", "10"]
    assert by_name(data, data.train) == [("1", "near", "2"), ("2", "near", "10")]
    graph.add_edge("1", 2, relation="near")
    with pytest.raises(InputError, match="two nodes have the same name as text"):
        load(graph)


def test_networkx_edges_need_relations() -> None:
    networkx = package("networkx")
    graph = networkx.MultiDiGraph([("a", "b"), ("b", "c")])
    with pytest.raises(InputError, match=r"the edge from 'a' to 'b' has no relation; set its"):
        load(graph)
    graph = networkx.DiGraph()
    graph.add_edge("a", "b", relation=float("nan"))
    with pytest.raises(InputError, match=r"the edge from 'a' to 'b' has no relation"):
        load(graph)
    graph.add_edge("a", "b", relation="r", split="train")
    graph.add_edge("b", "a", relation="r")
    with pytest.raises(InputError, match="'split' has the value None, expected train, valid or"):
        load(graph)


def test_rdf_literals_and_blank_nodes() -> None:
    rdflib = package("rdflib")
    graph = rdflib.Graph()
    knows = rdflib.URIRef("http://x/knows")
    graph.add((rdflib.URIRef("http://x/a"), knows, rdflib.BNode("b1")))
    graph.add((rdflib.URIRef("http://x/a"), knows, rdflib.Literal("b")))
    data = load(graph)
    assert list(data.entities) == ["_:b1", "http://x/a"]
    assert data.notes[0] == "Graph: skipped 1 facts with a literal value"
    graph.remove((None, None, rdflib.BNode("b1")))
    with pytest.raises(InputError, match="Graph: there are no facts between resources in it"):
        load(graph)


def test_edge_types_of_pyg_are_relations() -> None:
    package("torch_geometric")
    from torch_geometric.data import HeteroData
    from torch_geometric.transforms import ToUndirected

    data = HeteroData()
    data["user"].x = torch.zeros(4, 1)
    data["user", "likes", "film"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 1]])
    data["user", "to", "user"].edge_index = torch.tensor([[0], [1]])
    data["film", "to", "user"].edge_index = torch.tensor([[1], [2]])
    found = load(data, valid_share=0, test_share=0)
    users = [f"user/{number}" for number in range(4)]  # the last one has no edge
    assert list(found.entities) == ["film/0", "film/1", *users]
    assert list(found.relations) == ["film/to/user", "likes", "user/to/user"]
    expected = {("user/0", "likes", "film/0"), ("film/1", "film/to/user", "user/2")}
    assert expected < set(by_name(found, found.train))
    assert len(found.train) == 5
    del data["user", "to", "user"], data["film", "to", "user"]
    both = ToUndirected()(data)
    assert ("film", "rev_likes", "user") in both.edge_types
    again = load(both, valid_share=0, test_share=0)
    assert list(again.relations) == ["likes"]
    assert "skipped the edge type 'rev_likes'" in again.notes[0]
    data["film"].name = ["user/0", "Up"]
    with pytest.raises(InputError, match="two nodes have the same name"):
        load(data)
    data["film"].name = ["Up"]
    with pytest.raises(InputError, match="'likes' has an end that is not a node"):
        load(data)


def test_splits_of_pyg() -> None:
    package("torch_geometric")
    from torch_geometric.data import Data

    ends, label = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), torch.tensor([0, 1, 0, 1])
    data = Data(edge_index=ends, edge_type=label, num_nodes=6)
    assert len(load(data).entities) == 6
    masks = torch.eye(3, dtype=torch.bool)[torch.tensor([0, 0, 1, 2])].T
    data.train_mask, data.val_mask, data.test_mask = masks
    found = load(data)
    assert found.train.tolist() == [[0, 0, 1], [1, 1, 2]]
    assert (found.valid.tolist(), found.test.tolist()) == ([[2, 0, 3]], [[3, 1, 0]])
    data.test_mask = masks[0]
    with pytest.raises(InputError, match="Data, fact 1: must be in one of train_mask"):
        load(data)
    parts = {f"{s}_edge_index": ends[:, n : n + 2] for n, s in enumerate(SPLITS)}
    parts |= {f"{s}_edge_type": label[n : n + 2] for n, s in enumerate(SPLITS)}
    found = load(Data(num_nodes=4, **parts))  # as in RelLinkPredDataset
    assert found.valid.tolist() == [[1, 1, 2], [2, 0, 3]]
    del parts["valid_edge_type"]
    with pytest.raises(InputError, match="Data: no valid split"):
        load(Data(num_nodes=4, **parts))
    with pytest.raises(InputError, match=r"Data: expected edge_index \[2, n\] and edge_type"):
        load(Data(edge_index=ends))


# Bad input ----------------------------------------------------------------------------------------

WRONG: list[tuple[Any, str]] = [
    (pa.table({"a": ["x"], "b": ["y"]}), "Table: expected the columns head, relation, tail, found"),
    (pa.table({}), "expected the columns head, relation, tail, found none"),
    (
        pa.table({"id": ["1"], "head": ["x"], "rel_name": ["y"], "tail": ["z"]}),
        "found id, head, rel_name, tail; rename the columns, or select these three",
    ),
    (pa.table({"object": ["1"], "x": ["x"], "y": ["y"]}), "rename the columns"),
    (pa.table({"h": ["a", None], "r": ["r", "r"], "t": ["b", "c"]}), "fact 2: the head is missing"),
    (pa.table({"h": [1.0, float("nan")], "r": ["r"] * 2, "t": ["b"] * 2}), "fact 2: the head is"),
    (pa.table({"h": [1.5], "r": ["r"], "t": ["b"]}), "the head has the type double, but names are"),
    (pa.table({"h": ["a"], "r": [True], "t": ["b"]}), "the relation has the type bool"),
    (pa.table({"h": ["a"], "r": ["r"], "t": [["b"]]}), "the tail has the type list"),
    (pa.table({"h": ["a"], "r": ["r"], "t": [""]}), "Table, fact 1: the tail is an empty string"),
    (
        pa.table({"h": ["a"], "r": ["r"], "t": ["b"], "split": ["dev"]}),
        "'split' has the value 'dev'",
    ),
    (pa.table({"h": ["a"], "r": ["r"], "t": ["b"], "split": ["test"]}), "Table: no train split"),
    (pa.table({"h": [], "r": [], "t": []}), "Table: there are no facts in it"),
    ([], "list: there are no facts in it"),
    ({"train": [], "valid": FACTS, "test": FACTS}, r"train \(list\): there are no facts in it"),
    ({"train": FACTS, "test": FACTS}, "dict: no valid split; add its facts, or give all facts as"),
    (
        {"train": FACTS, "other": FACTS},
        "expected a dict with the keys train, valid and test, found",
    ),
    ({"valid": FACTS, "val": FACTS}, "expected a dict with the keys train, valid and test, found"),
    ({}, "dict: no train split"),
    ({"train": {"train": FACTS}}, "a split must not be a dict of splits"),
    ({"h": ["a"], "r": ["r"], "t": []}, "dict: the columns differ in length"),
    ([("a", "r")], r"list, fact 1: expected \(head, relation, tail\), found \('a', 'r'\)"),
    ([("a", "r", "b"), ("a", "r", "b", 1)], "list, fact 2: expected"),
    ([FACTS[0], dict(zip(TABLE, FACTS[0], strict=True))], "list, fact 2: expected"),
    ([dict(zip(TABLE, FACTS[0], strict=True)), {"head": "a"}], "fact 2: the relation is missing"),
    ({"h": "a", "r": "r", "t": "b"}, "dict: 'h' must be a list of names, not 'a'"),
    ({"h": ["a"], "r": 1, "t": ["b"]}, "dict: 'r' must be a list of names, not 1"),
    (["abc"], "list, fact 1: expected .* found 'abc'"),
    ([1, 2, 3], "list, fact 1: expected .* found 1"),
    ([("a", "r", None)], "list, fact 1: the tail is missing"),
    ([("a", "r", 1), ("a", "r", "b")], "list: the tail is not a column of names .* convert it"),
    ([("a", "r", "\ud800")], "list: the tail is not a column of names"),
    ([("a", "r", object())], "list: the tail is not a column of names"),
    ([("a", "r", "b"), ("a", "r⁻¹", "b")], "the relation 'r⁻¹' has the name of the inverse"),
    (np.zeros((3, 2), np.int64), r"ndarray: expected facts of shape \[n, 3\], found \[3, 2\]"),
    (np.zeros((2, 3)), "ndarray: the head has the type double"),
    (np.array([[0, 0, -1]]), "ndarray: fact 1 has entity id -1"),
    (np.array([[0, 0, 10**9]]), "entity id 1000000000 is too large for 1 facts"),
    ((np.zeros((2, 3), int), np.zeros(2, int)), r"expected integers edge_index \[2, n\]"),
    ((np.zeros((2, 3)), np.zeros(3, int)), r"found float64 \[2, 3\] and int64 \[3\]"),
    ({"train": FACTS, "valid": FACTS, "test": np.zeros((1, 3), int)}, "cannot be combined"),
    (None, "cannot load an object of type NoneType; pass a path or a name, a pandas"),
    (b"facts.tsv", "cannot load an object of type bytes"),
    (7, "cannot load an object of type int"),
]


@pytest.mark.parametrize(("source", "message"), WRONG)
def test_bad_objects_are_refused_in_one_line(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(source)
    assert "\n" not in str(caught.value)


def test_bad_frames_are_refused_in_one_line() -> None:
    pandas = package("pandas")
    for frame, message in (
        (pandas.DataFrame(FACTS)[[0, 1]], "DataFrame: expected the columns head, relation, tail"),
        (pandas.DataFrame([("a", "r", float("nan"))]), "DataFrame, fact 1: the tail is missing"),
        (pandas.DataFrame([("a", "r", pandas.NA)]), "DataFrame, fact 1: the tail is missing"),
        (pandas.DataFrame([("a", "r", 1), ("a", "r", "b")]), "convert it to strings"),
        (
            pandas.DataFrame([("a", pandas.Timestamp(0), "b")]),
            "the relation has the type timestamp",
        ),
        (pandas.DataFrame(), "found none"),
        (pandas.DataFrame(columns=["h", "r", "t"]), "DataFrame: there are no facts in it"),
        (pandas.Series(["a", "b"]), "Series"),
    ):
        with pytest.raises(InputError, match=message):
            load(frame)


# And back -----------------------------------------------------------------------------------------


def odd_world() -> Dataset:
    """A data set with an entity without facts, a fact in two splits, and names that need care."""
    entities = ["a", "b", "<b>", "x y", "alone", "é\n"]
    facts = [[0, 0, 1], [1, 1, 2], [2, 0, 3], [3, 1, 0], [0, 1, 1], [5, 0, 5]]
    graph = KnowledgeGraph.from_facts(facts, entities, ["r", "r & s"])
    return Dataset("odd", graph, torch.tensor([[0, 0, 3], [0, 0, 1]]), torch.tensor([[1, 0, 3]]))


@pytest.mark.parametrize("make", [odd_world, lambda: load("umls"), chain_world])
@pytest.mark.parametrize("structure", ["pandas", "polars", "networkx", "pyg"])
def test_round_trip(make: Callable[[], Dataset], structure: str) -> None:
    package({"pyg": "torch_geometric"}.get(structure, structure))
    data = make()
    if structure == "polars":
        package("pandas")
        found: Any = package("polars").from_pandas(data.to_pandas())
    else:
        found = getattr(data, f"to_{structure}")()
    again = load(found)
    assert splits_of(again) == splits_of(data)
    assert set(again.relations) == set(data.relations)
    lost = {"alone"} if structure in ("pandas", "polars") else set()
    assert set(again.entities) == set(data.entities) - lost
    if structure == "pyg":  # the ids as well
        assert again.graph.fingerprint == data.graph.fingerprint


@pytest.mark.parametrize("structure", ["pandas", "networkx", "pyg"])
def test_weights_survive_a_round_trip(structure: str) -> None:
    package({"pyg": "torch_geometric"}.get(structure, structure))
    plain = odd_world()
    weights = [0.5, 2.0, 1.0, 0.25, 3.0, 1.5]
    names = plain.entities, plain.relations
    graph = KnowledgeGraph.from_facts(plain.graph.facts, *names, weights)
    data = Dataset("odd", graph, plain.valid, plain.test)
    found = getattr(data, f"to_{structure}")()
    again = load(found, weights="edge_weight" if structure == "pyg" else "weight")
    assert splits_of(again) == splits_of(data)

    def table(one: Dataset) -> dict[tuple[str, ...], float]:
        assert one.graph.weights is not None
        facts = zip(one.train.tolist(), one.graph.weights.tolist(), strict=True)
        return {
            (one.entities[h], one.relations[r], one.entities[t]): weight
            for (h, r, t), weight in facts
        }

    assert table(again) == table(data)
    assert load(found).graph.weights is None  # nothing is a weight without the option
    if structure == "pandas":
        assert found["weight"].tolist() == [*weights, 1, 1, 1]
        assert "weight" not in plain.to_pandas()
    elif structure == "pyg":
        assert "edge_weight" not in plain.to_pyg()
    else:
        edges = plain.to_networkx().edges(data=True)
        assert not any("weight" in about for _, _, about in edges)


def test_no_package_is_imported_for_other_objects() -> None:
    code = (
        "import sys, oneshot; oneshot.load([('a', 'r', 'b')]); "
        "print({'networkx', 'polars', 'rdflib', 'torch_geometric', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_a_data_set_is_loaded_as_itself() -> None:
    data = odd_world()
    assert load(data) is data


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "networkx", "torch_geometric.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=r"to_pandas needs .*: pip install pandas$"):
        odd_world().to_pandas()
    with pytest.raises(MissingPackageError, match=r"to_networkx needs .*\[peers\]"):
        odd_world().to_networkx()
    with pytest.raises(MissingPackageError, match=r"to_pyg needs .*\[peers\]"):
        odd_world().to_pyg()


def test_facts_of_an_object_by_given_names() -> None:
    data = load(FACTS)
    facts, entities = read_known(FACTS[2:], data.entities, data.relations)
    assert by_name(data, torch.from_numpy(facts)) == FACTS[2:]
    assert entities == data.entities
    facts, entities = read_known([("joe", "knows", "new"), ("aa", "likes", "new")], *names_of(data))
    assert list(entities) == [*data.entities, "aa", "new"]
    assert facts.tolist() == [[3, 0, 5], [4, 1, 5]]
    with pytest.raises(UnknownNameError, match="list, fact 1: unknown relation 'know'; did you"):
        read_known([("joe", "know", "ann")], *names_of(data))
    with pytest.raises(InputError, match="ndarray: fact 1 has entity id 9"):
        read_known(np.array([[9, 0, 0]]), *names_of(data))


def names_of(data: Dataset) -> tuple[Vocabulary, Vocabulary]:
    return data.entities, data.relations


def test_a_data_set_in_a_notebook() -> None:
    shown = odd_world()._repr_html_()
    assert "<b>odd</b>" in shown
    assert "&lt;b&gt;" in shown
    assert "r &amp; s" in shown
    assert len(shown) < 3000


def test_a_run_of_an_object_contains_its_graph(tmp_path: Path) -> None:
    data = load(FACTS)
    predictor = tiny_predictor(num_relations=2).float()
    reasoner = Reasoner(data.graph, PPRSampler(1.0), predictor)
    reasoner.save(tmp_path / "run")
    again = Reasoner.load(tmp_path / "run")
    found = [answer.entity for answer in again.predict("ann", "knows")]
    assert found == [answer.entity for answer in reasoner.predict("ann", "knows")]


# The page -----------------------------------------------------------------------------------------


def test_the_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "networkx"):
        package(name)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 6
    found: dict[str, Any] = {}
    for block in blocks[:-1]:
        exec(compile(block, "docs/objects.md", "exec"), found)
        assert isinstance(found["data"], oneshot.Dataset)
    assert splits_of(found["same"]) == splits_of(load("umls"))
    frame = found["frame"]
    is_shown = (frame.split != "test") | (frame.groupby("split").cumcount() < 50)
    found["frame"] = frame[is_shown]  # so that it takes less time
    assert "minutes=5" in blocks[-1]
    short = blocks[-1].replace("minutes=5", "minutes=0.02")
    exec(compile(short, "docs/objects.md", "exec"), found)
    assert found["predictor"].reasoner_.calibration is not None
