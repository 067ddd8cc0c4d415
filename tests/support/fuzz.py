"""Fuzzing: sound files of every kind, made unsound in every way, and what became of reading them.

A case is a copy of a sound file or directory, mutated by a seeded generator, and used as a user
would use it. It may be read or refused with one line. Anything else (another exception, a crash,
ten seconds without an end, code that is run) is a fault of ours.
"""

import gzip
import io
import os
import pickle
import random
import resource
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support.fact_files import whole_file
from tests.support.official import checkpoint
from tests.support.samples import SMALL, chain_world, trained_run, write_world
from tests.support.services import saved_run

from oneshot.batch.queries import read_queries
from oneshot.config import from_table, read_config, to_toml
from oneshot.data.dataset import both_directions
from oneshot.data.formats import FORMATS
from oneshot.data.load import load
from oneshot.errors import OneshotError
from oneshot.graph.live.live_graph import LiveGraph
from oneshot.graph.storage import verify_graph, write_marker
from oneshot.reasoner.build import build_sampler
from oneshot.runs import train as jobs
from oneshot.runs.official import import_official
from oneshot.runs.run import Run
from oneshot.samplers import PPRSampler
from oneshot.search.space_file import read_space
from oneshot.search.store import STORE, Store

CPU = torch.device("cpu")
MOST_SECONDS = 10.0
MEMORY = 16 << 30  # bytes of addresses that a case may take

# Bytes that mean something in one format or another.
TOKENS = [
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\t",
        b",",
        b'"',
        b"'",
        b"\\",
        b"#",
        b"[",
        b"]",
        b"{",
        b"}",
        b"<",
        b">",
    ),
    *(b"=", b"-", b"1e999", b"nan", b"inf", b"-1", b"9" * 30, b"\xff\xfe", b"\xed\xa0\x80"),
    *(
        "⁻¹".encode(),
        b"null",
        b"true",
        b"../" * 8,
        b"/dev/zero",
        b"PK\x03\x04",
        b"PAR1",
        b"\x1f\x8b",
    ),
    *(b"\x93NUMPY", b"SQLite format 3\0", b"__import__('os')", b"[" * 2000, b"\x7f" * 8),
]


class Payload:
    """Unpickled, this would make a directory: what must never happen."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.canary),))


@dataclass
class Target:
    """A kind of input: a sound file or directory, and how it is used.

    `parts`: which files of a directory are mutated, all if none are named. `repaired`: called
    after the mutation, puts checksums right again, as an attacker would do.
    """

    name: str
    sound: Path
    use: Callable[[Path], object]
    parts: tuple[str, ...] = ()
    repaired: Callable[[Path], None] | None = None


@dataclass
class Bench:
    """All targets, made once in a directory."""

    home: Path
    inputs: list[Target] = field(default_factory=list)
    runs: list[Target] = field(default_factory=list)

    @property
    def canary(self) -> Path:
        return self.home / "canary"


def make_bench(home: Path) -> Bench:
    """Sound files of every kind, and three kinds of runs."""
    home.mkdir(parents=True, exist_ok=True)
    bench = Bench(home)
    world = chain_world(20)
    data = write_world(home / "data", world)
    names = home / "named"
    shutil.copytree(data, names)
    (names / "entities.txt").write_text("".join(f"{name}\n" for name in world.entities))
    (names / "relations.txt").write_text("".join(f"{name}\n" for name in world.relations))
    for suffix in FORMATS:
        for ending in ("", ".gz"):
            path = home / f"facts{suffix}{ending}"
            content = whole_file(suffix)
            path.write_bytes(gzip.compress(content, mtime=0) if ending else content)
            bench.inputs.append(Target(path.name, path, _use_data))
    bench.inputs.append(
        Target("entity lists", names, _use_data, ("entities.txt", "relations.txt", "train.tsv"))
    )
    saved = home / "saved"
    world.save(saved)
    bench.inputs.append(Target("saved graph", saved, _use_saved))
    bench.inputs.append(Target("saved graph, sealed again", saved, _use_saved, (), _seal_again))
    config = home / "config.toml"
    config.write_text(
        to_toml(from_table({}, [*SMALL, "sampler.entity_ratio={default=0.3,next=1}"]))
    )
    bench.inputs.append(Target("configuration", config, _use_config))
    space = home / "space.toml"
    space.write_text(
        "[predictor]\ndim = [8, 16]\nnum_layers = { low = 2, high = 4 }\n"
        '[training]\nlearning_rate = { low = 1e-4, high = 1e-2, log = true }\nloss = "softmax"\n'
    )
    bench.inputs.append(Target("space", space, read_space))
    for suffix in (".tsv", ".csv.gz", ".parquet"):
        path = home / f"questions{suffix}"
        path.write_bytes(_questions(suffix))
        bench.inputs.append(Target(path.name, path, lambda path: list(read_queries(path))))
    official = home / "official.pt"
    torch.save({"model_state_dict": checkpoint(7, True, True, False)}, official)
    bench.inputs.append(
        Target("official checkpoint", official, lambda p: import_official(p, world, from_table({})))
    )
    trials = home / "search"
    store = Store(trials, create=True)
    store.start("predictor", 0, {"predictor.dim": 8}, "random")
    store.finish("predictor", 0, {"status": "done", "value": 0.5, "curve": [0.5]}, 1.0)
    store.close()
    bench.inputs.append(Target("trials", trials, _use_search, (STORE,)))

    trained = trained_run(data, home / "trained", "training.epochs=1", "training.batch_size=64")
    _change_facts(trained)
    bench.runs.append(Target("trained run", trained, _use_run))
    made = saved_run(home / "made", 20)
    bench.runs.append(Target("run with its graph", made, _use_made))
    # As earlier versions wrote it: nothing but the readers themselves finds damage.
    plain = home / "plain"
    shutil.copytree(trained, plain)
    _unseal(plain)
    bench.runs.append(Target("run without checksums", plain, _use_run))
    return bench


def _questions(suffix: str) -> bytes:
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        target = io.BytesIO()
        pq.write_table(pa.table({"entity": ["a", "b"] * 5, "relation": ["r"] * 10}), target)
        return target.getvalue()
    separator = b"\t" if suffix == ".tsv" else b","
    text = b"".join(b"link %d%snext\n" % (i, separator) for i in range(9))
    return gzip.compress(text, mtime=0) if suffix.endswith(".gz") else text


def _change_facts(run: Path) -> None:
    data = Run.open(run).data
    live = LiveGraph(data.graph, run, data.graph.fingerprint)
    live.add([("new", "next", "link 1"), ("link 3", "after", "new")])
    live.remove([("link 0", "next", "link 1")])
    live.close()


def _unseal(run: Path) -> None:
    """Take all checksums out of a run."""
    import json
    import sqlite3

    from safetensors.torch import load_file, save_file

    for name in ("graph.json", "calibration.json"):
        about = json.loads((run / name).read_text())
        about.pop("checksum"), about.pop("files", None)
        (run / name).write_text(json.dumps(about))
    lines = (run / "config.toml").read_text().splitlines(keepends=True)
    (run / "config.toml").write_text("".join(lines[1:]))
    from oneshot.runs.tensors import load_tensors

    for file in (run / "predictor.safetensors", run / "checkpoint" / "state.safetensors"):
        _, about = load_tensors(file)
        save_file(load_file(file), file, metadata={"about": json.dumps(about)})
    with sqlite3.connect(run / "facts.sqlite") as database:
        database.execute("DELETE FROM about WHERE key = 'checksum'")
    database.close()


def _seal_again(path: Path) -> None:
    """Let the marker of a saved graph tell of the files as they are now."""
    import json

    try:
        about = json.loads((path / "oneshot-graph.json").read_text())
        values = [about[name] for name in ("fingerprint", "largest_degree", "splits", "about")]
        write_marker(path, *values)
    except (OneshotError, OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # the marker itself was hit


def _use_data(path: Path) -> None:
    data = load(path)
    assert len(list(data.entities)) == len(data.entities)
    assert data.graph.degree.sum() == 2 * len(data.train)


def _use_saved(path: Path) -> None:
    """What is looked at when a graph is used: names, neighbours, edges, splits."""
    data = load(path)
    list(data.entities), [data.entities.get(name) for name in ("link 1", "none")]
    queries, answers = both_directions(data.test[:3].long(), data.graph.num_relations)
    for sampler in (PPRSampler(0.5), PPRSampler(max_entities=5, method="push")):
        if len(queries):
            sampler.sample(data.graph, queries).find(answers)
    verify_graph(path)


def _use_config(path: Path) -> None:
    config = read_config(path)
    build_sampler(config.sampler)


def _use_search(path: Path) -> None:
    store = Store(path)
    try:
        store.about("format"), store.clock("predictor")
        for phase in store.phases():
            store.trials(phase)
    finally:
        store.close()


def _use_run(path: Path) -> None:
    """Ask it, look at its facts, and go on with its training for a step; all of them are tried."""
    _use_all(path, _ask, _look, _resume)


def _use_made(path: Path) -> None:
    """The same for a run that was not trained."""
    _use_all(path, _ask, _look)


def _use_all(path: Path, *uses: Callable[[Path], None]) -> None:
    refused: list[Exception] = []
    for use in uses:
        try:
            use(path)
        except (OneshotError, OSError) as error:
            _check_message(error)
            refused.append(error)
    if refused:
        raise refused[0]


def _ask(path: Path) -> None:
    reasoner = Run.open(path).reasoner
    reasoner.predict("link 1", "next", top=3)


def _look(path: Path) -> None:
    _ = Run.open(path).graph


def _resume(path: Path) -> None:
    config = Run(path).config
    data = Run.open(path).data
    jobs.train_run(data, path, config, CPU, resume=True, should_stop=lambda: True)


def mutate(target: Target, place: Path, generator: random.Random, canary: Path) -> list[str]:
    """A copy of a target's sound files in `place`, with some things changed. → what was done"""
    if target.sound.is_dir():
        shutil.copytree(target.sound, place, symlinks=True)
    else:
        shutil.copy(target.sound, place)
    done = []
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        file = place
        if place.is_dir():
            names = target.parts or tuple(
                sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())
            )
            if not names:
                break
            file = place / generator.choice(names)
        if file.is_file():
            done.append(f"{file.name}: {_mutate_file(file, place, target, generator, canary)}")
    if target.repaired is not None:
        target.repaired(place)
    return done


def _mutate_file(
    file: Path,
    place: Path,
    target: Target,
    generator: random.Random,
    canary: Path,
    within: bool = False,
) -> str:
    content = file.read_bytes()
    if file.suffix == ".gz" and content and generator.random() < 0.7:
        # Inside: what was compressed is sound only as a compressed file.
        inner = file.with_suffix("")
        try:
            inner.write_bytes(gzip.decompress(content))
        except (OSError, EOFError, zlib.error):
            return "none: it was hit before"
        done = _mutate_file(inner, inner, target, generator, canary, within=True)
        file.write_bytes(gzip.compress(inner.read_bytes(), mtime=0))
        inner.unlink()
        return f"{done} within"
    size = len(content)
    kinds = ["flip", "flip", "byte", "cut", "drop", "insert", "token", "token", "repeat", "number"]
    kinds += ["empty", "payload", "special"]
    if place.is_dir():
        kinds += ["remove", "swap", "directory", "swap"]
    kind = generator.choice(kinds)
    spot = generator.randrange(size + 1)
    if kind == "flip" and size:
        for _ in range(generator.choice((1, 1, 4, 64))):
            at = generator.randrange(size)
            content = (
                content[:at]
                + bytes([content[at] ^ (1 << generator.randrange(8))])
                + content[at + 1 :]
            )
    elif kind == "byte" and size:
        spot = generator.randrange(size)
        content = content[:spot] + generator.randbytes(1) + content[spot + 1 :]
    elif kind == "cut":
        content = content[:spot]
    elif kind == "drop":
        content = content[:spot] + content[spot + generator.randint(1, 64) :]
    elif kind == "insert":
        content = content[:spot] + generator.randbytes(generator.randint(1, 64)) + content[spot:]
    elif kind == "token":
        content = content[:spot] + generator.choice(TOKENS) + content[spot:]
    elif kind == "repeat":
        piece = content[spot : spot + generator.randint(1, 200)]
        content = content[:spot] + piece * generator.randint(1, 50) + content[spot:]
    elif kind == "number":
        # A number in the middle of the bytes, as lengths and offsets are.
        value = generator.choice((0, -1, 2**31 - 1, 2**31, 2**62, generator.randrange(2**16)))
        content = content[:spot] + value.to_bytes(8, "little", signed=True) + content[spot + 8 :]
    elif kind == "empty":
        content = b""
    elif kind == "payload":
        content = _payload(file, canary)
    elif kind == "remove":
        file.unlink()
        return kind
    elif kind == "special" and not within:
        # What never ends, or never begins.
        file.unlink()
        end = generator.choice(("/dev/zero", "/dev/full", "/dev/null", None, str(file)))
        os.mkfifo(file) if end is None else file.symlink_to(end)
        return f"{kind} {end or 'pipe'}"
    elif kind == "directory":
        file.unlink()
        file.mkdir()
        return kind
    elif kind == "swap":
        others = [p for p in sorted(place.rglob("*")) if p.is_file() and p != file]
        if others:
            other = generator.choice(others)
            file.write_bytes(other.read_bytes())
            other.write_bytes(content)
            return f"swapped with {other.name}"
    file.write_bytes(content)
    return kind


def _payload(file: Path, canary: Path) -> bytes:
    """A file of its kind that would run code if anything in it were unpickled."""
    target = io.BytesIO()
    if file.suffix == ".pt":
        torch.save({"model_state_dict": Payload(canary)}, target)
    elif file.suffix == ".npy":
        np.save(target, np.array([Payload(canary)], object), allow_pickle=True)
    elif file.suffix == ".npz":
        np.savez(target, h=np.array([Payload(canary)], object), allow_pickle=True)
    else:
        target.write(pickle.dumps(Payload(canary)))
    return target.getvalue()


def outcome_of(target: Target, place: Path) -> tuple[str, str]:
    """Use a mutated copy. → "read", "refused" or "traceback", and what was said"""
    try:
        target.use(place)
    except (OneshotError, OSError) as error:
        _check_message(error)
        return "refused", f"{type(error).__name__}: {error}"
    except MemoryError:
        return "refused", "memory"
    except Exception as error:
        if "allocate memory" in str(error):
            return "refused", "memory"
        import traceback

        return "traceback", "".join(traceback.format_exception(error))[-3000:]
    return "read", ""


def _check_message(error: Exception) -> None:
    """What the command line would print is one line with something in it."""
    if not str(error).strip() or (isinstance(error, OneshotError) and "\n" in str(error)):
        raise AssertionError(f"an error that says nothing, or too much: {error!r}") from error


@dataclass
class Watch:
    """Notes what Python code asks of the system: programs, connections, code, other places."""

    allowed: Path
    seen: list[str] = field(default_factory=list)
    is_on: bool = False

    def install(self) -> "Watch":
        sys.addaudithook(self._note)
        return self

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event in _FORBIDDEN or event.startswith(("os.exec", "os.spawn", "os.posix_spawn")):
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event == "exec":
            file = getattr(arguments[0], "co_filename", "")
            if not file.startswith((sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))):
                self.seen.append(f"exec of code from {file}")
        elif event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            inside = isinstance(path, int) or Path(os.fsdecode(path)).is_relative_to(self.allowed)
            if writes and not inside and str(path) != os.devnull:
                self.seen.append(f"open {path!r} {mode!r}")


_FORBIDDEN = {
    *("os.system", "subprocess.Popen", "pickle.find_class", "socket.connect", "os.fork"),
    *("socket.getaddrinfo", "ctypes.dlopen", "os.forkpty", "os.chmod.outside", "urllib.Request"),
}


def limit_memory() -> None:
    """A file that asks for more memory than there is must be refused, not end the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def run_case(bench: Bench, target: Target, seed: int, watch: Watch) -> dict[str, Any]:
    """One case, by its seed. → outcome, what was done, what was said"""
    generator = random.Random(f"{target.name} {seed}")
    place = bench.home / "case" / f"{os.getpid()}" / target.sound.name
    shutil.rmtree(place.parent, ignore_errors=True)
    place.parent.mkdir(parents=True)
    done = mutate(target, place, generator, bench.canary)
    watch.seen.clear()
    watch.is_on = True
    try:
        outcome, said = outcome_of(target, place)
    finally:
        watch.is_on = False
    if watch.seen or bench.canary.exists():
        outcome, said = "code executed", "; ".join(watch.seen) or "the canary is there"
        shutil.rmtree(bench.canary, ignore_errors=True)
    return {"target": target.name, "seed": seed, "outcome": outcome, "done": done, "said": said}


def check_sound(bench: Bench) -> None:
    """The files that cases are made of are sound; with this all modules are loaded, too."""
    for target in [*bench.inputs, *bench.runs]:
        place = bench.home / "sound" / target.sound.name
        shutil.rmtree(place.parent, ignore_errors=True)
        place.parent.mkdir()
        if target.sound.is_dir():
            shutil.copytree(target.sound, place)
        else:
            shutil.copy(target.sound, place)
        target.use(place)
