"""A real browser for tests of the page, and what they do with it."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Chromium; skips the test if it or playwright is missing."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (the extra `browser`)"
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium on this machine")
    sync_api.expect.set_options(timeout=20_000)  # a busy machine is no fault of the page
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield started
        started.close()


@contextlib.contextmanager
def watched(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A new page that must not fail, complain or load anything from elsewhere."""
    context = browser.new_context(**options)
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on(
        "console",
        lambda message: (
            faults.append(message.text)
            if message.type == "error" and "status of 404" not in message.text
            else None
        ),
    )
    # Files that the page saves have addresses of their own.
    inside = (url, "blob:", "data:")
    opened.on("request", lambda asked: asked.url.startswith(inside) or faults.append(asked.url))
    yield opened
    found = list(faults)  # without the complaints about requests that the end of the test cuts off
    context.close()
    assert not found, found


def ask(page: Any, entity: str, relation: str) -> None:
    page.get_by_label("Entity", exact=True).fill(entity)
    page.locator("#relation").fill(relation)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Ask", exact=True).click()


def answered(page: Any, entity: str, relation: str) -> None:
    """Ask, and wait until the answers are those to this question."""
    ask(page, entity, relation)
    page.locator("#answers-title", has_text=f"({entity}, {relation}, ?)").wait_for()


def explained(page: Any, number: int = 0) -> str:
    """Select an answer and wait for its explanation. → its entity"""
    row = page.locator("#answers tbody tr").nth(number)
    row.get_by_role("button").click()
    name = str(row.get_attribute("data-answer"))
    page.locator(f"#answers tr[aria-current=true][data-answer={json.dumps(name)}]").wait_for()
    settled(page)
    return name


def settled(page: Any) -> None:
    """Wait until the latest explanation is shown."""
    page.locator("#why:not([aria-busy]) #charts svg").last.wait_for()
