"""Vocabularies as text: files of one name per line."""

from pathlib import Path

import numpy as np

from oneshot.data.formats.base import read_bytes
from oneshot.errors import InputError
from oneshot.graph.vocabulary import Vocabulary


def read_names(path: Path, kind: str) -> Vocabulary:
    """The vocabulary in a file of one name per line."""
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    data = data.rstrip(b"\n") + b"\n"
    if data == b"\n":
        raise InputError(f"{path}: the file is empty")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not valid UTF-8") from error
    letters = np.frombuffer(data, np.uint8)
    line_ends = np.flatnonzero(letters == ord("\n"))
    offsets = np.concatenate([np.zeros(1, np.int64), line_ends - np.arange(len(line_ends))])
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        raise InputError(f"{path}, line {empty[0] + 1}: the line is empty; expected a name")
    vocabulary = Vocabulary(letters[letters != ord("\n")], offsets, kind)
    try:
        vocabulary.check_distinct()
    except InputError as error:
        raise InputError(f"{path}: {error} (the first line is number 0)") from error
    return vocabulary
