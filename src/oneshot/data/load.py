"""Loading of data sets.

`load` accepts a bundled name, a directory of splits, one file of triples (split automatically), a
saved graph, the address of a database or service, a name that is looked up in `$ONESHOT_DATA` and
the cache, or an object that holds facts.
"""

import os
from pathlib import Path
from typing import Any

import torch

from oneshot.data.dataset import SPLITS, Dataset, both_directions
from oneshot.data.encode import numbered
from oneshot.data.formats import RawFacts, read_facts, read_names
from oneshot.data.formats.base import fact_columns
from oneshot.data.large.build import can_build
from oneshot.data.locate import (
    BUNDLED,
    SourceFiles,
    bundled_names,
    data_directories,
    files_at,
    find,
    locate,
    look_for,
)
from oneshot.data.objects import read_object
from oneshot.data.sources import is_address, parse_address, shown, source_file
from oneshot.data.sources.cache import copy_at, fetch
from oneshot.data.split import check_shares, split_facts, split_notes, split_parts
from oneshot.data.synthetic.family import Rule
from oneshot.data.synthetic.generators import family, generated, is_generated, uniform
from oneshot.errors import InputError
from oneshot.graph.fact_keys import first_occurrences
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.storage import is_saved_graph, open_graph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.graph.weights import largest_weights

__all__ = [
    "SPLITS",
    "Dataset",
    "both_directions",
    "bundled_names",
    "data_directories",
    "family",
    "load",
    "split_facts",
    "uniform",
]

LARGE_SOURCE = 1 << 28
"""Size of text or Parquet files in bytes above which `save` builds the graph on disk."""


def load(
    source: object,
    *,
    seed: int = 0,
    valid_share: float = 0.1,
    test_share: float = 0.1,
    weights: str | None = None,
) -> Dataset:
    """The data set that `source` names or holds.

    A bundled name (`world`, `umls`), `family:PEOPLE`, `rules:ENTITIES:RELATIONS`,
    `random:ENTITIES:FACTS`, `power-law:ENTITIES:FACTS`, a directory with train, valid and test
    files, a saved graph, one file of triples, or the name of a directory in `$ONESHOT_DATA` or in
    the cache. Public data sets (`WN18RR`, `ogbl-wikikg2`, see `data.public.catalogue`) are
    downloaded into the cache. An address of `data.sources` (`duckdb:FILE?table=NAME`,
    `neo4j://HOST`) is read and copied into the cache.

    Or an object: a pandas or polars DataFrame, a pyarrow Table or another object with
    `__arrow_c_stream__`, an iterable of (head, relation, tail), an array [n, 3], a networkx, rdflib
    or PyG graph, a pair (edge_index [2, n], edge_type [n]), or a dict of such objects with the keys
    train, valid and test. Integers in arrays and in a PyG `Data` are ids, elsewhere they are names.

    A single file, address or object is split at random with `seed`: `valid_share` and `test_share`
    of its facts are held out, and every entity and relation stays in train.

    `weights`: the column (in every file), array or attribute with the weights of the facts, numbers
    above 0. In text files without a header it is the fourth column. The weights of the training
    facts become those of the graph.
    """
    if isinstance(source, Dataset):
        if weights is not None:
            raise InputError("weights: the data set is loaded already; give them with its source")
        return source
    if not isinstance(source, str | os.PathLike):
        return _load_object(source, seed, valid_share, test_share, weights)
    options: dict[str, Any] = {
        "seed": seed,
        "valid_share": valid_share,
        "test_share": test_share,
    }
    if weights is not None:
        options["weights"] = weights
    name = str(source)
    check_weighted_source(name, weights)
    if is_address(name):
        check_shares(valid_share, test_share)  # before a long download
        name = str(fetch(parse_address(name)))
    data = _load(name, seed, valid_share, test_share, weights)
    own = name in bundled_names() or is_generated(name)
    path = None if own else find(name).resolve()
    data.graph.origin = {"source": name if path is None else str(path), "options": options}
    copied = None if path is None else copy_at(path)
    if copied is not None:
        data.graph.origin["address"] = copied.address
    return data


def check_weighted_source(name: str, weights: str | None) -> None:
    """Raise if the facts of a source cannot have weights."""
    if weights is None:
        return
    fact_columns(weights)  # raises if it is not a possible name
    fault = "has no weights"
    if is_address(name):
        fault = "weights are read from files and objects, not from databases; export the facts"
    elif name not in bundled_names() and not is_generated(name):
        path = look_for(name)
        if path is None or not (path.is_dir() and is_saved_graph(path)):
            return
        fault = "a saved graph has the weights it was saved with; leave out the option"
    raise InputError(f"{shown(name)}: {fault}")


def _load(
    name: str, seed: int, valid_share: float, test_share: float, weights: str | None
) -> Dataset:
    if name in bundled_names():
        return _load_directory(locate(BUNDLED / name))
    if is_generated(name):
        return generated(name, seed)
    path = find(name)
    if path.is_dir() and is_saved_graph(path):
        return _load_saved(path)
    files = _located(path)
    if len(files.splits) == 1:
        raw = read_facts(files.splits[0], weights)
        copied = copy_at(path)
        raw.notes[:0] = [] if copied is None else copied.notes
        return _split(files.name, raw, None, None, seed, valid_share, test_share)
    return _load_directory(files, weights)


def _located(path: Path) -> SourceFiles:
    """The files of a data set; a copy of a source is named by its address."""
    copied = copy_at(path)
    return locate(path) if copied is None else locate(path, copied.name)


def source_exists(source: str) -> bool:
    """Whether the `origin` of a graph names an existing data set."""
    if source in bundled_names() or is_generated(source):
        return True
    return look_for(source) is not None


def source_files(source: str) -> list[Path]:
    """The existing files of a data set that is not bundled."""
    if not source or source in bundled_names() or is_generated(source):
        return []
    if is_address(source):
        file = source_file(source)
        return [] if file is None else [file]
    path = look_for(source)
    return [] if path is None else files_at(path)  # `load` reports the error


def large_files(source: str) -> SourceFiles | None:
    """The files of a data set that should be built on disk, or None."""
    if source in bundled_names() or is_generated(source):
        return None
    path = find(source)
    if is_saved_graph(path):
        return None
    files = _located(path)
    size = sum(f.stat().st_size * (5 if f.suffix == ".gz" else 1) for f in files.splits)
    return files if size > LARGE_SOURCE and can_build(files) else None


def _load_directory(files: SourceFiles, weights: str | None = None) -> Dataset:
    splits = [read_facts(file, weights) for file in files.splits]
    entities = read_names(files.entities, "entity") if files.entities else None
    relations = read_names(files.relations, "relation") if files.relations else None
    return _assemble(files.name, splits, entities, relations)


def _assemble(
    name: str, splits: list[RawFacts], entities: Vocabulary | None, relations: Vocabulary | None
) -> Dataset:
    """The data set of raw train, valid and test facts, without duplicates."""
    notes = [note for split in splits for note in split.notes]
    numbers, entities, relations = numbered(splits, entities, relations)
    weights = splits[0].weights
    splits.clear()  # the names are no longer needed and may be large
    distinct, duplicates = [], 0
    for split, facts in zip(SPLITS, numbers, strict=True):
        rows = first_occurrences(facts, len(entities), len(relations))
        duplicates += len(facts) - len(rows)
        distinct.append(facts if len(rows) == len(facts) else facts[rows])
        if weights is not None and split == "train":
            weights = largest_weights(facts, weights, rows, len(entities), len(relations))
    return Dataset(
        name=name,
        graph=KnowledgeGraph.from_distinct(distinct[0], entities, relations, weights),
        valid=torch.from_numpy(distinct[1]),
        test=torch.from_numpy(distinct[2]),
        duplicates=duplicates,
        notes=notes,
    )


def _load_object(
    source: object, seed: int, valid_share: float, test_share: float, weights: str | None
) -> Dataset:
    found = read_object(source, weights)
    if len(found.splits) > 1:
        return _assemble(found.name, found.splits, found.entities, found.relations)
    shares = (valid_share, test_share)
    return _split(found.name, found.splits[0], found.entities, found.relations, seed, *shares)


def _split(
    name: str,
    raw: RawFacts,
    entities: Vocabulary | None,
    relations: Vocabulary | None,
    seed: int,
    valid_share: float,
    test_share: float,
) -> Dataset:
    """The data set of raw facts that are split at random, without duplicates."""
    (facts,), entities, relations = numbered([raw], entities, relations)
    rows = first_occurrences(facts, len(entities), len(relations))
    duplicates = len(facts) - len(rows)
    distinct = facts[rows]
    sizes = (len(entities), len(relations))
    part = split_parts(lambda: [distinct], len(rows), sizes, seed, valid_share, test_share)
    train, valid, test = (distinct[part == place] for place in range(3))
    weights = raw.weights
    if weights is not None:
        weights = largest_weights(facts, weights, rows, *sizes)[part == 0]
    notes = split_notes(len(rows), len(valid), len(test), seed, valid_share, test_share)
    return Dataset(
        name=name,
        graph=KnowledgeGraph.from_distinct(train, entities, relations, weights),
        valid=torch.from_numpy(valid),
        test=torch.from_numpy(test),
        duplicates=duplicates,
        notes=[*raw.notes, *notes],
    )


def _load_saved(path: Path) -> Dataset:
    graph, splits, about = open_graph(path)
    try:
        return Dataset(
            name=about["name"],
            graph=graph,
            valid=splits["valid"],
            test=splits["test"],
            duplicates=about["duplicates"],
            notes=about["notes"],
            rules=tuple(Rule(head, tuple(body)) for head, body in about["rules"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: incomplete or damaged saved data set ({error})") from error
