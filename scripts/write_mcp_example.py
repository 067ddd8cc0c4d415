"""Write the results of the tool calls in the example of docs/mcp.md.

    python scripts/write_mcp_example.py RUN

RUN was trained with `oneshot train world`. Each call in the example, a tool with its arguments, is
sent to `oneshot mcp` on a copy of the run, over stdin and stdout, and the JSON below the call is
replaced by the result. The text around the calls is written by hand.
"""

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, types
from mcp.client.stdio import stdio_client

PAGE = Path(__file__).resolve().parent.parent / "docs" / "mcp.md"
CALL = re.compile(r"^(`(\w+) (\{[^\n]*\})`\n\n```json\n)(.*?)(\n```)$", re.MULTILINE | re.DOTALL)
_WIDTH = 100


def main(run: Path) -> None:
    page = PAGE.read_text()
    calls = [(found[2], json.loads(found[3])) for found in CALL.finditer(page)]
    with tempfile.TemporaryDirectory() as place:
        copied = Path(place) / "run"
        shutil.copytree(run, copied)  # the example changes a fact
        results = iter(asyncio.run(asked(copied, calls)))
    PAGE.write_text(CALL.sub(lambda found: found[1] + laid_out(next(results)) + found[5], page))
    print(f"{len(calls)} results written")


async def asked(run: Path, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The results of some calls of tools."""
    words = ["-m", "oneshot", "mcp", str(run), "--allow-changes", "--device", "cpu"]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    found = []
    async with Client(stdio_client(server)) as client:
        for tool, arguments in calls:
            result = await client.call_tool(tool, arguments)
            assert isinstance(result, types.CallToolResult)
            if result.is_error:
                sys.exit(f"{tool} {arguments}: {result.content}")
            found.append(result.structured_content)
    return found


def laid_out(value: Any, indent: int = 0) -> str:
    """A JSON value with as few line breaks as fit."""
    whole = json.dumps(value, ensure_ascii=False)
    if len(whole) + indent <= _WIDTH or not isinstance(value, dict | list) or not value:
        return whole
    if isinstance(value, list):
        parts = [laid_out(part, indent + 1) for part in value]
        return "[" + f",\n{' ' * (indent + 1)}".join(parts) + "]"
    lines: list[str] = []
    for name, part in value.items():
        start = f"{json.dumps(name)}: "
        text = start + laid_out(part, indent + 1 + len(start))
        if lines and "\n" not in text + lines[-1] and indent + len(lines[-1] + text) + 3 <= _WIDTH:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return "{" + f",\n{' ' * (indent + 1)}".join(lines) + "}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
