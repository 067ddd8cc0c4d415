"""Data sets: a graph of training facts with held-out facts to ask about.

`load` takes whatever a user has: a bundled name, a directory of splits, one file of triples
(split automatically), a saved graph, or a name looked up in `$ONESHOT_DATA` and the cache.
"""

import contextlib
import difflib
import os
from pathlib import Path

import torch

from oneshot.dataset import SPLITS, Dataset, both_directions
from oneshot.errors import InputError
from oneshot.family import Rule
from oneshot.generated import family, generated, is_generated, uniform
from oneshot.graph import KnowledgeGraph, first_occurrences
from oneshot.numbering import numbered
from oneshot.reading import FORMATS, RawFacts, format_of, read_facts, read_names
from oneshot.splitting import split_facts
from oneshot.storage import CONTENTS as SAVED_GRAPH
from oneshot.storage import is_saved_graph, open_graph
from oneshot.vocabulary import Vocabulary

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

BUNDLED = Path(__file__).with_name("bundled")


def load(
    source: str | Path, *, seed: int = 0, valid_share: float = 0.1, test_share: float = 0.1
) -> Dataset:
    """The data set that `source` names.

    A bundled name (`world`, `umls`), `family:PEOPLE`, `random:ENTITIES:FACTS`, a directory with
    train, valid and test files, a saved graph, one file of triples, or the name of a directory
    in `$ONESHOT_DATA` or in the cache. A single file is split at random under `seed`, with
    `valid_share` and `test_share` of its facts held out, such that every entity and relation
    stays in train.
    """
    options = {"seed": seed, "valid_share": valid_share, "test_share": test_share}
    name = str(source)
    data = _load(name, seed, valid_share, test_share)
    own = name in bundled_names() or is_generated(name)
    data.graph.origin = {
        "source": name if own else str(_find(name).resolve()),
        "options": options,
    }
    return data


def _load(name: str, seed: int, valid_share: float, test_share: float) -> Dataset:
    if name in bundled_names():
        return _load_directory(BUNDLED / name, name)
    if is_generated(name):
        return generated(name, seed)
    path = _find(name)
    if path.is_dir():
        return _load_saved(path) if is_saved_graph(path) else _load_directory(path, path.name)
    return _load_single_file(path, seed, valid_share, test_share)


def bundled_names() -> list[str]:
    """The data sets that come with the package."""
    return sorted(path.name for path in BUNDLED.iterdir() if path.is_dir())


def data_directories() -> list[Path]:
    """Where named data sets are looked for: `$ONESHOT_DATA`, then the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oneshot"
    chosen = os.environ.get("ONESHOT_DATA")
    return [Path(chosen), cache] if chosen else [cache]


def source_exists(source: str) -> bool:
    """Whether there is anything under the name that a graph's `origin` gives."""
    if source in bundled_names() or is_generated(source):
        return True
    try:
        _find(source)
    except InputError:
        return False
    return True


def source_files(source: str) -> list[Path]:
    """The files that a data set is read from, as far as they are there and not bundled."""
    if not source or source in bundled_names() or is_generated(source):
        return []
    try:
        path = _find(source)
    except InputError:  # `load` will say so
        return []
    if not path.is_dir():
        return [path]
    names = (*SPLITS, "entities", "relations")
    return [
        entry
        for entry in path.iterdir()
        if entry.name.split(".")[0] in names or entry.name in SAVED_GRAPH
    ]


def _find(name: str) -> Path:
    path = Path(name)
    with contextlib.suppress(RuntimeError):  # there is no such user
        path = path.expanduser()
    if _exists(path):
        return path
    # A name may have folders in front, as in "inductive/nell_v1", but stays inside.
    if not path.is_absolute() and ".." not in path.parts:
        for directory in data_directories():
            if _exists(directory / name):
                return directory / name
    known = bundled_names()
    for directory in data_directories():
        if directory.is_dir():
            known += sorted(entry.name for entry in directory.iterdir() if entry.is_dir())
    near = difflib.get_close_matches(name.casefold(), [k.casefold() for k in known], 3)
    nearest = [k for k in dict.fromkeys(known) if k.casefold() in near]
    hint = f"; did you mean {', '.join(map(repr, nearest))}?" if nearest else ""
    raise InputError(
        f"no data set {name!r}: it is no file or directory, not bundled "
        f"({', '.join(bundled_names())}) and not in "
        f"{' or '.join(map(str, data_directories()))}{hint}"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a null in it
        return False


def _load_directory(path: Path, name: str) -> Dataset:
    files = {split: _split_file(path, split) for split in SPLITS}
    entities = _names_file(path, "entities.txt", "entity")
    relations = _names_file(path, "relations.txt", "relation")
    return _assemble(name, [read_facts(file) for file in files.values()], entities, relations)


def _split_file(path: Path, split: str) -> Path:
    found = [
        file
        for file in sorted(path.iterdir())
        if file.name.removesuffix(".gz").rsplit(".", 1)[0] == split and format_of(file)
    ]
    if not found:
        hint = ""
        if split != "train" and any(file.name.startswith("train.") for file in path.iterdir()):
            hint = "; to have the training file split automatically, give the file itself"
        raise InputError(
            f"{path}: there is no {split} split (a file {split}.tsv, or with one of the endings "
            f"{', '.join(FORMATS)}, each also .gz){hint}"
        )
    if len(found) > 1:
        raise InputError(
            f"{path}: more than one {split} split: {', '.join(file.name for file in found)}"
        )
    return found[0]


def _names_file(path: Path, name: str, kind: str) -> Vocabulary | None:
    found = [file for file in (path / name, path / f"{name}.gz") if file.exists()]
    if len(found) > 1:
        raise InputError(f"{path}: both {name} and {name}.gz are there")
    return read_names(found[0], kind) if found else None


def _assemble(
    name: str, splits: list[RawFacts], entities: Vocabulary | None, relations: Vocabulary | None
) -> Dataset:
    """The data set of raw train, valid and test facts, repeated facts counting once."""
    notes = [note for split in splits for note in split.notes]
    numbers, entities, relations = numbered(splits, entities, relations)
    splits.clear()  # the names are not needed any more, and may be large
    distinct, duplicates = [], 0
    for facts in numbers:
        rows = first_occurrences(facts, len(entities), len(relations))
        duplicates += len(facts) - len(rows)
        distinct.append(facts if len(rows) == len(facts) else facts[rows])
    return Dataset(
        name=name,
        graph=KnowledgeGraph.from_distinct(distinct[0], entities, relations),
        valid=torch.from_numpy(distinct[1]),
        test=torch.from_numpy(distinct[2]),
        duplicates=duplicates,
        notes=notes,
    )


def _load_single_file(path: Path, seed: int, valid_share: float, test_share: float) -> Dataset:
    raw = read_facts(path)
    (facts,), entities, relations = numbered([raw], None, None)
    rows = first_occurrences(facts, len(entities), len(relations))
    duplicates = len(facts) - len(rows)
    train, valid, test = split_facts(facts[rows], seed, valid_share, test_share)
    notes = [*raw.notes, f"split at random with seed {seed}; every entity and relation is in train"]
    wanted = int(valid_share * len(rows)) + int(test_share * len(rows))
    held_out = len(valid) + len(test)
    if held_out < wanted or not (len(valid) and len(test)):
        notes.append(
            f"only {held_out:,} of {len(rows):,} facts are held out: one fact of every entity and "
            "relation stays in train"
        )
    return Dataset(
        name=path.name,
        graph=KnowledgeGraph.from_distinct(train, entities, relations),
        valid=torch.from_numpy(valid),
        test=torch.from_numpy(test),
        duplicates=duplicates,
        notes=notes,
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
        raise InputError(f"{path}: not a whole saved data set ({error})") from error
