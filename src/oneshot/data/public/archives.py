"""Archives of public data sets: extraction of the splits from the published files."""

import gzip
import io
import math
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from oneshot.data.dataset import SPLITS
from oneshot.data.public.ogb_negatives import candidates_file
from oneshot.errors import InputError


def unpack_archive(files: list[Path], directory: Path) -> None:
    """Extract the members train, valid and test of a tar or zip archive."""
    for name, member in _members(files[0]):
        split = Path(name).stem.rsplit("_", 1)[-1]
        if Path(name).suffix == ".txt" and split in SPLITS:
            with gzip.open(directory / f"{split}.tsv.gz", "wb", compresslevel=3) as target:
                shutil.copyfileobj(member, target, 1 << 20)
    missing = [split for split in SPLITS if not (directory / f"{split}.tsv.gz").exists()]
    if missing:
        raise InputError(f"{files[0].name}: the archive has no {missing[0]}.txt")


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the files in an archive; the names are not used as paths."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    with archive.open(info) as member:
                        yield info.filename, member
        return
    with tarfile.open(path, "r|*") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is not None:
                yield entry.name, content


def unpack_parts(files: list[Path], directory: Path) -> None:
    """Join the files of the official code: `facts` and `train` are one split."""
    for split, sources in (("train", files[:2]), ("valid", files[2:3]), ("test", files[3:])):
        with gzip.open(directory / f"{split}.tsv.gz", "wb", compresslevel=3) as target:
            for source in sources:
                with source.open("rb") as lines:
                    target.writelines(b"\t".join(line.split()) + b"\n" for line in lines)


def unpack_undivided(files: list[Path], directory: Path) -> None:
    """Extract one compressed table with a header, which is split when it is read."""
    with opened(files[0]) as source, gzip.open(directory / "facts.tsv.gz", "wb", 3) as target:
        source.readline()
        shutil.copyfileobj(source, target, 1 << 20)


def unpack_ogb(files: list[Path], directory: Path) -> None:
    """Extract the arrays and names of an OGB knowledge graph.

    OGB's own loader is not used: it unpickles arbitrary objects and prompts for input.
    """
    splits: dict[str, dict[str, Any]] = {}
    names: dict[str, list[str]] = {}
    for name, member in _members(files[0]):
        path = Path(name)
        if path.suffix == ".pt" and path.stem in SPLITS:
            splits[path.stem] = _safe_arrays(member.read(), name)
        elif path.parent.name == "mapping" and path.name.endswith(".csv.gz"):
            names[path.name.removesuffix(".csv.gz")] = _second_column(member.read())
    if set(splits) != set(SPLITS):
        raise InputError(f"{files[0].name}: train.pt, valid.pt or test.pt is missing")
    _check_columns(files[0].name, splits)
    sizes = _type_sizes(splits.values())
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    for split, facts in splits.items():
        relation = np.asarray(facts["relation"], np.int64)
        ends = []
        for side in ("head", "tail"):
            ids = np.asarray(facts[side], np.int64)
            kinds = facts.get(f"{side}_type")
            if kinds is not None:
                ids = ids + np.array([starts[kind] for kind in kinds], np.int64)
            ends.append(ids)
        np.savez(directory / f"{split}.npz", h=ends[0], r=relation, t=ends[1])
        if "head_neg" in facts and "tail_neg" in facts:
            negatives = {side: _negatives(facts, side, starts) for side in ("head", "tail")}
            np.savez(candidates_file(directory, split), **negatives)  # type: ignore[arg-type]
    relations = 1 + max(int(np.max(facts["relation"])) for facts in splits.values())
    if set(sizes) == {""}:
        entities = _or_numbers(names.get("nodeidx2entityid"), sizes[""])
    else:
        entities = [f"{kind}:{i}" for kind, size in sizes.items() for i in range(size)]
    known = names.get("relidx2relname") or names.get("reltype2relid")
    write_names(directory / "entities.txt", entities)
    write_names(directory / "relations.txt", _or_numbers(known, relations))


def _check_columns(archive: str, splits: dict[str, dict[str, Any]]) -> None:
    """Raise unless the columns of each split fit each other, with ids that can be numbered.

    The ids of OGB are consecutive, so none is as large as the number of ids in all splits.
    """
    counts: dict[str, int] = {"entity": 0, "relation": 0}
    for facts in splits.values():
        for name, column in facts.items():
            if isinstance(column, np.ndarray) and not name.endswith("_type"):
                counts["relation" if name == "relation" else "entity"] += column.size
    for split, facts in splits.items():
        for name in ("head", "relation", "tail"):
            if name not in facts:
                raise InputError(f"{archive}: {split} has no column {name}")
        rows = {len(column) for column in facts.values()}
        if len(rows) != 1:
            raise InputError(f"{archive}: the columns of {split} differ in length")
        for name in ("head", "relation", "tail", "head_neg", "tail_neg"):
            column = facts.get(name)
            if column is None:
                continue
            dimensions = 2 if name.endswith("_neg") else 1
            limit = counts["relation" if name == "relation" else "entity"]
            is_valid = (
                isinstance(column, np.ndarray)
                and column.dtype.kind in "iu"
                and column.ndim == dimensions
                and (not column.size or 0 <= int(column.min()) <= int(column.max()) < limit)
            )
            if not is_valid:
                raise InputError(f"{archive}: {name} of {split} has invalid ids")
        types = [facts.get(name) for name in ("head_type", "tail_type")]
        if types != [None, None] and not all(isinstance(column, list) for column in types):
            raise InputError(f"{archive}: the types of {split} are not complete")


def _negatives(facts: dict[str, Any], side: str, starts: dict[str, int]) -> NDArray[np.int32]:
    """Negative entities for one side of each fact, [facts, c], as ids of the whole graph."""
    found = np.asarray(facts[f"{side}_neg"], np.int64)
    kinds = facts.get(f"{side}_type")
    if kinds is not None:
        found = found + np.array([starts[kind] for kind in kinds], np.int64)[:, None]
    return found.astype(np.int32)


def _type_sizes(splits: Iterable[dict[str, Any]]) -> dict[str, int]:
    """The number of entities per type, in the order of the types; one type "" if there are none."""
    sizes: dict[str, int] = {}
    for facts in splits:
        for side in ("head", "tail"):
            ids = np.asarray(facts[side], np.int64)[:, None]
            if f"{side}_neg" in facts:  # an entity may occur only there
                ids = np.concatenate([ids, np.asarray(facts[f"{side}_neg"], np.int64)], axis=1)
            kinds = np.asarray(facts.get(f"{side}_type", [""] * len(ids)))
            for kind in np.unique(kinds).tolist():
                sizes[kind] = max(sizes.get(kind, 0), int(ids[kinds == kind].max()) + 1)
    return dict(sorted(sizes.items()))


def _safe_arrays(data: bytes, name: str) -> dict[str, Any]:
    """The dictionary of columns in a file of `torch.save`: arrays of numbers or lists of strings.

    The safe reader of torch supports only pickle protocol 2; OGB's files use later ones.
    """
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                inner = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
                columns = _OnlyArrays(io.BytesIO(archive.read(inner))).load()
        else:
            # The format of torch up to 1.5: a magic number, a version and system information first.
            file = io.BytesIO(data)
            for _ in range(3):
                _OnlyArrays(file).load()
            columns = _OnlyArrays(file).load()
        return {str(key): _column(value) for key, value in dict(columns).items()}
    except Exception as error:  # a damaged pickle can fail anywhere
        raise InputError(f"{name}: not a file of arrays ({error})") from error


def _column(value: Any) -> Any:
    """A pickled value as an array of numbers or a list of strings."""
    if isinstance(value, _PickledArray):
        return value.array()
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return value
    raise ValueError(f"a column is a {type(value).__name__} instead of an array or strings")


class _OnlyArrays(pickle.Unpickler):
    """Reads numbers, strings, containers and arrays of numbers; refuses anything else.

    Nothing of numpy is called: its own reconstruction takes the type and the memory of an array
    from the file as they are, so that a file could present its bytes as addresses of objects.
    """

    def find_class(self, module: str, name: str) -> Any:
        known = _STAND_INS.get((module.replace("numpy.core", "numpy._core"), name))
        if known is None:
            raise pickle.UnpicklingError(f"it would execute {module}.{name}")
        return known


class _PickledType:
    """The type of a pickled array, of which only the name and the byte order are used."""

    def __init__(self, name: object, *_: object) -> None:
        if not isinstance(name, str) or name not in _NUMBERS:
            raise pickle.UnpicklingError(f"its type {name!r} is not a type of numbers")
        self.name, self.order = name, "<"

    def __setstate__(self, state: Any) -> None:
        self.order = ">" if state[1] == ">" else "<"

    def dtype(self) -> "np.dtype[Any]":
        return np.dtype(self.order + self.name)


class _PickledArray:
    """A pickled array: shape, type, order of the axes and bytes, which must fit each other."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> NDArray[Any]:
        _, shape, dtype, is_fortran, content = self.state
        if not isinstance(dtype, _PickledType) or not isinstance(content, bytes):
            raise TypeError("an array has no type of numbers or no bytes")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("an array has no valid shape")
        numbers = np.frombuffer(content, dtype.dtype())
        if math.prod(shape) != len(numbers):
            raise ValueError(f"an array of shape {shape} has {len(numbers)} numbers")
        return numbers.reshape(shape, order="F" if is_fortran else "C")


class _NoArray:
    """Stands for the class of arrays, which is named but never created."""


def _text_as_bytes(text: object, encoding: object) -> bytes:
    """The bytes of an array in pickle protocol 2, which has no bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it contains text in an unexpected encoding")
    return text.encode("latin1")


class _StandIn:
    """What a name in a pickle stands for: it can be called, and keeps no state from the file."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *given: Any) -> Any:
        return self._make(*given)

    def __setstate__(self, _: Any) -> None:
        raise pickle.UnpicklingError("it would change what a name stands for")


_NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f2", "f4", "f8", "b1"}
_STAND_INS = {
    ("numpy", "ndarray"): _StandIn(_NoArray),
    ("numpy", "dtype"): _StandIn(_PickledType),
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_PickledArray),
    ("_codecs", "encode"): _StandIn(_text_as_bytes),
}


def _second_column(data: bytes) -> list[str]:
    lines = gzip.decompress(data).decode().splitlines()[1:]
    return [line.split(",", 1)[1] for line in lines if "," in line]


def _or_numbers(names: list[str] | None, count: int) -> list[str]:
    """The names, if they are complete and distinct; otherwise numbers."""
    is_whole = names is not None and len(names) >= count and len(set(names)) == len(names)
    return names if is_whole and names is not None else [str(i) for i in range(count)]


def write_names(path: Path, names: Iterable[str]) -> None:
    path.write_text("".join(name + "\n" for name in names), encoding="utf-8")


def opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
