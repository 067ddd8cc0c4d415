"""Take the pictures of the page that the docs show, from a run on the bundled graph.

Run `oneshot demo` first; its run is served and asked here. Needs Debian's chromium and the extra
`browser`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

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
    run = Path(sys.argv[1] if len(sys.argv) > 1 else "demo/run")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "run"  # nothing of the run itself is changed
        shutil.copytree(run, copy)
        with serving(Service(copy)) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=FLAGS
            )
            for name, (size, scheme) in SHOTS.items():
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.goto(f"{url}/#entity=Bolivia&relation=borders&new=1")
                page.locator("#charts svg").last.wait_for()
                page.screenshot(path=IMAGES / f"{name}.png", full_page=True)
                page.close()
                print(IMAGES / f"{name}.png")
            browser.close()


if __name__ == "__main__":
    main()
