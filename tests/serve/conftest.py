"""Fixtures of the tests in a real browser; they skip a test where there is none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import launched, watched
from tests.support.services import saved_run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    from oneshot.serve.server import serving
    from oneshot.serve.service import Service

    with serving(Service(saved_run(tmp_path / "run"))) as address:
        yield address


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """A page that must not fail, complain or load anything from elsewhere."""
    with watched(browser, url) as opened:
        opened.goto(url)
        yield opened
