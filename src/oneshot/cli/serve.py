"""The command that serves a run."""

import os
from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.options import (
    DeviceOption,
    JsonOption,
    RunArgument,
    SeedOption,
    SetOption,
    load_data,
)
from oneshot.errors import InputError
from oneshot.system import console

_TOKEN = "ONESHOT_TOKEN"
_WRITE_TOKEN = "ONESHOT_WRITE_TOKEN"

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
        show_default=f"${_TOKEN}",
    ),
]
WriteTokenFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with the bearer token of requests that change facts; the other token is "
        "then for reading only.",
        show_default=f"${_WRITE_TOKEN}",
    ),
]
GraphOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="Data set whose graph to use; changed facts are then kept only in memory.",
        show_default="the run's own",
    ),
]
BatchWaitOption = Annotated[
    float,
    typer.Option(
        min=0, max=1000, help="Maximum wait for further queries of a batch, in milliseconds."
    ),
]
GracePeriodOption = Annotated[
    float,
    typer.Option(
        min=0, help="Time for open requests to finish when the service stops, in seconds."
    ),
]


def serve(
    run: RunArgument,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on (0 = any free port).")
    ] = 8000,
    allow_host: AllowHostOption = None,
    token_file: TokenFileOption = None,
    write_token_file: WriteTokenFileOption = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Reject requests that change facts.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Maximum batch size in queries.")] = 16,
    batch_wait: BatchWaitOption = 5.0,
    queue: Annotated[int, typer.Option(min=1, help="Maximum number of queued queries.")] = 128,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Time limit per request in seconds.")
    ] = 30.0,
    connections: Annotated[
        int, typer.Option(min=1, help="Maximum number of open connections.")
    ] = 1000,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log each request to stderr, as a line of JSON.")
    ] = False,
    grace_period: GracePeriodOption = 10.0,
    data: GraphOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Serve a run over HTTP: a REST API and a web page."""
    from oneshot.errors import require
    from oneshot.system.devices import find_device

    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require(package, "serve", "serving")
    from oneshot.serve.server import run_server
    from oneshot.serve.settings import ServeSettings

    torch_device = find_device(device)
    chosen = ServeSettings(
        token=_token(token_file, _TOKEN),
        write_token=_token(write_token_file, _WRITE_TOKEN),
        read_only=read_only,
        batch_size=batch_size,
        batch_wait=batch_wait / 1000,
        queue=queue,
        timeout=timeout,
        hosts=tuple(allow_host or ()),
        connections=connections,
        grace=grace_period,
        access_log=access_log,
    )
    if chosen.token is None and host not in ("127.0.0.1", "::1", "localhost"):
        change = "" if read_only or chosen.write_token is not None else " and change facts"
        console.note(f"anyone who can reach {host} can query{change}; see --token-file")

    def announce(address: str) -> None:
        if json:
            console.print_json({"url": address, "run": str(run)})
        else:
            console.note(f"{run} is served on {address} (stop with Ctrl+C)")

    graph = None if data is None else load_data(data, seed).graph
    run_server(run, host, port, chosen, torch_device, settings or (), announce, graph)


def _token(file: Path | None, variable: str) -> str | None:
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
