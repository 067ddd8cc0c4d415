"""Objects: facts in the data structures of other packages, read by `load` and made by a `Dataset`.

A structure is one reader and its line in `READERS`. Objects are recognized by the names of their
classes, so that no package is imported before one of its objects is there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.config import shown
from oneshot.data.dataset import SPLITS, Dataset
from oneshot.data.encode import arrow_names, look_up, numbered, vocabulary_of
from oneshot.data.formats import FACT_COLUMNS, RawFacts
from oneshot.data.formats.base import as_weights, fact_columns, header_order
from oneshot.errors import InputError, require
from oneshot.graph.vocabulary import Vocabulary

# Names of splits in dictionaries, columns and attributes, and their places in `SPLITS`.
_SPLIT_NAMES = {"train": 0, "training": 0, "valid": 1, "validation": 1, "val": 1, "test": 2}
_RELATION_ATTRIBUTES = ("relation", "label")  # of the edges of a networkx graph
_NAME_ATTRIBUTES = ("name", "names")  # of the nodes of a PyG graph
_MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}  # of PyG
# Names of the weights of facts in data frames and networkx graphs, and in PyG graphs.
_WEIGHT, _EDGE_WEIGHT = "weight", "edge_weight"
_ACCEPTED = (
    "a path or a name, a pandas or polars DataFrame, an Arrow table, triples (head, relation, "
    "tail), a dict of splits, a networkx, rdflib or PyG graph, or (edge_index, edge_type)"
)


@dataclass(frozen=True)
class ObjectFacts:
    """The facts of one object, before ids are assigned.

    `columns`: head, relation, tail; each a pyarrow chunked array [n] of strings or integers, which
    are names, or, if `are_ids`, an integer array [n].
    `splits`: the place in `SPLITS` of each fact, int64 [n]; None if the object has no splits.
    `nodes`: names of entities, some of which may have no facts, pyarrow [m]; None if unknown.
    `entities`, `relations`: the names of ids, if they are known.
    `notes`: remarks for the user. `weights`: of the facts, as a pyarrow or numpy array [n].
    """

    columns: Sequence[Any]
    are_ids: bool = False
    splits: NDArray[np.int64] | None = None
    nodes: Any = None
    entities: Vocabulary | None = None
    relations: Vocabulary | None = None
    notes: list[str] = field(default_factory=list)
    weights: Any = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def some(self, mask: NDArray[np.bool_]) -> "ObjectFacts":
        """The facts where `mask` bool [n] is true."""
        import pyarrow as pa

        keep = pa.array(mask)
        columns = [c[mask] if self.are_ids else c.filter(keep) for c in self.columns]
        weights = None if self.weights is None else self.weights[mask]
        return replace(self, columns=columns, splits=None, weights=weights)


@dataclass(frozen=True)
class ObjectSource:
    """An object as a source of a data set.

    `splits`: train, valid and test, or a single one that is to be split. `entities`, `relations`:
    the vocabularies if the object determines them.
    """

    name: str
    splits: list[RawFacts]
    entities: Vocabulary | None
    relations: Vocabulary | None


Reader = Callable[[Any, str, str | None], ObjectFacts]
"""Reads an object. The second value is its description for messages, the third the name of the
column or attribute of weights, or None."""


def read_object(source: object, weights: str | None = None) -> ObjectSource:
    """The facts of an object of a known structure, or of a dictionary of splits.

    `weights`: the name of the column or attribute of their weights, if they are to be read.
    """
    name = type(source).__name__
    if weights is not None:
        fact_columns(weights)  # raises if it is not a possible name
    if isinstance(source, Mapping) and header_order([str(key) for key in source]) is None:
        parts = _read_splits(source, weights)
    else:
        parts = _divided(_read(source, name, weights), name)
    places = [Path(name)] if len(parts) == 1 else [Path(name, split) for split in SPLITS]
    if any(part.are_ids != parts[0].are_ids for part in parts):
        raise InputError(f"{name}: splits of ids cannot be combined with splits of names")
    if parts[0].are_ids:
        entities = _same([part.entities for part in parts], "entities", name)
        relations = _same([part.relations for part in parts], "relations", name)
    else:
        nodes = [part.nodes for part in parts if part.nodes is not None]
        ends = [part.columns[place] for part in parts for place in (0, 2)]
        entities = _vocabulary(ends, nodes, "entity")
        relations = _vocabulary([part.columns[1] for part in parts], [], "relation")
    splits = [_raw(part, place) for part, place in zip(parts, places, strict=True)]
    return ObjectSource(name, splits, entities, relations)


def read_known(
    source: object, entities: Vocabulary, relations: Vocabulary
) -> tuple[NDArray[np.int64], Vocabulary]:
    """The facts of an object as ids of given vocabularies, int64 [n, 3]; its splits are ignored.

    Names of new entities are added: returns the extended vocabulary as well. A new relation is an
    error.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    name = type(source).__name__
    raw = _raw(_read(source, name), Path(name))
    if not raw.are_ids:
        ends = [chunk for place in (0, 2) for chunk in raw.columns[place].chunks]
        names = pc.unique(pa.chunked_array(ends, pa.string()))
        new = names.filter(pa.array(look_up(names, entities) < 0))
        entities = entities.extended(sorted(new.to_pylist()))
    (facts,), *_ = numbered([raw], entities, relations)
    return facts, entities


def _raw(facts: ObjectFacts, place: Path) -> RawFacts:
    """Facts with all names as strings."""
    import pyarrow as pa

    columns, weights = list(facts.columns), facts.weights
    if not facts.are_ids:
        columns = [column.cast(pa.string()) for column in columns]
    return RawFacts(place, columns, are_ids=facts.are_ids, notes=facts.notes, weights=weights)


def _read(source: object, where: str, weights: str | None = None) -> ObjectFacts:
    """The facts of one object, with valid names and, if they are named, weights."""
    facts = _reader_of(source)(source, where, weights)
    if not len(facts):
        raise InputError(f"{where}: there are no facts in it")
    if weights is not None:
        if facts.weights is None:
            raise InputError(
                f"{where}: has no weights; use a table with a column {weights!r}, or (head, "
                "relation, tail, weight)"
            )
        numbers = as_weights(facts.weights, lambda row: f"{where}, fact {row + 1}")
        facts = replace(facts, weights=numbers)
    if facts.are_ids:
        return facts
    labels = tuple(FACT_COLUMNS)
    columns = [_names(c, label, where) for c, label in zip(facts.columns, labels, strict=True)]
    return replace(facts, columns=columns)


def _reader_of(source: object) -> Reader:
    """The reader for an object."""
    for base in type(source).__mro__:
        found = READERS.get((base.__module__.partition(".")[0], base.__name__))
        if found is not None:
            return found
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return _read_arrow
    if hasattr(source, "to_arrow_table"):  # relations of earlier versions of DuckDB
        return lambda found, *others: _read_arrow(found.to_arrow_table(), *others)
    if isinstance(source, Mapping):
        return _read_mapping
    if isinstance(source, tuple) and len(source) == 2 and all(hasattr(x, "shape") for x in source):
        return _read_pair
    if isinstance(source, Iterable) and not isinstance(source, str | bytes):
        return _read_triples
    raise InputError(f"cannot load an object of type {type(source).__name__}; pass {_ACCEPTED}")


# Splits -------------------------------------------------------------------------------------------


def _read_splits(source: Mapping[Any, Any], weights: str | None) -> list[ObjectFacts]:
    """The facts of a dictionary of splits: one part if there is only train, otherwise three."""
    found: dict[int, ObjectFacts] = {}
    for key, value in source.items():
        place = _SPLIT_NAMES.get(str(key).casefold())
        if place is None or place in found:
            keys = ", ".join(map(str, source))
            raise InputError(f"expected a dict with the keys train, valid and test, found {keys}")
        where = f"{SPLITS[place]} ({type(value).__name__})"
        if isinstance(value, Mapping) and header_order([str(name) for name in value]) is None:
            raise InputError(f"{where}: a split must not be a dict of splits")
        found[place] = _read(value, where, weights)
    return _complete(found, "dict")


def _divided(facts: ObjectFacts, where: str) -> list[ObjectFacts]:
    """The splits of one object: one part if all facts are in train, otherwise three."""
    if facts.splits is None:
        return [facts]
    places = np.unique(facts.splits).tolist()
    found = {place: facts.some(facts.splits == place) for place in places}
    return _complete(found, where)


def _complete(found: Mapping[int, ObjectFacts], where: str) -> list[ObjectFacts]:
    """The parts in order; raises unless there is only train, or all three."""
    missing = [split for place, split in enumerate(SPLITS) if place not in found]
    if missing and list(found) != [0]:
        raise InputError(
            f"{where}: no {missing[0]} split; add its facts, or give all facts as train, which is "
            "then split at random"
        )
    return [found[place] for place in sorted(found)]


def _split_numbers(column: Any, where: str) -> NDArray[np.int64]:
    """The places in `SPLITS` of names of splits, pyarrow [n] → int64 [n]."""
    import pyarrow as pa

    encoded = _texts(column).cast(pa.string()).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # earlier versions of pyarrow
        encoded = encoded.chunk(0)
    encoded = encoded.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    places = [_SPLIT_NAMES.get(name.casefold()) for name in names]
    if encoded.null_count or None in places:
        wrong = None if encoded.null_count else names[places.index(None)]
        raise InputError(
            f"{where}: 'split' has the value {wrong!r}, expected train, valid or test; rename or "
            "drop it if it has another meaning"
        )
    numbers: NDArray[np.int64] = np.array(places, np.int64)[np.asarray(encoded.indices)]
    return numbers


def _same(given: list[Vocabulary | None], what: str, where: str) -> Vocabulary | None:
    """The vocabulary that splits of ids have in common; raises if they have different ones."""
    known = [one for one in given if one is not None]
    if any(one != known[0] for one in known):
        raise InputError(f"{where}: the splits have different names of {what}; use the same")
    return known[0] if known else None


# Names --------------------------------------------------------------------------------------------


def _vocabulary(columns: Sequence[Any], nodes: Sequence[Any], kind: str) -> Vocabulary | None:
    """The names in some columns and among nodes; None if sorting the names as text gives it.

    Integers are sorted by value: if they are 0, 1, …, each is its own id.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays = [*columns, *nodes]
    if all(pa.types.is_integer(array.type) for array in arrays):
        values = np.unique(np.concatenate([array.to_numpy() for array in arrays]))
        return vocabulary_of(pa.array(values).cast(pa.string()), kind)
    if not nodes:
        return None
    chunks = [chunk for array in arrays for chunk in array.cast(pa.string()).chunks]
    names = pc.unique(pa.chunked_array(chunks, pa.string()))
    return vocabulary_of(names.take(pc.sort_indices(names)), kind)


def _names(column: Any, label: str, where: str) -> Any:
    """A column as pyarrow chunked array of strings or integers; raises if a name is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = pc.index(pc.is_null(column, nan_is_null=True), True).as_py()
    if missing >= 0:
        raise InputError(
            f"{where}, fact {missing + 1}: the {label} is missing (None or NaN); drop such facts "
            "first"
        )
    try:
        column = _texts(column)
    except pa.ArrowException as error:
        raise InputError(f"{where}: the {label} does not contain names ({error})") from error
    if pa.types.is_integer(column.type):
        # Larger numbers than these are names as text.
        return column.cast(pa.string() if pa.types.is_uint64(column.type) else pa.int64())
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        raise InputError(
            f"{where}: the {label} has the type {column.type}, but names are strings or integers; "
            "convert it to strings"
        )
    empty = pc.index(pc.equal(column, ""), True).as_py()
    if empty >= 0:
        raise InputError(f"{where}, fact {empty + 1}: the {label} is an empty string")
    try:
        column = column.cast(pa.string())
        column.validate(full=True)  # the names must be UTF-8
    except pa.ArrowException as error:
        raise InputError(f"{where}: the {label} does not contain names ({error})") from error
    return column


def _texts(column: Any) -> Any:
    """A column without dictionaries (categories) and views of strings."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string()) if str(column.type) == "string_view" else column


def _chunked(values: Any, label: str, where: str) -> Any:
    """Values as pyarrow chunked array [n]."""
    import pyarrow as pa

    try:
        array = pa.array(values, from_pandas=True)
    # A mixture of types, a number with too many digits, or a string that is not UTF-8.
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{where}: the {label} is not a column of names ({error}); convert it to strings"
        ) from error
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _texts_of(values: Iterable[Any]) -> list[Any]:
    """Values of any types as names: integers if all are, otherwise strings."""
    found = list(values)
    kinds = set(map(type, found))
    return found if kinds <= {int} or kinds <= {str} else [str(value) for value in found]


# Tables -------------------------------------------------------------------------------------------


def _read_pandas(frame: Any, where: str, weights: str | None) -> ObjectFacts:
    labels = [str(name) for name in frame.columns]
    return _from_columns(labels, lambda place: frame.iloc[:, place], where, weights)


def _read_polars(frame: Any, where: str, weights: str | None) -> ObjectFacts:
    frame = frame.collect() if hasattr(frame, "collect") else frame
    # Polars' own types of strings are converted to those that every version of pyarrow reads.
    return _read_arrow(frame.to_arrow(), where, weights)


def _read_arrow(stream: Any, where: str, weights: str | None) -> ObjectFacts:
    import pyarrow as pa

    try:
        table = pa.table(stream)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"{where}: cannot be read as an Arrow table ({error})") from error
    return _from_columns(table.column_names, table.column, where, weights)


def _read_mapping(columns: Mapping[Any, Any], where: str, weights: str | None) -> ObjectFacts:
    for label, column in columns.items():
        if isinstance(column, str | bytes) or not hasattr(column, "__len__"):
            raise InputError(f"{where}: {label!r} must be a list of names, not {shown(column)}")
    if len({len(column) for column in columns.values()}) > 1:
        raise InputError(f"{where}: the columns differ in length")
    values = list(columns.values())
    labels = [str(name) for name in columns]
    return _from_columns(labels, lambda place: values[place], where, weights)


def _from_columns(
    labels: list[str], column: Callable[[int], Any], where: str, weights: str | None
) -> ObjectFacts:
    """The facts of a table; `column(place)` gives one of its columns, named `labels[place]`."""
    import pyarrow as pa

    def converted(place: int) -> Any:
        values = column(place)
        if isinstance(values, pa.ChunkedArray):
            return values
        return _chunked(values, f"column {labels[place]!r}", where)

    splits = [place for place, label in enumerate(labels) if label.casefold() == "split"]
    weighted = [] if weights is None else [_column_of_weights(labels, weights, where)]
    order = _fact_order(labels, {*splits, *weighted}, where)
    columns = [converted(place) for place in order]
    numbers = converted(weighted[0]) if weighted else None
    if len(splits) != 1 or not len(columns[0]):
        return ObjectFacts(columns, weights=numbers)
    return ObjectFacts(columns, splits=_split_numbers(converted(splits[0]), where), weights=numbers)


def _column_of_weights(labels: list[str], weights: str, where: str) -> int:
    """The place of the column of weights."""
    found = [n for n, label in enumerate(labels) if label.strip().casefold() == weights.casefold()]
    if len(found) != 1:
        raise InputError(
            f"{where}: expected one column {weights!r} of weights, found the columns "
            f"{', '.join(labels) or 'none'}"
        )
    return found[0]


def _fact_order(labels: list[str], others: set[int], where: str) -> list[int]:
    """The places of head, relation and tail: by their names, or the first three columns."""
    order = header_order(labels)
    if order is not None:
        return order
    first = [place for place in range(len(labels)) if place not in others][:3]
    # A known name in another place than here: the first three would be the wrong ones.
    is_misplaced = any(
        label.strip().casefold() in known and place != expected
        for place, label in enumerate(labels)
        for expected, known in zip(first, FACT_COLUMNS.values(), strict=False)
    )
    if len(first) < 3 or is_misplaced:
        raise InputError(
            f"{where}: expected the columns head, relation, tail, found "
            f"{', '.join(labels) or 'none'}; rename the columns, or select these three in order"
        )
    return first


# Triples and arrays -------------------------------------------------------------------------------


def _read_triples(rows: Iterable[Any], where: str, weights: str | None) -> ObjectFacts:
    # A set has no order, but a random split depends on it.
    found = sorted(rows, key=str) if isinstance(rows, Set) else list(rows)
    kinds = set(map(type, found))
    if kinds and all(issubclass(kind, Mapping) for kind in kinds):
        import pyarrow as pa

        return _read_arrow(pa.Table.from_pylist(found), where, weights)
    expected = tuple(fact_columns(weights))
    if not kinds <= {tuple, list} or not set(map(len, found)) <= {len(expected)}:
        for number, row in enumerate(found, 1):
            is_row = hasattr(row, "__getitem__") and not isinstance(row, str | bytes | Mapping)
            if not is_row or len(row) != len(expected):
                raise InputError(
                    f"{where}, fact {number}: expected ({', '.join(expected)}), found {shown(row)}"
                )
    columns = [[row[place] for row in found] for place in range(len(expected))]
    chunked = [_chunked(c, n, where) for c, n in zip(columns, expected, strict=True)]
    return ObjectFacts(chunked[:3], weights=None if weights is None else chunked[3])


def _read_array(array: Any, where: str, weights: str | None = None) -> ObjectFacts:
    """An array or tensor [n, 3]: ids if it has integers, otherwise names."""
    values = _as_array(array)
    if values.ndim != 2 or values.shape[1] != 3:
        raise InputError(f"{where}: expected facts of shape [n, 3], found {list(values.shape)}")
    if values.dtype.kind in "iu":
        return ObjectFacts(list(values.T), are_ids=True)
    labels = tuple(FACT_COLUMNS)
    return ObjectFacts([_chunked(c, n, where) for c, n in zip(values.T, labels, strict=True)])


def _read_pair(pair: tuple[Any, Any], where: str, weights: str | None = None) -> ObjectFacts:
    """(edge_index [2, n], edge_type [n]): ids."""
    ends, label = map(_as_array, pair)
    if (
        ends.ndim != 2
        or label.ndim != 1
        or ends.shape != (2, len(label))
        or {ends.dtype.kind, label.dtype.kind} - set("iu")
    ):
        raise InputError(
            f"{where}: expected integers edge_index [2, n] and edge_type [n], found {ends.dtype} "
            f"{list(ends.shape)} and {label.dtype} {list(label.shape)}"
        )
    return ObjectFacts([ends[0], label, ends[1]], are_ids=True)


def _as_array(values: Any) -> NDArray[Any]:
    """An array or a tensor on any device, as an array."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


# Graphs -------------------------------------------------------------------------------------------


def _read_networkx(graph: Any, where: str, weights: str | None) -> ObjectFacts:
    """The edges of a networkx graph; an undirected one is a fact in the order it is stored in."""
    import pyarrow as pa

    if graph.is_multigraph():
        edges = list(graph.edges(keys=True, data=True))
    else:
        edges = [(head, tail, None, data) for head, tail, data in graph.edges(data=True)]
    nodes = _texts_of(graph)
    if len(set(nodes)) != len(nodes):
        raise InputError(f"{where}: two nodes have the same name as text; rename one of them")
    name_of = dict(zip(graph, nodes, strict=True))
    relations = [_edge_relation(key, data) for _, _, key, data in edges]
    if None in relations:
        head, tail, *_ = edges[relations.index(None)]
        raise InputError(
            f"{where}: the edge from {head!r} to {tail!r} has no relation; set its attribute "
            "'relation', or use the relations as keys of a MultiDiGraph"
        )
    splits = [data.get("split") for *_, data in edges]
    columns = [
        [name_of[head] for head, *_ in edges],
        _texts_of(relations),
        [name_of[tail] for _, tail, *_ in edges],
    ]
    labels = tuple(FACT_COLUMNS)
    chunked = [_chunked(c, label, where) for c, label in zip(columns, labels, strict=True)]
    if any(name == "" for name in nodes):
        raise InputError(f"{where}: a node has an empty string as name; rename it")
    named = pa.chunked_array([pa.array(nodes)]) if nodes else None
    given = None
    if weights is not None:
        given = _chunked([data.get(weights) for *_, data in edges], weights, where)
    if not any(split is not None for split in splits):
        return ObjectFacts(chunked, nodes=named, weights=given)
    numbers = _split_numbers(_chunked(splits, "split", where), where)
    return ObjectFacts(chunked, nodes=named, splits=numbers, weights=given)


def _edge_relation(key: Any, data: Mapping[Any, Any]) -> Any:
    """The relation of an edge, or None: an attribute, or the key unless it is a mere number."""
    for attribute in _RELATION_ATTRIBUTES:
        found = data.get(attribute)
        if found is not None and found == found:  # NaN, as in a frame, differs from itself
            return found
    return None if isinstance(key, int) else key


def _read_rdflib(graph: Any, where: str, weights: str | None) -> ObjectFacts:
    """The facts between resources, with the same names as in files (see `formats.rdf`)."""
    literals = 0
    columns: list[list[str]] = [[], [], []]
    # Of a data set of several graphs, all are read.
    every = graph.quads() if hasattr(graph, "quads") else graph.triples((None, None, None))
    for terms in (found[:3] for found in every):
        kinds = [type(term).__name__ for term in terms]
        if kinds[2] == "Literal":
            literals += 1
            continue
        for column, term, kind in zip(columns, terms, kinds, strict=True):
            column.append(f"_:{term}" if kind == "BNode" else str(term))
    if not columns[0]:
        raise InputError(f"{where}: there are no facts between resources in it")
    notes = [f"{where}: skipped {literals:,} facts with a literal value"] if literals else []
    labels = tuple(FACT_COLUMNS)
    chunked = [_chunked(c, label, where) for c, label in zip(columns, labels, strict=True)]
    return ObjectFacts(chunked, notes=notes)


def _read_hetero(data: Any, where: str, weights: str | None) -> ObjectFacts:
    """The edges of a PyG `HeteroData`; each edge type is a relation."""
    import pyarrow as pa

    kept, notes = [], []
    for kind in data.edge_types:
        if _is_reverse(data, kind):
            notes.append(f"{where}: skipped the edge type {kind[1]!r}, which reverses another one")
        else:
            kept.append(kind)
    short = [relation for _, relation, _ in kept]
    ends_of = chain.from_iterable((head, tail) for head, _, tail in kept)
    names = {
        kind: _node_names(data, kind, where) for kind in dict.fromkeys([*data.node_types, *ends_of])
    }
    columns: list[list[Any]] = [[], [], []]
    for head, relation, tail in kept:
        ends = _edge_ends(data, (head, relation, tail), where)
        # The same name between other types of nodes is another relation.
        label = relation if short.count(relation) == 1 else f"{head}/{relation}/{tail}"
        try:
            columns[0].append(names[head].take(pa.array(ends[0])))
            columns[2].append(names[tail].take(pa.array(ends[1])))
        except pa.ArrowException as error:
            raise InputError(
                f"{where}: an edge of type {relation!r} has an end that is not a node ({error})"
            ) from error
        columns[1].append(pa.repeat(label, ends.shape[1]))
    nodes = pa.chunked_array(list(names.values()), pa.string())
    if len(nodes.unique()) != len(nodes):
        raise InputError(
            f"{where}: two nodes have the same name; make them distinct, or remove the attribute, "
            "and nodes are named by type and number"
        )
    chunked = [pa.chunked_array(column, pa.string()) for column in columns]
    return ObjectFacts(chunked, nodes=nodes, notes=notes)


def _edge_ends(data: Any, kind: tuple[str, str, str], where: str) -> NDArray[np.int64]:
    """The ends of the edges of one type, int64 [2, n]."""
    if "edge_index" not in data[kind]:
        raise InputError(f"{where}: the edge type {kind} has no edge_index")
    return np.asarray(_as_array(data[kind].edge_index), np.int64)


def _is_reverse(data: Any, kind: tuple[str, str, str]) -> bool:
    """Whether an edge type has the edges of another one reversed, as `ToUndirected` adds it.

    As facts, they would give away the held-out ones, which every sampler follows backwards anyway.
    """
    head, relation, tail = kind
    forward = (tail, relation.removeprefix("rev_"), head)
    if not relation.startswith("rev_") or forward not in data.edge_types:
        return False
    ends = [_as_array(data[one].edge_index) for one in (kind, forward) if "edge_index" in data[one]]
    return len(ends) == 2 and np.array_equal(ends[0], ends[1][::-1])


def _node_names(data: Any, kind: str, where: str) -> Any:
    """The names of the nodes of one type, pyarrow strings [m]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    store: Any = data[kind] if kind in data.node_types else {}  # which asking for it would create
    count = 0
    for one in data.edge_types:
        for place in (0, 1):
            if one[2 * place] == kind and "edge_index" in data[one]:
                ends = _as_array(data[one].edge_index)[place]
                count = max(count, int(ends.max(initial=-1)) + 1)
    attribute = next((name for name in _NAME_ATTRIBUTES if name in store), None)
    if attribute is not None:
        given = store[attribute]
        given = given.tolist() if hasattr(given, "tolist") else list(given)
        names = _names(_chunked(given, f"{attribute} of {kind!r}", where), kind, where)
        return names.cast(pa.string()).combine_chunks()
    if "num_nodes" in store or getattr(store, "can_infer_num_nodes", False):
        count = max(count, store.num_nodes)
    numbers = pa.array(np.arange(count)).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(kind), numbers, "/")


def _read_homogeneous(data: Any, where: str, weights: str | None) -> ObjectFacts:
    """The edges of a PyG `Data` with `edge_index` and `edge_type`, as ids.

    `train_edge_index`, `train_edge_type` and so on, or masks of the edges, are its splits.
    `entities` and `relations` are names, if they are there. The attribute `weights` [n] belongs to
    the edges of `edge_index`.
    """
    entities, relations = _given_names(data, where)
    splits: NDArray[np.int64] | None = None
    if "train_edge_index" in data and "train_edge_type" in data:  # as in RelLinkPredDataset
        parts = {
            place: _read_pair((data[f"{split}_edge_index"], data[f"{split}_edge_type"]), where)
            for place, split in enumerate(SPLITS)
            if f"{split}_edge_index" in data and f"{split}_edge_type" in data
        }
        every = list(parts.values())
        columns = [np.concatenate([part.columns[place] for part in every]) for place in range(3)]
        splits = np.repeat(list(parts), [len(part) for part in every])
        return ObjectFacts(columns, True, splits, entities=entities, relations=relations)
    if "edge_index" not in data or "edge_type" not in data:
        raise InputError(f"{where}: expected edge_index [2, n] and edge_type [n] in it")
    facts = _read_pair((data.edge_index, data.edge_type), where)
    given = None
    if weights is not None and weights in data:
        given = _as_array(data[weights])
        if given.shape != (len(facts),):
            raise InputError(
                f"{where}: {weights!r} must have shape [{len(facts)}], not {list(given.shape)}"
            )
    masks = [_as_array(data[name]) for name in _MASKS.values() if name in data]
    # Masks of nodes have another length.
    if len(masks) == len(SPLITS) and all(mask.shape == (len(facts),) for mask in masks):
        inside = np.stack(masks).astype(bool)
        wrong = np.flatnonzero(inside.sum(0) != 1)
        if len(wrong):
            raise InputError(
                f"{where}, fact {wrong[0] + 1}: must be in one of train_mask, val_mask, test_mask"
            )
        splits = inside.argmax(0)
    return ObjectFacts(
        facts.columns, True, splits, entities=entities, relations=relations, weights=given
    )


def _given_names(data: Any, where: str) -> tuple[Vocabulary | None, Vocabulary | None]:
    """The names of the entities and of the relations of a PyG `Data`, if they are known."""
    found: list[Vocabulary | None] = []
    for attribute, kind in (("entities", "entity"), ("relations", "relation")):
        given = [str(name) for name in data[attribute]] if attribute in data else None
        if given is not None and "" in given:
            raise InputError(f"{where}: {attribute} has an empty name")
        found.append(None if given is None else Vocabulary.from_names(given, kind))
    entities, relations = found
    if entities is None and "num_nodes" in data:
        entities = Vocabulary.numbered(int(data.num_nodes), "entity")
    return entities, relations


READERS: dict[tuple[str, str], Reader] = {
    ("pandas", "DataFrame"): _read_pandas,
    ("polars", "DataFrame"): _read_polars,
    ("polars", "LazyFrame"): _read_polars,
    ("networkx", "Graph"): _read_networkx,
    ("rdflib", "Graph"): _read_rdflib,
    ("torch_geometric", "HeteroData"): _read_hetero,
    ("torch_geometric", "Data"): _read_homogeneous,
    ("numpy", "ndarray"): _read_array,
    ("torch", "Tensor"): _read_array,
}
"""The readers by package and class of an object or of one of its base classes.

Objects with `__arrow_c_stream__`, dictionaries, pairs and iterables need no entry.
"""


# From a data set ----------------------------------------------------------------------------------


def to_pandas(data: Dataset) -> Any:
    """See `Dataset.to_pandas`."""
    import pyarrow as pa

    require("pandas", "", "to_pandas")
    names = (arrow_names(data.entities), arrow_names(data.relations), arrow_names(data.entities))
    facts = np.concatenate([data.facts(split).cpu().numpy() for split in SPLITS])
    columns = {
        label: given.take(pa.array(ids)).cast(pa.string())
        for label, given, ids in zip(FACT_COLUMNS, names, facts.T, strict=True)
    }
    sizes = [len(data.facts(split)) for split in SPLITS]
    columns["split"] = pa.array(SPLITS).take(pa.array(np.repeat(np.arange(len(SPLITS)), sizes)))
    weights = _weights(data)
    if weights is not None:
        columns[_WEIGHT] = pa.array(weights)
    return pa.table(columns).to_pandas()


def to_networkx(data: Dataset) -> Any:
    """See `Dataset.to_networkx`."""
    networkx = require("networkx", "peers", "to_networkx")
    graph = networkx.MultiDiGraph(name=data.name)
    entities, relations = list(data.entities), list(data.relations)
    graph.add_nodes_from(entities)
    weights = _weights(data)
    given = iter([] if weights is None else weights.tolist())
    for split in SPLITS:
        for head, label, tail in data.facts(split).tolist():
            ends, relation = (entities[head], entities[tail]), relations[label]
            # A fact may be in two splits, but a key belongs to one edge.
            key = (relation, split) if graph.has_edge(*ends, key=relation) else relation
            about = {} if weights is None else {_WEIGHT: next(given)}
            graph.add_edge(*ends, key=key, relation=relation, split=split, **about)
    return graph


def to_pyg(data: Dataset) -> Any:
    """See `Dataset.to_pyg`."""
    import torch

    pyg = require("torch_geometric.data", "peers", "to_pyg")
    sizes = [len(data.facts(split)) for split in SPLITS]
    facts = torch.cat([data.facts(split).cpu() for split in SPLITS])
    found = torch.arange(len(SPLITS)).repeat_interleave(torch.tensor(sizes))
    weights = _weights(data)
    return pyg.Data(
        edge_index=facts[:, [0, 2]].T.contiguous(),
        edge_type=facts[:, 1].contiguous(),
        num_nodes=len(data.entities),
        entities=list(data.entities),
        relations=list(data.relations),
        **{_MASKS[split]: found == place for place, split in enumerate(SPLITS)},
        **({} if weights is None else {_EDGE_WEIGHT: torch.from_numpy(weights)}),
    )


def _weights(data: Dataset) -> NDArray[np.float32] | None:
    """The weights of the facts of all splits [n], 1 for held-out ones; None if there are none."""
    given = data.graph.weights
    if given is None:
        return None
    held_out = np.ones(len(data.valid) + len(data.test), np.float32)
    return np.concatenate([given.cpu().numpy(), held_out])
