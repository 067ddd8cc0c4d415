"""How cost grows with the graph: `python -m benchmarks.scale [1e5,1e6,1e7,1e8] [power-law] [DIR]`.

Sizes that the result holds already are kept, so that larger ones can be added when the machine has
time for them; 10^8 facts need 17 GB of disk meanwhile. The rows of graphs that are named (`family`,
`power-law`) are measured again. DIR: a directory for the built graphs, which are used again.
"""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.common import RESULTS

from oneshot.system.files import write_json

ROOT = RESULTS.parents[1]
PICTURE = "docs/images/scale.png"  # as it stands in the result


def main() -> None:
    sizes = sys.argv[1] if len(sys.argv) > 1 else "1e5,1e6,1e7"
    graphs = sys.argv[2] if len(sys.argv) > 2 else "family,power-law"
    target = RESULTS / "scale.json"
    if len(sys.argv) > 2:
        forget(target, graphs.split(","))
    out = ["--out", str(target), "--plot", PICTURE, "--resume", "--graphs", graphs]
    if len(sys.argv) > 3:
        out += ["--keep", sys.argv[3]]
    command = [sys.executable, "-m", "oneshot", "bench", "scale", "--facts", sizes, *out]
    subprocess.run(command, check=True, cwd=ROOT)


def forget(path: Path, graphs: list[str]) -> None:
    """Remove the rows of some graphs from a result."""
    value = json.loads(path.read_text(encoding="utf-8"))
    value["rows"] = [row for row in value["rows"] if row["graph"] not in graphs]
    write_json(path, value)


if __name__ == "__main__":
    main()
