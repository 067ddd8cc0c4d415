"""Arguments and options shared by the commands, and their parsing."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    from torch import Tensor

    from oneshot.batch.job_progress import JobFile, State
    from oneshot.batch.source import Identity
    from oneshot.data.load import Dataset
    from oneshot.data.sources import Address
    from oneshot.reasoner.judgement import ScoredFact
    from oneshot.reasoner.reasoner import Reasoner
    from oneshot.runs.run import Run

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A bundled data set (world, umls), family:PEOPLE, rules:ENTITIES:RELATIONS, "
        "random:ENTITIES:FACTS, power-law:ENTITIES:FACTS, a directory with train, valid and test "
        "files, a saved graph, a file of triples, a name in $ONESHOT_DATA, the address of a "
        "database (duckdb:FILE?table=NAME, sqlite:, postgres:, mysql:, sparql:, neo4j:), or a "
        "public data set to download (WN18RR, FB15k-237, NELL-995, YAGO3-10, ogbl-biokg, "
        "ogbl-wikikg2, Hetionet, Wikidata5M, pykeen:NAME).",
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column with the weights of the facts (confidence, count or probability; above 0); in "
        "text files without a header the fourth.",
        show_default="no weights",
    ),
]


def run_directory(text: str) -> Path:
    """The directory of a run; a run on the Hugging Face Hub is downloaded."""
    from oneshot.runs.run import Run

    return Run.open(text).path if text.startswith("hf://") else Path(text)


RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        parser=run_directory,
        help="Run directory, as written by `oneshot train`, or hf://OWNER/NAME.",
    ),
]
RunOption = Annotated[Path, typer.Option(metavar="RUN", help="Run directory to write.")]
SplitOption = Annotated[str, typer.Option(help="Split: train, valid or test.")]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of queries, sampled with --seed.", show_default="all"),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON value on stdout.")
]
SeedOption = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Random seed.")]
DeviceOption = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a configuration option; may be repeated.",
    ),
]

GraphOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="Data set whose graph to use.",
        show_default="the run's own",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Batch size in queries.",
        show_default="16; on a GPU chosen to fill it",
    ),
]
RelationsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--relation", metavar="RELATION", help="Only facts of this relation; may be repeated."
    ),
]
FactsOutOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Also write the facts to FILE: .tsv, .csv, .parquet, .nt or .ttl."
    ),
]
HeadTypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="RELATION=ENTITY",
        help='Only facts whose head has this fact, such as "instance_of=country"; may be repeated.',
    ),
]
LinksOutOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|ADDRESS",
        help="Also write the facts to FILE (.tsv, .csv, .parquet, .nt or .ttl), or as "
        "relationships to the graph database at neo4j://HOST.",
    ),
]

UNSAVED = "; nothing is kept; a long one can be resumed if it is started with --out FILE"
"""Advice about an interrupted job whose progress is not kept."""

# Options of servers.

TOKEN = "ONESHOT_TOKEN"
WRITE_TOKEN = "ONESHOT_WRITE_TOKEN"

HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on (0 = any free port).")
]
TimeoutOption = Annotated[float, typer.Option(min=0.1, help="Time limit per request in seconds.")]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Host name of the service, such as that of a proxy in front of it; requests to "
        "other names are rejected (may be repeated; * = any name).",
        show_default="localhost and IP addresses",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with the bearer token that every request must send.",
        show_default=f"${TOKEN}",
    ),
]
WriteTokenFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with the bearer token of requests that change facts; the other token is "
        "then for reading only.",
        show_default=f"${WRITE_TOKEN}",
    ),
]
ServedGraphOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="Data set whose graph to use; changed facts are then kept only in memory.",
        show_default="the run's own",
    ),
]


def open_reasoner(
    run: Path, data: str | None, settings: list[str] | None, seed: int, device: str
) -> "Reasoner":
    """The reasoner of a run, on the graph of a data set if one is given."""
    from oneshot.runs.run import Run
    from oneshot.system.devices import find_device

    torch_device = find_device(device)
    opened = Run.open(run, settings or ())
    graph = None if data is None else load_data(data, seed).graph
    reasoner = opened.reasoner if graph is None else opened.reasoner_on(graph)
    return reasoner.to(torch_device)


def open_with_held_out(
    run: Path, data: str | None, settings: list[str] | None, seed: int, device: str
) -> "tuple[Reasoner, Tensor | None]":
    """As `open_reasoner`, and the facts of the validation and test splits, int64 [n, 3].

    None if the graph of the run was created in memory, so that its splits are not known.
    """
    import torch

    from oneshot.runs.run import Run
    from oneshot.system.devices import find_device

    torch_device = find_device(device)
    opened = Run.open(run, settings or ())
    if data is not None:
        dataset = load_data(data, seed)
        reasoner = opened.reasoner_on(dataset.graph)
    else:
        reasoner = opened.reasoner
        if not opened.reference.has_origin:
            return reasoner.to(torch_device), None
        dataset = opened.data
    held_out = torch.cat([dataset.valid, dataset.test]).long()
    return reasoner.to(torch_device), reasoner.renumbered(dataset.graph, held_out)


def load_data(source: str, seed: int, weights: str | None = None) -> "Dataset":
    """Load a data set, with a spinner on stderr."""
    from oneshot.data.load import check_weighted_source, load

    check_weighted_source(source, weights)  # before a long download
    found = download(source)
    with console.status(f"reading {found}"):
        return load(found, seed=seed, weights=weights)


def download(source: str, sha256: Sequence[str] = ()) -> str:
    """Download a public data set if necessary, or read an address, with a progress bar.

    `sha256`: the expected hashes of the files that are downloaded. Returns the name or path to
    load: for an address, that of its copy in the cache.
    """
    from oneshot.data.locate import bundled_names, cache_directory, look_for
    from oneshot.data.public.catalogue import fetch, is_named, source_hashes
    from oneshot.data.sources import is_address

    if sha256 and not is_named(source):
        raise InputError(f"{shown(source)}: --sha256 needs the name of a public data set")
    if is_address(source):
        return _copy(source)
    if source in bundled_names() or not is_named(source):
        return source
    found = look_for(source)
    if found is not None and (found.parent != cache_directory() or not sha256):
        if sha256:
            raise InputError(f"{found} is used for {source} and is no download; omit --sha256")
        return source
    with console.progress_bar(with_counts=False) as bar:
        task = bar.add_task(f"downloading {source}", total=None)
        place = fetch(
            source,
            lambda done, total: bar.update(task, completed=done, total=total or None),
            sha256,
        )
    for url, value in source_hashes(place).items():
        console.note(f"downloaded {url}, SHA-256 {value}")
    return source


def _copy(source: str) -> str:
    """Copy what an address names into the cache; the progress bar counts facts."""
    from oneshot.data.sources import parse_address
    from oneshot.data.sources.cache import fetch

    address = parse_address(source)
    with console.progress_bar() as bar:
        task = bar.add_task(f"reading {address}", total=None)
        return str(fetch(address, lambda done: bar.update(task, completed=done)))


def shown(source: str) -> str:
    """A data set as part of a command: an address without user and password, quoted."""
    from oneshot.data.sources import shown as shown_source

    public = shown_source(source)
    return source if public == source and "?" not in source else shlex.quote(public)


def output(target: str) -> "Path | Address":
    """Where results go: a path, or the address of a database."""
    from oneshot.data.sources import is_address, parse_address

    return parse_address(target) if is_address(target) else Path(target)


def check_facts_output(path: "Path | Address | None", run: Path, data: str | None) -> None:
    """Raise if facts cannot be written to a file, or if it would overwrite one that is read.

    A database must accept connections.
    """
    from oneshot.data.formats import check_facts_place
    from oneshot.data.sources import check_target
    from oneshot.runs.run import Run

    if isinstance(path, Path):
        check_facts_place(path)
        opened = Run.open(run)
        check_outside(path, opened)
        check_output(path, data or "", *opened.files)
    elif path is not None:
        with console.status(f"connecting to {path}"):
            check_target(path)


def check_names_output(path: "Path | Address | None", reasoner: "Reasoner") -> None:
    """Raise if a file of results cannot hold a name of the graph."""
    from oneshot.data.formats import check_names_fit

    if isinstance(path, Path):
        check_names_fit(path, reasoner.graph.entities, reasoner.graph.relations)


def run_identity(
    run: Path, settings: list[str] | None, other: "Reasoner | None", held_out: "Tensor | None"
) -> "Identity":
    """The identity of the reasoner of a job and of the held-out facts [n, 3] that it depends on.

    `other`: the reasoner, if it is on another graph than that of the run.
    """
    from oneshot.batch.source import identity_of
    from oneshot.runs.run import Run
    from oneshot.system.checksums import digest

    found = identity_of(Run.open(run, settings or ()), None if other is None else other.graph)
    facts = None if held_out is None else digest(held_out.cpu().numpy().tobytes())
    return found | {"held_out": facts}


def resumed(file: "JobFile[State] | None") -> "State | None":
    """The progress of an interrupted job, with a note, or None."""
    begun, message = (None, None) if file is None else file.read()
    if message is not None:
        console.note(message)
    if begun is not None and file is not None:
        console.note(f"resuming the interrupted {file.job}: {begun.queries:,} queries are done")
    return begun


@contextmanager
def interruptible(file: "JobFile[Any] | None", advice: str = "") -> Iterator[None]:
    """Print a note if a job is interrupted: how to resume, or `advice` if nothing is kept."""
    try:
        yield
    except KeyboardInterrupt:
        if file is not None and file.path.exists():
            console.note("stopped; run the same command again to resume")
        else:
            console.note("interrupted" + (advice if file is None else "; nothing is kept yet"))
        raise


def print_facts(
    title: str,
    facts: "Sequence[ScoredFact]",
    out: "Path | Address | None",
    json: bool,
    seconds: float,
    top: int | None = None,
) -> None:
    """Print the first `top` scored facts as a table or as JSON, and write all of them to `out`."""
    from oneshot.data.formats import write_scored_facts
    from oneshot.data.sources import Link, write_links

    has_ranks = any(fact.rank is not None for fact in facts)
    columns: dict[str, type] = {"score": float, "probability": float}
    columns |= {"rank": float, "conflicts": int} if has_ranks else {}
    written = None
    if isinstance(out, Path):
        rows = (
            [fact.head, fact.relation, fact.tail, *(getattr(fact, name) for name in columns)]
            for fact in facts
        )
        write_scored_facts(out, rows, columns)
    elif out is not None:
        links = [Link(fact.head, fact.relation, fact.tail, fact.probability) for fact in facts]
        with console.status(f"writing to {out}"):
            written = write_links(out, lambda: links)
    if json:
        value = {"facts": [fact.as_dict() for fact in facts[:top]], "seconds": seconds}
        value |= {} if written is None else {"links": written}
        console.print_json(value | ({"out": str(out)} if out is not None else {}))
        return
    console.print_table(
        title,
        ("head", "relation", "tail", "probability", *(("rank", "conflicts") if has_ranks else ())),
        [
            (
                fact.head,
                fact.relation,
                fact.tail,
                "–" if fact.probability is None else f"{fact.probability:.3f}",
                *((f"{fact.rank:.1f}", str(fact.conflicts or "")) if has_ranks else ()),
            )
            for fact in facts[:top]
        ],
    )
    console.note(f"{len(facts):,} facts in {seconds:.1f} s" + (f": {out}" if out else ""))
    if written is not None:
        console.note(relationships(written))


def relationships(written: int) -> str:
    """The outcome of writing to a database, for people."""
    return f"{written:,} relationships written; facts of the database were left out"


def check_outside(path: Path, run: "Run") -> None:
    """Raise if a result would be written into the directory of a run.

    A directory with other files than those of a run is not replaced by a training.
    """
    if path.resolve().is_relative_to(run.path.resolve()):
        where = "the run" if path == run.path else f"inside the run {run.path}"
        raise InputError(f"{path} is {where}; write to another path")


def check_output(path: Path, source: str, *others: Path) -> None:
    """Raise if writing to `path` would overwrite a file of the data set or one of `others`."""
    from oneshot.data.load import source_files
    from oneshot.system import files

    files.check_output(path, [*others, *source_files(source)])


def parts(text: str, option: str) -> list[str]:
    """The values of a comma-separated list; raises if it is empty."""
    values = [part.strip() for part in text.split(",") if part.strip()]
    if not values:
        raise InputError(f"{option} is empty; give one or more values, separated by commas")
    return values


def count(text: str, option: str) -> int:
    """An integer of at least 1."""
    # Longer numbers do not fit 64 bits; no graph has as many entities.
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise InputError(f"{option}: {text!r} is not an integer from 1 to 10^18")
    return int(text)


def drawn(total: int, limit: int, seed: int) -> "Tensor":
    """A seeded sample of at most `limit` of `total` rows, in random order."""
    import torch

    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:limit]


def bearer_token(file: Path | None, variable: str) -> str | None:
    """The bearer token from a file or the environment; other users could see an option."""
    if file is None:
        token = os.environ.get(variable, "").strip()
        if not token:
            return None
    else:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:
            token = ""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        origin = f"${variable}" if file is None else str(file)
        raise InputError(f"{origin}: must contain one token of printable ASCII characters")
    return token


def note_open_access(host: str, token: str | None, changes: bool) -> None:
    """Print a note if a server without a token can be reached from other machines.

    `changes`: whether facts can be changed without a token.
    """
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        change = " and change facts" if changes else ""
        console.note(f"anyone who can reach {host} can query{change}; see --token-file")
