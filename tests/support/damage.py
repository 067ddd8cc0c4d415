"""Runs and graphs that the tests of faults damage, fill, stop and hold."""

import shutil
from pathlib import Path

from tests.support.samples import chain_world, trained_run, write_world
from tests.support.services import saved_run

from oneshot.graph.live.live_graph import LiveGraph
from oneshot.runs.run import Run

SEVERAL_STEPS = ("training.epochs=2", "training.batch_size=8", "predictor.dropout=0.2")


def write_base(path: Path) -> Path:
    """A data set, a run of it, one with changed facts, one with its own graph, a saved graph."""
    write_world(path / "data", chain_world(20))
    trained_run(path / "data", path / "run", *SEVERAL_STEPS)
    data = Run.open(path / "run").data
    shutil.copytree(path / "run", path / "changed")
    live = LiveGraph(data.graph, path / "changed", data.graph.fingerprint)
    live.add([("new", "next", "link 1"), ("link 3", "after", "new")])
    live.close()
    saved_run(path / "made", 20)
    chain_world(20).save(path / "saved")
    return path


def contents(path: Path) -> dict[str, bytes]:
    """All files under a directory."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
