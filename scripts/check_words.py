"""Report words and phrases that do not belong in documentation, messages and comments.

    python scripts/check_words.py [--src] [FILE ...]

Checks the prose of all Markdown pages and notebooks; code and generated tables are skipped. `--src`
also checks the package: comments, docstrings and messages. Text between `<!-- check_words: off -->`
and `<!-- check_words: on -->` is skipped. CONTRIBUTING.md has the glossary.
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = (".venv", "build", "dist", "site", "src", "demo", "runs", "reports")

_UNITS = r"(?:ms|s|seconds|min|minutes|h|bytes|MB|GB|queries|questions|entities|numbers|figure)"
_RATED = r"(?:epoch|second|minute|request|step|layer|line|entity|fact|query|question|worker|seed)"

WORDS = {
    r"processors?": "CPU",
    r"pictures?": "plot, drawing",
    r"(?:go|goes|going|went) on": "continue, resume",
    r"told|tells": "report, print, specify",
    r"says|says so": "state, contain, report",
    r"wants|(?:if|is|are) wanted": "need, require; optional",
    r"unless (?:said|told) otherwise": "by default, unless noted otherwise",
    r"a word of": "name the fact instead",
    # "The network reasons on the subgraph" is fine, "answers with reasons" is not.
    r"reasons(?! (?:on|over|only|about|for)\b)": "explanation; a reason for each",
    r"how true": "faithfulness",
    r"beginnings": "prefix match",
    r"look(?:s|ing)? alike": "fuzzy match, similar",
    r"forth": "forward pass",
    r"(?:is|are) no numbers?(?: any more)?|no numbers? any more": "NaN, not finite",
    r"no rivals?": "masked in the loss",
    r"(?:is|are) good for": "suits; batch size",
    r"who may ask": "access control",
    r"crowd": "contention",
    r"played (?:again|by|back)|recorded (?:once|anew)": "capture and replay (CUDA graph)",
    r"matrix units": "tensor cores",
    r"anew|afresh": "again, from scratch",
    r"in turns": "alternating, interleaved",
    r"strangers?": "untrusted source",
    r"letters": "characters",
    rf"{_UNITS} an? {_RATED}(?! (?:can|has|is|may|needs|was)\b)": "per",
    rf"one (?:fact |record |line |row )?an? {_RATED}": "one per",
}
PATTERN = re.compile(
    "|".join(rf"(?P<w{number}>\b(?:{word})\b)" for number, word in enumerate(WORDS)), re.IGNORECASE
)

FENCE = re.compile(r"^(\s*)(```|~~~).*?^\s*\2", re.MULTILINE | re.DOTALL)
OFF = re.compile(
    r"<!-- table: .*?<!-- end -->|<!-- check_words: off -->.*?<!-- check_words: on -->", re.DOTALL
)
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]*>")


class Finding(NamedTuple):
    path: Path
    line: int
    found: str
    suggestion: str

    def __str__(self) -> str:
        place = f"{self.path.relative_to(ROOT)}:{self.line}"
        return f"{place}: {self.found!r}; write instead: {self.suggestion}"


def blank(text: str, pattern: re.Pattern[str]) -> str:
    """The text with every match replaced by spaces, its line ends kept."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def search(path: Path, text: str, first_line: int = 1) -> Iterator[Finding]:
    """Findings in prose; code in backticks does not count."""
    suggestions = list(WORDS.values())
    # A phrase may be broken over two lines.
    prose = blank(text, CODE)
    for match in PATTERN.finditer(re.sub(r"\n[ #>]*", lambda gap: " " * len(gap[0]), prose)):
        line = first_line + text.count("\n", 0, match.start())
        number = int(str(match.lastgroup)[1:])
        yield Finding(path, line, match[0], suggestions[number])


def in_markdown(path: Path) -> Iterator[Finding]:
    text = path.read_text(encoding="utf-8")
    yield from search(path, blank(blank(text, OFF), FENCE))


def in_notebook(path: Path) -> Iterator[Finding]:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            yield from search(path, "".join(cell["source"]))


def in_python(path: Path) -> Iterator[Finding]:
    """Findings in comments, and in strings that are more than a key or a name."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from search(path, token.string, token.start[0])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from search(path, node.value, node.lineno)


def in_text(path: Path) -> Iterator[Finding]:
    yield from search(path, path.read_text(encoding="utf-8"))


CHECKS = {".md": in_markdown, ".ipynb": in_notebook, ".py": in_python}
CHECKS |= dict.fromkeys((".c", ".css", ".html", ".js"), in_text)


def pages() -> Iterator[Path]:
    """The Markdown pages and notebooks of the repository, without those of the package."""
    for path in sorted((*ROOT.rglob("*.md"), *ROOT.rglob("*.ipynb"))):
        top = path.relative_to(ROOT).parts[0]
        if not (top.startswith(".") or top in SKIPPED):
            yield path


def package() -> Iterator[Path]:
    files = (ROOT / "src" / "oneshot").rglob("*")
    yield from sorted(path for path in files if path.suffix in CHECKS)


def main() -> None:
    options = {word for word in sys.argv[1:] if word.startswith("-")}
    if unknown := options - {"--src"}:
        sys.exit(f"unknown option {min(unknown)}; usage:\n{__doc__}")
    paths = [Path(word).resolve() for word in sys.argv[1:] if word not in options]
    paths = paths or [*pages(), *(package() if options else ())]
    findings = [one for path in paths for one in CHECKS[path.suffix](path)]
    for one in findings:
        print(one)
    if findings:
        sys.exit(f"{len(findings)} words to replace; see the glossary in CONTRIBUTING.md")
    print(f"{len(paths)} files checked")


if __name__ == "__main__":
    main()
