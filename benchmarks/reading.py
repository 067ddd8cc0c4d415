"""Reading a file of five million lines with names."""

import tempfile
from pathlib import Path

import numpy as np
from benchmarks.common import in_own_process, write_result

LINES = 5_000_000
ENTITIES = 1_500_000

READ = """
import sys, time
from pathlib import Path
import oneshot
from oneshot.data.encode import numbered
from oneshot.data.formats import read_facts
started = time.perf_counter()
(facts,), entities, relations = numbered([read_facts(Path(sys.argv[1]))], None, None)
result = {"seconds": round(time.perf_counter() - started, 3), "lines": len(facts),
          "entities": len(entities), "relations": len(relations)}
"""

LOAD = """
import sys, time
from oneshot.data.load import load
started = time.perf_counter()
data = load(sys.argv[1])
data.graph.edges
result = {"seconds": round(time.perf_counter() - started, 3), "train": data.graph.num_facts}
"""


def write_table(path: Path) -> None:
    """Names with spaces, a few entities in very many facts, as in real graphs."""
    generator = np.random.default_rng(0)
    with path.open("w") as file:
        for _ in range(10):
            head = generator.zipf(1.3, LINES // 10) % ENTITIES
            relation, tail = generator.integers([[300], [ENTITIES]], size=(2, LINES // 10))
            file.writelines(
                f"Entity number {h}\trelation_{r}\tEntity number {t}\n"
                for h, r, t in zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True)
            )


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "facts.tsv"
        write_table(path)
        results = {
            "megabytes": round(path.stat().st_size / 2**20, 1),
            "read": in_own_process(READ, str(path)),
            "load_split_and_index": in_own_process(LOAD, str(path)),
        }
    print(results)
    write_result("reading", results)


if __name__ == "__main__":
    main()
