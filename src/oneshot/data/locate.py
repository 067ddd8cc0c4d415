"""Locations of the files of a data set, by path or name."""

import contextlib
import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from oneshot.data.dataset import SPLITS
from oneshot.data.formats import FORMATS, format_of
from oneshot.errors import InputError
from oneshot.graph.storage import CONTENTS as SAVED_GRAPH

BUNDLED = Path(__file__).with_name("bundled")


@dataclass(frozen=True)
class SourceFiles:
    """The files of a data set.

    `splits`: train, valid and test, or a single file that is to be split. `entities`,
    `relations`: files of names, if they exist.
    """

    name: str
    splits: tuple[Path, ...]
    entities: Path | None = None
    relations: Path | None = None

    @property
    def all(self) -> list[Path]:
        return [*self.splits, *(file for file in (self.entities, self.relations) if file)]


def bundled_names() -> list[str]:
    """Names of the data sets in the package."""
    return sorted(path.name for path in BUNDLED.iterdir() if path.is_dir())


def cache_directory() -> Path:
    """The directory of downloaded data sets in the user's cache."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oneshot"
    except RuntimeError:  # for example in a container whose user has no name
        raise InputError(
            "no home directory for the data set cache; set HOME or XDG_CACHE_HOME"
        ) from None


def data_directories() -> list[Path]:
    """The directories of named data sets: `$ONESHOT_DATA`, then the user's cache."""
    chosen = os.environ.get("ONESHOT_DATA")
    directories = [Path(chosen)] if chosen else []
    with contextlib.suppress(InputError):  # without a home directory there is no cache
        directories.append(cache_directory())
    return directories


def locate(path: Path, name: str | None = None) -> SourceFiles:
    """The files of a data set that is a file or a directory of splits."""
    name = path.name if name is None else name
    if not path.is_dir():
        return SourceFiles(name, (path,))
    undivided = [file for file in path.glob("facts.*") if format_of(file)]
    if len(undivided) == 1 and not any(path.glob("train.*")):
        return SourceFiles(name, (undivided[0],))
    return SourceFiles(
        name,
        tuple(_split_file(path, split) for split in SPLITS),
        _names_file(path, "entities.txt"),
        _names_file(path, "relations.txt"),
    )


def find(name: str) -> Path:
    """The file or directory at this path, or with this name in one of the data directories.

    A missing public data set is downloaded into the cache.
    """
    from oneshot.data.public.catalogue import NAMED, PYKEEN, fetch, is_named
    from oneshot.data.sources import check_scheme
    from oneshot.data.synthetic.generators import GENERATORS

    found = look_for(name)
    if found is not None:
        return found
    if is_named(name):
        return fetch(name)
    check_scheme(name, [*GENERATORS, PYKEEN.rstrip(":")])
    known = [*bundled_names(), *NAMED]
    for directory in data_directories():
        if directory.is_dir():
            known += sorted(
                entry.name
                for entry in directory.iterdir()
                if entry.is_dir() and not entry.name.startswith(".")
            )
    near = difflib.get_close_matches(name.casefold(), [k.casefold() for k in known], 3)
    nearest = [k for k in dict.fromkeys(known) if k.casefold() in near]
    hint = f"; did you mean {', '.join(map(repr, nearest))}?" if nearest else ""
    raise InputError(
        f"unknown data set {name!r}: not a file or directory, not bundled "
        f"({', '.join(bundled_names())}) and not in "
        f"{' or '.join(map(str, data_directories())) or '$ONESHOT_DATA'}{hint}"
    )


def look_for(name: str) -> Path | None:
    """`find`, or None if nothing is found."""
    path = Path(name)
    with contextlib.suppress(RuntimeError):  # no such user
        path = path.expanduser()
    if _exists(path):
        return path
    # A name may contain folders, as in "inductive/nell_v1", but must not leave the directory.
    if not path.is_absolute() and ".." not in path.parts:
        for directory in data_directories():
            if _exists(directory / name):
                return directory / name
    return None


def files_at(path: Path) -> list[Path]:
    """The existing files of a data set at this path."""
    if not path.is_dir():
        return [path]
    names = (*SPLITS, "facts", "entities", "relations")
    return [
        entry
        for entry in path.iterdir()
        if entry.name.split(".")[0] in names or entry.name in SAVED_GRAPH
    ]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the name is too long or contains a null byte
        return False


def _split_file(path: Path, split: str) -> Path:
    found = [
        file
        for file in sorted(path.iterdir())
        if file.name.removesuffix(".gz").rsplit(".", 1)[0] == split and format_of(file)
    ]
    if not found:
        hint = ""
        if split != "train" and any(file.name.startswith("train.") for file in path.iterdir()):
            hint = "; to split a single file automatically, pass the file itself"
        raise InputError(
            f"{path}: no {split} split (a file {split}.tsv, or with one of the suffixes "
            f"{', '.join(FORMATS)}, each also .gz){hint}"
        )
    if len(found) > 1:
        raise InputError(
            f"{path}: more than one {split} split: {', '.join(file.name for file in found)}"
        )
    return found[0]


def _names_file(path: Path, name: str) -> Path | None:
    found = [file for file in (path / name, path / f"{name}.gz") if file.exists()]
    if len(found) > 1:
        raise InputError(f"{path}: both {name} and {name}.gz exist")
    return found[0] if found else None
