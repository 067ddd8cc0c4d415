"""Copies of data sources in the cache.

A database changes, and a run must find the facts that it was trained on. So every reading of an
address writes a copy, named by its content, and the run refers to the copy. The copy is a directory
with one table, which is split like a single file, and `source.json`, which records the address
without user, password and token.

Copies would pile up. Each reading removes those that nothing has opened for `KEPT_DAYS`, unless a
run that was trained on one is still where it was.
"""

import hashlib
import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oneshot.data.formats.base import FACT_COLUMNS
from oneshot.data.locate import cache_directory
from oneshot.data.sources import SOURCES, Address
from oneshot.data.sources.base import Batch, Progress
from oneshot.errors import InputError
from oneshot.system.files import sync, write_json

ABOUT, FACTS = "source.json", "facts.parquet"
_HOME = "sources"  # in the cache
USERS = "used-by"
"""File of a copy with the paths of the files that refer to it, one per line."""
KEPT_DAYS = 30.0
"""Days after which a copy that was not opened and that no file refers to is removed."""
SORTED_BYTES = 1 << 28
"""Size of the names in bytes up to which a copy is sorted, so that its split does not depend on the
order in which a server sends the facts."""


@dataclass(frozen=True)
class Copy:
    """What a copy is of. `address`: without secrets; `notes`: remarks of the reader."""

    address: str
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the data set: the address without options."""
        return self.address.partition("?")[0]


def fetch(address: Address, progress: Progress | None = None) -> Path:
    """The directory of a copy of what an address names now. Nothing is kept after an error."""
    source = SOURCES[address.scheme]
    if os.environ.get("ONESHOT_OFFLINE") and not source.is_file:
        raise InputError(f"{address}: $ONESHOT_OFFLINE forbids connections")
    notes: list[str] = []
    batches = source.read(address, notes)
    first = next(batches, None)  # before anything is written
    if first is None:
        raise address.error("; ".join(["the result has no facts", *_ends(notes)]))
    home = cache_directory() / _HOME
    temporary = home / f".reading.{uuid.uuid4().hex}"
    temporary.mkdir(parents=True)
    try:
        facts = temporary / FACTS
        count = _write(facts, itertools.chain([first], batches), progress or (lambda _: None))
        about = {"address": address.public, "facts": count, "notes": notes}
        write_json(temporary / ABOUT, about)
        (temporary / USERS).touch()
        digest = hashlib.sha256((temporary / ABOUT).read_bytes())
        with facts.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
        for path in (facts, temporary):
            sync(path)
        target = home / f"{address.scheme}-{digest.hexdigest()[:16]}"
        try:
            temporary.replace(target)
        except OSError:
            if not (target / ABOUT).is_file():  # otherwise the same copy is already there
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(home)
    _touch(target)
    _remove_unused(home)
    return target


def keep_copy(copy: Path, file: Path) -> None:
    """Keep a copy as long as `file` is there and names it.

    Directories outside of the cache are ignored: a run of others may name any.
    """
    if not _is_cached(copy) or copy_at(copy) is None:
        return
    line = f"{file.absolute()}\n"
    # Without the note, the copy may only be removed earlier; the cache may be read-only.
    with suppress(OSError), (copy / USERS).open("a+", encoding="utf-8") as users:
        users.seek(0)
        if line not in users:
            users.write(line)


def _is_cached(path: Path) -> bool:
    """Whether a path is that of an entry of the cache, where `fetch` puts copies."""
    with suppress(InputError, OSError, RuntimeError):  # no home directory; a circle of links
        return path.resolve().parent == (cache_directory() / _HOME).resolve()
    return False


def _touch(path: Path) -> None:
    """Record that a copy is in use."""
    with suppress(OSError):
        os.utime(path / ABOUT)


def _remove_unused(home: Path) -> None:
    """Remove the copies that were not opened for a long time and that no file refers to."""
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for path in home.iterdir():
        with suppress(OSError):  # also of copies of earlier versions, whose users are unknown
            if (path / ABOUT).stat().st_mtime < oldest and not _is_used(path):
                shutil.rmtree(path)


def _is_used(path: Path) -> bool:
    """Whether one of the files that referred to a copy is still there and does so."""
    files = map(Path, (path / USERS).read_text(encoding="utf-8").splitlines())
    return any(file.is_file() and path.name in file.read_text("utf-8") for file in files)


def copy_at(path: Path) -> Copy | None:
    """What the directory `path` is a copy of; None if it is no copy."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        address, notes = about["address"], about["notes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(address, str) or not isinstance(notes, list):
        return None
    if _is_cached(path):
        _touch(path)
    return Copy(address, [str(note) for note in notes])


def _ends(notes: list[str]) -> Iterator[str]:
    """Notes without the address before them."""
    return (note.rpartition(": ")[2] for note in notes)


def _write(path: Path, batches: Iterator[Batch], progress: Progress) -> int:
    """Write facts as a Parquet file, sorted if they are few. Returns their number."""
    import pyarrow as pa
    import pyarrow.parquet

    names = list(FACT_COLUMNS)
    schema = pa.schema([(name, pa.string()) for name in names])
    held: list[Any] = []
    count = size = 0
    with pyarrow.parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for batch in batches:
            table = pa.table(batch, names=names).cast(schema)
            held.append(table)
            count, size = count + table.num_rows, size + table.nbytes
            progress(count)
            if size > SORTED_BYTES:
                for some in held:
                    writer.write_table(some)
                held = []
        if held:
            table = pa.concat_tables(held)
            if size <= SORTED_BYTES:
                table = table.sort_by([(name, "ascending") for name in names])
            writer.write_table(table)
    return count
