"""Build of saved graphs on disk, from text or Parquet files larger than memory.

The result equals that of `Dataset.save` for the same source. Facts are read in chunks, names get
ids by merging sorted runs, and duplicates and edges are found by sorting buckets on disk (`arrays`,
`names`). Each stage writes its results to a directory beside the target and is recorded in a
manifest when it is done. An interrupted build resumes with the stage that it had reached, and
within the first stage with the chunk.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oneshot.data.dataset import SPLITS
from oneshot.data.formats import Piece, can_stream, place_of, stream_facts
from oneshot.data.large import arrays as array_files
from oneshot.data.large.arrays import (
    AdjacencyWriter,
    ArrayReader,
    ArrayWriter,
    bounds_of,
    row_order,
    save_array,
)
from oneshot.data.large.names import NameRun, ids_file, look_up_runs, merge_runs, sorted_names
from oneshot.data.large.state import (
    BuildState,
    Options,
    Progress,
    alone_in,
    building_place,
    identity_of,
    manifest_in,
)
from oneshot.data.locate import SourceFiles
from oneshot.data.split import check_shares, split_notes, split_parts
from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.adjacency import integer_type
from oneshot.graph.graph import check_relations, fingerprint_of
from oneshot.graph.memory_map import map_array
from oneshot.graph.storage import (
    CONTENTS,
    MARKER,
    UNWEIGHTED,
    MappedEdges,
    MappedGraph,
    MappedNeighbours,
    check_destination,
    save_components,
    save_counts,
    write_marker,
)
from oneshot.graph.vocabulary import Vocabulary, hash_names
from oneshot.system.files import replacing_directory, sync

RUN_BYTES = 1 << 27  # of names sorted at a time
BUCKET_ROWS = 1 << 23  # facts or edges sorted at a time
_SAMPLED = 512  # one of so many facts is sampled to divide the buckets


def can_build(files: SourceFiles) -> bool:
    """Whether these files can be read in chunks."""
    return all(map(can_stream, files.splits))


def build_graph(
    files: SourceFiles, path: Path, options: Options | None = None, progress: Progress | None = None
) -> None:
    """Build the saved graph of a data set at `path`, or resume an interrupted build.

    Memory: a few hundred megabytes and two bytes per fact; to split a single file, ten bytes per
    fact; files of names are read as a whole. Disk: about twice the size of the files, beside
    `path`.
    """
    options = options or Options()
    check_destination(path)
    if len(files.splits) == 1:
        check_shares(options.valid_share, options.test_share)
    work = building_place(path)
    identity = identity_of(files, options)
    work.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(work):
        manifest = manifest_in(work, identity)
        build = _Build(files, options, work, manifest, progress or (lambda *_: None))
        try:
            build.run()
        except InputError:
            shutil.rmtree(work)  # the state is useless: the input must change
            raise
        with replacing_directory(path, MARKER, CONTENTS) as directory:
            for name in UNWEIGHTED:
                (work / name).replace(directory / name)
        shutil.rmtree(work)


class _Build(BuildState):
    """One build. Each stage is a method that reads and writes files in `work`."""

    def run(self) -> None:
        stages: dict[str, Callable[[], None]] = {
            "read": self._read,
            "entity": lambda: self._number_names("entity"),
            "relation": lambda: self._number_names("relation"),
            "number": self._number_facts,
            "distinct": self._find_repeats,
            "facts": self._divide,
            "edges": self._sort_edges,
            "components": self._find_components,
            "counts": self._count,
            "hashes": self._index_names,
            "marker": self._finish,
        }
        for name, stage in stages.items():
            if name not in self.manifest["done"]:
                stage()
                self.manifest["done"].append(name)
                self.note()

    # -- reading ---------------------------------------------------------------------------------

    def _read(self) -> None:
        """Write facts as indices into sorted runs of names."""
        runs = self.manifest["runs"]
        sizes = [file.stat().st_size for file in self.files.splits]
        for split, file in enumerate(self.files.splits):
            finished = [run for run in runs if run["split"] == split]
            if finished and finished[-1]["is_last"]:
                continue
            position = finished[-1]["position"] if finished else None
            waiting: list[Piece] = []
            for piece in stream_facts(file, position, self.work):
                if sum(c.nbytes for p in waiting for c in p.columns) >= RUN_BYTES:
                    self._write_run(waiting, split, is_last=False)
                    waiting = []
                waiting.append(piece)
                self.progress("reading", sum(sizes[:split]) + piece.done, sum(sizes))
            self._write_run(waiting, split, is_last=True)
            if not any(run["facts"] for run in runs if run["split"] == split):
                raise InputError(f"{file}: the file has no facts")

    def _write_run(self, pieces: list[Piece], split: int, is_last: bool) -> None:
        runs = self.manifest["runs"]
        count = sum(len(piece.columns[0]) for piece in pieces)
        columns = [[piece.columns[place] for piece in pieces] for place in range(3)]
        if count:
            entities, ends = sorted_names(columns[0] + columns[2])
            NameRun.write(self.stem("entity", len(runs)), entities)
            relations, labels = sorted_names(columns[1])
            NameRun.write(self.stem("relation", len(runs)), relations)
            local = np.stack([ends[:count], labels, ends[count:]], axis=1)
            save_array(self.work / f"run_{len(runs)}.npy", local)
        position = pieces[-1].position if pieces else None
        runs.append({"split": split, "facts": count, "position": position, "is_last": is_last})
        self.note()

    # -- numbering -------------------------------------------------------------------------------

    def _number_names(self, kind: str) -> None:
        """Write the ids of the names of all runs, and the vocabulary."""
        runs = [self.name_run(kind, number) for number in self.full_runs()]
        total, done = sum(map(len, runs)), 0
        title = "numbering entities" if kind == "entity" else "numbering relations"

        def advance(names: int) -> None:
            nonlocal done
            done += names
            self.progress(title, done, total)

        given = self.vocabulary(kind)
        if given is None:
            count = merge_runs(runs, self.work, kind, advance)
        else:
            look_up_runs(runs, given, self.work / f"given_{kind}", advance)
            save_array(self.work / f"{kind}_blob.npy", given.blob)
            save_array(self.work / f"{kind}_offsets.npy", given.offsets)
            count = len(given)
        if kind == "relation":
            blob, offsets = (np.load(self.work / f"relation_{a}.npy") for a in ("blob", "offsets"))
            splits = self.files.splits
            place = splits[0] if len(splits) == 1 else splits[0].parent
            check_relations(Vocabulary(blob, offsets, kind), str(place))
        self.manifest["counts"][kind] = count

    def _number_facts(self) -> None:
        """Write facts as ids, split by split, and a sample of them."""
        total, done, sample = sum(self.split_sizes()), 0, []
        for split in range(len(self.files.splits)):
            with ArrayWriter(self.work / f"numbered_{split}.npy", self.id_type, 3) as numbered:
                for number in self.full_runs(split):
                    runs = [
                        self.name_run(kind, number) for kind in ("entity", "relation", "entity")
                    ]
                    ids = [np.load(ids_file(run)) for run in runs[:2]]
                    local = np.load(self.work / f"run_{number}.npy")
                    facts = np.stack(
                        [ids[place % 2][local[:, place]] for place in range(3)], axis=1
                    )
                    if self.files.entities or self.files.relations:
                        self._check_known(facts, local, runs, split, numbered.length)
                    sample.append(facts[::_SAMPLED])
                    numbered.append(facts)
                    done += len(facts)
                    self.progress("numbering facts", done, total)
        save_array(self.work / "sample.npy", np.concatenate(sample).astype(np.int64))

    def _check_known(
        self, facts: NDArray[Any], local: NDArray[Any], runs: list[NameRun], split: int, before: int
    ) -> None:
        """Raise if a fact has a name that is not in a given vocabulary."""
        bad = np.argwhere(facts < 0)
        if not len(bad):
            return
        row, place = bad[0].tolist()
        vocabulary = self.vocabulary(kind := "relation" if place == 1 else "entity")
        assert vocabulary is not None
        name = runs[place].name(int(local[row, place])).decode()
        where = place_of(self.files.splits[split], before + row)
        raise UnknownNameError(kind, name, vocabulary.nearest(name), where=where)

    # -- facts -----------------------------------------------------------------------------------

    def _find_repeats(self) -> None:
        """Mark the first occurrence of each fact in each split."""
        for file in self.work.glob("run_*.npy"):  # no longer needed
            file.unlink()
        relations = self.count("relation")
        pairs = self.pair(*np.load(self.work / "sample.npy").T[[0, 2]])
        total, done = 2 * sum(self.split_sizes()), 0
        self.manifest["duplicates"] = 0
        for split in range(len(self.files.splits)):
            numbered = ArrayReader(self.work / f"numbered_{split}.npy")
            bounds = bounds_of(pairs, len(numbered), BUCKET_ROWS)
            rows = self.sorted_rows("repeats", bounds, (self.id_type, np.int64))
            start = 0
            for facts in numbered.pieces():
                row = np.arange(start, start + len(facts))
                rows.add(self.pair(facts[:, 0], facts[:, 2]), facts[:, 1], row)
                start, done = start + len(facts), done + len(facts)
                self.progress("finding duplicates", done, total)
            keep = np.ones(len(numbered), bool)
            for key, label, row in rows.buckets():
                order = row_order(key, label, relations)
                key, label, row = key[order], label[order], row[order]
                new = np.ones(len(key), bool)
                new[1:] = (key[1:] != key[:-1]) | (label[1:] != label[:-1])
                if not new.all():
                    keep[row] = False
                    keep[np.minimum.reduceat(row, np.flatnonzero(new))] = True
                done += len(key)
                self.progress("finding duplicates", done, total)
            save_array(self.work / f"keep_{split}.npy", keep)
            self.manifest["duplicates"] += int(len(keep) - keep.sum())

    def _divide(self) -> None:
        """Write the distinct facts of train, valid and test; a single file is split."""
        sizes = [int(np.load(self.work / f"keep_{s}.npy").sum()) for s in range(self.num_splits)]
        part, notes = None, []
        if self.num_splits == 1:
            self.progress("splitting", 0, 1)
            part = split_parts(
                lambda: (facts for facts, _ in self._distinct(0)),
                sizes[0],
                (self.count("entity"), self.count("relation")),
                self.options.seed,
                self.options.valid_share,
                self.options.test_share,
            )
            count = sizes[0]
            sizes = [int(np.count_nonzero(part == number)) for number in range(3)]
            notes = split_notes(count, sizes[1], sizes[2], **vars(self.options))
        self.manifest["notes"] = notes
        self.manifest["counts"]["train"] = sizes[0]
        with ExitStack() as stack:
            writers = [
                stack.enter_context(ArrayWriter(self.work / f"{name}.npy", kind, 3))
                for name, kind in (
                    ("facts", self.id_type),
                    ("valid", np.int64),
                    ("test", np.int64),
                )
            ]
            done = 0
            for split in range(self.num_splits):
                for facts, start in self._distinct(split):
                    if part is None:
                        writers[split].append(facts)
                    else:
                        here = part[start : start + len(facts)]
                        for number, writer in enumerate(writers):
                            writer.append(facts[here == number])
                    done += len(facts)
                    self.progress("writing facts", done, sum(sizes))

    def _distinct(self, split: int) -> Iterator[tuple[NDArray[Any], int]]:
        """The distinct facts of a split in chunks, each with the number of facts before it."""
        keep = ArrayReader(self.work / f"keep_{split}.npy")
        numbered = ArrayReader(self.work / f"numbered_{split}.npy")
        before = 0
        for facts, mask in zip(numbered.pieces(), keep.pieces(), strict=True):
            kept = facts if mask.all() else facts[mask]
            yield kept, before
            before += len(kept)

    # -- adjacency -------------------------------------------------------------------------------

    def _sort_edges(self) -> None:
        """Write the arrays of `Edges` and `Neighbours`, ordered by (target, source, relation)."""
        for split in range(self.num_splits):
            for name in (f"numbered_{split}.npy", f"keep_{split}.npy"):
                (self.work / name).unlink(missing_ok=True)
        relations, facts = self.count("relation"), ArrayReader(self.work / "facts.npy")
        ids, places = facts.dtype, np.dtype(integer_type(2 * len(facts)))
        head, _, tail = np.load(self.work / "sample.npy").T
        sample = np.concatenate([self.pair(tail, head), self.pair(head, tail)])
        bounds = bounds_of(sample, 2 * len(facts), BUCKET_ROWS)
        rows = self.sorted_rows("edges", bounds, (ids, places))
        total, done, start = 4 * len(facts), 0, 0
        for piece in facts.pieces():
            head, label, tail = piece.T
            row = np.arange(start, start + len(piece), dtype=places)
            rows.add(self.pair(tail, head), label, row)
            rows.add(self.pair(head, tail), label + ids.type(relations), row)
            start, done = start + len(piece), done + 2 * len(piece)
            self.progress("sorting edges", done, total)
        with AdjacencyWriter(self.work, self.count("entity"), ids, places) as adjacency:
            for key, label, row in rows.buckets():
                order = row_order(key, label, 2 * relations)
                adjacency.append(key[order], label[order], row[order])
                done += len(key)
                self.progress("sorting edges", done, total)

    def _find_components(self) -> None:
        """Write the index of connected components (see `Components`)."""
        self.progress("finding components", 0, 1)
        arrays = (map_array(self.work / f"neighbours_{name}.npy") for name in ("indptr", "index"))
        save_components(self.work, *map(torch.from_numpy, arrays))
        for file in self.work.glob("components_*.npy"):
            sync(file)
        self.progress("finding components", 1, 1)

    def _count(self) -> None:
        """Write the pairs of entity and relation, and the relation graph."""
        self.progress("counting answers", 0, 1)
        edges, neighbours = (
            [torch.from_numpy(map_array(self.work / f"{kind}_{name}.npy")) for name in names]
            for kind, names in (
                ("edges", ("indptr", "source", "relation", "fact")),
                ("neighbours", ("indptr", "index", "pair")),
            )
        )
        facts = torch.from_numpy(map_array(self.work / "facts.npy", dimensions=2))
        entities, relations = (
            Vocabulary(
                map_array(self.work / f"{kind}_blob.npy"),
                map_array(self.work / f"{kind}_offsets.npy"),
                kind,
            )
            for kind in ("entity", "relation")
        )
        graph = MappedGraph(facts, entities, relations)
        graph.edges, graph.neighbours = MappedEdges(*edges), MappedNeighbours(*neighbours)
        save_counts(self.work, graph)
        for file in (*self.work.glob("answers_*.npy"), *self.work.glob("relations_*.npy")):
            sync(file)
        self.progress("counting answers", 1, 1)

    # -- names -----------------------------------------------------------------------------------

    def _index_names(self) -> None:
        """Write the sorted hashes of the names (see `Vocabulary.hash_index`)."""
        total, done = self.count("entity") + self.count("relation"), 0
        for kind in ("entity", "relation"):
            ends = ArrayReader(self.work / f"{kind}_offsets.npy")
            blob = ArrayReader(self.work / f"{kind}_blob.npy")
            count = self.count(kind)
            buckets = -(-count // BUCKET_ROWS)
            # Hashes are distributed uniformly.
            bounds = np.arange(1, buckets, dtype=np.uint64) * np.uint64((2**64 - 1) // buckets)
            rows = self.sorted_rows("hashes", bounds, (np.int64,))
            for start in range(0, count, array_files.PIECE):
                some = ends.read(start, min(start + array_files.PIECE, count) + 1)
                hashes = hash_names(blob.read(int(some[0]), int(some[-1])), some)
                rows.add(hashes, np.arange(start, start + len(hashes)))
                done += len(hashes)
                self.progress("indexing names", done, total)
            with (
                ArrayWriter(self.work / f"{kind}_hashes.npy", np.uint64) as all_hashes,
                ArrayWriter(self.work / f"{kind}_hash_ids.npy", np.int64) as ids,
            ):
                for key, number in rows.buckets():
                    order = np.argsort(key, kind="stable")
                    all_hashes.append(key[order])
                    ids.append(number[order])

    def _finish(self) -> None:
        names = [
            f"{kind}_{name}" for kind in ("entity", "relation") for name in ("offsets", "blob")
        ]
        names += [f"edges_{name}" for name in ("indptr", "source", "relation")]
        readers = [ArrayReader(self.work / f"{name}.npy") for name in names]
        total, done = sum(map(len, readers)), 0

        def pieces() -> Iterator[NDArray[Any]]:
            nonlocal done
            for reader in readers:
                for piece in reader.pieces():
                    yield piece
                    done += len(piece)
                    self.progress("computing the fingerprint", done, total)

        about = {
            "name": self.files.name,
            "duplicates": self.manifest["duplicates"],
            "notes": self.manifest["notes"],
            "rules": [],
        }
        largest, last = 0, 0
        for begins in ArrayReader(self.work / "neighbours_indptr.npy").pieces():
            largest = max(largest, int(np.diff(begins, prepend=last).max()))
            last = begins[-1]
        write_marker(self.work, fingerprint_of(pieces()), largest, SPLITS[1:], about)
        sync(self.work / MARKER)
