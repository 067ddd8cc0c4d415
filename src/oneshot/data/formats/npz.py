"""NPZ: facts as three integer arrays, h, r and t, and an array of weights."""

import io
from pathlib import Path

import numpy as np

from oneshot.data.formats.base import (
    FACT_COLUMNS,
    WEIGHT,
    Columns,
    Format,
    RawFacts,
    as_weights,
    fact_number,
    header_order,
)
from oneshot.errors import InputError


def read_npz(data: bytes, path: Path, wanted: Columns = FACT_COLUMNS) -> RawFacts:
    """The facts of an NPZ file, as ids."""
    if not data.startswith(b"PK"):  # numpy would also accept a plain array or a pickle
        raise InputError(f"{path}: not an NPZ file")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            names = list(archive.files)
            order = header_order(names, wanted)
            columns = [archive[names[place]] for place in order or ()]
    # A damaged archive may raise from zipfile, zlib, struct, tokenize or numpy.
    except Exception as error:
        raise InputError(f"{path}: not a readable NPZ file ({error})") from error
    if not columns:
        expected = ", ".join(["h, r, t", *wanted.get(WEIGHT, ())])
        raise InputError(
            f"{path}: expected the arrays {expected}, found {', '.join(names) or 'none'}"
        )
    columns, weights = columns[:3], columns[3:]
    if any(np.ndim(column) != 1 or column.dtype.kind not in "iu" for column in columns):
        raise InputError(f"{path}: the arrays h, r, t must be integers of one dimension")
    if any(np.ndim(column) != 1 for column in weights):
        raise InputError(f"{path}: the array of weights must have one dimension")
    if len({len(column) for column in (*columns, *weights)}) != 1:
        named = "h, r, t and of weights" if weights else "h, r, t"
        raise InputError(f"{path}: the arrays {named} differ in length")
    if not len(columns[0]):
        raise InputError(f"{path}: the file has no facts")
    if not weights:
        return RawFacts(path, columns, are_ids=True)
    numbers = as_weights(weights[0], lambda row: fact_number(path, row))
    return RawFacts(path, columns, are_ids=True, weights=numbers)


NPZ = Format(read=read_npz, read_weighted=read_npz)
