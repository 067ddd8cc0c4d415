"""Running the command line in the test's own process; the fixture `run` is in conftest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)


Command = Callable[..., Result]


def listing(path: Path) -> list[str]:
    """All that lies under a directory."""
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))
