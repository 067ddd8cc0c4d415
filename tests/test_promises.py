"""Every sentence of the pages that promise something is listed, and each promise has its tests."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest
from tests.support.prose import sentences

ROOT = Path(__file__).resolve().parent.parent
PAGES = tomllib.loads((ROOT / "tests" / "promises.toml").read_text(encoding="utf-8"))


@cache
def functions_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_is_a_promise_or_none(page: str) -> None:
    promises, none = PAGES[page]["promises"], PAGES[page]["none"]
    listed = [*promises, *none]
    found = sentences(ROOT / page)
    unlisted = [text for text in found if sum(map(text.startswith, listed)) != 1]
    assert unlisted == [], "list each sentence once in tests/promises.toml"
    gone = [start for start in listed if not any(text.startswith(start) for text in found)]
    assert gone == [], f"no sentence of {page} begins like this any more"


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_has_tests_that_there_are(page: str) -> None:
    for promise, tests in PAGES[page]["promises"].items():
        assert tests, promise
        for name in tests:
            file, _, function = name.partition("::")
            assert function in functions_in(file), f"{promise}: {name}"


def test_the_sentences_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    lines = (
        "# Title",
        "",
        "One sentence",
        "in two lines. Another one.",
        "",
        "```sh",
        "code. Here.",
    )
    lines += ("```", "", "[A link](a.md) first. [`One`](b.md) at the start. `Code` and (one more).")
    lines += ("", "- An item.", "- **Bold.** And more.", "", "| a | b |", "|---|---|")
    lines += ("| c. D | e |", "", "<!-- table: x -->", "| 1 |", "<!-- end -->")
    page.write_text("\n".join(lines))
    assert sentences(page) == [
        "One sentence in two lines.",
        "Another one.",
        "[A link](a.md) first.",
        "[`One`](b.md) at the start.",
        "`Code` and (one more).",
        "An item.",
        "**Bold.** And more.",
        "a | b",
        "c. D | e",
    ]
