"""NPZ: facts as three integer arrays, h, r and t."""

import io
from pathlib import Path

import numpy as np

from oneshot.data.formats.base import Format, RawFacts, header_order
from oneshot.errors import InputError


def read_npz(data: bytes, path: Path) -> RawFacts:
    """The facts of an NPZ file, as ids."""
    if not data.startswith(b"PK"):  # numpy would also accept a plain array or a pickle
        raise InputError(f"{path}: not an NPZ file")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            names = list(archive.files)
            order = header_order(names)
            columns = [archive[names[place]] for place in order or ()]
    # A damaged archive may raise from zipfile, zlib, struct, tokenize or numpy.
    except Exception as error:
        raise InputError(f"{path}: not a readable NPZ file ({error})") from error
    if not columns:
        raise InputError(f"{path}: expected the arrays h, r, t, found {', '.join(names) or 'none'}")
    if any(np.ndim(column) != 1 or column.dtype.kind not in "iu" for column in columns):
        raise InputError(f"{path}: the arrays h, r, t must be integers of one dimension")
    if len({len(column) for column in columns}) != 1:
        raise InputError(f"{path}: the arrays h, r, t differ in length")
    if not len(columns[0]):
        raise InputError(f"{path}: the file has no facts")
    return RawFacts(path, columns, are_ids=True)


NPZ = Format(read=read_npz)
