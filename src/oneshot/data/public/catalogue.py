"""Catalogue of public benchmarks, which are downloaded once, verified and cached.

A data set becomes a directory of splits in the cache, as if a user had put it there. The text of
the source is not changed. PyKEEN's own loaders drop facts of valid and test whose entities do not
occur in train, which changes the benchmark; they are used only for names that are not in the table
here, as `pykeen:NAME`.
"""

import hashlib
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oneshot.data.dataset import SPLITS
from oneshot.data.locate import cache_directory
from oneshot.data.public.archives import (
    opened,
    unpack_archive,
    unpack_ogb,
    unpack_parts,
    unpack_undivided,
    write_names,
)
from oneshot.data.public.download import Progress, WrongHashError, checksum, download
from oneshot.data.public.hashes import (
    given_hashes,
    hashes_file,
    record_hashes,
    recorded_hashes,
)
from oneshot.errors import InputError, require
from oneshot.system.checksums import read_json
from oneshot.system.files import locked, sync, write_json

PYKEEN = "pykeen:"
_DONE = "source.json"
_INCOMPLETE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError)


@dataclass(frozen=True)
class Named:
    """The source of a data set, and its expected content.

    `urls`: its files. `unpack`: the function that writes the splits. `facts`: the number of facts
    in train, valid and test (or of all facts, without splits). `digest`: digest of the facts (see
    `facts_digest`), if a trusted copy was available. `sha256`: hashes of the files, where a trusted
    copy of them was available; all others are recorded at the first download.
    """

    urls: tuple[str, ...]
    unpack: Callable[[list[Path], Path], None]
    facts: tuple[int, ...]
    digest: str | None = None
    sha256: tuple[str, ...] = ()


def is_named(name: str) -> bool:
    """Whether a data set of this name can be downloaded."""
    return name in NAMED or name.startswith(PYKEEN)


def fetch(name: str, progress: Progress | None = None, sha256: Sequence[str] = ()) -> Path:
    """The directory of a named data set in the cache; downloads the data set if it is missing.

    `sha256`: the expected hash of each file of the source. They replace recorded ones.
    """
    target = cache_directory() / name.replace(":", "-")
    expected: dict[str, str] = {}
    if sha256:
        if name not in NAMED:
            raise InputError(f"{name}: --sha256 needs one of {', '.join(NAMED)}")
        expected = given_hashes(name, NAMED[name].urls, sha256)
    if target.is_dir():
        if expected:
            _check_source(name, target, expected)
        return target
    if os.environ.get("ONESHOT_OFFLINE"):
        raise InputError(f"{name} is not in the cache, and $ONESHOT_OFFLINE forbids downloads")
    arriving = cache_directory() / ".downloads" / target.name
    arriving.parent.mkdir(parents=True, exist_ok=True)
    # Several processes of a training may need the same data at once: one of them downloads it.
    with locked(arriving.with_name(f"{target.name}.lock")):
        if not target.is_dir():
            _fetch(name, target, arriving, progress, expected)
    return target


def source_hashes(directory: Path) -> dict[str, str]:
    """The hash of each file, by address, that a data set in the cache was read from.

    Empty if the directory is not a download.
    """
    if directory.parent != cache_directory() or not (directory / _DONE).is_file():
        return {}
    about = read_json(directory / _DONE)
    urls, sums = about.get("urls"), about.get("sha256")
    if not isinstance(urls, list) or not isinstance(sums, list):
        return {}  # a copy of a database
    return {str(url): str(found) for url, found in zip(urls, sums, strict=False)}


def _check_source(name: str, directory: Path, expected: dict[str, str]) -> None:
    """Raise unless a data set in the cache was read from files with these hashes."""
    found = source_hashes(directory)
    for url, wanted in expected.items():
        if found.get(url) != wanted:
            raise InputError(
                f"{directory} was read from {url} with SHA-256 {found.get(url, 'unknown')} "
                f"instead of {wanted}; remove the directory to download {name} again"
            )


def _fetch(
    name: str,
    target: Path,
    arriving: Path,
    progress: Progress | None,
    given: dict[str, str],
) -> None:
    if name.startswith(PYKEEN):
        with _replacing(target) as directory:
            _from_pykeen(name.removeprefix(PYKEEN), directory)
        return
    named = NAMED[name]
    recorded = recorded_hashes()
    expected = recorded | dict(zip(named.urls, named.sha256, strict=False)) | given
    files = []
    for url in named.urls:
        file = arriving / url.rsplit("/", 1)[1]
        # It may have arrived in an earlier call, with another hash than is expected now.
        if file.exists() and url in expected and checksum(file) != expected[url]:
            file.unlink()
        if not file.exists():
            try:
                download(url, file, expected.get(url), progress)
            except WrongHashError as error:
                if url in given or expected[url] != recorded.get(url):
                    raise
                raise _changed(name, url, error.found, recorded) from error
        files.append(file)
    sums = [checksum(file) for file in files]
    try:
        with _replacing(target) as directory:
            named.unpack(files, directory)
            _check(name, named, directory)
            write_json(directory / _DONE, {"name": name, "urls": named.urls, "sha256": sums})
            # Before the data set is there: otherwise nothing would record them any more.
            record_hashes(dict(zip(named.urls, sums, strict=True)))
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the local disk
            raise
        shutil.rmtree(arriving)  # also of an unforeseen error: the next call must not fail again
        if isinstance(error, InputError):
            raise
        if isinstance(error, _INCOMPLETE):
            fault = "incomplete archive"
        else:
            fault = "the archive is not readable"
        raise InputError(f"{named.urls[0]}: {fault} ({error}); try again") from error
    shutil.rmtree(arriving)


def _changed(name: str, url: str, found: str, recorded: dict[str, str]) -> InputError:
    """The error of a file that is not the one that was downloaded before."""
    now = [found if one == url else recorded.get(one, "HASH") for one in NAMED[name].urls]
    accept = " ".join(f"--sha256 {value}" for value in now)
    return InputError(
        f"{url}: wrong checksum: SHA-256 {found} instead of {recorded[url]}, which {hashes_file()} "
        "records of an earlier download; the file was removed. If the publisher confirms the new "
        f"file, accept it: oneshot data {name} {accept}"
    )


def facts_digest(directory: Path) -> str:
    """A digest of the facts in the text files of a directory, independent of their order."""
    digest = hashlib.sha256()
    for split in SPLITS:
        with opened(_split_in(directory, split)) as file:
            for line in sorted(line.rstrip(b"\r\n") for line in file):
                digest.update(line + b"\n")
        digest.update(b"\n")
    return digest.hexdigest()


def _check(name: str, named: Named, directory: Path) -> None:
    """Raise if the data set does not have the expected content."""
    splits = SPLITS if len(named.facts) > 1 else ("facts",)
    for split, expected in zip(splits, named.facts, strict=True):
        found = _count_facts(_split_in(directory, split))
        if found != expected:
            raise InputError(
                f"{named.urls[0]}: {split} of {name} has {found:,} facts instead of {expected:,}; "
                "the file was removed. It has changed on the server: report this, or put the data "
                "set into $ONESHOT_DATA manually"
            )
    if named.digest is not None and facts_digest(directory) != named.digest:
        raise InputError(
            f"{named.urls[0]}: wrong checksum of the facts of {name}; the file was removed. It has "
            "changed on the server: report this, or put the data set into $ONESHOT_DATA manually"
        )


def _count_facts(path: Path) -> int:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return len(arrays["h"])
    with opened(path) as file:
        return sum(1 for line in file if line.strip())


def _split_in(directory: Path, split: str) -> Path:
    return next(directory.glob(f"{split}.*"))


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """An empty directory that is renamed to `target` if the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        temporary.replace(target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _from_pykeen(name: str, directory: Path) -> None:
    """Any data set of PyKEEN, read by its own loader."""
    loaders = require("pykeen.datasets", "datasets", f"loading {PYKEEN}{name}")
    if name.casefold() not in {known.casefold() for known in loaders.dataset_resolver.lookup_dict}:
        raise InputError(f"PyKEEN has no data set {name!r}; see `pykeen ls datasets`")
    data = loaders.get_dataset(dataset=name)
    if data.validation is None:
        raise InputError(f"PyKEEN's data set {name!r} has no valid split")
    parts = zip(SPLITS, (data.training, data.validation, data.testing), strict=True)
    for split, factory in parts:
        facts: NDArray[np.int64] = np.asarray(factory.mapped_triples, np.int64)
        np.savez(directory / f"{split}.npz", h=facts[:, 0], r=facts[:, 1], t=facts[:, 2])
    for file, ids in (
        ("entities.txt", data.training.entity_to_id),
        ("relations.txt", data.training.relation_to_id),
    ):
        write_names(directory / file, sorted(ids, key=ids.__getitem__))


_CONVE = "https://github.com/TimDettmers/ConvE/raw/master"
_OFFICIAL = "https://raw.githubusercontent.com/tmlr-group/one-shot-subgraph/main/data"
_OGB = "https://snap.stanford.edu/ogb/data/linkproppred"

NAMED: dict[str, Named] = {
    "WN18RR": Named(
        (f"{_CONVE}/WN18RR.tar.gz",),
        unpack_archive,
        (86_835, 3_034, 3_134),
        digest="4d885dfb9659831e89f35343e839eebca6e2f331515e60a9b354ce46ce9ef72a",
    ),
    "FB15k-237": Named(
        (f"{_CONVE}/FB15k-237.tar.gz",),
        unpack_archive,
        (272_115, 17_535, 20_466),
        digest="025a3141dd7cd9386d8c7bb89a00b3232f6d4d356d8d2cebce2d0fc573cf6810",
    ),
    "NELL-995": Named(
        tuple(f"{_OFFICIAL}/nell/{part}.txt" for part in ("facts", "train", "valid", "test")),
        unpack_parts,
        (149_678, 543, 2_818),
        digest="1b64c18291c99e87a7ab3a205f822a4bba2589b533b495972d5159edae735e80",
    ),
    "YAGO3-10": Named((f"{_CONVE}/YAGO3-10.tar.gz",), unpack_archive, (1_079_040, 5_000, 5_000)),
    "ogbl-biokg": Named((f"{_OGB}/biokg.zip",), unpack_ogb, (4_762_678, 162_886, 162_870)),
    "ogbl-wikikg2": Named((f"{_OGB}/wikikg-v2.zip",), unpack_ogb, (16_109_182, 429_456, 598_543)),
    "Hetionet": Named(
        ("https://github.com/hetio/hetionet/raw/master/hetnet/tsv/hetionet-v1.0-edges.sif.gz",),
        unpack_undivided,
        (2_250_197,),
    ),
    "Wikidata5M": Named(
        ("https://zenodo.org/record/5546383/files/wikidata5m_transductive.tar.gz",),
        unpack_archive,
        (20_614_279, 5_163, 5_163),
    ),
}
"""Data sets that can be downloaded, by name."""
