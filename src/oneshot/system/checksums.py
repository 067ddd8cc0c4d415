"""Checksums inside files, which reveal a changed bit when the file is read.

Each file contains its own checksum: both are replaced in one step, and a process killed between two
files leaves both valid. Checksums detect damage, not forgery: anyone who can write the file can
also write the checksum. Files of earlier versions have none and are read without a check.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from oneshot.errors import InputError
from oneshot.system.files import check_readable, write_json, write_text

KEY = "checksum"

_LINE = re.compile(rf"# {KEY}: ([0-9a-f]{{32}})\r?\n")


def digest(content: bytes) -> str:
    """The checksum of bytes: 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_digest(path: Path) -> str:
    """The checksum of a file, which is read in chunks."""
    check_readable(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the checksum of its other values."""
    # As it will be read: keys that are numbers become strings.
    rest: dict[str, Any] = json.loads(json.dumps({k: v for k, v in value.items() if k != KEY}))
    return rest | {KEY: digest(json.dumps(rest, sort_keys=True).encode())}


def is_intact(value: dict[str, Any]) -> bool:
    """Whether the checksum of an object is correct or missing."""
    return KEY not in value or sealed(value)[KEY] == value[KEY]


def write_sealed_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with its checksum."""
    write_json(path, sealed(value))


def read_sealed_json(path: Path) -> dict[str, Any]:
    """Read the object of a file that `write_sealed_json` wrote, without its checksum."""
    value = read_json(path)
    if not is_intact(value):
        raise damaged(path)
    value.pop(KEY, None)
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    check_readable(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); restore it from a copy") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: not written by oneshot")
    return value


def write_sealed_text(path: Path, text: str) -> None:
    """Write text of a format with `#` comments; its checksum is in the first line."""
    write_text(path, f"# {KEY}: {digest(text.encode())}\n{text}")


def read_sealed_text(path: Path) -> str:
    """Read the text of a file that `write_sealed_text` wrote; raises if it was changed since."""
    check_readable(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid UTF-8 text ({error})") from error
    found = _LINE.match(text)
    if found is not None and digest(text[found.end() :].encode()) != found[1]:
        raise damaged(path, f"; if the change is intended, remove the first line `# {KEY}: …`")
    if all(line.startswith("#") or not line.strip() for line in text.splitlines()):
        raise InputError(f"{path} is empty; restore it from a copy")
    return text


def damaged(path: Path, what_to_do: str = "; restore it from a copy") -> InputError:
    """The error of a file whose checksum is wrong."""
    return InputError(f"{path} was changed or damaged (wrong checksum){what_to_do}")
