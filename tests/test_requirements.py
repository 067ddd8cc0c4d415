"""The oldest versions that the package allows, as `make test-lowest` installs them."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "lowest_versions.py"


def lowest(script: Path, *extra: str) -> list[str]:
    command = [sys.executable, str(script), *extra]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_every_requirement_is_held_at_its_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = lowest(SCRIPT)
    # Those of the package, but for torch, which constraints.txt pins; and those of the extras that
    # the extra `test` includes.
    for text in (*project["dependencies"], *project["optional-dependencies"]["serve"]):
        name, bound = text.split(">=")
        assert (f"{name}=={bound}" in found) == (name != "torch")
    assert [line for line in found if line.startswith("torch==")] == []
    assert not any(line.startswith(project["name"]) for line in found)
    more = lowest(SCRIPT, "all")
    assert set(found) < set(more)
    assert any(line.startswith("pykeen==") for line in more)


@pytest.mark.parametrize(
    ("requirement", "message"),
    [("rich", "has no lower bound"), ("rich<15", "is more than a name and a lower bound")],
)
def test_what_has_no_lower_bound_is_named(tmp_path: Path, requirement: str, message: str) -> None:
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / SCRIPT.name
    script.write_bytes(SCRIPT.read_bytes())
    text = f'[project]\nname = "x"\ndependencies = ["numpy>=1", "{requirement}"]\n'
    text += '[project.optional-dependencies]\ntest = ["numpy>=1.26", "y[z]>=2; a == \'b\'"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        lowest(script)
    assert message in caught.value.stderr
    (tmp_path / "pyproject.toml").write_text(text.replace(requirement, "rich>=13"))
    assert lowest(script) == ["numpy==1.26", "rich==13", "y==2; a == 'b'"]
