"""Data sets: a graph of training facts with held-out facts to ask about.

`load` takes whatever a user has: a bundled name, a directory of splits, one file of triples
(split automatically), a saved graph, or a name looked up in `$ONESHOT_DATA` and the cache.
"""

import contextlib
import difflib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oneshot import family as family_world
from oneshot.errors import InputError, UnknownNameError
from oneshot.family import Rule
from oneshot.graph import KnowledgeGraph, first_occurrences
from oneshot.numbering import numbered
from oneshot.reading import FORMATS, RawFacts, format_of, read_facts, read_names
from oneshot.storage import is_saved_graph, open_graph, save_graph
from oneshot.vocabulary import Vocabulary

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

BUNDLED = Path(__file__).with_name("bundled")


@dataclass(frozen=True)
class Dataset:
    """A graph with held-out facts.

    `graph`: the training facts, with all entities of all splits.
    `valid`, `test`: int64 [n, 3] facts (head, relation, tail).
    `duplicates`: facts that stood more than once in a split and are kept once.
    `notes`: what a user should know about how it was read.
    `rules`: for generated worlds, the rules that the held-out facts follow.
    """

    name: str
    graph: KnowledgeGraph
    valid: Tensor
    test: Tensor
    duplicates: int = 0
    notes: Sequence[str] = ()
    rules: Sequence[Rule] = field(default=(), repr=False)

    @property
    def entities(self) -> Vocabulary:
        return self.graph.entities

    @property
    def relations(self) -> Vocabulary:
        return self.graph.relations

    @cached_property
    def train(self) -> Tensor:
        """The facts of the graph, int64 [n, 3]."""
        return self.graph.facts.long()

    @cached_property
    def known(self) -> Tensor:
        """The facts of all splits, int64 [n, 3], for filtered ranking."""
        return torch.cat([self.train, self.valid, self.test])

    def facts(self, split: str) -> Tensor:
        """The facts of a split, int64 [n, 3]."""
        if split not in SPLITS:
            raise UnknownNameError("split", split, SPLITS)
        facts: Tensor = getattr(self, split)
        return facts

    def queries(self, split: str) -> tuple[Tensor, Tensor]:
        """All questions of a split in both directions: (queries [2n, 2], answers [2n])."""
        return both_directions(self.facts(split), self.graph.num_relations)

    @cached_property
    def unseen_entities(self) -> int:
        """Number of entities of valid and test that occur in no training fact."""
        held_out = torch.cat([self.valid, self.test])[:, [0, 2]].unique()
        return int((self.graph.degree[held_out] == 0).sum())

    @cached_property
    def overlaps(self) -> dict[str, int]:
        """Number of facts shared by each pair of splits."""
        counts = {}
        for one, other in itertools.combinations(SPLITS, 2):
            both = torch.cat([self.facts(one), self.facts(other)]).cpu().numpy()
            distinct = first_occurrences(both, len(self.entities), len(self.relations))
            counts[f"{one}-{other}"] = len(both) - len(distinct)
        return counts

    def save(self, path: str | Path) -> None:
        """Write a memory-mapped form that `load` opens in milliseconds."""
        about = {"name": self.name, "duplicates": self.duplicates, "notes": list(self.notes)}
        about["rules"] = [[rule.head, list(rule.body)] for rule in self.rules]
        save_graph(Path(path), self.graph, {"valid": self.valid, "test": self.test}, about)


def both_directions(facts: Tensor, num_relations: int) -> tuple[Tensor, Tensor]:
    """The two questions of each fact: `facts` [n, 3] → (queries [2n, 2], answers [2n]).

    First all `(h, r, ?)`, then all `(t, r⁻¹, ?)`.
    """
    head, relation, tail = facts.unbind(1)
    forward = torch.stack([head, relation], dim=1)
    backward = torch.stack([tail, relation + num_relations], dim=1)
    return torch.cat([forward, backward]), torch.cat([tail, head])


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
    own = name in bundled_names() or name.split(":")[0] in GENERATED
    data.graph.origin = {
        "source": name if own else str(_find(name).resolve()),
        "options": options,
    }
    return data


def _load(name: str, seed: int, valid_share: float, test_share: float) -> Dataset:
    if name in bundled_names():
        return _load_directory(BUNDLED / name, name)
    for prefix, generate in GENERATED.items():
        if name.startswith(prefix + ":"):
            return generate(_numbers(name))
    path = _find(name)
    if path.is_dir():
        return _load_saved(path) if is_saved_graph(path) else _load_directory(path, path.name)
    return _load_single_file(path, seed, valid_share, test_share)


def bundled_names() -> list[str]:
    """The data sets that come with the package."""
    return sorted(path.name for path in BUNDLED.iterdir() if path.is_dir())


def family(people: int, generations: int = 6, seed: int = 0) -> Dataset:
    """A synthetic world of people, in which held-out facts follow from the visible ones.

    100 to 20 million people in families over some generations; `rules` names the rules, for
    example that the mother of one's mother is a grandmother.
    """
    try:
        world = family_world.generate(people, generations, seed)
    except ValueError as error:
        raise InputError(str(error)) from error
    chunk = 1_000_000
    blobs, lengths = [], []
    for start in range(0, people, chunk):
        names = [name.encode() for name in world.names(start, min(start + chunk, people))]
        blobs.append(b"".join(names))
        lengths.append(np.fromiter(map(len, names), np.int64, len(names)))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    entities = Vocabulary(np.frombuffer(b"".join(blobs), np.uint8), offsets, "entity")
    relations = Vocabulary.from_names(world.relations, "relation")
    # The generator gives valid, distinct facts: no need to check and sort them again.
    small = 2 * len(world.train) < 2**31
    facts = torch.from_numpy(world.train.astype(np.int32) if small else world.train)
    return Dataset(
        name=f"family:{people}",
        graph=KnowledgeGraph(facts, entities, relations),
        valid=torch.from_numpy(world.valid),
        test=torch.from_numpy(world.test),
        rules=world.rules,
    )


def uniform(entities: int, facts: int, relations: int = 10, seed: int = 0) -> Dataset:
    """A graph of facts drawn uniformly at random, for measuring speed; nothing can be learnt.

    A hundredth of the facts each is held out for valid and test.
    """
    if not (2 <= entities <= 10**8 and relations >= 1 and 100 <= facts <= 10**9):
        raise InputError(
            "a random graph has 2 to 100,000,000 entities, 100 to 1,000,000,000 facts and at "
            "least 1 relation"
        )
    generator = np.random.default_rng(seed)
    columns = [generator.integers(size, size=facts) for size in (entities, relations, entities)]
    drawn = np.stack(columns, axis=1)
    rows = first_occurrences(drawn, entities, relations)
    held_out = len(rows) // 100
    train, valid, test = np.split(drawn[rows], [len(rows) - 2 * held_out, len(rows) - held_out])
    return Dataset(
        name=f"random:{entities}:{facts}",
        graph=KnowledgeGraph.from_facts(train, entities, relations),
        valid=torch.from_numpy(valid),
        test=torch.from_numpy(test),
        duplicates=facts - len(rows),
    )


def data_directories() -> list[Path]:
    """Where named data sets are looked for: `$ONESHOT_DATA`, then the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oneshot"
    chosen = os.environ.get("ONESHOT_DATA")
    return [Path(chosen), cache] if chosen else [cache]


def _find(name: str) -> Path:
    path = Path(name)
    with contextlib.suppress(RuntimeError):  # there is no such user
        path = path.expanduser()
    if _exists(path):
        return path
    if "/" not in name and "\\" not in name:
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
    small = max(len(entities), 2 * len(distinct[0])) < 2**31
    train = torch.from_numpy(distinct[0].astype(np.int32) if small else distinct[0])
    return Dataset(
        name=name,
        graph=KnowledgeGraph(train, entities, relations),
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
    if len(valid) + len(test) < wanted:
        notes.append(
            f"only {len(valid) + len(test):,} facts could be held out, {wanted:,} were wanted: "
            "the others are needed to keep every entity and relation in train"
        )
    return Dataset(
        name=path.name,
        graph=KnowledgeGraph.from_facts(train, entities, relations),
        valid=torch.from_numpy(valid),
        test=torch.from_numpy(test),
        duplicates=duplicates,
        notes=notes,
    )


def split_facts(
    facts: NDArray[np.int64], seed: int, valid_share: float = 0.1, test_share: float = 0.1
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A random split of `facts` [n, 3] that keeps every entity and relation in train.

    For each entity and relation a random fact stays in train; the held-out facts are drawn from
    the others. → train, valid, test, each in the order of `facts`.
    """
    if not (valid_share >= 0 and test_share >= 0 and valid_share + test_share < 1):
        raise InputError(
            f"the shares held out must be at least 0 and below 1 together, not {valid_share} "
            f"and {test_share}"
        )
    if seed < 0:
        raise InputError(f"the seed must not be negative, not {seed}")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(facts))
    shuffled = facts[order]
    needed = np.zeros(len(facts), bool)
    ends = np.concatenate([shuffled[:, 0], shuffled[:, 2]])
    needed[np.unique(ends, return_index=True)[1] % max(len(facts), 1)] = True
    needed[np.unique(shuffled[:, 1], return_index=True)[1]] = True
    free = order[~needed]
    num_valid, num_test = int(valid_share * len(facts)), int(test_share * len(facts))
    if num_valid + num_test > len(free):
        num_valid = len(free) * num_valid // (num_valid + num_test)
        num_test = len(free) - num_valid
    part = np.zeros(len(facts), np.int8)
    part[free[:num_valid]] = 1
    part[free[num_valid : num_valid + num_test]] = 2
    return facts[part == 0], facts[part == 1], facts[part == 2]


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


def _numbers(name: str) -> list[int]:
    """The numbers in the name of a generated data set, such as `family:1e6`."""
    try:
        return [int(float(part)) for part in name.split(":")[1:]]
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name!r}: after the colon whole numbers are expected") from error


def _family_by_numbers(numbers: list[int]) -> Dataset:
    if len(numbers) != 1:
        raise InputError("a family world is named family:PEOPLE, for example family:1000")
    return family(numbers[0])


def _uniform_by_numbers(numbers: list[int]) -> Dataset:
    if len(numbers) != 2:
        raise InputError("a random graph is named random:ENTITIES:FACTS")
    return uniform(*numbers)


# Data sets made on demand, by the first part of their name.
GENERATED = {"family": _family_by_numbers, "random": _uniform_by_numbers}
