"""The state of a build: a directory of unfinished files with a manifest of finished stages."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot._version import __version__
from oneshot.data.formats import read_names
from oneshot.data.large.arrays import SortedRows
from oneshot.data.large.names import NameRun
from oneshot.data.locate import SourceFiles
from oneshot.errors import InputError
from oneshot.graph.adjacency import integer_type
from oneshot.graph.storage import UNWEIGHTED
from oneshot.graph.vocabulary import Vocabulary
from oneshot.system.files import held, write_json

MANIFEST = "build.json"
_LOCK = "lock"

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the amount that is done, and the total."""


@dataclass(frozen=True)
class Options:
    """How a single file is split (see `oneshot.data.load.load`)."""

    seed: int = 0
    valid_share: float = 0.1
    test_share: float = 0.1


@dataclass
class BuildState:
    """The shared state of the stages of a build: paths and intermediate results.

    `manifest`: `runs`, one entry for each run of facts that was read (`split`, `facts`,
    `position`, `is_last`), `done`, the finished stages, and their counts.
    """

    files: SourceFiles
    options: Options
    work: Path
    manifest: dict[str, Any]
    progress: Progress
    _given: dict[str, Vocabulary] = field(default_factory=dict)

    @property
    def num_splits(self) -> int:
        return len(self.files.splits)

    def split_sizes(self) -> list[int]:
        runs = self.manifest["runs"]
        return [
            sum(run["facts"] for run in runs if run["split"] == split)
            for split in range(self.num_splits)
        ]

    def full_runs(self, split: int | None = None) -> list[int]:
        """Numbers of the runs with facts, of all splits or of one."""
        return [
            number
            for number, run in enumerate(self.manifest["runs"])
            if run["facts"] and split in (None, run["split"])
        ]

    def stem(self, kind: str, number: int) -> Path:
        return self.work / f"run_{number}_{kind}"

    def name_run(self, kind: str, number: int) -> NameRun:
        return NameRun(self.stem(kind, number))

    def vocabulary(self, kind: str) -> Vocabulary | None:
        """The vocabulary of the file of names, if there is one."""
        file = self.files.entities if kind == "entity" else self.files.relations
        if file is not None and kind not in self._given:
            self._given[kind] = read_names(file, kind)
        return self._given.get(kind)

    def count(self, what: str) -> int:
        return int(self.manifest["counts"][what])

    @property
    def id_type(self) -> np.dtype[Any]:
        """The integer type that `KnowledgeGraph.from_distinct` selects for ids."""
        return np.dtype(integer_type(max(self.count("entity"), 2 * self.count("relation") + 1)))

    def pair(self, first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
        """Two entities as one number that sorts like the pair; for up to three billion entities."""
        pair = first.astype(np.int64)
        pair *= self.count("entity")
        pair += second
        return pair

    def sorted_rows(self, name: str, bounds: NDArray[Any], columns: tuple[Any, ...]) -> SortedRows:
        """An empty `SortedRows`; removes files of an interrupted stage."""
        shutil.rmtree(self.work / name, ignore_errors=True)
        return SortedRows(self.work / name, bounds, columns)

    def note(self) -> None:
        write_json(self.work / MANIFEST, self.manifest)


def building_place(path: Path) -> Path:
    """The directory of unfinished files of a graph that is built at `path`."""
    path = path.resolve()
    return path.with_name(f".{path.name}.building")


def identity_of(files: SourceFiles, options: Options) -> dict[str, Any]:
    """The properties that must be unchanged for an interrupted build to resume."""
    try:
        states = [(file, file.stat()) for file in files.all]
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from error
    return {
        "version": __version__,
        "files": [[str(file.resolve()), s.st_size, s.st_mtime_ns] for file, s in states],
        "options": vars(options) if len(files.splits) == 1 else None,
    }


def manifest_in(work: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an interrupted build, or a new one in an empty directory."""
    try:
        found: dict[str, Any] = json.loads((work / MANIFEST).read_text(encoding="utf-8"))
        # Killed while the finished files were moved: some are at the target, some still here.
        is_torn = "marker" in found["done"] and any(not (work / n).exists() for n in UNWEIGHTED)
        if found["identity"] == identity and not is_torn:
            return found
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for entry in work.iterdir():
        if entry.name != _LOCK:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    manifest = {"identity": identity, "runs": [], "done": [], "counts": {}}
    write_json(work / MANIFEST, manifest)
    return manifest


@contextmanager
def alone_in(work: Path) -> Iterator[None]:
    """The directory of a build, created if necessary and locked against other processes."""
    if work.exists() and not (work / _LOCK).is_file():
        raise InputError(f"{work} exists and was not written by oneshot; move it away")
    work.mkdir(exist_ok=True)
    with held(work / _LOCK, f"{work}: another process is building this graph"):
        yield
