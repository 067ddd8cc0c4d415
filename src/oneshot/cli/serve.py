"""The command that serves a run."""

import os
from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.options import DeviceOption, JsonOption, RunArgument, SeedOption, SetOption
from oneshot.errors import InputError
from oneshot.system import console

_TOKEN = "ONESHOT_TOKEN"


def serve(
    run: RunArgument,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"Bearer token that every request must carry; or ${_TOKEN}."
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Let nobody change the facts.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions answered at once.")] = 16,
    batch_wait: Annotated[
        float, typer.Option(min=0, max=1000, help="Milliseconds to wait for more of them.")
    ] = 5.0,
    queue: Annotated[int, typer.Option(min=1, help="Questions that may wait.")] = 128,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a request may take in all.")
    ] = 30.0,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Answer questions over HTTP: a REST API, and a page to ask on."""
    from oneshot.errors import require
    from oneshot.system.devices import find_device

    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require(package, "serve", "serving")
    from oneshot.serve.server import run_server
    from oneshot.serve.settings import ServeSettings

    place = find_device(device)
    chosen = ServeSettings(
        token=_token(token_file),
        read_only=read_only,
        batch_size=batch_size,
        batch_wait=batch_wait / 1000,
        queue=queue,
        timeout=timeout,
    )
    if chosen.token is None and host not in ("127.0.0.1", "::1", "localhost"):
        console.note(f"everybody who reaches {host} can ask and change facts; see --token-file")

    def tell(address: str) -> None:
        if json:
            console.print_json({"url": address, "run": str(run)})
        else:
            console.note(f"{run} is served on {address} (stop with Ctrl+C)")

    run_server(run, host, port, chosen, place, settings or (), tell)


def _token(file: Path | None) -> str | None:
    """The bearer token from a file or the environment; not from an option, which all can see."""
    if file is None:
        token = os.environ.get(_TOKEN, "").strip()
        if not token:
            return None
    else:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:
            token = ""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        place = f"${_TOKEN}" if file is None else str(file)
        raise InputError(f"{place}: must hold one token of letters, digits and signs")
    return token
