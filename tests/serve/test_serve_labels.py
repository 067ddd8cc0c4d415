"""Tests of labels: readable texts for entities and relations whose names are ids."""

from pathlib import Path

import pytest
from tests.support.commands import Command
from tests.support.samples import chain_world
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from oneshot.errors import InputError, UnknownNameError
from oneshot.serve.labels import Labels, labels_in_file, labels_in_graph
from oneshot.serve.server import serving
from oneshot.serve.service import Service
from oneshot.serve.settings import ServeSettings

LABELS = "link 1\tAlpha Centauri\nlink 2\tbeta\r\n\nlink 3\tbeta\nnobody\tNobody\nnext\tsuccessor\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "labels.tsv"
    path.write_text("\ufeff" + LABELS + "link 1\tagain\n", encoding="utf-8")
    return path


def test_labels_of_a_service(file: Path, tmp_path: Path) -> None:
    service = Service(saved_run(tmp_path / "run", 12), ServeSettings(labels=file))
    with serving(service) as url:
        assert request(f"{url}/v1/readyz").json["labels"]
        asked = {"entities": ["link 1", "link 2", "link 4", "nobody"]}
        found = request(f"{url}/v1/labels", asked).json
        assert found == {"labels": {"link 1": "Alpha Centauri", "link 2": "beta"}}
        # By label, also with a typing error; and by name as before.
        for text in ("alpha", "ALPHA%20C", "alpa%20centuri"):
            reply = request(f"{url}/v1/entities?search={text}").json
            assert reply["entities"][0] == "link 1", text
            assert reply["labels"]["link 1"] == "Alpha Centauri"
        both = request(f"{url}/v1/entities?search=beta").json["entities"]
        assert sorted(both[:2]) == ["link 2", "link 3"]
        assert request(f"{url}/v1/entities?search=link%202").json["entities"][0] == "link 2"
        assert request(f"{url}/v1/relations").json["labels"] == {"next": "successor"}
        # An entity with exactly the name comes before any label that begins with it.
        facts = {"facts": [["beta", "next", "link 1"]]}
        assert request(f"{url}/v1/facts", facts).status == 200
        found = request(f"{url}/v1/entities?search=beta&limit=1").json["entities"]
        assert found == ["beta"]
        # Answers have names, drawings have labels and lead to names.
        why = {"entity": "link 1", "relation": "next", "answer": "link 2", "drawing": True}
        drawing = request(f"{url}/v1/explain", why).json["drawing"]
        assert ">Alpha Centauri</text>" in drawing
        assert 'data-entity="link 1"' in drawing
        assert ">link 1</text>" not in drawing
        assert ">successor</text>" in drawing
        assert ">next" not in drawing
        assert "—next" not in drawing
        assert service.label("next⁻¹") == "successor⁻¹"
        assert service.label("after") == "after"


def test_without_labels(tmp_path: Path) -> None:
    with serving(Service(saved_run(tmp_path / "run", 8))) as url:
        assert request(f"{url}/v1/labels", {"entities": ["link 1"]}).json == {"labels": {}}
        assert "labels" not in request(f"{url}/v1/entities?search=link").json
        assert not request(f"{url}/v1/readyz").json["labels"]


def test_the_tails_of_a_relation_are_labels() -> None:
    graph = chain_world(8).graph
    labels = Labels(graph, labels_in_graph(graph, "next"))
    assert labels.of(["link 1", "nobody"]) == {"link 1": "link 2"}
    assert labels.search("link 2", 1) == ["link 1"]
    with pytest.raises(UnknownNameError, match="nxt"):
        Labels(graph, labels_in_graph(graph, "nxt"))


def test_no_name_has_a_label() -> None:
    labels = Labels(chain_world(8).graph, [("nobody", "Nobody")])
    assert (labels.search("no", 5), labels.search("", 5)) == ([], [])


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"link 1\n", ":1: must be a name, a tab and its label"),
        (b"link 1\ta\nlink 2\t \n", ":2: must be a name"),
        (b"\tlabel\n", ":1: must be a name"),
        (b"link 1\t\xff\n", "must be UTF-8"),
    ],
)
def test_a_bad_file_of_labels(tmp_path: Path, content: bytes, wrong: str) -> None:
    path = tmp_path / "labels.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=wrong):
        list(labels_in_file(path))


def test_wrong_use_of_labels(run: Command, tmp_path: Path) -> None:
    saved = saved_run(tmp_path / "run", 8)
    told = run("serve", saved, "--port", 0, "--labels", tmp_path / "nothing")
    assert (told.code, "labels cannot be read" in told.err) == (2, True)
    told = run("serve", saved, "--port", 0, "--labels", tmp_path)
    assert (told.code, "labels cannot be read" in told.err) == (2, True)
    told = run("serve", saved, "--port", 0, "--label-relation", "rdfs:label")
    assert (told.code, "unknown relation 'rdfs:label'" in told.err) == (2, True)
