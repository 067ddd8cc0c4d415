"""Fixtures of the tests of data sets."""

import threading
from collections.abc import Iterator

import pytest
from tests.support.download_server import Server

from oneshot.data.public import download


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "PAUSE", 0.001)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()
