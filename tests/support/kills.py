"""Killing: every command that writes, ended by SIGKILL at random moments, over what was there.

Commands run in forked processes, in which all modules are loaded already, so that the moments lie
in the work and not in the start of Python. Half of them are moments in time; the other half are
file operations: the process kills itself right before the n-th one, which also hits the windows
between two operations that time alone would hardly ever hit.
"""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.support.official import checkpoint
from tests.support.samples import chain_world, settings, trained_run, write_world
from tests.support.searches import arguments as search_arguments
from tests.support.searches import finished_trials

from oneshot import cli
from oneshot.config import Config
from oneshot.data import load as load_module
from oneshot.data.load import load
from oneshot.experiments import demo
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.storage import verify_graph
from oneshot.runs.run import Run

_EVENTS = ("open", "os.", "shutil.", "sqlite3.", "tempfile.", "ctypes.dlsym")
_QUESTIONS = 60


@dataclass
class Writer:
    """A command that writes.

    `arguments`: of the command, in the directory where it runs. `check`: raises unless what stood
    there before the command can still be read; it returns what it has read, to compare.
    `before`: called in the process, before the command. `prepared`: the command that makes what
    is there before, if it is another one.
    """

    name: str
    arguments: list[str]
    check: Callable[[Path], Any]
    before: Callable[[], None] = field(default=lambda: None)
    prepared: list[str] | None = None


def make_writers(home: Path) -> list[Writer]:
    """All writing commands, with what is there before each, in the directory `home`."""
    home.mkdir(parents=True, exist_ok=True)
    world = chain_world(30)
    write_world(home / "data", world)
    trained_run(home / "data", home / "run", "training.epochs=1")
    trained_run(home / "data", home / "asked", "training.epochs=1")
    trained_run(home / "data", home / "begun", "training.epochs=2")
    (home / "begun" / "result.json").unlink()
    world.save(home / "saved")
    world.save(home / "built")
    torch.save({"model_state_dict": checkpoint(7, True, True, False)}, home / "official.pt")
    questions = [f"link {place % 30}\tnext\n" for place in range(_QUESTIONS)]
    (home / "questions.tsv").write_text("".join(questions))
    facts = [f"new {place}\tnext\tlink 1\n" for place in range(200)]
    (home / "facts.tsv").write_text("".join(facts))
    data = Run.open(home / "asked").data
    live = LiveGraph(data.graph, home / "asked", data.graph.fingerprint)
    live.add([("before", "next", "link 1")])
    live.close()
    small = settings("training.epochs=2", "training.batch_size=32")
    search = search_arguments(home / "data", Path("search"), "--trials", 2, "--sampler-trials", 2)
    more = ["search", home / "data", "--out", "search", "--resume", "--trials", 3]
    return [
        Writer("train", ["train", "data", "--out", "run", *small], _run("run")),
        Writer("train --resume", ["train", "data", "--out", "begun", "--resume"], _run("begun")),
        Writer("data --save", ["data", "data", "--save", "saved"], _graph("saved")),
        Writer(
            "data --save, built on the disk",
            ["data", "data", "--save", "built"],
            _graph("built"),
            lambda: setattr(load_module, "LARGE_SOURCE", 0),
        ),
        Writer(
            "predict --queries",
            ["predict", "run", "--queries", "questions.tsv", "--out", "answers.parquet"],
            _answers,
        ),
        Writer(
            "predict --plot",
            ["predict", "run", "link 1", "next", "--plot", "why.svg"],
            _starts("why.svg", b"<"),
        ),
        Writer(
            "coverage --plot",
            ["coverage", "data", "--ratio", "0.2,0.5", "--plot", "coverage.png"],
            _starts("coverage.png", b"\x89PNG"),
        ),
        Writer("facts add", ["facts", "asked", "add", "--file", "facts.tsv"], _facts),
        Writer("facts export", ["facts", "asked", "export", "--out", "exported.tsv"], _exported),
        Writer(
            "import-official",
            ["import-official", "official.pt", "--data", "data", "--out", "imported"],
            _run("imported"),
        ),
        Writer("paper", ["paper", "hops", "--quick", "--out", "reports"], _reports),
        Writer(
            "bench --out",
            [
                "bench",
                "sampler",
                "data",
                "--queries",
                "8",
                "--with",
                "scipy",
                "--out",
                "bench.json",
            ],
            _json("bench.json"),
        ),
        Writer("demo", ["demo", "--out", "demo"], _run("demo/run"), _short_demo),
        Writer("search", [str(part) for part in more], _search, prepared=list(map(str, search))),
    ]


def _short_demo() -> None:
    """The demo with a training of one step; what it writes is the same."""
    whole = demo.demo_config

    def short(seed: int) -> Config:
        config = whole(seed)
        few = dataclasses.replace(config.training, epochs=1, query_share=0.01, valid_limit=8)
        return dataclasses.replace(config, training=few)

    demo.demo_config = short
    world = demo.load("world")
    few = dataclasses.replace(world, valid=world.valid[:4], test=world.test[:4])
    demo.load = lambda _: few


def prepare(home: Path, writers: list[Writer]) -> None:
    """Run each command once, so that there is something that a killed one could destroy."""
    for writer in writers:
        if writer.name in ("facts add", "train --resume"):
            continue  # what they must not lose is there already
        first = dataclasses.replace(writer, arguments=writer.prepared or writer.arguments)
        code = finished(start(home, first, None))
        if code != 0:
            raise AssertionError(f"{writer.name}: exit code {code}")
        writer.check(home)


def start(home: Path, writer: Writer, events: int | None, report: Path | None = None) -> int:
    """Fork a process that runs a command. `events`: it kills itself right before that many.

    `report`: where to write the count of file operations, at its end. → its id
    """
    process = os.fork()
    if process:
        return process
    code = 3
    try:
        os.setsid()
        os.chdir(home)
        quiet = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(quiet, handle)
        counted = _count_events(home, events)
        writer.before()
        sys.argv = ["oneshot", *writer.arguments]
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        if report is not None:
            report.write_text(str(counted[0]))
    finally:
        os._exit(code)


def _count_events(home: Path, events: int | None) -> list[int]:
    """Count file operations from now on; at the `events`-th the process is killed."""
    counted = [0]
    place = str(home)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if not event.startswith(_EVENTS):
            return
        if event == "open":
            path = arguments[0]
            name = "" if isinstance(path, int) else os.fsdecode(path)
            if not name or (name.startswith("/") and not name.startswith(place)):
                return
        counted[0] += 1
        if counted[0] == events:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(note)
    return counted


def finished(process: int, seconds: float = 120) -> int:
    """Wait for a process. → its exit code, negative for a signal"""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    kill(process)
    os.waitpid(process, 0)
    raise AssertionError("a command takes too long")


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@dataclass
class Killed:
    """How a command stood being killed; `ended`: it was done before it could be killed."""

    name: str
    seconds: float
    events: int
    moments: int = 0
    ended: int = 0
    unreadable: list[str] = field(default_factory=list)
    runs_again: bool = True


def measured(home: Path, scratch: Path, writer: Writer) -> Killed:
    """How long a command takes, and how many file operations."""
    place = fresh(home, scratch, writer)
    begun = time.perf_counter()
    report = scratch / "events"
    code = finished(start(place, writer, None, report))
    seconds = time.perf_counter() - begun
    if code:
        raise AssertionError(f"{writer.name}: exit code {code}")
    return Killed(writer.name, seconds, int(report.read_text()))


def fresh(home: Path, scratch: Path, writer: Writer) -> Path:
    """A copy of all that is there before a command."""
    place = scratch / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(home, place)
    _relocate(place, home)
    return place


def _relocate(place: Path, home: Path) -> None:
    """Let copied runs read their graph from the copy."""
    from oneshot.system.checksums import read_sealed_json, write_sealed_json

    for file in place.rglob("graph.json"):
        about = read_sealed_json(file)
        if about.get("origin"):
            source = about["origin"]["source"]
            about["origin"]["source"] = source.replace(str(home), str(place), 1)
            write_sealed_json(file, about)


def kill_at_random(home: Path, scratch: Path, writer: Writer, moments: int, seed: int) -> Killed:
    """Kill a command at random moments, each time over a fresh copy of what was there."""
    scratch.mkdir(parents=True, exist_ok=True)
    generator = random.Random(f"{writer.name} {seed}")
    found = measured(home, scratch, writer)
    while found.moments < moments:
        place = fresh(home, scratch, writer)
        by_event = found.moments % 2 == 0
        events = generator.randint(1, found.events) if by_event else None
        process = start(place, writer, events)
        delay = generator.uniform(0, found.seconds)
        if not by_event:
            time.sleep(delay)
            kill(process)
        code = finished(process)
        if code != -signal.SIGKILL:
            found.ended += 1
            if found.ended > 4 * moments:
                raise AssertionError(f"{writer.name}: cannot be hit")
            if by_event or code == 0:
                continue
        found.moments += 1
        try:
            writer.check(place)
        except Exception as error:
            where = f"operation {events} of {found.events}" if by_event else f"after {delay:.3f} s"
            found.unreadable.append(f"{where}: {type(error).__name__}: {error}")
    # What the last one left is no hindrance.
    found.runs_again = finished(start(place, writer, None)) == 0
    with contextlib.suppress(Exception):
        writer.check(place)
        return found
    found.runs_again = False
    return found


def _run(name: str) -> Callable[[Path], Any]:
    def check(home: Path) -> Any:
        reasoner = Run.open(home / name).reasoner
        entity = reasoner.graph.entities[1]
        return reasoner.predict(entity, 0, top=3)

    return check


def _graph(name: str) -> Callable[[Path], Any]:
    def check(home: Path) -> Any:
        verify_graph(home / name)
        return load(home / name).graph.fingerprint

    return check


def _answers(home: Path) -> int:
    import pyarrow.parquet as pq

    rows = pq.read_table(home / "answers.parquet").num_rows
    assert rows >= _QUESTIONS
    return rows


def _starts(name: str, start: bytes) -> Callable[[Path], Any]:
    def check(home: Path) -> Any:
        content = (home / name).read_bytes()
        assert content.startswith(start)
        if name.endswith(".png"):
            import matplotlib.image

            return matplotlib.image.imread(home / name).shape
        assert content.rstrip().endswith(b"</svg>")
        return len(content)

    return check


def _facts(home: Path) -> int:
    graph = Run.open(home / "asked").graph
    assert graph.entities.get("before") is not None
    added = sum(graph.entities.get(f"new {place}") is not None for place in range(200))
    assert added in (0, 200)  # all of them, or none
    return added


def _exported(home: Path) -> int:
    lines = (home / "exported.tsv").read_text().splitlines()
    assert lines
    assert all(line.count("\t") == 2 for line in lines)
    assert any(line.startswith("before\t") for line in lines)
    return len(lines)


def _json(name: str) -> Callable[[Path], Any]:
    return lambda home: json.loads((home / name).read_text())["ours"]


def _reports(home: Path) -> list[str]:
    found = sorted((home / "reports").glob("hops*.json"))
    assert found
    return [str(json.loads(file.read_text())["rows"]) for file in found]


def _search(home: Path) -> Any:
    """The trials that were finished before are there, and both reasoners."""
    trials = finished_trials(home / "search")
    assert sum(phase == "predictor" for phase, _ in trials) >= 2
    return len(trials), *(_run(f"search/{name}")(home) for name in ("run", "best"))
