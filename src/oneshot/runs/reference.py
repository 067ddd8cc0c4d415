"""GraphReference: the graph of a run and its source."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneshot.data.load import Dataset, load, source_exists
from oneshot.data.sources.cache import keep_copy
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.system.checksums import (
    damaged,
    digest,
    file_digest,
    read_sealed_json,
    write_sealed_json,
)

TAKING_DATA = "predict, evaluate, relations, discover, audit, serve, mcp"
"""The commands that take another graph than that of the run (`--data`), for messages."""

FOUNDATION = "foundation"
"""The name of the pre-trained run in the package."""
BUNDLED = Path(__file__).with_name(FOUNDATION)

_SHARES = ("valid_share", "test_share")


def shown_run(path: Path) -> str:
    """A run as users name it."""
    return FOUNDATION if path == BUNDLED else str(path)


@dataclass(frozen=True)
class GraphReference:
    """The content of the file `graph.json` of a run.

    `values`: `fingerprint` of the graph; `entities`, their number; `origin`, its source and the
    options of `load` (None for a graph created in memory, which is stored in the run), and for a
    copy of a database its `address` without user and password; `files`, checksums by name of the
    files of the run that do not contain their own. Runs of earlier versions may lack `files` and
    `entities`. A pre-trained run has no fingerprint, but `sources`, the names of the graphs of its
    mixture.
    """

    file: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> "GraphReference":
        """The reference in a file; raises if the file was modified."""
        return cls(file, read_sealed_json(file))

    @property
    def fingerprint(self) -> str:
        return str(self.values.get("fingerprint"))

    @property
    def num_entities(self) -> int | None:
        """Number of entities of the graph; None if the file does not contain it."""
        found = self.values.get("entities")
        if not isinstance(found, int) or isinstance(found, bool):
            return None
        return found if found > 0 else None

    @property
    def is_ours(self) -> bool:
        """Whether `oneshot` wrote the file."""
        return "fingerprint" in self.values

    @property
    def has_graph(self) -> bool:
        """Whether the run has a graph of its own."""
        return self.values.get("fingerprint", "") is not None

    def check_has_graph(self) -> None:
        """Raise if the run was pre-trained and has no graph of its own."""
        if not self.has_graph:
            raise InputError(
                f"{shown_run(self.file.parent)} is pre-trained and has no graph of its own; give "
                f"one with --data ({TAKING_DATA})"
            )

    @property
    def has_origin(self) -> bool:
        """Whether the graph was read from a data set."""
        return self.values.get("origin") is not None

    @property
    def source(self) -> str | None:
        """Name or path of the data set, or None."""
        origin = self.values.get("origin")
        source = origin.get("source") if isinstance(origin, dict) else None
        return None if source is None else str(source)

    def keep_source(self) -> None:
        """If the source is a copy in the cache, keep it there as long as this file refers to it."""
        if self.source is not None:
            keep_copy(Path(self.source), self.file)

    def dataset(self) -> Dataset:
        """The data set whose training split is the graph."""
        self.check_has_graph()
        run, origin = self.file.parent, self.values.get("origin")
        if origin is None:
            raise InputError(f"{run} was created from a graph in memory; give a data set")
        try:
            source, options = str(origin["source"]), dict(origin["options"])
            wrong = [name for name, value in options.items() if not _is_option(name, value)]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.file}: not written by oneshot ({error!r})") from error
        if wrong:
            raise InputError(f"{self.file}: not written by oneshot (origin.options.{wrong[0]})")
        if not source_exists(source):
            address = origin.get("address")
            copied = f" (a copy of {address})" if isinstance(address, str) else ""
            raise InputError(
                f"{run}: its graph {source}{copied} was not found; put it there, set "
                f"ONESHOT_DATA to the directory that contains it, or give it with --data "
                f"({TAKING_DATA})"
            )
        self.keep_source()  # the run may have been moved since
        return load(source, **options)

    def check_graph(self, graph: KnowledgeGraph) -> None:
        """Raise unless a graph is the graph of the run."""
        if graph.fingerprint != self.values.get("fingerprint"):
            raise InputError(
                f"{self.file.parent}: the graph has changed since this run was created (source: "
                f"{self.source or 'memory'}); to use the changed graph, give it as the data "
                "set, or train again"
            )

    def check_file(self, name: str) -> None:
        """Raise unless a file of the run has its listed checksum, if one is listed."""
        listed = self.values.get("files")
        wanted = listed.get(name) if isinstance(listed, dict) else None
        file = self.file.with_name(name)
        if wanted is None or not file.is_file():
            return  # of an earlier version, or missing, which is reported on reading
        if file_digest(file) != wanted:
            raise damaged(file)

    def listing(self, name: str, content: bytes) -> "GraphReference":
        """This reference with the checksum of a file of the run that will have this `content`."""
        listed = self.values.get("files")
        files = (listed if isinstance(listed, dict) else {}) | {name: digest(content)}
        return GraphReference(self.file, self.values | {"files": files})

    def write(self) -> None:
        write_sealed_json(self.file, self.values)


def _is_option(name: str, value: Any) -> bool:
    """Whether `load` accepts this option."""
    if isinstance(value, bool):
        return False
    if name == "weights":
        return isinstance(value, str)
    if name == "seed":
        return isinstance(value, int) and value >= 0
    return name in _SHARES and isinstance(value, int | float) and 0 <= value < 1
