"""Arguments and options shared by the commands, and their parsing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oneshot.errors import InputError
from oneshot.system import console

if TYPE_CHECKING:
    from torch import Tensor

    from oneshot.data.load import Dataset

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A bundled data set (world, umls), family:PEOPLE, rules:ENTITIES:RELATIONS, "
        "random:ENTITIES:FACTS, power-law:ENTITIES:FACTS, a directory with train, valid and test "
        "files, a saved graph, a file of triples, a name in $ONESHOT_DATA, or a public data set to "
        "download (WN18RR, FB15k-237, NELL-995, YAGO3-10, ogbl-biokg, ogbl-wikikg2, Hetionet, "
        "Wikidata5M, pykeen:NAME).",
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run directory, as written by `oneshot train`.")
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


def load_data(source: str, seed: int) -> "Dataset":
    """Load a data set, with a spinner on stderr."""
    from oneshot.data.load import load

    download(source)
    with console.status(f"reading {source}"):
        return load(source, seed=seed)


def download(source: str) -> None:
    """Download a public data set into the cache if necessary, with a progress bar."""
    from oneshot.data.locate import bundled_names, look_for
    from oneshot.data.public.catalogue import fetch, is_named

    if source in bundled_names() or not is_named(source) or look_for(source) is not None:
        return
    with console.progress_bar(with_counts=False) as bar:
        task = bar.add_task(f"downloading {source}", total=None)
        fetch(source, lambda done, total: bar.update(task, completed=done, total=total or None))


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
