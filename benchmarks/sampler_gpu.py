"""PPR and top K for every entity of WN18RR and NELL-995 on a GPU."""

import subprocess
import sys

import torch
from benchmarks.common import RESULTS, find


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("skipped: there is no CUDA device")
    short = torch.cuda.get_device_name().split()[-1].lower()
    for name in ("WN18RR", "NELL-995"):
        out = RESULTS / f"sampler-{short}-{name}.json"
        command = ["bench", "sampler", str(find(name)), "--queries", "all", "--device", "cuda"]
        command += ["--with", "none", "--out", str(out)]
        subprocess.run([sys.executable, "-m", "oneshot", *command], check=True)


if __name__ == "__main__":
    main()
