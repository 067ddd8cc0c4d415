"""SHA-256 hashes of downloaded files, which are recorded at the first download of an address.

Publishers give no hashes for most archives. So the first download of an address decides (trust on
first use): its hash is recorded in the cache if the content was accepted, and a later download of
the same address must have the same.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from oneshot.data.locate import cache_directory
from oneshot.errors import InputError
from oneshot.system.checksums import read_sealed_json, write_sealed_json
from oneshot.system.files import locked

_HASH = re.compile(r"[0-9a-f]{64}")


def hashes_file() -> Path:
    """The file of the recorded hashes."""
    return cache_directory() / "sha256.json"


def recorded_hashes() -> dict[str, str]:
    """The recorded hash of each address; an error if the file is damaged."""
    path = hashes_file()
    if not path.exists():
        return {}
    try:
        found = read_sealed_json(path)
    except InputError as error:
        raise InputError(
            f"{error}; or remove it, and the next download of each address decides again"
        ) from error
    for url, value in found.items():
        if not isinstance(value, str) or not _HASH.fullmatch(value):
            raise InputError(f"{path}: {url} has no SHA-256; remove this file")
    return found


def record_hashes(hashes: Mapping[str, str]) -> None:
    """Record the hashes of accepted downloads by address; replaces those of the same addresses."""
    path = hashes_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may have downloaded different data sets.
    with locked(path.with_name(f".{path.name}.lock")):
        write_sealed_json(path, recorded_hashes() | dict(hashes))


def given_hashes(name: str, urls: Sequence[str], hashes: Sequence[str]) -> dict[str, str]:
    """The hashes that a user expects of the files of a data set, by address."""
    given = [text.strip().lower() for text in hashes]
    wrong = [text for text in given if not _HASH.fullmatch(text)]
    if wrong:
        raise InputError(f"--sha256: {wrong[0]!r} is not a SHA-256 of 64 hexadecimal digits")
    if len(given) != len(urls):
        raise InputError(
            f"--sha256: {name} has {len(urls)} files and not {len(given)}; give the option once "
            f"for each of them, in this order: {', '.join(urls)}"
        )
    return dict(zip(urls, given, strict=True))
