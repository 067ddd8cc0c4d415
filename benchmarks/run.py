"""All benchmarks, one after the other; results go to `benchmarks/results`.

Data sets are looked for in `$ONESHOT_DATA` and the cache; what is not there is skipped.
"""

import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "reading",
    "scale",
    "sampler_coverage",
    "sampler_speed",
    "sampler_gpu",
    "push",
    "large_graph",
    "questions",
    "explanations",
    "serve",
    "batch_prediction",
    "fuzz",
    "kills",
)


def main() -> None:
    chosen = sys.argv[1:] or SCRIPTS
    for script in chosen:
        print(f"== {script}", flush=True)
        subprocess.run([sys.executable, Path(__file__).with_name(f"{script}.py")], check=False)


if __name__ == "__main__":
    main()
