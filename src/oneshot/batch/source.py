"""Source: where the processes of one job read the same reasoner from, and how they know it."""

import functools
import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneshot.config import to_toml
from oneshot.data.load import load
from oneshot.errors import InputError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.live.store import STORE, FactStore
from oneshot.reasoner.reasoner import Reasoner
from oneshot.runs.run import (
    CALIBRATION,
    PREDICTOR,
    RELATIONS,
    load_reasoner,
    run_config,
    run_fingerprint,
)
from oneshot.system.devices import find_device

Identity = dict[str, Any]
"""What tells a reasoner from others: digests of predictor, configuration and graph, and the version
of the facts that were added to the graph and removed since."""


@dataclass(frozen=True)
class Source:
    """A run directory, by its absolute path; `data`: another graph than its own, read with `seed`;
    `settings`: changes of its configuration."""

    run: str
    data: str | None = None
    seed: int = 0
    settings: tuple[str, ...] = ()

    def load(self) -> tuple[Reasoner, Identity]:
        """The reasoner, on a processor, and its identity."""
        graph = None if self.data is None else load(self.data, seed=self.seed).graph
        before = self._identity(graph)
        reasoner = load_reasoner(Path(self.run), graph, list(self.settings))
        if self._identity(graph) != before:
            raise InputError(f"{self.run}: was changed while it was read; try again")
        return reasoner, before

    def _identity(self, graph: KnowledgeGraph | None) -> Identity:
        run = Path(self.run)
        config = hashlib.sha256(to_toml(run_config(run, list(self.settings))).encode())
        for name in (RELATIONS, CALIBRATION):
            config.update((file_digest(run / name) or "none").encode())
        return {
            "predictor": file_digest(run / PREDICTOR),
            "configuration": config.hexdigest(),
            "graph": run_fingerprint(run) if graph is None else graph.fingerprint,
            "facts": _facts_version(run) if graph is None else None,
        }


@functools.lru_cache(maxsize=1)
def opened(source: Source, device: str) -> tuple[Reasoner, Identity]:
    """The reasoner of a source, on a device; read once a process."""
    reasoner, identity = source.load()
    return reasoner.to(find_device(device)), identity


def opened_as(source: Source, device: str, identity: Identity) -> Reasoner:
    """The reasoner of a source, which must be the one of that identity."""
    reasoner, found = opened(source, device)
    if found != identity:  # read for an earlier job, maybe
        opened.cache_clear()
        reasoner, found = opened(source, device)
    for name, value in identity.items():
        if found.get(name) != value:
            raise InputError(
                f"{source.run}: the {name} of the run is not what it was when these answers were "
                f"begun, or {platform.node()} does not see the same directory under this path"
            )
    return reasoner


def file_digest(path: Path) -> str | None:
    """The SHA-256 of a file; None if there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _facts_version(run: Path) -> int:
    """The version of the facts that were added to a run's graph and removed; 0 if none ever was."""
    if not (run / STORE).is_file():
        return 0
    store = FactStore(run / STORE, run_fingerprint(run), read_only=True)
    try:
        version, _ = store.read(since=2**62)  # the number alone
    finally:
        store.close()
    return version
