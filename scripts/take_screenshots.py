"""Make the images of the docs: screenshots of the web page, and the plot of an explanation.

    oneshot train world --out runs/world && python scripts/take_screenshots.py runs/world

Needs Chromium (Debian's package) and the extras `browser`, `plot` and `serve`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

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
                page.locator("#charts svg").last.wait_for()
                page.screenshot(path=IMAGES / f"{name}.png", full_page=True)
                page.close()
                print(IMAGES / f"{name}.png")
            browser.close()


if __name__ == "__main__":
    main()
