"""The command that serves a run."""

import re
from pathlib import Path
from typing import Annotated

import typer

from oneshot.cli.options import (
    TOKEN,
    WRITE_TOKEN,
    AllowHostOption,
    DeviceOption,
    HostOption,
    JsonOption,
    PortOption,
    RunArgument,
    SeedOption,
    ServedGraphOption,
    SetOption,
    TimeoutOption,
    TokenFileOption,
    WriteTokenFileOption,
    bearer_token,
    load_data,
    note_open_access,
)
from oneshot.system import console

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

LabelsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labels of entities and relations for the page: lines of name, tab and label.",
    ),
]
LabelRelationOption = Annotated[
    str | None,
    typer.Option(
        metavar="RELATION",
        help="Relation of the graph whose tails are labels, such as rdfs:label.",
    ),
]
RateOption = Annotated[
    float,
    typer.Option(
        min=0, help="Maximum number of requests per second and client address (0 = no limit)."
    ),
]
PrefixOption = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Path under which the service is, such as /kg, if a proxy passes it.",
    ),
]
UnixSocketOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Unix socket to listen on, instead of --host and --port."),
]


def serve(
    run: RunArgument,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    allow_host: AllowHostOption = None,
    token_file: TokenFileOption = None,
    write_token_file: WriteTokenFileOption = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Reject requests that change facts.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Maximum batch size in queries.")] = 16,
    batch_wait: BatchWaitOption = 5.0,
    queue: Annotated[int, typer.Option(min=1, help="Maximum number of queued queries.")] = 128,
    timeout: TimeoutOption = 30.0,
    connections: Annotated[
        int, typer.Option(min=1, help="Maximum number of open connections.")
    ] = 1000,
    labels: LabelsOption = None,
    label_relation: LabelRelationOption = None,
    rate: RateOption = 0.0,
    prefix: PrefixOption = "",
    unix_socket: UnixSocketOption = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log each request to stderr, as a line of JSON.")
    ] = False,
    grace_period: GracePeriodOption = 10.0,
    data: ServedGraphOption = None,
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
        token=bearer_token(token_file, TOKEN),
        write_token=bearer_token(write_token_file, WRITE_TOKEN),
        read_only=read_only,
        batch_size=batch_size,
        batch_wait=batch_wait / 1000,
        queue=queue,
        timeout=timeout,
        hosts=tuple(allow_host or ()),
        connections=connections,
        grace=grace_period,
        access_log=access_log,
        rate=rate,
        prefix=_checked_prefix(prefix),
        labels=labels,
        label_relation=label_relation,
    )
    can_change = not chosen.read_only and chosen.write_token is None
    if unix_socket is None:
        note_open_access(host, chosen.token, can_change)

    def announce(address: str) -> None:
        if json:
            console.print_json({"url": address, "run": str(run)})
        else:
            console.note(f"{run} is served on {address} (stop with Ctrl+C)")

    graph = None if data is None else load_data(data, seed).graph
    run_server(
        run,
        host,
        port,
        chosen,
        torch_device,
        settings or (),
        announce,
        graph,
        unix_socket=unix_socket,
    )


def _checked_prefix(text: str) -> str:
    """The prefix of all paths: it begins with a slash and does not end in one."""
    from oneshot.errors import InputError

    prefix = text.rstrip("/")
    if prefix and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", prefix):
        raise InputError(f"--prefix: {text!r} is not a path such as /kg")
    return prefix
