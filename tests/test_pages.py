"""The documentation site: every page can be reached, every public name is in the reference."""

import ast
import re
from pathlib import Path

import oneshot

ROOT = Path(__file__).parents[1]


def test_every_page_is_in_the_navigation() -> None:
    module = ast.parse((ROOT / "docs/conf.py").read_text())
    value = next(
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAVIGATION"
    )
    listed = {page for pages in ast.literal_eval(value).values() for page in pages}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= listed


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/api.md").read_text()
    named = set(re.findall(r"^\.\. \S+:: oneshot\.(\w+)", text, re.MULTILINE))
    assert set(oneshot.__all__) <= named
