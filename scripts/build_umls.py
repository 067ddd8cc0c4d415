"""Build the bundled `umls` graph from the copy of the benchmark in the PyKEEN wheel.

    pip download --no-deps pykeen
    python scripts/build_umls.py --wheel pykeen-1.11.1-py3-none-any.whl --out src/oneshot/data/bundled/umls

The split, the names and the order of the facts stay as they are; only the files are compressed,
without time stamps, so that a rebuild gives the same files.
"""  # noqa: E501 - a command that can be copied

from __future__ import annotations

import argparse
import gzip
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

PARTS = ("train", "valid", "test")
LICENCE_FILE = "LICENSE.pykeen.txt"

Fact = tuple[str, str, str]


def main() -> None:
    """Read the wheel given by --wheel, fill the folder given by --out and print the counts."""
    parser = argparse.ArgumentParser(description="Build the bundled umls graph from PyKEEN.")
    parser.add_argument("--wheel", type=Path, required=True, metavar="FILE", help="PyKEEN wheel")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to fill")
    arguments = parser.parse_args()

    version, licence, parts = read_wheel(arguments.wheel)
    check_split(parts)

    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        write_facts(out / f"{part}.tsv.gz", rows)
    (out / LICENCE_FILE).write_text(licence, encoding="utf-8")
    (out / "README.md").write_text(readme(version, parts), encoding="utf-8")
    report(out, version, parts)


def read_wheel(path: Path) -> tuple[str, str, dict[str, list[Fact]]]:
    """Take the version, the licence and the three parts of the data set out of the wheel."""
    try:
        with ZipFile(path) as wheel:
            metadata = wheel.read(find_member(wheel, "METADATA")).decode("utf-8")
            licence = wheel.read(find_member(wheel, "LICENSE")).decode("utf-8")
            parts = {
                part: read_facts(wheel.read(f"pykeen/datasets/umls/{part}.txt").decode("utf-8"))
                for part in PARTS
            }
    except (OSError, BadZipFile, KeyError) as error:
        sys.exit(f"build_umls: {path} cannot be read as a PyKEEN wheel: {error}")
    version = re.search(r"^Version: (\S+)$", metadata, re.MULTILINE)
    return version.group(1) if version else "unknown", licence, parts


def find_member(wheel: ZipFile, name: str) -> str:
    """Find a file of the metadata folder, whose own name holds the version."""
    for member in wheel.namelist():
        if ".dist-info/" in member and member.endswith(f"/{name}"):
            return member
    raise KeyError(f"no {name} in it")


def read_facts(text: str) -> list[Fact]:
    """Read lines of head, relation and tail."""
    facts = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) != 3 or not all(fields):
            sys.exit(f"build_umls: line {number} is not a head, a relation and a tail: {line!r}")
        head, relation, tail = fields
        facts.append((head, relation, tail))
    return facts


def check_split(parts: Mapping[str, Sequence[Fact]]) -> None:
    """Make sure that the parts are disjoint and that train knows every entity and relation."""
    everything = [fact for rows in parts.values() for fact in rows]
    if len(set(everything)) != len(everything):
        sys.exit("build_umls: a fact occurs twice")
    if vocabulary(parts["train"]) != vocabulary(everything):
        sys.exit("build_umls: valid or test holds an entity or relation that train lacks")


def vocabulary(rows: Sequence[Fact]) -> tuple[set[str], set[str]]:
    """Entities and relations of some facts."""
    entities = {entity for head, _, tail in rows for entity in (head, tail)}
    return entities, {relation for _, relation, _ in rows}


def write_facts(path: Path, rows: Iterable[Fact]) -> None:
    """Write facts as gzipped, tab-separated lines; without file name and time in the header."""
    text = "".join("\t".join(row) + "\n" for row in rows)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(text.encode("utf-8"))
    path.write_bytes(buffer.getvalue())


README = """\
# umls

A small benchmark of link prediction: {entities} categories of medical concepts
("disease_or_syndrome", "antibiotic"), {relations} relations between them ("treats", "causes"),
{facts:,} facts.

## Source and terms

- The facts come from the Semantic Network of the Unified Medical Language System (UMLS) of the US
  National Library of Medicine, described by McCray (2003), and were turned into a benchmark of
  relational learning by Kok and Domingos (2007). According to the UMLS reference manual, the
  Semantic Network is accessible under open terms that include appropriate acknowledgment.
- These files are those of the Python package PyKEEN {version}, which is under the MIT licence
  (`{licence}`) and names Zhenfeng Lei's collection KGDatasets (2017) as its source. We know of no
  separate terms for the benchmark itself.
- Changes: only the compression. Names, split and order are as in PyKEEN.

## Files

`train.tsv.gz` ({train:,} facts), `valid.tsv.gz` ({valid:,}), `test.tsv.gz` ({test:,}): one fact per
line, head, relation and tail separated by tabs, UTF-8, no header. They are built by
`scripts/build_umls.py`; a rebuild gives the same files. Every entity and relation occurs in train.

## Difference from the split of RED-GNN

The authors of RED-GNN distribute the same 6,529 facts, with different capitalization of the names,
in another split: 5,327 / 569 / 633 facts. Only 70 test facts are in both test splits. Of
the 661 test facts here, 531 are in the train split of RED-GNN. Metrics measured on one split cannot
be compared with metrics measured on the other.

## Relations

| relation | facts |
| --- | ---: |
{relation_rows}
"""


def readme(version: str, parts: Mapping[str, Sequence[Fact]]) -> str:
    """Describe the data set, with the counts of this build."""
    everything = [fact for rows in parts.values() for fact in rows]
    entities, relations = vocabulary(everything)
    counts = Counter(relation for _, relation, _ in everything)
    return README.format(
        version=version,
        licence=LICENCE_FILE,
        entities=len(entities),
        relations=len(relations),
        facts=len(everything),
        relation_rows="\n".join(f"| `{name}` | {counts[name]:,} |" for name in sorted(counts)),
        **{part: len(rows) for part, rows in parts.items()},
    )


def report(out: Path, version: str, parts: Mapping[str, Sequence[Fact]]) -> None:
    """Print the counts and file sizes."""
    entities, relations = vocabulary(parts["train"])
    print(f"pykeen {version}")
    print(f"{'entities':20} {len(entities):7,}")
    print(f"{'relations':20} {len(relations):7,}")
    for part, rows in parts.items():
        print(f"{part:20} {len(rows):7,}")
    for path in sorted(out.iterdir()):
        print(f"{path.name:20} {path.stat().st_size:7,}")


if __name__ == "__main__":
    main()
