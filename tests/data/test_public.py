"""Tests of named data sets: downloaded from loopback, checked, kept, and never fetched twice."""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.commands import Command
from tests.support.download_server import Server

from oneshot.data.load import load
from oneshot.data.public import catalogue as named
from oneshot.data.public.catalogue import NAMED, facts_digest
from oneshot.errors import InputError, MissingPackageError

TRAIN, VALID, TEST = "a\tr\tb\nb\tr\tc\nc\ts\ta\n", "a\ts\tb\n", "a\tr\tc\n"
FILES = {"train": TRAIN, "valid": VALID, "test": TEST}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ONESHOT_DATA", raising=False)
    monkeypatch.delenv("ONESHOT_OFFLINE", raising=False)
    return tmp_path / "cache" / "oneshot"


Serve = Callable[..., None]


@pytest.fixture
def serve(server: Server, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Puts a data set onto the server, under the name of a real one."""

    def put(name: str, files: dict[str, bytes], **changes: Any) -> None:
        server.files = {f"/{file}": content for file, content in files.items()}
        urls = tuple(f"{server.url}/{file}" for file in files)
        entry = replace(NAMED[name], urls=urls, digest=None, sha256=(), facts=(3, 1, 1))
        monkeypatch.setitem(NAMED, name, replace(entry, **changes))

    return put


def tar(members: dict[str, str]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return target.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


def test_an_archive_is_downloaded_once(
    serve: Serve,
    server: Server,
    cache: Path,
    tmp_path: Path,
) -> None:
    members = {"./readme.txt": "x", "../../evil.txt": "x"}
    members |= {f"data/x_{split}.txt": text for split, text in FILES.items()}
    archive = tar(members)  # once: it holds the time of its making
    serve("Wikidata5M", {"archive.tar.gz": archive})
    data = load("Wikidata5M")
    assert (data.name, len(data.train), len(data.valid), len(data.test)) == ("Wikidata5M", 3, 1, 1)
    assert data.graph.origin is not None
    assert data.graph.origin["source"] == str(cache / "Wikidata5M")
    assert len(server.asked) == 1
    server.files.clear()
    assert load("Wikidata5M").graph.fingerprint == data.graph.fingerprint
    assert sorted(entry.name for entry in cache.iterdir()) == [
        *(".downloads", ".sha256.json.lock", "Wikidata5M", "sha256.json")
    ]
    assert [entry.name for entry in (cache / ".downloads").iterdir()] == ["Wikidata5M.lock"]
    about = json.loads((cache / "Wikidata5M" / "source.json").read_text())
    assert about["sha256"] == [hashlib.sha256(archive).hexdigest()]
    assert not list(tmp_path.rglob("evil*"))


def recorded(cache: Path) -> dict[str, str]:
    value: dict[str, str] = json.loads((cache / "sha256.json").read_text())
    value.pop("checksum")
    return value


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_another_file_at_the_same_address_is_refused(
    run: Command, serve: Serve, server: Server, cache: Path
) -> None:
    """Although its content would be accepted: the first download decides."""
    first = tar({f"{split}.txt": text for split, text in FILES.items()})
    second = tar({f"{split}.txt": text for split, text in FILES.items()} | {"more.txt": "x"})
    serve("YAGO3-10", {"archive.tar.gz": first})
    done = run("data", "YAGO3-10", "--json")
    url = f"{server.url}/archive.tar.gz"
    assert done.json["downloads"] == [{"url": url, "sha256": sha256(first)}]
    assert f"downloaded {url}, SHA-256 {sha256(first)}" in done.err
    assert recorded(cache) == {url: sha256(first)}
    # Also without a download, for the record of an experiment.
    again = run("data", "YAGO3-10", "--json")
    assert again.json["downloads"] == done.json["downloads"]
    assert "downloaded" not in again.err
    # The cache is emptied, and the file on the server has changed.
    shutil.rmtree(cache / "YAGO3-10")
    server.files["/archive.tar.gz"] = second
    refused = run("data", "YAGO3-10")
    assert refused.code == 2
    assert f"SHA-256 {sha256(second)} instead of {sha256(first)}" in refused.err
    assert f"oneshot data YAGO3-10 --sha256 {sha256(second)}" in refused.err
    assert not (cache / "YAGO3-10").exists()
    assert recorded(cache) == {url: sha256(first)}
    with pytest.raises(InputError, match="records of an earlier download"):
        load("YAGO3-10")
    # The user accepts it, as the error says.
    assert run("data", "YAGO3-10", "--sha256", sha256(second)).code == 0
    assert recorded(cache) == {url: sha256(second)}
    shutil.rmtree(cache / "YAGO3-10")
    assert len(load("YAGO3-10").train) == 3


def test_only_accepted_downloads_are_recorded(serve: Serve, cache: Path) -> None:
    content = tar({f"{split}.txt": text for split, text in FILES.items()})
    serve("YAGO3-10", {"archive.tar.gz": content}, facts=(4, 1, 1))
    with pytest.raises(InputError, match="3 facts instead of 4"):
        load("YAGO3-10")
    assert not (cache / "sha256.json").exists()


def test_hashes_that_the_user_expects(
    run: Command, serve: Serve, server: Server, cache: Path
) -> None:
    content = tar({f"{split}.txt": text for split, text in FILES.items()})
    serve("YAGO3-10", {"archive.tar.gz": content})
    other = "0" * 64
    assert f"{sha256(content)} instead of {other}" in run("data", "YAGO3-10", "--sha256", other).err
    assert not left_in(cache)
    assert run("data", "YAGO3-10", "--sha256", sha256(content).upper()).code == 0
    # Of what is in the cache already.
    assert run("data", "YAGO3-10", "--sha256", sha256(content)).code == 0
    refused = run("data", "YAGO3-10", "--sha256", other)
    assert refused.code == 2
    assert f"SHA-256 {sha256(content)} instead of {other}; remove the directory" in refused.err
    for name, value, message in (
        ("YAGO3-10", "abc", "'abc' is not a SHA-256 of 64 hexadecimal digits"),
        ("NELL-995", other, "NELL-995 has 4 files and not 1; give the option once for each"),
        ("umls", other, "umls: --sha256 needs the name of a public data set"),
        ("pykeen:nations", other, "--sha256 needs one of WN18RR"),
    ):
        refused = run("data", name, "--sha256", value)
        assert refused.code == 2
        assert message in refused.err


def test_a_file_of_an_interrupted_call_has_the_expected_hash(
    serve: Serve, server: Server, cache: Path
) -> None:
    content = tar({f"{split}.txt": text for split, text in FILES.items()})
    serve("YAGO3-10", {"archive.tar.gz": content})
    arrived = cache / ".downloads" / "YAGO3-10" / "archive.tar.gz"
    arrived.parent.mkdir(parents=True)
    arrived.write_bytes(tar({f"{split}.txt": TRAIN for split in FILES}))
    named.fetch("YAGO3-10", sha256=[sha256(content)])
    assert len(server.asked) == 1


def test_damaged_records_of_hashes_are_an_error(serve: Serve, server: Server, cache: Path) -> None:
    content = tar({f"{split}.txt": text for split, text in FILES.items()})
    serve("YAGO3-10", {"archive.tar.gz": content})
    load("YAGO3-10")
    shutil.rmtree(cache / "YAGO3-10")
    file = cache / "sha256.json"
    file.write_text(file.read_text().replace(sha256(content), "0" * 64))
    with pytest.raises(InputError, match=r"sha256\.json was changed or damaged .*or remove it"):
        load("YAGO3-10")
    file.write_text(json.dumps({f"{server.url}/archive.tar.gz": 5}))
    with pytest.raises(InputError, match=r"sha256\.json: .* has no SHA-256"):
        load("YAGO3-10")
    assert len(server.asked) == 1


def test_an_interrupted_download_of_a_data_set_goes_on(
    serve: Serve,
    server: Server,
) -> None:
    content = zipped({f"Release/{split}.txt": text.encode() for split, text in FILES.items()})
    serve("FB15k-237", {"archive.zip": content})
    server.cut = len(content) // 10
    with pytest.raises(InputError, match="the same command resumes the download"):
        load("FB15k-237")
    server.cut = None
    assert len(load("FB15k-237").train) == 3
    assert server.asked[-1][1] == f"bytes={5 * (len(content) // 10)}-"


def test_the_local_directory_comes_first(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mine" / "WN18RR").mkdir(parents=True)
    for split, text in FILES.items():
        (tmp_path / "mine" / "WN18RR" / f"{split}.tsv").write_text(text)
    monkeypatch.setenv("ONESHOT_DATA", str(tmp_path / "mine"))
    assert len(load("WN18RR").train) == 3
    assert not server.asked


def left_in(cache: Path) -> list[Path]:
    """The files in the cache, but for locks."""
    return [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_many_at_once_download_once(serve: Serve, server: Server) -> None:
    members = {f"{split}.txt": text for split, text in FILES.items()}
    serve("FB15k-237", {"archive.tar.gz": tar(members)})
    server.cut = 100  # several connections each
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(named.fetch, ["FB15k-237"] * 4))
    assert len(set(found)) == 1
    starts = [wanted for _, wanted in server.asked]
    assert len(starts) == len(set(starts))
    assert len(load("FB15k-237").train) == 3


def test_what_is_not_as_expected_is_an_error_and_leaves_nothing(
    serve: Serve, cache: Path, tmp_path: Path
) -> None:
    members = {f"{split}.txt": text for split, text in FILES.items()}
    content = tar(members)
    for change, message in (
        ({"sha256": ("0" * 64,)}, "wrong checksum: SHA-256"),
        ({"digest": "0" * 64}, "wrong checksum of the facts of WN18RR"),
        ({"facts": (4, 1, 1)}, "train of WN18RR has 3 facts instead of 4"),
    ):
        serve("WN18RR", {"archive.tar.gz": content}, **change)
        with pytest.raises(InputError, match=message):
            load("WN18RR")
        assert not left_in(cache)
    for broken, message in (
        (content[:60], "incomplete archive"),
        (b"<html>", "incomplete archive"),
        (tar({"train.txt": TRAIN}), r"the archive has no valid\.txt"),
    ):
        serve("WN18RR", {"archive.tar.gz": broken})
        with pytest.raises(InputError, match=message):
            load("WN18RR")
        assert not left_in(cache)
    for split, text in FILES.items():
        (tmp_path / f"{split}.tsv").write_text("".join(reversed(text.splitlines(keepends=True))))
    serve("WN18RR", {"archive.tar.gz": content}, digest=facts_digest(tmp_path))
    assert len(load("WN18RR").train) == 3


def ogb_file(**columns: Any) -> bytes:
    """An archive of OGB whose splits all have these columns."""
    target = io.BytesIO()
    torch.save(columns, target)
    return zipped(dict.fromkeys((f"kg/split/{split}.pt" for split in FILES), target.getvalue()))


IDS = np.array([0, 1, 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ogb_file(head=IDS, tail=IDS), "train has no column relation"),
        (ogb_file(head=IDS, relation=IDS, tail=IDS[:2]), "the columns of train differ in length"),
        (ogb_file(head=IDS - 1, relation=IDS, tail=IDS), "head of train has invalid ids"),
        (ogb_file(head=IDS + (1 << 40), relation=IDS, tail=IDS), "head of train has invalid ids"),
        (ogb_file(head=IDS, relation=IDS + 9, tail=IDS), "relation of train has invalid ids"),
        (ogb_file(head=IDS.astype(float), relation=IDS, tail=IDS), "head of train has invalid ids"),
        (ogb_file(head=IDS, relation=IDS, tail=["a", "b", "c"]), "tail of train has invalid ids"),
        (
            ogb_file(head=IDS, relation=IDS, tail=IDS, head_type=["a"] * 3),
            "the types of train are not complete",
        ),
        (
            ogb_file(head=IDS, relation=IDS, tail=IDS, head_neg=IDS, tail_neg=IDS),
            "head_neg of train has invalid ids",
        ),
        (zipped({"kg/mapping/relidx2relname.csv.gz": b"no gzip"}), "incomplete archive"),
        (
            zipped({"kg/mapping/relidx2relname.csv.gz": gzip.compress(b"\xff\n")}),
            "not readable",
        ),
    ],
)
def test_a_damaged_archive_of_ogb_leaves_nothing(
    serve: Serve, cache: Path, content: bytes, message: str
) -> None:
    serve("ogbl-wikikg2", {"wikikg.zip": content}, facts=(3, 3, 3))
    with pytest.raises(InputError, match=message):
        load("ogbl-wikikg2")
    assert not left_in(cache)


def test_files_of_the_official_code(serve: Serve) -> None:
    parts = {"facts.txt": b"a r b\nb r c\n", "train.txt": b"c s a\n"}
    parts |= {"valid.txt": b"a s b\n", "test.txt": b"a r c"}
    serve("NELL-995", parts)
    data = load("NELL-995")
    assert (len(data.train), len(data.valid), len(data.test)) == (3, 1, 1)
    assert list(data.relations) == ["r", "s"]


def test_a_table_that_is_not_divided(serve: Serve) -> None:
    table = "source\tmetaedge\ttarget\n" + "".join(
        f"g{i % 7}\tr{i % 2}\tg{i % 11}\n" for i in range(77)
    )
    serve("Hetionet", {"edges.sif.gz": gzip.compress(table.encode())}, facts=(77,))
    data = load("Hetionet", seed=3)
    assert data.name == "Hetionet"
    assert len(data.known) == 77
    assert len(data.test) == 7
    assert "seed 3" in data.notes[0]
    assert "source" not in data.entities


def ogb(types: bool, **options: Any) -> bytes:
    members = {}
    splits = {"train": [(0, 0, 1), (1, 1, 0), (2, 0, 2)], "valid": [(0, 1, 1)], "test": [(1, 0, 2)]}
    for split, facts in splits.items():
        head, relation, tail = np.array(facts).T
        value: dict[str, Any] = {"head": head, "relation": relation, "tail": tail}
        if types:
            value |= {"head_type": ["gene"] * len(facts), "tail_type": ["drug"] * len(facts)}
        target = io.BytesIO()
        torch.save(value, target, **options)
        members[f"kg/split/random/{split}.pt"] = target.getvalue()
    members["kg/mapping/relidx2relname.csv.gz"] = gzip.compress(b"rel idx,name\n0,cures\n1,binds\n")
    names = b"node idx,entity id\n0,Q5\n1,Q7\n2,Q1\n"
    members["kg/mapping/nodeidx2entityid.csv.gz"] = gzip.compress(names)
    return zipped(members)


@pytest.mark.parametrize(
    "options", [{}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}]
)
def test_graphs_of_ogb_with_and_without_types(serve: Serve, options: dict[str, Any]) -> None:
    serve("ogbl-biokg", {"biokg.zip": ogb(types=True, **options)})
    data = load("ogbl-biokg")
    drugs, genes = ([f"{kind}:{i}" for i in range(3)] for kind in ("drug", "gene"))
    assert list(data.entities) == drugs + genes
    assert list(data.relations) == ["cures", "binds"]
    assert data.train.tolist() == [[3, 0, 1], [4, 1, 0], [5, 0, 2]]
    serve("ogbl-wikikg2", {"wikikg.zip": ogb(types=False, **options)})
    data = load("ogbl-wikikg2")
    assert list(data.entities) == ["Q5", "Q7", "Q1"]
    assert data.test.tolist() == [[1, 0, 2]]


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "evil"))


def test_pickles_in_an_archive_are_not_run(serve: Serve, tmp_path: Path) -> None:
    target = io.BytesIO()
    torch.save({"head": Evil(tmp_path / "evil")}, target)
    members = dict.fromkeys((f"kg/split/time/{split}.pt" for split in FILES), target.getvalue())
    serve("ogbl-wikikg2", {"wikikg.zip": zipped(members)})
    with pytest.raises(InputError, match=r"train\.pt: not a file of arrays \(it would execute"):
        load("ogbl-wikikg2")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["_codecs\nencode", "numpy\nndarray", "numpy\ndtype"])
def test_a_pickle_cannot_change_what_a_name_stands_for(serve: Serve, name: str) -> None:
    """`BUILD` sets the attributes of what comes before the state: here, a function or a class."""
    content = f"\x80\x02c{name}\n}}X\x01\0\0\0aK\x01sb.".encode("latin1")
    members = dict.fromkeys((f"kg/split/time/{split}.pt" for split in FILES), content)
    serve("ogbl-wikikg2", {"wikikg.zip": zipped(members)})
    with pytest.raises(InputError, match="it would change what a name stands for"):
        load("ogbl-wikikg2")


class Forged:
    """Pickled as an array of numpy whose type and content are given."""

    def __init__(self, letters: str, flags: int, shape: Any, content: Any) -> None:
        self.letters, self.flags, self.shape, self.content = letters, flags, shape, content

    def __reduce__(self) -> Any:
        empty = np.empty(0).__reduce__()
        state = (1, self.shape, ForgedType(self.letters, self.flags), False, self.content)
        return (empty[0], (np.ndarray, (0,), b"b"), state)


class ForgedType:
    def __init__(self, letters: str, flags: int) -> None:
        self.letters, self.flags = letters, flags

    def __reduce__(self) -> Any:
        state = (3, "|", None, None, None, -1, -1, self.flags)
        return (np.dtype, (self.letters, False, True), state)


FORGED = {
    "objects": Forged("O8", 0, (2,), b"\x41" * 16),  # addresses, if it were read as such
    "declared objects": Forged("O8", 63, (1,), [Evil(Path("evil"))]),
    "structures": Forged("V16", 0, (1,), b"\x41" * 16),
    "too short": Forged("i8", 0, (1 << 40,), b"\x41" * 16),
    "negative": Forged("i8", 0, (-2, -1), b"\x41" * 16),
    "no shape": Forged("i8", 0, "ab", b"\x41" * 16),
    "no bytes": Forged("i8", 0, (2,), ["a", "b"]),
}
UNPACK = """
import sys
from pathlib import Path
from oneshot.data.public.archives import unpack_ogb
from oneshot.errors import InputError
for archive in sys.argv[1:]:
    try:
        unpack_ogb([Path(archive)], Path(archive).parent)
    except InputError as error:
        print(error)
"""


@pytest.mark.parametrize("protocol", [2, 4])
def test_forged_arrays_are_refused(tmp_path: Path, protocol: int) -> None:
    """In a process of its own, because reading such an array can end the process."""
    archives = []
    for number, forged in enumerate(FORGED.values()):
        target = io.BytesIO()
        torch.save({"head": forged}, target, pickle_protocol=protocol)
        members = dict.fromkeys((f"kg/split/time/{split}.pt" for split in FILES), target.getvalue())
        archives.append(tmp_path / f"{number}.zip")
        archives[-1].write_bytes(zipped(members))
    command = [sys.executable, "-c", UNPACK, *archives]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, (done.returncode, done.stderr)
    lines = done.stdout.splitlines()
    assert len(lines) == len(FORGED)
    assert all("train.pt: not a file of arrays (" in line for line in lines), lines
    assert not (tmp_path / "evil").exists()


def test_data_sets_of_pykeen(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    class Factory:
        mapped_triples = torch.tensor([[0, 0, 1], [1, 0, 2]])
        entity_to_id = types.MappingProxyType({"b": 1, "a": 0, "c": 2})
        relation_to_id = types.MappingProxyType({"r": 0})

    class Data:
        training = validation = testing = Factory

    loaders = types.ModuleType("pykeen.datasets")
    vars(loaders).update(
        get_dataset=lambda dataset: Data,
        dataset_resolver=types.SimpleNamespace(lookup_dict={"nations": Data}),
    )
    monkeypatch.setitem(sys.modules, "pykeen", types.ModuleType("pykeen"))
    monkeypatch.setitem(sys.modules, "pykeen.datasets", loaders)
    data = load("pykeen:Nations")
    assert list(data.entities) == ["a", "b", "c"]
    assert data.train.tolist() == [[0, 0, 1], [1, 0, 2]]
    with pytest.raises(InputError, match="PyKEEN has no data set 'nation'"):
        load("pykeen:nation")
    monkeypatch.setitem(sys.modules, "pykeen.datasets", None)
    with pytest.raises(MissingPackageError, match=r"one-shot-subgraph\[datasets\]"):
        load("pykeen:codex")
    assert sorted(entry.name for entry in cache.iterdir()) == [".downloads", "pykeen-Nations"]


def test_the_command_downloads_and_names_are_suggested(
    run: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {f"{split}.txt": text for split, text in FILES.items()}
    serve("YAGO3-10", {"archive.tar.gz": tar(members)})
    monkeypatch.setenv("ONESHOT_OFFLINE", "1")
    forbidden = run("data", "YAGO3-10")
    assert forbidden.code == 2
    assert "$ONESHOT_OFFLINE forbids downloads" in forbidden.err
    monkeypatch.delenv("ONESHOT_OFFLINE")
    assert run("data", "YAGO3-10", "--json").json["train"] == 3
    assert "did you mean 'YAGO3-10'?" in run("data", "yago3-1").err


@pytest.mark.parametrize("name", NAMED)
def test_the_table_is_whole(name: str) -> None:
    entry = NAMED[name]
    assert all(url.startswith("https://") for url in entry.urls)
    assert len(entry.facts) in (1, 3)
    assert named.is_named(name)
