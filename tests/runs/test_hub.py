"""Tests of runs on the Hugging Face Hub: with a folder in its place, and with its own client."""

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.commands import Command, listing
from tests.support.graphs import random_graph
from tests.support.hub_server import TOKEN, Hub, hub_server

import oneshot
from oneshot.data.load import load
from oneshot.errors import InputError, MissingPackageError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.answers import Calibration
from oneshot.runs import hub as hub_module
from oneshot.runs.hub import CARD, FILES, model_card
from oneshot.runs.reference import TAKING_DATA
from oneshot.runs.run import Run
from oneshot.serve.service import Service

NAME = "someone/family"


def reasoner_of(graph: KnowledgeGraph | None = None, sampler: Any = None) -> oneshot.Reasoner:
    graph = random_graph(0, 20, 50) if graph is None else graph
    graph.origin = {"source": "/home/somebody/secret/facts.tsv", "options": {"seed": 0}}
    torch.manual_seed(0)
    config = oneshot.PredictorConfig(dim=8, num_layers=2, attention_dim=4)
    predictor = oneshot.Predictor(config, num_relations=graph.num_relations)
    sampler = oneshot.PPRSampler(0.5) if sampler is None else sampler
    return oneshot.Reasoner(graph, sampler, predictor, Calibration(1.0, 0.0, 10))


def answers(reasoner: oneshot.Reasoner) -> list[tuple[str, float]]:
    return [(answer.entity, answer.score) for answer in reasoner.predict("0", "1", top=5)]


class FolderHub:
    """What `oneshot` uses of `huggingface_hub`, with folders as repositories."""

    def __init__(self, home: Path) -> None:
        self.home, self.created = home, []  # type: Path, list[tuple[str, bool]]
        self.HfApi = lambda: self

    def create_repo(self, name: str, private: bool, exist_ok: bool) -> Any:
        assert exist_ok
        self.created.append((name, private))
        return Repository(f"https://hub/{name}")

    def upload_folder(
        self, repo_id: str, folder_path: Path, delete_patterns: list[str], **_: Any
    ) -> None:
        for name in delete_patterns:
            (self.home / repo_id / name).unlink(missing_ok=True)
        shutil.copytree(folder_path, self.home / repo_id, dirs_exist_ok=True)

    def snapshot_download(self, name: str, allow_patterns: list[str], **_: Any) -> str:
        if not (self.home / name).is_dir():
            raise ConnectionError(f"404 not found, token {TOKEN}\nand more")
        return str(self.home / name)


class Repository(str):
    @property
    def repo_id(self) -> str:
        return self.removeprefix("https://hub/")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderHub:
    found = FolderHub(tmp_path / "hub")
    monkeypatch.setattr(hub_module, "require", lambda *_: found)
    return found


def everything_in(folder: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_reasoner_comes_back(folders: FolderHub) -> None:
    reasoner = reasoner_of()
    assert reasoner.push_to_hub(NAME) == f"https://hub/{NAME}"
    assert folders.created == [(NAME, True)]  # private unless asked otherwise
    assert reasoner.graph.origin is not None  # unchanged
    loaded = oneshot.Reasoner.load(f"hf://{NAME}")
    assert answers(loaded) == answers(reasoner)
    assert loaded.calibration == reasoner.calibration
    assert loaded.graph.fingerprint == reasoner.graph.fingerprint
    names = {str(f.relative_to(folders.home / NAME)) for f in (folders.home / NAME).rglob("*.*")}
    assert names <= {*FILES, CARD}
    assert b"secret" not in everything_in(folders.home)
    assert b"/home/" not in everything_in(folders.home)


def test_without_its_graph_it_needs_another(folders: FolderHub) -> None:
    reasoner = reasoner_of()
    reasoner.push_to_hub(NAME, with_graph=False, private=False)
    assert folders.created == [(NAME, False)]
    assert not (folders.home / NAME / "graph").exists()
    with pytest.raises(InputError, match="its graph is missing; give a data set"):
        oneshot.Reasoner.load(f"hf://{NAME}")
    loaded = oneshot.Reasoner.load(f"hf://{NAME}", graph=random_graph(0, 20, 50))
    assert answers(loaded) == answers(reasoner)
    card = (folders.home / NAME / CARD).read_text(encoding="utf-8")
    assert "does not contain the graph" in card


def test_a_training_starts_from_it(folders: FolderHub, run: Command, tmp_path: Path) -> None:
    reasoner_of(load("umls").graph).push_to_hub(NAME)
    command = ["train", "umls", "--out", tmp_path / "run", "--no-plan", "--json"]
    for change in ("epochs=1", "query_share=0.01", "valid_limit=10"):
        command += ["--set", f"training.{change}"]
    assert run(*command, "--from", f"hf://{NAME}").json["epochs"] == 1
    wrong = run(*command, "--from", "hf://someone/nothing")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "hf://someone/nothing" in wrong.err


def test_a_new_upload_leaves_nothing_of_the_old_one(folders: FolderHub) -> None:
    data = oneshot.datasets.family(100)
    fitted = oneshot.FittedSampler(0.5)
    fitted.fit(data.graph)
    graph = data.graph
    reasoner_of(graph, fitted).push_to_hub(NAME)
    assert (folders.home / NAME / "sampler.safetensors").exists()
    reasoner_of(graph).push_to_hub(NAME)
    assert not (folders.home / NAME / "sampler.safetensors").exists()
    assert oneshot.Reasoner.load(f"hf://{NAME}").sampler.name == "ppr"


def test_a_path_in_a_downloaded_run_is_not_followed(folders: FolderHub, tmp_path: Path) -> None:
    Run(folders.home / NAME).save(reasoner_of())  # as `save` writes it: it names its source
    with pytest.raises(InputError, match="refers to a data set outside of the repository") as found:
        oneshot.Reasoner.load(f"hf://{NAME}", graph=random_graph(0, 20, 50))
    # Not every command has the option that is recommended.
    assert f"give the data set with --data ({TAKING_DATA})" in str(found.value)


def test_the_model_card() -> None:
    names = ["likes", "a|b `c`\nd"]
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [1, 1, 2]], 3, names, [0.5, 1])
    card = model_card(reasoner_of(graph), NAME, metrics={"test MRR": 0.51234})
    assert card.startswith("---\nlibrary_name: oneshot\n")
    assert "| facts | 2, with weights |" in card
    assert "| test MRR | 0.5123 |" in card
    assert "`likes`, `a\\|b 'c' d`" in card
    assert f'Reasoner.load("hf://{NAME}")' in card
    assert "/home/" not in card


@pytest.mark.parametrize("name", ["hf://", "hf://a/b/c", "hf://a b", "hf://../x@", "hf://a/b@"])
def test_a_name_that_is_no_repository(folders: FolderHub, name: str) -> None:
    with pytest.raises(InputError, match="expected hf://OWNER/NAME"):
        oneshot.Reasoner.load(name)
    with pytest.raises(InputError, match="expected hf://OWNER/NAME"):
        reasoner_of().push_to_hub(name)


def test_errors_are_one_line_without_the_token(folders: FolderHub) -> None:
    with pytest.raises(InputError) as caught:
        oneshot.Reasoner.load("hf://someone/nothing")
    message = str(caught.value)
    assert message.startswith("hf://someone/nothing: 404 not found, token …; check the name")
    assert "\n" not in message
    assert TOKEN not in message


def test_no_connection_if_it_is_forbidden(
    folders: FolderHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONESHOT_OFFLINE", "1")
    with pytest.raises(InputError, match=r"\$ONESHOT_OFFLINE forbids connections"):
        reasoner_of().push_to_hub(NAME)
    assert folders.created == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError, match=r"huggingface_hub.*one-shot-subgraph\[hub\]"):
        oneshot.Reasoner.load(f"hf://{NAME}")


# With the real client ---------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
    with hub_server() as started:
        constants = importlib.import_module("huggingface_hub.constants")
        monkeypatch.setattr(constants, "ENDPOINT", started.address)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            started.address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield started


def test_the_real_client_uploads_and_downloads(
    server: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reasoner = reasoner_of()
    address = reasoner.push_to_hub(NAME, metrics={"test MRR": 0.5})
    assert address.endswith(NAME)
    assert server.private == {NAME: True}
    files = server.repositories[NAME]
    assert set(files) <= {*FILES, CARD, ".gitattributes"}
    assert {"config.toml", "predictor.safetensors", "graph/facts.npy", CARD} <= set(files)
    every = b"\n".join(files.values())
    assert b"secret" not in every
    files["virus.py"] = b"not ours"
    loaded = oneshot.Reasoner.load(f"hf://{NAME}@{server.commit(NAME)}")
    assert answers(loaded) == answers(reasoner)
    assert not list((tmp_path / "cache").rglob("virus.py"))
    assert TOKEN.encode() not in everything_in(tmp_path / "cache")
    assert server.authorizations <= {"", f"Bearer {TOKEN}"}
    assert not re.search(TOKEN, "".join(capfd.readouterr()))


def test_the_real_client_reports_what_is_not_there(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"hf://someone/nothing: .*check the name"):
        oneshot.Reasoner.load("hf://someone/nothing")
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    with pytest.raises(InputError, match=f"{NAME}: .*log in with") as caught:
        reasoner_of().push_to_hub(NAME)
    assert "hf_wrong" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_on_the_hub_on_the_command_line(server: Hub, tmp_path: Path, run: Command) -> None:
    reasoner = reasoner_of()
    reasoner.push_to_hub(NAME)
    value = run("predict", f"hf://{NAME}", "0", "1", "--top", 5, "--json").json
    found = [(answer["entity"], pytest.approx(answer["score"])) for answer in value["answers"]]
    assert found == answers(reasoner)
    assert run("relations", f"hf://{NAME}", "0", "1", "--json").code == 0
    before = listing(tmp_path)
    for name, word in (("hf://someone/nothing", "check the name"), ("hf://a b", "hf://OWNER/NAME")):
        result = run("audit", name, "--out", tmp_path / "facts.csv")
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
        assert word in result.err
    # The cache of the Hub's client is not ours to change.
    result = run("facts", f"hf://{NAME}", "add", "0", "1", "2")
    assert (result.code, "cannot be changed; copy the directory" in result.err) == (2, True)
    assert [name for name in listing(tmp_path) if ".locks" not in name] == [
        name for name in before if ".locks" not in name
    ]


def test_a_service_keeps_the_changes_of_a_run_on_the_hub_in_memory(
    server: Hub, tmp_path: Path
) -> None:
    reasoner_of().push_to_hub(NAME)
    path = Run.open(f"hf://{NAME}").path
    before = listing(path)
    with closing(Service(path).live) as live:
        assert live.add([("0", "1", "somebody new")]) == 1
        assert live.num_entities == 21
    assert listing(path) == before
