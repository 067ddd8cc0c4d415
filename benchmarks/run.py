"""The benchmarks that take minutes, one after the other; results go to `benchmarks/results`.

Data sets are looked for in `$ONESHOT_DATA` and the cache; what is not there is skipped.
"""

import subprocess
import sys

SCRIPTS = (
    "reading",
    "scale",
    "sampler_coverage",
    "sampler_speed",
    "sampler_gpu",
    "push",
    "edge_limit",
    "live_facts",
    "large_graph",
    "mapped_training",
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
        subprocess.run([sys.executable, "-m", f"benchmarks.{script}"], check=False)


if __name__ == "__main__":
    main()
