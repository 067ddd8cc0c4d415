"""Tables on a narrow terminal, and in a pipe."""

import io

import pytest
from rich.console import Console

from oneshot.system import console

HEADS = ["data", "seed", "measured by", "test MRR", "Hits@1", "parameters", "peak MB"]
ROWS = [
    ["WN18RR", "0", "recipe-WN18RR.json", "0.572 (0.567)", "0.520 (0.514)", "1,021,576", "–"],
    ["YAGO3-10-partial", "1", "this command", "0.232", "0.163", "92,518", "7,034"],
]


def printed(monkeypatch: pytest.MonkeyPatch, width: int, is_terminal: bool) -> list[str]:
    target = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(console, "stdout", target)
    console.print_table("Accuracy", HEADS, ROWS)
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_figure_is_cut_on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, width, is_terminal=True)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for row in ROWS:
        assert all(cell in text for cell in row[3:])
    assert text.count("Accuracy, continued") == (0 if width == 200 else 1)
    # Each part says which row is which.
    assert text.count("YAGO3-10-par") == text.count("Accuracy")


def test_a_pipe_has_lines_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 40, is_terminal=False)
    assert len([line for line in lines if "WN18RR" in line]) == 1
    assert any(all(cell in line for cell in ROWS[0]) for line in lines)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0.5", "1,000", "–", ""], True),
        (["0.572 (0.567)", "-3.1 %"], True),
        (["2.6% over 2 of its 3 data sets"], False),
        (["0.5", "yes"], False),
    ],
)
def test_numbers_are_told_from_text(cells: list[str], expected: bool) -> None:
    assert console.are_numbers(cells) is expected
