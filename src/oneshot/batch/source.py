"""The source of the reasoner of a job, which all its processes read, and its identity."""

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
from oneshot.runs.layout import CALIBRATION, PREDICTOR, RELATIONS
from oneshot.runs.run import Run
from oneshot.system.devices import find_device

Identity = dict[str, Any]
"""The identity of a reasoner: digests of predictor, configuration and graph, and the version of
the facts that were added to the graph or removed since."""


@dataclass(frozen=True)
class Source:
    """A run directory, by its absolute path. `data`: a different graph, read with `seed`;
    `settings`: changes to its configuration."""

    run: str
    data: str | None = None
    seed: int = 0
    settings: tuple[str, ...] = ()

    def load(self) -> tuple[Reasoner, Identity]:
        """The reasoner, on the CPU, and its identity."""
        graph = None if self.data is None else load(self.data, seed=self.seed).graph
        run = Run.open(self.run, self.settings)
        identity = identity_of(run, graph)
        reasoner = run.reasoner if graph is None else run.reasoner_on(graph)
        if identity_of(Run.open(self.run, self.settings), graph) != identity:
            raise InputError(f"{self.run} was changed during reading; try again")
        return reasoner, identity


@functools.lru_cache(maxsize=1)
def opened(source: Source, device: str) -> tuple[Reasoner, Identity]:
    """The reasoner of a source, on a device; read once per process."""
    reasoner, identity = source.load()
    return reasoner.to(find_device(device)), identity


def opened_as(source: Source, device: str, identity: Identity) -> Reasoner:
    """The reasoner of a source; raises if it does not have this identity."""
    reasoner, found = opened(source, device)
    if found != identity:  # it may have been read for an earlier job
        opened.cache_clear()
        reasoner, found = opened(source, device)
    for name, value in identity.items():
        if found.get(name) != value:
            raise InputError(
                f"{source.run}: the {name} of the run has changed since these answers were "
                f"started, or {platform.node()} has a different directory at this path"
            )
    return reasoner


def file_digest(path: Path) -> str | None:
    """The SHA-256 of a file; None if there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def identity_of(run: Run, graph: KnowledgeGraph | None) -> Identity:
    """The identity of the reasoner of a run, on a different graph if one is given."""
    config = hashlib.sha256(to_toml(run.config).encode())
    for name in (RELATIONS, CALIBRATION):
        config.update((file_digest(run.path / name) or "none").encode())
    return {
        "predictor": file_digest(run.path / PREDICTOR),
        "configuration": config.hexdigest(),
        "graph": run.reference.fingerprint if graph is None else graph.fingerprint,
        "facts": _facts_version(run) if graph is None else None,
    }


def _facts_version(run: Run) -> int:
    """The version of the facts added to a run's graph or removed; 0 if there never were any."""
    file = run.path / STORE
    if not file.is_file():
        return 0
    store = FactStore(file, run.reference.fingerprint, read_only=True)
    try:
        version, _ = store.read(since=2**62)  # the number alone
    finally:
        store.close()
    return version
