"""How cost grows with the graph: `python -m benchmarks.scale [1e5,1e6,1e7,1e8]`.

Sizes that the result holds already are kept, so that larger ones can be added when the machine has
time for them; 10^8 facts need 17 GB of disk meanwhile.
"""

import subprocess
import sys

from benchmarks.common import RESULTS

ROOT = RESULTS.parents[1]
PICTURE = "docs/images/scale.png"  # as it stands in the result


def main() -> None:
    sizes = sys.argv[1] if len(sys.argv) > 1 else "1e5,1e6,1e7"
    out = ("--out", str(RESULTS / "scale.json"), "--plot", PICTURE, "--resume")
    command = [sys.executable, "-m", "oneshot", "bench", "scale", "--facts", sizes, *out]
    subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
