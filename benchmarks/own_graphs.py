"""Two graphs that nobody prepared, made from what is on a machine with Debian and Python.

    python -m benchmarks.own_graphs --out DIR [--facts 100000]

`DIR/debian-packages.csv`: how the packages of the archive relate, read from the package lists that
apt keeps. A package depends on, recommends, suggests, enhances, conflicts with, breaks, replaces or
provides another one; it has a section, a maintainer and a source package, and the tags that people
gave it, each facet a relation (`implemented-in`, `works-with-format`). The archive has more than
60,000 packages. Those that most others refer to come first, and so many of them are taken that
about 100,000 facts lie between them; an attribute of only one package is left out.

`DIR/python-stdlib.csv`: how the modules of Python's standard library are made, read from their
source: which module imports, defines and exports what, which class inherits from which and has
which methods and attributes, which function calls, raises and is decorated with what. Names are
resolved where the source does so in the open (imports, definitions of the module, methods of the
class). Tests and the encodings, which are all alike, are left out, and so are names that occur
once.

Both are tables `head,relation,tail` of distinct facts, sorted. They are the same whenever they are
made on the same machine, but not on all machines, as lists and versions differ; so they are never
part of the repository. `oneshot train DIR/python-stdlib.csv` holds out validation and test facts by
itself.
"""

import argparse
import ast
import builtins
import csv
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

Fact = tuple[str, str, str]

ROOT = Path(__file__).parents[1]
FACTS = 100_000

# Fields of a package that name others, separated by commas, with alternatives behind bars.
_BETWEEN = (
    "Pre-Depends",
    "Depends",
    "Recommends",
    "Suggests",
    "Enhances",
    "Conflicts",
    "Breaks",
    "Replaces",
    "Provides",
)
_FIELD = re.compile(r"([A-Za-z-]+):[ \t]*(.*)")
# Tests, tools beside the library, and the encodings, a hundred times the same module.
_SKIPPED = {"test", "tests", "encodings", "idlelib", "lib2to3", "site-packages", "dist-packages"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for both tables")
    parser.add_argument("--facts", type=int, default=FACTS, help="of the packages, about")
    options = parser.parse_args()
    if options.out.resolve().is_relative_to(ROOT) and not _is_ignored(options.out):
        parser.error(f"{options.out}: lies in the repository; choose a place outside of it")
    options.out.mkdir(parents=True, exist_ok=True)
    write_table(options.out / "python-stdlib.csv", library_facts())
    lists = package_lists()
    if lists is None:
        print("skipped: apt keeps no package lists here; run `apt update` once", file=sys.stderr)
        return
    write_table(options.out / "debian-packages.csv", package_facts(lists, options.facts))


def write_table(path: Path, facts: Iterable[Fact]) -> None:
    """Write distinct facts, sorted, below a header."""
    rows = sorted(set(facts))
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("head", "relation", "tail"))
        table.writerows(rows)
    ends = {end for head, _, tail in rows for end in (head, tail)}
    relations = len({relation for _, relation, _ in rows})
    print(f"{path}: {len(rows):,} facts, {len(ends):,} entities, {relations} relations")


def _is_ignored(path: Path) -> bool:
    check = ["git", "-C", str(ROOT), "check-ignore", "-q", str(path.resolve())]
    return subprocess.run(check, check=False, capture_output=True).returncode == 0


# Debian's packages ------------------------------------------------------------------------------


def package_lists() -> str | None:
    """All packages that apt knows of, in its own format; None without apt or its lists."""
    try:
        done = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode(errors="replace") or None


def package_facts(lists: str, most: int) -> Iterator[Fact]:
    """Facts of the packages that most others refer to, about as many as wanted."""
    facts: dict[str, list[Fact]] = {}
    for package, found in _packages(lists):
        facts.setdefault(package, []).extend(found)
    everything = [fact for found in facts.values() for fact in found]
    references = Counter(tail for _, relation, tail in everything if relation in _RELATIONS)
    shared = Counter(tail for _, _, tail in everything)
    order = sorted(facts, key=lambda package: (-references[package], package))

    def between(taken: set[str]) -> Iterator[Fact]:
        for package in taken:
            for fact in facts[package]:
                tail = fact[2]
                if shared[tail] > 1 and (tail in taken or tail not in facts):
                    yield fact

    # The number of facts grows with the packages: halve the interval that the wanted one lies in.
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(1 for _ in between(set(order[:middle]))) <= most:
            low = middle
        else:
            high = middle - 1
    yield from between(set(order[:low]))


_RELATIONS = {name.lower() for name in _BETWEEN}


def _packages(lists: str) -> Iterator[tuple[str, list[Fact]]]:
    """Name and facts of each package."""
    for paragraph in lists.split("\n\n"):
        fields: dict[str, str] = {}
        last = ""
        for line in paragraph.splitlines():
            field = _FIELD.match(line)
            if field:
                last = field[1]
                fields[last] = field[2].strip()
            elif last:
                fields[last] += " " + line.strip()
        if "Package" in fields:
            yield fields["Package"], list(_facts_of(fields))


def _facts_of(fields: dict[str, str]) -> Iterator[Fact]:
    package = fields["Package"]
    for name in _BETWEEN:
        for other in re.split(r"[,|]", fields.get(name, "")):
            found = re.match(r"[a-z0-9][a-z0-9+.-]*", other.strip())  # no version, no architecture
            if found and found[0] != package:
                yield package, name.lower(), found[0]
    for name in ("Section", "Source", "Maintainer"):
        value = re.sub(r"\s*[<(].*", "", fields.get(name, ""))  # no address, no version
        if value:
            yield package, name.lower(), f"{name.lower()}/{value}"
    # Several tags of a facet may be written together: role::{program,shared-lib}.
    for facet, values in re.findall(r"([\w-]+)::(\{[^}]*\}|[^,{]+)", fields.get("Tag", "")):
        for value in values.strip("{}").split(","):
            yield package, facet, f"{facet}::{value.strip()}"


# Python's standard library ----------------------------------------------------------------------


def library_facts() -> Iterator[Fact]:
    """What the sources of the standard library of this Python tell of its modules."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Fact] = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if _SKIPPED & set(inside.parts) or inside.stem.startswith(("test_", "_sysconfigdata")):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # a file that is there to be wrong
            continue
        parts = inside.with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        if name:
            found += _Module(name, is_package, tree).facts()
    count = Counter(end for head, _, tail in set(found) for end in (head, tail))
    # A name that occurs once cannot be learnt or asked about.
    yield from (fact for fact in found if count[fact[0]] > 1 and count[fact[2]] > 1)


class _Module:
    """The facts of one module; names in it are resolved as far as it says what they are."""

    def __init__(self, name: str, is_package: bool, tree: ast.Module) -> None:
        self.name, self.is_package, self.tree = name, is_package, tree
        self.names: dict[str, str] = {}  # what a name of the module stands for

    def facts(self) -> Iterator[Fact]:
        if "." in self.name:
            yield self.name, "part_of", self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._imports(node)
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self.names[node.name] = f"{self.name}.{node.name}"
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                yield from self._class(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield self.name, "defines_function", f"{self.name}.{node.name}"
                yield from self._function(node, f"{self.name}.{node.name}")
            elif isinstance(node, ast.Assign):
                yield from self._exports(node)

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Fact]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield self.name, "imports", alias.name
                self.names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
            return
        source = node.module or ""
        if node.level:
            parts = self.name.split(".")
            parts = parts[: len(parts) - node.level + self.is_package]
            source = ".".join([*parts, source] if source else parts)
        if source:
            yield self.name, "imports", source
        for alias in node.names:
            if alias.name != "*" and source:
                self.names[alias.asname or alias.name] = f"{source}.{alias.name}"
                yield self.name, "uses", f"{source}.{alias.name}"

    def _exports(self, node: ast.Assign) -> Iterator[Fact]:
        is_list = isinstance(node.value, ast.List | ast.Tuple)
        if is_list and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            assert isinstance(node.value, ast.List | ast.Tuple)
            for item in node.value.elts:
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    name = self.names.get(item.value, f"{self.name}.{item.value}")
                    yield self.name, "exports", name

    def _class(self, node: ast.ClassDef) -> Iterator[Fact]:
        name = f"{self.name}.{node.name}"
        yield self.name, "defines_class", name
        for base in node.bases:
            found = self._resolved(base)
            if found:
                yield name, "inherits", found
        for decorator in node.decorator_list:
            found = self._resolved(decorator)
            if found:
                yield name, "decorated_with", found
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, "has_method", f".{part.name}"
                yield from self._function(part, name)
            elif isinstance(part, ast.Assign):
                for target in part.targets:
                    if isinstance(target, ast.Name):
                        yield name, "has_attribute", f".{target.id}"

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> Iterator[Fact]:
        """What a function does, told of itself, or of its class if it is a method."""
        for decorator in node.decorator_list:
            found = self._resolved(decorator)
            if found:
                yield owner, "decorated_with", found
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                found = self._resolved(part.func)
                if found and found != owner:
                    yield owner, "calls", found
            elif isinstance(part, ast.Raise) and part.exc is not None:
                found = self._resolved(part.exc)
                if found:
                    yield owner, "raises", found
            elif isinstance(part, ast.ExceptHandler) and part.type is not None:
                kinds = part.type.elts if isinstance(part.type, ast.Tuple) else [part.type]
                for kind in kinds:
                    found = self._resolved(kind)
                    if found:
                        yield owner, "catches", found

    def _resolved(self, node: ast.expr) -> str | None:
        """The full name of what an expression names, if that can be seen in the module."""
        if isinstance(node, ast.Call):
            return self._resolved(node.func)
        if isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            return f"builtins.{node.id}" if node.id in _BUILTINS else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = self.names.get(node.value.id)
            return f"{owner}.{node.attr}" if owner else None
        return None


_BUILTINS = set(dir(builtins))


if __name__ == "__main__":
    main()
