"""PPR and top K on a processor, against networkx, scipy and PyG: real and large random graph."""

import sys

import torch
from benchmarks.common import find, write_result

from oneshot.data.load import Dataset, load, uniform
from oneshot.experiments.bench.sampler import bench_sampler
from oneshot.samplers import PPRSampler


def run(data: Dataset, queries: int) -> dict[str, object]:
    order = torch.randperm(data.graph.num_entities, generator=torch.Generator().manual_seed(0))
    asked = torch.stack([order[:queries], torch.zeros(queries, dtype=torch.long)], dim=1)
    result = bench_sampler(
        data.graph,
        PPRSampler(0.1),
        asked,
        ["networkx", "scipy", "pyg"],
        note=lambda text: print(text, file=sys.stderr),
    )
    return {"data": data.name, **result}


def main() -> None:
    rows = [run(load(find("WN18RR")), 1024), run(uniform(100_000, 1_000_000), 256)]
    for row in rows:
        print(row["data"], row["ours"], row["ratio"])
    write_result("sampler-cpu", {"rows": rows})


if __name__ == "__main__":
    main()
