"""RDF: facts between resources from N-Triples and Turtle files (extra `rdf`)."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from oneshot.data.formats.base import Format, RawFacts, Rows
from oneshot.errors import InputError, require

OWN = "urn:oneshot:"
"""The prefix of the IRIs of names that are no IRIs."""
_IRI = re.compile(r"(?:https?|urn|ftp|mailto):[^\s<>\"{}|^`\\\x00-\x20]+")


def read_rdf(data: bytes, path: Path, syntax: str) -> RawFacts:
    """The facts of an RDF file; `syntax` is its name in pyoxigraph.

    Facts with a literal value are skipped, with a note.
    """
    import pyarrow as pa

    oxigraph = require("pyoxigraph", "rdf", f"reading {path.name}")
    columns: list[list[str]] = [[], [], []]
    literals = 0
    labels = set(re.findall(rb"_:([0-9a-f]{20,32})(?![0-9a-f])", data))
    anonymous: dict[str, str] = {}

    def name_of(term: Any) -> str:
        if isinstance(term, oxigraph.NamedNode):
            found = str(term.value)
            return unquote(found[len(OWN) :]) if found.startswith(OWN) else found
        label = str(term).removeprefix("_:")
        if not re.fullmatch("[0-9a-f]{20,32}", label) or label.encode() in labels:
            return str(term)
        # The parser gives a blank node without a label a new random 128-bit number each time.
        return anonymous.setdefault(label, f"_:{path.name}:{len(anonymous) + 1}")

    try:
        for quad in oxigraph.parse(data, format=getattr(oxigraph.RdfFormat, syntax)):
            if isinstance(quad.object, oxigraph.Literal):
                literals += 1
                continue
            terms = (quad.subject, quad.predicate, quad.object)
            for column, term in zip(columns, terms, strict=True):
                column.append(name_of(term))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        location = f"{path}, line {line}" if line else str(path)
        raise InputError(f"{location}: {getattr(error, 'msg', None) or error}") from error
    if not columns[0]:
        raise InputError(f"{path}: the file has no facts between resources")
    notes = [f"{path.name}: skipped {literals:,} facts with a literal value"] if literals else []
    return RawFacts(
        path, [pa.chunked_array([pa.array(c, pa.string())]) for c in columns], notes=notes
    )


def write_rdf(path: Path, rows: Rows, columns: Sequence[str]) -> None:
    """Write facts as N-Triples, which are Turtle as well; further columns are left out.

    A name that is no IRI is written as one, with the prefix `OWN`, which `read_rdf` removes.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        for head, relation, tail, *_ in rows:
            file.write(" ".join(f"<{_iri(name)}>" for name in (head, relation, tail)) + " .\n")


def _iri(name: str) -> str:
    is_iri = _IRI.fullmatch(name) and not name.startswith(OWN)
    return name if is_iri else OWN + quote(name, safe="")


N_TRIPLES = Format(read=partial(read_rdf, syntax="N_TRIPLES"), write=write_rdf)
TURTLE = Format(read=partial(read_rdf, syntax="TURTLE"), write=write_rdf)
