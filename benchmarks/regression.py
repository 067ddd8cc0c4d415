"""Whether training on a processor got slower since another revision of the repository.

    python -m benchmarks.regression REVISION [--rounds 5]

Both revisions train the same predictor on WN18RR with the same seed, in processes of their own and
in turns, so that what else the machine does meets both alike. A step takes the processor's time
(of all threads), not the clock's. Writes `benchmarks/results/regression.json`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import find, write_result

ROOT = Path(__file__).parents[1]
STEPS = 12
CODE = """
import json, sys, time
import torch
from oneshot.reasoner.build import build_reasoner
from oneshot.config import from_table
from oneshot.data.load import load
from oneshot.training.trainer import fit

class Enough(Exception):
    pass

class Clock:
    def __init__(self):
        self.times, self.losses = [], []
    def __getattr__(self, name):  # all else that happens, whatever it is called at a revision
        return lambda *_: None
    def on_step(self, queries, loss):
        self.times.append(time.process_time())
        self.losses.append(loss)
        if len(self.times) > int(sys.argv[2]):
            raise Enough
    stepped = on_step

torch.set_num_threads(int(sys.argv[3]))
config = from_table({
    "sampler": {"entity_ratio": 0.1},
    "predictor": {"dim": 64, "num_layers": 6, "attention_dim": 8},
    "training": {"batch_size": 16, "learning_rate": 0.001},
})
data, clock = load(sys.argv[1]), Clock()
try:
    fit(build_reasoner(data.graph, config), data, config.training, [clock])
except Enough:
    pass
steps = [b - a for a, b in zip(clock.times, clock.times[1:])]
print(json.dumps({"steps": steps, "losses": clock.losses}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run(
        [*git, "rev-parse", "--short", options.revision], check=True, capture_output=True, text=True
    ).stdout.strip()
    data = find("WN18RR")
    with tempfile.TemporaryDirectory() as directory:
        before = Path(directory) / "before"
        subprocess.run([*git, "worktree", "add", "-q", "--detach", str(before), name], check=True)
        try:
            rounds = [
                {"before": steps(before, data), "now": steps(ROOT, data)}
                for _ in range(options.rounds)
            ]
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(before)], check=True)
    seconds = {who: [median(one[who]["steps"]) for one in rounds] for who in ("before", "now")}
    value = {
        "before": name,
        "steps_a_round": STEPS,
        "step_seconds": seconds,
        "ratio": median(seconds["now"]) / median(seconds["before"]),
        "ratio_by_round": [
            now / old for now, old in zip(seconds["now"], seconds["before"], strict=True)
        ],
        "same_losses": all(one["before"]["losses"] == one["now"]["losses"] for one in rounds),
    }
    write_result("regression", value)
    print(json.dumps(value, indent=2))


def steps(checkout: Path, data: Path) -> dict[str, Any]:
    """The processor's seconds and the losses of some steps, with the code of a checkout."""
    threads = str(len(os.sched_getaffinity(0)))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(data), str(STEPS), threads],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
    )
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


if __name__ == "__main__":
    main()
