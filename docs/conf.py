"""Configuration of the documentation site, which `make docs` builds with Sphinx.

The root of the repository is the source directory, so links between README, CONTRIBUTING and the
pages in `docs/` are the same on the site and on GitHub. All pages are plain Markdown: the
navigation is defined here, and appended to the README, the first page of the site.
"""

import dataclasses
import inspect
import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

import oneshot

NAVIGATION = {
    "Start": ["quick-start", "bundled-data"],
    "Use": [
        "data",
        "sources",
        "command-line",
        "python",
        "objects",
        "foundation",
        "predict",
        "discover",
        "tasks",
        "serve",
        "mcp",
    ],
    "Tune": ["plan", "factors", "search", "samplers", "gpu", "cpu"],
    "Understand": ["how-it-works", "scale"],
    "Results": [
        "accuracy",
        "benchmarks",
        "compare",
        "paper",
        "theorem",
        "cases",
        "ogb",
        "/benchmarks/NOTES",
    ],
    "Reference": ["api"],
    "Project": ["/CONTRIBUTING", "/SECURITY", "/CHANGELOG"],
}

project = "oneshot"
author = copyright = "The oneshot authors"
release = version = oneshot.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "benchmarks/NOTES.md"]
exclude_patterns = [".*", "build", "data", "dist", "pretrained", "reports", "runs", "site", "src"]
highlight_language = "text"
smartquotes = False  # quotes are often part of values
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"oneshot {release}"
html_copy_source = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

logger = logging.getLogger(__name__)


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the table of contents to the first page, where the theme looks for it."""
    if docname != root_doc:
        return
    for caption, pages in NAVIGATION.items():
        entries = "\n".join(page if page[0] == "/" else f"/docs/{page}" for page in pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


# Docstrings ---------------------------------------------------------------------------------------

FIELD = re.compile(r"(`[^`]+`|\"[^\"]+\")[^:]{0,60}: ")


def convert_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Convert a docstring to reStructuredText, in place.

    Docstrings are plain text with `code` in backticks. A line that starts with a name and a colon
    documents a field, its continuation lines are indented, and an indented block after an empty
    line is a formula.
    """
    result: list[str] = []
    margins: list[int] = []  # of the fields around the current line
    for line in lines:
        text, margin = line.strip(), len(line) - len(line.lstrip())
        after_gap = not result or not result[-1]
        if not text:
            result.append("")
            continue
        if after_gap:
            margins = [at for at in margins if at < margin]
            if margin and not margins:  # a formula
                result += ["::", "", line, ""]
                continue
        if FIELD.match(text):
            margins = [at for at in margins if at < margin] + [margin]
            bullet = "  " * (len(margins) - 1) + f"- {escape(text)}"
            result += [bullet] if after_gap else ["", bullet]
        elif margins and (margin > margins[0] or not after_gap):
            margins = [at for at in margins if at < margin] or margins[:1]
            result.append("  " * len(margins) + escape(text))
        else:
            result.append(escape(text))
    if dataclasses.is_dataclass(obj) and isinstance(obj, type):
        result += option_list(obj)
    lines[:] = result


def escape(text: str) -> str:
    """Plain text as reStructuredText; `code` becomes a literal."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts[::2]]
    joined = parts[0]
    for number, part in enumerate(parts[1:], 1):
        # A literal needs a delimiter on both sides, which an escaped space provides.
        joined += ("\\ ``" + part + "``\\ ") if number % 2 else part
    return joined


def option_list(config: type) -> list[str]:
    """The options of a configuration class, from the comments above its fields."""
    if config.__module__ != "oneshot.config":
        return []
    result, comment = ["", ""], ""
    names = {field.name for field in dataclasses.fields(config)}
    for line in inspect.getsource(config).splitlines():
        text = line.strip()
        if text.startswith("# "):
            comment = f"{comment} {text[2:]}".strip()
            continue
        name = text.partition(":")[0]
        if comment and name in names:
            result.append(f"- ``{name}``: {escape(comment)}")
        comment = ""
    return result


# Checks and output --------------------------------------------------------------------------------


def check_reference(app: Sphinx, env: Any) -> None:
    """Warn about public names that are missing in the API reference."""
    documented = {name for name, *_ in env.domains["py"].get_objects()}
    for name in oneshot.__all__:
        if f"oneshot.{name}" not in documented:
            logger.warning("oneshot.%s is public, but is missing in docs/api.md", name)


def write_index(app: Sphinx, exception: Exception | None) -> None:
    """Make the README the first page of the site."""
    if exception is None:
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("env-check-consistency", check_reference)
    app.connect("build-finished", write_index)
