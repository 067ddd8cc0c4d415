"""The rules of the code: who may import whom, and what is imported when."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import oneshot

ROOT = Path(oneshot.__file__).parent

# The rooms of the package: each may import those that stand before it, and itself.
ROOMS = (
    "errors",
    "system",
    "config",
    "graph",
    "data",
    "subgraph",
    "compiled",
    "samplers",
    "predictor",
    "ranking",
    "factors",
    "reasoner",
    "evaluation",
    "training",
    "runs",
    "batch",
    "search",
    "plots",
    "experiments",
    "serve",
    "client",
    "cli",
)
# Imports against the order, inside of functions: a reasoner saves and loads itself; an explanation
# and a report draw themselves.
EXCEPTIONS = {
    ("reasoner.reasoner", "runs.run"),
    ("reasoner.explanation", "plots.explanation.figure"),
    ("evaluation.evaluate", "plots.bars"),
    ("evaluation.evaluate", "plots.shapes"),
}
# What stands outside of the rooms.
ENTRY = {"", "__main__", "_version"}
# The paper's decoupling: only the reasoner knows both.
STRANGERS = (("samplers", "predictor"), ("predictor", "samplers"))
# What still displays something itself, or measures its text as the console does.
PRINTERS = {
    "system.workers",
    "batch.job",
    "experiments.baselines.progress",
    "experiments.tables.report",
}

CORE_PACKAGES = {"numpy", "scipy", "torch", "safetensors", "rich", "typer", "oneshot"}
SERVE_PACKAGES = {"fastapi", "h11", "prometheus_client", "pydantic", "starlette", "uvicorn"}
MCP_PACKAGES = {"anyio", "mcp"}
FORBIDDEN_NAMES = {"utils", "helpers", "misc", "util", "common"}


class Import(NamedTuple):
    module: str
    line: int
    top_level: bool


def modules() -> dict[str, Path]:
    """The modules of the package by name, without the leading `oneshot.`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports_in(tree: ast.AST, top_level: bool = True) -> Iterator[Import]:
    """All imports in a piece of code; those inside functions are not top-level."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, top_level) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield Import("." * node.level + (node.module or ""), node.lineno, top_level)
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, top_level)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_in(node, top_level and not inside)


IMPORTS = {name: list(imports_in(ast.parse(path.read_text()))) for name, path in MODULES.items()}


def is_kernels(name: str) -> bool:
    """Whether a module is made of kernels, and so is imported only where they run."""
    return name.startswith("predictor.kernels.") or name.endswith("._triton")


def own_module(imported: str) -> str | None:
    """The module of ours that an import is from, or None for other packages."""
    parts = imported.split(".")
    if parts[0] != "oneshot":
        return None
    for end in range(len(parts), 1, -1):
        if ".".join(parts[1:end]) in MODULES:
            return ".".join(parts[1:end])
    return ""


def reached_from(name: str) -> dict[str, str]:
    """Modules that a module imports, itself or through others, with the way there."""
    ways = {name: name}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        for found in IMPORTS[current]:
            target = own_module(found.module)
            if target and target not in ways:
                ways[target] = f"{ways[current]} → {target}"
                waiting.append(target)
    return ways


def is_in(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def room_of(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ENTRY])
def test_the_order_of_the_rooms(name: str) -> None:
    assert room_of(name) in ROOMS, f"{name} stands in no room"
    for found in IMPORTS[name]:
        target = own_module(found.module)
        if not target or target in ENTRY:
            continue
        where = f"{name}, line {found.line}: {found.module}"
        if (name, target) in EXCEPTIONS:
            assert not found.top_level, f"must be imported where used: {where}"
            continue
        assert ROOMS.index(room_of(target)) <= ROOMS.index(room_of(name)), f"wrong way: {where}"


@pytest.mark.parametrize(("one", "other"), STRANGERS)
def test_strangers_do_not_meet_through_others(one: str, other: str) -> None:
    for module in (name for name in MODULES if is_in(name, one)):
        for target, way in reached_from(module).items():
            assert not is_in(target, other), f"{one} must not import {other}: {way}"


def test_the_order_is_checked_on_what_there_is() -> None:
    assert {room_of(name) for name in MODULES if name not in ENTRY} == set(ROOMS)
    assert "graph.graph" in reached_from("samplers.ppr")
    assert "errors" in reached_from("graph.graph")
    for name, target in EXCEPTIONS:
        assert any(own_module(found.module) == target for found in IMPORTS[name])


def test_nothing_is_imported_by_a_name_in_a_string() -> None:
    """But for public names, on first use, and optional packages (`errors.require`)."""
    users = [name for name, path in MODULES.items() if "import_module" in path.read_text()]
    assert sorted(users) == ["", "errors"]


def test_tests_stand_in_rooms_of_the_package_and_alone() -> None:
    """What tests share is in `tests/support`; no test module imports another."""
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("*.py")):
        where = path.relative_to(tests)
        assert len(where.parts) == 1 or where.parts[0] in {*ROOMS, "support"}, where
        for found in imports_in(ast.parse(path.read_text())):
            parts = found.module.split(".")
            assert not any(part.startswith("test_") for part in parts[:-1]), f"{where}: {found}"
            assert parts[0] != "tests" or parts[1:2] == ["support"], f"{where}: {found}"


def test_the_library_prints_nothing() -> None:
    """It takes callbacks; the command line displays."""
    for name in MODULES:
        if is_in(name, "cli") or name in {*PRINTERS, "system.console"}:
            continue
        for found in IMPORTS[name]:
            where = f"{name}, line {found.line}"
            assert own_module(found.module) != "system.console", where
            assert not found.module.startswith("rich"), where


def test_no_script_changes_where_modules_are_looked_for() -> None:
    for path in (*ROOT.rglob("*.py"), *(Path(__file__).parents[1] / "benchmarks").glob("*.py")):
        assert "sys.path" not in path.read_text(), path


def test_rooms_say_what_they_are_for() -> None:
    for path in ROOT.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_no_command_is_longer_than_a_page() -> None:
    for name, path in MODULES.items():
        if is_in(name, "cli"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                    assert node.end_lineno - node.lineno < 100, f"{name}.{node.name}"


def test_only_the_entry_point_imports_the_command_line() -> None:
    users = [name for name in MODULES if any(own_module(i.module) == "cli" for i in IMPORTS[name])]
    assert users == ["__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_imports_are_absolute_and_of_core_packages(name: str) -> None:
    allowed = CORE_PACKAGES | sys.stdlib_module_names
    if is_kernels(name):
        allowed = allowed | {"triton"}
    if is_in(name, "serve"):  # which is imported only where something is served
        allowed = allowed | SERVE_PACKAGES
    if is_in(name, "serve.mcp"):
        allowed = allowed | MCP_PACKAGES
    for found in IMPORTS[name]:
        package = found.module.split(".")[0]
        place = f"{name}, line {found.line}: {found.module}"
        assert package, f"relative import in {place}"
        assert not found.top_level or package in allowed, f"must be imported where used: {place}"


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_names_of_modules_say_what_is_inside(name: str) -> None:
    assert not FORBIDDEN_NAMES & set(name.split("."))


@pytest.mark.parametrize("module", ["oneshot", "oneshot.cli", "oneshot.errors"])
def test_torch_is_not_loaded_before_it_is_needed(module: str) -> None:
    code = (
        f"import sys, {module}; print(sorted({{'torch', 'pyarrow', 'scipy'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_public_names_are_there_and_stay_functions() -> None:
    code = (
        "import oneshot, types\n"
        "things = [getattr(oneshot, name) for name in oneshot.__all__]\n"
        "assert callable(oneshot.coverage) and callable(oneshot.plan)\n"
        "assert sorted(dir(oneshot)) == sorted(oneshot.__all__)\n"
        "assert [t.__name__ for t in things if isinstance(t, types.ModuleType)] == "
        "['oneshot.data.load']\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_the_command_line_imports_the_service_and_only_when_it_serves() -> None:
    for name in MODULES:
        if not is_in(name, "serve"):
            for found in IMPORTS[name]:
                if is_in(own_module(found.module) or "", "serve"):
                    assert is_in(name, "cli"), name
                    assert not found.top_level, f"{name}, line {found.line}"


def test_the_service_does_not_need_the_packages_of_the_mcp_server() -> None:
    for name in MODULES:
        if is_in(name, "serve") and not is_in(name, "serve.mcp"):
            for found in IMPORTS[name]:
                assert not is_in(own_module(found.module) or "", "serve.mcp"), name


def test_experiments_are_imported_by_their_commands_alone_and_only_when_they_run() -> None:
    for name in MODULES:
        if not is_in(name, "experiments"):
            for found in IMPORTS[name]:
                if is_in(own_module(found.module) or "", "experiments"):
                    assert is_in(name, "cli"), f"{name}, line {found.line}"
    code = "import sys, oneshot.cli; print([m for m in sys.modules if 'experiments' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_comparison_does_not_stand_on_the_paper() -> None:
    for name in ("experiments.compare", "experiments.baselines.peers", "experiments.demo"):
        for target, way in reached_from(name).items():
            assert not is_in(target, "experiments.paper"), way
