"""Print constraints for pip that hold each direct dependency at its lower bound.

`make test-lowest` installs with them, because pip itself always takes the newest versions. The
bounds come from `pyproject.toml`: those of the package and of one extra, with the extras that it
includes. Needs nothing but Python: it runs before anything is installed.

torch is left out: `constraints.txt` pins it, since its older versions are not to be had everywhere
as a build for the CPU alone.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
LEFT_OUT = frozenset({"torch"})
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<extras>[^]]*)\])?\s*(>=\s*(?P<bound>[\w.]+))?\s*(;\s*(?P<marker>.*))?"
)


def main() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extra = sys.argv[1] if len(sys.argv) > 1 else "test"
    found: dict[str, tuple[str, str]] = {}
    for name, bound, marker in requirements(project, extra):
        if name not in found or parts(found[name][0]) < parts(bound):
            found[name] = bound, marker
    for name, (bound, marker) in sorted(found.items()):
        if name not in LEFT_OUT:
            print(f"{name}=={bound}" + (f"; {marker}" if marker else ""))


def requirements(project: dict[str, Any], extra: str) -> Iterator[tuple[str, str, str]]:
    """Name, lower bound and marker of all that the package and an extra of it require."""
    waiting = [*project["dependencies"], f"{project['name']}[{extra}]"]
    while waiting:
        text = waiting.pop()
        parsed = REQUIREMENT.fullmatch(text)
        if parsed is None:
            sys.exit(f"pyproject.toml: {text!r} is more than a name and a lower bound")
        if parsed["name"] == project["name"]:
            for part in parsed["extras"].split(","):
                waiting += project["optional-dependencies"][part.strip()]
        elif parsed["bound"] is None:
            sys.exit(f"pyproject.toml: {text!r} has no lower bound")
        else:
            yield parsed["name"], parsed["bound"], parsed["marker"] or ""


def parts(version: str) -> list[int]:
    """A version as numbers that compare."""
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    main()
