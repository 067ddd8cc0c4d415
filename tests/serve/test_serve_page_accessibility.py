"""Tests of the page with axe-core, which is installed for them; skipped where that is not possible.

axe-core is no part of the repository: npm fetches it, or AXE_CORE is the path of its `axe.min.js`.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import DESKTOP, PHONE, explained, settled, watched
from tests.support.services import request, saved_run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (the extra `browser`)"
)
from oneshot.serve.server import serving  # noqa: E402
from oneshot.serve.service import Service  # noqa: E402

VERSION = "4.10.3"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    given = os.environ.get("AXE_CORE")
    if given:
        return Path(given).read_text()
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, and AXE_CORE is not set")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts"]
    command += ["--fetch-retries=0", "--fetch-timeout=15000"]
    try:
        done = subprocess.run([*command, f"axe-core@{VERSION}"], capture_output=True, timeout=25)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install axe-core in time; set AXE_CORE")
    if done.returncode:
        pytest.skip("npm cannot install axe-core; set AXE_CORE")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


def violations(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]


@pytest.mark.parametrize(
    ("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
def test_axe_finds_no_violations(
    browser: Any, tmp_path: Path, axe: str, size: dict[str, int], scheme: str
) -> None:
    expect = sync_api.expect
    with (
        serving(Service(saved_run(tmp_path / "run"))) as url,
        watched(browser, url, viewport=size, color_scheme=scheme) as page,
    ):
        # The empty page with a problem.
        page.goto(url)
        expect(page.locator("#examples a").first).to_be_visible()
        page.locator("#head").fill("nobody")
        page.locator("#label").fill("next")
        page.locator("#tail").fill("link 1")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Check the fact").click()
        expect(page.locator("#add-problem")).to_contain_text("unknown entity")
        assert violations(page, axe) == []
        # Everything open: answers, filters, statistics, a command, changes, a checked fact.
        facts = [[f"n{n}", "next", "link 12"] for n in range(60)]
        assert request(f"{url}/v1/facts", {"facts": facts}).status == 200
        page.goto(f"{url}/#head=link+5&label=next&tail=link+6")
        page.reload()
        expect(page.locator("#checked")).to_contain_text("In the graph")
        page.goto(f"{url}/#entity=link+12&relation=after&top=12&min=0.1")
        expect(page.locator("#why-status")).to_contain_text("Select an answer")
        assert violations(page, axe) == []
        explained(page)
        page.locator("#statistics summary").click()
        expect(page.locator("#statistics dl")).to_contain_text("different heads")
        page.get_by_role("button", name="curl").click()
        page.locator("#drawing g[role=button][data-entity='link 12']").focus()
        page.keyboard.press("e")
        expect(page.locator("#drawing g.expanded")).to_have_count(8)
        page.locator("#facts li button[aria-label]").first.click()
        expect(page.locator("#compared")).to_contain_text("Compared with version")
        settled(page)
        page.locator("#relation").fill("")
        expect(page.get_by_role("option").first).to_be_visible()
        assert violations(page, axe) == []
        page.goto(f"{url}/reference")
        assert violations(page, axe) == []
        # What is broken is found.
        page.evaluate("document.documentElement.removeAttribute('lang')")
        assert [one.partition(":")[0] for one in violations(page, axe)] == ["html-has-lang"]
