"""The command line: parse, call the library, print."""

import sys
from typing import Annotated, NoReturn

import typer

from oneshot._version import __version__
from oneshot.cli import bench
from oneshot.cli.audit import audit
from oneshot.cli.calibrate import calibrate
from oneshot.cli.compare import compare
from oneshot.cli.coverage import coverage
from oneshot.cli.data import data
from oneshot.cli.demo import demo
from oneshot.cli.discover import discover
from oneshot.cli.evaluate import evaluate
from oneshot.cli.facts import facts
from oneshot.cli.import_official import import_official
from oneshot.cli.import_ultra import import_ultra
from oneshot.cli.mcp import mcp
from oneshot.cli.neighbourhood import neighbourhood
from oneshot.cli.paper import paper
from oneshot.cli.plan import plan
from oneshot.cli.predict import predict
from oneshot.cli.pretrain import pretrain
from oneshot.cli.relations import relations
from oneshot.cli.search import search
from oneshot.cli.serve import serve
from oneshot.cli.train import train
from oneshot.cli.wrong_use import WrongUse, describe, is_call_for_help
from oneshot.errors import OneshotError, is_out_of_memory
from oneshot.system import console
from oneshot.system.process import prepare_process

app = typer.Typer(
    name="oneshot",
    help="Link prediction on large knowledge graphs: one small subgraph per query.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
benches = typer.Typer(
    no_args_is_help=True, help="Benchmark this package against reference implementations."
)

_NO_MEMORY = (
    "out of memory; use a smaller graph, budget (sampler.entity_ratio), batch size or predictor.dim"
)
COMMANDS = (
    demo,
    data,
    coverage,
    plan,
    train,
    pretrain,
    evaluate,
    predict,
    relations,
    discover,
    audit,
    calibrate,
    neighbourhood,
    import_official,
    import_ultra,
    search,
    serve,
    mcp,
    facts,
    compare,
    paper,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(benches, name="bench")
benches.command()(bench.sampler)
benches.command()(bench.predictor)
benches.command("end-to-end")(bench.end_to_end)
benches.command()(bench.scale)


def main() -> NoReturn:
    """Run the command line; bad input ends with a message and exit code 2, not a traceback."""
    prepare_process()
    console.accept_all_letters()
    try:
        # Not standalone: messages and exit codes must not depend on the version of typer.
        sys.exit(app(prog_name="oneshot", standalone_mode=False))
    except WrongUse as error:
        if is_call_for_help(error):
            if str(error):  # otherwise typer has printed the help itself
                console.stdout.file.write(f"{error}\n")
            sys.exit(2)
        _fail(describe(error, app, sys.argv[1:]))
    except (KeyboardInterrupt, typer.Abort):  # which of the two depends on the version of typer
        sys.exit(130)
    except OneshotError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(_NO_MEMORY)


def _fail(message: str) -> NoReturn:
    console.stderr.print(f"error: {message}", soft_wrap=True)
    sys.exit(2)


def _print_version(is_set: bool) -> None:
    if is_set:
        console.stdout.print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""
