"""Tests of the hostile clients of the service benchmark, and of results in parts."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from benchmarks import common, serve_soak
from benchmarks.serve_soak import attack, broken_request, huge_request
from scripts.write_tables import measured_on

from oneshot.serve.limits import MAX_BODY
from oneshot.serve.server import serving
from oneshot.serve.service import Service


def test_huge_requests_are_larger_than_accepted() -> None:
    assert serve_soak.LARGEST == MAX_BODY
    framings = set()
    for seed in range(8):
        head, *pieces = huge_request(random.Random(seed))
        is_chunked = b"chunked" in head
        framings.add(is_chunked)
        lengths = [len(piece) for piece in pieces]
        if is_chunked:
            lengths = [int(piece.partition(b"\r\n")[0], 16) for piece in pieces]
            assert lengths[-1] == 0
        else:
            assert b"Content-Length: %d\r\n" % sum(lengths) in head
        assert MAX_BODY < sum(lengths) < 5 * MAX_BODY
    assert framings == {True, False}


def test_a_service_withstands_hostile_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_soak, "HUGE_SHARE", 0.2)
    monkeypatch.setattr(serve_soak, "COSTLY_SHARE", 0.2)
    assert any(len(list(broken_request(random.Random(seed)))) > 1 for seed in range(9))
    with serving(Service(saved_run(tmp_path / "run", 8))) as url:
        host, port = url.removeprefix("http://").split(":")
        found = attack((host, int(port)), 4, time.monotonic() + 2)
        assert request(f"{url}/v1/healthz").status == 200
    assert found["huge"] > 0
    assert found["costly"] > 0
    assert found.keys() & {"400", "413", "421"}
    assert "500" not in found


def test_parts_keep_the_revision_that_they_were_measured_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stamp(revision: str) -> None:
        value = {"revision": revision}
        monkeypatch.setattr(common, "hardware", lambda device: value)

    def written() -> Any:
        return json.loads((tmp_path / "x.json").read_text())

    stamp("old")
    common.write_parts("x", {"one": {"n": 1}, "two": {"n": 2}}, directory=tmp_path)
    stamp("new")
    common.write_parts("x", {"two": {"n": 3}}, directory=tmp_path)
    assert written() == {
        "one": {"n": 1, "hardware": {"revision": "old"}},
        "two": {"n": 3, "hardware": {"revision": "new"}},
    }
    assert [one["revision"] for one in measured_on(written())] == ["old", "new"]
    assert measured_on({"hardware": {"revision": "a"}, "n": 1}) == [{"revision": "a"}]
