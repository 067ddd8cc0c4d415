"""The sentences of a Markdown page, without code, headings and generated tables."""

import re
from pathlib import Path

_GENERATED = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


def sentences(page: Path) -> list[str]:
    """All sentences of the paragraphs and lists, and the rows of tables, on one line each."""
    text = _GENERATED.sub("", page.read_text(encoding="utf-8"))
    text = _IMAGE.sub("", _CODE.sub("\n", text))
    blocks: list[str] = []
    is_open = False
    for line in text.splitlines():
        if line.startswith("|"):
            if not re.fullmatch(r"[|\s:-]+", line):
                blocks.append(line.strip("| "))
            is_open = False
        elif not line.strip() or line.startswith("#"):
            is_open = False
        elif is_open and not _ITEM.match(line):
            blocks[-1] += " " + line.strip()
        else:
            blocks.append(_ITEM.sub("", line.strip()))
            is_open = True
    found = []
    for block in blocks:
        parts = [block] if " | " in block else re.split(r"(?<=[.?])\)?\s+(?=[A-Z`*\"(\[])", block)
        found += [" ".join(part.split()) for part in parts if part.strip()]
    return found
