"""The command that changes the facts of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneshot.cli.options import DeviceOption, JsonOption, RunArgument, SeedOption, check_outside
from oneshot.errors import InputError, UnknownNameError
from oneshot.system import console

if TYPE_CHECKING:
    from oneshot.graph.live.live_graph import LiveGraph
    from oneshot.graph.live.store import NamedFact

_ACTIONS = ("add", "remove", "export")


def facts(
    run: RunArgument,
    action: Annotated[str, typer.Argument(metavar="add|remove|export", help="Action.")],
    fact: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HEAD RELATION TAIL]", help="Fact to add or remove."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", help="Facts to add or remove: .tsv, .csv, .parquet, .nt, …"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for the exported facts: .tsv, .csv, .parquet, .nt or .ttl.",
            show_default="stdout",
        ),
    ] = None,
    changes: Annotated[
        bool,
        typer.Option("--changes", help="Export only the added and removed facts."),
    ] = False,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Add or remove facts of a run's graph permanently, or export its facts."""
    from oneshot.runs.run import Run
    from oneshot.system.devices import find_device

    find_device(device)
    named = _check_facts(action, fact, file, out, changes)
    opened = Run.open(run)
    if out is not None:
        from oneshot.data.formats import check_facts_place
        from oneshot.system.files import check_output

        check_facts_place(out)
        check_outside(out, opened)
        check_output(out, opened.files)
    with console.status(f"reading {run}"):
        live = opened.live_graph(read_only=action == "export")
    try:
        if action == "export":
            _export(live, out, changes, json)
            return
        if file is not None:
            _check_rows(live, named, file)
        count = live.add(named) if action == "add" else live.remove(named)
        value = {"facts": live.num_facts, f"{action.rstrip('e')}ed": count, "version": live.version}
    finally:
        live.close()
    if json:
        console.print_json(value)
        return
    what = "1 fact" if count == 1 else f"{count:,} facts"
    console.note(f"{action.rstrip('e')}ed {what}; the graph of {run} now has {live.num_facts:,}")


def _check_facts(
    action: str, fact: list[str] | None, file: Path | None, out: Path | None, changes: bool
) -> "list[NamedFact]":
    """The facts named by the arguments; raises if the arguments contradict each other."""
    from oneshot.data.formats import read_facts

    if action not in _ACTIONS:
        raise UnknownNameError.among("action", action, _ACTIONS)
    if action == "export":
        if fact or file is not None:
            raise InputError(
                "export takes neither a fact nor --file; it writes all facts of the graph"
            )
        return []
    if out is not None or changes:
        raise InputError(f"{'--changes' if out is None else '--out'} works only with export")
    if bool(fact) == (file is not None) or (fact and len(fact) != 3):
        raise InputError("give a fact as HEAD RELATION TAIL, or a file of facts with --file")
    if fact:
        return [(fact[0], fact[1], fact[2])]
    assert file is not None
    raw = read_facts(file)
    if raw.are_ids:
        raise InputError(f"{file} contains ids; give facts by name")
    columns = [column.to_pylist() for column in raw.columns]
    return list(zip(*columns, strict=True))


def _check_rows(live: "LiveGraph", named: "list[NamedFact]", file: Path) -> None:
    """Raise if a fact of a file cannot be added or removed, with its line."""
    from oneshot.data.formats import place_of

    for row, fact in enumerate(named):
        try:
            live.checked(fact)
        except InputError as error:
            raise InputError(f"{place_of(file, row)}: {error}") from error


def _export(live: "LiveGraph", out: Path | None, changes: bool, json: bool) -> None:
    """Write all facts, or the changed facts with their change, to a file or to stdout."""
    from oneshot.data.formats import FACT_COLUMNS, write_facts
    from oneshot.data.formats.text import tsv_lines

    more = ("change",) if changes else ()

    def rows() -> Any:
        if changes:
            for names, holds in live.changes():
                yield [*names, "added" if holds else "removed"]
        else:
            graph = live.graph()
            for head, relation, tail in graph.facts.tolist():
                yield list(live.names((head, relation, tail)))

    if out is not None:
        with console.status(f"writing {out}"):
            count = write_facts(out, rows(), more)
        if json:
            console.print_json({"facts": count, "out": str(out), "version": live.version})
        else:
            console.note(f"{out}: {count:,} facts")
    elif json:
        console.print_json({"facts": list(rows()), "version": live.version})
    else:
        for line in tsv_lines(rows(), (*FACT_COLUMNS, *more)):
            console.print_line(line)
