"""Make the images of the docs: screenshots of the web page, and the plot of an explanation.

    oneshot train world --out runs/world && python scripts/take_screenshots.py runs/world

Needs Chromium (Debian's package) and the extras `browser`, `plot` and `serve`.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import oneshot
from oneshot.experiments.demo import QUESTION
from oneshot.serve.server import serving
from oneshot.serve.service import Service

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SHOTS = {
    "page-desktop": ({"width": 1280, "height": 900}, "light"),
    "page-dark": ({"width": 1280, "height": 900}, "dark"),
    "page-phone": ({"width": 390, "height": 844}, "light"),
}


def main() -> None:
    run = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/world")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "run"  # the service must not change the run itself
        shutil.copytree(run, copy)
        entity, relation = QUESTION
        found = oneshot.Reasoner.load(copy).predict(
            entity, relation, top=1, exclude_known=True, explain=1
        )
        found.explanations[0].to_png(IMAGES / "explanation.png")
        print(IMAGES / "explanation.png")
        with serving(Service(copy)) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=FLAGS
            )
            for name, (size, scheme) in SHOTS.items():
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.goto(f"{url}/#entity={entity}&relation={relation}&new=1")
                explain(page)
                page.screenshot(path=IMAGES / f"{name}.png", full_page=True)
                page.close()
                print(IMAGES / f"{name}.png")
            take_changes(browser, f"{url}/#entity={entity}&relation={relation}&new=1", entity)
            browser.close()


def explain(page: Any) -> None:
    """Select the first answer and wait for its explanation."""
    page.locator("#answers tbody button").first.click()
    page.locator("#why:not([aria-busy]) #charts svg").last.wait_for()
    page.mouse.move(0, 0)  # away from the answer


def take_changes(browser: Any, address: str, entity: str) -> None:
    """The page after a change: answers compared, an entity expanded, another fact checked."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    explain(page)
    answers = [row.get_attribute("data-answer") for row in page.locator("#answers tbody tr").all()]
    relation = page.locator("#relation").input_value()
    for answer, button in ((answers[1], "Add the fact"), (answers[0], "Check the fact")):
        for field, value in (("#head", entity), ("#label", relation), ("#tail", answer)):
            page.locator(field).fill(value)
        page.keyboard.press("Escape")
        page.get_by_role("button", name=button).click()
        page.locator("#compared", has_text="Compared").wait_for()
        page.locator("#why:not([aria-busy]) #charts svg").last.wait_for()
    page.locator("#checked dl").wait_for()
    page.locator("#added").evaluate("note => note.replaceChildren()")
    page.locator(f"#drawing g[role=button][data-entity='{entity}']").focus()
    page.keyboard.press("e")
    page.locator("#drawing g.expanded").first.wait_for()
    page.screenshot(path=IMAGES / "page-changes.png", full_page=True)
    page.close()
    print(IMAGES / "page-changes.png")


if __name__ == "__main__":
    main()
