"""Valid files of facts in every format."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def whole_file(suffix: str) -> bytes:
    """A sound file of a format."""
    rows = [(f"name {i}", "is near", f"Ünïcode {i * i}") for i in range(6)]
    if suffix == ".csv":
        return "".join(f'"{h}",{r},"{t}, x"\n' for h, r, t in rows).encode()
    if suffix in (".nt", ".ttl"):
        rows = [(f"http://x/{i}", "http://x/r", f"http://x/{i * i}") for i in range(6)]
        return "".join(f"<{h}> <{r}> <{t}> .\n" for h, r, t in rows).encode()
    target = io.BytesIO()
    if suffix == ".parquet":
        columns = list(zip(*rows, strict=True))
        table = pa.table(dict(zip(("head", "relation", "tail"), columns, strict=True)))
        pq.write_table(table, target)
        return target.getvalue()
    if suffix == ".npz":
        np.savez_compressed(target, h=np.arange(6), r=np.zeros(6, int), t=np.arange(6)[::-1])
        return target.getvalue()
    return "".join("\t".join(row) + "\n" for row in rows).encode()
