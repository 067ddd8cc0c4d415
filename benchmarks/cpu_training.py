"""Training queries per second on a CPU: now, at another revision, and as NBFNet computes.

    python -m benchmarks.cpu_training [--before REVISION] [--rounds 3] [--data NAME ...]

Both revisions train the same predictor (principal neighbourhood aggregation, norm, shortcut) with
the same options, in processes of their own and in turns. Beside them stands NBFNet's formulation
in PyTorch Geometric: whole graph, states [entities, queries, channels], messages of every edge
stored and aggregated by its own operations, at the same dimension and number of layers. Writes
`benchmarks/results/cpu-training.json`, in which rows of other data stay.
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

from benchmarks.common import RESULTS, find, write_result

ROOT = Path(__file__).parents[1]
# Data, share of the entities in a subgraph, layers.
GRAPHS = {"umls": (1.0, 4), "world": (0.1, 4), "WN18RR": (0.1, 6), "FB15k-237": (0.1, 5)}
DIM = 32

SETUP = """
import json, os, sys, time
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
from importlib import import_module


def module(*names):
    # Where it is now, and where it was at an earlier revision.
    for name in names:
        try:
            return import_module(f"oneshot.{name}")
        except ModuleNotFoundError:
            pass
    raise ModuleNotFoundError(names)


module("system.process", "process").prepare_process()
import torch
from oneshot.config import from_table
load = module("data.load", "datasets").load

source, ratio, layers, dim, seconds = sys.argv[1], *map(float, sys.argv[2:6])
data = load(source)
layers, dim = int(layers), int(dim)
"""

OURS = (
    SETUP
    + """
build_reasoner = module("reasoner.build", "building").build_reasoner
draw_epoch = module("training.epoch", "epoch").draw_epoch

config = from_table({
    "sampler": {"entity_ratio": ratio},
    "predictor": {"dim": dim, "num_layers": layers, "aggregate": "pna", "gate": False,
                  "norm": True, "shortcut": True},
    "training": {"batch_size": 32, "learning_rate": 0.005},
})
reasoner = build_reasoner(data.graph, config)
reasoner.predictor.train()
try:
    stepper = module("training.steps").Stepper(reasoner, data, config.training)
    steps = stepper.steps(draw_epoch(stepper.graph, config.training, 1))
except (ModuleNotFoundError, TypeError):  # at an earlier revision a trainer made its own steps
    trainer = module("training.trainer", "training").Trainer(reasoner, data, config.training, [])
    steps = trainer.steps(draw_epoch(trainer.graph, config.training, 1), 1)
next(steps)
begun, asked = time.perf_counter(), 0
for count, *_ in steps:
    asked += count
    if time.perf_counter() - begun > seconds:
        break
print(json.dumps({"queries_per_second": asked / (time.perf_counter() - begun)}))
"""
)

NBFNET = (
    SETUP
    + """
from torch import nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter

graph = data.graph
edges, kinds = graph.edges, 2 * graph.num_relations
target = torch.arange(graph.num_entities).repeat_interleave(graph.degree)
index = torch.stack([edges.source.long(), target])
label = edges.relation.long()


class Layer(MessagePassing):
    def __init__(self):
        super().__init__(aggr=None, node_dim=0)
        self.relation = nn.Linear(dim, kinds * dim)
        self.linear = nn.Linear(13 * dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, state, start, query):
        weights = self.relation(query).reshape(len(query), kinds, dim)
        out = self.propagate(index, x=state, start=start, weights=weights,
                             size=(len(state), len(state)))
        return torch.relu(self.norm(self.linear(torch.cat([state, out], dim=-1)))) + state

    def message(self, x_j, weights):
        return x_j * weights[:, label].transpose(0, 1)

    def aggregate(self, inputs, index, start, dim_size):
        # The start of each query counts as one more message to every entity.
        count = graph.degree[:, None, None] + 1
        mean = (scatter(inputs, index, 0, dim_size, "sum") + start) / count
        squares = (scatter(inputs.square(), index, 0, dim_size, "sum") + start.square()) / count
        high = torch.maximum(scatter(inputs, index, 0, dim_size, "max"), start)
        low = torch.minimum(scatter(inputs, index, 0, dim_size, "min"), start)
        spread = (squares - mean.square()).clamp(min=1e-6).sqrt()
        features = torch.cat([mean, high, low, spread], dim=-1)
        scale = count.log()
        scale = scale / scale.mean()
        return torch.cat([features, features * scale, features / scale.clamp(min=1e-2)], dim=-1)


class NBFNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Embedding(kinds, dim)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, entities, relations):
        query = self.query(relations)
        start = torch.zeros(graph.num_entities, len(entities), dim)
        start[entities, torch.arange(len(entities))] = query
        state = start
        for layer in self.layers:
            state = layer(state, start, query)
        asked = query.expand(graph.num_entities, -1, -1)
        return self.readout(torch.cat([state, asked], dim=-1)).squeeze(-1)


torch.manual_seed(0)
model = NBFNet()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
facts = data.train[torch.randperm(len(data.train))]
# As many queries at once as fit four gigabytes: the backward pass needs what every layer stored,
# several times the messages of all edges and the features of all entities.
stored = 4 * dim * layers * (6 * len(label) + 45 * graph.num_entities)
size = max(min(32, 2**32 // stored), 1)


def step(number):
    some = facts[number * size : (number + 1) * size]
    scores = model(some[:, 0], some[:, 1])
    nn.functional.cross_entropy(scores.t(), some[:, 2]).backward()
    optimizer.step()
    optimizer.zero_grad()


step(0)
begun, number = time.perf_counter(), 0
while time.perf_counter() - begun < seconds:
    number += 1
    step(number)
print(json.dumps({"queries_per_second": number * size / (time.perf_counter() - begun)}))
"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="5f5d01b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--data", nargs="*", default=list(GRAPHS))
    options = parser.parse_args()
    git = ["git", "-C", str(ROOT)]
    rows: list[dict[str, Any]] = []
    file = RESULTS / "cpu-training.json"
    earlier = json.loads(file.read_text())["rows"] if file.exists() else []
    with tempfile.TemporaryDirectory() as directory:
        before = Path(directory) / "before"
        subprocess.run(
            [*git, "worktree", "add", "-q", "--detach", str(before), options.before], check=True
        )
        try:
            for name in options.data:
                ratio, layers = GRAPHS.get(name, (0.1, 5))
                own = name in ("umls", "world") or Path(name).is_file()
                source = name if own else str(find(name))
                name = Path(name).stem if Path(name).suffix == ".csv" else name
                arguments = [source, ratio, layers, DIM, options.seconds]
                found: dict[str, list[float]] = {"now": [], "before": [], "nbfnet": []}
                for _ in range(options.rounds):
                    found["now"].append(rate(ROOT, OURS, arguments))
                    found["before"].append(rate(before, OURS, arguments))
                    found["nbfnet"].append(rate(ROOT, NBFNET, arguments))
                rows.append(
                    {
                        "data": name,
                        "entity_ratio": ratio,
                        "layers": layers,
                        "dim": DIM,
                        **{key: median(values) for key, values in found.items()},
                        "rounds": found,
                    }
                )
                print(json.dumps(rows[-1]))
                kept = [row for row in earlier if row["data"] not in {r["data"] for r in rows}]
                write_result("cpu-training", {"before": options.before, "rows": kept + rows})
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(before)], check=True)


def rate(root: Path, code: str, arguments: list[Any]) -> float:
    """Queries per second that code measures with the package of a tree."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["queries_per_second"])


if __name__ == "__main__":
    main()
