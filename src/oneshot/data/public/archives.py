"""Archives of public data sets: extraction of the splits from the published files."""

import gzip
import io
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
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
    """The dictionary of arrays in a file of `torch.save`, read without executing pickled code.

    The safe reader of torch supports only pickle protocol 2; OGB's files use later ones.
    """
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                inner = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
                return dict(_OnlyArrays(io.BytesIO(archive.read(inner))).load())
        # The format of torch up to 1.5: first a magic number, a version and system information.
        file = io.BytesIO(data)
        for _ in range(3):
            _OnlyArrays(file).load()
        return dict(_OnlyArrays(file).load())
    except Exception as error:  # a damaged pickle can fail anywhere
        raise InputError(f"{name}: not a file of arrays ({error})") from error


class _OnlyArrays(pickle.Unpickler):
    """Reads numbers, strings, containers and arrays; refuses anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _SAFE:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it would execute {module}.{name}")


_SAFE = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
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
