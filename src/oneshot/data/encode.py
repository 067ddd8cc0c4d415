"""Encoding: raw facts of all splits as ids of common vocabularies."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oneshot.data.formats import RawFacts, place_of
from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.fact_keys import check_ids
from oneshot.graph.graph import check_relations
from oneshot.graph.vocabulary import Vocabulary

# Ids without names may have gaps, but not so large that the gaps exhaust memory.
_SPARSE_IDS = 1_000_000
_SPARSE_IDS_PER_FACT = 100


def numbered(
    splits: list[RawFacts], entities: Vocabulary | None, relations: Vocabulary | None
) -> tuple[list[NDArray[np.int64]], Vocabulary, Vocabulary]:
    """Facts as ids of common vocabularies, one int64 [n, 3] per split.

    Without a given vocabulary, ids follow the sorted order of the names (ids in NPZ files do not
    change). With one, an unknown name is an error.
    """
    if any(split.are_ids != splits[0].are_ids for split in splits):
        raise InputError(
            f"{_place(splits)}: NPZ files of ids cannot be combined with files of names"
        )
    if splits[0].are_ids:
        facts, entities, relations = _check_numbers(splits, entities, relations)
        check_relations(relations, _place(splits))
        return facts, entities, relations
    heads_and_tails, entities = _number_names(splits, (0, 2), entities, "entity")
    labels, relations = _number_names(splits, (1,), relations, "relation")
    check_relations(relations, _place(splits))
    facts = [
        np.stack([heads_and_tails[0][i], labels[0][i], heads_and_tails[1][i]], axis=1)
        for i in range(len(splits))
    ]
    return facts, entities, relations


def _place(splits: list[RawFacts]) -> str:
    """The file, or the directory of several files, for messages."""
    return str(splits[0].path if len(splits) == 1 else splits[0].path.parent)


def _number_names(
    splits: list[RawFacts], places: tuple[int, ...], given: Vocabulary | None, kind: str
) -> tuple[list[list[NDArray[np.int64]]], Vocabulary]:
    """Ids of some columns of all splits: (ids[column][split] int64 [n], vocabulary)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [[split.columns[place] for split in splits] for place in places]
    chunks = [chunk for column in columns for part in column for chunk in part.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode().combine_chunks()
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
    names = encoded.dictionary
    if given is None:
        order = pc.sort_indices(names)
        new_id = np.empty(len(names), np.int64)
        new_id[order.to_numpy()] = np.arange(len(names))
        vocabulary = vocabulary_of(names.take(order), kind)
    else:
        vocabulary = given
        new_id = look_up(names, given)
    ids = new_id[encoded.indices.to_numpy()]
    unknown = np.flatnonzero(ids < 0)
    sizes = [len(part) for column in columns for part in column]
    parts = np.split(ids, np.cumsum(sizes)[:-1])
    if len(unknown):
        for position, part in enumerate(parts):
            bad = np.flatnonzero(part < 0)
            if len(bad):
                split = splits[position % len(splits)]
                column = columns[position // len(splits)][position % len(splits)]
                name = column[int(bad[0])].as_py()
                row = int(bad[0])
                where = place_of(split.path, row) if split.place is None else split.place(row)
                raise UnknownNameError(kind, name, vocabulary.nearest(name), where=where)
    rows = len(splits)
    return [parts[i : i + rows] for i in range(0, len(parts), rows)], vocabulary


def look_up(names: Any, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """The id of each name of a pyarrow string array in a vocabulary, -1 if absent; int64 [n]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.index_in(names.cast(pa.large_string()), value_set=arrow_names(vocabulary))
    return np.asarray(found.fill_null(-1), dtype=np.int64)


def arrow_names(vocabulary: Vocabulary) -> Any:
    """The names of a vocabulary as a pyarrow array of large strings, which shares its memory."""
    import pyarrow as pa

    return pa.LargeStringArray.from_buffers(
        len(vocabulary),
        pa.py_buffer(np.ascontiguousarray(vocabulary.offsets)),
        pa.py_buffer(np.ascontiguousarray(vocabulary.blob)),
    )


def vocabulary_of(names: Any, kind: str) -> Vocabulary:
    """The vocabulary of a pyarrow string array of distinct names."""
    import pyarrow as pa

    names = names.cast(pa.large_string())
    _, offsets, blob = names.buffers()
    ends = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
    letters = np.frombuffer(blob, np.uint8) if blob is not None else np.zeros(0, np.uint8)
    return Vocabulary(letters[ends[0] : ends[-1]], ends - ends[0], kind)


def _check_numbers(
    splits: list[RawFacts], entities: Vocabulary | None, relations: Vocabulary | None
) -> tuple[list[NDArray[np.int64]], Vocabulary, Vocabulary]:
    """`numbered` for facts that are ids already."""
    if entities is None:
        entities = _numbers_used(splits, (0, 2), "entity", "entities.txt")
    if relations is None:
        relations = _numbers_used(splits, (1,), "relation", "relations.txt")
    for split in splits:
        for column, names in zip(split.columns, (entities, relations, entities), strict=True):
            check_ids(column, names, where=str(split.path))
    facts = [np.stack([c.astype(np.int64) for c in split.columns], axis=1) for split in splits]
    return facts, entities, relations


def _numbers_used(
    splits: list[RawFacts], places: tuple[int, ...], kind: str, names_file: str
) -> Vocabulary:
    """The vocabulary of the ids 0, 1, … up to the largest, with the numbers as names."""
    largest = max(int(split.columns[place].max()) for split in splits for place in places)
    used = sum(len(split.columns[0]) for split in splits)
    if largest > max(_SPARSE_IDS, _SPARSE_IDS_PER_FACT * used):
        path = next(s.path for s in splits for p in places if largest in s.columns[p])
        raise InputError(
            f"{path}: {kind} id {largest} is too large for {used:,} facts; ids start "
            f"at 0; for larger gaps use names, or a directory of splits with {names_file}"
        )
    return Vocabulary.numbered(max(largest + 1, 1), kind)
