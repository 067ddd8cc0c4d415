"""The list of words to avoid: it finds them in prose, and nothing else."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "check_words.py"


@pytest.fixture(scope="module")
def words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_words", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It runs on a processor.", ["processor"]),
        ("The training goes\non after a kill.", ["goes on"]),
        ("Answers with reasons, 10 bytes an entity.", ["reasons", "bytes an entity"]),
        ("The network reasons on the subgraph.", []),
        ("How many queries a step can take", []),
        ("The key `picture` and [a link](told.md) are code.", []),
        ("```\ntold\n```\n<!-- table: x -->\ntold\n<!-- end -->\n", []),
        ("<!-- check_words: off -->told<!-- check_words: on --> told", ["told"]),
    ],
)
def test_pages(words: ModuleType, tmp_path: Path, text: str, found: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [one.found for one in words.in_markdown(page)] == found


def test_code(words: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('told = {"picture": 1}  # a picture\n\nraise ValueError("it goes on")\n')
    assert [(one.line, one.found) for one in words.in_python(module)] == [
        (1, "picture"),
        (3, "goes on"),
    ]
