"""GraphReference: which graph a run was made on, and where that graph is read from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneshot.data.load import Dataset, load, source_exists
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.system.checksums import (
    damaged,
    digest,
    file_digest,
    read_sealed_json,
    write_sealed_json,
)

_SHARES = ("valid_share", "test_share")


@dataclass(frozen=True)
class GraphReference:
    """The content of the file `graph.json` of a run.

    `values`: `fingerprint` of the graph; `origin`, its source and the options of `load` (None for a
    graph that came from no file: the run holds it itself); `files`, checksums of those files of the
    run that carry none, by name. Runs of earlier versions may lack `files`.
    """

    file: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> "GraphReference":
        """The reference in a file, which must be as it was written."""
        return cls(file, read_sealed_json(file))

    @property
    def fingerprint(self) -> str:
        return str(self.values.get("fingerprint"))

    @property
    def is_ours(self) -> bool:
        """Whether `oneshot` wrote the file."""
        return "fingerprint" in self.values

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

    def dataset(self) -> Dataset:
        """The data set that the graph is the training split of."""
        run, origin = self.file.parent, self.values.get("origin")
        if origin is None:
            raise InputError(f"{run}: was made from a graph in memory; name a data set")
        try:
            source, options = str(origin["source"]), dict(origin["options"])
            wrong = [name for name, value in options.items() if not _is_option(name, value)]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.file}: not written by oneshot ({error!r})") from error
        if wrong:
            raise InputError(f"{self.file}: not written by oneshot (origin.options.{wrong[0]})")
        if not source_exists(source):
            raise InputError(
                f"{run}: its graph {source} was not found here; give it with --data, or set "
                "ONESHOT_DATA to the directory that it is in"
            )
        return load(source, **options)

    def check_graph(self, graph: KnowledgeGraph) -> None:
        """Raise unless a graph is the one that the run was made on."""
        if graph.fingerprint != self.values.get("fingerprint"):
            raise InputError(
                f"{self.file.parent}: the graph has changed since this run was made (it was read "
                f"from {self.source or 'memory'}); to answer on the changed graph name it as the "
                "data set, or train again"
            )

    def check_file(self, name: str) -> None:
        """Raise unless a file of the run has the checksum that is listed for it, if one is."""
        listed = self.values.get("files")
        wanted = listed.get(name) if isinstance(listed, dict) else None
        file = self.file.with_name(name)
        if wanted is None or not file.is_file():
            return  # written by an earlier version, or missing, which is told when it is read
        if file_digest(file) != wanted:
            raise damaged(file)

    def listing(self, name: str, content: bytes) -> "GraphReference":
        """This reference with the checksum of a file of the run that is to hold `content`."""
        listed = self.values.get("files")
        files = (listed if isinstance(listed, dict) else {}) | {name: digest(content)}
        return GraphReference(self.file, self.values | {"files": files})

    def write(self) -> None:
        write_sealed_json(self.file, self.values)


def _is_option(name: str, value: Any) -> bool:
    """Whether `load` takes this option."""
    if isinstance(value, bool):
        return False
    if name == "seed":
        return isinstance(value, int) and value >= 0
    return name in _SHARES and isinstance(value, int | float) and 0 <= value < 1
